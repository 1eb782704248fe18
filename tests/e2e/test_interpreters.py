"""A session runs bash and python on the daemon's own worker: side by side, each with a state of its own."""

import base64
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator

import pytest

from daemon.protocol import api, records
from daemon.protocol.records import TEXT, Record, WorkerRef
from tests.daemon.provider.contexts import picture
from tests.e2e.driving import Stage, becomes, driver, judge, stage
from tests.needed import missing

BOTH = r"""
[[steps]]
text = "Both at once."
[[steps.calls]]
tool = "run"
arguments.worker = "{worker}"
arguments.code = "x=shell; until [ -e asked ]; do sleep 0.01; done; cat asked; echo from bash >.told; mv .told told"
[[steps.calls]]
tool = "run"
arguments.worker = "{worker}"
arguments.interpreter = "python"
arguments.code = '''
import os, time
x = "python's"
with open(".asked", "w") as file:
    print("from python", file=file)
os.rename(".asked", "asked")
while not os.path.exists("told"):
    time.sleep(0.01)
open("told").read()
'''

[[steps]]
text = "And on."
calls = [
  { tool = "run", arguments = { worker = "{worker}", interpreter = "python", code = "x = (" } },
  { tool = "run", arguments = { worker = "{worker}", code = "echo $x" } },
  { tool = "run", arguments = { worker = "{worker}", interpreter = "python", code = "x" } },
  { tool = "run", arguments = { worker = "{worker}", interpreter = "perl", code = "1" } },
]

[[steps]]
text = "Done."
"""

LONG = r"""
[[steps]]
text = "This takes its time."
[[steps.calls]]
tool = "run"
arguments.worker = "{worker}"
arguments.interpreter = "python"
arguments.code = '''
import os, time
print("on", file=open("ran", "a"))
while not os.path.exists("go"):
    time.sleep(0.01)
"went"
'''
"""


SHOWS = r"""
[[steps]]
text = "See."
[[steps.calls]]
tool = "run"
arguments.worker = "{worker}"
arguments.interpreter = "jupyter:tested"
arguments.code = '''
import base64, os, time
from IPython.display import Image, display
print("before", flush=True)
print("on", file=open("ran", "a"))
while not os.path.exists("go"):
    time.sleep(0.01)
display(Image(base64.b64decode("%s")))
'''

[[steps]]
text = "Seen."
"""

STAYS = r"""
[[steps]]
text = "First."
calls = [{ tool = "run", arguments = { worker = "{worker}", interpreter = "node", code = "const x = await 5; x" } }]

[[steps]]
text = "Then."
calls = [
  { tool = "run", arguments = { worker = "{worker}", interpreter = "node", code = "process.cwd() + x" } },
  { tool = "run", arguments = { worker = "{worker}", interpreter = "node", code = "process.exit(3)" } },
]

[[steps]]
text = "At last."
calls = [{ tool = "run", arguments = { worker = "{worker}", interpreter = "node", code = "x" } }]

[[steps]]
text = "Done."
"""


@pytest.fixture
def here() -> Iterator[Stage]:
    if shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("no python3 but this environment's own")
    with stage() as made:
        made.script("both", BOTH)
        made.script("long", LONG)
        made.script("stays", STAYS)
        made.script("shows", SHOWS % base64.b64encode(picture("PNG")).decode())
        yield made


def results(found: list[Record]) -> list[Record]:
    """The results in the order of their calls."""
    by_call = {record.header.for_: record for record in found if record.kind == "result"}
    return [by_call[record.id] for record in found if record.kind == "call"]


async def test_bash_and_python_of_one_answer_run_side_by_side_and_keep_their_state(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/both")
        found = await on.closes(session)
        judge(found)
        bash, python, bad, shell, kept, perl = results(found)
        assert (bash.text(), bash.header.exit) == ("from python", 0)
        assert (python.text(), python.header.exit) == ("'from bash\\n'", 0)
        assert "python does not accept this code, nothing was run" in bad.text()
        assert "SyntaxError" in bad.text()
        assert (shell.text(), kept.text()) == ("shell", '"python\'s"')
        assert "there is no interpreter `perl` here, there is: bash, python" in perl.text()
        shown = [record.text() for record in found if record.kind == "system"]
        assert any("interpreters: bash, python" in text for text in shown)


async def test_a_python_goes_on_while_the_daemon_is_dead_and_its_value_is_not_lost(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/long")
        await becomes(lambda: here.ran() == ["on"], "it runs")
        here.daemon.kill()
        (here.folder / "go").touch()
        await here.daemon.start()
        found = await on.closes(session)
        judge(found)
        (said,) = results(found)
        assert (said.text(), said.header.exit) == ("'went'", 0)
        assert here.ran() == ["on"]
        (call,) = [record for record in found if record.kind == "call"]
        assert "python" in records.call_of(call).arguments


async def test_a_node_keeps_its_state_until_its_code_ends_it(here: Stage) -> None:
    if shutil.which("node") is None:
        missing("no node: install the package nodejs")
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/stays")
        found = await on.closes(session)
        judge(found)
        first, then, exits, last = results(found)
        assert (first.text(), first.header.exit) == ("5", 0)
        assert then.text() == f"'{here.folder}5'"
        assert (exits.header.exit, "node ended with status 3" in exits.text()) == (3, True)
        assert last.text().startswith("[environment was reset: node ended with status 3")
        assert "ReferenceError: x is not defined" in last.text()


@pytest.mark.parametrize("takes", [True, False])
async def test_an_image_that_a_kernel_shows_reaches_the_session_over_a_crash_of_the_daemon(
    here: Stage, takes: bool
) -> None:
    for name in ("jupyter_client", "ipykernel"):
        if importlib.util.find_spec(name) is None:
            missing(f"{name} is not installed: it is in the group `dev` of pyproject.toml")
    kernel = here.folder / ".local/share/jupyter/kernels/tested"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "t", "language": "python"}))
    async with driver(here) as on:
        workers = (WorkerRef("local", str(here.folder)),)
        media = (TEXT, "image/png") if takes else (TEXT,)
        session = await on.client.create(api.Create(model="rehearsal/shows", workers=workers, input=media))
        await on.post(session, "Go.")
        await becomes(lambda: here.ran() == ["on"], "it runs")
        here.daemon.kill()
        (here.folder / "go").touch()
        await here.daemon.start()
        found = await on.closes(session)
        judge(found)
        said, *images = [record for record in found if record.kind == "result"]
        assert said.text().startswith("before\n<IPython.core.display.Image object>")
        assert said.header.exit == 0
        if takes:
            (image,) = images
            assert (image.header.type, image.body) == ("image/png", picture("PNG"))
            assert (image.header.for_, image.n) == (said.header.for_, said.n + 1)
        else:
            assert images == []
            assert "[shown, but not to you: image/png, " in said.text()
            assert "this session takes no images" in said.text()
        assert here.ran() == ["on"]

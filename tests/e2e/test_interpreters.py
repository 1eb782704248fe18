"""A session runs bash and python on the daemon's own worker: side by side, each with a state of its own."""

import shutil
from collections.abc import Iterator

import pytest

from daemon.protocol import records
from daemon.protocol.records import Record
from tests.e2e.driving import Stage, becomes, driver, judge, stage

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


@pytest.fixture
def here() -> Iterator[Stage]:
    if shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("no python3 but this environment's own")
    with stage() as made:
        made.script("both", BOTH)
        made.script("long", LONG)
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

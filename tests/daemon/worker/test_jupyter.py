"""What agents' code does to a Jupyter kernel, and what comes back."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemon.allowance import KERNELS
from daemon.worker import interpreter, interpreters, jupyter, login
from daemon.worker.keeper import SOCKET, Keeper
from tests.daemon.worker.dialing import Dial, Ran, Refused
from tests.needed import missing

NAME = "jupyter:tested"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # 1 x 1
SHOWS = (
    f"from IPython.display import display, Image; import base64\nimage = Image(base64.b64decode({PNG!r}))\n"
)


@pytest.fixture(autouse=True)
def there() -> None:
    for name in (jupyter.CLIENT, "ipykernel"):
        if importlib.util.find_spec(name) is None:
            missing(f"{name} is not installed: it is in the group `dev` of pyproject.toml")


@pytest.fixture
def kernels(home: Path) -> Path:
    """The folder of a user's own kernels, with one: this environment's ipykernel."""
    folder = home / ".local/share/jupyter/kernels"
    add(folder, "tested", [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    return folder


def add(folder: Path, name: str, argv: list[str], **more: Any) -> None:
    (folder / name).mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": "python"} | more
    (folder / name / "kernel.json").write_text(json.dumps(spec))


@pytest.fixture
async def keeper(scratch: Path, kernels: Path) -> AsyncIterator[Keeper]:
    one = Keeper(scratch, "1", os.environ, lambda _: (interpreters.BASH, NAME, "jupyter:bad"))
    async with one.listening():
        yield one


class Kernel:
    """Runs of the kernel on a connection."""

    def __init__(self, dial: Dial) -> None:
        self.dial = dial

    async def __call__(self, code: str | bytes, **more: Any) -> Ran:
        return await self.dial.run(code, interpreter=NAME, **more)

    def begin(self, code: str | bytes, **more: Any) -> int:
        return self.dial.begin(code, interpreter=NAME, **more)


@pytest.fixture
def kernel(dial: Dial) -> Kernel:
    return Kernel(dial)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rungs of the ladder stand close together."""
    monkeypatch.setattr(interpreter, "TERM_AFTER", 1.0)
    monkeypatch.setattr(interpreter, "KILL_AFTER", 1.5)
    monkeypatch.setattr(interpreter, "LAST_AFTER", 2.0)


def test_installed_kernels_are_listed_under_names_of_their_own(kernels: Path) -> None:
    add(kernels, "bash", ["true"])
    add(kernels, "not a name", ["true"])
    found = interpreters.find(os.environ)
    assert found[0] == "bash"
    assert {"jupyter:bash", "jupyter:tested"} <= set(found)
    own = [name for name in found if name.startswith(KERNELS + "python3")]
    assert own == [], "this project's own environment has one, which is never taken"


def test_a_worker_that_uses_no_kernel_never_loads_jupyter() -> None:
    code = "import daemon.worker.keeper, sys; print({'jupyter_client', 'zmq', 'tornado'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


def test_to_look_for_kernels_leaves_nothing_in_the_home(home: Path, kernels: Path) -> None:
    before = sorted(os.listdir(home))
    assert NAME in jupyter.names(login.environment(os.environ))
    assert sorted(os.listdir(home)) == before


async def test_a_kernel_writes_nothing_into_the_operators_home(
    kernel: Kernel, home: Path, scratch: Path
) -> None:
    def there() -> set[Path]:
        return {path for path in home.rglob("*") if "__pycache__" not in path.parts}

    before = there()
    ran = await kernel("import IPython.paths\nIPython.paths.get_ipython_dir()")
    own = scratch / "runs/s/.environment-jupyter:tested"
    assert ran.text == f"{str(own / 'ipython')!r}\n"
    assert list((own / "runtime").glob("*.json")), "how the kernel is reached"
    assert there() == before


async def test_a_kernel_has_the_operators_own_profile_of_ipython(kernel: Kernel, home: Path) -> None:
    startup = home / ".ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "first.py").write_text("mine = 5\n")
    assert (await kernel("mine")).text == "5\n"


async def test_output_values_errors_and_state_come_back(kernel: Kernel, tmp_path: Path) -> None:
    ran = await kernel(
        "import os, sys\nx = 5\nprint('out')\nprint('err', file=sys.stderr)\nos.getcwd()", cwd=str(tmp_path)
    )
    assert (ran.text, ran.end.exit, ran.notes) == (f"out\nerr\n{str(tmp_path)!r}\n", 0, "")
    ran = await kernel("print(x)\n1 / 0")
    assert ran.text.startswith("5\n")
    assert (ran.end.exit, "ZeroDivisionError: division by zero" in ran.text) == (1, True)
    ran = await kernel("os.system('echo from a child')\nawait __import__('asyncio').sleep(0)\nx")
    assert (ran.text, ran.end.exit) == ("from a child\n5\n", 0)
    ran = await kernel("x = = 1")
    assert (ran.end.exit, "SyntaxError" in ran.text) == (1, True)
    assert (await kernel("x", session="other")).end.exit == 1


async def test_input_is_refused(kernel: Kernel) -> None:
    ran = await kernel("input('name? ')")
    assert (ran.end.exit, "StdinNotImplementedError" in ran.text) == (1, True)
    assert (await kernel("import sys; sys.stdin.read()")).end.exit == 0


async def test_images_come_back_in_order_and_again_after_a_restart(kernel: Kernel, scratch: Path) -> None:
    ran = await kernel(f"{SHOWS}print('a')\ndisplay(image)\nprint('b')\nimage", call="shows")
    assert ran.text.replace("<IPython.core.display.Image object>", "IMAGE") == "a\nIMAGE\nb\nIMAGE\n"
    first, second = ran.end.images
    assert [(one.type, one.size) for one in (first, second)] == [("image/png", 70)] * 2
    assert first.path != second.path
    data, last = await kernel.dial.read(first.path)
    assert (data[:4], last.size) == (b"\x89PNG", 70)
    assert (await kernel("'none'")).end.images == ()
    _, frame, _ = await kernel.dial.attach("shows")
    assert frame.images == ran.end.images
    await kernel.dial.close()


async def test_too_many_images_are_said_and_not_kept(kernel: Kernel) -> None:
    ran = await kernel(f"{SHOWS}for n in range(22): display(image)")
    assert len(ran.end.images) == 20
    assert ran.text.count("[an image (image/png, 70 bytes) was not kept: at most 20 of one run are]\n") == 2


async def test_images_of_a_journal_that_was_opened_anew_are_there(scratch: Path, kernels: Path) -> None:
    found = (interpreters.BASH, NAME)
    async with (
        Keeper(scratch, "1", os.environ, lambda _: found).listening(),
        await Dial.to(scratch / SOCKET) as dial,
    ):
        before = await dial.run(f"{SHOWS}image", interpreter=NAME, call="shows")
    async with (
        Keeper(scratch, "1", os.environ, lambda _: found).listening(),
        await Dial.to(scratch / SOCKET) as dial,
    ):
        _, frame, _ = await dial.attach("shows")
        (image,) = frame.images
        assert (image,) == before.end.images
        data, _ = await dial.read(image.path)
        assert len(data) == image.size
        assert (await dial.run("1", interpreter=NAME)).end.reset == "the worker's keeper was ended"


async def test_the_time_limit_ends_a_run_and_keeps_its_output_and_the_state(kernel: Kernel) -> None:
    await kernel("import subprocess, time\nx = 1")
    for code in ("while True: pass", "time.sleep(300)", "subprocess.run(['sleep', '300'])"):
        ran = await kernel(f"print('before', flush=True)\n{code}", timeout=0.5)
        assert ran.text.startswith("before\n")
        assert (ran.end.exit, ran.end.stopped) == (None, "timeout")
    again = await kernel("x")
    assert (again.text, again.end.reset) == ("1\n", "")


async def test_an_interrupt_ends_one_call_and_not_the_next(kernel: Kernel) -> None:
    first = kernel.begin("x = 1\nprint('began', flush=True)\nwhile True: pass", call="first")
    second = kernel.begin("x", call="second")
    await kernel.dial.prints(first, b"began\n")
    assert await kernel.dial.interrupt("first") == ""
    assert (await kernel.dial.ended(first)).end.stopped == "interrupt"
    assert (await kernel.dial.ended(second)).text == "1\n"


@pytest.mark.usefixtures("quick")
async def test_code_that_nothing_stops_is_killed_with_its_kernel(kernel: Kernel) -> None:
    handle = os.pidfd_open(int((await kernel("import os, time; x = 1; os.getpid()")).text))
    ran = await kernel("while True:\n    try: time.sleep(300)\n    except BaseException: pass", timeout=0.1)
    assert f"{NAME} did not come back from a run that was stopped, and was killed" in ran.notes
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(handle, gone.set)  # killed is not yet ended, on a busy machine
    await gone.wait()
    asyncio.get_running_loop().remove_reader(handle)
    os.close(handle)
    again = await kernel("x")
    assert ("did not come back" in again.end.reset, "NameError" in again.text) == (True, True)


DIES = {
    "os._exit(3)": (3, f"{NAME} ended with status 3"),
    "os.kill(os.getpid(), 9)": (137, f"{NAME} was killed by SIGKILL"),
}


@pytest.mark.parametrize("code", DIES)
async def test_a_kernel_that_ends_is_replaced_and_the_model_is_told(kernel: Kernel, code: str) -> None:
    exit, why = DIES[code]
    ran = await kernel(
        f"import os, sys, time\nx = 1\nprint('before')\nsys.stdout.flush()\ntime.sleep(0.3)\n{code}"
    )
    assert (ran.end.exit, ran.text) == (exit, "before\n")
    assert why in ran.notes
    again = await kernel("x")
    assert (why in again.end.reset, "NameError" in again.text) == (True, True)


async def test_kill_ends_the_kernel_and_every_process(kernel: Kernel) -> None:
    code = "import os, subprocess; p = subprocess.Popen(['setsid', 'nohup', 'sleep', '1002'])\nos.getpid()"
    ran = await kernel(code)
    assert "sleep 1002" in ran.notes
    pid = int(ran.text.split()[-1])
    said = await kernel.dial.kill()
    assert "sleep 1002" in said
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_kernel_that_does_not_come_up_says_why(kernel: Kernel, kernels: Path) -> None:
    with pytest.raises(Refused, match=r"jupyter:bad did not start: .*NoSuchKernel"):
        await kernel.dial.run("1", interpreter="jupyter:bad")
    add(kernels, "bad", ["/bin/sh", "-c", "echo no such language >&2; exit 5"])
    with pytest.raises(
        Refused, match=r"(?s)jupyter:bad did not start: jupyter:bad ended with status 5.*no such language"
    ):
        await kernel.dial.run("1", interpreter="jupyter:bad")


async def test_a_kernel_sees_the_operators_variables_and_not_the_daemons(
    scratch: Path, home: Path, kernels: Path
) -> None:
    (home / ".bash_profile").write_text("export PROFILE_API_KEY=secret NAME=mine\n")
    environ = os.environ | {"SOME_API_KEY": "secret", "OUTRIDER_DATA": "x"}
    keeper = Keeper(scratch, "1", environ, lambda _: (interpreters.BASH, NAME))
    async with keeper.listening(), await Dial.to(scratch / SOCKET) as dial:
        ran = await dial.run("import os; print(dict(os.environ))", interpreter=NAME)
    assert "'NAME': 'mine'" in ran.text
    for gone in ("secret", "OUTRIDER_", "VIRTUAL_ENV"):
        assert gone not in ran.text


async def test_what_a_thread_prints_between_runs_goes_to_a_file(kernel: Kernel, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    code = f"import threading\ndef f():\n    open('{tmp_path}/go').read(); print('late', flush=True)\n"
    ran = await kernel(code + "t = threading.Thread(target=f); t.start(); print('now')")
    assert ran.text == "now\n"
    await asyncio.to_thread((tmp_path / "go").write_text, "\n")
    ran = await kernel("t.join(); print('next')")
    assert ran.text.endswith("next\n")

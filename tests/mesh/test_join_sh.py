import asyncio
import contextlib
import json
import os
import platform
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mesh import script, wheelhouse
from mesh.address import Place, place
from mesh.listener import Offered, listening
from mesh.script import ScriptError
from mesh.wheelhouse import Wheel
from tests.mesh.guards import FakeJoins
from tests.mesh.wheels import make_wheel
from tests.needed import missing

TOKEN = f"orj_{'AbCd_-09' * 11}{os.getpid():08d}"  # no other test process looks for it
FINGERPRINT = bytes(range(32))
UNREACHED = "the harness is not reached: is it up, and its join port open to this machine?\n"
PYTHON = getattr(sys, "_base_executable", sys.executable)
ROOT = os.geteuid() == 0
TOOLS = (
    *(
        "sh",
        "dash",
        "env",
        "id",
        "mkdir",
        "cat",
        "rm",
        "grep",
        "tr",
        "cut",
        "head",
        "tail",
        "ln",
        "mv",
        "touch",
        "wc",
    ),
    *("dirname", "sleep", "chmod", "ls", "mktemp", "sha256sum", "sort", "find", "xargs", "cksum", "timeout"),
)

# What stands for Outrider: a worker that is as the file `mode` in $STUB says, and tells there what it saw.
STUB = """\
#!python
import json, os, pathlib, signal, sys

stub = pathlib.Path(os.environ["STUB"])
mode = (stub / "mode").read_text()
verb = sys.argv[1:3]
if verb == ["worker", "status"]:
    print("  keeper        pid 77, release 1" if (stub / "keeper").exists() else "  keeper        none runs")
    try:
        pid = int((stub / "pid").read_text())
        alive = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()  # of a zombie nothing
    except OSError:
        alive = b""
    if not alive or os.fsencode(sys.argv[-1]) not in alive.split(bytes(1)):  # another's folder
        sys.exit("no worker has ever worked there")
    away = "it does not know this machine" if mode == "forgotten" else "the hub is away"
    print("state " + ("connected" if mode == "connect" else f"dialing, reason {away}"))
    sys.exit(mode != "connect")
if verb == ["worker", "down"]:
    (stub / "downed").write_text("")
    sys.exit(0)
token = sys.stdin.read()
shown = []
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        line = path.read_bytes()
    except OSError:
        continue
    if token.strip().encode() in line:
        shown.append(line.decode())
mask = os.umask(0)
os.umask(mask)
said = {
    "arguments": sys.argv[1:],
    "token": token,
    "shown": shown,
    "mask": mask,
    "cwd": os.getcwd(),
    "session": os.getsid(0) == os.getpid(),
    "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "leaked": [name for name, value in os.environ.items() if token.strip() in value],
}
if mode == "refuse":
    print("refused: this token joins no more machines", file=sys.stderr)
    sys.exit(3)
if mode == "forgotten" and (stub / "started").exists():
    (stub / "mode").write_text("connect")
with (stub / "started").open("a") as file:
    file.write(json.dumps(said) + chr(10))
(stub / "pid.new").write_text(str(os.getpid()))
(stub / "pid.new").rename(stub / "pid")
signal.pause()
"""


class Machine:
    """A machine that is to join: folders of its own, what the stub saw, and runs of the script."""

    def __init__(self, folder: Path, home: Path | None = None) -> None:
        self.folder = folder
        self.home = home or folder / "h"
        self.stub = folder / "stub"
        self.stub.mkdir()
        self.user = folder / "user"
        self.user.mkdir()
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name in TOOLS:
            if found := shutil.which(name):
                (self.tools / name).symlink_to(found)
        self.script = folder / "join.sh"
        self.url = ""
        self.output = ""
        self.environ = {
            "HOME": str(self.user),
            "PATH": f"{self.tools}",
            "LANG": "C.UTF-8",
            "STUB": str(self.stub),
            "OUTRIDER_WORKER_HOME": str(self.home),
            "OUTRIDER_PYTHON": PYTHON,
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
        }
        self.mode("connect")

    def mode(self, text: str) -> None:
        (self.stub / "mode").write_text(text)

    def fake(self, name: str, text: str) -> None:
        """A program on the PATH."""
        (self.tools / name).unlink(missing_ok=True)  # never write through to a real one
        (self.tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.tools / name).chmod(0o755)

    @property
    def pid(self) -> int:
        return int((self.stub / "pid").read_text())

    def starts(self) -> list[str]:
        file = self.stub / "started"
        return file.read_text().splitlines() if file.exists() else []

    def left(self) -> list[str]:
        """What is in the folder that it was installed in."""
        return sorted(path.name for path in self.home.iterdir()) if self.home.exists() else []

    async def start(self, *command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    async def finish(self, process: asyncio.subprocess.Process, input: str = "") -> int:
        said, _ = await process.communicate(input.encode())
        self.output = said.decode()
        assert process.returncode is not None
        return process.returncode

    async def run(self, *arguments: str, shell: tuple[str, ...] = ("dash",), input: str = "") -> int:
        """The status of `sh join.sh …`; what it said is in `output`."""
        more = ("--as-root",) if ROOT else ()
        return await self.finish(await self.start(*shell, "join.sh", *more, *arguments), input)

    def end(self) -> None:
        """End the worker, if one was started."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except (OSError, ValueError):
            return
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            while Path(f"/proc/{self.pid}/cmdline").read_bytes():
                pass


def outrider_wheel(folder: Path, requires: tuple[str, ...] = ()) -> Wheel:
    folder.mkdir(exist_ok=True)
    files = {"outrider-1.0+src.abc.data/scripts/outrider": STUB}
    return wheelhouse.wheel(make_wheel(folder, "outrider", "1.0+src.abc", files, requires))


@asynccontextmanager
async def served(machine: Machine, wheel: Wheel, house: Path | None = None) -> AsyncIterator[Offered]:
    """A join listener that serves the script; the machine has a copy of it, and knows the listener's URL."""
    wheels = await asyncio.to_thread(wheelhouse.read, house) if house else None
    text = await asyncio.to_thread(script.read)
    offered: Callable[[], Offered] = lambda: made  # noqa: E731 - the port is known only once it listens
    async with listening(["127.0.0.1:0"], FakeJoins(), lambda: offered()) as found:
        filled = script.filled(text, FINGERPRINT, [place(found[0])], wheel, wheels)
        made = Offered(script=filled, wheel=wheel, wheelhouse=wheels)
        machine.script.write_bytes(filled)
        machine.url = f"http://{found[0]}"
        yield made


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "h"


@pytest.fixture
def installed(tmp_path: Path, shared_home: Path) -> Iterator[Machine]:
    """A machine on which Outrider is installed once one of these tests has run; no worker runs."""
    made = Machine(tmp_path, shared_home)
    yield made
    made.end()
    for path in shared_home.glob("worker-*"):
        path.unlink()


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    return outrider_wheel(tmp_path / "wheel")


def shells() -> list[object]:
    found: list[object] = []
    for words in (("dash",), ("busybox", "sh"), ("bash", "--posix")):
        marks = [pytest.mark.campaign] * (words[0] != "dash")  # installing takes its time
        found.append(pytest.param(words, id=words[0], marks=marks))
    return found


# It joins


@pytest.mark.parametrize("shell", shells())
async def test_a_machine_joins(machine: Machine, wheel: Wheel, shell: tuple[str, ...]) -> None:
    if (program := shutil.which(shell[0])) is None:
        missing(f"{shell[0]} is not installed")
    old = os.umask(0o027)
    try:
        async with served(machine, wheel):
            code = await machine.run(TOKEN, "--name", "gpu 1", shell=(program, *shell[1:]))
    finally:
        os.umask(old)
    assert code == 0, machine.output
    assert "This machine is a worker" in machine.output
    assert TOKEN not in machine.output
    (started,) = map(json.loads, machine.starts())
    scratch = f"{machine.user}/.local/state/outrider/workers/gpu 1"
    assert started == {
        "arguments": [
            *("worker", "--join", "-", "--scratch", scratch, "--name", "gpu 1"),
            *(["--as-root"] if ROOT else []),
        ],
        "token": TOKEN + "\n",
        "shown": [],
        "mask": 0o027,
        "cwd": "/",
        "session": True,
        "sigint": True,
        "leaked": [],
    }
    short = FINGERPRINT.hex()[:8]
    assert machine.left() == [
        "outrider",
        f"release-{wheel.sha256[:16]}",
        f"worker-{short}.log",
        f"worker-{short}.pid",
    ]
    assert (machine.home / f"worker-{short}.log").stat().st_mode & 0o077 == 0
    assert (machine.home / "outrider").resolve() == machine.home / f"release-{wheel.sha256[:16]}/bin/outrider"


async def test_run_again_it_says_what_is_there_and_starts_nothing(installed: Machine, wheel: Wheel) -> None:
    async with served(installed, wheel):
        assert await installed.run(TOKEN) == 0, installed.output
        pid = installed.pid
        assert await installed.run("orj_another") == 0
    assert "Outrider is already there" in installed.output
    assert "state connected" in installed.output
    assert "nothing was started" in installed.output
    assert (installed.pid, len(installed.starts())) == (pid, 1)


async def test_run_again_with_another_name_it_looks_where_the_worker_is(
    installed: Machine, wheel: Wheel
) -> None:
    async with served(installed, wheel):
        assert await installed.run(TOKEN, "--name", "one") == 0, installed.output
        for more in (("--name", "two"), ("--scratch", "/elsewhere"), ()):
            assert await installed.run("orj_another", *more, "--wait", "0") == 0, installed.output
            assert "a worker of that harness already, in " in installed.output
            assert "workers/one: that one goes on" in installed.output
            assert "nothing was started" in installed.output
    assert len(installed.starts()) == 1


async def test_a_worker_that_ends_as_it_hears_that_it_was_removed_makes_way_for_another(
    installed: Machine, wheel: Wheel
) -> None:
    installed.mode("dial")
    async with served(installed, wheel):
        assert await installed.run(TOKEN, "--wait", "0") == 1, installed.output
        process = await installed.start("dash", "join.sh", *(["--as-root"] if ROOT else []), "orj_another")
        assert process.stdout is not None
        while "is already there and dials" not in (said := (await process.stdout.readline()).decode()):
            assert said
        installed.mode("connect")
        installed.end()
        assert await installed.finish(process) == 0, installed.output
    assert "that worker has ended\nThe worker is started" in installed.output
    assert [json.loads(start)["token"] for start in installed.starts()] == [f"{TOKEN}\n", "orj_another\n"]


async def test_a_worker_that_its_harness_does_not_know_any_more_joins_anew(
    installed: Machine, wheel: Wheel
) -> None:
    installed.mode("forgotten")
    async with served(installed, wheel):
        assert await installed.run(TOKEN, "--wait=0") == 1, installed.output
        while not (installed.stub / "pid").exists():  # noqa: ASYNC110 - a file of another process
            await asyncio.sleep(0.01)
        old = installed.pid
        assert await installed.run("orj_another") == 0, installed.output
    assert "joins anew" in installed.output
    assert old != installed.pid
    assert not Path(f"/proc/{old}").exists() or not Path(f"/proc/{old}/cmdline").read_bytes()
    assert [json.loads(start)["token"] for start in installed.starts()] == [f"{TOKEN}\n", "orj_another\n"]


async def test_a_worker_that_does_not_run_is_started_with_nothing_to_fetch(
    installed: Machine, wheel: Wheel
) -> None:
    async with served(installed, wheel):
        assert await installed.run(TOKEN) == 0, installed.output
    installed.end()
    assert await installed.run(TOKEN) == 0, installed.output
    assert len(installed.starts()) == 2


async def test_a_refused_token_is_told_with_the_workers_own_words(installed: Machine, wheel: Wheel) -> None:
    installed.mode("refuse")
    installed.home.mkdir(exist_ok=True)
    (installed.home / f"worker-{FINGERPRINT.hex()[:8]}.log").write_text("what an earlier worker said\n")
    async with served(installed, wheel):
        assert await installed.run(TOKEN) == 3, installed.output
    assert "refused: this token joins no more machines" in installed.output
    assert "what an earlier worker said" not in installed.output
    assert "join.sh: the worker ended; the above is the end of" in installed.output


async def test_a_worker_that_does_not_connect_in_time_goes_on_trying(
    installed: Machine, wheel: Wheel
) -> None:
    installed.mode("dial")
    async with served(installed, wheel):
        assert await installed.run(TOKEN, "--wait=1") == 1, installed.output
        assert "reason the hub is away" in installed.output
        assert "it goes on trying" in installed.output
        os.kill(installed.pid, 0)
        assert await installed.run(TOKEN, "--wait", "0") == 1
    assert "is already there and dials; nothing was started" in installed.output
    assert len(installed.starts()) == 1


@pytest.mark.parametrize("kept", [False, True])
async def test_interrupted_while_it_waits_it_ends_the_worker_but_no_keeper_that_was_there_before(
    installed: Machine, wheel: Wheel, kept: bool
) -> None:
    installed.mode("dial")
    if kept:
        (installed.stub / "keeper").write_text("")
    async with served(installed, wheel):
        more = ["--as-root"] if ROOT else []
        process = await installed.start("dash", "join.sh", *more, TOKEN)
        while not (installed.stub / "pid").exists():  # noqa: ASYNC110 - a file of another process
            await asyncio.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        assert await installed.finish(process) == 130, installed.output
    assert (installed.stub / "downed").exists() == (not kept)
    while Path(f"/proc/{installed.pid}/cmdline").exists():
        if not Path(f"/proc/{installed.pid}/cmdline").read_bytes():
            break  # a zombie: nobody collects it here
    assert "lock" not in installed.left()


async def test_the_token_may_come_by_standard_input_or_the_environment(
    installed: Machine, wheel: Wheel
) -> None:
    async with served(installed, wheel):
        assert await installed.run("-", input=f"{TOKEN}\n") == 0, installed.output
        installed.end()
        for name in ("OUTRIDER_TOKEN", "OUTRIDER_JOIN"):
            installed.environ[name] = TOKEN
            assert await installed.run() == 0, installed.output
            installed.end()
            installed.environ[name] = "of another"
    starts = list(map(json.loads, installed.starts()))
    assert [start["token"] for start in starts] == [TOKEN + "\n"] * 3
    assert [start["leaked"] for start in starts] == [[], [], []]


async def test_another_join_at_work_is_waited_for_and_a_dead_one_is_not(
    installed: Machine, wheel: Wheel
) -> None:
    lock = installed.home / "lock"
    lock.mkdir(parents=True)
    async with served(installed, wheel):
        (lock / "pid").write_text(str(os.getpid()))
        assert await installed.run(TOKEN) == 1
        assert f"another join.sh (pid {os.getpid()}) is at work" in installed.output
        gone = subprocess.Popen(["true"])
        gone.wait()
        (lock / "pid").write_text(str(gone.pid))
        assert await installed.run(TOKEN) == 0, installed.output
    assert not lock.exists()


# Fetching and installing


async def test_a_wheel_of_another_hash_is_not_installed(machine: Machine, wheel: Wheel) -> None:
    async with served(machine, wheel):
        wheel.path.write_bytes(wheel.path.read_bytes()[:-1] + b"x")
        assert await machine.run(TOKEN) == 1
    assert "it has another file by that name; make a new token on the harness" in machine.output
    assert machine.left() == []


async def test_a_harness_that_has_another_release_by_now_is_told_apart(
    machine: Machine, wheel: Wheel
) -> None:
    async with served(machine, wheel):
        machine.script.write_bytes(machine.script.read_bytes().replace(b"1.0+src.abc", b"0.9"))
        assert await machine.run(TOKEN) == 1
    assert f"{machine.url}: it answers 404" in machine.output
    assert machine.left() == []


async def test_a_harness_that_is_away_is_named(machine: Machine, wheel: Wheel) -> None:
    async with served(machine, wheel):
        pass
    assert await machine.run(TOKEN) == 4
    assert f"{machine.url}: Connection refused" in machine.output
    assert machine.left() == []


async def test_dependencies_come_from_the_wheelhouse_of_the_first_endpoint_that_answers(
    machine: Machine, tmp_path: Path
) -> None:
    house = tmp_path / "house"
    house.mkdir()
    make_wheel(house, "some_thing", "2.0")
    wheel = outrider_wheel(tmp_path / "wheel", requires=("some-thing>=1",))
    async with served(machine, wheel, house) as offered:
        near = machine.url.removeprefix("http://").encode()
        machine.script.write_bytes(offered.script.replace(near, b"127.0.0.1:1 [::1]:1 " + near))
        assert await machine.run(TOKEN) == 0, machine.output
    assert list(machine.home.glob("release-*/lib/*/site-packages/some_thing-2.0.dist-info"))


async def test_a_changed_wheel_of_the_wheelhouse_is_not_installed(machine: Machine, tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    path = make_wheel(house, "some_thing", "2.0")
    wheel = outrider_wheel(tmp_path / "wheel", requires=("some-thing>=1",))
    async with served(machine, wheel, house):
        size = path.stat().st_size
        make_wheel(house, "some_thing", "2.0", {"x.py": "evil = 1\n"})
        os.truncate(path, max(size, path.stat().st_size))
        assert await machine.run(TOKEN) == 1
    assert "Outrider could not be installed; the above is why" in machine.output
    assert machine.left() == []


@pytest.mark.campaign  # installing takes its time
async def test_a_missing_dependency_is_told_in_pips_words_and_with_what_to_do(
    machine: Machine, tmp_path: Path
) -> None:
    wheel = outrider_wheel(tmp_path / "wheel", requires=("some-thing>=1",))
    async with served(machine, wheel):
        assert await machine.run(TOKEN) == 1
    assert "No matching distribution found for some-thing" in machine.output
    assert (
        f"`outrider wheelhouse --python 3.{sys.version_info.minor} --arch {platform.machine()}` there"
        in machine.output
    )
    assert machine.left() == []


@pytest.mark.skipif(not ROOT, reason="mounting a small file system takes root")
@pytest.mark.parametrize("size", ["1m", pytest.param("8m", marks=pytest.mark.campaign)])
async def test_a_full_disk_is_told_and_nothing_half_is_left(
    machine: Machine, wheel: Wheel, size: str
) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], check=False).returncode:
        pytest.skip("no mount namespace can be made here (unshare -m)")
    machine.home.mkdir()
    machine.environ["PATH"] = os.environ["PATH"]
    join = f"{{ dash join.sh --as-root {TOKEN}; code=$?; ls {machine.home}; exit $code; }}"
    line = f"mount -t tmpfs -o size={size} none {machine.home} && {join}"
    async with served(machine, wheel):
        code = await machine.finish(await machine.start(unshare, "-m", "sh", "-c", line))
    assert code == 1, machine.output
    assert machine.output.splitlines()[-1].startswith("join.sh: no space is left")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.campaign)]
)
async def test_interrupted_while_it_installs_it_leaves_nothing_half(
    machine: Machine, wheel: Wheel, number: signal.Signals
) -> None:
    async with served(machine, wheel):
        more = ["--as-root"] if ROOT else []
        process = await machine.start("dash", "join.sh", *more, TOKEN)
        while not list(machine.home.glob("release-*/bin/python*")):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        os.killpg(process.pid, number)
        assert await machine.finish(process) == 128 + number, machine.output
    assert ("interrupted; nothing half is left" in machine.output) == (number == signal.SIGINT)
    assert machine.left() == []
    assert machine.starts() == []


async def test_what_a_killed_run_left_is_removed_and_the_next_one_goes_well(
    machine: Machine, wheel: Wheel
) -> None:
    async with served(machine, wheel):
        more = ["--as-root"] if ROOT else []
        process = await machine.start("dash", "join.sh", *more, TOKEN)
        while not list(machine.home.glob("release-*/bin/python*")):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        await machine.finish(process)
        assert "lock" in machine.left()
        (machine.home / "release-old").mkdir()
        assert await machine.run(TOKEN) == 0, machine.output
    assert "lock" not in machine.left()
    assert "release-old" not in machine.left()


async def test_a_folder_that_cannot_be_written_is_named(machine: Machine, wheel: Wheel) -> None:
    machine.home.write_text("a file")
    async with served(machine, wheel):
        assert await machine.run(TOKEN) == 1
    assert f"{machine.home} cannot be written: name another folder in OUTRIDER_WORKER_HOME" in machine.output


# Python

MANAGERS = {
    "apt-get": "apt-get install python3 python3-venv",
    "dnf": "dnf install python3.12",
    "apk": "apk add python3",
    "pacman": "pacman -S python",
    "zypper": "zypper install python312",
}


@pytest.mark.parametrize("manager", [*MANAGERS, ""])
async def test_without_python_it_names_the_package(machine: Machine, wheel: Wheel, manager: str) -> None:
    del machine.environ["OUTRIDER_PYTHON"]
    if manager:
        machine.fake(manager, "exit 0")
    async with served(machine, wheel):
        assert await machine.run(TOKEN) == 1
    advice = MANAGERS.get(manager, "install one, or name it in OUTRIDER_PYTHON")
    assert machine.output == f"join.sh: no Python 3.11 or newer is here: {advice}\n"
    assert machine.left() == []


def pretend(version: str, venv: bool) -> str:
    """A Python that says it is of that version."""
    return f'case "$3" in *version_info*) echo {version} ;; *) exit {0 if venv else 1} ;; esac'


@pytest.mark.parametrize("version", ["2.7", "3.9", "3.10"])
async def test_a_python_that_is_too_old_is_named(machine: Machine, wheel: Wheel, version: str) -> None:
    del machine.environ["OUTRIDER_PYTHON"]
    machine.fake("python3", pretend(version, True))
    machine.fake("apt-get", "exit 0")
    async with served(machine, wheel):
        assert await machine.run(TOKEN) == 1
    assert f"Python {version} is too old: Outrider needs 3.11 or newer: apt-get install" in machine.output
    assert "name another Python in OUTRIDER_PYTHON" in machine.output


async def test_a_python_without_venv_is_named_with_its_package(machine: Machine, wheel: Wheel) -> None:
    del machine.environ["OUTRIDER_PYTHON"]
    machine.fake("python3", pretend("3.12", False))
    machine.fake("apt-get", "exit 0")
    async with served(machine, wheel):
        assert await machine.run(TOKEN) == 1
    assert "Python 3.12 lacks its venv module: apt-get install python3.12-venv" in machine.output


async def test_a_named_python_that_will_not_do_is_named(machine: Machine, wheel: Wheel) -> None:
    machine.environ["OUTRIDER_PYTHON"] = "/nowhere/python"
    async with served(machine, wheel):
        assert await machine.run(TOKEN) == 1
    assert "OUTRIDER_PYTHON=/nowhere/python is not Python 3.11 or newer with venv" in machine.output


@pytest.mark.parametrize("where", ["python3.13", "uv", "pyenv"])
async def test_pythons_beside_an_old_one_are_found(machine: Machine, wheel: Wheel, where: str) -> None:
    del machine.environ["OUTRIDER_PYTHON"]
    real = f'exec {PYTHON} "$@"'
    machine.fake("python3", pretend("3.9", True))
    machine.fake("python3.14", pretend("3.14", False))
    expected = machine.tools / where
    if where == "uv":
        expected = machine.folder / "own"
        machine.fake("real", real)
        expected.symlink_to(machine.tools / "real")
        machine.fake("uv", f'[ "$1 $2 $3" = "python find >=3.11" ] && echo {expected}')
    elif where == "pyenv":
        expected = machine.user / ".pyenv/versions/3.12.1/bin/python3"
        expected.parent.mkdir(parents=True)
        machine.fake("real", real)
        expected.symlink_to(machine.tools / "real")
    else:
        machine.fake(where, real)
    async with served(machine, wheel):
        pass
    assert await machine.run(TOKEN) == 4  # the harness is away by now
    assert f"Installing Outrider in {machine.home}, with {expected} …" in machine.output


# Arguments


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "a token is needed: `outrider token new` on the harness prints one"),
        (("hello",), "this is not a join token: one begins with orj_"),
        (("orj_a b/c",), "the token has characters that none has"),
        (("orj_a;reboot",), "the token has characters that none has"),
        (("orj_",), "this is not a join token"),
        ((TOKEN, TOKEN), "one token, please"),
        (("--frob", TOKEN), "there is no option --frob"),
        (("--name",), "--name needs a value"),
        (("--name=", TOKEN), "--name needs a value"),
        (("--wait", "soon", TOKEN), "--wait soon: a number of seconds"),
        (("--from", "ftp://x", TOKEN), "--from ftp://x: it begins with http:// or https://"),
    ],
)
async def test_a_wrong_argument_is_named(
    machine: Machine, wheel: Wheel, arguments: tuple[str, ...], why: str
) -> None:
    async with served(machine, wheel):
        assert await machine.run(*arguments) == 2
    assert machine.output.startswith(f"join.sh: {why}")
    assert machine.left() == []


async def test_help_says_what_there_is(machine: Machine, wheel: Wheel) -> None:
    async with served(machine, wheel):
        assert await machine.run("--help") == 0
    assert machine.output.startswith("usage: sh join.sh [OPTION]... TOKEN")


@pytest.mark.skipif(not ROOT, reason="only root is asked")
async def test_root_has_to_say_that_agents_may_be_root(machine: Machine, wheel: Wheel) -> None:
    async with served(machine, wheel):
        assert await machine.finish(await machine.start("dash", "join.sh", TOKEN)) == 2
        assert "this is root, and agents would run their code as root" in machine.output
        assert machine.left() == []
        config = machine.user / ".config/outrider"
        config.mkdir(parents=True)
        (config / "outrider.toml").write_text("[worker]\nas_root = true\n")
        code = await machine.finish(await machine.start("dash", "join.sh", "--wait", "x", TOKEN))
        assert code == 2
        assert "root" not in machine.output


@pytest.mark.skipif(not ROOT, reason="only root may say for whom")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("--user", "nobody", "--as-root"),
            "--user and --as-root: either agents' code is that user's, or root's",
        ),
        (("--user", "no-such-user"), "--user no-such-user: there is no such user on this machine"),
        (("--user=$(reboot)",), "--user $(reboot): there is no such user on this machine"),
        (
            ("--user", "root"),
            "--user root is root: name the user whose files agents may touch, or say --as-root",
        ),
    ],
)
async def test_for_whom_it_cannot_be_is_named(
    machine: Machine, wheel: Wheel, arguments: tuple[str, ...], why: str
) -> None:
    async with served(machine, wheel):
        assert await machine.finish(await machine.start("dash", "join.sh", *arguments, TOKEN)) == 2
    assert machine.output.startswith(f"join.sh: {why}")
    assert machine.left() == []


@pytest.mark.skipif(not ROOT, reason="only root may say for whom")
async def test_for_another_user_it_is_installed_where_that_user_can_run_it(
    machine: Machine, wheel: Wheel
) -> None:
    machine.environ["OUTRIDER_PYTHON"] = f"/usr/bin/python3.{sys.version_info.minor}"
    if not os.path.exists(machine.environ["OUTRIDER_PYTHON"]):
        pytest.skip(f"{machine.environ['OUTRIDER_PYTHON']} is missing, and {PYTHON} may be root's alone")
    async with served(machine, wheel):
        command = ("dash", "join.sh", "--user=nobody", TOKEN)
        assert await machine.finish(await machine.start(*command)) == 0, machine.output
    (started,) = map(json.loads, machine.starts())
    home = pwd.getpwnam("nobody").pw_dir
    scratch = f"{home}/.local/state/outrider/workers/harness-{FINGERPRINT.hex()[:8]}"
    assert started["arguments"] == ["worker", "--join", "-", "--scratch", scratch, "--user", "nobody"]
    release = machine.home / f"release-{wheel.sha256[:16]}"
    for path, mode in ((machine.home, 0o011), (release, 0o055), (release / "bin/outrider", 0o055)):
        assert path.stat().st_mode & mode == mode
    for path in machine.home.glob("worker-*"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not ROOT, reason="only root may say for whom")
async def test_a_python_that_the_other_user_cannot_run_is_named(machine: Machine, wheel: Wheel) -> None:
    try:
        subprocess.run([PYTHON, "-c", ""], user="nobody", check=False)
    except PermissionError:
        pass
    else:
        pytest.skip(f"every user can run {PYTHON} here")
    async with served(machine, wheel):
        assert await machine.finish(await machine.start("dash", "join.sh", "--user", "nobody", TOKEN)) == 1
    assert machine.output.startswith(f"join.sh: {PYTHON} is a Python that nobody cannot run")
    assert machine.left() == []


async def test_a_user_has_it_in_the_home_folder_without_any_rights(machine: Machine, wheel: Wheel) -> None:
    del machine.environ["OUTRIDER_WORKER_HOME"]
    machine.fake("id", "echo 1000")
    async with served(machine, wheel):
        pass
    for more, home in (
        ({}, machine.user / ".local/share/outrider-worker"),
        ({"XDG_DATA_HOME": f"{machine.folder}/share"}, machine.folder / "share/outrider-worker"),
    ):
        machine.environ |= more
        assert await machine.finish(await machine.start("dash", "join.sh", TOKEN)) == 4
        assert f"Installing Outrider in {home}, with" in machine.output
    del machine.environ["HOME"]
    assert await machine.finish(await machine.start("dash", "join.sh", TOKEN)) == 1
    assert machine.output == "join.sh: HOME is not set: set it to your home folder\n"


async def test_a_copy_that_no_harness_served_says_so(machine: Machine) -> None:
    machine.script.write_text(await asyncio.to_thread(script.read))
    assert await machine.run(TOKEN) == 1
    assert "this copy was not served by a harness, and stands in no checkout" in machine.output


async def test_where_the_harness_has_nothing_to_install_the_script_says_why(machine: Machine) -> None:
    why = (
        "the installation was changed from release 0.1.0+srca to `reboot`; 'x' while this ran: start it again"
    )
    text = script.filled(await asyncio.to_thread(script.read), FINGERPRINT, [], None, None, why)
    machine.script.write_bytes(text)
    assert await machine.run(TOKEN) == 1
    assert machine.output == (
        "join.sh: the harness cannot hand out Outrider now: the installation was changed from release 0.1.0+srca to "
        "reboot x while this ran: start it again. Once that is put right, make a new token there\n"
    )


# The script and the shell line


def test_there_is_one_copy_and_it_is_beside_the_other_scripts_too() -> None:
    other = Path(__file__).parents[2] / "scripts/join.sh"
    assert other.resolve() == script.FILE.resolve()
    assert script.read() == other.read_text()


def test_shellcheck_has_nothing_to_say() -> None:
    if shutil.which("shellcheck") is None:
        missing("shellcheck is not installed")
    done = subprocess.run(
        ["shellcheck", "-s", "sh", script.FILE], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_script_is_the_same_for_the_same_harness(wheel: Wheel) -> None:
    places = [place("hub.example:4601"), place("[2001:db8::1]:4601")]
    made = script.filled(script.read(), FINGERPRINT, places, wheel)
    assert made == script.filled(script.read(), FINGERPRINT, places, wheel)
    assert b"\nENDPOINTS='hub.example:4601 [2001:db8::1]:4601' " in made
    assert f"\nWHEEL='{wheel.name}' ".encode() in made


def test_nothing_that_a_shell_acts_on_gets_into_the_script(wheel: Wheel) -> None:
    evil = Wheel("x'; reboot; '-1.0-py3-none-any.whl", wheel.sha256, 1, wheel.path)
    with pytest.raises(ScriptError, match=r"^WHEEL of the join script cannot be"):
        script.filled(script.read(), FINGERPRINT, [], evil)
    with pytest.raises(ScriptError, match="has no place for HARNESS"):
        script.filled("#!/bin/sh\n", FINGERPRINT, [], wheel)


@pytest.mark.parametrize(
    ("places", "digest", "token"),
    [([], "0" * 64, TOKEN), ([Place("h", 1)], "x", TOKEN), ([Place("h", 1)], "0" * 64, "orj_'; reboot")],
    ids=["no place", "no digest", "no token"],
)
def test_a_shell_line_is_made_of_nothing_odd(places: list[Place], digest: str, token: str) -> None:
    with pytest.raises(ValueError, match="a shell line needs"):
        script.shell_line(places, digest, token)


@pytest.mark.parametrize("program", ["curl", "wget", "busybox wget", "python3"])
async def test_the_shell_line_fetches_checks_and_runs(installed: Machine, wheel: Wheel, program: str) -> None:
    found = PYTHON if program == "python3" else shutil.which(program.split()[0])
    if found is None:
        missing(f"{program} is not installed")
    installed.fake(program.split()[-1], f'exec {" ".join([found, *program.split()[1:]])} "$@"')
    async with served(installed, wheel) as offered:
        places = [Place("127.0.0.1", 1), Place("::1", 1), place(installed.url.removeprefix("http://"))]
        line = script.shell_line(places, script.sha256(offered.script), TOKEN)
        assert "\n" not in line
        line += " --as-root" if ROOT else ""
        code = await installed.finish(await installed.start("dash", "-c", textwrap.dedent(line)))
    assert code == 0, installed.output
    assert "This machine is a worker" in installed.output


@pytest.mark.parametrize("program", ["curl", "wget", "busybox wget", "python3"])
async def test_a_place_that_takes_a_connection_and_is_silent_holds_the_line_up_once_and_not_for_long(
    machine: Machine, program: str
) -> None:
    found = PYTHON if program == "python3" else shutil.which(program.split()[0])
    if found is None:
        missing(f"{program} is not installed")
    log = machine.folder / "fetches"
    machine.fake(program.split()[-1], f'echo >>{log}; exec {" ".join([found, *program.split()[1:]])} "$@"')
    if program != "python3":
        machine.fake("python3", f'echo >>{log}; exec {PYTHON} "$@"')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        places = [Place("127.0.0.1", silent.getsockname()[1]), Place("127.0.0.1", 1)]
        line = script.shell_line(places, "0" * 64, TOKEN)
        assert await machine.finish(await machine.start("dash", "-c", line)) == 4
    assert machine.output == "".join(f"http://{each} does not answer\n" for each in places) + UNREACHED
    assert len(log.read_text().splitlines()) == len(places)


@pytest.mark.parametrize("program", ["curl", "wget", "busybox wget", "python3"])
@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
async def test_the_shell_line_goes_by_a_proxy_in_either_spelling(
    machine: Machine, program: str, name: str
) -> None:
    found = PYTHON if program == "python3" else shutil.which(program.split()[0])
    if found is None:
        missing(f"{program} is not installed")
    machine.fake(program.split()[-1], f'exec {" ".join([found, *program.split()[1:]])} "$@"')
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nanother")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as proxy:
        machine.environ[name] = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        line = script.shell_line([Place("hub.invalid", 4601)], "0" * 64, TOKEN)
        assert await machine.finish(await machine.start("dash", "-c", line)) == 1
    assert machine.output == "the harness has another join.sh by now: make a new token\n"
    assert [line.split()[:2] for line in asked] == [[b"GET", b"http://hub.invalid:4601/join.sh"]]


async def test_the_shell_line_runs_no_other_script(machine: Machine, wheel: Wheel) -> None:
    if (curl := shutil.which("curl")) is None:
        missing("curl is not installed")
    machine.fake("curl", f'exec {curl} "$@"')
    async with served(machine, wheel):
        line = script.shell_line([place(machine.url.removeprefix("http://"))], "0" * 64, TOKEN)
        assert await machine.finish(await machine.start("dash", "-c", line)) == 1
    assert machine.output == "the harness has another join.sh by now: make a new token\n"
    assert await machine.finish(await machine.start("dash", "-c", line)) == 4
    assert machine.output == f"{machine.url} does not answer\n{UNREACHED}"
    assert machine.starts() == []


async def test_the_shell_line_says_what_is_missing_to_fetch_with(machine: Machine, wheel: Wheel) -> None:
    line = script.shell_line([Place("127.0.0.1", 1)], "0" * 64, TOKEN)
    assert await machine.finish(await machine.start("dash", "-c", line)) == 1
    assert machine.output == "curl, wget or python3 is needed: install one\n"
    (machine.tools / "sha256sum").unlink()
    machine.fake("curl", "exit 1")
    assert await machine.finish(await machine.start("dash", "-c", line)) == 1
    assert machine.output == "sha256sum is needed: install coreutils\n"

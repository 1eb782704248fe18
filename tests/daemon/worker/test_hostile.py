"""Ending an environment ends what came of it, however it hides, with and without a cgroup; its receipt is true."""

import itertools
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from daemon.worker import cgroup
from daemon.worker.cgroup import mounted
from tests.daemon.worker.dialing import Dial
from tests.e2e.driving import becomes, processes

# Forks as fast as it can, up to a limit of processes: its user's, so as root it becomes a user of its own. The limit
# counts what is only being forked, so the first process says that it is full when that many are there.
BOMB = """
import os, resource, sys, time
def there():
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += os.getsid(int(pid)) == os.getsid(0)
        except OSError:
            pass
    return found
first = os.getpid()
mine = 0
if os.getuid() == 0:
    os.setuid(61000 + os.getpid() % 1000)
else:
    mine = sum(os.stat(f"/proc/{pid}").st_uid == os.getuid() for pid in os.listdir("/proc") if pid.isdigit())
resource.setrlimit(resource.RLIMIT_NPROC, (mine + 60,) * 2)
while True:
    try:
        os.fork()
    except OSError:
        if os.getpid() == first and there() > 50:
            os.write(1, b"full\\n")
        time.sleep(0.01)
"""
# Never the same process for long, nor in the same group.
HOPPER = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"full\\n")
while True:
    if os.fork():
        os._exit(0)
"""
LEAVER = (
    HOPPER
    + """
    os.setsid()
"""
)
HIDES = {
    "in the background": "sleep {t} & echo $!",
    "in a session of its own": "setsid sleep {t} & echo $!",
    "by a double fork": "(setsid bash -c 'sleep {t} & echo $!')",
    "deaf to signals": "(trap '' TERM HUP INT QUIT; exec sleep {t}) & echo $!",
    "stopped": "sleep {t} & sleep 0.05; kill -STOP $!; echo $!",
    "stopped and deaf": "(trap '' TERM; exec sleep {t}) & sleep 0.05; kill -STOP $!; echo $!",
    "as a tree": "bash -c 'sleep {t} & setsid sleep {t} & wait' & echo $!",
    "under another name": "(exec -a '[kworker]' sleep {t}) & echo $!",
    "without descriptors and folder": "(cd /; exec sleep {t} <&- >&- 2>&-) & echo $!",
}
numbers = itertools.count(1)


@pytest.fixture(params=["cgroup", "descendants"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How processes are found and ended."""
    if request.param == "descendants":
        monkeypatch.setattr(cgroup, "own", lambda: None)
    elif (made := cgroup.Cgroup.make()) is None:
        pytest.skip("no cgroup v2 with cgroup.kill that this process may make cgroups in")
    else:
        made.end()
    name: str = request.param
    return name


def left() -> list[str]:
    """The cgroups of keepers of this process."""
    folder = cgroup.own()
    return [] if folder is None else [path.name for path in folder.glob(f"{cgroup.PREFIX}{os.getpid()}-*")]


def token() -> str:
    """Seconds to sleep that no other process sleeps."""
    return f"86{os.getpid() % 1000:03}.{next(numbers):04}"


async def gone(word: str) -> None:
    """Return once no process has this word in its command line: killed ones take a moment."""
    await becomes(lambda: processes(word) == [], "they are gone")


@pytest.mark.parametrize("how", HIDES)
async def test_what_hides_is_ended_and_named(dial: Dial, way: str, how: str) -> None:
    word = token()
    ran = await dial.run(HIDES[how].format(t=word))
    pid = ran.text.strip()
    assert pid.isdigit()
    assert processes(word)
    said = await dial.kill()
    assert re.match(r"ended [1-3] process(es)?: ", said), said
    assert f"{pid} " in said
    assert said.endswith("; none is left")
    assert left() == []
    await gone(word)


@pytest.mark.parametrize(
    ("program", "least"), [(BOMB, 40), (HOPPER, 1), (LEAVER, 1)], ids=["bomb", "hopper", "leaver"]
)
async def test_what_forks_as_fast_as_it_can_is_ended(
    dial: Dial, way: str, tmp_path: Path, program: str, least: int
) -> None:
    word = token()
    file = tmp_path / "program.py"
    file.write_text(program)
    os.mkfifo(tmp_path / "told")
    # A look at /proc may miss what is never the same for long: the fifo tells when none that could write is left.
    told = os.open(tmp_path / "told", os.O_RDONLY | os.O_NONBLOCK)
    try:
        await dial.run(
            f'{sys.executable} -S -c "$(cat {file})" {word} >{tmp_path}/told 2>&1 & read x <{tmp_path}/told'
        )
        said = await dial.kill()
        assert said.endswith("none is left"), said
        found = re.match(r"ended (\d+) process", said)
        assert found
        assert int(found[1]) >= least
        await gone(word)
        await becomes(lambda: nobody_writes(told), "the fifo has no writer")
    finally:
        os.close(told)


def nobody_writes(fd: int) -> bool:
    """Whether a fifo's writers have all ended."""
    try:
        while os.read(fd, 1 << 16):
            pass
    except BlockingIOError:
        return False
    return True


async def test_killing_the_reaper_ends_what_it_held_where_there_are_cgroups(dial: Dial, way: str) -> None:
    word = token()
    ran = await dial.run(f"setsid sleep {word} & sleep {word} & kill -9 $PPID; sleep 60")
    try:
        assert ran.end.exit is None
        assert "killed together with the process that held it" in (await dial.run("echo on")).end.reset
        if way == "cgroup":
            await gone(word)
        else:
            assert processes(word), "nothing is left that could find them"
    finally:
        for pid in processes(word):
            os.kill(pid, signal.SIGKILL)


async def test_an_environment_that_ends_by_itself_leaves_no_cgroup(dial: Dial, way: str) -> None:
    for _ in range(3):
        await dial.run("exit 3")
    await dial.run("true")
    assert len(left()) == (way == "cgroup")


def test_a_cgroups_folder_is_found_in_what_the_kernel_says() -> None:
    unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
    assert mounted(unified, "0::/user.slice/a b\n") == Path("/sys/fs/cgroup/user.slice/a b")
    assert mounted(unified, "0::/\n") == Path("/sys/fs/cgroup")
    hybrid = (
        "29 23 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "31 23 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n"
    )
    assert mounted(hybrid, "4:cpu:/x\n0::/y\n") == Path("/sys/fs/cgroup/unified/y")
    bound = "31 23 0:27 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    assert mounted(bound, "0::/docker/1/sub\n") == Path("/sys/fs/cgroup/sub")
    assert mounted(bound, "0::/docker/12\n") is None
    assert mounted("29 23 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "4:cpu:/x\n") is None

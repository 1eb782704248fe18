"""Ending an environment ends what came of it, however it hides, with and without a cgroup; its receipt is true."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.worker import cgroup, interpreter, reaper, reaping
from daemon.worker.cgroup import mounted
from tests.daemon.worker.dialing import Dial
from tests.e2e.driving import becomes, processes
from tests.e2e.hoppers import HOPPER, LEAVER, NESTED, nobody_writes, told

# Forks as fast as it can, up to a limit of processes: its user's, so as root it becomes a user of its own. The limit
# counts what is only being forked, so the first process says that it is full when that many are there. Where the user
# has more, it counts those too, and their threads, so the first process looks again for as long as it is not full.
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
def allow():
    tasks = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat("/proc/" + pid).st_uid == os.getuid():
                tasks += len(os.listdir("/proc/" + pid + "/task"))
        except OSError:
            pass
    wanted = max(tasks - there(), 0) + 60
    resource.setrlimit(resource.RLIMIT_NPROC, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
first = os.getpid()
most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
if os.getuid() == 0:
    os.setuid(61000 + os.getpid() % 1000)
allow()
while True:
    try:
        os.fork()
    except OSError:
        if os.getpid() == first:
            if there() > 50:
                os.write(1, b"full\\n")
            else:
                allow()
        time.sleep(0.01)
"""
# How a kernel or a container differs, as a reaper finds it.
OTHER = {
    "descendants": "",
    "no lists of children": """
def children(pid):
    raise FileNotFoundError
opened = os.open
def open_listless(path, *more):
    if str(path).endswith("/children"):
        raise FileNotFoundError(path)
    return opened(path, *more)
os.open = open_listless
""",
}
# Before Linux 5.3, or in a container that is as old.
NO_PIDFDS = """
def refused(pid):
    raise PermissionError(errno.EPERM, "pidfd_open")
os.pidfd_open = refused
"""
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


@pytest.fixture(params=["cgroup", *OTHER])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """How processes are found and ended."""
    name: str = request.param
    if name != "cgroup":
        monkeypatch.setattr(cgroup, "own", lambda: None)
        other(monkeypatch, tmp_path, OTHER[name])
        if name == "no lists of children":
            monkeypatch.setattr(reaping.Reaper, "_watch", lambda *_: None)
    elif (made := cgroup.Cgroup.make()) is None:
        pytest.skip("no cgroup v2 with cgroup.kill that this process may make cgroups in")
    else:
        made.end()
    return name


def other(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    """Have reapers run with this code behind their own definitions."""
    head, main, tail = Path(reaper.__file__).read_text().partition('\nif __name__ == "__main__":\n')
    assert main
    (folder / "reaper.py").write_text(head + code + main + tail)
    monkeypatch.setattr(reaping, "REAPER", str(folder / "reaper.py"))


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
    ("program", "least"),
    [(BOMB, 40), (HOPPER, 1), (LEAVER, 1), (NESTED, 1)],
    ids=["bomb", "hopper", "leaver", "nested"],
)
async def test_what_forks_as_fast_as_it_can_is_ended(
    dial: Dial, way: str, tmp_path: Path, program: str, least: int
) -> None:
    word = token()
    with told(tmp_path) as fd:
        await dial.run(started(tmp_path, program, word))
        said = await dial.kill()
        assert said.endswith("none is left"), said
        found = re.match(r"ended (\d+) process", said)
        assert found
        seen = program == BOMB or way != "no lists of children"  # else it may end without ever being seen
        assert int(found[1]) >= (least if seen else 0)
        await gone(word)
        await becomes(lambda: nobody_writes(fd), "the fifo has no writer")


def started(folder: Path, program: str, word: str) -> str:
    """Code that starts a program which says when it is there, its command line with the word."""
    file = folder / "program.py"
    file.write_text(program)
    begun = f'{sys.executable} -S -c "$(cat {file})" {word} >{folder}/told 2>&1'
    return f"{begun} & read x <{folder}/told"


@pytest.mark.parametrize("program", [HOPPER, LEAVER, NESTED], ids=["hopper", "leaver", "nested"])
async def test_a_stop_ends_what_hops_and_leaves_the_shell_and_what_was_there_before(
    dial: Dial, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(interpreter, "GONE_WAIT", 0.3)
    word, before = token(), token()
    await dial.run(f"mine=1; sleep {before} &")
    with told(tmp_path) as fd:
        id = dial.begin(f"{started(tmp_path, program, word)}; echo on; sleep {word}", call="c")
        await dial.prints(id, b"on")
        await dial.interrupt("c")
        ran = await dial.ended(id)
        assert ran.end.stopped == "interrupt"
        assert "could not be ended" not in ran.notes
        assert processes(word) == []
        assert nobody_writes(fd)
    assert (await dial.run("echo $mine")).text == "1\n"
    assert len(processes(before)) == 1
    said = await dial.kill()
    assert said.startswith("ended 1 process: "), said
    await gone(before)


async def test_what_may_not_be_signalled_is_named_and_keeps_nothing_else_from_its_end(
    dial: Dial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a program of another user's, which runs as that user, or one in an uninterruptible wait."""
    monkeypatch.setattr(interpreter, "GONE_WAIT", 0.3)
    word, safe = token(), token()
    spared = f"""
END_TRIES = SWEEP_TRIES = 0.5
def spared(real, pid):
    return lambda one, number: pid(one) not in safe() and real(one, number)
def safe():
    return {{one.pid for one in descendants(os.getpid()).values() if {safe!r} in name(one.pid)}}
send_signal = spared(send_signal, lambda one: one.pid)
os.kill = spared(os.kill, lambda one: one)
kill_groups = lambda groups, seen: set()
"""
    monkeypatch.setattr(cgroup, "own", lambda: None)
    other(monkeypatch, tmp_path, spared)
    with told(tmp_path) as fd:
        id = dial.begin(f"sleep {safe} & {started(tmp_path, LEAVER, word)}; echo on; sleep {word}", call="c")
        await dial.prints(id, b"on")
        try:
            await dial.interrupt("c")
            ran = await dial.ended(id)
            [pid] = processes(safe)
            assert f"could not be ended: {pid} sleep {safe}" in ran.notes
            assert f"{pid} " not in "".join(
                note for note in ran.end.notes if note.startswith("ended with it")
            )
            assert nobody_writes(fd)
            said = await dial.kill()
            assert said.endswith(f"left: {pid} sleep {safe}"), said
        finally:
            for pid in processes(safe):
                os.kill(pid, signal.SIGKILL)
    await gone(safe)


async def test_where_there_are_no_pidfds_all_is_ended_as_well(
    dial: Dial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cgroup, "own", lambda: None)
    other(monkeypatch, tmp_path, NO_PIDFDS)
    word, before = token(), token()
    await dial.run(f"setsid sleep {before} &")
    id = dial.begin(f"setsid sleep {word} & echo on; sleep {word}", call="c")
    await dial.prints(id, b"on")
    await dial.interrupt("c")
    assert (await dial.ended(id)).end.stopped == "interrupt"
    assert processes(word) == []
    assert (await dial.kill()).startswith("ended 1 process: ")
    await gone(before)


def test_a_group_that_was_seen_long_ago_may_be_anothers_by_now() -> None:
    with subprocess.Popen(["sleep", token()], start_new_session=True) as other:
        try:
            reaper.kill_groups({other.pid}, time.monotonic() - 2 * reaper.FRESH)
            assert other.poll() is None
            reaper.kill_groups({os.getpgrp(), 0, 1}, time.monotonic() + 60)
            reaper.kill_groups({other.pid}, time.monotonic() + 60)
            assert other.wait() == -signal.SIGKILL
        finally:
            other.kill()


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

"""Thousands of short runs on one keeper leave no process, no descriptor and next to no memory behind."""

import asyncio
import os
import re
import resource
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.protocol import frames
from daemon.worker import keeper, launch, reaper
from tests.daemon.worker.dialing import Dial, Refused
from tests.e2e.driving import becomes, pause

SESSIONS = 3
CODES = {
    "bash": (
        "true",
        "echo $((n += 1))",
        "seq 3000 | tail -n 1; (exit 3)",
        "x=$(cat </dev/null | wc -c); echo $x >&2",
        "sleep 0 & wait",
        "(setsid true &) & true",
        "fi",
    ),
    "python": ("pass", "n = globals().get('n', 0) + 1; n", "print('x' * 1000)", "1 / 0", "import os", "("),
    "node": ("1", "console.log('x'.repeat(1000))", "throw 1"),
}

REFUSED = ("fi", "(")


@pytest.fixture
async def pid(scratch: Path) -> AsyncIterator[int]:
    """A keeper in a process of its own."""
    await launch.ensure(scratch, "1")
    yield keeper.holder(scratch / keeper.LOCK)
    await launch.end(scratch)


def descriptors(pid: int) -> list[str]:
    """What a process has open: numbers of pipes and sockets left out."""
    found = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return sorted(re.sub(r"\d+", "N", one) for one in found)


def memory(pid: int) -> int:
    """Bytes of its own that a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


async def drive(dial: Dial, runs: int) -> None:
    """So many runs of all kinds, all interpreters and several sessions side by side."""
    codes = [
        (name, code)
        for name, all_codes in CODES.items()
        if name in dial.hello.interpreters
        for code in all_codes
    ]
    for start in range(0, runs, 30):
        ids = {}
        for n in range(start, min(start + 30, runs)):
            name, code = codes[n % len(codes)]
            session, call = f"s{n % SESSIONS}", dial.call()
            ids[dial.begin(code, session=session, call=call, interpreter=name)] = (session, call, code)
        for id, (session, call, code) in ids.items():
            if code in REFUSED:
                with pytest.raises(Refused, match="syntax: "):
                    await dial.ended(id)
            else:
                assert (await dial.ended(id)).end.reset == ""
                dial.send(frames.Ack(session=session, call=call))


async def below(pid: int) -> set[int]:
    """Every process that came of another, zombies too."""
    return set(await asyncio.to_thread(reaper.descendants, pid))


@pytest.mark.parametrize(
    ("runs", "grows"),
    [
        (150, 2 << 20),
        pytest.param(5000, 6 << 20, marks=(pytest.mark.campaign, pytest.mark.timeout(300)), id="campaign"),
    ],
)
async def test_short_runs_leave_nothing_behind(pid: int, scratch: Path, runs: int, grows: int) -> None:
    async with await Dial.to(scratch / keeper.SOCKET) as dial:
        await drive(dial, 150)
        open_before, memory_before = descriptors(pid), memory(pid)
        held = await below(pid)
        await drive(dial, runs)
        assert memory(pid) - memory_before < grows
        while await below(pid) != held:  # only the environments live, no zombie
            await pause()
        await becomes(
            lambda: not Counter(descriptors(pid)) - Counter(open_before), "no descriptor more is open"
        )
        for session in range(SESSIONS):
            assert (await dial.kill(f"s{session}")).endswith("none is left")
        assert not await below(pid)
        rest = [one for one in open_before if "log-" in one or "keeper" in one]
        assert [one for one in descriptors(pid) if "log-" in one or "keeper" in one] == rest
        assert not [one for one in descriptors(pid) if one.startswith(("pipe", "/proc"))]


async def test_a_keeper_takes_the_descriptors_that_it_may_have_and_code_gets_what_the_operator_has(
    scratch: Path,
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits[1] > 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, limits[1]))
    try:
        await launch.ensure(scratch, "1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    try:
        taken = resource.prlimit(keeper.holder(scratch / keeper.LOCK), resource.RLIMIT_NOFILE)
        assert taken == (limits[1], limits[1])
        async with await Dial.to(scratch / keeper.SOCKET) as dial:
            assert (await dial.run("ulimit -Sn; ulimit -Hn")).text.split() == ["1000", str(limits[1])]
            if "python" in dial.hello.interpreters:
                code = "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]"
                assert (await dial.run(code, interpreter="python")).text == "1000\n"
    finally:
        await launch.end(scratch)


async def test_environments_that_cannot_start_for_want_of_descriptors_leave_none_open(
    pid: int, scratch: Path
) -> None:
    async with await Dial.to(scratch / keeper.SOCKET) as dial:
        await dial.run("true", session="warm")
        held, before = await below(pid), descriptors(pid)
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        highest = max(map(int, os.listdir(f"/proc/{pid}/fd")))
        said = []
        for more in range(1, 30):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + more, limits[1]))
            try:
                await dial.run("true", session=f"s{more}")
            except Refused as refused:
                said.append(refused.message)
            else:
                await dial.kill(f"s{more}")
                break
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert len(said) > 5
        assert set(said) == {"no environment could be started: Too many open files"}
        await becomes(lambda: descriptors(pid) == before, "no descriptor more is open")
        assert await below(pid) == held
        assert (await dial.run("echo on", session="s1")).text == "on\n"


async def test_a_machine_that_allows_too_few_descriptors_is_told_which_limit_that_is(scratch: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", 'ulimit -n 64; exec "$0" -c "$1" "$2"', sys.executable),
        "import asyncio, pathlib, sys; from daemon.worker import launch; "
        "asyncio.run(launch.ensure(pathlib.Path(sys.argv[1]), '1'))",
        str(scratch),
        cwd=Path(__file__).parents[3],
    )
    assert await process.wait() == 0
    try:
        async with await Dial.to(scratch / keeper.SOCKET) as dial:
            with pytest.raises(Refused, match=r"only 64 descriptors may be open here \(`ulimit -Hn`\)"):
                await dial.run("true")
    finally:
        await launch.end(scratch)

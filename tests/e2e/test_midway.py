"""Keepers and daemons killed at any moment of runs, writes, edits and patches: each is done once, or unknown."""

import asyncio
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.protocol import api
from daemon.protocol.records import Record, WorkerRef
from tests.e2e.driving import Driver, Stage, becomes, driver, judge, pause, stage
from tests.e2e.far import state
from tests.e2e.rehearsing import results, runs, script, uses

SESSIONS: Final = 4
ROUNDS: Final = 10
KILLS: Final = 25
AIMED: Final = 4  # of them that come while a run goes: on a busy machine all others may hit shells that start
BIG: Final = "0123456789abcdef" * 4096


def patch(k: int) -> str:
    return (
        f"*** Begin Patch\n*** Add File: added{k}\n+{k}\n*** Update File: patched{k}\n@@\n-old\n+new\n"
        f"*** Delete File: gone{k}\n*** End Patch\n"
    )


def steps() -> list[dict[str, Any]]:
    made, quick = [], {"pace": 0.0, "delay": 0.0}
    for k in range(ROUNDS):
        made += [
            runs(f"echo {k} >>ran; sleep 0.1{k}; echo went {k}", **quick),
            uses("write", {"path": f"written{k}", "content": f"{k}\n{BIG}\n"}, **quick),
            uses("edit", {"path": "edited", "old": f"line {k}\n", "new": f"changed {k}\n"}, **quick),
            uses("patch", {"input": patch(k)}, **quick),
        ]
    return [*made, {"text": "Done."}]


@pytest.fixture
def here() -> Iterator[Stage]:
    with stage() as made:
        made.script("midway", script(*steps()))
        yield made


async def begin(on: Driver, folder: Path) -> str:
    """A session that works in a folder of its own, which holds what it changes."""
    folder.mkdir()
    (folder / "edited").write_text("".join(f"line {k}\n" for k in range(ROUNDS)))
    for k in range(ROUNDS):
        (folder / f"patched{k}").write_text("old\n")
        (folder / f"gone{k}").write_text("here\n")
    session = await on.client.create(
        api.Create(
            model="rehearsal/midway",
            workers=(WorkerRef("local", str(folder)),),
            tools=("run", "write", "edit", "patch"),
        )
    )
    await on.post(session, "Go.")
    return session


def is_unknown(result: Record) -> bool:
    return "effect unknown" in result.text()


def verify(folder: Path, found: list[Record]) -> Counter[str]:
    """What every result says is so; how many were unknown, by tool."""
    unknown: Counter[str] = Counter()
    tools = ("run", "write", "edit", "patch")
    ran = Counter((folder / "ran").read_text().split() if (folder / "ran").exists() else [])
    edited = (folder / "edited").read_text()
    for n, said in enumerate(results(found)):
        k, tool = n // len(tools), tools[n % len(tools)]
        if is_unknown(said):
            unknown[tool] += 1
        match tool:
            case "run":
                there = ran[str(k)] == 1
                assert ran[str(k)] <= 1, f"run {k} happened {ran[str(k)]} times"
                assert said.header.failed or f"went {k}" in said.text()
            case "write":
                file = folder / f"written{k}"
                there = file.exists()
                assert not there or file.read_text() == f"{k}\n{BIG}\n"
            case "edit":
                there = f"changed {k}\n" in edited
                assert there != (f"line {k}\n" in edited)
            case _:
                state = [
                    (folder / f"added{k}").exists(),
                    (folder / f"patched{k}").read_text() == "new\n",
                    not (folder / f"gone{k}").exists(),
                ]
                assert all(state) or not any(state) or is_unknown(said), (k, state, said.text())
                there = all(state)
        assert there == (not said.header.failed) or is_unknown(said), (tool, k, there, said.text()[:300])
    left = [path.name for path in folder.iterdir() if re.match(r"\.outrider-", path.name)]
    assert left == [], "a file that was not put in place is left"
    return unknown


def begun(here: Stage) -> int:
    """How much the runs of all sessions have written."""
    return sum(path.stat().st_size for path in here.folder.glob("s*/ran"))


def runs_go(here: Stage, before: int) -> bool:
    return begun(here) > before


def another(here: Stage, before: int) -> bool:
    return here.keeper() not in (0, before)


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("daemon_too", [False, True], ids=["keeper", "keeper-and-daemon"])
async def test_whatever_is_killed_and_when_each_call_is_done_once_or_said_to_be_unknown(
    here: Stage, daemon_too: bool
) -> None:
    async with driver(here) as on:
        folders = {await begin(on, here.folder / f"s{n}"): here.folder / f"s{n}" for n in range(SESSIONS)}
        for n in range(KILLS):
            if n < AIMED:
                await becomes(partial(runs_go, here, begun(here)), "a run goes")
            else:
                await pause(random.uniform(0.02, 0.5))
            keeper = here.keeper()
            if daemon_too and random.random() < 0.4:
                here.daemon.kill()
                if random.random() < 0.5 and keeper:
                    os.kill(keeper, signal.SIGKILL)
                await here.daemon.start()
            elif keeper:
                os.kill(keeper, signal.SIGKILL)
                await becomes(partial(another, here, keeper), "it is started again")
            await state(on, "local", "connected")
        unknown: Counter[str] = Counter()
        for session in folders:
            async with asyncio.timeout(300):
                while (await on.client.info(session)).status == "stepping":
                    await pause(0.2)
        for session, folder in folders.items():
            found = await on.closes(session)
            judge(found)
            assert len(results(found)) == 4 * ROUNDS
            unknown += verify(folder, found)
        assert unknown["run"], "no kill hit a run"

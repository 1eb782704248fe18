"""Many sessions: start with and without the index, the list, memory, the first request, all stepping at once."""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import common

from daemon.client import Client
from daemon.harness import prompt
from daemon.harness.harness import PATIENCE
from daemon.protocol import api
from daemon.protocol.records import TEXT, Config, Record, Usage, draft, json_draft
from daemon.statefile.index import FILE
from daemon.statefile.publish import SESSIONS
from daemon.statefile.writer import stored
from daemon.worker import keeper

MODEL = "anthropic/claude-sonnet-5"
PAGE = 50
NEWEST = "SELECT info FROM sessions ORDER BY updated DESC, id DESC LIMIT ?"
IMPORTS = "import asyncio, aiohttp, aiohttp.web"  # what no daemon of this kind does without
LOOK = 0.2  # seconds between two looks at sessions that step
GIVE_UP = 300.0


def fill(
    data: Path, count: int, message: str = "question {}: what about it?", closed: bool = True
) -> list[str]:
    """So many sessions as files, one a second; their ids."""
    folder = data / SESSIONS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = json_draft("config", Config(MODEL))
    start, ids = datetime(2026, 1, 1, tzinfo=UTC), []
    for k in range(count):
        step = secrets.token_hex(8)
        drafts: list[Record] = [draft("start"), config, draft("system", prompt.SYSTEM, source="harness")]
        drafts += [
            draft("message", message.format(k), via="bench"),
            draft("system", "(workers)", source="workers"),
        ]
        if closed:
            closing = draft(
                "step",
                id=step,
                provider="anthropic",
                model="m",
                upto=5,
                usage=Usage(900, 20),
                stop="end_turn",
            )
            drafts += [draft("text", "An answer of some length.", step=step), closing]
        ids.append(secrets.token_hex(8))
        _, pieces = stored(drafts, 1, start + timedelta(seconds=k))
        (folder / f"{ids[-1]}.state").write_bytes(b"".join(pieces))
    return ids


def timed(what: Callable[[], object], times: int) -> list[float]:
    """Seconds of each call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        what()
        taken.append(time.perf_counter() - start)
    return taken


def bare_start() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)


def bare_look(data: Path) -> int:
    with os.scandir(data / SESSIONS) as entries:
        return sum(entry.stat().st_size for entry in entries)


@contextlib.contextmanager
def bare_query(data: Path) -> Iterator[Callable[[], object]]:
    """The newest page from a copy of the index, with nothing else around it."""
    copy = data / "floor.db"
    copy.write_bytes((data / FILE).read_bytes())
    with contextlib.closing(sqlite3.connect(copy)) as db:
        yield lambda: db.execute(NEWEST, (PAGE,)).fetchall()


def memory(pid: int | str = "self") -> float:
    """Resident MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def bare_memory() -> float:
    code = f"{IMPORTS}; print(next(l for l in open('/proc/self/status') if l.startswith('VmRSS')))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return int(said.split()[1]) / 1024


async def listed(socket: Path, times: int) -> list[float]:
    """Seconds of each GET of the newest page."""
    taken = []
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as http:
        for _ in range(times):
            start = time.perf_counter()
            async with http.get(f"http://daemon/sessions?limit={PAGE}") as answer:
                found = json.loads(await answer.read())
            taken.append(time.perf_counter() - start)
            if len(found) != PAGE:
                raise SystemExit(f"the list has {len(found)} sessions, not {PAGE}: {found}")
    return taken


async def until(seen: Callable[[], Awaitable[bool]], every: float = LOOK) -> None:
    """Look every so many seconds until it is so, or GIVE_UP is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GIVE_UP):
            while not await seen():  # noqa: ASYNC110 - the daemon is another process
                await asyncio.sleep(every)


async def idle(socket: Path) -> None:
    """Until the local worker is there: the daemon has then nothing left to do."""
    async with common.client(socket) as one:

        async def seen() -> bool:
            return any(worker.state == "connected" for worker in await one.workers())

        await until(seen)


def start_and_list(data: Path, count: int, starts: int) -> None:
    start = time.perf_counter()
    fill(data, count)
    print(f"{count} sessions written in {time.perf_counter() - start:.1f} s", flush=True)
    python = min(timed(bare_start, 5))
    look = statistics.median(timed(lambda: bare_look(data), 5))
    with common.running(data) as one:
        cold = one.seconds
    warm = []
    for _ in range(starts):
        with common.running(data) as one:
            warm.append(one.seconds)
    with common.running(data) as one:
        taken = asyncio.run(listed(one.socket, 100))
        asyncio.run(idle(one.socket))
        own, worker = memory(one.process.pid), memory(keeper.holder(data / "worker" / keeper.LOCK))
        one.process.send_signal(signal.SIGKILL)
        one.process.wait()
    with common.running(data) as one:
        killed = one.seconds
    print(
        f"cold start, the index made from the files: {cold:.2f} s (ready after {PATIENCE:.0f} at the latest)"
    )
    print(
        f"warm start: median {statistics.median(warm):.2f} s, best {min(warm):.2f} s, after kill -9 {killed:.2f} s "
        f"(aim: under 1)   floor {python + look:.2f} s = {python:.2f} python and aiohttp + {look:.3f} stat of all"
    )
    with bare_query(data) as query:
        bare = timed(query, 50)
    print(f"the newest {PAGE}: {common.ms(taken)} (aim: under 20)   floor {common.ms(bare)} a bare query")
    print(
        f"memory, idle: daemon {own:.1f} + worker {worker:.1f} = {own + worker:.1f} MiB (aim: under 90)   "
        f"floor {bare_memory():.1f} MiB python and aiohttp",
        flush=True,
    )


async def first_request(data: Path, times: int) -> None:
    taken = []
    with common.mock() as url:
        async with aiohttp.ClientSession() as http:

            async def asked() -> bool:
                return bool(await common.log_of(http, url))

            for k in range(times):
                await common.configure(http, url, calls=0)
                fill(data, 1, f"[[conv:first{k}]] go", closed=False)
                with common.running(data, url) as one:
                    await until(asked, 0.01)
                log = await common.log_of(http, url)
                taken.append(log[0]["body"] - one.spawned)
    python = min(timed(bare_start, 5))
    print(
        f"from spawn to the first request: median {common.median_ms(taken):.0f} ms, best {min(taken) * 1e3:.0f} ms "
        f"(aim: under 350)   floor {python * 1e3:.0f} ms python and aiohttp",
        flush=True,
    )


async def at_once(data: Path, count: int) -> None:
    with common.mock() as url, common.daemon(data, url) as socket:
        async with common.client(socket) as one, aiohttp.ClientSession() as http:
            await common.configure(http, url, calls=0)
            ids = fill(data, count, "[[conv:one]] question {}")
            slots = asyncio.Semaphore(100)
            start = time.perf_counter()

            async def post(id: str) -> None:
                async with slots:
                    await one.post(id, [api.Part(TEXT, b"again")], "bench")

            async with asyncio.TaskGroup() as group:
                for id in ids:
                    group.create_task(post(id))
            posted = time.perf_counter() - start
            done: list[str] = []

            async def all_done() -> bool:
                done[:] = await answered(one, ids)
                return len(done) == count

            await until(all_done)
            taken = time.perf_counter() - start
            asked = len(await common.log_of(http, url))
    print(
        f"{count} sessions stepping at once: {len(done)} closed, {count - len(done)} lost (aim: 0), {asked} requests, "
        f"in {taken:.1f} s, the posts in {posted:.1f} s",
        flush=True,
    )


async def answered(one: Client, ids: list[str]) -> list[str]:
    """Those of these sessions that were answered a second time."""
    found, after = list[api.Info](), ""
    while page := await one.list(status="closed", limit=api.MAX_LIST, after=after):
        found += page
        after = page[-1].id
    wanted = set(ids)
    return [info.id for info in found if info.id in wanted and info.n > 8]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000, help="in the folder; 0 leaves this part out")
    parser.add_argument("--starts", type=int, default=5, help="warm ones")
    parser.add_argument(
        "--first", type=int, default=7, help="starts with an open session; 0 leaves this part out"
    )
    parser.add_argument("--stepping", type=int, default=1000, help="at once; 0 leaves this part out")
    asked_for = parser.parse_args()
    parts: list[tuple[Callable[[Path], None], int]] = [
        (lambda data: start_and_list(data, asked_for.sessions, asked_for.starts), asked_for.sessions),
        (lambda data: asyncio.run(first_request(data, asked_for.first)), asked_for.first),
        (lambda data: asyncio.run(at_once(data, asked_for.stepping)), asked_for.stepping),
    ]
    for measure, much in parts:
        if much:
            with common.folder() as one_folder:
                measure(one_folder)

"""Cost of a run: a round trip through a pool and a keeper of another process, and the capture of much output.

Beside each round trip stands what the same takes with less in between, measured in turns with it: over a bare pipe and
a bare socket (AIM times that is aimed at), and by two programs of asyncio alone that do nothing else.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

import common
import floors
import structlog
from msgspec import Struct

from daemon.pool import Pool
from daemon.protocol import frames
from daemon.worker import journal, keeper, launch, login, reaper

WORKER: Final = "bench"
WARM: Final = 20  # runs that are not counted
AIM: Final = 3.0  # times a pipe's and a socket's round trip
ROUNDS: Final = 10  # turns that the round trips and their floors take
LOOP: Final = "import sys\nfor line in sys.stdin:\n exec(line)\n print(0, flush=True)"
PRINTS: Final = (
    "import sys\nline = b'0123456789' * 10 + b'\\n'\n"
    "for _ in range({} // len(line * 1000)): sys.stdout.buffer.write(line * 1000)"
)
YES: Final = "yes $(printf %0100d 0) | head -c {}"


class Interpreter(Struct, frozen=True):
    """What is measured of one: code that does nothing, code that prints so many bytes; the same without a keeper."""

    name: str
    nothing: str
    prints: str
    bare: Sequence[str]  # a program that carries out lines and answers each by one
    line: bytes
    to_file: Sequence[str]  # a program that carries out its last argument


@contextlib.asynccontextmanager
async def pool(scratch: Path) -> AsyncIterator[Pool]:
    """A pool whose worker is a keeper on `scratch`, in a process of its own; it is ended afterwards."""
    path = await launch.ensure(scratch, "bench")
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
        changed = asyncio.Event()
        one = Pool(release="bench", on_change=changed.set)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(one.serve(WORKER, reader, writer), name="serve")
            while one.hello(WORKER) is None:
                changed.clear()
                await changed.wait()
            yield one
            serving.cancel()
    finally:
        await launch.end(scratch)


async def runs(one: Pool, which: Interpreter, times: int, turn: str) -> list[float]:
    """Seconds of each run that does nothing."""
    taken = []
    for n in range(times):
        start = time.perf_counter()
        output = await one.run(WORKER, "s", f"{which.name}-{turn}-{n}", which.nothing, interpreter=which.name)
        taken.append(time.perf_counter() - start)
        if output.exit or output.text:
            raise SystemExit(f"{which.name} answered {output}")
    return taken


def without_pool(path: Path, which: Interpreter, times: int, turn: str) -> list[float]:
    """Seconds of each run that does nothing, asked for by a blocking socket."""
    taken = []
    decoder = frames.harness_decoder()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))

        def answer() -> None:
            while not decoder.next():
                decoder.feed(sock.recv(1 << 16))

        answer()
        for n in range(times):
            run = frames.Run(
                id=n + 1, session="s", call=f"{which.name}-alone-{turn}-{n}", interpreter=which.name
            )
            data = frames.encode(run, which.nothing.encode())
            start = time.perf_counter()
            sock.sendall(data)
            answer()
            taken.append(time.perf_counter() - start)
    return taken


def journaled(folder: Path, times: int) -> list[float]:
    """Seconds that it takes to write each run and its result down."""
    taken = []
    kept = journal.Journal(folder)
    for n in range(times):
        start = time.perf_counter()
        kept.begin(journal.Meta(session="s", call=str(n), started=start, interpreter="bash"), b"true")
        kept.finish(("s", str(n)), journal.Result(ended=start, exit=0))
        taken.append(time.perf_counter() - start)
    kept.close()
    return taken[WARM:]


class Round(Struct, frozen=True):
    """One turn of each, medians in microseconds. `cpu`: of the pool, the keeper and what it started, of each run."""

    run: float
    alone: float  # asked for by a blocking socket, without a pool
    pipe: float
    socket: float
    by_asyncio: float
    cpu: Sequence[float]

    @property
    def floor(self) -> float:
        return self.pipe + self.socket


async def turn(one: Pool, which: Interpreter, path: Path, held: int, times: int, name: str) -> Round:
    """One turn of a run and of what it is measured by."""
    pipe = await asyncio.to_thread(floors.by_pipe, which.bare, which.line, times)
    over_socket = await asyncio.to_thread(floors.by_socket, times)
    by_asyncio = await asyncio.to_thread(floors.by_asyncio, which.bare, which.line, times)
    holding = await asyncio.to_thread(reaper.children, held)
    kinds = [[os.getpid()], [held], [pid for one in holding for pid in reaper.children(one)]]
    before = [spent(pids) for pids in kinds]
    run = await runs(one, which, times, name)
    cpu = [1e6 * (spent(pids) - was) / times for pids, was in zip(kinds, before, strict=True)]
    alone = await asyncio.to_thread(without_pool, path, which, times, name)
    return Round(
        run=micro(run),
        alone=micro(alone),
        pipe=micro(pipe),
        socket=micro(over_socket),
        by_asyncio=micro(by_asyncio),
        cpu=cpu,
    )


def micro(seconds: Sequence[float]) -> float:
    return 1e6 * statistics.median(seconds)


def spent(pids: Sequence[int]) -> float:
    """Seconds of CPU that processes have had, all their threads; 0 where the kernel does not count so finely."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


async def round_trips(one: Pool, which: Interpreter, scratch: Path, times: int, written: float) -> None:
    """A run that does nothing, beside its floors, and where its time goes."""
    held = keeper.holder(scratch / keeper.LOCK)
    await runs(one, which, WARM, "warm")
    found = [
        await turn(one, which, scratch / keeper.SOCKET, held, max(1, times // ROUNDS), str(n))
        for n in range(ROUNDS)
    ]

    def typical(of: Callable[[Round], float]) -> float:
        return statistics.median(map(of, found))

    whole, alone, pipe = typical(lambda r: r.run), typical(lambda r: r.alone), typical(lambda r: r.pipe)
    over_socket, by_asyncio = typical(lambda r: r.socket), typical(lambda r: r.by_asyncio)
    bare, fair = typical(lambda r: r.run / r.floor), typical(lambda r: r.run / r.by_asyncio)
    cpu = [statistics.median(one.cpu[n] for one in found) for n in range(3)]
    verdict = "met" if bare <= AIM else "missed"
    print(
        f"{which.name:6} `{which.nothing}`: {whole:.0f} us (best turn {min(r.run for r in found):.0f})\n"
        f"       {bare:.1f} times a bare pipe ({pipe:.0f} us) and socket ({over_socket:.0f} us): "
        f"the aim of {AIM:g} times is {verdict}\n"
        f"       {fair:.1f} times the same by asyncio alone ({by_asyncio:.0f} us, itself "
        f"{typical(lambda r: r.by_asyncio / r.floor):.1f} times pipe and socket)\n"
        f"       {whole - alone:.0f} us pool, {alone:.0f} us keeper and {which.name}, of these {written:.0f} us "
        f"the journal alone, warm\n"
        f"       CPU of a run: {cpu[0]:.0f} us pool, {cpu[1]:.0f} us keeper, {cpu[2]:.0f} us {which.name}",
        flush=True,
    )


async def three_at_once(one: Pool, scratch: Path, size: int) -> None:
    """Three runs that print `size` bytes each: how much more memory the processes take that it goes through."""
    held = keeper.holder(scratch / keeper.LOCK)
    code = f"head -c {size} /dev/zero | tr '\\0' x"

    async def at_once(code: str, call: str) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(one.run(WORKER, f"m{n}", call, code), name=f"{call} {n}") for n in range(3)
            ]
        return [task.result().full_output for task in tasks]

    await at_once("seq 100000", "warm")
    reapers = await asyncio.to_thread(reaper.children, held)
    before = {pid: peak(pid) for pid in (held, os.getpid(), *reapers)}
    for file in await at_once(code, "much"):
        with contextlib.suppress(FileNotFoundError):  # the journal let it go: over its limit
            os.unlink(file)
    grown = {pid: peak(pid) - was for pid, was in before.items()}
    print(
        f"3 runs of {size / 1e9:.2f} GB at once: keeper {grown.pop(held):.1f} MB more, "
        f"pool {grown.pop(os.getpid()):.1f} MB more, reapers {sum(grown.values()):.1f} MB more",
        flush=True,
    )


async def side_by_side(one: Pool, which: Interpreter, sessions: int, times: int) -> float:
    """Runs a second of so many sessions at once."""

    async def session(s: int, label: str, count: int) -> None:
        for n in range(count):
            await one.run(WORKER, f"s{s}", f"{which.name}-{label}{n}", which.nothing, interpreter=which.name)

    taken = 0.0
    for label, count in (("warm", 1), ("", times)):
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for s in range(sessions):
                group.create_task(session(s, label, count), name=f"session {s}")
        taken = time.perf_counter() - start
    return sessions * times / taken


async def capture(one: Pool, which: Interpreter, size: int, folder: Path) -> None:
    """Print `size` bytes through the keeper, and into a file without it."""
    code = which.prints.format(size)
    file = folder / "bare"
    rows = []
    for n in range(2):
        bare, whole = await asyncio.to_thread(into_file, [*which.to_file, code], file)
        start = time.perf_counter()
        output = await one.run(WORKER, "s", f"{which.name}-big-{n}", code, interpreter=which.name)
        taken = time.perf_counter() - start
        kept = os.stat(output.full_output).st_size
        if kept != whole:
            raise SystemExit(f"{which.name}: {kept} bytes are kept of {whole}")
        os.unlink(output.full_output)
        rows.append((taken, bare, whole))
    taken, bare, whole = min(rows)
    rates = (
        f"{whole / taken / 1e6:.0f} MB/s kept, {whole / bare / 1e6:.0f} MB/s by the bare program into a file"
    )
    print(f"{which.name:6} {whole / 1e9:.2f} GB: {rates}: {taken / bare:.2f} times", flush=True)


def into_file(argv: Sequence[str], file: Path) -> tuple[float, int]:
    """Seconds that a program takes to print into a file, which is removed again, and the bytes it printed."""
    start = time.perf_counter()
    with file.open("wb") as out:
        subprocess.run(argv, stdout=out, check=True)
    taken = time.perf_counter() - start
    size = file.stat().st_size
    file.unlink()
    return taken, size


def peak(pid: int) -> float:
    """Most memory that a process has had, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def measure(folder: Path, times: int, sessions: int, size: int, much: int) -> None:
    python = login.python(await asyncio.to_thread(login.environment, os.environ)) or ""
    found = [Interpreter("bash", "true", YES, ["bash"], b"true; echo $?\n", ["bash", "-c"])]
    async with pool(folder / "w") as one:
        held = keeper.holder(folder / "w" / keeper.LOCK)
        hello = one.hello(WORKER)
        if hello is not None and "python" in hello.interpreters:
            found.append(
                Interpreter("python", "pass", PRINTS, [python, "-c", LOOP], b"pass\n", [python, "-c"])
            )
        written = 1e6 * statistics.median(
            await asyncio.to_thread(journaled, folder / "journal", times + WARM)
        )
        print(
            f"load of the machine {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} CPUs", flush=True
        )
        for which in found:
            await round_trips(one, which, folder / "w", times, written)
        for which in found if sessions else ():
            rate = await side_by_side(one, which, sessions, max(1, times // sessions))
            print(f"{which.name:6} `{which.nothing}` in {sessions} sessions at once: {rate:.0f} a second")
        print(f"keeper {peak(held):.0f} MB at most", flush=True)
        for which in found if size else ():
            await capture(one, which, size, folder)
        if much:
            await three_at_once(one, folder / "w", much)
        print(f"keeper {peak(held):.0f} MB at most")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500, help="round trips that are counted")
    parser.add_argument("--sessions", type=int, default=10, help="at once; 0 leaves this part out")
    parser.add_argument("--size", type=int, default=10**9, help="bytes of output; 0 leaves this part out")
    parser.add_argument(
        "--much", type=int, default=2 * 10**9, help="bytes of each of three runs at once; or 0"
    )
    parser.add_argument("--folder", type=Path, help="where the keeper's scratch is made; else the system's")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if asked.folder:
        os.environ["TMPDIR"] = str(asked.folder)
    with common.folder() as one_folder:
        asyncio.run(measure(one_folder, asked.runs, asked.sessions, asked.size, asked.much))

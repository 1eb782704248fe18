"""What the benchmarks share: a daemon and a mock model of their own in a temporary folder, floors, and numbers."""

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from daemon.client import Client

ROOT = Path(__file__).resolve().parents[2]
OUTRIDER = Path(sys.executable).with_name("outrider")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A short temporary folder: Unix sockets take 107 bytes of path."""
    with tempfile.TemporaryDirectory(prefix="orb-") as path:
        yield Path(path)


@contextlib.contextmanager
def mock() -> Iterator[str]:
    """The mock model; its base URL."""
    with subprocess.Popen(
        [sys.executable, str(ROOT / "scripts/bench/mock.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().split()[1].decode()}"
        assert process.stdin is not None
        process.stdin.close()


class Running(Struct, frozen=True):
    """A daemon that is ready: its process and socket, when it was spawned (CLOCK_MONOTONIC), seconds until ready."""

    process: "subprocess.Popen[bytes]"
    socket: Path
    spawned: float
    seconds: float


@contextlib.contextmanager
def running(data: Path, model_url: str = "") -> Iterator[Running]:
    """A daemon on `data` that is ready. It and its worker are ended afterwards."""
    socket = data / "api.sock"
    env = {
        k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_") and not k.endswith("_API_KEY")
    }
    env |= {
        "OUTRIDER_DATA": str(data),
        "OUTRIDER_CONFIG": str(data / "outrider.toml"),
        "XDG_STATE_HOME": str(data),
        "HOME": str(data),  # the login profile of who runs this is not what is measured
    }
    (data / "outrider.toml").touch(mode=0o600)
    if model_url:
        env |= {"ANTHROPIC_API_KEY": "bench", "ANTHROPIC_BASE_URL": model_url}
    with (data / "daemon.log").open("wb") as log:
        spawned = time.monotonic()
        process = subprocess.Popen(
            [
                str(OUTRIDER),
                "daemon",
                "--data",
                str(data),
                "--socket",
                str(socket),
                "--listen",
                "127.0.0.1:0",
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            cwd=data,
        )
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                sys.exit((data / "daemon.log").read_text())
            yield Running(process, socket, spawned, time.monotonic() - spawned)
        finally:
            process.terminate()
            process.wait()
            subprocess.run(
                [str(OUTRIDER), "down", "--data", str(data)], env=env, capture_output=True, check=False
            )


@contextlib.contextmanager
def daemon(data: Path, model_url: str = "") -> Iterator[Path]:
    """The socket of a daemon on `data` that is ready."""
    with running(data, model_url) as one:
        yield one.socket


@contextlib.asynccontextmanager
async def client(socket: Path) -> AsyncIterator[Client]:
    async with Client(socket) as one:
        yield one


async def until_rest(one: Client, id: str) -> str:
    """Wait until the session is no longer stepping; its status then."""
    while True:
        async for item in one.follow(id):
            header = getattr(item, "header", None)
            if header is not None and header.kind in ("step", "error"):
                status = (await one.info(id)).status
                if status in ("closed", "failed"):
                    return status


async def configure(http: aiohttp.ClientSession, url: str, **config: Any) -> None:
    async with http.post(f"{url}/_config", data=msgspec.json.encode(config)) as answer:
        answer.raise_for_status()


async def log_of(http: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    async with http.get(f"{url}/_log") as answer:
        found: list[dict[str, Any]] = msgspec.json.decode(await answer.read())
        return found


def fsynced_append(path: Path, times: int) -> list[float]:
    """Seconds of each append of 300 bytes with fdatasync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        os.write(fd, b"x" * 300)
        os.fdatasync(fd)
        taken.append(time.perf_counter() - start)
    os.close(fd)
    return taken


def pipe_round_trips(times: int) -> list[float]:
    """Seconds of each round trip of `true` through a bare bash on pipes."""
    taken = []
    with subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bash:
        assert bash.stdin is not None
        assert bash.stdout is not None
        for _ in range(times):
            start = time.perf_counter()
            bash.stdin.write(b"true; echo $?\n")
            bash.stdin.flush()
            bash.stdout.readline()
            taken.append(time.perf_counter() - start)
        bash.stdin.close()
    return taken


async def whole_requests(http: aiohttp.ClientSession, url: str, size: int, times: int) -> list[float]:
    """Seconds of each POST of `size` bytes until its answer is there."""
    body, taken = b"x" * size, []
    for _ in range(times):
        start = time.monotonic()
        async with http.post(f"{url}/_floor", data=body) as answer:
            await answer.read()
        taken.append(time.monotonic() - start)
    return taken


async def bare_requests(http: aiohttp.ClientSession, url: str, size: int, times: int) -> list[float]:
    """Seconds from before a POST of `size` bytes until the server has its whole body."""
    body, taken = b"x" * size, []
    for _ in range(times):
        start = time.monotonic()

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, size, 256 << 10):
                yield body[at : at + (256 << 10)]

        async with http.post(f"{url}/_floor", data=pieces(), headers={"content-length": str(size)}) as answer:
            await answer.read()
        entry = (await log_of(http, url))[-1]
        taken.append(entry["body"] - start)
        await asyncio.sleep(0)
    return taken


def ms(seconds: Sequence[float]) -> str:
    """Median and 95th percentile in milliseconds."""
    ordered = sorted(seconds)
    return f"{statistics.median(ordered) * 1e3:7.2f} ms (p95 {ordered[int(len(ordered) * 0.95)] * 1e3:.2f})"


def median_ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e3

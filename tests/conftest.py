"""What every test runs under: no blocking call in the loop, nothing left behind; and the recordings."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import structlog
from blockbuster import BlockBuster, BlockBusterFunction
from hypothesis import settings

settings.register_profile("outrider", deadline=None)  # no test is about time
settings.load_profile("outrider")

ROOT = Path(__file__).resolve().parent.parent
OURS = ["daemon", "mesh", "tui"]

# Blocking calls that blockbuster does not know.
ALSO_BLOCKING: dict[str, tuple[ModuleType | type, str]] = {
    "os.fsync": (os, "fsync"),
    "os.fdatasync": (os, "fdatasync"),
    "subprocess.Popen.communicate": (subprocess.Popen, "communicate"),
}

# Where our code may block in the loop: (blocking call, end of the file's path, function, why).
MAY_BLOCK = [
    (
        "os.read",
        "/subprocess.py",
        "_execute_child",
        "waits until the new program runs, as asyncio's own start does",
    ),
]

# A run is written down before it starts, and its output kept, by writes into the page cache: some 10 µs each, where
# a thread would cost ten times that.
MAY_BLOCK += [
    (call, f"/daemon/worker/{file}.py", function, "a short write into the page cache, or a look at /proc")
    for file, function, calls in (
        ("segments", "append", ("os.write",)),
        ("smallfiles", "write_over", ("os.mkdir", "os.write")),
        ("output", "write", ("os.write", "os.mkdir", "os.statvfs")),
        ("output", "move", ("os.mkdir", "os.statvfs")),
        ("output", "copy", ("os.read",)),
        ("reaping", "is_alone", ("os.stat",)),
        ("bash", "_is_straight", ("os.readlink",)),
    )
    for call in calls
]

# A traceback in the log shows source lines, which are read when a failure is logged.
MAY_BLOCK += [
    ("os.stat", "/linecache.py", function, "a failure is being logged")
    for function in ("checkcache", "updatecache")
]
MAY_BLOCK += [("io.TextIOWrapper.read", "/linecache.py", "updatecache", "a failure is being logged")]

# Textual reads its style sheets while it starts, before anything is on the screen.
MAY_BLOCK += [
    ("os.path.abspath", "/textual/_path.py", "_make_path_object_relative", "the app is being made"),
    ("os.stat", "/textual/_path.py", "_make_path_object_relative", "the app is being made"),
    ("os.stat", "/textual/css/stylesheet.py", "read", "the app is starting"),
    ("io.BufferedReader.read", "/textual/css/stylesheet.py", "read", "the app is starting"),
    ("io.TextIOWrapper.read", "/textual/css/stylesheet.py", "read", "the app is starting"),
]

# Tasks of libraries that may outlive a test: how their names begin.
MAY_STAY: tuple[str, ...] = ()

# A runner in the background of a script ignores SIGINT, one under nohup SIGHUP, and what it starts would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
    ]
)

ENDING = 1.0  # seconds that what is already ending has to be gone


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--untraced",
        action="append",
        default=[],
        metavar="FOLDER",
        help="coverage does not trace the tests in it, which take about half the time then",
    )


@pytest.fixture(autouse=True)
def untraced(request: pytest.FixtureRequest) -> Iterator[None]:
    """Trace no test of a folder that was named as untraced.

    The tracing is taken off and put back as it was: coverage's own stop and start would make another tracer, whose
    locks the guard below takes for a test's.
    """
    if not any(request.path.is_relative_to(ROOT / folder) for folder in request.config.getoption("untraced")):
        yield
        return
    here, threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    yield
    threading.settrace(threads)
    sys.settrace(here)


@pytest.fixture(scope="session", autouse=True)
def no_blocking_in_the_loop() -> Iterator[None]:
    """A call that blocks raises BlockingError when a loop runs and code of ours is on the stack.

    One guard for the whole run: it is idle outside of a loop, and the tests' own blocking calls pass.
    """
    guard = BlockBuster(OURS)
    for call, (owner, name) in ALSO_BLOCKING.items():
        guard.functions[call] = BlockBusterFunction(owner, name, scanned_modules=OURS)
    for call, file, function, _ in MAY_BLOCK:
        guard.functions[call].can_block_in(file, function)
    guard.activate()
    yield
    guard.deactivate()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test ends the processes it started and, when it is a coroutine, its tasks."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("no_task_left")
    before = children()
    yield
    give_up = time.monotonic() + ENDING
    while (left := children() - before) and time.monotonic() < give_up:
        time.sleep(0.01)  # a loop's watcher thread may still have to collect one
    assert not left, f"processes left running: {', '.join(map(describe, left))}"


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    """Fail a test whose tasks still run when it and its fixtures are done."""
    before = asyncio.all_tasks()
    loop = asyncio.get_running_loop()

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A test that takes too long is told so once, by a signal, and where that comes in a callback the loop only
        logs it."""
        if isinstance(context.get("exception"), pytest.fail.Exception):
            for task in asyncio.all_tasks(loop) - before:
                task.cancel(str(context["exception"]))
        loop.default_exception_handler(context)

    loop.set_exception_handler(failed)
    yield
    loop.set_exception_handler(None)
    left = {
        task
        for task in asyncio.all_tasks() - before
        if task is not asyncio.current_task() and not task.get_name().startswith(MAY_STAY)
    }
    if left:
        _, left = await asyncio.wait(left, timeout=ENDING)
    assert not left, f"tasks left running: {', '.join(sorted(task.get_name() for task in left))}"


@pytest.fixture(scope="session")
def streams_dir() -> Path:
    """Recorded provider streams: NAME.json says what it is, NAME.sse or .eventstream holds the answer."""
    path = Path(os.environ.get("OUTRIDER_STREAMS") or ROOT.parent / "shared" / "streams")
    if not path.is_dir():
        pytest.skip("the recorded streams are absent: name their folder in OUTRIDER_STREAMS")
    return path


def children() -> set[int]:
    """Process ids of this process's children (empty where the system has no /proc)."""
    tasks = Path("/proc/self/task")
    while True:
        found: set[int] = set()
        threads = set(tasks.glob("*/children"))
        for file in threads:
            with suppress(OSError):  # the thread ended
                found.update(map(int, file.read_text().split()))
        if threads <= set(tasks.glob("*/children")):
            return found
        # One ended: another that may have been read before has its children now.


def describe(pid: int) -> str:
    """A process as `pid command line`."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return str(pid)
    return f"{pid} {line.replace(bytes(1), b' ').decode(errors='replace').strip() or '(a zombie)'}"

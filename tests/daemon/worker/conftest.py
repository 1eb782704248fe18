"""A keeper in this process, on a scratch folder and a home of its own."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from daemon.worker import interpreters
from daemon.worker.journal import Journal
from daemon.worker.keeper import SOCKET, Keeper
from tests.daemon.worker.dialing import Dial
from tests.daemon.worker.journals import Clock


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The operator's home, with a profile that does nothing slow."""
    folder = Path(tempfile.mkdtemp(prefix="or-home-"))
    (folder / ".bash_profile").write_text("export FROM_PROFILE=yes\n")
    monkeypatch.setenv("HOME", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def scratch(home: Path) -> Iterator[Path]:
    """A short path: a socket's has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The interpreters that are here for whoever has an empty profile; looked for once."""
    return interpreters.find(os.environ | {"HOME": str(tmp_path_factory.mktemp("home"))})


@pytest.fixture
async def keeper(scratch: Path, found: tuple[str, ...]) -> AsyncIterator[Keeper]:
    one = Keeper(scratch, "1", os.environ, lambda _: found)
    async with one.listening():
        yield one


@pytest.fixture
async def dial(keeper: Keeper) -> AsyncIterator[Dial]:
    """A connection to it."""
    async with await Dial.to(keeper.scratch / SOCKET) as one:
        yield one


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Iterator[Callable[[], Journal]]:
    """Opens the journal, as a keeper that starts does; all are closed in the end."""
    with contextlib.ExitStack() as held:

        def open() -> Journal:
            one = Journal(tmp_path / "runs", clock=clock, uptime=lambda: clock.up)
            held.callback(one.close)
            one.load()
            return one

        yield open

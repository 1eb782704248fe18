import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from daemon.statefile.store import Store
from tests.daemon.statefile.fakes import Clock, Disk


@pytest.fixture
def data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="or-") as folder:
        yield Path(folder) / "data"


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def store(data: Path, disk: Disk) -> AsyncIterator[Store]:
    store = Store(data, clock=Clock(), sync=disk)
    yield store
    disk.let_go()
    await store.close()

"""A served fake harness, and plain HTTP to it."""

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, MutableMapping, MutableSequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from daemon.api.stream import Limits
from tests.daemon.api.fakes import FakeHarness, serve


@pytest.fixture
def path() -> Iterator[Path]:
    """Where a socket can be: a short path."""
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    yield folder / "api.sock"
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def logs() -> Iterator[MutableSequence[MutableMapping[str, Any]]]:
    """The lines that were logged."""
    with capture_logs() as lines:
        yield lines


@pytest.fixture
async def harness() -> FakeHarness:
    return FakeHarness()


@pytest.fixture
async def http(harness: FakeHarness, path: Path) -> AsyncIterator["Http"]:
    async with serve(harness, version="1.2.3", socket=path, finish=5), Http.to(path) as http:
        yield http


class Http:
    """Requests over the socket, by a client that is not ours."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    @classmethod
    @asynccontextmanager
    async def to(cls, path: Path) -> AsyncIterator["Http"]:
        connector = aiohttp.UnixConnector(str(path), limit=0)
        async with aiohttp.ClientSession("http://d", connector=connector) as session:
            yield cls(session)

    async def __call__(self, method: str, url: str, status: int = 200, **kwargs: Any) -> Any:
        """The JSON answer (None when empty); checks the status and, of an error, the shape."""
        async with self.session.request(method, url, **kwargs) as answer:
            body = await answer.read()
            assert answer.status == status, body
            return check(answer.status, answer.headers.get("Content-Type", ""), body)


def check(status: int, type: str, body: bytes) -> Any:
    if not body:
        assert status == 204
        return None
    assert type.startswith("application/json"), (type, body)
    value = json.loads(body)
    if status >= 400:
        assert set(value) == {"error"}
        assert set(value["error"]) == {"code", "message"}
        assert value["error"]["code"] == status
        assert "Traceback" not in value["error"]["message"]
        return value["error"]["message"]
    return value


SMALL = Limits(heartbeat=0.05, slow=0.3, behind=100_000)

import asyncio

import pytest

from daemon.protocol import api
from daemon.protocol.records import JSON, CallBody, ErrorBody, Record
from tests.fakes import Tasks
from tests.tui.daemonfake import FakeClient, info, stored
from tui import doing
from tui.doing import Doing


def call(n: int, code: str) -> Record:
    body = CallBody("run", api.encode({"worker": "gpu", "code": code}).decode())
    return stored(n, "call", api.encode(body).decode(), type=JSON)


def result(n: int, of: int) -> Record:
    return stored(n, "result", "done", for_=f"{of:016x}")


def error(n: int, code: str, message: str) -> Record:
    return stored(n, "error", api.encode(ErrorBody(code, message)).decode(), type=JSON)


@pytest.mark.parametrize(
    ("found", "n"),
    [
        ([], 0),
        ([stored(1, "message")], 0),
        ([call(1, "a"), call(2, "b")], 2),
        ([call(1, "a"), call(2, "b"), result(3, 2)], 1),
        ([call(1, "a"), result(2, 1)], 0),
        ([call(1, "a"), error(2, "auth", "no")], 2),
    ],
)
def test_the_record_that_says_most_is_the_error_at_the_end_or_the_open_call(
    found: list[Record], n: int
) -> None:
    assert doing.telling(found) == n


def test_a_call_is_told_with_the_first_line_of_its_code() -> None:
    assert doing.said(call(1, "\nmake -j8\nmake install")) == "run · on gpu · bash · make -j8"
    assert doing.said(error(1, "auth", "The key is wrong.\nSet it.")) == "The key is wrong."
    stopped = api.encode(ErrorBody("stopped", "stopped by x")).decode()
    assert doing.said(stored(1, "error", stopped, type=JSON, via="x")) == "stopped"
    assert "does not parse" in doing.said(stored(1, "error", "no json", type=JSON))


async def test_only_what_is_on_the_screen_and_new_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.doing.PAUSE", 0)
    client = FakeClient()
    client.add(info("a1", "stepping", n=1), call(1, "sleep 1"))
    client.add(info("b2", "closed", n=1), stored(1, "message"))
    client.add(info("c3", "stepping", n=1), stored(1, "message"))
    looked: asyncio.Queue[str] = asyncio.Queue()
    look = Doing(client, looked.put_nowait)
    tasks = Tasks()
    tasks.start(look.run(), "doing")
    look.want([client.infos["a1"], client.infos["b2"]])
    assert await looked.get() == "a1"
    assert look.of(client.infos["a1"]) == "run · on gpu · bash · sleep 1"
    assert look.of(client.infos["b2"]) == look.of(client.infos["c3"]) == ""
    look.want([client.infos["a1"]])  # known
    client.gone = "away"
    look.want([client.infos["c3"]])
    assert await looked.get() == "c3"
    assert looked.empty()
    await tasks.close()

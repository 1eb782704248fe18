"""Sessions made up for the log's tests and benchmarks, and a source that has them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from daemon.client import Unreachable
from daemon.protocol.records import (
    CallBody,
    Config,
    Kind,
    Record,
    Usage,
    WorkerRef,
    draft,
    error_draft,
    json_draft,
)

ANSWER = """I looked at the **failing test** first. Two things stand out:

1. `connect()` is called before the server listens.
2. The time limit is *2 seconds*, which is tight.

```python
async def connect(path: str) -> Client:
    for attempt in range(3):  # the server may still start
        try:
            return await Client.open(path)
        except ConnectionRefusedError:
            await sleep(0.1 * 2**attempt)
```

| test | before | after |
|---|---|---|
| test_connect | fails | passes |
| test_close | passes | passes |

> A retry hides nothing here: the last error is raised.
"""


class Book:
    """Records as a log would have stored them, one after another."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._steps = 0

    def add(self, record: Record, **fields: Any) -> Record:
        n = len(self.records) + 1
        fields.setdefault("id", record.id or f"{n:016x}")
        fields.setdefault("time", f"2026-01-02T{n // 3600 % 24:02}:{n // 60 % 60:02}:{n % 60:02}.000Z")
        stored = Record(
            msgspec.structs.replace(record.header, n=n, len=len(record.body), **fields), record.body
        )
        self.records.append(stored)
        return stored

    def say(self, kind: Kind, text: str | bytes = "", **fields: Any) -> Record:
        return self.add(draft(kind, text, **fields))

    def call(self, name: str, id: str, step: str = "", **arguments: Any) -> Record:
        body = CallBody(name, msgspec.json.encode(arguments).decode())
        return self.add(json_draft("call", body, step=step), id=id)

    def result(self, call: str, text: str, **fields: Any) -> Record:
        return self.say("result", text, for_=call, **fields)

    def step(self, id: str) -> Record:
        self._steps += 1
        return self.add(draft("step", model="m-1", usage=Usage(1200, 340), stop="tool_use"), id=id)


def tour() -> Book:
    """One record of about everything."""
    book = Book()
    book.say("start")
    book.add(
        json_draft("config", Config("anthropic/m-1", workers=(WorkerRef("local", "/srv"),), context=200_000))
    )
    book.say("system", "You are an agent.\nBe brief.", source="harness")
    book.say(
        "message", "The test `test_connect` fails now and then. Please find out why and fix it.", via="tui"
    )
    book.say("thinking", "The user wants the flaky test fixed. I read it first.", step="s1")
    book.say("text", ANSWER, step="s1")
    book.call("run", "c1", "s1", worker="local", code="cd /srv\npytest -q tests/test_net.py\n")
    book.step("s1")
    book.result("c1", "F.\n1 failed, 1 passed\n", exit=1, seconds=2.345, worker="local")
    book.call("edit", "c2", "s2", worker="local", path="net.py", old="a = 1\nb = 2\n", new="a = 1\nb = 3\n")
    book.step("s2")
    book.result("c2", "edited net.py", worker="local")
    book.call(
        "run", "c3", "s3", worker="local", interpreter="python", code="for i in range(40):\n    print(i)\n"
    )
    book.step("s3")
    book.result("c3", "\n".join(map(str, range(40))), exit=0, seconds=0.1, worker="local")
    book.say("message", b"\x89PNG" * 500, type="image/png", via="tui")
    book.say("text", "Half an ans", step="s4")
    book.add(error_draft("overloaded", "the provider is overloaded, tried 4 times"))
    book.call("run", "c9", "s5", worker="local", code="sleep 60")
    return book


def long(count: int) -> Book:
    """So many records of an ordinary session."""
    book = Book()
    book.say("start")
    while len(book.records) < count:
        n = len(book.records)
        match n % 5:
            case 1:
                book.say("message", f"Question {n}: what about it?", via="tui")
            case 2:
                book.say(
                    "text", f"Answer {n} is of some length, with **words** and `code` in it.", step=f"s{n}"
                )
            case 3:
                book.call("run", f"c{n}", f"s{n - 1}", worker="local", code=f"echo {n}\nls -l")
            case 4:
                book.step(f"s{n - 2}")
            case _:
                book.result(f"c{n - 2}", f"{n}\nfile-a\nfile-b", exit=0, seconds=0.1, worker="local")
    return book


class FakeSource:
    """Has the records of a book; counts what is asked of it, and is away when it is told so."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.asked: list[tuple[str, int, int | None]] = []
        self.away = False

    async def headers(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        found = self._range("headers", after, limit)
        return [Record(record.header) for record in found]

    async def records(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return self._range("records", after, limit)

    def _range(self, what: str, after: int, limit: int | None) -> list[Record]:
        self.asked.append((what, after, limit))
        if self.away:
            raise Unreachable("no daemon at /run/outrider.sock")
        return self.book.records[after : None if limit is None else after + limit]

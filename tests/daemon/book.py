"""Writes the records of a session for tests, as the log would number and date them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from daemon.protocol import records
from daemon.protocol.records import CallBody, Config, Kind, Record, Usage

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Book:
    """The records of one session, one second apart. Each method adds one record and returns it."""

    def __init__(self, *, begun: bool = True) -> None:
        self.records: list[Record] = []
        if begun:
            self.add("start")
            self.config()
            self.add("system", "You are an agent.", source="harness")

    @property
    def n(self) -> int:
        return len(self.records)

    def add(self, kind: Kind, body: bytes | str = b"", type: str = records.TEXT, **fields: Any) -> Record:
        return self.keep(records.draft(kind, body, type, **fields))

    def keep(self, draft: Record) -> Record:
        n = self.n + 1
        time = (EPOCH + timedelta(seconds=n)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        header = structs.replace(draft.header, n=n, id=draft.header.id or f"{n:016x}", time=time)
        self.records.append(Record(header, draft.body))
        return self.records[-1]

    def config(self, **fields: Any) -> Record:
        return self.keep(records.json_draft("config", Config(**{"model": "rehearsal/tour", **fields})))

    def message(self, text: str = "hello", **fields: Any) -> Record:
        return self.add("message", text, via="me", **fields)

    def text(self, step: str, text: str = "words") -> Record:
        return self.add("text", text, step=step)

    def call(self, step: str, id: str, arguments: str = "{}") -> Record:
        return self.keep(records.json_draft("call", CallBody("run", arguments), id=id, step=step))

    def step(self, id: str, upto: int, usage: Usage | None = None, **fields: Any) -> Record:
        more = {"provider": "rehearsal", "model": "tour", "stop": "end", **fields}
        return self.add("step", id=id, upto=upto, usage=usage or Usage(100, 10), **more)

    def result(self, call: str, text: str = "done", **fields: Any) -> Record:
        return self.add("result", text, for_=call, worker="local", **fields)

    def error(self, message: str = "it broke", code: str = "provider") -> Record:
        return self.keep(records.error_draft(code, message))

    def summary(self, upto: int, text: str = "what was before") -> Record:
        return self.add("summary", text, upto=upto)

    def answer(self, step: str, *calls: str, text: str = "words", **fields: Any) -> Record:
        """A whole step that saw everything there is: text where there is some, calls, the step record."""
        upto = self.n
        if text:
            self.text(step, text)
        for call in calls:
            self.call(step, call)
        return self.step(step, upto, **fields)

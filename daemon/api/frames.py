"""The agent-server surface's frames out of a session's records: a pure fold, the same for a live turn and for a replay.

What a step says becomes frames once the step is closed: blocks of a try that broke off are never told. A record's frame
carries its number as `id`; session.started, model.request, message.delta and warnings about a stream carry none, and
may come again to a client that comes back.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

from daemon.plain import size
from daemon.protocol import agentserver as wire
from daemon.protocol import api, records
from daemon.protocol.agentserver import Data, Reason
from daemon.protocol.records import BadRecord, Record

BLOCKS: Final = frozenset({"text", "thinking", "call"})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
STOPPED: Final = "stopped"  # the code of the error record that a stop leaves
DAMAGED: Final = "damaged"  # the kind of error that no record can be of


class Frames:
    """One stream's fold. `steps`: how many the session had up to where the stream begins; `seen`: the step that the
    last record before it belongs to, empty where it is none's; `traceparent`: of the request that asked, `began`: when
    it did, which is the time of what is told where no record has one.
    """

    def __init__(
        self, session: str, steps: int = 0, seen: str = "", traceparent: str = "", began: str = ""
    ) -> None:
        self.reason: Reason = "completed"
        self._session = session
        self._steps = steps
        self._told = seen
        self._asked = False  # the request of the step to come is told, since its answer streams in
        self._traceparent = traceparent
        self._held: list[Record] = []
        self._began = began

    def started(self, info: api.Info, warnings: Iterable[str] = ()) -> bytes:
        """How every stream begins."""
        first = wire.Started(info.config.agent, info.config.model)
        said: list[Data] = [first, *(wire.Warned("definition", warning) for warning in warnings)]
        return b"".join(self._event(data, info.updated) for data in said)

    def of(self, found: Iterable[Record]) -> bytes:
        """The frames that these next records complete."""
        return b"".join(event for record in found for event in self._take(record))

    def live(self, event: api.Delta | api.RetryEvent | api.Restart, now: str) -> bytes:
        """What a live piece is here, nothing for most."""
        match event:
            case api.Delta(kind="text"):
                return self._answering(now) + self._event(wire.MessageDelta(event.text), now)
            case api.Delta(kind="thinking" | "call"):
                return self._answering(now)
            case api.RetryEvent():
                again = f"{event.why}; tried again in {event.wait:.1f} s"
                return self._event(wire.Warned("retry", again), now)
            case api.Restart():
                void = "what streamed since the last model.response is void; the model is asked again"
                return self._event(wire.Warned("restart", void), now)
            case _:
                return b""

    def passed(self, last: Record) -> None:
        """Let `last` say how the turn stands, as the fold would: the record before the stream that does."""
        self._data(last)
        self._steps -= last.kind == "step"

    def left(self, info: api.Info, now: str) -> bytes:
        """The end of a stream whose turn goes on. Without a number: records may have come that it does not tell."""
        where = "the turn goes on, and this stream ends; follow it with Last-Event-ID at its events"
        return self._event(wire.Warned("detached", where), now) + self._event(
            wire.SessionEnded("cancelled", info.usage), now
        )

    def lost(self, info: api.Info, why: str, code: str, now: str) -> bytes:
        """The end of a stream whose turn can neither go on nor be told; nor has this a number."""
        return self._event(wire.Failed(why, code), now) + self._event(
            wire.SessionEnded("error", info.usage), now
        )

    def ended(self, info: api.Info, reason: Reason | None = None) -> bytes:
        """The last frame of a stream that told its turn whole. `reason`: where the records do not say it."""
        last = wire.SessionEnded(reason or self.reason, info.usage)
        held, self._held = self._held, []
        late = b"".join(
            event for record in held if record.kind not in BLOCKS for event in self._frame(record)
        )
        if info.damage:
            late += self._event(
                wire.Failed(f"the session's file is damaged: {info.damage}", DAMAGED), info.updated
            )
        return late + self._event(last, info.updated, info.n)

    def _take(self, record: Record) -> Iterator[bytes]:
        kind = record.kind
        if kind in BLOCKS or (self._held and kind not in ("step", "error", "end")):
            self._held.append(record)
            return
        held, self._held = self._held, []
        if kind == "step" and self._told != record.header.id:
            first = next((one for one in held if one.header.step == record.header.id), record)
            yield self._request(first.header.time)
        if kind in ("step", "error", "end"):
            self._told, self._asked = "", False
        for one in held:
            if one.kind not in BLOCKS or (kind == "step" and one.header.step == record.header.id):
                yield from self._frame(one)
        yield from self._frame(record)

    def _answering(self, now: str) -> bytes:
        """Before what streams in of an answer: its request, where no stream has told it."""
        return b"" if self._told else self._request(now)

    def _request(self, ts: str) -> bytes:
        """The request of the step to come, once."""
        if self._asked:
            return b""
        self._asked = True
        return self._event(wire.ModelRequest(2 * self._steps + 1), ts)

    def _frame(self, record: Record) -> Iterator[bytes]:
        data = self._data(record)
        if data is not None:
            yield self._event(data, record.header.time, record.n)

    def _data(self, record: Record) -> Data | None:
        """What a record says here, None for nothing; sets how the turn ends as far as it says that."""
        header = record.header
        match record.kind:
            case "message":
                self.reason = "completed"
                return wire.Message("user", _words(record))
            case "text":
                return wire.Message("assistant", _words(record))
            case "call":
                return _call(record)
            case "result":
                failed = header.failed or header.exit not in (None, 0)
                return wire.ToolResult(header.for_, failed, _words(record))
            case "step":
                self._steps += 1
                self.reason = "completed"
                usage = header.usage or records.Usage()
                return wire.ModelResponse(usage.prompt, usage.output, header.stop)
            case "error":
                error = _error(record)
                self.reason = "cancelled" if error.kind == STOPPED else "error"
                return error
            case "end":
                self.reason = "cancelled"
                return None
            case _:
                return None

    def _event(self, data: Data, ts: str, n: int = 0) -> bytes:
        return wire.event(self._session, ts or self._began, data, n, self._traceparent)


def _words(record: Record) -> str:
    """A body's text; of a picture what it is."""
    text = record.text()
    if text or not record.body:
        return text
    return f"[{records.essence(record.header.type)}, {size(len(record.body))}]"


def _call(record: Record) -> Data:
    try:
        call = records.call_of(record)
    except BadRecord:
        return wire.ToolCall("", record.id, record.text())
    args: Any = call.arguments
    with suppress(ValueError, OverflowError, RecursionError):  # else as the model wrote it
        args = msgspec.Raw(_encode(_decode(call.arguments) if call.arguments.strip() else {}))  # on one line
    return wire.ToolCall(call.name, record.id, args)


def _error(record: Record) -> wire.Failed:
    try:
        error = records.error_of(record)
    except BadRecord:
        return wire.Failed(record.text() or "an error that does not read")
    return wire.Failed(error.message, error.code)

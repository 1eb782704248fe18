"""The half of a decoder that every wire of event streams shares: cut the bytes, keep errors in order, see the end."""

from typing import Final, Protocol

from daemon.protocol.records import MAX_BODY
from daemon.provider import errors, sse
from daemon.provider.base import Block, Event, ProviderError

MAX_ANSWER: Final = 128 << 20  # bytes: some 1000 for each token of the longest answers there are


class Parser(Protocol):
    """Cuts a wire's bytes, in any pieces, into events."""

    def feed(self, data: bytes) -> list[sse.Event]:
        """The events that are complete by now. May raise sse.TooLong."""
        ...

    def end(self) -> list[sse.Event]:
        """The bytes have ended: the event that was left open, if it counts."""
        ...


class StreamDecoder:
    """Feeds a wire's events to `_event`, which appends what they give; see `base.Decoder`.

    `limit`: bytes of one event; `most`: of the answer, which is held until it is complete; `parser`: cuts the bytes,
    server-sent events by default.

    A wire counts its real events in `_events`, and sets `_done` when it has given its Outcome.
    """

    def __init__(
        self, limit: int = sse.MAX_EVENT, most: int = MAX_ANSWER, parser: Parser | None = None
    ) -> None:
        self._parser: Parser = sse.Parser(limit) if parser is None else parser
        self._left = most
        self._events = 0
        self._done = False
        self._failed: ProviderError | None = None

    @property
    def events(self) -> int:
        return self._events

    def feed(self, data: bytes) -> list[Event]:
        if self._failed is not None:
            raise self._failed
        self._left -= len(data)
        if self._left < 0:
            raise errors.endless("it has no end")
        try:
            found = self._parser.feed(data)
        except sse.TooLong as error:
            raise errors.endless(str(error)) from error
        return self._take(found)

    def end(self) -> list[Event]:
        if self._failed is not None:
            raise self._failed
        given: list[Event] = []
        try:
            given = self._take(self._parser.end())
        except ProviderError as error:
            if error.code != "malformed":
                raise
            self._failed = None  # its last event was cut in the middle
        if self._done:
            return given
        try:
            self._close(given)
        except ProviderError as error:
            self._failed = error
            if not given:
                raise
        return given

    def _event(self, found: sse.Event, given: list[Event]) -> None:
        """Take one event. Raises ProviderError for an error in the stream and for an event that does not read."""
        raise NotImplementedError

    def _close(self, given: list[Event]) -> None:
        """The stream ended before its last event; raises ProviderError unless that makes no difference."""
        raise errors.cut("the stream ended before its last event")

    def _whole(self, event: sse.Event, given: list[Event]) -> None:
        """Take one event, within what a record holds. Raises ProviderError; then what it gave does not count."""
        before = len(given)
        try:
            self._event(event, given)
        except RecursionError:
            del given[before:]
            raise errors.malformed("an event is nested too deeply", event.data[: errors.SHOWN]) from None
        if any(isinstance(new, Block) and len(new.body) > MAX_BODY for new in given[before:]):
            del given[before:]
            raise errors.endless(f"a block of more than {MAX_BODY} bytes")

    def _take(self, found: list[sse.Event]) -> list[Event]:
        given: list[Event] = []
        for event in found:
            if self._done:
                break
            try:
                self._whole(event, given)
            except ProviderError as error:
                self._failed = error
                if given:
                    break
                raise
        return given

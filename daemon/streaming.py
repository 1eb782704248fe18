"""What streams in, from deltas and the records that take their place: the same for `tail` and for a screen."""

from typing import Final

from msgspec import Struct

from daemon.asked import call, so_far
from daemon.plain import MAX_CHARS, count, line, printed, safe
from daemon.protocol.api import Delta
from daemon.protocol.records import Record
from daemon.view import Item

OUTPUT_LINES: Final = 200  # of a run's live output that are kept; its result has the tail
OUTPUT_PIECES: Final = 100  # of it that are gathered before those lines are counted

_SPOKEN: Final = {"text": "answer", "thinking": "thinking"}


class Streamed(Struct):
    """A block that streams in, or a run's output: `pieces` as they came, raw; of an output only the last ones.

    `key` is no other block's, and what it names only grows at its end. `kind`, `name`, `call` as in Delta. `size`:
    characters that came; `begin`: those before them, which nobody has any more. `broken`: the connection was lost here.
    """

    key: int
    kind: str
    pieces: list[str]
    name: str = ""
    call: str = ""
    size: int = 0
    begin: int = 0
    broken: bool = False


class Live:
    """The blocks of a step in flight and the output of its runs, none of them a record yet."""

    def __init__(self) -> None:
        self._blocks: dict[int, Streamed] = {}
        self._stored: set[int] = set()  # blocks of this step whose records are here
        self._step = ""
        self._keys = 0
        self._outputs: dict[str, Streamed] = {}

    def feed(self, delta: Delta) -> None:
        """Take a piece in; costs what the piece is long. One from further back takes the place of what came of it."""
        if delta.kind == "output":
            output = self._outputs[delta.call] = self._placed(self._outputs.get(delta.call), delta)
            if len(output.pieces) > OUTPUT_PIECES:
                output.pieces[:] = [_end_of(output.pieces)]
            return
        if delta.step != self._step:
            self.restart()
            self._step = delta.step
        if delta.block not in self._stored:
            self._blocks[delta.block] = self._placed(self._blocks.get(delta.block), delta)

    def _placed(self, stream: Streamed | None, delta: Delta) -> Streamed:
        """The stream with the piece at its place: another one where it does not just grow."""
        if stream is None or delta.at != stream.begin + stream.size:
            kept, begin = ("", delta.at) if stream is None else _before(stream, delta.at)
            self._keys += 1
            stream = Streamed(self._keys, delta.kind, [kept], delta.name, delta.call, len(kept), begin)
        stream.broken = False
        stream.name = delta.name or stream.name
        stream.pieces.append(delta.text)
        stream.size += len(delta.text)
        return stream

    def record(self, record: Record) -> None:
        """A record has come: what streamed of it is no longer live."""
        header = record.header
        match record.kind:
            case "text" | "thinking" | "call":
                if header.step != self._step:
                    if any(not block.broken for block in self._blocks.values()):
                        return  # of a try that broke off before the one that streams
                    self.restart()
                    self._step = header.step
                self._stored.add(header.block)
                self._blocks.pop(header.block, None)
            case "step" | "error" | "end":
                self.restart()
            case "result":
                self._outputs.pop(header.for_, None)
            case _:
                pass

    def restart(self) -> None:
        """What streamed so far of this step is void."""
        self._blocks.clear()
        self._stored.clear()
        self._step = ""

    def lost(self) -> None:
        """The connection is lost: what is here stays as it is until more comes, and is known to be broken off."""
        for stream in self.streams():
            stream.broken = True

    def streams(self) -> list[Streamed]:
        """What is live now, blocks first; for who draws only what is new of it."""
        return [*self._blocks.values(), *self._outputs.values()]

    def items(self) -> list[Item]:
        """What is live now, blocks first."""
        return [streaming(stream) for stream in self.streams()]


def streaming(stream: Streamed) -> Item:
    """What streams as an item, all of it."""
    text = "".join(stream.pieces)
    cut = f" · without its first {count(stream.begin, 'character')}" if stream.begin else ""
    broken = " · broken off here" if stream.broken else ""
    match stream.kind:
        case "call":
            written = count(stream.begin + len(text), "character")
            title = f"writing a call of {stream.name or 'a tool'}, {written}{broken}"
            if stream.begin:
                return Item(0, "call", line(title), safe(f"…{text}"), "live")
            _, body, language = call(stream.name, so_far(text)) if stream.name else ("", "", "")
            return Item(0, "call", line(title), body, "live", language)
        case "output":
            body = printed(_end_of(stream.pieces)).strip("\n")
            return Item(0, "output", f"output so far{broken}", body, "live", call=stream.call)
        case kind:
            body = safe(f"…{text}" if cut else text)
            return Item(0, kind, f"{_SPOKEN[kind]}{broken}{cut}", body, "live", "markdown")


def _before(stream: Streamed, at: int) -> tuple[str, int]:
    """(what is here of the text before character `at`, where that begins); nothing where there would be a gap."""
    text = "".join(stream.pieces)
    begin = stream.begin + stream.size - len(text)
    return (text[: at - begin], begin) if begin <= at <= begin + len(text) else ("", at)


def _end_of(pieces: list[str]) -> str:
    return "\n".join("".join(pieces).split("\n")[-OUTPUT_LINES:])[-MAX_CHARS:]

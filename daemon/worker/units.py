"""What the journal's log is made of, and what is kept in memory of it."""

from typing import Literal

from msgspec import Struct

from daemon.protocol import frames
from daemon.worker.segments import Segment

Key = tuple[str, str]  # session, call


class Meta(Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="unit", tag="begin"):
    """Written before a run starts, its code as the body, or a file is replaced. `started` is wall-clock seconds.

    `temporary` is there as long as nothing was replaced; a file that is to be removed, as long as it was not.
    """

    session: str
    call: str
    kind: Literal["run", "write"] = "run"
    started: float
    interpreter: str = ""
    timeout: float = 0.0
    reset: str = ""
    path: str = ""
    temporary: str = ""
    remove: bool = False
    size: int = 0
    len: int = 0


class End(Struct, frozen=True, kw_only=True, tag_field="unit", tag="end"):
    """Written when it has ended; the body is its Result. A later one takes the place of one before."""

    session: str
    call: str
    ended: float
    len: int


class Acked(Struct, frozen=True, kw_only=True, tag_field="unit", tag="acked"):
    """The harness has the result."""

    session: str
    call: str
    len: int = 0


class Forgotten(Struct, frozen=True, kw_only=True, tag_field="unit", tag="forgotten"):
    """What was begun did not happen."""

    session: str
    call: str
    len: int = 0


class Result(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How it ended: the fields of frames.Result, the tail as `text`; `size` of a written file.

    `made`: the folders that were made for the file, the innermost first.
    """

    ended: float
    exit: int | None = None
    seconds: float = 0.0
    truncated: int = 0
    full_output: str = ""
    reset: str = ""
    unknown: str = ""
    stopped: Literal["", "interrupt", "timeout"] = ""
    notes: tuple[str, ...] = ()
    images: tuple[frames.Image, ...] = ()
    text: str = ""
    size: int = 0
    made: tuple[str, ...] = ()


class Entry:
    """What is kept in memory of a run or write: enough to know it, to find its result and to choose what goes."""

    __slots__ = ("acked", "at", "buried", "bytes", "ended", "kind", "length", "result", "segment", "size")

    def __init__(self, kind: Literal["run", "write"], segment: Segment, length: int) -> None:
        self.kind = kind
        self.segment = segment
        self.bytes = length  # in the log, of units that count
        self.at = self.length = 0  # where the result is in the log
        self.ended = 0.0  # 0: going
        self.acked = False
        self.buried = False
        self.size = 0  # bytes of output
        self.result: Result | None = None  # where the disk did not take it


Unit = Meta | End | Acked | Forgotten

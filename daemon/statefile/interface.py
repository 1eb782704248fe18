"""What a store of sessions is: the harness and the API know these shapes alone. There are two, files and memory."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from daemon.protocol.api import Origin
from daemon.protocol.records import Record, Spent
from daemon.statefile.errors import Damage
from daemon.statefile.index import Index

Costs = Callable[[Sequence[Spent]], float | None]


class Survey(Struct, frozen=True):
    """A session read through: its bytes, when it was last changed (ns), and where it stops being a session."""

    size: int
    mtime_ns: int
    damage: Damage | None = None


class SessionLog(Protocol):
    """One session's records, to be read and appended to. One writer each."""

    @property
    def id(self) -> str: ...

    @property
    def n(self) -> int:
        """The last record."""
        ...

    @property
    def durable_n(self) -> int:
        """The last one that no crash takes back which the store outlives; all that others are shown."""
        ...

    @property
    def due_n(self) -> int:
        """The last one that is durable, or that somebody waits for until it is."""
        ...

    @property
    def damage(self) -> Damage | None:
        """The first record that does not read."""
        ...

    @property
    def broken(self) -> bool:
        """Nothing more is written through this object: the session has to be opened again."""
        ...

    async def append(self, *drafts: Record, durable: bool = True) -> list[Record]:
        """Append all drafts, or none, and return them as they are stored; with `durable` when they are durable.

        Raises NoSpaceError, DamagedError, ReopenError, BadRecord.
        """
        ...

    async def sync(self) -> None:
        """Returns when every record appended so far is durable. Raises ReopenError."""
        ...

    async def wait(self, after: int) -> None:
        """Returns once `durable_n` is over `after`. Raises ReopenError, StateFileError when the store is closed."""
        ...

    async def read(self, first: int = 1, last: int | None = None) -> list[Record]:
        """Records `first` to `last`, those not yet durable too; less where there are less. Raises DamagedError."""
        ...

    def span(self, after: int, limit: int | None = None) -> tuple[int, int]:
        """Where the bytes of at most `limit` durable records after `after` begin and end. Raises ValueError past the
        tip.
        """
        ...

    def chunks(self, after: int, limit: int | None = None) -> AsyncGenerator[bytes, None]:
        """Those bytes in pieces. Raises ValueError past the tip, DamagedError."""
        ...

    async def headers(self, after: int, limit: int | None = None) -> bytes:
        """Their header lines, one a line. Raises as `chunks` does."""
        ...


class SessionStore(Protocol):
    """All sessions of one daemon."""

    def lock(self) -> AbstractContextManager[None]:
        """Make it ours alone. Blocks: enter it before the loop runs. Raises LockedError, StateFileError."""
        ...

    def index(self, version: str, cost: Costs = ...) -> Index:
        """The list of sessions, for this release. Close it before the store."""
        ...

    def check_id(self, id: str) -> None:
        """Raises MissingError for what is no id."""
        ...

    def ids(self) -> list[str]:
        """Every session's id, sorted. May block."""
        ...

    async def create(self, *drafts: Record) -> tuple[str, SessionLog]:
        """A new session of these records, durable. Raises NoSpaceError, BadRecord; then there is none."""
        ...

    async def open(self, id: str) -> SessionLog:
        """The session's log. Raises MissingError, ReopenError."""
        ...

    async def copy(self, id: str, n: int) -> str:
        """A new session of records 1 to n-1, byte for byte, without an end record; its id.

        Raises CopyPointError, MissingError, DamagedError, NoSpaceError.
        """
        ...

    def origin(self, id: str) -> Origin | None:
        """What a copied session was copied from, None for another."""
        ...

    def survey(self, id: str, add: Callable[[Record], None]) -> Survey:
        """Give every record to `add`, up to one that does not read or for which it raises BadRecord. Blocks.

        Raises FileNotFoundError, and OSError where it cannot be read for now.
        """
        ...

    async def close(self) -> None:
        """Refuse everything from now on."""
        ...

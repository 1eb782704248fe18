"""One session in memory: its log, the fold of its records, and who is at work on it."""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from daemon.chain import Chain
from daemon.harness.counts import Counts
from daemon.harness.live import LiveReaders
from daemon.protocol.api import Origin
from daemon.protocol.frames import Hello
from daemon.protocol.records import Config, Record
from daemon.provider.base import Wire
from daemon.statefile.errors import Damage, StateFileError
from daemon.statefile.interface import SessionLog

BIG: Final = (
    1 << 20
)  # bytes; from here on the log writes off the loop, so an append could be cancelled half way


class Baton(asyncio.Lock):
    """A lock that is `wanted` from when somebody asks for it until it is given back: also while it goes to the next."""

    def __init__(self) -> None:
        super().__init__()
        self._users = 0

    @property
    def wanted(self) -> bool:
        return self._users > 0

    async def acquire(self) -> Literal[True]:
        self._users += 1
        try:
            return await super().acquire()
        except BaseException:
            self._users -= 1
            raise

    def release(self) -> None:
        super().release()
        self._users -= 1


class Session:
    """A session that is loaded. Only the harness appends, and only through `append`."""

    def __init__(
        self,
        id: str,
        log: SessionLog,
        chain: Chain,
        live: LiveReaders,
        changed: Callable[[str], None] = lambda id: None,
        counts: Counts | None = None,
    ) -> None:
        self.id = id
        self.log = log
        self.chain = chain
        self.live = live
        live.clear()
        live.tip = lambda: log.due_n
        self._changed = changed
        self._counts = counts or Counts()
        self.wire = Wire()
        self.origin: Origin | None = None
        self.bad: Damage | None = None
        self.tried: dict[
            str, Hello
        ] = {}  # workers whose AGENTS.md could not be read, and on which connection
        self.calls: dict[str, asyncio.Task[Exception | None]] = {}
        self.instead: dict[str, Record] = {}  # results for calls whose tasks are cancelled, appended by those
        self.unwritten: set[str] = set()  # calls that were carried out, whose result the file did not take
        self.runner: asyncio.Task[None] | None = None
        self.one_pass: asyncio.Task[None] | None = None
        self.again = False  # kicked: look once more before the runner stops
        self.permit = False  # a retry was asked for: one step although the session failed
        self.ending = False  # its end is being written: nobody begins to step it
        self.kicked = False  # while it was ending
        self.sent = ""  # when the request went out that is under way
        self.stop_by: str | None = None
        self.stopped = asyncio.Event()
        self.stop_lost: StateFileError | None = None  # why the file did not take the last stop
        self.posting = Baton()  # held from a look at the tip to the append that rests on it
        self._appending = Baton()

    @property
    def damage(self) -> Damage | None:
        """Where the file stops being a session: a record that does not read, or whose body makes no sense."""
        return self.bad or self.log.damage

    @property
    def config(self) -> Config:
        """The config as it stands; one without a model where the file has none."""
        return self.chain.config or Config(model="")

    @property
    def turn(self) -> int:
        """The message that began the turn under way, 0 for none; that of a copy's source is not the copy's."""
        n = self.chain.turn
        return n if self.origin is None or n >= self.origin.n else 0

    @property
    def untouched(self) -> bool:
        """A copy that waits for what it was made for; another config may be a part of that."""
        return self.origin is not None and self.chain.said < self.origin.n

    @property
    def stepping(self) -> bool:
        return self.runner is not None

    @property
    def busy(self) -> bool:
        """Somebody works on it, appends to it or watches it: it must stay in memory."""
        return (
            self.stepping
            or bool(self.calls)
            or bool(self.live)
            or self.posting.wanted
            or self._appending.wanted
        )

    def take_sent(self) -> str:
        """When the request went out that is under way, empty for none; it is not under way any more."""
        sent, self.sent = self.sent, ""
        return sent

    async def append(self, *drafts: Record, durable: bool = True) -> list[Record]:
        """Append records as one write and fold them in; with `durable` they are on disk when this returns."""
        if sum(len(record.body) for record in drafts) < BIG:
            stored = await self._append(drafts)
        else:
            task = asyncio.get_running_loop().create_task(self._append(drafts), name=f"append {self.id}")
            stored = await asyncio.shield(task)
        if durable:
            await self.log.sync()
            self.live.durable(self.log.durable_n)
        return stored

    async def _append(self, drafts: tuple[Record, ...]) -> list[Record]:
        async with self._appending:
            stored = await self.log.append(*drafts, durable=False)
            for record in stored:
                self.chain.add(record)
                if record.kind == "step":
                    self.sent = ""  # answered: a stop that comes from here on cuts no request
            self.live.appended(stored)
        self._counts.appended(stored)
        self._changed(self.id)
        return stored

"""What the API asks of the harness and the providers, as it calls them; the tests' fakes fit these shapes too."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from daemon.definition.agent import Agent
from daemon.harness.census import Census
from daemon.harness.live import LiveEvent
from daemon.protocol import api
from daemon.protocol.records import Record, Status, WorkerRef


class Log(Protocol):
    """One session's file, to read from; numbers and bytes as in the state file."""

    @property
    def id(self) -> str: ...

    @property
    def durable_n(self) -> int:
        """The last record that readers may see."""
        ...

    async def read(self, first: int = 1, last: int | None = None) -> list[Record]:
        """Records `first` to `last` with their bodies."""
        ...

    def span(self, after: int, limit: int | None = None) -> tuple[int, int]:
        """Where the bytes of the records after `after` begin and end. ValueError when `after` is past the tip."""
        ...

    def chunks(self, after: int, limit: int | None = None) -> AsyncIterator[bytes]:
        """Those bytes in pieces."""
        ...

    async def headers(self, after: int, limit: int | None = None) -> bytes:
        """Their header lines alone, each with its newline."""
        ...

    async def wait(self, after: int) -> None:
        """Return once there is a durable record past `after`."""
        ...


class Live(Protocol):
    """One reader's view of what streams past in a session."""

    async def wait(self) -> None:
        """Return once something came since the last time."""
        ...

    def take(self, had: int) -> list[LiveEvent]:
        """What a reader that has all records up to `had` lacks of what streams: of each block or output one piece."""
        ...

    def until(self, had: int, last: int) -> int:
        """The record, `last` at the most, up to which to go on before more is taken."""
        ...


class Changed(Protocol):
    """One reader's view of which sessions change."""

    async def get(self) -> str:
        """The id of a session that changed, or `changes.WORKERS`; a reader that is late gets each once."""
        ...


class Providers(Protocol):
    """The providers that are served."""

    async def refresh(self, wait: float = 0.0) -> None:
        """Have the servers that list their models asked, unless they were a moment ago; wait for them for at most
        `wait` seconds.
        """
        ...

    def describe(self) -> api.Providers: ...

    async def set(self, name: str, setting: api.ProviderSetting) -> api.ProviderInfo:
        """Set one up, on disk and for requests that begin from now on.

        Raises ConfigError, which begins with the field, Fixed and OwnFileError.
        """
        ...

    async def test(self, name: str, model: str) -> api.Tested:
        """Send one small request. Raises ProviderError where there is no such provider, or it has no model."""
        ...

    async def scan(self, ports: Sequence[int]) -> Sequence[api.Found]:
        """Servers of models at these ports of this machine; none are the usual ones."""
        ...


class Mesh(Protocol):
    """The machines that join. Refusals are `daemon.harness.errors`."""

    def describe(self) -> api.MeshInfo: ...

    async def examined(self) -> api.MeshInfo:
        """The same, with what becomes of it when it is needed; may take a second."""
        ...

    async def tokens(self) -> Sequence[api.TokenInfo]: ...

    async def make_token(self, new: api.NewToken) -> api.TokenMade: ...

    async def revoke_token(self, id: int) -> None: ...

    async def remove_worker(self, name: str) -> None: ...


class Harness(Protocol):
    """The sessions. Refusals are `daemon.harness.errors`, each with its HTTP status."""

    @property
    def ready(self) -> bool:
        """False while it starts and while it drains."""
        ...

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The definitions that sessions can be made from, by name."""
        ...

    @property
    def census(self) -> Census: ...

    @property
    def resumed(self) -> bool:
        """Whether each session that needs a step is stepped: the start has kicked them all, and nothing is held."""
        ...

    def hold(self) -> None:
        """Begin with no session from now on: what is posted is kept for the next start."""
        ...

    async def create(self, create: api.Create, surface: str = "", named: Collection[str] = ()) -> str: ...

    async def info(self, id: str) -> api.Info: ...

    async def list(
        self, status: Status | None = None, limit: int = 100, after: str = ""
    ) -> Sequence[api.Info]: ...

    async def tally(self) -> Mapping[Status, int]: ...

    async def post(
        self, id: str, via: str, parts: Sequence[api.Part], key: str = "", *, turn: bool = False
    ) -> int: ...

    async def rested(self, id: str) -> None: ...

    def on_turn(self, adopt: Callable[[str, int], None]) -> None:
        """Have it called for each turn that goes on after a start: (session, the message that began it)."""
        ...

    async def retry(self, id: str) -> Status: ...

    async def stop(self, id: str, via: str) -> None: ...

    async def end(self, id: str, via: str) -> None: ...

    async def set_workers(self, id: str, via: str, workers: Sequence[WorkerRef]) -> int: ...

    async def check(self, id: str, model: str = "") -> api.Check: ...

    async def patch_config(self, id: str, via: str, patch: api.ConfigPatch) -> int: ...

    async def log(self, id: str) -> Log: ...

    def live(self, id: str) -> AbstractContextManager[Live]: ...

    def changes(self) -> AbstractContextManager[Changed]: ...

    def workers(self) -> Sequence[api.WorkerInfo]: ...

    async def cordon(self, name: str, cordoned: bool) -> None: ...

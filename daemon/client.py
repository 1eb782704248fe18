"""The API's client: every call, and sessions and the daemon followed through lost connections."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote

import msgspec

from daemon import following
from daemon.asking import ANSWER, PIECE, ApiFailure, Asker, Cut, Unreachable
from daemon.following import Back, Followed, Line, Lost, Pace, Watched
from daemon.protocol import api, framing, records
from daemon.protocol.records import Record, Status, WorkerRef

__all__ = ["ApiFailure", "Back", "Client", "Followed", "Lost", "Unreachable", "Watched"]

FRESH: Final = (
    1.0  # seconds servers have to list their models; one nearby takes a few milliseconds, if it answers
)
PATIENCE: Final = 30.0  # seconds a post whose connection was lost is tried again
JSON: Final = {"Content-Type": records.JSON}

T = TypeVar("T")


class Client:
    """One daemon, at a Unix socket's path, an http(s) URL (with a key) or an ssh one. A context manager.

    `ca`, `fingerprint`: what https trusts, see Asker. Every call raises ApiFailure for a refusal and Unreachable where
    no daemon answers.
    """

    def __init__(
        self,
        where: str | Path,
        key: str = "",
        *,
        ca: str | Path = "",
        fingerprint: str = "",
        first_wait: float = following.FIRST_WAIT,
        longest_wait: float = following.LONGEST_WAIT,
        patience: float = PATIENCE,
        silence: float = following.SILENCE,
    ) -> None:
        self._asker = Asker(where, key, ca, fingerprint)
        self.where = self._asker.where
        self._pace = Pace(first_wait, longest_wait)
        self._line = Line(self._asker, self._pace, silence)
        self._patience = patience

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._asker.close()

    async def sign_in(self) -> None:
        """Where ssh leads to the daemon, open that way now: it may ask the person, and will not later.

        It needs no loop of its own: the client can be used in another one. Raises Unreachable.
        """
        await self._asker.sign_in()

    # ---- calls

    async def version(self) -> api.Version:
        """The daemon's release and the API's version."""
        return await self._call(api.Version, "GET", "/")

    async def create(self, create: api.Create) -> str:
        """Make a session; returns its id."""
        return (await self._call(api.Created, "POST", api.SESSIONS, {}, api.encode(create), JSON)).id

    async def info(self, id: str) -> api.Info:
        """What stands about a session."""
        return await self._call(api.Info, "GET", api.SESSION.format(id=id))

    async def list(
        self, status: Status | None = None, limit: int = 100, after: str = ""
    ) -> Sequence[api.Info]:
        """Sessions, newest updated first; `after` is the last id of the list before."""
        query = (
            {"limit": str(limit)}
            | ({"status": status} if status else {})
            | ({"after": after} if after else {})
        )
        return await self._call(tuple[api.Info, ...], "GET", api.SESSIONS, query)

    async def check(self, id: str, model: str = "") -> api.Check:
        """Whether the session's next request would be accepted, as if it had `model`; nothing is sent."""
        query = {"model": model} if model else {}
        return await self._call(api.Check, "GET", api.CHECK.format(id=id), query)

    async def records(
        self, id: str, after: int = 0, limit: int | None = None, wait: float = 0.0
    ) -> Sequence[Record]:
        """Records after number `after`, checked and whole. `wait`: seconds to wait for one where there is none."""
        return [record async for record in self.stream(id, after, limit, wait)]

    async def stream(
        self, id: str, after: int = 0, limit: int | None = None, wait: float = 0.0
    ) -> AsyncGenerator[Record, None]:
        """As `records`, one by one as they arrive."""
        decoder, n = records.decoder(), after
        query = _range(after, limit) | ({"wait": f"{wait:.3f}"} if wait else {})
        async with self._asker.request(
            "GET", api.RECORDS.format(id=id), query, silence=ANSWER + wait
        ) as answer:
            try:
                async for piece in answer.content.iter_chunked(PIECE):
                    decoder.feed(piece)
                    while (unit := decoder.next()) is not None:
                        header, line, body = unit
                        records.check(line, body)
                        if header.n != (n := n + 1):
                            raise records.BadRecord(f"record {header.n} came where {n} was due")
                        yield Record(header, body, line)
                if decoder.pending:
                    raise records.BadRecord(f"it ends within record {n + 1}")
            except (framing.FramingError, records.BadRecord) as error:
                raise ApiFailure(502, f"the records of session {id} arrived damaged: {error}") from error

    async def headers(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """The records after `after` without their bodies."""
        query = _range(after, limit) | {"bodies": "0"}
        async with self._asker.request("GET", api.RECORDS.format(id=id), query) as answer:
            data = await answer.read()
        try:
            return [Record(records.parse_header(line), b"", line) for line in data.split(b"\n") if line]
        except records.BadRecord as error:
            raise ApiFailure(502, f"the records of session {id} arrived damaged: {error}") from error

    async def post(self, id: str, parts: Sequence[api.Part], via: str, key: str = "") -> int:
        """Append one message per part; returns the last one's number, durable by then.

        A post whose connection is lost is sent again under the same idempotency key (`key`, or one made here) for up
        to the client's patience, so it lands once.
        """
        type, body = (parts[0].type, parts[0].body) if len(parts) == 1 else _multipart(parts)
        headers = {api.IDEMPOTENCY_HEADER: key or uuid.uuid4().hex, "Content-Type": type}
        path, query = api.RECORDS.format(id=id), {"via": via}
        clock = asyncio.get_running_loop().time
        give_up, tries, sent = clock() + self._patience, 0, False
        while True:
            try:
                return (await self._call(api.Posted, "POST", path, query, body, headers)).n
            except Unreachable as error:
                sent = sent or isinstance(error, Cut)
                wait = self._pace.wait(tries)
                if not sent or clock() + wait > give_up:
                    raise
            await asyncio.sleep(wait)
            tries += 1

    async def retry(self, id: str) -> Status:
        """Step a session again; returns its status."""
        return (await self._call(api.Kicked, "POST", api.RETRY.format(id=id))).status

    async def stop(self, id: str, via: str) -> None:
        """Cut the step in work; it is cut when this returns."""
        async with self._asker.request("POST", api.STOP.format(id=id), {"via": via}):
            pass

    async def end(self, id: str, via: str) -> None:
        """End a session for good; it has ended when this returns."""
        async with self._asker.request("POST", api.END.format(id=id), {"via": via}):
            pass

    async def set_workers(self, id: str, workers: Sequence[WorkerRef], via: str) -> int:
        """Give a session other workers; returns the config record's number."""
        path, body = api.WORKERS_OF.format(id=id), api.encode(workers)
        return (await self._call(api.Posted, "PUT", path, {"via": via}, body, JSON)).n

    async def patch_config(self, id: str, patch: api.ConfigPatch, via: str) -> int:
        """Change a session's model, params, context or limits; returns the config record's number."""
        path, body = api.CONFIG.format(id=id), api.encode(patch)
        return (await self._call(api.Posted, "PATCH", path, {"via": via}, body, JSON)).n

    async def workers(self) -> Sequence[api.WorkerInfo]:
        """Every worker the daemon knows."""
        return await self._call(tuple[api.WorkerInfo, ...], "GET", api.WORKERS)

    async def cordon(self, name: str) -> None:
        """Have a worker take no new calls; what runs there goes on. Again is fine."""
        async with self._asker.request("POST", api.CORDON.format(name=quote(name, safe=""))):
            pass

    async def uncordon(self, name: str) -> None:
        """Let a worker take calls again."""
        async with self._asker.request("POST", api.UNCORDON.format(name=quote(name, safe=""))):
            pass

    async def remove_worker(self, name: str) -> None:
        """Put a worker out of the mesh for good; it is out when this returns."""
        async with self._asker.request("DELETE", api.WORKER.format(name=quote(name, safe=""))):
            pass

    async def mesh(self) -> api.MeshInfo:
        """How the mesh stands."""
        return await self._call(api.MeshInfo, "GET", api.MESH)

    async def tokens(self) -> Sequence[api.TokenInfo]:
        """The join tokens, without the tokens themselves."""
        return await self._call(tuple[api.TokenInfo, ...], "GET", api.TOKENS)

    async def make_token(self, new: api.NewToken) -> api.TokenMade:
        """Make a join token; the answer is the only place where it is shown."""
        return await self._call(api.TokenMade, "POST", api.TOKENS, {}, api.encode(new), JSON)

    async def revoke_token(self, id: int) -> None:
        """Revoke a join token; who has joined by it stays."""
        async with self._asker.request("DELETE", api.TOKEN.format(id=id)):
            pass

    async def providers(self, wait: float = FRESH) -> api.Providers:
        """The providers with their models, and the default model.

        `wait`: seconds, at most, for servers to say which models they have; of the others it is what is known.
        """
        return await self._call(api.Providers, "GET", api.PROVIDERS, {"wait": f"{wait:g}"})

    async def models(self) -> Sequence[str]:
        """Names that sessions can have as their model, the best of each provider first."""
        return [model.name for provider in (await self.providers()).providers for model in provider.models]

    async def set_provider(self, name: str, setting: api.ProviderSetting) -> api.ProviderInfo:
        """Set a provider's key, address or kind, for requests that begin from now on."""
        path, body = api.PROVIDER.format(name=quote(name, safe="")), api.encode(setting)
        return await self._call(api.ProviderInfo, "PUT", path, {}, body, JSON)

    async def test_provider(self, name: str, model: str = "") -> api.Tested:
        """Have the daemon send a provider one small request; takes `api.TEST_LIMIT` seconds at most."""
        path, body = api.PROVIDER_TEST.format(name=quote(name, safe="")), api.encode(api.ProviderTest(model))
        return await self._call(api.Tested, "POST", path, {}, body, JSON, ANSWER + api.TEST_LIMIT)

    async def scan(self, ports: Sequence[int] = ()) -> Sequence[api.Found]:
        """The servers of models at these ports of the daemon's machine; none are the usual ones."""
        body = api.encode(api.Scan(tuple(ports)))
        return await self._call(tuple[api.Found, ...], "POST", api.SCAN, {}, body, JSON)

    async def keys(self) -> Sequence[api.KeyInfo]:
        """The API keys, without the keys themselves."""
        return await self._call(tuple[api.KeyInfo, ...], "GET", api.KEYS)

    async def make_key(self, name: str, role: api.Role) -> api.KeyMade:
        """Make an API key; the answer is the only place where it is shown."""
        body = msgspec.json.encode({"name": name, "role": role})
        return await self._call(api.KeyMade, "POST", api.KEYS, {}, body, JSON)

    async def revoke_key(self, name: str) -> None:
        """Revoke an API key; its open streams end."""
        async with self._asker.request("DELETE", api.KEY.format(name=quote(name, safe=""))):
            pass

    # ---- following

    def follow(self, id: str, after: int = 0, deltas: bool = False) -> AsyncGenerator[Followed, None]:
        """Records after number `after`, each once and in order, as they come; reconnects by number for ever.

        With `deltas` also live pieces. Lost and Back tell of the connection. A record whose body is neither text
        nor JSON comes without it: `records(id, n - 1, 1)` has it. Raises ApiFailure when the session cannot be
        read. Close it, or cancel who reads it, to end it.
        """
        return self._line.session(id, after, deltas)

    def events(self, first: int = api.FIRST) -> AsyncGenerator[Watched, None]:
        """The daemon's events: a State with the `first` sessions updated last and the workers, then each session as
        it changes and the workers as they come and go; reconnects for ever.

        After a lost connection there is a State again: sessions that changed meanwhile are among its first, and who
        keeps more of them lists them anew. Raises ApiFailure. Close it, or cancel who reads it, to end it.
        """
        return self._line.daemon(first)

    # ---- one request

    async def _call(
        self,
        type: type[T],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float = ANSWER,
    ) -> T:
        async with self._asker.request(method, path, query, body, headers, silence) as answer:
            data = await answer.read()
        try:
            return msgspec.json.decode(data, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiFailure(502, f"{self.where} gave an answer that is not the daemon's: {error}") from error


def _range(after: int, limit: int | None) -> dict[str, str]:
    return {"after": str(after)} | ({} if limit is None else {"limit": str(limit)})


def _multipart(parts: Sequence[api.Part]) -> tuple[str, bytes]:
    """(media type, body) of several parts."""
    boundary = uuid.uuid4().hex
    body = b"".join(
        b"--%b\r\nContent-Type: %b\r\n\r\n%b\r\n" % (boundary.encode(), part.type.encode("ascii"), part.body)
        for part in parts
    )
    return f"multipart/mixed; boundary={boundary}", body + f"--{boundary}--\r\n".encode()

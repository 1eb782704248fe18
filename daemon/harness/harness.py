"""The harness: sessions made, posted to, stepped, stopped and told about; the only one that appends records."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from daemon.definition.agent import Agent
from daemon.harness import configs, costs, fresh, limits, posts, resuming, sweeping
from daemon.harness.census import Census
from daemon.harness.changes import WORKERS, Changed
from daemon.harness.checking import Checker
from daemon.harness.copies import Copies
from daemon.harness.counts import Counts
from daemon.harness.environments import DROPPED, ENDED, FILE, Environments
from daemon.harness.errors import (
    Conflict,
    Ended,
    HarnessError,
    NoSpace,
    NotFound,
    Unready,
    translated,
)
from daemon.harness.live import Live
from daemon.harness.queue import Queue
from daemon.harness.runner import NEEDS_STEP, Runner
from daemon.harness.session import Session
from daemon.harness.sessions import Sessions
from daemon.harness.step import Models, Stepper
from daemon.harness.stopping import end_calls_on
from daemon.ownfile import OwnFileError
from daemon.pool import Pool
from daemon.protocol import api
from daemon.protocol.dialing import LOCAL
from daemon.protocol.records import Config, Status, WorkerRef, draft, json_draft
from daemon.statefile.interface import SessionLog, SessionStore

PATIENCE: Final = 10.0  # seconds a start waits for changed files to be read; the rest is read while it serves

log = structlog.get_logger()


class Harness:
    """All sessions of one data folder. Its tasks live in `group`; cancelling that is shutting down."""

    def __init__(
        self,
        *,
        store: SessionStore,
        pool: Pool,
        models: Models,
        http: aiohttp.ClientSession | None,
        release: str,
        clock: Callable[[], datetime],
        group: asyncio.TaskGroup,
        counts: Counts | None = None,
        data: Path | None = None,
        agents: Mapping[str, Agent] | None = None,
        max_steps: int = 0,
    ) -> None:
        self._store = store
        self._pool = pool
        self._models = models
        self.agents = agents or {}
        self.census = Census()
        self._group = group
        self._counts = counts or Counts()
        self._environments = Environments(pool, group, clock, data / FILE if data else None)
        cost = costs.of(models)
        self._sessions = Sessions(store, release, self._counts, cost)
        self._runner = Runner(
            stepper=Stepper(
                pool=pool,
                models=models,
                http=http,
                group=group,
                release=release,
                clock=clock,
                counts=self._counts,
                environments=self._environments,
                cost=cost,
                listed=self._copy_to_workers,
            ),
            queue=Queue(max_steps),
            pool=pool,
            group=group,
            started=clock(),
            began=self._sessions.changes.put,
            paused=self._copy_to_workers,
            rested=self._rested,
        )
        self._copies = Copies(pool, group, self._sessions.log)
        self._checker = Checker(models, partial(limits.reached, cost=cost))
        self._clock = clock
        self.ready = False
        self._resumed = False
        self._turns: dict[str, int] = {}  # that go on after the start, and nobody has asked for
        self._on_turn: Callable[[str, int], None] = self._turns.__setitem__

    async def create(self, create: api.Create, surface: str = "", named: Collection[str] = ()) -> str:
        """Make a session and return its id. `surface`: of the API it is made on; `named`: fields that a request has.

        Raises Invalid, NotFound (of `from`), NoSpace.
        """
        fresh.check(create, named)
        if create.from_:
            return await self._copy(create)
        config, drafts = fresh.session(create, surface, self.agents, self._models, named)
        with translated():
            id, made = await self._store.create(*drafts)
            self._sessions.made(made, await made.read())
        self._counts.written(made.n, made.span(0)[1])
        self.census.made(id, config, self._clock())
        return id

    async def info(self, id: str) -> api.Info:
        """What stands about a session. Raises NotFound."""
        return await self._sessions.info(id)

    async def list(
        self, status: Status | None = None, limit: int = 100, after: str = ""
    ) -> Sequence[api.Info]:
        """Sessions, newest updated first. Raises Malformed for an unknown `after`."""
        return await self._sessions.list(status, limit, after)

    async def tally(self) -> Mapping[Status, int]:
        """How many sessions are in each status."""
        return await self._sessions.tally()

    async def post(
        self, id: str, via: str, parts: Sequence[api.Part], key: str = "", *, turn: bool = False
    ) -> int:
        """Append one message per part and kick the session once; returns the last one's number, durable by then.

        With `key`, the same key and parts again append nothing and return the first post's number. `turn`: it
        begins a turn of the agent-server surface, which a session that is stepping cannot (Conflict).
        Raises NotFound, Malformed, Conflict, Ended, TooLarge, Unsupported, NoSpace, Unready.
        """
        posts.check_name("via", via)
        if key:
            posts.check_name(api.IDEMPOTENCY_HEADER, key)
        posts.check_parts(parts)
        session = await self._sessions.get(id)
        with translated():
            async with session.posting:
                last = session.chain.posts.get(key) if key else None
                if last is None:
                    self._check_writable(session)
                    if turn and session.stepping:
                        raise Conflict(
                            f"session {id} is busy: a turn is running; wait for its end, or stop it"
                        )
                    drafts = [
                        draft("message", part.body, part.type, via=via, idempotency_key=key, turn=turn)
                        for part in parts
                    ]
                    last = (await session.append(*drafts, durable=False))[-1].n
                    self._counts.posts += 1
                    self._runner.kick(session, turn)
                else:
                    await posts.check_same(session, last, key, parts)
            await session.log.sync()
        return last

    async def rested(self, id: str) -> None:
        """Return once nobody steps the session. Raises NotFound."""
        session = await self._sessions.get(id)
        while (runner := session.runner) is not None:
            await asyncio.wait({runner})

    async def retry(self, id: str) -> Status:
        """Kick from the tip and permit one step of a failed session. Raises NotFound, Ended, Conflict, Unready."""
        session = await self._sessions.get(id)
        async with session.posting:
            self._check_writable(session)
            session.permit = True
            self._runner.kick(session)
            return self._sessions.describe(session).status

    async def stop(self, id: str, via: str) -> None:
        """Cut the step; returns when every call has a result and an error record names `via`, within 10 s.

        Raises NotFound, Conflict when the session is not stepping, and NoSpace when it was stopped and the file did
        not take the records that say so.
        """
        posts.check_name("via", via)
        session = await self._sessions.get(id)
        await self._runner.stop(session, via)

    async def end(self, id: str, via: str) -> None:
        """End a session for good: a running step is stopped first, its environments are ended on their workers.

        Raises NotFound, Ended, Conflict (damaged), NoSpace.
        """
        posts.check_name("via", via)
        session = await self._sessions.get(id)
        self._check_writable(session)
        with translated():
            async with session.posting:
                self._check_writable(session)
                await self._finish(session, via, "ended")
        self._over(session)

    async def sweep(self) -> None:
        """End for good every session that has been idle past its `limits.ttl`."""
        await sweeping.sweep(
            self._sessions, self.census, self._clock(), self._check_writable, self._finish, self._over
        )

    async def _finish(self, session: Session, via: str, reason: str) -> None:
        """Append its end; under `posting`. Nobody begins to step it meanwhile, so the end is its last record."""
        session.ending, session.kicked = True, False
        try:
            if session.stepping:
                await self._runner.stop(session, via)
            await session.append(draft("end", via=via, reason=reason))
        finally:
            session.ending = False
            if session.kicked and session.chain.status in NEEDS_STEP:
                self._runner.kick(session)  # it could not end

    def _over(self, session: Session) -> None:
        """It has ended: its workers are told, its environments go."""
        self.census.saw(self._sessions.describe(session))
        self._copy_to_workers(session)
        for ref in session.config.workers:
            self._environments.end(ref.name, session.id, ENDED)

    async def set_workers(self, id: str, via: str, workers: Sequence[WorkerRef]) -> int:
        """Give a session other workers; returns the config record's number.

        What runs on a worker that is dropped is ended, with its environments; this does not wait for it. Raises
        NotFound, Malformed, Invalid, Ended, Conflict (damaged), NoSpace.
        """
        configs.check_workers(workers)
        before, n = await self._configure(id, via, lambda config: configs.with_workers(config, workers))
        for ref in before.workers:
            if ref.name not in {kept.name for kept in workers}:
                self._environments.mark(ref.name, id, DROPPED)
                self._group.create_task(self._drop(id, ref.name), name=f"drop {ref.name} of {id}")
        return n

    async def patch_config(self, id: str, via: str, patch: api.ConfigPatch) -> int:
        """Change model, params, tools, input, context or limits by a merge patch; returns the config record's number.

        Raises NotFound, Malformed, Invalid, Ended, Conflict (damaged), NoSpace.
        """
        _, n = await self._configure(id, via, lambda config: configs.patched(config, patch, self._models))
        return n

    async def check(self, id: str, model: str = "") -> api.Check:
        """Whether the next request would be accepted, by the session's model or another; nothing is sent or written.

        Raises NotFound, Invalid (a model that is not served), Unready.
        """
        return await self._checker.check(await self._sessions.get(id), model)

    async def log(self, id: str) -> SessionLog:
        """The session's log, to read from. Raises NotFound."""
        return await self._sessions.log(id)

    def live(self, id: str) -> AbstractContextManager[Live]:
        """What streams past in a session, for as long as the context is open."""
        return self._sessions.readers(id).read()

    def changes(self) -> AbstractContextManager[Changed]:
        """Which sessions change, and when workers come and go, for as long as the context is open."""
        return self._sessions.changes.read()

    def workers_changed(self) -> None:
        """Called by who owns the pool, when a worker comes or goes."""
        self._sessions.changes.put(WORKERS)
        self._copies.workers_changed()

    def workers(self) -> Sequence[api.WorkerInfo]:
        """Every worker known to the pool."""
        return self._pool.list()

    async def cordon(self, name: str, cordoned: bool) -> None:
        """Have a worker take nothing new from now on, or take it again. Raises NotFound, NoSpace."""
        if name != LOCAL and not self._pool.knows(name):
            raise NotFound(
                f"there is no worker {name}: none of that name has joined, or dialed since the daemon started; "
                "`outrider workers` lists those there are"
            )
        try:
            await self._pool.cordon(name, cordoned)
        except OwnFileError as error:
            raise NoSpace(f"nothing was changed: {error}") from error

    def hold(self) -> None:
        """Begin with no session from now on: what is posted is kept, and stepped by the next start. What is stepped
        goes on, and so does a turn that was let in before.
        """
        self._runner.held = True

    @property
    def resumed(self) -> bool:
        """Whether each session that needs a step is stepped: the start has kicked them all, and nothing is held."""
        return self._resumed and not self._runner.held

    async def resume(self) -> None:
        """Kick every session that needs a step; a failed one waits for a retry or a message.

        Returns when all are kicked, or when PATIENCE is over; it then goes on beside what else is done.
        """
        await self._environments.start()
        looking = self._group.create_task(self._look(), name="look at the sessions")
        self._group.create_task(resuming.count(self._sessions, self.census), name="count the sessions")
        await asyncio.wait({looking}, timeout=PATIENCE)
        self._sessions.looked.set()

    async def _look(self) -> None:
        await resuming.look(self._sessions, NEEDS_STEP, self._go_on, self._serve)
        self._resumed = True

    def _go_on(self, session: Session) -> None:
        self._runner.kick(session)
        if session.turn and session.stepping:
            self._on_turn(session.id, session.turn)

    def on_turn(self, adopt: Callable[[str, int], None]) -> None:
        """Have `adopt` called for each turn that goes on after the start, also for those that do already: with the
        session's id and the message that began it.
        """
        self._on_turn = adopt
        while self._turns:
            adopt(*self._turns.popitem())

    def _serve(self) -> None:
        self.ready = True

    async def close(self) -> None:
        """Let go of everything that runs. No stop: what is in flight goes on at the next start."""
        self.ready = False
        await self._copies.close()
        tasks = self._sessions.tasks()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._environments.close()
        await self._sessions.close()

    def _rested(self, session: Session) -> None:
        self._sessions.rest(session)
        self.census.saw(self._sessions.describe(session))

    def _copy_to_workers(self, session: Session) -> None:
        self._copies.update(session.id, [ref.name for ref in session.config.workers])

    def _check_writable(self, session: Session) -> None:
        if not self.ready:
            raise Unready("the daemon is starting; try again in a moment")
        if session.chain.status in ("ended", "expired"):
            raise Ended(f"session {session.id} has {session.chain.status}; a copy of it can go on")
        if (damage := session.damage) is not None:
            raise Conflict(
                f"session {session.id} is damaged at record {damage.n}, byte {damage.offset} ({damage.reason}); "
                f"{damage.way_on}"
            )

    async def _configure(self, id: str, via: str, change: Callable[[Config], Config]) -> tuple[Config, int]:
        """Append a changed config; the one before it, and the new record's number."""
        posts.check_name("via", via)
        session = await self._sessions.get(id)
        self._check_writable(session)
        with translated():
            async with session.posting:  # two changes at once: the second is made to what the first left
                self._check_writable(session)
                before = session.config
                after = change(before)
                configs.check(after, self._models)
                (stored,) = await session.append(json_draft("config", after, via=via))
        self.census.saw(self._sessions.describe(session))
        return before, stored.n

    async def _drop(self, id: str, worker: str) -> None:
        """End what a session has on a worker that it no longer has."""
        try:
            await end_calls_on(await self._sessions.get(id), self._pool, worker, DROPPED)
        except HarnessError as error:
            log.error("calls on a dropped worker not ended", session=id, worker=worker, why=str(error))
        self._environments.tell(worker, id)

    async def _copy(self, create: api.Create) -> str:
        source = await self._sessions.log(create.from_)
        with translated():
            id = await self._store.copy(create.from_, create.n or source.durable_n + 1)
        self._sessions.touch(id)
        return id

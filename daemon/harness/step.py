"""Step a session once: settle what is unsettled, ask the model, append what comes back, carry out its calls."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Final, Protocol, assert_never

import aiohttp
import structlog

from daemon.harness import agents, limits, prompt, tools
from daemon.harness.carrying import Carrier
from daemon.harness.counts import Counts
from daemon.harness.environments import Environments
from daemon.harness.session import Session
from daemon.pool import Pool
from daemon.protocol import api, records
from daemon.protocol.records import Config, Record, Status, draft, error_draft
from daemon.provider import prices
from daemon.provider.base import (
    Block,
    Delta,
    End,
    Model,
    Outcome,
    Provider,
    ProviderError,
    Query,
    Request,
    Retry,
)
from daemon.provider.compiling import compiled
from daemon.provider.http import stream

ABNORMAL: Final[dict[End, str]] = {
    "length": "the answer was cut at the output limit; post a message to go on, or raise max_tokens in params",
    "refusal": "the model refused to answer; post another message to go on",
    "filter": "the provider's content filter ended the answer; post another message to go on",
    "context": "the model's context is full; fork the session earlier or start a new one",
    "paused": "the provider paused in the middle of the answer; retry to let it go on",
}
MAX_ID: Final = 256  # characters of a call's id that is kept: a record's header holds it, and results name it
MAX_STOP: Final = 1000  # characters of why a model stopped
PAUSES: Final = 10  # times that an answer may pause and is asked to go on
REFUSED: Final[frozenset[End]] = frozenset({"refusal", "filter"})
EMPTY: Final = "the model answered with nothing; post a message or retry to go on"

log = structlog.get_logger()


class Models(Protocol):
    """Finds who serves a `provider/model` (raises ProviderError that lists what is served); names the default."""

    def resolve(self, name: str) -> tuple[Provider, Model]: ...

    def default(self) -> str: ...


class Stepper:
    """Steps sessions with the providers and workers it was given; keeps nothing about a session itself.

    `listed` is called where a session with a past is told of its workers anew: on each it has a file of its own.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        models: Models,
        http: aiohttp.ClientSession | None,
        group: asyncio.TaskGroup,
        release: str,
        clock: Callable[[], datetime],
        counts: Counts,
        environments: Environments,
        cost: prices.Costs = prices.unknown,
        listed: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self._cost = cost
        self._listed = listed
        self._pool = pool
        self._models = models
        self._http = http
        self._release = release
        self._clock = clock
        self._counts = counts
        self._calls = Carrier(pool, group, clock, counts, environments)

    async def step(self, session: Session) -> Status:
        """One cycle; returns the status after it.

        Interrupted: each call without a result is settled with its worker, which gives the real result where it
        knows one, and the next cycle goes on. Otherwise the model is asked, unless a limit is reached: then an error
        says so and nothing is called. What the model said, and an error about it, are durable before any of it is
        acted on. An answer that paused leaves the session open, so the next cycle lets it go on.
        """
        chain = session.chain
        if chain.orphans:
            await self._calls.settle(session, chain.orphans)
            return chain.status
        try:
            config = session.config
            provider, model = self._models.resolve(config.model)
            await self._introduce(session, config)
            if over := limits.reached(chain, config, model, self._cost):
                raise ProviderError(over, code=limits.code(chain, config, model))
            await self._ask(session, config, provider, model)
        except ProviderError as error:
            self._tell(session, error)
            await session.append(error_draft(error.code, error.message, sent=session.take_sent()))
            return chain.status
        if chain.orphans and chain.status != "failed":
            await self._calls.run(session, chain.orphans)
        return chain.status

    async def _ask(self, session: Session, config: Config, provider: Provider, model: Model) -> None:
        """Send the context, append each block as it completes, close them with the step record."""
        context = session.chain.context()
        try:
            offered = tools.offered(config.tools)
        except ValueError as error:  # a tool of another release
            raise ProviderError(str(error), code="tools") from error
        query = Query(model, context, offered, config.params, session.id)
        request = await compiled(provider, query, session.wire)
        session.sent = records.stamp(self._clock())
        step_id, blocks, outcome, broken = await self._receive(session, provider, request)
        closing = draft(
            "step",
            id=step_id,
            provider=provider.name,
            upto=context.upto,
            model=model.name,
            harness=self._release,
            request=sha256(request.body).hexdigest(),
            sent=session.sent,
            usage=outcome.usage,
            cache=request.marks,
            stop=records.mend(outcome.stop)[:MAX_STOP],
            paused=outcome.end == "paused",
            broken=broken,
        )
        await session.append(closing, *_about(session, outcome, blocks))
        self._counts.step(provider.name, outcome.usage)

    async def _receive(
        self, session: Session, provider: Provider, request: Request
    ) -> tuple[str, Sequence[Record], Outcome, int]:
        """The step's id, the blocks that count, each appended as it completed, how the answer ended, and how many
        answers broke off before it.

        Where a try broke off, the next one has a new id: what came before stays unclosed and never counts.
        """
        step_id, blocks, broken = secrets.token_hex(8), list[Record](), 0
        outcome: Outcome | None = None
        sending = partial(self._counts.trying, provider.name)
        async with aclosing(stream(provider, request, session=self._http, sending=sending)) as events:
            async for event in events:
                match event:
                    case Delta():
                        piece = api.Delta(event.kind, event.text, event.block, name=event.name, step=step_id)
                        session.live.put(piece)
                    case Block():
                        block = _block(session, event, step_id, len(blocks), provider.name)
                        blocks += await session.append(block, durable=False)
                    case Retry():
                        log.warning(
                            "provider retry",
                            session=session.id,
                            model=session.config.model,
                            attempt=event.attempt,
                            wait=round(event.wait, 1),
                            why=event.why,
                        )
                        session.live.put(api.RetryEvent(event.why, event.wait, event.attempt))
                        if event.restart:
                            session.live.put(api.Restart())
                            step_id, blocks, broken = secrets.token_hex(8), [], broken + 1
                    case Outcome():
                        outcome = event
                    case _:
                        assert_never(event)
        if outcome is None:
            raise ProviderError("the provider's answer had no end", code="provider")
        return step_id, blocks, outcome, broken

    def _tell(self, session: Session, error: ProviderError) -> None:
        """A step came to nothing: for the log and the counts."""
        model = session.config.model
        self._counts.failures[model.partition("/")[0], error.code] += 1
        log.warning(
            "step failed",
            session=session.id,
            model=model,
            code=error.code,
            status=error.status,
            why=error.message,
        )

    async def _introduce(self, session: Session, config: Config) -> None:
        """Before a step: the AGENTS.md files of workers that are here, or have this folder, for the first time, and the
        list of workers when it has changed. Both are appended, so that what was sent before stays as it was.
        """
        chain, hello = session.chain, self._pool.hello
        here = {
            ref.name: said
            for ref in config.workers
            if (said := hello(ref.name)) is not None and not self._pool.cordoned(ref.name)
        }
        new = [
            ref
            for ref in config.workers
            if agents.place(ref) not in chain.workers_looked
            and ref.name in here
            and session.tried.get(agents.place(ref)) is not here[ref.name]
        ]
        found, looked = await agents.scan(self._pool, new, chain.rules)
        session.tried |= {agents.place(ref): here[ref.name] for ref in new if agents.place(ref) not in looked}
        shown = prompt.workers(config.workers, hello, self._pool.cordoned, session.id)
        if looked or shown != chain.workers_shown:
            listed = draft("system", shown, source="workers", looked=tuple(looked))
            await session.append(*found, listed, durable=False)
            if chain.steps:
                self._listed(session)


def _block(session: Session, block: Block, step_id: str, number: int, provider: str) -> Record:
    """A block as a record; a call keeps a provider's id that is short and not another call's in the session."""
    id = "" if block.id in session.chain.call_ids or len(block.id) > MAX_ID else block.id
    signed = "" if block.kind == "text" and block.type == records.TEXT else provider
    return draft(block.kind, block.body, block.type, id=id, step=step_id, block=number, provider=signed)


def _about(session: Session, outcome: Outcome, blocks: Sequence[Record]) -> list[Record]:
    """What is written with the step record when the answer is not a finished one: an error that names why.

    Calls in front of a cut are whole and are carried out; those of an answer that was refused or filtered are not.
    """
    calls = [block for block in blocks if block.kind == "call"]
    if outcome.end == "paused" and session.chain.pauses < PAUSES:
        return []
    if calls and outcome.end not in REFUSED:
        return []
    said = any(block.kind == "text" and block.text().strip() for block in blocks)
    answered = said or (session.chain.pauses > 0 and session.chain.answered)
    why = ABNORMAL.get(outcome.end, "") or ("" if answered else EMPTY)
    if not why:
        return []
    why = f"{why} ({outcome.detail[:MAX_STOP]})" if outcome.detail else why
    undone = [draft("result", f"not carried out: {why}", for_=call.id, failed=True) for call in calls]
    return [*undone, error_draft(outcome.end, why)]

"""Step a session once: settle what is unsettled, ask the model, append what comes back, carry out its calls."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from hashlib import sha256
from typing import Final, Protocol, assert_never

import aiohttp
import structlog

from daemon.chain import Context
from daemon.harness import agents, prompt, tools
from daemon.harness.calls import Calls
from daemon.harness.counts import Counts
from daemon.harness.session import Session
from daemon.pool import Pool
from daemon.protocol import api, records
from daemon.protocol.records import Config, Record, Status, draft, error_draft
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
PAUSES: Final = 10  # times that an answer may pause and is asked to go on
EMPTY: Final = "the model answered with nothing; post a message or retry to go on"

log = structlog.get_logger()


class Models(Protocol):
    """Finds who serves a `provider/model` (raises ProviderError that lists what is served); names the default."""

    def resolve(self, name: str) -> tuple[Provider, Model]: ...

    def default(self) -> str: ...


class Stepper:
    """Steps sessions with the providers and workers it was given; keeps nothing about a session itself."""

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
    ) -> None:
        self._pool = pool
        self._models = models
        self._http = http
        self._group = group
        self._release = release
        self._clock = clock
        self._counts = counts
        self._calls = Calls(pool)

    async def step(self, session: Session) -> Status:
        """One cycle; returns the status after it.

        Interrupted: each call without a result is settled with its worker, which gives the real result where it
        knows one, and the next cycle goes on. Otherwise the model is asked, unless a limit is reached: then an error
        says so and nothing is called. Everything the model said is durable before any of it is acted on.
        """
        chain = session.chain
        if chain.orphans:
            await self._carry_out(session, chain.orphans, resumed=True)
            return chain.status
        await self._introduce(session)
        config, context = _config(session), chain.context()
        try:
            provider, model = self._models.resolve(config.model)
            if over := self._over(session, config, model):
                raise ProviderError(over, code="limit")
            calls, outcome = await self._ask(session, provider, model, config, context)
            for _ in range(PAUSES):
                if calls or outcome.end != "paused":
                    break
                calls, outcome = await self._ask(session, provider, model, config, chain.context())
        except ProviderError as error:
            await session.append(error_draft(error.code, error.message))
            return chain.status
        if calls:
            await self._carry_out(session, calls, resumed=False)
        elif word := _abnormal(session, outcome):
            await session.append(error_draft(outcome.end, word))
        return chain.status

    async def _ask(
        self, session: Session, provider: Provider, model: Model, config: Config, context: Context
    ) -> tuple[Sequence[Record], Outcome]:
        """Send the context, append each block as it completes, close them with the step record."""
        query = Query(model, context, tools.offered(config.tools), config.params, session.id)
        request = await compiled(provider, query, session.wire)
        sent = self._clock()
        step, blocks, outcome = await self._receive(session, provider, request)
        closing = draft(
            "step",
            id=step,
            provider=provider.name,
            upto=context.upto,
            model=model.name,
            harness=self._release,
            request=sha256(request.body).hexdigest(),
            sent=_stamp(sent),
            usage=outcome.usage,
            cache=request.marks,
            stop=outcome.stop,
        )
        await session.append(closing)
        self._counts.step(provider.name, outcome.usage)
        return [block for block in blocks if block.kind == "call"], outcome

    async def _receive(
        self, session: Session, provider: Provider, request: Request
    ) -> tuple[str, Sequence[Record], Outcome]:
        """Append each block of the answer as it completes: the step's id, those that count, how it ended.

        Where a try broke off, the next one has a new id: what came before stays unclosed and never counts.
        """
        step, blocks = secrets.token_hex(8), list[Record]()
        outcome: Outcome | None = None
        self._counts.tries[provider.name] += 1
        async with aclosing(stream(provider, request, session=self._http)) as events:
            async for event in events:
                match event:
                    case Delta():
                        session.live.put(api.Delta(event.kind, event.text, event.block, name=event.name))
                    case Block():
                        block = self._block(session, event, step, provider.name, blocks)
                        blocks += await session.append(block, durable=False)
                    case Retry():
                        self._counts.tries[provider.name] += 1
                        self._counts.retries[provider.name] += 1
                        log.warning("provider retry", session=session.id, why=event.why, wait=event.wait)
                        session.live.put(api.RetryEvent(event.why, event.wait, event.attempt))
                        if event.restart:
                            session.live.put(api.Restart())
                            step, blocks = secrets.token_hex(8), []
                    case Outcome():
                        outcome = event
                    case _:
                        assert_never(event)
        if outcome is None:
            raise ProviderError("the provider's answer had no end", code="provider")
        return step, blocks, outcome

    def _block(
        self, session: Session, block: Block, step: str, provider: str, before: Sequence[Record]
    ) -> Record:
        """A block as a record; a call keeps the provider's id where the session has no other call of that id."""
        taken = block.id in session.chain.call_ids or any(record.id == block.id for record in before)
        id = "" if taken else block.id
        signed = provider if block.kind == "thinking" or block.type != records.TEXT else ""
        return draft(block.kind, block.body, block.type, id=id, step=step, provider=signed)

    async def _carry_out(self, session: Session, calls: Sequence[Record], *, resumed: bool) -> None:
        """Carry out calls side by side, each result appended as it comes. Cancelled, the calls go on."""
        now = self._clock()
        for call in calls:
            if call.id not in session.calls:
                age = (now - datetime.fromisoformat(call.header.time)).total_seconds() if resumed else None
                session.calls[call.id] = self._group.create_task(
                    self._carry_out_one(session, call, age), name=f"call {session.id} {call.id}"
                )
        tasks = [session.calls[call.id] for call in calls if call.id in session.calls]
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.result()) is not None:
                raise error

    async def _carry_out_one(self, session: Session, call: Record, age: float | None) -> Exception | None:
        def show(chunk: bytes) -> None:
            session.live.put(api.Delta("output", chunk.decode("utf-8", "replace"), call=call.id))

        try:
            result = await self._calls.perform(session.id, _config(session), call, age=age, on_output=show)
            await session.append(result)
            self._counts.calls[result.header.failed] += 1
            if result.header.worker:
                self._pool.ack(result.header.worker, session.id, call.id)
        except Exception as error:  # noqa: BLE001 - told to the pass that waits for it; the daemon goes on
            return error
        finally:
            session.calls.pop(call.id, None)
        return None

    async def _introduce(self, session: Session) -> None:
        """Before the first step the AGENTS.md files; before any step the workers, when the list has changed."""
        config = _config(session)
        found: list[Record] = []
        if session.chain.steps == 0 and not session.chain.workers_shown:
            found = await agents.scan(self._pool, config.workers)
        shown = prompt.workers(config.workers, self._pool.hello)
        if shown != session.chain.workers_shown:
            await session.append(*found, draft("system", shown, source="workers"), durable=False)

    def _over(self, session: Session, config: Config, model: Model) -> str:
        """Why no further request may be sent, empty when one may."""
        chain, limits = session.chain, config.limits
        limit = config.context or model.context
        need = chain.prompt + chain.answer + chain.pending_tokens
        if limit and need > limit:
            return f"past the context limit: the next request would hold about {need} tokens of {limit}"
        if limits.steps and chain.steps >= limits.steps:
            return f"limits.steps is reached: {chain.steps} of {limits.steps} steps"
        used = chain.usage.prompt + chain.usage.output
        if limits.tokens and used >= limits.tokens:
            return f"limits.tokens is reached: {used} of {limits.tokens} tokens"
        seconds = (self._clock() - datetime.fromisoformat(chain.created)).total_seconds()
        if limits.seconds and seconds >= limits.seconds:
            return f"limits.seconds is reached: {seconds:.0f} of {limits.seconds:g} s"
        return ""


def _abnormal(session: Session, outcome: Outcome) -> str:
    """Why an answer without a call is not a finished one, empty when it is."""
    word = ABNORMAL.get(outcome.end, "") or ("" if session.chain.answered else EMPTY)
    return f"{word} ({outcome.detail})" if word and outcome.detail else word


def _config(session: Session) -> Config:
    config = session.chain.config
    if config is None:
        raise records.BadRecord(f"session {session.id} has no config record")
    return config


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

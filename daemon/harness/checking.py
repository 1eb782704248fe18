"""Say whether a session's next request would be accepted, and what it says otherwise than the records: send nothing."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Final

from msgspec import structs

from daemon.chain import NO_RESULT, Chain
from daemon.harness import configs, limits, tools
from daemon.harness.errors import translated
from daemon.harness.session import Session
from daemon.harness.step import Models
from daemon.harness.tracing import Source, Traced
from daemon.protocol import api, records
from daemon.protocol.records import Config, Record, Status
from daemon.provider import differences
from daemon.provider.base import Model, Provider, ProviderError, Query, Wire
from daemon.turns import Call, Result

NO_MESSAGE: Final = "nothing was posted yet: what is posted first takes the place of the request's last turn"
ANSWERED: Final = "all is answered: what is posted next takes the place of the request's last turn"
STEPPING: Final = "a step is under way: this is what the records say by now"
UNSETTLED: Final = "some calls have no result yet: a step asks their workers for it before it sends anything"
FAILED: Final = "the session has failed: it goes on after a message or a retry"
NO_MODEL: Final = "the session has no model"


Reached = Callable[[Chain, Config, Model], str]
"""What names the limit that a session has reached, see `limits.reached`."""


class Checker:
    """Checks sessions with the providers that steps have; like those it keeps nothing about a session."""

    def __init__(self, models: Models, reached: Reached) -> None:
        self._models = models
        self._reached = reached

    async def check(self, session: Session, model: str = "") -> api.Check:
        """The request that follows the records as they are now; off the loop, and apart from any step's own.

        Raises Invalid for a `model` that is not served, Unready where the file cannot be read.
        """
        config = session.config
        if model:
            config = configs.with_model(config, model, self._models)
        status: Status = "stepping" if session.stepping else session.chain.status
        damage = session.damage
        why = _ended(session.id, status)
        if damage is not None:
            status = "damaged"
            why = f"the file is damaged at record {damage.n} ({damage.reason}): {damage.way_on}"
        with translated():
            found = await session.log.read()
        return await asyncio.to_thread(self._checked, session, found, config, status, why)

    def _checked(
        self, session: Session, found: Sequence[Record], config: Config, status: Status, why: str
    ) -> api.Check:
        chain = Traced.of(found, session.chain)
        made = api.Check(session.id, status, config.model, False, chain.n, notes=tuple(_notes(chain, status)))
        try:
            if not config.model:
                raise ProviderError("" if status == "damaged" else NO_MODEL)
            provider, model = self._models.resolve(config.model)
            offered = tools.offered(config.tools)
        except (ProviderError, ValueError) as error:
            return structs.replace(made, why=tuple(filter(None, (why, str(error)))))
        against = [why, self._reached(chain, config, model)]
        if wrong := provider.check_params(config.params):
            against.append(f"params: {wrong}")
        query = Query(model, chain.context(), offered, config.params, session.id)
        made = structs.replace(made, why=tuple(filter(None, against)))
        return _compared(made, chain, config, provider, query, found)


def _compared(
    made: api.Check, chain: Traced, config: Config, provider: Provider, query: Query, found: Sequence[Record]
) -> api.Check:
    """The answer with all that a look at the request gives."""
    wire = Wire()
    request = provider.compile(query, wire)
    problems = provider.problems(request)
    sources = chain.sources()
    parts = [(source.turn, source.part) for source in sources]
    sent = differences.find(provider, query, request, parts, wire.left_out)
    repairs = [api.Repair(what, sources[at].n) for at, what in sent.differences]
    repairs += [*_answered(sources), *_unreadable(sources, found), *_left_out(chain)]
    return structs.replace(
        made,
        accepted=not problems and not made.why,
        problems=tuple(problems),
        repairs=tuple(sorted(repairs, key=lambda repair: repair.n)),
        turns=len(query.context.settled) + 1,
        tokens=limits.estimated(chain),
        context=_context(config, query.model),
        bytes=len(request.body),
        images=sent.images,
        marks=len(request.marks),
        request=sha256(request.body).hexdigest(),
    )


def _context(config: Config, model: Model) -> int:
    return config.context or model.context


def _ended(id: str, status: Status) -> str:
    return f"session {id} has {status}: a copy of it can go on" if status in ("ended", "expired") else ""


def _notes(chain: Traced, status: Status) -> Iterator[str]:
    if status == "stepping":
        yield STEPPING
    elif status == "failed":
        yield FAILED
    elif status == "closed":
        yield ANSWERED if chain.steps else NO_MESSAGE
    if chain.orphans:
        yield UNSETTLED


def _answered(sources: Sequence[Source]) -> Iterator[api.Repair]:
    """Calls that got a result which no record holds."""
    calls: dict[str, int] = {}  # of the turn before, by id: a later call may have the same
    for source in sources:
        if isinstance(source.part, Call):
            calls[source.part.id] = source.n
        elif isinstance(source.part, Result) and not source.n:
            n = calls.get(source.part.call, 0)
            yield api.Repair(f"a call without a result: `{NO_RESULT}` is sent", n)


def _unreadable(sources: Sequence[Source], found: Sequence[Record]) -> Iterator[api.Repair]:
    """Texts that are not UTF-8, and attachments that no provider is sent."""
    for n in sorted({source.n for source in sources} - {0}):
        record = found[n - 1]
        type = records.essence(record.header.type)
        if not type.startswith("text/") and not type.endswith("json") and not type.startswith("image/"):
            yield api.Repair(f"an attachment of type {type}: a note is sent", n)
        elif type.startswith("text/"):
            try:
                record.body.decode()
            except UnicodeDecodeError as error:
                yield api.Repair(f"bytes that are not UTF-8, the first at {error.start}: U+FFFD is sent", n)


def _left_out(chain: Traced) -> Iterator[api.Repair]:
    """Records that no context holds: blank ones, results that came too late, and what a broken try left."""
    past = chain.summed
    yield from (api.Repair("a blank text: left out", record.n) for record in chain.blank if record.n > past)
    for record in chain.dropped:
        if record.n > past:
            yield api.Repair("a result that came too late, or of no call: left out", record.n)
    tries: dict[str, list[int]] = {}
    for record in chain.broken:
        if record.n > past:
            tries.setdefault(record.header.step, []).append(record.n)
    for numbers in tries.values():
        last = numbers[-1] if len(numbers) > 1 else 0
        yield api.Repair("blocks of an answer that no step has closed: left out", numbers[0], last)

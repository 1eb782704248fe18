"""What `check` says of a session's next request: whether it would be accepted, and what it repairs."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from daemon.chain import NO_RESULT, fold
from daemon.harness import checking, errors, limits
from daemon.harness.checking import Checker
from daemon.harness.harness import Harness
from daemon.harness.live import LiveReaders
from daemon.harness.session import Session
from daemon.protocol import api
from daemon.protocol.records import TEXT, CallBody, Limits, Usage, draft, json_draft
from daemon.provider import budget
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Model, Provider, ProviderError, Query, Request, Wire
from daemon.provider.chat import REASONING
from daemon.provider.differences import GIVES_WAY
from daemon.provider.fitting import MAX_SIDE
from daemon.provider.messages import BLOCK
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.openai_chat import OpenAIChat
from daemon.provider.rehearsal import Rehearsal
from daemon.statefile.errors import Damage
from daemon.statefile.store import Store
from tests.daemon.book import Book
from tests.daemon.harness.doubles import Clock, FakePool
from tests.daemon.provider.contexts import picture

CLAUDE = "anthropic/claude-x"
PNG = picture()


class Served:
    """Some providers, each of which serves any model, as large as `context`."""

    def __init__(
        self, *more: Provider, context: int = 200_000, input: tuple[str, ...] = TEXT_AND_IMAGES
    ) -> None:
        chats: list[Provider] = [
            OpenAIChat("chat", url="http://127.0.0.1:1"),
            OpenAIChat("mistral", url="https://api.mistral.ai/v1"),
        ]
        self.providers: dict[str, Provider] = {one.name: one for one in [Anthropic(), *chats, *more]}
        self.model = Model("", context, 0, input)

    def resolve(self, name: str) -> tuple[Provider, Model]:
        provider, _, model = name.partition("/")
        if provider not in self.providers:
            raise ProviderError(f"there is no model {name!r}", code="model")
        return self.providers[provider], structs.replace(self.model, name=model)

    def default(self) -> str:
        return CLAUDE


class Desk:
    """Checks the sessions of books."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.served = Served()

    async def session(self, book: Book) -> Session:
        id, log = await self.store.create(*book.records)
        return Session(id, log, fold(book.records, id), LiveReaders())

    async def __call__(self, book: Book, model: str = "", session: Session | None = None) -> api.Check:
        checker = Checker(self.served, limits.reached)
        return await checker.check(session or await self.session(book), model)


@pytest.fixture
async def check(tmp_path: Path) -> AsyncIterator[Desk]:
    store = Store(tmp_path, clock=Clock())
    yield Desk(store)
    await store.close()


def book(model: str = CLAUDE, **config: Any) -> Book:
    made = Book(begun=False)
    made.add("start")
    made.config(model=model, **config)
    made.add("system", "You are an agent.", source="harness")
    return made


def said(found: api.Check) -> list[tuple[int, str]]:
    return [(repair.n, repair.what) for repair in found.repairs]


def raw(made: Book, step: str, block: dict[str, Any], type: str = BLOCK, provider: str = "anthropic") -> int:
    kind: Any = "text" if block.get("type") == "text" else "thinking"
    return made.keep(draft(kind, msgspec.json.encode(block), type, step=step, provider=provider)).n


def called(
    made: Book, step: str, id: str, arguments: str = "{}", name: str = "run", extra: bytes = b""
) -> int:
    body = CallBody(name, arguments, msgspec.Raw(extra))
    return made.keep(json_draft("call", body, id=id, step=step, provider="anthropic")).n


# Whether it would be accepted.


async def test_a_sound_session_would_be_accepted_and_nothing_is_repaired(check: Desk) -> None:
    made = book()
    made.message("hi")
    made.answer("s1", "c1", provider="anthropic", model="claude-x", usage=Usage(900, 50))
    made.add("result", PNG, "image/png", for_="c1", worker="w")
    found = await check(made)
    assert (found.accepted, found.why, found.problems, found.repairs, found.notes) == (True, (), (), (), ())
    assert (found.model, found.status, found.n) == (CLAUDE, "open", made.n)
    assert (found.turns, found.images, found.marks, found.context) == (3, 1, 2, 200_000)
    assert 950 < found.tokens < 4000
    assert found.bytes > len(PNG)


async def test_what_is_checked_is_what_a_step_then_sends(tmp_path: Path, check: Desk) -> None:
    """By the step's own record: its request has the check sum that was named before."""
    (tmp_path / "broken.toml").write_text(
        'end = "Done."\n[[steps]]\ntext = "Once more."\nfaults = [{ kind = "status", status = 400 }]\n'
    )
    async with asyncio.TaskGroup() as group:
        harness = Harness(
            store=check.store,
            pool=FakePool("w"),  # type: ignore[arg-type]
            models=Served(Rehearsal(("broken",), folder=tmp_path, speed=0)),
            http=None,
            release="0",
            clock=Clock(),
            group=group,
        )
        await harness.resume()
        try:
            id = await harness.create(api.Create(model="rehearsal/broken"))
            await harness.post(id, "me", [api.Part(TEXT, b"hello")])
            await rest(harness, id)
            found, n = await harness.check(id), (await harness.info(id)).n
            assert (found.status, found.accepted, found.notes) == ("failed", True, (checking.FAILED,))
            assert await harness.check(id) == found
            assert (await harness.info(id)).n == n, "a check writes nothing"
            await harness.retry(id)
            await rest(harness, id)
            (step,) = [record for record in await (await harness.log(id)).read() if record.kind == "step"]
            assert step.header.request == found.request
            assert len(step.header.cache) == found.marks
            assert (await harness.check(id)).notes == (checking.ANSWERED,)
            with pytest.raises(errors.NotFound):
                await harness.check("0" * 16)
        finally:
            await harness.close()


async def rest(harness: Harness, id: str) -> None:
    session = await harness._sessions.get(id)
    while session.runner is not None:
        await asyncio.wait({session.runner})


async def test_a_session_that_nothing_was_posted_to_says_so(check: Desk) -> None:
    found = await check(book())
    assert (found.accepted, found.status, found.turns) == (True, "closed", 1)
    assert found.notes == (checking.NO_MESSAGE,)


@pytest.mark.parametrize(("reason", "word"), [("ended", "ended"), ("expired", "expired")])
async def test_of_a_session_that_is_over_nothing_is_sent(check: Desk, reason: str, word: str) -> None:
    made = book()
    made.message("hi")
    made.add("end", reason=reason)
    found = await check(made)
    assert (found.accepted, found.status, found.problems) == (False, word, ())
    assert f"has {word}: a copy of it can go on" in found.why[0]


async def test_of_a_damaged_session_what_is_before_is_checked(check: Desk) -> None:
    made = book()
    made.message("hi")
    session = await check.session(made)
    session.bad = Damage(5, 700, "its body does not parse")
    found = await check(made, session=session)
    assert (found.accepted, found.status, found.turns, found.n) == (False, "damaged", 1, 4)
    on = "it can be read up to there, and a copy of that (n = 5) can go on"
    assert found.why == (f"the file is damaged at record 5 (its body does not parse): {on}",)


async def test_of_a_session_that_is_damaged_from_its_start_no_copy_is_promised(check: Desk) -> None:
    made = Book(begun=False)
    made.add("start")
    session = await check.session(made)
    session.bad = Damage(2, 90, "it is cut")
    assert (await check(made, session=session)).why == (
        "the file is damaged at record 2 (it is cut): nothing before it is enough for a copy; make a new session",
    )


async def test_records_whose_body_does_not_parse_are_not_read_past(check: Desk) -> None:
    made = book()
    made.message("hi")
    session = await check.session(made)
    session.log = (await check.store.create(*made.records, draft("config", b"{", "application/json")))[1]
    session.bad = Damage(5, 700, "its body does not parse")
    assert (await check(made, session=session)).n == 4


async def test_a_file_without_a_config_has_no_model(check: Desk) -> None:
    made = Book(begun=False)
    made.add("start")
    assert (await check(made)).why == (checking.NO_MODEL,)


async def test_a_model_that_is_not_served_any_more_is_why(check: Desk) -> None:
    found = await check(book("gone/model"))
    assert (found.accepted, found.why) == (False, ("there is no model 'gone/model'",))


async def test_another_model_that_is_not_served_is_a_mistake_of_who_asks(check: Desk) -> None:
    with pytest.raises(errors.Invalid, match="gone/model"):
        await check(book(), "gone/model")


async def test_a_tool_of_another_release_is_why(check: Desk) -> None:
    assert "fly" in (await check(book(tools=("run", "fly")))).why[0]


async def test_params_that_the_other_provider_does_not_leave_to_us_are_why(check: Desk) -> None:
    found = await check(book(params={"n": 2}), "chat/m")
    assert (found.accepted, found.why[0][:8]) == (False, "params: ")
    assert (await check(book(params={"n": 2}))).accepted


async def test_past_its_context_a_session_sends_nothing(check: Desk) -> None:
    made = book()
    made.message("word " * 10_000)
    check.served = Served(context=1000)
    found = await check(made)
    assert (found.accepted, found.context) == (False, 1000)
    assert "past the context limit" in found.why[0]
    assert found.tokens > 1000
    assert (await check(book(context=500))).context == 500, "a session's own limit goes first"


async def test_a_limit_that_is_reached_is_why(check: Desk) -> None:
    made = book(limits=Limits(steps=1))
    made.message("hi")
    made.answer("s1", provider="anthropic", model="claude-x")
    assert (await check(made)).why == ("limits.steps is reached: 1 of 1 steps",)


async def test_what_the_wires_rules_say_is_told(check: Desk) -> None:
    found = await check(book(params={"thinking": {"type": "enabled", "budget_tokens": 9000}}))
    assert (found.accepted, found.why) == (False, ())
    assert found.problems == ("thinking.budget_tokens is 9000, where max_tokens is 8192: it has to be less",)


async def test_a_session_at_work_is_checked_as_it_stands(check: Desk) -> None:
    made = book()
    made.message("hi")
    made.answer("s1", "c1", provider="anthropic", model="claude-x")
    session = await check.session(made)
    held = asyncio.Event()
    session.runner = asyncio.get_running_loop().create_task(_held(held), name="held")
    found = await check(made, session=session)
    held.set()
    await session.runner
    assert (found.status, found.accepted) == ("stepping", True)
    assert found.notes == (checking.STEPPING, checking.UNSETTLED)


async def _held(event: asyncio.Event) -> None:
    await event.wait()


async def test_a_check_keeps_apart_from_what_the_session_sends(check: Desk) -> None:
    made = book()
    made.message("hi")
    made.answer("s1", provider="anthropic", model="claude-x")
    made.message("and")
    session = await check.session(made)
    before = session.wire.copy()
    await check(made, "chat/m", session=session)
    assert vars(session.wire) == vars(before)
    assert session.chain.context() == fold(made.records, session.id).context()


# What is repaired.


async def test_a_call_without_a_result_is_named_by_its_record(check: Desk) -> None:
    made = book()
    made.message("hi")
    made.answer("s1", "c1", "c2", provider="anthropic", model="claude-x")
    made.result("c2")
    (call,) = [record.n for record in made.records if record.id == "c1"]
    found = await check(made)
    assert said(found) == [(call, f"a call without a result: `{NO_RESULT}` is sent")]
    assert (found.accepted, found.notes) == (True, (checking.UNSETTLED,))


async def test_results_that_came_too_late_and_of_no_call_are_named(check: Desk) -> None:
    made = book()
    made.message("hi")
    made.answer("s1", "c1", provider="anthropic", model="claude-x")
    upto = made.n
    made.text("s2")
    late = made.result("c1").n
    made.step("s2", upto, provider="anthropic", model="claude-x")
    none = made.result("c9").n
    what = "a result that came too late, or of no call: left out"
    assert {(late, what), (none, what)} <= set(said(await check(made)))


async def test_thinking_goes_back_to_who_made_it_and_is_named_where_it_does_not(check: Desk) -> None:
    made = book()
    made.message("hi")
    thought = raw(made, "s1", {"type": "thinking", "thinking": "hm", "signature": "sig"})
    unsigned = raw(made, "s1", {"type": "thinking", "thinking": "hm"})
    made.text("s1")
    made.step("s1", 4, provider="anthropic", model="claude-x")
    made.message("go on")
    assert said(await check(made)) == [(unsigned, "thinking of anthropic/claude-x: left out")]
    for other in ("anthropic/claude-y", "chat/m"):
        assert said(await check(made, other)) == [
            (thought, "thinking of anthropic/claude-x: left out"),
            (unsigned, "thinking of anthropic/claude-x: left out"),
        ]


async def test_reasoning_of_a_chat_server_is_named_by_another(check: Desk) -> None:
    made = book("chat/m")
    made.message("hi")
    n = raw(made, "s1", {"text": "hm", "field": "reasoning"}, REASONING, "chat")
    made.text("s1")
    made.step("s1", 4, provider="chat", model="m")
    assert said(await check(made)) == []
    assert said(await check(made, CLAUDE)) == [(n, "thinking of chat/m: left out")]
    assert said(await check(made, "chat/other")) == [(n, "thinking of chat/m: left out")]


async def test_an_answer_of_thinking_alone_is_compared_too(check: Desk) -> None:
    made = book()
    made.message("hi")
    n = raw(made, "s1", {"type": "thinking", "thinking": "hm", "signature": "sig"})
    made.step("s1", 4, provider="anthropic", model="claude-x")
    assert said(await check(made)) == []
    assert said(await check(made, "chat/m")) == [(n, "thinking of anthropic/claude-x: left out")]


async def test_an_answer_that_paused_and_went_on_is_seen_as_a_whole(check: Desk) -> None:
    made = book()
    made.message("hi")
    raw(made, "s1", {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}})
    made.step("s1", 4, provider="anthropic", model="claude-x", paused=True)
    raw(made, "s2", {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []})
    made.text("s2")
    made.step("s2", made.n - 2, provider="anthropic", model="claude-x")
    made.message("and?")
    assert said(await check(made)) == []
    assert len(said(await check(made, "chat/m"))) == 2


async def test_text_with_citations_is_words_alone_for_another(check: Desk) -> None:
    made = book()
    made.message("hi")
    n = raw(made, "s1", {"type": "text", "text": "cited", "citations": [{"type": "x"}]})
    made.step("s1", 4, provider="anthropic", model="claude-x")
    assert said(await check(made)) == []
    what = "text of anthropic/claude-x with more than words: its words alone are sent"
    assert said(await check(made, "chat/m")) == [(n, what)]


async def test_ids_names_and_arguments_that_are_made_legal_are_named(check: Desk) -> None:
    made = book()
    made.message("hi")
    ids = ["functions.run:0", "c2", "c3", "c4", "c5"]
    numbers = [
        called(made, "s1", ids[0], '{"a": 1}'),
        called(made, "s1", ids[1], '{"a": ', name="functions.run"),
        called(made, "s1", ids[2], ""),
        called(made, "s1", ids[3], r'{"a":"\ud83d"}'),
        called(made, "s1", ids[4], '{"a":1}', extra=b'{"caller":"x"}'),
    ]
    made.step("s1", 4, provider="anthropic", model="claude-x")
    for id in ids:
        made.result(id)
    found = await check(made)
    text = "arguments that are no JSON object: they are sent as a text in one, in invalid_arguments"
    assert said(found) == [
        (numbers[0], "a call's id 'functions.run:0': one of the form that the provider takes is sent"),
        (numbers[1], "a tool's name 'functions.run': functions_run is sent"),
        (numbers[1], text),
        (numbers[2], "arguments that say nothing: an empty object is sent"),
        (numbers[3], "arguments with half a character: U+FFFD is sent for it"),
    ]
    assert found.accepted
    here = said(await check(made, "chat/m"))
    assert (numbers[4], "what anthropic wants back with a call: left out") in here
    assert not any("call's id" in what for _, what in here), "chat servers take that id"
    short = [what for _, what in said(await check(made, "mistral/m")) if "call's id" in what]
    assert len(short) == len(ids)


async def test_images_that_are_not_sent_as_they_are_are_named(check: Desk) -> None:
    made = book()
    numbers = [
        made.add("message", data, type, via="me").n
        for data, type in (
            (PNG, "image/png"),
            (PNG, "image/jpeg"),
            (picture(size=(MAX_SIDE + 1, 10)), "image/png"),
            (PNG[:30], "image/png"),
            (b"BM" + bytes(50), "image/bmp"),
            (b"%PDF", "application/pdf"),
        )
    ]
    found = await check(made)
    assert [n for n, _ in said(found)] == numbers[1:]
    words = [what for _, what in said(found)]
    assert words[0] == "an image that is said to be image/jpeg: it is sent as the image/png that it is"
    assert words[1].endswith("a smaller one is sent")
    assert words[2] == "an image that cannot be shown (it is cut off): a note is sent"
    assert "cannot be shown (its bytes are not" in words[3]
    assert words[4] == "an attachment of type application/pdf: a note is sent"
    assert (found.images, found.accepted) == (3, True)
    check.served = Served(input=())
    blind = await check(made, "chat/m")
    assert blind.images == 0
    assert said(blind)[0] == (
        numbers[0],
        "an image that cannot be shown (the model takes no images): a note is sent",
    )


async def test_images_that_give_way_are_named(check: Desk) -> None:
    made = book()
    numbers = [made.add("message", PNG, "image/png", via="me").n for _ in range(budget.MAX_IMAGES + 1)]
    found = await check(made)
    assert said(found) == [(n, GIVES_WAY) for n in numbers[: -budget.KEPT]]
    assert found.images == budget.KEPT


async def test_blank_texts_broken_tries_and_odd_bytes_are_named(check: Desk) -> None:
    made = book()
    blank = made.message(" \n").n
    odd = made.add("message", b"caf\xe9", via="me").n
    first = made.text("broken").n
    last = made.call("broken", "c0").n
    empty = made.text("s1", " ").n
    made.text("s1")
    made.step("s1", odd, provider="anthropic", model="claude-x")
    flying = made.text("s2").n
    found = await check(made)
    assert said(found) == [
        (blank, "a blank text: left out"),
        (odd, "bytes that are not UTF-8, the first at 3: U+FFFD is sent"),
        (first, "blocks of an answer that no step has closed: left out"),
        (empty, "a blank text: left out"),
        (flying, "blocks of an answer that no step has closed: left out"),
    ]
    assert [repair.last for repair in found.repairs] == [0, 0, last, 0, 0]


async def test_what_a_summary_stands_for_is_not_named_any_more(check: Desk) -> None:
    made = book()
    made.message(" ")
    made.message("hi")
    made.text("broken")
    raw(made, "s1", {"type": "thinking", "thinking": "hm"})
    made.text("s1")
    made.step("s1", 5, provider="anthropic", model="claude-x")
    made.result("c9")
    made.summary(made.n)
    made.message("go on")
    n = raw(made, "s2", {"type": "thinking", "thinking": "hm"})
    made.text("s2")
    made.step("s2", made.n - 2, provider="anthropic", model="claude-x")
    found = await check(made)
    assert said(found) == [(n, "thinking of anthropic/claude-x: left out")]


async def test_a_wire_without_ids_of_calls_repairs_none(check: Desk) -> None:
    class NoIds(Anthropic):
        def compile(self, query: Query, wire: Wire) -> Request:
            request = super().compile(query, wire)
            body = request.body.replace(b'"id":"', b'"id":"-').replace(
                b'"tool_use_id":"', b'"tool_use_id":"-'
            )
            return structs.replace(request, body=body)

    check.served = Served(NoIds("none"))
    made = book("none/m")
    made.message("hi")
    called(made, "s1", "functions.run:0", "{}")
    made.step("s1", 4, provider="none", model="m")
    made.result("functions.run:0")
    assert said(await check(made)) == []


async def test_a_body_that_is_no_json_is_a_problem_and_no_fault(check: Desk) -> None:
    class Broken(Anthropic):
        def compile(self, query: Query, wire: Wire) -> Request:
            return structs.replace(super().compile(query, wire), body=b"{")

    check.served = Served(Broken("broken"))
    made = book("broken/m")
    made.message("hi")
    made.answer("s1", "c1", provider="broken", model="m")
    found = await check(made)
    assert not found.accepted
    assert "the body is not JSON" in found.problems[0]
    assert found.request == sha256(b"{").hexdigest()

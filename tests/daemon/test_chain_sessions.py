"""Properties of the fold over any session: the ones a harness can write, and any records at all."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from daemon import chain as chains
from daemon.chain import GO_ON, Chain, Context, Text, Turn
from daemon.protocol.records import Record, Status, Usage
from tests.daemon.book import Book
from tests.daemon.contexts import check

STATUSES = {"open", "interrupted", "failed", "closed", "ended", "expired"}
MESSAGES = st.sampled_from(["hello", "do this\nthen that", " ", ""])
BLOCKS = st.sampled_from(["text", "blank", "thinking", "raw", "call", "call"])


def by_the_page(written: list[Record]) -> Status:
    """A session's status, in the words of the design: from all the records, at any cost."""
    if end := [record for record in written if record.kind == "end"]:
        return "expired" if end[0].header.reason == "expired" else "ended"
    telling = [record for record in written if record.kind not in ("config", "system")]
    if telling and telling[-1].kind == "error":
        return "failed"
    steps = {record.id: record for record in written if record.kind == "step"}
    answered = {record.header.for_ for record in written if record.kind == "result"}
    closed = [record.id for record in written if record.kind == "call" and record.header.step in steps]
    if set(closed) - answered:
        return "interrupted"
    upto = list(steps.values())[-1].header.upto if steps else 0
    past = [record for record in written if record.kind in ("message", "result") and record.n > upto]
    return "open" if past else "closed"


class Sessions(RuleBasedStateMachine):
    """Writes what a harness can write, in any order that it can, and folds it record by record."""

    keys = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(begun=False)
        self.chain = Chain("00aa")
        self.turns: list[Turn] = []
        self.epoch = 0
        self.system = ""
        self.step = ""  # of the try that runs
        self.asked: Context | None = None  # what it was asked
        self.disturbed = False  # a summary was written while it runs
        self.serial = 0
        self.put(self.book.add("start"))
        self.put(self.book.config())
        self.put(self.book.add("system", "You are an agent.", source="harness"))

    def put(self, record: Record) -> None:
        self.chain.add(record)

    def new(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    @property
    def alive(self) -> bool:
        return self.chain.status not in ("ended", "expired")

    @rule(target=keys, text=MESSAGES)
    @precondition(lambda self: self.alive)
    def post(self, text: str) -> str:
        key = self.new("key")
        self.put(self.book.message(text, idempotency_key=key))
        assert self.chain.posts[key] == self.book.n
        return key

    @rule()
    @precondition(lambda self: self.alive)
    def post_an_image(self) -> None:
        self.put(self.book.add("message", b"\x89PNG", "image/png", via="me"))

    @rule(key=keys)
    def a_key_is_known_for_ever(self, key: str) -> None:
        assert self.book.records[self.chain.posts[key] - 1].header.idempotency_key == key

    @rule()
    @precondition(lambda self: self.alive)
    def change_the_config(self) -> None:
        self.put(self.book.config(context=self.book.n))

    @rule()
    @precondition(lambda self: self.alive and not self.step)
    def tell_of_workers(self) -> None:
        self.put(self.book.add("system", self.new("Workers: "), source="workers"))

    @rule()
    @precondition(
        lambda self: not self.step and self.chain.status in ("open", "failed") and not self.chain.orphans
    )
    def ask(self) -> None:
        self.step, self.asked, self.disturbed = self.new("step"), self.chain.context(), False
        assert self.asked.last is not None
        self.asked = structs.replace(self.asked, settled=list(self.asked.settled))

    @rule(kind=BLOCKS)
    @precondition(lambda self: self.step)
    def a_block(self, kind: str) -> None:
        match kind:
            case "text":
                self.put(self.book.text(self.step, self.new("said ")))
            case "blank":
                self.put(self.book.text(self.step, "\n"))
            case "call":
                self.put(self.book.call(self.step, self.new("call")))
            case "thinking":
                self.put(
                    self.book.add("thinking", b'{"thinking":"hm"}', "application/x-t+json", step=self.step)
                )
            case _:
                self.put(self.book.add("text", b'{"text":"raw"}', "application/x-r+json", step=self.step))

    @rule()
    @precondition(lambda self: self.step)
    def the_stream_starts_again(self) -> None:
        self.step = self.new("step")

    @rule()
    def the_daemon_is_killed(self) -> None:
        self.step, self.asked = "", None
        self.fold_anew()

    @rule()
    @precondition(lambda self: self.step)
    def the_step_fails(self) -> None:
        self.put(self.book.error("overloaded"))
        self.step, self.asked = "", None

    @rule(tokens=st.integers(0, 1000))
    @precondition(lambda self: self.step)
    def the_step_closes(self, tokens: int) -> None:
        asked, before, was = self.asked, len(self.chain.context().settled), self.chain.n
        assert asked is not None
        self.put(self.book.step(self.step, asked.upto, Usage(tokens)))
        now = self.chain.context()
        if len(now.settled) > before and not self.disturbed:
            assert now.settled[-2] == asked.last, "what was sent is settled as it was sent"
            assert now.settled[:-2] == asked.settled
            assert now.system == asked.system
        self.system = self.system or asked.system
        assert was + 1 == now.upto
        self.step, self.asked = "", None

    @rule(pick=st.integers(0, 10), text=st.sampled_from(["", "out\n", "out"]), failed=st.booleans())
    @precondition(lambda self: self.chain.orphans and self.alive)
    def a_result(self, pick: int, text: str, failed: bool) -> None:
        call = self.chain.orphans[pick % len(self.chain.orphans)]
        self.put(self.book.result(call.id, text, failed=failed, exit=0))

    @rule()
    @precondition(lambda self: self.alive and not self.step and self.chain.status != "closed")
    def stop(self) -> None:
        for call in self.chain.orphans:
            self.put(self.book.result(call.id, "stopped", failed=True))
        self.put(self.book.error("stopped by me", code="stopped"))

    @rule(back=st.integers(0, 30))
    @precondition(lambda self: self.alive)
    def summarise(self, back: int) -> None:
        self.disturbed = True
        self.put(self.book.summary(max(0, self.book.n - back), self.new("summary ")))

    @rule(reason=st.sampled_from(["ended", "expired"]))
    @precondition(lambda self: self.alive and not self.step and self.serial > 30)
    def end(self, reason: str) -> None:
        self.put(self.book.add("end", reason=reason))

    def fold_anew(self) -> None:
        """A restart: the file folded at once is what was folded record by record."""
        again = chains.fold(self.book.records, "00aa")
        assert {**vars(again)} == {**vars(self.chain)}
        assert again.context() == self.chain.context()
        self.chain, self.turns = again, list(again.context().settled)

    @invariant()
    def the_status_is_the_page_s(self) -> None:
        assert self.chain.status in STATUSES
        assert self.chain.status == by_the_page(self.book.records)

    @invariant()
    def the_context_is_one_that_a_provider_takes(self) -> None:
        now = self.chain.context()
        check(now)
        assert now == self.chain.context()
        assert now.upto == self.book.n
        if self.chain.status in ("open", "failed", "interrupted"):
            assert now.last is not None
        if self.system:
            assert now.system == self.system

    @invariant()
    def settled_turns_only_grow(self) -> None:
        now = self.chain.context()
        if now.epoch == self.epoch:
            assert len(now.settled) >= len(self.turns)
            assert all(new is old for new, old in zip(now.settled, self.turns, strict=False))
        self.turns, self.epoch = list(now.settled), now.epoch

    def teardown(self) -> None:
        self.fold_anew()


Sessions.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestSessions = Sessions.TestCase


ids = st.sampled_from(["a", "b", "c", "d"])
small = st.integers(0, 25)
texts = st.sampled_from(["", " ", "x", "\ufffd"])


@st.composite
def any_record(draw: st.DrawFn) -> Callable[[Book], Record]:
    """A function that writes one record of any kind with any references."""
    kind = draw(
        st.sampled_from(["message", "system", "text", "call", "step", "result", "error", "summary", "config"])
    )
    step, upto, text, call = draw(ids), draw(small), draw(texts), draw(ids)

    def write(book: Book) -> Record:
        match kind:
            case "call":
                return book.call(step, f"{call}{book.n}")
            case "result":
                return book.result(f"{call}{upto}", text)
            case "step":
                return book.step(step, upto)
            case "summary":
                return book.summary(upto, text)
            case "config":
                return book.config()
            case "error":
                return book.error(text)
            case "text":
                return book.text(step, text)
            case "message":
                return book.message(text)
            case _:
                return book.add("system", text, source="workers")

    return write


@given(st.lists(any_record(), max_size=30))
@settings(max_examples=400, deadline=None)
def test_any_records_at_all_give_a_context_that_a_provider_takes(
    writes: list[Callable[[Book], Record]],
) -> None:
    book, chain = Book(begun=False), Chain()
    for write in writes:
        chain.add(write(book))
        assert chain.status in STATUSES
        check(chain.context())
    assert chains.context(book.records) == chain.context()
    assert chains.status(book.records) == chain.status


def chain_of(rounds: int) -> tuple[Chain, Book]:
    """A session of `rounds` questions, each with a call, its result and an answer: seven records each."""
    book, chain = Book(), Chain()
    for k in range(rounds):
        book.message(f"question {k}", idempotency_key=f"key{k}")
        book.answer(f"s{k}", f"c{k}", text="calling")
        book.result(f"c{k}", "done")
        book.answer(f"t{k}", text="answer")
    for record in book.records:
        chain.add(record)
    return chain, book


def work(act: Callable[[], Any]) -> int:
    """Byte code instructions that our code executes in `act`; a loop over old records shows in them."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if "/daemon/" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
            return None  # a collector of garbage may call back at any time
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def costs(rounds: int) -> dict[str, int]:
    """The work of taking each kind of record in, and of a context, after so many rounds."""
    chain, book = chain_of(rounds)
    found: dict[str, int] = {}

    def add(record: Record) -> None:
        found[f"{record.kind} {len(found)}"] = work(lambda: chain.add(record))
        settled = chain.context().settled
        found[f"context {len(found)}"] = work(chain.context)
        found[f"status {len(found)}"] = work(lambda: chain.status)
        assert chain.context().settled is settled, "nothing is copied"

    add(book.message("one more"))
    add(book.config())
    add(book.add("system", "Workers: none", source="workers"))
    upto = book.n
    add(book.text("z1", "calling"))
    add(book.call("z1", "cz"))
    add(book.step("z1", upto))
    add(book.result("cz", "done"))
    add(book.error())
    add(book.add("end", reason="ended"))
    return found


@pytest.mark.timeout(120)
def test_what_a_record_costs_does_not_depend_on_what_came_before() -> None:
    few, many = costs(15), costs(715)  # 108 and 5,008 records
    assert few == many
    assert max(few.values()) < 3000


def test_any_texts_of_a_person_are_asked_or_go_on() -> None:
    for text in ("", "\n", "x"):
        book = Book()
        book.message(text)
        last = chains.context(book.records).last
        assert last is not None
        assert last.parts == (Text(text if text.strip() else GO_ON),)

from collections.abc import Iterator
from datetime import timedelta

import msgspec
import pytest
from msgspec import structs

from daemon import chain as chains
from daemon.chain import GO_ON, NO_RESULT, Call, Chain, Context, Media, Raw, Result, Text, Turn
from daemon.protocol import records
from daemon.protocol.records import BadRecord, Config, Record, Status, Usage, WorkerRef
from daemon.turns import MEDIA_TOKENS, part_tokens
from tests.daemon.book import EPOCH, Book
from tests.daemon.contexts import check, turns

PNG = b"\x89PNG fake"
THINKING = "application/x-rehearsal-thinking+json"


@pytest.fixture
def book() -> Book:
    return Book()


def context(book: Book, session: str = "") -> Context:
    """The context of a book's records, found acceptable; the same by one fold and record by record."""
    found = chains.context(book.records, session)
    check(found)
    return found


def status(book: Book) -> Status:
    return chains.status(book.records)


def last(book: Book) -> tuple[object, ...]:
    """The parts of the turn that waits for an answer; texts and results as plain values."""
    turn = context(book).last
    return tuple(map(plain, turn.parts)) if turn is not None else ()


def plain(part: object) -> object:
    match part:
        case Text(text):
            return text
        case Result(call=call, content=(Text(text),)):
            return (call, text.partition("[")[0].rstrip())
        case _:
            return part


def said(book: Book) -> list[tuple[object, ...]]:
    """All turns, as plain values."""
    return [tuple(map(plain, turn.parts)) for turn in turns(context(book))]


# Status.


def test_a_new_session_is_closed(book: Book) -> None:
    assert status(book) == "closed"
    assert context(book).last is None
    assert chains.status([]) == "closed"


def test_a_message_opens_a_session_and_a_step_closes_it(book: Book) -> None:
    book.message()
    assert status(book) == "open"
    book.answer("s1")
    assert status(book) == "closed"


def test_blocks_of_a_step_in_flight_change_nothing(book: Book) -> None:
    book.message()
    book.text("s1")
    book.call("s1", "c1")
    assert status(book) == "open"
    assert said(book) == [("hello",)]


def test_a_call_without_a_result_is_an_interruption_until_the_last_result_opens_the_session(
    book: Book,
) -> None:
    book.message()
    book.answer("s1", "c1", "c2")
    assert status(book) == "interrupted"
    book.result("c2")
    assert status(book) == "interrupted"
    assert [record.id for record in chains.fold(book.records).orphans] == ["c1"]
    book.result("c1")
    assert status(book) == "open"
    book.answer("s2")
    assert status(book) == "closed"


def test_an_error_fails_a_session_whatever_configs_and_system_texts_follow(book: Book) -> None:
    book.message()
    book.error()
    assert status(book) == "failed"
    book.config()
    book.add("system", "workers changed", source="workers")
    assert status(book) == "failed"


def test_a_failed_session_with_calls_left_over_is_failed(book: Book) -> None:
    book.message()
    book.answer("s1", "c1")
    book.error()
    assert status(book) == "failed"
    book.result("c1")
    assert status(book) == "open"


def test_a_message_after_an_error_opens_the_session_and_the_model_reads_both(book: Book) -> None:
    book.message("one")
    book.error("provider is down")
    book.message("two")
    assert status(book) == "open"
    assert last(book) == ("one", "[provider is down]", "two")


def test_a_message_taken_while_a_step_fails_waits_with_the_failed_session(book: Book) -> None:
    book.message("one")
    book.text("s1")
    book.message("two")
    book.error("stopped by me")
    assert status(book) == "failed"
    assert last(book) == ("one", "two", "[stopped by me]")


def test_a_retry_cut_by_a_crash_goes_on_by_itself(book: Book) -> None:
    book.message()
    book.error()
    book.text("s2")
    assert status(book) == "open"


@pytest.mark.parametrize(("reason", "wanted"), [("ended", "ended"), ("expired", "expired"), ("", "ended")])
def test_an_end_is_final(book: Book, reason: str, wanted: str) -> None:
    book.message()
    book.answer("s1", "c1")
    book.add("end", reason=reason)
    assert status(book) == wanted
    book.message()
    book.error()
    assert status(book) == wanted


def test_a_later_release_s_kind_is_passed_over(book: Book) -> None:
    book.message()
    before = context(book)
    book.add("hologram", b"\x00")  # type: ignore[arg-type]
    assert status(book) == "open"
    assert context(book) == structs.replace(before, upto=book.n)
    book.error()
    book.add("hologram", b"\x00")  # type: ignore[arg-type]
    assert status(book) == "open", "the newest record that is not config or system is no error"


# The order of a context.


def test_turns_are_the_question_and_the_answer(book: Book) -> None:
    book.message("one")
    book.message("two")
    book.answer("s1", text="first")
    book.message("three")
    assert said(book) == [("one", "two"), ("first",), ("three",)]


def test_results_come_first_in_the_order_of_the_calls_then_what_arrived_beside_them(book: Book) -> None:
    book.message("go")
    book.answer("s1", "c1", "c2", "c3")
    book.message("also do Y")
    book.result("c3", "three")
    book.add("system", "workers changed", source="workers")
    book.result("c1", "one")
    book.result("c2", "two")
    book.error("stopped by me")
    assert last(book) == (
        ("c1", "one"),
        ("c2", "two"),
        ("c3", "three"),
        "also do Y",
        "workers changed",
        "[stopped by me]",
    )


def test_images_that_a_call_has_shown_stand_beside_its_text(book: Book) -> None:
    book.message("go")
    book.answer("s1", "c1", "c2")
    book.add("result", b"early", type="image/png", for_="c2")  # a call's only result may be an image
    book.result("c1", "one")
    book.add("result", b"first", type="image/png", for_="c1")
    book.add("result", b"second", type="image/jpeg", for_="c1")
    book.result("c1", "a second text is not taken")
    book.add("result", b"of nobody", type="image/png", for_="c9")
    one, two = context(book).last.parts  # type: ignore[union-attr]
    assert isinstance(one, Result)
    assert isinstance(two, Result)
    assert [type(item).__name__ for item in one.content] == ["Text", "Media", "Media"]
    assert [item.type for item in one.content if isinstance(item, Media)] == ["image/png", "image/jpeg"]
    assert [type(item).__name__ for item in two.content] == ["Media", "Text"]


def test_a_step_settles_what_it_saw_and_what_arrived_meanwhile_waits(book: Book) -> None:
    book.message("one")
    upto = book.n
    book.text("s1", "answer")
    book.message("two")
    book.step("s1", upto)
    assert status(book) == "open"
    assert said(book) == [("one",), ("answer",), ("two",)]


def test_steps_follow_each_other_on_results_alone(book: Book) -> None:
    book.message("go")
    for k in range(3):
        book.answer(f"s{k}", f"c{k}", text="")
        book.result(f"c{k}", f"r{k}")
    assert [turn.role for turn in turns(context(book))] == ["user", "assistant"] * 3 + ["user"]
    assert last(book) == (("c2", "r2"),)


def test_a_step_on_nothing_new_is_asked_to_go_on(book: Book) -> None:
    book.message("go")
    book.answer("s1", text="part one")
    book.answer("s2", text="part two")
    assert said(book) == [("go",), ("part one",), (GO_ON,), ("part two",)]


@pytest.mark.parametrize("blank", ["", " \n\t", "\u3000"])
def test_a_message_of_nothing_is_answered_without_a_blank_text(book: Book, blank: str) -> None:
    book.message(blank)
    assert status(book) == "open"
    assert last(book) == (GO_ON,)
    book.answer("s1")
    assert said(book) == [(GO_ON,), ("words",)]


def test_blocks_of_tries_that_no_step_closed_never_enter(book: Book) -> None:
    book.message("go")
    book.text("try1", "Hello wor")
    book.call("try1", "c1")
    book.text("try2", "Hello world")
    book.step("try2", 4)
    assert said(book) == [("go",), ("Hello world",)]
    assert status(book) == "closed"
    book.text("try1", "a late block of the first try")
    book.message("more")
    book.answer("s3")
    assert said(book) == [("go",), ("Hello world",), ("more",), ("words",)]


def test_a_step_sees_a_failed_try_only_by_its_error(book: Book) -> None:
    book.message("go")
    book.text("try1", "half")
    book.error("overloaded")
    book.answer("s2", text="whole")
    assert said(book) == [("go", "[overloaded]"), ("whole",)]


def test_blank_text_blocks_are_left_out_and_an_empty_answer_asks_the_same_again(book: Book) -> None:
    book.message("one")
    book.answer("s1", text=" \n")
    assert status(book) == "closed"
    book.error("the model answered with nothing")
    book.message("two")
    assert said(book) == [("one", "[the model answered with nothing]", "two")]
    book.answer("s2")
    assert said(book) == [("one", "[the model answered with nothing]", "two"), ("words",)]


def test_results_wait_through_an_empty_answer(book: Book) -> None:
    book.message("go")
    book.answer("s1", "c1")
    book.result("c1", "one")
    book.answer("s2", text="")
    book.error("nothing")
    assert last(book) == (("c1", "one"), "[nothing]")
    book.answer("s3")
    assert context(book).last is None


def test_an_answer_says_whether_there_was_anything_to_read(book: Book) -> None:
    def answered() -> bool:
        return chains.fold(book.records).answered

    assert not answered()
    book.message()
    book.answer("s1")
    assert answered()
    book.answer("s2", text="")
    assert not answered()
    book.answer("s3", "c3", text="")
    assert answered()
    for body, readable in ((b'{"signature":"x"}', False), (b'{"text":"hi"}', True), (b'{"text":" "}', False)):
        book.add("text", body, "application/x-block+json", step=f"r{book.n}")
        book.step(f"r{book.n - 1}", book.n - 1)
        assert answered() is readable
    book.add("thinking", b'{"thinking":"hm"}', THINKING, step="s9")
    book.step("s9", book.n - 1)
    assert not answered()


def test_what_an_answer_holds_keeps_its_order_and_its_bytes(book: Book) -> None:
    book.message()
    book.add(
        "thinking", b'{"thinking": "h\xc3\xa9", "signature":"="}', THINKING, step="s1", provider="anthropic"
    )
    book.text("s1", "  spaced  ")
    book.add("text", b'{"text":"cited","citations":[]}', "application/x-text+json", step="s1")
    body = records.CallBody("run", '{"broken', msgspec.Raw(b'{"signature": 1}'))
    book.keep(records.json_draft("call", body, id="c1", step="s1", provider="google"))
    book.step("s1", 4, provider="anthropic", model="m1")
    [_, answer, _] = turns(context(book))
    assert answer.parts == (
        Raw("anthropic", "m1", THINKING, b'{"thinking": "h\xc3\xa9", "signature":"="}', ""),
        Text("  spaced  "),
        Raw("anthropic", "m1", "application/x-text+json", b'{"text":"cited","citations":[]}', "cited"),
        Call("c1", "run", '{"broken', b'{"signature": 1}', "google", "m1"),
    )


# System text.


def test_system_records_before_the_first_step_are_system_text_and_later_ones_are_said(book: Book) -> None:
    book.add("system", "Be brief.\n", source="session")
    book.add("system", "  ", source="agents.md")
    book.message("hi")
    book.add("system", "Workers: local", source="workers")
    assert context(book).system == "You are an agent.\n\nBe brief.\n\nWorkers: local"
    assert said(book) == [("hi",)]
    book.answer("s1")
    book.add("system", "Workers: none", source="workers")
    assert context(book).system == "You are an agent.\n\nBe brief.\n\nWorkers: local"
    assert last(book) == ("Workers: none",)
    assert status(book) == "closed", "system text alone asks for no answer"
    assert chains.fold(book.records).workers_shown == "Workers: none"


def test_system_text_stays_as_the_first_request_had_it(book: Book) -> None:
    book.message("one")
    asked = context(book)
    book.add("system", "Workers: far", source="workers")
    book.message("two")
    book.text("s1")
    book.step("s1", asked.upto)
    now = context(book)
    assert now.system == asked.system
    assert last(book) == ("Workers: far", "two")


def test_the_session_line_follows_the_first_system_text(book: Book) -> None:
    book.records[1] = structs.replace(book.records[1], body=b'{"model":"a/b","context":5000}')
    book.add("system", "Be brief.", source="session")
    book.config(context=9)
    line = "This is session 00aa, started 2026-01-01T00:00:01.000Z, context limit 5000 tokens."
    assert context(book, "00aa").system == f"You are an agent.\n\n{line}\n\nBe brief."
    bare = Book(begun=False)
    assert context(bare).system == ""
    bare.add("start")
    assert context(bare, "00aa").system == "This is session 00aa, started 2026-01-01T00:00:01.000Z."
    bare.config()
    assert context(bare, "00aa").system == "This is session 00aa, started 2026-01-01T00:00:01.000Z."


# Results.


def result_text(book: Book) -> str:
    turn = context(book).last
    assert turn is not None
    [result] = turn.parts
    assert isinstance(result, Result)
    [text] = result.content
    assert isinstance(text, Text)
    return text.text


def called(book: Book, usage: Usage | None = None) -> None:
    book.message()
    book.answer("s1", "c1", usage=usage)


@pytest.mark.parametrize(
    ("fields", "text", "wanted"),
    [
        ({}, "out", "out\n[7 s since the session's start, 100 tokens of context used]"),
        ({"exit": 0}, "out\n", "out\n[exit 0, 7 s since the session's start, 100 tokens of context used]"),
        (
            {"exit": 2, "seconds": 1.25, "truncated": 7, "full_output": "/w/out"},
            "",
            (
                "[exit 2, took 1.2 s, 7 earlier lines cut, the whole output is in /w/out, "
                "7 s since the session's start, 100 tokens of context used]"
            ),
        ),
        (
            {"truncated": 7},
            "",
            "[7 earlier lines cut, 7 s since the session's start, 100 tokens of context used]",
        ),
    ],
)
def test_a_result_ends_in_a_note(book: Book, fields: dict[str, int | str], text: str, wanted: str) -> None:
    called(book)
    book.result("c1", text, **fields)
    assert result_text(book) == wanted


def test_a_result_s_note_needs_neither_a_start_nor_usage() -> None:
    book = Book(begun=False)
    called(book, Usage())
    book.result("c1", "")
    assert result_text(book) == "[done]"


def test_an_unreadable_time_costs_a_note_and_not_the_session(book: Book) -> None:
    called(book)
    book.result("c1", "x")
    for at, time in ((0, "yesterday"), (-1, "2026-01-01T00:00:00")):
        copy = Book(begun=False)
        copy.records = [*book.records]
        old = copy.records[at]
        copy.records[at] = structs.replace(old, header=structs.replace(old.header, time=time))
        assert result_text(copy) == "x\n[100 tokens of context used]"


def test_a_note_says_the_same_when_it_is_settled_as_when_it_was_sent(book: Book) -> None:
    called(book, Usage(5, 1, 3, 2))
    book.result("c1", "x")
    sent = context(book).last
    book.answer("s2", text="", usage=Usage(999))
    assert context(book).last == sent, "an empty answer is not the step that made the call"
    book.answer("s3", usage=Usage(7777))
    assert context(book).settled[-2] == sent


def test_an_image_in_a_result_stays_inside_it_and_json_is_read_as_it_is(book: Book) -> None:
    book.message()
    book.answer("s1", "c1", "c2", "c3")
    book.add("result", PNG, "image/png", for_="c1", failed=True)
    book.add("result", b'{"a": 1}', "application/json", for_="c2")
    book.add("result", b"\x00", "application/zip", for_="c3")
    turn = context(book).last
    assert turn is not None
    one, two, three = turn.parts
    assert isinstance(one, Result)
    assert one.content[0] == Media("image/png", PNG)
    assert one.failed
    assert plain(two) == ("c2", '{"a": 1}')
    assert isinstance(three, Result)
    assert not three.failed
    assert isinstance(three.content[0], Text)
    assert three.content[0].text.startswith(
        "[an attachment of type application/zip, 1 bytes, that cannot be shown"
    )


def test_an_orphan_call_has_a_result_in_every_context_and_a_late_one_is_dropped(book: Book) -> None:
    book.message("go")
    book.answer("s1", "c1", "c2")
    book.result("c2", "two")
    assert last(book) == (("c1", NO_RESULT), ("c2", "two"))
    book.answer("s2")  # no harness of ours does this
    assert status(book) == "interrupted"
    book.result("c1", "late")
    assert status(book) == "closed", "nobody would read it"
    assert context(book).last is None
    book.message("on")
    assert said(book)[2:] == [(("c1", NO_RESULT), ("c2", "two")), ("words",), ("on",)]


def test_a_result_that_arrives_while_the_step_runs_that_did_without_it_is_dropped(book: Book) -> None:
    book.message("go")
    book.answer("s1", "c1")
    sent, upto = context(book).last, book.n
    book.result("c1", "late")
    book.text("s2")
    book.step("s2", upto)
    assert status(book) == "closed"
    assert context(book).settled[2] == sent
    assert context(book).last is None
    assert chains.fold(book.records).pending_tokens == 0


def test_a_second_result_and_one_for_no_call_are_dropped(book: Book) -> None:
    book.message("go")
    book.answer("s1", "c1")
    book.result("c1", "one")
    book.result("c1", "again")
    book.result("c9", "whose?")
    assert last(book) == (("c1", "one"),)
    assert chains.fold(book.records).pending_tokens == 1 + 8


def test_the_ids_of_all_calls_are_known_also_of_those_that_no_step_closed(book: Book) -> None:
    book.message()
    book.call("try1", "c1")
    book.answer("s1", "c2")
    assert chains.fold(book.records).call_ids == {"c1", "c2"}


# What a message may be.


def test_images_are_media_and_other_attachments_are_named(book: Book) -> None:
    book.add("message", PNG, "Image/PNG; name=x", via="me")
    book.add("message", b"%PDF", "application/pdf", via="me")
    book.add("message", b"", "image/png", via="me")
    book.add("message", b'{"text":"inside","more":1}', "application/json", via="me")
    book.add("message", b"bro\xffken", "text/markdown", via="me")
    assert last(book) == (
        Media("image/png", PNG),
        "[an attachment of type application/pdf, 4 bytes, that cannot be shown here]",
        "[an attachment of type image/png, 0 bytes, that cannot be shown here]",
        '{"text":"inside","more":1}',
        "bro\ufffdken",
    )


def test_an_error_whose_body_does_not_parse_does_not_stop_a_context(book: Book) -> None:
    book.message("hi")
    book.add("error", b"\xff", records.JSON)
    book.error("", code="limit")
    assert last(book) == ("hi", "[error]", "[limit]")


@pytest.mark.parametrize("kind", ["config", "call"])
def test_a_body_that_must_parse_and_does_not_leaves_the_chain_as_it_was(
    book: Book, kind: records.Kind
) -> None:
    book.message()
    chain = chains.fold(book.records)
    before, at = chain.context(), chain.updated
    bad = book.add(kind, b"{", records.JSON, id="c1", step="s1")
    with pytest.raises(BadRecord, match=rf"record {bad.n} \({kind}\): its body does not parse"):
        chain.add(bad)
    assert (chain.n, chain.updated, chain.status, chain.call_ids) == (bad.n - 1, at, "open", set())
    assert chain.context() == before


# Totals and what stands about a session.


def test_totals_come_from_the_steps(book: Book) -> None:
    book.message()
    chain = chains.fold(book.records)
    assert (chain.steps, chain.usage, chain.prompt, chain.answer) == (0, Usage(), 0, 0)
    book.answer("s1", usage=Usage(10, 2, 3, 4))
    book.text("try", "lost")
    book.answer("s2", text="", usage=Usage(100, 20, 30, 40))
    chain = chains.fold(book.records)
    assert (chain.steps, chain.usage) == (2, Usage(110, 22, 33, 44))
    assert (chain.prompt, chain.answer) == (170, 20)
    book.add("step", id="s3", upto=book.n)
    chain = chains.fold(book.records)
    assert (chain.steps, chain.usage, chain.prompt) == (3, Usage(110, 22, 33, 44), 190)


def test_what_a_server_does_not_count_is_estimated(book: Book) -> None:
    book.message("x" * 3000)
    before = chains.fold(book.records).pending_tokens
    book.answer("s1", text="y" * 300, usage=Usage())
    chain = chains.fold(book.records)
    assert (chain.prompt, chain.answer) == (before, 108)
    book.message("z" * 30)
    book.answer("s2", text="w", usage=Usage())
    assert chains.fold(book.records).prompt == before + 108 + 18


def test_times_and_numbers_follow_the_records(book: Book) -> None:
    chain = chains.fold(book.records)
    assert (chain.n, chain.created, chain.updated) == (
        3,
        "2026-01-01T00:00:01.000Z",
        "2026-01-01T00:00:03.000Z",
    )


def test_the_newest_config_wins(book: Book) -> None:
    book.config(model="a/b", workers=(WorkerRef("far"),))
    assert chains.fold(book.records).config == Config("a/b", workers=(WorkerRef("far"),))


@pytest.mark.parametrize(
    ("messages", "title"),
    [
        (["  \n  Fix the build  \r\nplease"], "Fix the build"),
        (["x" * 100], "x" * 80),
        (["", "second"], "second"),
        (["first", "second"], "first"),
        ([], ""),
    ],
)
def test_the_title_is_the_first_line_of_the_first_message(
    book: Book, messages: list[str], title: str
) -> None:
    book.add("message", PNG, "image/png", via="me")
    for text in messages:
        book.message(text)
    assert chains.fold(book.records).title == title


def test_posts_are_known_by_their_key_and_last_number(book: Book) -> None:
    book.message(idempotency_key="k1")
    book.message(idempotency_key="k1")
    book.message()
    book.message(idempotency_key="k2")
    assert chains.fold(book.records).posts == {"k1": 5, "k2": 7}


def test_what_waits_is_estimated_in_tokens(book: Book) -> None:
    def waiting() -> int:
        return chains.fold(book.records).pending_tokens

    start = waiting()
    assert start == len("You are an agent.") // 3 + 8
    book.message("x" * 300)
    book.add("message", bytes(1_000_000), "image/png", via="me")
    assert waiting() == start + 108 + MEDIA_TOKENS
    upto = book.n
    book.text("s1")
    book.message("x" * 30)
    book.step("s1", upto)
    assert waiting() == 18, "the step's own usage counts all that it saw"
    book.answer("s2", text="")
    assert waiting() == 0, "also where it is asked again"
    book.message("x" * 60)
    assert waiting() == 28


def test_every_part_has_an_estimate() -> None:
    sizes = [
        part_tokens(part)
        for part in (
            Text("x" * 30),
            Media("image/png", bytes(10**6)),
            Call("c", "run", "x" * 30, b"y" * 30, "p"),
            Raw("p", "m", "t", b"x" * 30, ""),
            Result("c", "run", (Text("x" * 30), Media("image/png", b"")), False),
        )
    ]
    assert sizes == [18, MEDIA_TOKENS, 28, 18, 18 + MEDIA_TOKENS]


# Copies.


def test_a_copy_cut_anywhere_that_is_allowed_goes_on(book: Book) -> None:
    book.message("one")
    book.text("s1")
    book.call("s1", "c1")
    book.step("s1", 4)
    book.result("c1")
    book.answer("s2")
    for n in range(3, book.n + 2):
        copy = Book(begun=False)
        copy.records = book.records[: n - 1]
        if status(copy) == "interrupted":
            continue  # refused: a call has no result before n
        copy.message("and now?")
        copy.answer("t1", text="this")
        assert said(copy)[-1] == ("this",)
        assert status(copy) == "closed"


# Settled turns.


def test_settled_turns_only_grow_and_keep_their_identity(book: Book) -> None:
    chain, seen = Chain(), list[Turn]()
    for record in long_session(5):
        chain.add(record)
        now = chain.context()
        assert now.epoch == 0
        assert len(now.settled) >= len(seen)
        assert all(new is old for new, old in zip(now.settled, seen, strict=False))
        seen = list(now.settled)
    assert len(seen) == 20


def long_session(rounds: int) -> Iterator[Record]:
    """A session with parallel calls in each round: four turns a round."""
    book = Book()
    for k in range(rounds):
        book.message(f"m{k}")
        book.answer(f"s{k}", f"a{k}", f"b{k}", text=f"call {k}")
        book.result(f"b{k}", f"rb{k}")
        book.message(f"also {k}")
        book.result(f"a{k}", f"ra{k}")
        book.answer(f"t{k}", text=f"done {k}")
    return iter(book.records)


# Summaries.


def words(found: Context) -> str:
    return "\n".join(str(plain(part)) for turn in turns(found) for part in turn.parts)


def summed(rounds: int) -> Iterator[tuple[Book, int]]:
    """A book of that session, for every number a summary can stand for."""
    whole = list(long_session(rounds))
    for upto in range(len(whole) + 1):
        book = Book(begun=False)
        book.records = list(whole)
        yield book, upto


def test_a_summary_at_every_cut_keeps_calls_and_results_together() -> None:
    for book, upto in summed(4):
        kept = [record for record in book.records if record.n > upto]
        book.summary(upto, "SUMMARY")
        found = context(book)
        assert found.epoch == 1
        text = words(found)
        assert text.count("SUMMARY") == 1
        assert plain(turns(found)[0].parts[0]) == "SUMMARY"
        for record in kept:
            if record.kind in ("message", "text", "result"):
                assert record.text() in text, f"record {record.n} is past {upto}"
        for record in book.records[:upto]:
            if record.kind == "message":
                assert record.text() not in text.split("\n"), f"record {record.n} is not past {upto}"
        book.message("next")
        book.answer("z", text="on")
        assert words(context(book)).endswith("next\non")


def test_two_summaries_in_a_row_leave_the_one_that_stands_for_more() -> None:
    for book, first in summed(3):
        size = book.n
        for second in range(0, size + 1, 3):
            again = Book(begun=False)
            again.records = list(book.records)
            again.summary(first, "FIRST")
            again.summary(second, "SECOND")
            text = words(context(again))
            assert text.count("FIRST") == (first > second)
            assert text.count("SECOND") == (first <= second)


def test_a_summary_of_a_summary_and_what_came_after_it() -> None:
    for book, upto in summed(2):
        book.summary(upto, "FIRST")
        book.message("after")
        book.answer("z", "cz", text="more")
        book.result("cz", "rz")
        for second in range(upto, book.n + 1):
            again = Book(begun=False)
            again.records = list(book.records)
            again.summary(second, "SECOND")
            assert "FIRST" not in words(context(again))
            again.answer("y", text="fin")
            assert words(context(again)).endswith("fin")


@pytest.mark.parametrize("at", [2, 3])
def test_a_summary_while_calls_run_leaves_them_their_results(book: Book, at: int) -> None:
    book.message("go")
    book.answer("s1", "c1", "c2", text="calling")
    if at == 3:
        book.result("c2", "two")
    book.summary(book.n)
    assert status(book) == "interrupted"
    if at == 2:
        book.result("c2", "two")
    book.result("c1", "one")
    assert said(book) == [
        ("what was before",),
        ("calling", *(Call(id, "run", "{}", b"", "rehearsal", "tour") for id in ("c1", "c2"))),
        (("c1", "one"), ("c2", "two")),
    ]
    book.answer("s2")
    assert status(book) == "closed"


def test_a_summary_of_a_call_alone_leaves_it_to_the_results_that_wait(book: Book) -> None:
    book.message("go")
    step = book.answer("s1", "c1", text="calling")
    book.result("c1", "one")
    book.summary(step.n)
    assert said(book)[-1] == (("c1", "one"),)
    book.summary(step.n + 1)
    assert said(book) == [("what was before",)]


def test_a_summary_of_all_stands_before_the_next_message(book: Book) -> None:
    book.message("go")
    book.answer("s1")
    book.summary(book.n)
    assert status(book) == "closed"
    book.message("next")
    assert said(book) == [("what was before", "next")]


def test_a_summary_while_a_step_runs_takes_the_place_of_its_question(book: Book) -> None:
    book.message("go")
    upto = book.n
    book.text("s1", "answer")
    book.summary(upto)
    book.step("s1", upto)
    assert said(book) == [("what was before",), ("answer",)]


def test_a_summary_takes_a_message_that_arrived_during_a_step(book: Book) -> None:
    book.message("one")
    upto = book.n
    book.message("two")
    book.text("s1", "first")
    book.step("s1", upto)
    between = book.n - 1
    book.answer("s2", text="second")
    book.summary(between)
    assert said(book) == [("what was before",), ("first",), (GO_ON,), ("second",)]
    waiting = Book(begun=False)
    waiting.records = book.records[: between + 1]
    waiting.summary(between)
    assert status(waiting) == "open"
    assert last(waiting) == (GO_ON,)


def test_a_blank_summary_leaves_no_blank_text(book: Book) -> None:
    book.message("one")
    book.answer("s1", text="first")
    book.summary(4, " ")
    assert said(book) == [(GO_ON,), ("first",)]


def test_after_a_summary_the_prompt_is_estimated_from_what_is_left(book: Book) -> None:
    book.message("x" * 30_000)
    book.answer("s1", usage=Usage(10_000, 50))
    book.message("y" * 300)
    book.summary(6)
    chain = chains.fold(book.records)
    assert chain.prompt + chain.answer + chain.pending_tokens < 200
    book.answer("s2", usage=Usage(150, 5))
    chain = chains.fold(book.records)
    assert (chain.prompt, chain.answer, chain.pending_tokens) == (150, 5, 0)


def at(second: int) -> str:
    """As a Book dates record number `second`."""
    return records.stamp(EPOCH + timedelta(seconds=second))


def test_work_is_what_requests_and_calls_took_and_no_waiting(book: Book) -> None:
    book.message()
    for _ in range(5):
        book.add("system", "time goes by", source="session")
    book.answer("s1", "c1", "c2", text="", sent=at(8))  # record 12: 4 seconds
    assert chains.fold(book.records).worked == 4
    book.result("c1", seconds=0.5)
    assert chains.fold(book.records).worked == 4.5
    book.result("c2", seconds=9.0)  # side by side: 2 seconds after the step
    assert chains.fold(book.records).worked == 6
    for _ in range(5):
        book.message("and a person thinks")
    assert chains.fold(book.records).worked == 6
    book.answer("s2", text="", sent=at(book.n))
    assert chains.fold(book.records).worked == 7


def test_a_request_that_failed_was_work_and_a_call_that_a_dead_daemon_left_was_as_long_as_it_ran(
    book: Book,
) -> None:
    book.message()
    book.keep(records.error_draft("provider", "no", sent=at(book.n - 2)))
    assert chains.fold(book.records).worked == 3
    book.message()
    book.answer("s1", "c1", text="", sent=at(book.n + 2))
    for _ in range(100):
        book.add("system", "it is down", source="session")
    book.result("c1", seconds=2.5)
    assert chains.fold(book.records).worked == 5.5


def test_times_that_do_not_read_or_run_backwards_are_no_work(book: Book) -> None:
    book.message()
    book.answer("s1", "c1", text="", sent="yesterday")
    book.result("c1", seconds=-3.0)
    book.answer("s2", text="", sent=at(book.n + 100))
    book.answer("s3", text="")
    assert chains.fold(book.records).worked == 0

import io
import os
import re
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon import asked, plain, view
from daemon.plain import clip, line, printed, safe, wanted
from daemon.protocol import records
from daemon.protocol.api import Delta
from daemon.protocol.records import CallBody, Record, Usage, draft, error_draft, json_draft
from daemon.verbs.paint import Ink, Painter, cut, wrap
from daemon.view import Fold, Item, Noted

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m \x9b2J \u202etxt.exe\u202c \x08\x08 \x7f \x00 \x85 \ud83d"
)


def stored(record: Record, n: int, **fields: Any) -> Record:
    """`record` as the log would have stored it."""
    fields.setdefault("id", record.id or f"{n:016x}")
    fields.setdefault("time", "2026-01-02T03:04:05.678Z")
    return Record(msgspec.structs.replace(record.header, n=n, **fields), record.body)


def call(name: str, n: int = 5, id: str = "c1", **arguments: Any) -> Record:
    body = CallBody(name, msgspec.json.encode(arguments).decode())
    return stored(json_draft("call", body, step="s1"), n, id=id)


# Text.


@given(st.text(st.characters() | st.sampled_from("\x1b\r\x08\x9b\u202e\ud800")))
def test_no_text_reaches_a_terminal_raw(text: str) -> None:
    for shown in (safe(text), printed(text), line(text)):
        assert not RAW.search(shown)
        shown.encode()
    assert "\n" not in line(text)


@given(st.text())
def test_safe_text_keeps_everything_that_harms_nobody(text: str) -> None:
    harmless = "".join(c for c in text if c in "\t\n" or unicodedata.category(c)[0] not in "CZ" or c == " ")
    assert safe(harmless) == harmless


def test_what_is_not_output_hides_nothing() -> None:
    assert safe("rm -rf / #\r\x1b[2Kecho hi") == "rm -rf / #␍␛[2Kecho hi"
    assert safe("a\u202eb\x9bc\x7f\ud83d\U000e0041") == "a\\u202eb\\x9bc␡\ufffd\\U000e0041"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1bP1$r0m\x1b\\x", "x"),
        ("10%\r50%\r100%\ndone\r\n", "100%\ndone\n"),
        ("N\x08NA\x08AM\x08ME\x08E", "NAME"),
        ("\x08\x08a\n\x08b", "a\nb"),
        ("\x1b(B\x1b7\x1b=x", "x"),
        ("open \x1b]0;never closed", "open ␛]0;never closed"),
        ("end \x1b", "end ␛"),
    ],
)
def test_output_looks_as_a_terminal_would_have_left_it(output: str, shown: str) -> None:
    assert printed(output) == shown


def test_an_escape_string_cannot_hide_more_than_its_line() -> None:
    assert "seen" in printed("\x1b]0;x\nseen\x07")


def test_a_complaint_about_a_type_is_said_in_words() -> None:
    assert wanted("Expected `int`, got `str`") == "expected a whole number, not text"
    assert wanted("Expected `array | null` of length >= 1") == "expected a list or null of at least 1 items"
    assert wanted("Expected `str` of length <= 200") == "expected text of at most 200 characters"
    assert wanted("Expected `float` > 0.0") == "expected a number of over 0"
    assert wanted("Expected `int`, got `float`") == "expected a whole number, not a fraction"
    assert wanted("Expected `object`, got `array`", "an object") == "expected an object, not a list"
    assert wanted("Object contains unknown field `x`") == "Object contains unknown field `x`"


def test_many_backspaces_cost_little() -> None:
    assert printed("a" * 200_000 + "\x08" * 200_000) == ""


def test_a_short_text_is_not_clipped() -> None:
    assert clip("a\nb", 2, 10) == ("a\nb", "", "")


def test_a_long_text_is_clipped_to_its_start_and_more_of_its_end() -> None:
    text = "\n".join(map(str, range(100)))
    start, note, end = clip(text, 8, 1000)
    assert (start, note, end) == ("0\n1", "92 lines not shown", "\n".join(map(str, range(94, 100))))


def test_one_huge_line_is_clipped_by_its_characters() -> None:
    start, note, end = clip("x" * 5000, 8, 1000)
    assert (len(start), note, len(end)) == (250, "4,000 characters not shown", 750)
    start, note, end = clip("short\n" + "x" * 5000, 8, 1000)
    assert "characters not shown" in note


@given(st.text("ab\n", max_size=200), st.integers(4, 20), st.integers(8, 50))
def test_a_clipped_text_fits(text: str, lines: int, chars: int) -> None:
    start, note, end = clip(text, lines, chars)
    assert len(start) + len(end) <= chars or not note
    assert start.count("\n") + end.count("\n") + (2 if note else 1) <= lines
    assert text.startswith(start)
    assert text.endswith(end)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (plain.size(999), "999 B"),
        (plain.size(1500), "1.5 kB"),
        (plain.size(2_500_000), "2.5 MB"),
        (plain.tokens(9999), "9999"),
        (plain.tokens(200_000), "200k"),
        (plain.tokens(1_500_000), "1.5M"),
        (plain.seconds(0.04), "0.0 s"),
        (plain.seconds(61), "1 min 01 s"),
        (plain.seconds(3600), "1 h 00 min"),
        (plain.count(1, "line"), "1 line"),
        (plain.count(1234, "line"), "1,234 lines"),
    ],
)
def test_numbers_are_short(shown: str, text: str) -> None:
    assert shown == text


# Records.


def test_a_message_shows_who_sent_it() -> None:
    item = Fold().add(stored(draft("message", "hello\r\nthere\n", via="cli"), 4))
    assert item == Item(4, "message", "message via cli", "hello\nthere", time="2026-01-02T03:04:05.678Z")


@pytest.mark.parametrize(
    ("name", "arguments", "title", "body", "language"),
    [
        ("run", {"worker": "local", "code": "ls\n"}, "run · on local · bash", "ls", "bash"),
        (
            "run",
            {"worker": "w", "code": "1", "interpreter": "python", "timeout": 5},
            "run · on w · python · timeout 5",
            "1",
            "python",
        ),
        ("read", {"worker": "w", "path": "/a", "offset": 3}, "read · on w · /a · offset 3", "", ""),
        ("write", {"worker": "w", "path": "a", "content": "x\r\n"}, "write · on w · a", "x", ""),
        ("write", {"path": "b.d/a.YML", "content": "x: 1"}, "write · b.d/a.YML", "x: 1", "yaml"),
        ("write", {"path": "b.d/Makefile", "content": "x:"}, "write · b.d/Makefile", "x:", ""),
        ("run", {"code": "1", "interpreter": "node"}, "run · node", "1", "javascript"),
        ("run", {"code": "1", "interpreter": "jupyter:ir"}, "run · jupyter:ir", "1", ""),
        (
            "edit",
            {"worker": "w", "path": "a", "old": "x\n", "new": "y\nz", "all": True},
            "edit · on w · a · all true",
            "- x\n+ y\n+ z",
            "diff",
        ),
        ("patch", {"worker": "w", "input": "*** Begin"}, "patch · on w", "*** Begin", "diff"),
        ("other", {"a": 1}, "other", '{\n  "a": 1\n}', "json"),
        ("other", {}, "other", "", ""),
        ("run", {"worker": 3, "code": ["x"]}, 'run · bash · worker 3 · code ["x"]', "", "bash"),
    ],
)
def test_a_call_shows_worker_interpreter_and_code(
    name: str, arguments: dict[str, Any], title: str, body: str, language: str
) -> None:
    assert asked.call(name, msgspec.json.encode(arguments).decode()) == (title, body, language)


@pytest.mark.parametrize(
    ("arguments", "title"),
    [('{"code": ', "not valid JSON"), ("[1]", "not an object"), ("\ud83d", "not valid JSON")],
)
def test_bad_arguments_are_shown_as_they_are(arguments: str, title: str) -> None:
    shown, body, _ = asked.call("run", arguments)
    assert title in shown
    assert body == safe(arguments)


def test_the_code_of_a_call_hides_nothing() -> None:
    _, body, _ = asked.call("run", '{"code": "rm -rf / #\\r\\u001b[2Kecho hi"}')
    assert body == "rm -rf / #␍␛[2Kecho hi"


def test_a_result_names_its_call_its_exit_and_its_seconds() -> None:
    fold = Fold()
    assert fold.add(call("run", code="x")).state == "running"
    assert fold.waiting == {"c1": 5}
    result = draft(
        "result", "out\n", for_="c1", exit=3, seconds=0.25, worker="local", truncated=7, full_output="/f"
    )
    item = fold.add(stored(result, 6))
    assert item.title == "result of #5 · exit 3 · on local · 0.2 s · 7 lines cut, all of it in /f"
    assert (item.body, item.state, item.call) == ("out", "nonzero", "c1")
    assert fold.waiting == {}


def test_images_behind_a_result_are_of_the_same_call() -> None:
    fold = Fold()
    fold.add(call("run", code="x"))
    results = [draft("result", "out", for_="c1")] + [
        draft("result", b"\x89PNG", type="image/png", for_="c1") for _ in range(2)
    ]
    titles = [fold.add(stored(result, n)).title for n, result in enumerate(results, 6)]
    assert titles == ["result of #5"] * 3


def test_a_result_that_is_not_known_says_so() -> None:
    item = Fold().add(stored(draft("result", "gone", for_="c9", failed=True), 6))
    assert (item.title, item.state) == ("result · failed", "failed")


def test_steps_are_counted_and_their_tokens_summed() -> None:
    fold = Fold()
    step = draft("step", provider="anthropic", model="m", usage=Usage(10, 5, 100), stop="end_turn")
    assert fold.add(stored(step, 3)).title == "step 1 · m · 110 tokens in, 5 out · end_turn"
    assert fold.add(stored(step, 4)).title.startswith("step 2")
    assert fold.usage == Usage(20, 10, 200)


def test_blocks_of_a_try_that_broke_off_are_told_as_void_by_what_follows() -> None:
    fold = Fold()
    assert fold.add(stored(draft("text", "half", step="s1"), 4)).void == ()
    assert fold.add(call("run", n=5, code="x")).void == ()
    assert fold.add(stored(draft("text", "whole", step="s2"), 6)).void == (4, 5)
    assert fold.waiting == {}
    assert fold.add(stored(draft("step", id="s2"), 7)).void == ()
    fold.add(stored(draft("text", "half", step="s3"), 8))
    assert fold.add(stored(error_draft("provider", "gone"), 9)).void == (8,)
    assert fold.add(stored(error_draft("provider", "gone"), 10)).void == ()


def test_an_error_says_what_one_can_do() -> None:
    item = Fold().add(stored(error_draft("stopped", "stopped by cli", via="cli"), 3))
    assert (item.title, item.body, item.state) == ("stopped via cli", "", "failed")
    assert item.hint


def test_thinking_and_system_text_are_folded() -> None:
    fold = Fold()
    raw = draft("thinking", b'{"thinking": "hm", "signature": "x"}', "application/vnd.x+json")
    assert fold.add(stored(raw, 3)).title == "thinking, 2 characters"
    assert fold.add(stored(raw, 3)).folded
    hidden = draft("thinking", b'{"data": "secret"}', "application/vnd.x+json")
    assert fold.add(stored(hidden, 3)).title == "hidden thinking, 18 B"
    system = fold.add(stored(draft("system", "You are", source="harness"), 3))
    assert (system.title, system.folded) == ("system text from harness, 7 characters", True)


def test_an_image_is_a_line_with_its_size() -> None:
    item = Fold().add(stored(draft("message", b"\x89PNG" * 500, "image/png", via="tui"), 3))
    assert item.body == "(image/png, 2.0 kB)"


def test_a_config_shows_model_and_workers() -> None:
    config = records.Config(
        "a/b", workers=(records.WorkerRef("local", "/x"), records.WorkerRef("gpu")), context=9
    )
    item = Fold().add(stored(json_draft("config", config), 2))
    assert item.title == "a/b · workers: local:/x, gpu · context 9"


def test_a_config_shows_its_limits_and_params() -> None:
    config = records.Config("a/b", limits=records.Limits(steps=20, seconds=1.5), params={"temperature": 0.2})
    item = Fold().add(stored(json_draft("config", config), 2))
    assert item.title == 'a/b · workers: none · limits: 20 steps, 1.5 seconds · params: {"temperature":0.2}'


def test_a_kind_of_a_later_release_is_shown_by_its_name() -> None:
    item = Fold().add(stored(draft("plan", "steps"), 3))  # type: ignore[arg-type]
    assert (item.kind, item.title, item.body, item.folded) == ("plan", "plan, 5 B", "steps", True)


def test_the_other_kinds_are_one_line() -> None:
    fold = Fold()
    assert fold.add(stored(draft("start"), 1)).title == "session started"
    assert fold.add(stored(draft("end", reason="expired", via="cli"), 9)).title == "session expired via cli"
    assert fold.add(stored(draft("summary", "so far", upto=4), 8)).body == "so far"


@given(
    st.sampled_from(
        ["start", "config", "system", "message", "text", "thinking", "call", "step", "result", "error"]
    ),
    st.binary(max_size=40),
    st.sampled_from([records.TEXT, records.JSON, "image/png", "application/vnd.x+json"]),
)
def test_no_record_whatever_it_holds_fails_to_be_drawn(kind: Any, body: bytes, type: str) -> None:
    item = Fold().add(stored(draft(kind, body, type, via=HOSTILE), 3))
    assert not RAW.search(item.title + item.body + item.hint)


# On a terminal and in a pipe.


class Screen:
    """A painter, what it wrote, and a clock that a test moves."""

    def __init__(
        self, live: bool, columns: int = 40, lines: int = 20, colour: bool = False, full: bool = False
    ) -> None:
        self.out = io.StringIO()
        self.now = 100.0
        self.painter = Painter(
            self.out,
            live=live,
            full=full,
            pen=Ink(colour),
            retry="outrider retry x",
            screen=lambda: os.terminal_size((columns, lines)),
            clock=lambda: self.now,
        )

    @property
    def text(self) -> str:
        return self.out.getvalue()

    @property
    def shown(self) -> list[str]:
        """What stands on the screen: rows, with the painter's cursor movements carried out."""
        rows, at = [""], 0
        for up, erase, text in re.findall(r"\x1b\[(\d+)A\r|(\x1b\[J)|([^\x1b]+)", self.text):
            if up:
                at -= int(up)
            elif erase:
                del rows[at:]
                rows.append("")
            else:
                for part in text.split("\n"):
                    rows[at] += part
                    at += 1
                    if at == len(rows):
                        rows.append("")
                at -= 1
                del rows[at + 1 :]
        return rows


def test_a_pipe_gets_whole_records_and_no_escape_codes() -> None:
    screen = Screen(live=False)
    screen.painter.record(stored(draft("message", f"hi {HOSTILE}", via="cli"), 4))
    screen.painter.delta(Delta("text", "Hel"))
    screen.painter.record(stored(draft("text", "Hello\n\nthere"), 5))
    assert "\x1b" not in screen.text
    assert screen.text.endswith("\n\n#5 answer\n  Hello\n\n  there\n")


def test_what_a_body_says_cannot_look_like_a_record() -> None:
    screen = Screen(live=False)
    screen.painter.record(stored(draft("result", "x\n#9 message via cli\n  obey", for_="c"), 5))
    assert [row for row in screen.text.split("\n") if row.startswith("#")] == ["#5 result"]


def test_a_terminal_shows_an_answer_as_it_streams_and_then_its_record_in_its_place() -> None:
    screen = Screen(live=True)
    screen.painter.record(stored(draft("message", "hi", via="cli"), 4))
    assert screen.shown == ["#4 message via cli", "  hi", "", "… waiting for the model", ""]
    screen.now += 1
    screen.painter.delta(Delta("text", "Hel", step="s"))
    screen.now += 1
    screen.painter.delta(Delta("text", "lo\nyou", step="s", at=3))
    assert screen.shown == ["#4 message via cli", "  hi", "", "answer", "  Hello", "  you", ""]
    screen.painter.record(stored(draft("text", "Hello\nyou", step="s"), 5))
    screen.painter.record(stored(draft("step", id="s", model="m"), 6))
    assert screen.shown == [
        "#4 message via cli",
        "  hi",
        "",
        "#5 answer",
        "  Hello",
        "  you",
        "#6 step 1 · m · 0 tokens in, 0 out",
        "",
    ]


def test_a_restart_takes_the_void_answer_off_the_screen() -> None:
    screen = Screen(live=True)
    screen.painter.delta(Delta("text", "Hello wor"))
    screen.painter.note("overloaded: try 2 follows")
    screen.now += 1
    screen.painter.restart()
    assert screen.shown == ["(overloaded: try 2 follows)", ""]


def test_the_live_part_never_grows_over_the_screen() -> None:
    screen = Screen(live=True, columns=20, lines=10)
    screen.painter.delta(Delta("text", "word " * 400))
    assert len(screen.shown) <= 9
    assert all(len(row) < 20 for row in screen.shown)


def test_a_run_that_goes_shows_its_newest_output_and_for_how_long_it_is_silent() -> None:
    screen = Screen(live=True)
    screen.painter.record(call("run", worker="local", code="make"))
    screen.now += 5
    screen.painter.tick()
    assert screen.shown[-2] == "… running #5, 5 s"
    screen.now += 1
    screen.painter.delta(Delta("output", "".join(f"{n}\n" for n in range(50)), call="c1"))
    assert screen.shown[-8:] == ["output so far of #5", *(f"  {n}" for n in range(44, 50)), ""]
    screen.painter.record(stored(draft("result", "ok", for_="c1", exit=0), 6))
    screen.painter.close()
    assert screen.shown[-3:] == ["#6 result of #5 · exit 0", "  ok", ""]


def test_output_that_stays_away_is_told_of_by_the_second() -> None:
    screen = Screen(live=True)
    screen.painter.record(call("run", worker="local", code="make"))
    screen.painter.delta(Delta("output", "building\n", call="c1"))
    screen.now += 2
    screen.painter.tick()
    assert screen.shown[-2] == "  building"
    screen.now += 10
    screen.painter.tick()
    assert screen.shown[-3:] == ["  building", "… nothing new for 12 s", ""]
    screen.painter.delta(Delta("output", "built\n", call="c1", at=9))
    screen.now += 1
    screen.painter.tick()
    assert screen.shown[-3:] == ["  building", "  built", ""]


def test_what_the_terminal_shows_of_ctrl_c_is_wiped() -> None:
    screen = Screen(live=True)
    screen.painter.record(stored(draft("step", id="s", model="m"), 6))
    screen.out.write("^C")
    screen.painter.close()
    assert screen.text.endswith("out\n^C\r\x1b[J")


def test_a_long_body_is_clipped_and_says_so_unless_all_is_asked_for() -> None:
    body = "\n".join(map(str, range(1000)))
    screen = Screen(live=False)
    screen.painter.record(stored(draft("result", body, for_="c"), 5))
    assert "\n  … 960 lines not shown; --full shows all …\n" in screen.text
    assert screen.text.endswith("  999\n")
    whole = Screen(live=False, full=True)
    whole.painter.record(stored(draft("result", body, for_="c"), 5))
    assert whole.text.count("\n") == 1001


def test_an_error_ends_with_the_line_that_goes_on() -> None:
    screen = Screen(live=False)
    screen.painter.record(stored(error_draft("provider", "overloaded"), 5))
    assert "outrider retry x" in screen.text


def test_colours_are_on_titles_and_never_in_the_text() -> None:
    screen = Screen(live=False, colour=True)
    screen.painter.record(stored(draft("text", "plain"), 5))
    assert screen.text == "\x1b[2m#5 \x1b[0m\x1b[1;32manswer\x1b[0m\n  plain\n"


@given(st.text(st.sampled_from("ab \t漢字e\u0301👍\n"), max_size=80), st.integers(4, 30))
def test_wrapped_rows_fit_their_columns(text: str, width: int) -> None:
    def columns(row: str) -> int:
        return sum(
            0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
            for c in row
        )

    rows = wrap(text, width)
    assert all(columns(row) <= width for row in rows)
    assert "".join(rows) == text.expandtabs(4).replace("\n", "")
    words = wrap(text, width, words=True)
    assert all(columns(row) <= width for row in words)
    assert "".join(words).replace(" ", "") == text.expandtabs(4).replace("\n", "").replace(" ", "")
    assert columns(cut(text.replace("\n", " "), width)) <= width


def test_words_are_broken_at_spaces_where_there_are_some() -> None:
    assert wrap("one two  three_is_long\n\nx", 8, words=True) == ["one two", "three_is", "_long", "", "x"]


# What a screen keeps without bodies.


def test_a_header_says_what_its_record_is_about_and_how_it_stands() -> None:
    fold = Fold()
    assert fold.note(call("run", code="x").header) == Noted(0, "running")
    assert fold.note(stored(draft("step", id="s1"), 6).header) == Noted(1, "done")
    assert fold.note(stored(draft("result", for_="c1", exit=3), 7).header) == Noted(5, "nonzero")
    assert fold.note(stored(draft("text", step="s2"), 8).header) == Noted()
    assert fold.note(stored(error_draft("gone", "gone"), 9).header) == Noted(0, "failed", (8,))


def test_a_record_drawn_again_later_is_the_same_item() -> None:
    fold = Fold()
    fold.add(call("run", code="x"))
    result = stored(draft("result", "out", for_="c1", exit=0), 6)
    assert view.item(result, 5) == fold.add(result)


def test_what_is_no_text_has_its_media_type_and_size() -> None:
    item = view.item(stored(draft("message", b"\x89PNG" * 500, "image/png"), 3))
    assert (item.media, item.size) == ("image/png", 2000)
    assert view.item(stored(draft("message", "text"), 3)).media == ""


def test_an_edit_shows_the_lines_that_stayed_between_those_that_changed() -> None:
    arguments = msgspec.json.encode({"path": "a", "old": "a\nb\nc\n", "new": "a\nB\nc"}).decode()
    assert asked.call("edit", arguments)[1] == "  a\n- b\n+ B\n  c"
    many = msgspec.json.encode({"old": "x\n" * asked.COMPARED, "new": "y"}).decode()
    assert asked.call("edit", many)[1].endswith("- x\n+ y")

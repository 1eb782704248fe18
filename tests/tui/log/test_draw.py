import re
from datetime import UTC
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from daemon.fixes import FIXES
from daemon.plain import MAX_LINES
from daemon.protocol import records
from daemon.protocol.records import CallBody, draft, error_draft, json_draft
from daemon.streaming import Streamed
from daemon.view import Item, State, item
from tests.tui.log.fakes import Book
from tests.tui.log.test_text import ACTS, HOSTILE
from tui.log.draw import HERE, LiveBlock, draw, folds


def drawn(found: Item, columns: int = 60, folded: bool | None = None, state: State = "") -> list[str]:
    fold = folds(found) if folded is None else folded
    rows = draw(found, columns, folded=fold, state=state or found.state, zone=UTC)
    return [row.text.rstrip() for row in rows]


def one(kind: Any, text: str | bytes = "", **fields: Any) -> Item:
    return item(Book().say(kind, text, **fields), fields.pop("about", 0))


def test_a_title_has_number_and_time_where_there_is_room() -> None:
    found = one("message", "hi", via="tui")
    assert drawn(found)[1:] == ["❯ message via tui" + " " * 32 + "#1 00:00:01", "  hi"]
    assert drawn(found, 50)[1].endswith("tui" + " " * 31 + "#1")
    assert drawn(found, 30)[1] == "❯ message via tui"
    assert drawn(found, 12)[1] == "❯ message v…"


def test_thinking_and_long_results_are_folded_to_a_line_with_their_size() -> None:
    assert drawn(one("thinking", "hm"))[1:] == ["▸ thinking, 2 characters" + " " * 25 + "#1 00:00:01"]
    (title,) = drawn(one("result", "x\n" * 30, for_="c", exit=0))
    assert title.startswith("▸ result · exit 0 · 30 lines, 59 B")
    assert len(drawn(one("result", "x\n" * 5, for_="c", exit=0))) == 6
    assert len(drawn(one("result", "x\n" * 30, for_="c", exit=1))) == 31


def test_an_error_says_what_one_can_do() -> None:
    found = item(Book().add(error_draft("overloaded", "tried 4 times")))
    assert drawn(found)[2:] == ["  tried 4 times", "  → retry in a while"]


def test_what_can_be_done_here_is_said_with_its_key_and_no_verb_of_a_shell() -> None:
    assert set(HERE) <= set(
        re.findall(r"\(`outrider [a-z ]+`\)", " ".join(fix.session for fix in FIXES.values()))
    )
    for code in FIXES:
        rows = drawn(item(Book().add(error_draft(code, "why"))))
        assert not re.search(r"`outrider (providers|config|fork)", " ".join(rows)), code
    assert "(f3)" in " ".join(drawn(item(Book().add(error_draft("limit", "why")))))


def test_code_and_diffs_have_a_bar_that_is_not_copied() -> None:
    body = CallBody("run", '{"worker": "w", "code": "if x:\\n  y"}')
    rows = draw(item(Book().add(json_draft("call", body))), 40, folded=False, state="running")
    assert [row.text for row in rows[2:]] == ["  │ if x:", "  │   y"]
    assert [row.text[row.gutter :] for row in rows[2:]] == ["if x:", "  y"]
    assert rows[1].text.rstrip().endswith("running")


def test_a_body_over_the_limit_is_clipped_and_says_so() -> None:
    rows = drawn(one("message", "\n".join(map(str, range(1000)))))
    assert len(rows) < MAX_LINES + 5
    assert "  … 600 lines not shown · v: all" in rows
    assert rows[-1] == "  999"


def test_one_endless_line_is_clipped_by_its_rows() -> None:
    rows = drawn(one("result", "x" * 60_000, for_="c"), folded=False)
    assert len(rows) <= MAX_LINES + 2
    assert any("rows not shown · v: all" in row for row in rows)


def test_an_image_is_a_line_with_its_size() -> None:
    found = one("message", b"\x89PNG" * 500, type="image/png", via="tui")
    assert drawn(found)[2:] == ["  ▣ image/png, 2.0 kB · enter opens it outside"]


def test_a_void_block_says_so() -> None:
    assert "void: of a try that broke off" in drawn(one("text", "half"), state="void")[1]


KINDS = [*get_args(records.Kind), "plan"]


@settings(deadline=None)
@given(
    st.sampled_from(KINDS),
    st.one_of(HOSTILE, st.binary(max_size=60)),
    st.sampled_from([records.TEXT, records.JSON, "image/png", "application/vnd.x+json"]),
    HOSTILE,
    st.integers(12, 90),
    st.booleans(),
)
def test_no_record_whatever_it_holds_leaves_its_room_or_acts_on_the_terminal(
    kind: Any, body: str | bytes, type: str, via: str, columns: int, folded: bool
) -> None:
    found = item(Book().add(draft(kind, body, type, via=via, model=via, reason=via, source=via)))
    for row in draw(found, columns, folded=folded, state=found.state, zone=UTC):
        assert cell_len(row.text) <= columns
        assert not ACTS.search(row.text)


@given(HOSTILE, st.sampled_from(["run", "edit", "patch", "write", "odd"]))
@settings(deadline=None)
def test_no_call_whatever_it_holds_does(text: str, name: str) -> None:
    fields = ("code", "old", "new", "input", "content", "path", "worker", "interpreter")
    arguments = records._encode({field: records.mend(text) for field in fields}).decode()
    found = item(Book().add(json_draft("call", CallBody(name, arguments))))
    for row in draw(found, 40, folded=False, state="running"):
        assert cell_len(row.text) <= 40
        assert not ACTS.search(row.text)


def test_an_answer_without_its_beginning_says_so_and_one_that_broke_off_too() -> None:
    stream = Streamed(1, "text", ["lo **you**"], size=10, begin=1000)
    block = LiveBlock(stream)
    assert [row.text for row in block.rows(60, 0)][1:] == [
        "● answer · without its first 1,000 characters",
        "  …lo you",
    ]
    stream.broken = True
    assert "broken off here" in block.rows(60, 0)[1].text
    stream.broken = False
    stream.pieces.append(" too")
    stream.size += 4
    assert [row.text for row in block.rows(60, 0)][2:] == ["  …lo you too"]


def test_an_answer_that_streams_is_drawn_as_it_grows() -> None:
    stream = Streamed(1, "text", ["Hello **wor"], size=11)
    block = LiveBlock(stream)
    assert [row.text.rstrip() for row in block.rows(40, 0)] == ["", "● answer", "  Hello **wor"]
    assert block.rows(40, 0) is block.rows(40, 0)
    stream.pieces.append("ld**")
    stream.size += 4
    assert [row.text for row in block.rows(40, 0)][-1] == "  Hello world"


def test_of_output_and_code_that_stream_the_end_is_shown() -> None:
    output = "".join(f"{n}\n" for n in range(50))
    rows = LiveBlock(Streamed(1, "output", [output], call="c", size=len(output))).rows(40, 7)
    assert rows[0].text.startswith("└ output so far of #7")
    assert [row.text for row in rows[1:]] == [f"  │ {n}" for n in range(38, 50)]
    code = '{"worker": "w", "code": "a = 1\\nb'
    rows = LiveBlock(Streamed(2, "call", [code], "run", size=len(code))).rows(60, 0)
    assert [row.text.rstrip() for row in rows[1:]] == [
        "▶ writing a call of run, 33 characters",
        "  │ a = 1",
        "  │ b",
    ]

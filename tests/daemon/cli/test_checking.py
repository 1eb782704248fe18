import json

import pytest

from daemon.protocol import api
from daemon.verbs import checking
from tests.daemon.cli.saying import CONTROL, Said
from tests.running import Place

REPAIRS = (
    api.Repair("thinking of a/b: left out", 5),
    *(api.Repair("a blank text: left out", n) for n in range(10, 18)),
    api.Repair("blocks of an answer that no step has closed: left out", 20, 22),
    api.Repair("something of no record"),
)
SHOWN = """\
a/b would accept the next request
turns   3, from records 1 to 12
tokens  about 12k of 200k
size    1.5 kB, 1 image, 2 cache marks
repair  thinking of a/b: left out (#5)
repair  a blank text: left out (#10, #11, #12, #13, #14 and 3 more)
repair  blocks of an answer that no step has closed: left out (#20 to #22)
repair  something of no record
note    a step is under way
"""
REFUSED = """\
a/b: no request would be accepted
turns    1, from records 1 to 3
tokens   about 7
size     2 B
why      session x has ended
problem  messages.0: no content
"""
FILLED = api.Check(
    *("x", "stepping", "a/b", True, 12),
    notes=("a step is under way",),
    repairs=REPAIRS,
    turns=3,
    tokens=12_000,
    context=200_000,
    bytes=1536,
    images=1,
    marks=2,
)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (FILLED, SHOWN),
        (
            api.Check(
                *("x", "ended", "a/b", False, 3),
                why=("session x has ended",),
                problems=("messages.0: no content",),
                turns=1,
                tokens=7,
                bytes=2,
            ),
            REFUSED,
        ),
        (
            api.Check("x", "closed", "", False, 1, why=("the session has no model",)),
            "no model: no request would be accepted\nwhy  the session has no model\n",
        ),
    ],
)
def test_what_is_found_is_told_in_some_lines(
    found: api.Check, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checking._show(found)
    assert capsys.readouterr().out == shown


def test_a_session_is_checked_by_its_model_and_by_another(said: Said, there: Place) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    assert "nothing was posted yet" in said("check", id)
    said("post", "-f", id, "hello")
    shown = said("check", id[:8])
    assert shown.startswith("rehearsal/echo would accept the next request\nturns   3, from records 1 to ")
    assert "200k" in shown
    assert "all is answered" in shown
    before = there.records(id)
    found = json.loads(said("check", id, "--json", "--model", "rehearsal/tour"))
    assert (found["model"], found["accepted"], found["turns"]) == ("rehearsal/tour", True, 3)
    assert json.loads(said("check", id, "--json", "--provider", "rehearsal"))["model"] == "rehearsal/echo"
    assert there.records(id) == before, "nothing is written"


def test_a_session_that_is_over_gives_1_and_says_why(said: Said) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    said("end", "--yes", id)
    assert said("check", id, "--json", code=1) == ""


def test_a_file_that_is_damaged_from_its_start_is_told_without_false_hope(said: Said, there: Place) -> None:
    id = "00000000000000ee"
    (there.data / "sessions").mkdir(exist_ok=True)
    (there.data / "sessions" / f"{id}.state").write_bytes(b"{")
    shown = said("info", id)
    assert "damage   record 1 at byte 0" in shown
    assert "updated" not in shown
    assert "no n would do" in said("fork", id, code=3)
    (why,) = json.loads(there.outrider("check", id, "--json").stdout)["why"]
    assert why.startswith(
        "the file is damaged at record 1 (the file ends inside it): nothing before it is enough"
    )


def test_what_cannot_be_checked_names_the_fix(said: Said) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    assert "give one of them" in said("check", id, "--model", "a/b", "--provider", "a", code=2)
    assert "there are " in said("check", id, "--provider", "nobody", code=2)
    assert "there are rehearsal" in said("check", id, "--provider", "openai-chat", code=2)
    assert "nobody/x" in said("check", id, "--model", "nobody/x", code=3)
    assert "no session" in said("check", "0" * 16, code=3)


def test_a_hostile_daemons_words_reach_no_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b[2J\x9b\r\u202e"
    checking._show(
        api.Check(evil, "closed", evil, False, 3, (evil,), (evil,), (evil,), (api.Repair(evil, 1),))
    )
    assert not CONTROL.search(capsys.readouterr().out)

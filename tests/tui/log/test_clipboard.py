import pytest

from tui.log.clipboard import BROWSER, said


@pytest.mark.parametrize(
    ("environ", "words", "sure"),
    [
        ({"TERM": "xterm-256color"}, "copied 2 lines", True),
        ({"TERM": "tmux-256color", "TMUX": "/tmp/x"}, "set-clipboard on", True),
        ({"TERM": "linux"}, "this console has no clipboard", False),
        ({"TERM_PROGRAM": "Apple_Terminal"}, "Command-C", False),
        ({"VTE_VERSION": "7600"}, "hold Shift", False),
        ({"STY": "1.tty"}, "hold Shift", False),
        ({"STY": "1.tty", "VTE_VERSION": "7600", "TERM_PROGRAM": BROWSER}, "copied 2 lines", True),
    ],
)
def test_it_is_said_what_became_of_a_copy(environ: dict[str, str], words: str, sure: bool) -> None:
    found = said("a\nb", environ)
    assert words in found[0]
    assert found[1] is sure


def test_a_long_text_may_not_arrive() -> None:
    assert said("x" * 70_000, {}) == (
        "copied 70,000 characters, 93.3 kB: more than many terminals take",
        False,
    )


def test_what_was_copied_may_have_a_name() -> None:
    assert said("a1", {}, "the id") == ("copied the id", True)

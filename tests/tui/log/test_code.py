import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tui.log.code import COLOURED, coloured


@settings(deadline=None)
@given(
    st.text(max_size=80),
    st.sampled_from(["python", "bash", "json", "diff", "html", "nonsense", ""]),
    st.booleans(),
)
@example("- \t", "python", False)
@example("\tx = 1\t# c\r\t", "python", True)
def test_colours_change_no_character_and_tabs_go_to_their_stops(
    code: str, language: str, each_line: bool
) -> None:
    lines = coloured(code, language, each_line)
    assert ["".join(text for text, _ in line) for line in lines] == [
        line.expandtabs(8) for line in code.split("\n")
    ]


def test_what_spans_lines_is_coloured_as_what_it_is() -> None:
    code = 'x = """\nfor\n"""'
    assert coloured(code, "python")[1] == [("for", "string")]
    assert coloured(code, "python", each_line=True)[1] == [("for", "keyword")]


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ("+ a", "added"),
        ("- a", "removed"),
        ("@@ -1 +1 @@", "hunk"),
        ("*** Update File: x", "hunk"),
        ("  a", ""),
    ],
)
def test_lines_of_a_diff_show_what_they_do(line: str, role: str) -> None:
    assert coloured(line, "diff") == [[(line, role)]]


def test_a_long_text_is_not_coloured() -> None:
    code = "x = 1\n" * (COLOURED // 6 + 1)
    assert {role for line in coloured(code, "python") for _, role in line} == {""}

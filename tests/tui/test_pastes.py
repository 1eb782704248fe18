from hypothesis import given
from hypothesis import strategies as st

from tui.pastes import END, START, Pastes

PIECES = st.text(alphabet="ab\x1b[201~\r", max_size=30)


def parts(*pieces: str) -> list[tuple[bool, str]]:
    """What pieces are split into, what is typed in a row together."""
    pastes, found = Pastes(), [(False, "")]
    for piece in pieces:
        for is_paste, text in pastes.split(piece):
            if is_paste or found[-1][0]:
                found.append((is_paste, text))
            else:
                found[-1] = (False, found[-1][1] + text)
    return found


def test_a_paste_stands_between_its_marks_which_stay_with_what_is_typed() -> None:
    assert parts(f"a{START}two\r\x1b[31mlines{END}b{START}{END}") == [
        (False, f"a{START}"),
        (True, "two\r\x1b[31mlines"),
        (False, f"{END}b{START}"),
        (True, ""),
        (False, END),
    ]


@given(PIECES, PIECES, PIECES, st.data())
def test_any_split_gives_the_same_parts(before: str, pasted: str, after: str, data: st.DataObject) -> None:
    text = before + START + pasted + END + after
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parts(*pieces) == parts(text)


def test_a_paste_that_has_no_end_yet_is_told_once_it_has() -> None:
    pastes = Pastes()
    assert list(pastes.split(f"{START}abc")) == [(False, START)]
    assert list(pastes.split("def\x1b[20")) == []
    assert list(pastes.split("1~")) == [(True, "abcdef"), (False, END)]

"""What a selection in the pager copies."""

import pytest
from textual.geometry import Offset
from textual.selection import Selection

from tui.log.pager import _Pages
from tui.log.text import Row


@pytest.mark.parametrize(
    ("start", "end", "copied"),
    [
        (None, None, "first\nsecond"),
        (None, Offset(3, 0), "fir"),
        (None, Offset(0, 0), ""),
        (Offset(0, 0), Offset(3, 1), "first\nsec"),
        (Offset(2, 1), None, "cond"),
    ],
)
def test_a_selection_is_what_lies_between_its_ends_also_where_one_is_at_the_very_beginning(
    start: Offset | None, end: Offset | None, copied: str
) -> None:
    pages = _Pages("", words=False)
    pages._rows = [Row(((line, ""),)) for line in ("first", "second")]
    found = pages.get_selection(Selection(start, end))
    assert found is not None
    assert found[0].rstrip("\n") == copied

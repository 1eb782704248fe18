from hypothesis import given
from hypothesis import strategies as st

from tui.log.heights import Heights

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=70)


@given(SIZES, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9))))
def test_the_sums_are_those_of_a_plain_list_whatever_was_changed_and_appended(
    sizes: list[int], changes: list[tuple[int, int]]
) -> None:
    plain, heights = list(sizes), Heights(sizes)
    for index, height in changes:
        if index < len(plain):
            plain[index] = heights[index] = height
        else:
            plain.append(height)
            heights.append(height)
    assert [heights[i] for i in range(len(heights))] == plain
    assert [heights.before(i) for i in range(len(plain) + 1)] == [
        sum(plain[:i]) for i in range(len(plain) + 1)
    ]
    assert heights.total == sum(plain)


@given(SIZES)
def test_each_line_is_found_in_the_record_that_holds_it(sizes: list[int]) -> None:
    heights = Heights(sizes)
    lines = [(index, line) for index, size in enumerate(sizes) for line in range(size)]
    assert [heights.find(y) for y in range(heights.total)] == lines


def test_what_is_outside_is_found_at_the_ends() -> None:
    heights = Heights([2, 3])
    assert heights.find(-1) == (0, 0)
    assert heights.find(5) == heights.find(99) == (1, 2)


def test_heights_made_at_once_are_those_appended_one_by_one() -> None:
    sizes = [3, 0, 7, 1, 1, 4, 9, 2, 5]
    grown = Heights()
    for size in sizes:
        grown.append(size)
    assert [grown.before(i) for i in range(10)] == [Heights(sizes).before(i) for i in range(10)]

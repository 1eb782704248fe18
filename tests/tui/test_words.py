from datetime import UTC, datetime
from typing import get_args

import pytest

from daemon.protocol.records import Status
from tests.tui.daemonfake import info
from tui import words

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("share", "drawn"), [(0, "····"), (0.5, "██··"), (0.3, "█▎··"), (1, "████"), (7, "████"), (-1, "····")]
)
def test_a_bar_is_filled_in_eighths_of_a_cell(share: float, drawn: str) -> None:
    assert words.bar(share, 4) == drawn


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        ("2026-11-30T12:00:00.500Z", "now"),
        ("2026-11-30T11:59:57.000Z", "3 s"),
        ("2026-11-30T11:58:00.000Z", "2 min"),
        ("2026-11-30T07:00:00.000Z", "5 h"),
        ("2026-11-26T07:00:00.000Z", "4 d"),
        ("never", "-"),
    ],
)
def test_an_age_is_told_in_one_unit(moment: str, said: str) -> None:
    assert words.age(moment, NOW) == said


@pytest.mark.parametrize("status", get_args(Status))
def test_every_status_has_a_sign_a_colour_and_words(status: Status) -> None:
    one = info("a", status)
    assert len(words.sign(one)) == 1
    assert status in words.COLOURS
    assert words.standing(one, ())
    assert words.standing(one, ("gpu", "tpu")) == "waits for gpu, tpu"


def test_the_context_is_told_against_its_limit_where_there_is_one() -> None:
    assert words.context(info("a", prompt=0), 5) == "-"
    assert words.context(info("a", prompt=1200), 0) == "1200"
    assert words.context(info("a", prompt=50_000), 200_000) == "50k/200k"
    assert words.share(info("a", prompt=50), 100) == 0.5
    assert words.share(info("a"), 0) == 0

"""What a journal lets go of: by age, over its limit, on a full disk; and what it never does."""

from collections.abc import Callable

import pytest

from daemon.worker import index, output, retention
from daemon.worker.journal import Journal, Meta
from daemon.worker.retention import Retention
from tests.daemon.worker.journals import Clock, last, printed, run


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_a_log_file_that_does_not_read_any_more_keeps_no_other_from_going(
    opened: Callable[[], Journal], clock: Clock, damage: str
) -> None:
    first = opened()
    keys = [run(first, clock, f"c{n}") for n in range(8)]
    for key in keys[:6]:
        first.ack(key)
    broken = last(first)
    second = opened()
    other = run(second, clock, "other")
    second.ack(other)
    if damage == "gone":
        broken.unlink()
    else:
        data = bytearray(broken.read_bytes())
        data[1] ^= 0x80
        broken.write_bytes(data)
    clock.now += retention.KEEP_FOR + 1
    whole = last(second)
    for _ in range(2):
        Retention(second).clean()
    assert not whole.exists()
    assert other not in second.entries
    assert keys[7] in second.entries, "it is still known, so it is not run again"


def test_acknowledged_journals_go_after_a_day(opened: Callable[[], Journal], clock: Clock) -> None:
    kept = opened()
    acked, other = run(kept, clock, "acked"), run(kept, clock, "other")
    kept.ack(acked)
    clock.now += retention.KEEP_FOR - 10
    Retention(kept).clean()
    assert acked in kept.entries
    clock.now += 20
    kept = opened()
    Retention(kept).clean()
    assert set(kept.entries) == {other}
    assert not kept.path(acked).exists()


def test_over_the_limit_the_oldest_acknowledged_go_first(
    opened: Callable[[], Journal], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEEP_BYTES", 25_000)
    kept = opened()
    keys = [run(kept, clock, f"c{n}", 10_000) for n in range(4)]
    kept.ack(keys[1])
    kept.ack(keys[2])
    Retention(kept).clean()
    assert keys[1] not in kept.entries
    assert keys[2] not in kept.entries
    assert kept.result(keys[0]).text == "text"


def test_over_the_limit_an_unacknowledged_one_loses_its_output_then_its_text_and_stays_known(
    opened: Callable[[], Journal], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = opened()
    keys = [run(kept, clock, f"c{n}", 10_000) for n in range(3)]
    kept.begin(Meta(session="s", call="going", started=1), b"code")
    going = printed(kept, ("s", "going"), b"x" * 50_000)
    monkeypatch.setattr(retention, "KEEP_BYTES", 22_000)
    Retention(kept).clean()
    assert not (kept.path(keys[0]) / "output").exists()
    assert kept.result(keys[0]).text == "text"
    assert "let go" in kept.result(keys[0]).notes[0]
    assert (kept.path(keys[1]) / "output").exists()
    monkeypatch.setattr(retention, "KEEP_BYTES", 0)
    Retention(kept).clean()
    assert "let go before the harness took it" in kept.result(keys[2]).unknown
    assert set(kept.entries) == {*keys, ("s", "going")}
    assert going.exists()
    assert set(opened().entries) == {*keys, ("s", "going")}


def test_while_the_disk_is_short_half_of_what_there_is_goes_but_no_result_that_was_not_taken(
    opened: Callable[[], Journal], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = opened()
    keys = [run(kept, clock, f"c{n}", 10_000) for n in range(4)]
    kept.ack(keys[3])
    spare = [0]
    monkeypatch.setattr(output, "to_spare", lambda _: spare[0])
    Retention(kept).clean()
    assert set(kept.entries) == set(keys)
    spare[0] = -1
    Retention(kept).clean()
    assert set(kept.entries) == set(keys), "it is too little to help anybody"
    monkeypatch.setattr(retention, "KEEP_LEAST", 0)
    Retention(kept).clean()
    assert set(kept.entries) == set(keys[:3])
    assert [(kept.path(key) / "output").exists() for key in keys[:3]] == [False, False, True]
    for _ in range(5):
        Retention(kept).clean()
    assert not any((kept.path(key) / "output").exists() for key in keys)
    assert [kept.result(key).text for key in keys[:3]] == ["text"] * 3


def test_an_old_file_of_the_log_goes_with_its_last_run_and_is_rewritten_without_the_dead(
    opened: Callable[[], Journal], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SEGMENT", 1000)
    kept = opened()
    keys = [run(kept, clock, f"c{n}") for n in range(30)]
    logs = sorted(kept.folder.glob("log-*"))
    assert len(logs) > 3
    for key in keys[:-1]:
        if key != keys[2]:
            kept.ack(key)
    clock.now += retention.KEEP_FOR + 100
    Retention(kept).clean()
    assert set(kept.entries) == {keys[2], keys[-1]}
    left = sorted(kept.folder.glob("log-*"))
    assert len(left) == 2
    assert sum(path.stat().st_size for path in left) < 1000
    for one in (kept, opened()):
        assert [one.result(key).text for key in (keys[2], keys[-1])] == ["text"] * 2
    key = run(kept, clock, "next")
    assert set(opened().entries) == {keys[2], keys[-1], key}

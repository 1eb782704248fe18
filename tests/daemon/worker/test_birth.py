"""The birth of a journal: what makes it another one than before, and how old it is."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from daemon.worker import birth
from daemon.worker.journal import Journal
from tests.daemon.worker.journals import Clock, last, run


def test_a_log_that_is_damaged_before_its_end_counts_as_begun_anew(
    opened: Callable[[], Journal], clock: Clock
) -> None:
    kept = opened()
    keys = [run(kept, clock, f"c{n}") for n in range(3)]
    file = last(kept)
    whole = file.read_bytes()
    at = whole.index(b'"call":"c1"')
    file.write_bytes(whole[: at - 3] + b"\0\0\0" + whole[at:])
    clock.now += 100
    found = opened()
    assert set(found.entries) == {keys[0]}
    assert found.origin.id != kept.origin.id
    assert found.origin.age == 0
    assert opened().origin.id == found.origin.id


def test_a_length_that_swallows_what_follows_is_damage_and_no_cut(
    opened: Callable[[], Journal], clock: Clock
) -> None:
    kept = opened()
    for n in range(3):
        run(kept, clock, f"c{n}")
    file = last(kept)
    file.write_bytes(file.read_bytes().replace(b'"len":4}', b'"len":4000}', 1))
    clock.now += 100
    found = opened()
    assert found.entries == {}
    assert found.origin.id != kept.origin.id


def test_a_copy_of_a_journal_is_another_one_and_a_moved_one_is_not(
    opened: Callable[[], Journal], clock: Clock, tmp_path: Path
) -> None:
    kept = opened()
    key = run(kept, clock, "c")
    clock.up += 100
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    (tmp_path / "runs").rename(tmp_path / "moved")
    (tmp_path / "copy").rename(tmp_path / "runs")
    copied = opened()
    assert copied.result(key).exit == 0
    assert copied.origin.id != kept.origin.id
    assert copied.origin.age == 0
    (tmp_path / "runs").rename(tmp_path / "copy")
    (tmp_path / "moved").rename(tmp_path / "runs")
    moved = opened()
    assert (moved.origin.id, moved.origin.age) == (kept.origin.id, 100)


def test_a_journal_that_did_not_note_its_place_goes_on(
    opened: Callable[[], Journal], clock: Clock, tmp_path: Path
) -> None:
    kept = opened()
    file = tmp_path / "runs" / birth.FILE
    noted = msgspec.json.decode(file.read_bytes())
    del noted["place"]
    file.write_bytes(msgspec.json.encode(noted))
    assert opened().origin.id == kept.origin.id
    assert msgspec.json.decode(file.read_bytes())["place"]


def test_a_journal_of_another_format_is_begun_anew(opened: Callable[[], Journal], tmp_path: Path) -> None:
    (tmp_path / "runs/s/c").mkdir(parents=True)
    (tmp_path / "runs/s/c/meta.json").write_text("{}")
    (tmp_path / "runs/birth.json").write_text('{"time":5.0,"boot":"x"}')
    kept = opened()
    assert kept.origin.age == 0
    assert not (tmp_path / "runs/s").exists()


def test_the_age_counts_from_the_first_keeper(opened: Callable[[], Journal], clock: Clock) -> None:
    opened()
    clock.up += 100
    assert opened().origin.age == 100


def test_a_clock_that_is_set_makes_a_journal_neither_older_nor_younger(
    opened: Callable[[], Journal], clock: Clock
) -> None:
    opened()
    clock.up += 100
    for jump in (1e9, -2e9):  # as where a machine without a battery learns the time
        clock.now += jump
        assert opened().origin.age == 100


def test_where_the_kernel_names_no_boot_the_age_goes_by_the_clock(tmp_path: Path, clock: Clock) -> None:
    with contextlib.ExitStack() as held:

        def open() -> Journal:
            one = Journal(tmp_path / "runs", clock=clock, boot=lambda: "", uptime=lambda: clock.up)
            held.callback(one.close)
            return one

        open()
        clock.now += 100
        assert open().origin.age == 100
        clock.now -= 1000
        assert open().origin.age == 0

"""The journal: whole files, what a keeper that died left, and what may go."""

import contextlib
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from daemon.worker import journal, output
from daemon.worker.journal import Journal, Meta, Result, folder_name


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.up = 50.0  # seconds since the machine was started

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Iterator[Callable[[], Journal]]:
    """Opens the journal, as a keeper that starts does; all are closed in the end."""
    with contextlib.ExitStack() as held:

        def open() -> Journal:
            one = Journal(tmp_path / "runs", clock=clock, uptime=lambda: clock.up)
            held.callback(one.close)
            one.load()
            return one

        yield open


def run(kept: Journal, clock: Clock, call: str, size: int = 0, session: str = "s") -> journal.Key:
    """A run that ended now, with that much output."""
    kept.begin(Meta(session=session, call=call, started=clock.now), b"code")
    if size:
        printed(kept, (session, call), b"x" * size)
    kept.finish((session, call), Result(ended=clock.now, exit=0, text="text"), size)
    clock.now += 1
    return session, call


def printed(kept: Journal, key: journal.Key, data: bytes) -> Path:
    """The file of what a run has printed."""
    kept.path(key).mkdir(parents=True)
    file = kept.path(key) / "output"
    file.write_bytes(data)
    return file


def last(kept: Journal) -> Path:
    """The file of the log that is written to."""
    return kept.folder / f"log-{len(list(kept.folder.glob('log-*')))}"


def test_a_result_is_found_again_by_the_next_keeper(opened: Callable[[], Journal], clock: Clock) -> None:
    key = run(opened(), clock, "c")
    kept = opened()
    assert kept.entries[key].ended
    assert kept.result(key) == Result(ended=1_000_000.0, exit=0, text="text")


def test_a_run_that_was_going_when_its_keeper_died_is_unknown(opened: Callable[[], Journal]) -> None:
    kept = opened()
    kept.begin(Meta(session="s", call="c", started=1, reset="why"), b"code")
    printed(kept, ("s", "c"), b"so far\n")
    result = opened().result(("s", "c"))
    assert "keeper ended" in result.unknown
    assert (result.text, result.exit, result.reset) == ("so far\n", None, "why")
    assert opened().result(("s", "c")) == result


def test_a_log_that_is_cut_anywhere_knows_what_was_whole_and_tells_a_run_without_its_end_as_unknown(
    opened: Callable[[], Journal], clock: Clock
) -> None:
    kept = opened()
    first, second = run(kept, clock, "first"), run(kept, clock, "second")
    file, born = last(kept), kept.id
    whole = file.read_bytes()
    begins = whole.index(b'{"unit":"begin"', 1)
    ends = whole.index(b'{"unit":"end"', begins)
    for size in range(whole.index(b'{"unit":"end"'), len(whole) + 1):
        file.write_bytes(whole[:size])
        kept = opened()
        assert bool(kept.result(first).unknown) == (size < begins)
        assert (second in kept.entries) == (size >= ends), "it never started"
        if second in kept.entries:
            assert bool(kept.result(second).unknown) == (size < len(whole))
        assert kept.id == born
        assert run(kept, clock, "third") in opened().entries, "what comes after a cut is found"


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
    assert found.id != kept.id
    assert found.age == 0
    assert opened().id == found.id


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
    assert found.id != kept.id


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
    assert copied.id != kept.id
    assert copied.age == 0
    (tmp_path / "runs").rename(tmp_path / "copy")
    (tmp_path / "moved").rename(tmp_path / "runs")
    moved = opened()
    assert (moved.id, moved.age) == (kept.id, 100)


def test_a_journal_that_did_not_note_its_place_goes_on(
    opened: Callable[[], Journal], clock: Clock, tmp_path: Path
) -> None:
    kept = opened()
    file = tmp_path / "runs" / journal.BIRTH
    noted = msgspec.json.decode(file.read_bytes())
    del noted["place"]
    file.write_bytes(msgspec.json.encode(noted))
    assert opened().id == kept.id
    assert msgspec.json.decode(file.read_bytes())["place"]


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
    clock.now += journal.KEEP_FOR + 1
    whole = last(second)
    for _ in range(2):
        second.clean()
    assert not whole.exists()
    assert other not in second.entries
    assert keys[7] in second.entries, "it is still known, so it is not run again"


def test_a_journal_of_another_format_is_begun_anew(opened: Callable[[], Journal], tmp_path: Path) -> None:
    (tmp_path / "runs/s/c").mkdir(parents=True)
    (tmp_path / "runs/s/c/meta.json").write_text("{}")
    (tmp_path / "runs/birth.json").write_text('{"time":5.0,"boot":"x"}')
    kept = opened()
    assert kept.age == 0
    assert not (tmp_path / "runs/s").exists()


def test_what_did_not_happen_is_not_known_and_may_begin_again(
    opened: Callable[[], Journal], clock: Clock
) -> None:
    kept = opened()
    kept.begin(Meta(session="s", call="c", started=1), b"code")
    kept.forget(("s", "c"))
    assert not opened().entries
    key = run(opened(), clock, "c")
    assert opened().result(key).text == "text"


def test_the_code_is_where_begin_says_until_the_environments_next_run(opened: Callable[[], Journal]) -> None:
    kept = opened()
    paths = [
        kept.begin(Meta(session="s", call=f"c{n}", started=1, interpreter="bash"), code)
        for n, code in enumerate((b"echo long", b"x", b""))
    ]
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == b"\n"
    other = kept.begin(Meta(session="s", call="c9", started=1, interpreter="python"), b"pass")
    assert other.read_bytes() == b"pass"


def test_a_write_that_was_cut_off_happened_only_if_its_temporary_file_is_gone(
    opened: Callable[[], Journal], tmp_path: Path
) -> None:
    kept = opened()
    for call in ("did", "did not"):
        temporary = tmp_path / f"{call}.tmp"
        meta = Meta(session="s", call=call, kind="write", started=1, temporary=str(temporary), size=7)
        kept.begin(meta)
    (tmp_path / "did not.tmp").write_bytes(b"x")
    kept = opened()
    assert kept.result(("s", "did")).size == 7
    assert ("s", "did not") not in kept.entries
    assert not (tmp_path / "did not.tmp").exists()


def test_a_removal_that_was_cut_off_happened_if_its_file_is_gone(
    opened: Callable[[], Journal], tmp_path: Path
) -> None:
    kept = opened()
    for call in ("did", "did not"):
        temporary, path = tmp_path / f"{call}.tmp", tmp_path / call
        temporary.touch()
        write = {
            "kind": "write",
            "started": 1,
            "remove": True,
            "path": str(path),
            "temporary": str(temporary),
        }
        kept.begin(Meta(session="s", call=call, **write))  # type: ignore[arg-type]
    (tmp_path / "did not").symlink_to("nothing")
    kept = opened()
    assert kept.result(("s", "did")).exit == 0
    assert ("s", "did not") not in kept.entries
    assert sorted(path.name for path in tmp_path.iterdir()) == ["did not", "runs"]


def test_a_write_that_nobody_can_look_at_any_more_is_unknown_and_keeps_no_keeper_from_starting(
    opened: Callable[[], Journal], tmp_path: Path
) -> None:
    beyond = str(tmp_path / ("x" * 300))  # as a folder that may not be entered, which root may
    opened().begin(Meta(session="s", call="c", kind="write", started=1, path=beyond, temporary=beyond))
    assert "cannot be looked at now: File name too long" in opened().result(("s", "c")).unknown


def test_a_damaged_result_is_told_as_unknown(opened: Callable[[], Journal], clock: Clock) -> None:
    kept = opened()
    key = run(kept, clock, "c")
    file = last(kept)
    file.write_bytes(file.read_bytes().replace(b'"text"', b'"text~'))
    assert "does not read any more" in kept.result(key).unknown


def test_the_age_counts_from_the_first_keeper(opened: Callable[[], Journal], clock: Clock) -> None:
    opened()
    clock.up += 100
    assert opened().age == 100


def test_a_clock_that_is_set_makes_a_journal_neither_older_nor_younger(
    opened: Callable[[], Journal], clock: Clock
) -> None:
    opened()
    clock.up += 100
    for jump in (1e9, -2e9):  # as where a machine without a battery learns the time
        clock.now += jump
        assert opened().age == 100


def test_where_the_kernel_names_no_boot_the_age_goes_by_the_clock(tmp_path: Path, clock: Clock) -> None:
    with contextlib.ExitStack() as held:

        def open() -> Journal:
            one = Journal(tmp_path / "runs", clock=clock, boot=lambda: "", uptime=lambda: clock.up)
            held.callback(one.close)
            return one

        open()
        clock.now += 100
        assert open().age == 100
        clock.now -= 1000
        assert open().age == 0


def test_acknowledged_journals_go_after_a_day(opened: Callable[[], Journal], clock: Clock) -> None:
    kept = opened()
    acked, other = run(kept, clock, "acked"), run(kept, clock, "other")
    kept.ack(acked)
    clock.now += journal.KEEP_FOR - 10
    kept.clean()
    assert acked in kept.entries
    clock.now += 20
    kept = opened()
    kept.clean()
    assert set(kept.entries) == {other}
    assert not kept.path(acked).exists()


def test_an_acknowledgement_of_what_is_going_or_unknown_is_nothing(opened: Callable[[], Journal]) -> None:
    kept = opened()
    kept.begin(Meta(session="s", call="c", started=1), b"")
    kept.ack(("s", "c"))
    kept.ack(("s", "other"))
    assert not kept.entries["s", "c"].acked


def test_over_the_limit_the_oldest_acknowledged_go_first(
    opened: Callable[[], Journal], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEEP_BYTES", 25_000)
    kept = opened()
    keys = [run(kept, clock, f"c{n}", 10_000) for n in range(4)]
    kept.ack(keys[1])
    kept.ack(keys[2])
    kept.clean()
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
    monkeypatch.setattr(journal, "KEEP_BYTES", 22_000)
    kept.clean()
    assert not (kept.path(keys[0]) / "output").exists()
    assert kept.result(keys[0]).text == "text"
    assert "let go" in kept.result(keys[0]).notes[0]
    assert (kept.path(keys[1]) / "output").exists()
    monkeypatch.setattr(journal, "KEEP_BYTES", 0)
    kept.clean()
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
    kept.clean()
    assert set(kept.entries) == set(keys)
    spare[0] = -1
    kept.clean()
    assert set(kept.entries) == set(keys), "it is too little to help anybody"
    monkeypatch.setattr(journal, "KEEP_LEAST", 0)
    kept.clean()
    assert set(kept.entries) == set(keys[:3])
    assert [(kept.path(key) / "output").exists() for key in keys[:3]] == [False, False, True]
    for _ in range(5):
        kept.clean()
    assert not any((kept.path(key) / "output").exists() for key in keys)
    assert [kept.result(key).text for key in keys[:3]] == ["text"] * 3


def test_hello_names_the_newest_that_fit(opened: Callable[[], Journal], clock: Clock) -> None:
    kept = opened()
    keys = [run(kept, clock, f"c{n}") for n in range(10)]
    kept.ack(keys[9])
    kept.begin(Meta(session="s", call="going", started=1), b"")
    assert kept.runs(1000) == [("s", "going"), *reversed(keys[:9])]
    assert len(kept.runs(45)) == 3


def test_folders_have_names_that_any_id_can_have(opened: Callable[[], Journal], clock: Clock) -> None:
    ids = ["../../x", ".", "..", "a/b", "", "ünï", "x" * 1000, "y" * 1000, "fc_1|call", "a\nb", "%2E"]
    kept = opened()
    names = {folder_name(id) for id in ids}
    assert len(names) == len(ids) - 1 or len(names) == len(ids)
    assert all("/" not in name and name not in (".", "..") and len(name) < 255 for name in names)
    for id in ids[:4] + ids[5:]:
        key = run(kept, clock, id, session=id)
        assert kept.folder in kept.path(key).parents
    assert len(opened().entries) == len(ids) - 1


def test_an_old_file_of_the_log_goes_with_its_last_run_and_is_rewritten_without_the_dead(
    opened: Callable[[], Journal], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT", 1000)
    kept = opened()
    keys = [run(kept, clock, f"c{n}") for n in range(30)]
    logs = sorted(kept.folder.glob("log-*"))
    assert len(logs) > 3
    for key in keys[:-1]:
        if key != keys[2]:
            kept.ack(key)
    clock.now += journal.KEEP_FOR + 100
    kept.clean()
    assert set(kept.entries) == {keys[2], keys[-1]}
    left = sorted(kept.folder.glob("log-*"))
    assert len(left) == 2
    assert sum(path.stat().st_size for path in left) < 1000
    for one in (kept, opened()):
        assert [one.result(key).text for key in (keys[2], keys[-1])] == ["text"] * 2
    key = run(kept, clock, "next")
    assert set(opened().entries) == {keys[2], keys[-1], key}


def test_a_full_disk_does_not_lose_a_result_on_the_way_and_nothing_is_begun(
    opened: Callable[[], Journal], clock: Clock
) -> None:
    kept = opened()
    kept.begin(Meta(session="s", call="c", started=1), b"")
    key = run(kept, clock, "before")
    before = last(kept).stat().st_size
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 10, hard))
    try:
        kept.finish(("s", "c"), Result(ended=clock.now, exit=3, text="kept"))
        with pytest.raises(OSError, match="No space"):
            kept.begin(Meta(session="s", call="d", started=1), b"code")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert kept.result(("s", "c")).exit == 3
    assert ("s", "d") not in kept.entries
    assert last(kept).stat().st_size == before, "no part of a unit is left"
    assert opened().result(("s", "c")).unknown
    assert opened().result(key).text == "text"

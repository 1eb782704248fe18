"""The journal: whole files, and what a keeper that died left."""

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.worker.journal import Journal, Meta, Result, folder_name
from tests.daemon.worker.journals import Clock, last, printed, run


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
    file, born = last(kept), kept.origin.id
    whole = file.read_bytes()
    begins = whole.index(b'{"unit":"begin"', 1)
    ends = whole.index(b'{"unit":"end"', begins)
    for size in range(whole.index(b'{"unit":"end"'), len(whole) + 1):
        for other in set(file.parent.glob("log-*")) - {file}:
            other.unlink()  # of the round before, with the third: else each start reads them all
        file.write_bytes(whole[:size])
        kept = opened()
        assert bool(kept.result(first).unknown) == (size < begins)
        assert (second in kept.entries) == (size >= ends), "it never started"
        if second in kept.entries:
            assert bool(kept.result(second).unknown) == (size < len(whole))
        assert kept.origin.id == born
        assert run(kept, clock, "third") in opened().entries, "what comes after a cut is found"


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


def test_an_acknowledgement_of_what_is_going_or_unknown_is_nothing(opened: Callable[[], Journal]) -> None:
    kept = opened()
    kept.begin(Meta(session="s", call="c", started=1), b"")
    kept.ack(("s", "c"))
    kept.ack(("s", "other"))
    assert not kept.entries["s", "c"].acked


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

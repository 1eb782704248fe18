import logging
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from daemon.protocol.api import Info
from daemon.protocol.records import Config, Status
from daemon.statefile.errors import AnewError, StateFileError
from daemon.statefile.files import Files
from daemon.statefile.index import FAILURES, FILE, Index, Note, Row

VERSION = "1.2.3"


@pytest.fixture
async def index(data: Path) -> AsyncIterator[Index]:
    (data / "sessions").mkdir(parents=True)
    index = Index(data, Files(data), VERSION)
    yield index
    await index.close()


def info(id: str, updated: int, status: Status = "closed") -> Info:
    return Info(id, status, Config("rehearsal/tour"), "", f"2026-01-01T00:00:{updated:02}.000Z", n=3)


def ident(k: int) -> str:
    return f"{k:016x}"


def write(data: Path, id: str, text: str = "x") -> Path:
    path = data / "sessions" / f"{id}.state"
    path.write_text(text)
    return path


def row(path: Path, what: Info) -> Row:
    there = path.stat()
    return Row(there.st_size, there.st_mtime_ns, what)


async def fill(index: Index, data: Path, count: int, status: Status = "closed") -> list[Info]:
    """So many sessions, the last one updated last; newest first, as the list has them."""
    infos = [info(ident(k), k, status) for k in range(count)]
    await index.put({each.id: row(write(data, each.id), each) for each in infos})
    return infos[::-1]


async def listed(index: Index, **asked: object) -> list[Info]:
    page = await index.page(**({"status": None, "limit": 100, "after": "", "newer": {}} | asked))  # type: ignore[arg-type]
    assert page.infos is not None
    assert not page.stale
    return list(page.infos)


async def test_what_was_put_is_listed_newest_first_and_in_pages(index: Index, data: Path) -> None:
    all_of_them = await fill(index, data, 10)
    assert await listed(index) == all_of_them
    assert await listed(index, limit=3) == all_of_them[:3]
    assert await listed(index, limit=3, after=all_of_them[2].id) == all_of_them[3:6]
    assert await listed(index, after=all_of_them[9].id) == []
    assert (await index.page(None, 3, ident(99), {})).infos is None


async def test_sessions_updated_at_the_same_moment_have_an_order(index: Index, data: Path) -> None:
    infos = [info(ident(k), 7) for k in range(6)]
    await index.put({each.id: row(write(data, each.id), each) for each in infos})
    found: list[Info] = []
    while page := await listed(index, limit=2, after=found[-1].id if found else ""):
        found += page
    assert found == infos[::-1]


async def test_a_status_is_asked_for_and_the_page_begins_after_a_session_of_any(
    index: Index, data: Path
) -> None:
    infos = [info(ident(k), k, "failed" if k % 2 else "closed") for k in range(8)]
    await index.put({each.id: row(write(data, each.id), each) for each in infos})
    failed = [each for each in infos[::-1] if each.status == "failed"]
    assert await listed(index, status="failed") == failed
    assert await listed(index, status="failed", after=ident(4), limit=1) == [infos[3]]
    assert await index.waiting({"failed"}) == [each.id for each in failed]
    assert await index.tally({}) == {"closed": 4, "failed": 4}


async def test_what_is_newer_in_memory_counts(index: Index, data: Path) -> None:
    first, second, third = await fill(index, data, 3)
    moved, new = info(third.id, 40, "stepping"), info(ident(77), 1, "stepping")
    newer = {moved.id: moved, new.id: new}
    assert await listed(index, newer=newer) == [moved, first, new, second]
    assert await listed(index, newer=newer, limit=2) == [moved, first]
    assert await listed(index, newer=newer, limit=2, after=moved.id) == [first, new]
    assert await listed(index, newer=newer, status="stepping") == [moved, new]
    assert await listed(index, newer=newer, status="closed") == [first, second]
    assert await index.tally(newer) == {"closed": 2, "stepping": 2}


@pytest.mark.parametrize("change", ["longer", "touched", "gone"])
async def test_a_row_does_not_count_once_its_file_changed(index: Index, data: Path, change: str) -> None:
    first, second = await fill(index, data, 2)
    path = data / "sessions" / f"{first.id}.state"
    match change:
        case "longer":
            path.write_text("xx")
        case "touched":
            os.utime(path, ns=(1, 1))
        case _:
            path.unlink()
    assert await index.get(first.id) is None
    assert await index.get(second.id) == second
    page = await index.page(None, 100, "", {})
    assert (page.infos, page.stale) == ([second], [first.id])
    await index.put({first.id: None if change == "gone" else row(path, first)})
    assert await listed(index) == ([second] if change == "gone" else [first, second])


async def test_the_first_look_finds_each_file_that_is_new_changed_or_gone_newest_first(
    index: Index, data: Path
) -> None:
    same, longer, gone = await fill(index, data, 3)
    for k, id in enumerate([longer.id, ident(50), ident(51)]):
        os.utime(write(data, id, "other"), ns=(k, k))
    (data / "sessions" / f"{gone.id}.state").unlink()
    write(data, "note")
    assert await index.behind() == [ident(51), ident(50), longer.id, gone.id]
    assert await index.get(same.id) == same


async def test_later_looks_find_names_that_came_and_went(index: Index, data: Path) -> None:
    first, second = await fill(index, data, 2)
    assert await index.behind() == []
    write(data, ident(60))
    (data / "sessions" / f"{second.id}.state").unlink()
    assert await index.behind() == sorted([second.id, ident(60)])
    assert await index.get(first.id) == first


async def test_a_folder_in_which_nothing_changed_is_not_looked_at_again(index: Index, data: Path) -> None:
    write(data, ident(1))
    os.utime(data / "sessions", ns=(5, 5))
    assert await index.behind() == [ident(1)]
    assert await index.behind() == []


async def test_a_note_is_kept_for_a_file_of_that_size_alone(index: Index, data: Path) -> None:
    notes = {ident(k): Note(5, info(ident(k), k)) for k in range(3)}
    write(data, ident(0), "five.")
    write(data, ident(1), "longer")
    assert await index.note(notes) == [ident(1), ident(2)]
    assert await listed(index) == [notes[ident(0)].info]


async def test_an_index_is_its_owners_alone_and_is_there_after_a_restart(index: Index, data: Path) -> None:
    all_of_them = await fill(index, data, 5)
    assert (data / FILE).stat().st_mode & 0o777 == 0o600
    await index.close()
    assert [path.name for path in data.iterdir() if path.is_file()] == [FILE]
    again = Index(data, Files(data), VERSION)
    assert await again.behind() == []
    assert await listed(again) == all_of_them
    await again.close()


@pytest.mark.parametrize(
    "fault", ["deleted", "of another release", "no database", "half", "another table", "empty"]
)
async def test_an_index_that_cannot_be_used_is_made_anew(
    index: Index, data: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    all_of_them = await fill(index, data, 40)
    await index.close()
    path, version = data / FILE, VERSION
    match fault:
        case "deleted":
            path.unlink()
        case "of another release":
            version = "1.2.4"
        case "no database":
            path.write_bytes(b"SQLite format 4\0" * 1000)
        case "half":
            path.write_bytes(path.read_bytes()[:8192])
        case "another table":
            path.unlink()
            with sqlite3.connect(path) as db:
                db.execute("CREATE TABLE sessions (name TEXT)")
            db.close()
        case _:
            path.write_bytes(b"")
    again = Index(data, Files(data), version)
    assert sorted(await again.behind()) == sorted(each.id for each in all_of_them)
    for each in all_of_them:
        await again.put({each.id: row(data / "sessions" / f"{each.id}.state", each)})
    assert await listed(again) == all_of_them
    assert ("made anew" in caplog.text) == (fault not in ("deleted", "empty"))
    await again.close()


async def test_damage_that_shows_late_is_found_and_every_file_is_looked_at_again(
    index: Index, data: Path
) -> None:
    all_of_them = await fill(index, data, 200)
    await index.close()
    whole = bytearray((data / FILE).read_bytes())
    for at in range(4096, len(whole), 4096):
        whole[at : at + 200] = bytes(200)
    again = Index(data, Files(data), VERSION)
    (data / FILE).write_bytes(whole)
    for ask in (again.page(None, 100, "", {}), again.tally({}), again.waiting({"open"})):
        with pytest.raises(AnewError):  # and not that there are none
            await ask
    assert len(await again.behind()) == len(all_of_them)
    assert (await again.page(None, 100, "", {})).infos == []
    await again.close()


async def test_a_row_that_does_not_parse_is_read_again(index: Index, data: Path) -> None:
    first, second = await fill(index, data, 2)
    await index.close()
    with sqlite3.connect(data / FILE) as db:
        db.execute("UPDATE sessions SET info = '{' WHERE id = ?", (first.id,))
    db.close()
    again = Index(data, Files(data), VERSION)
    assert await again.get(first.id) is None
    page = await again.page(None, 100, "", {})
    assert (page.infos, page.stale) == ([second], [first.id])
    await again.close()


async def test_what_is_no_json_is_left_out_and_the_others_are_kept(index: Index, data: Path) -> None:
    good, bad = info(ident(1), 1), structs.replace(info(ident(2), 2), title="half \ud83d")
    await index.put({each.id: row(write(data, each.id), each) for each in (bad, good)})
    assert await listed(index) == [good]


async def test_an_index_that_cannot_be_kept_on_this_disk_is_kept_in_memory(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data / "sessions").mkdir(parents=True)
    (data / FILE).mkdir()
    index = Index(data, Files(data), VERSION)
    with caplog.at_level(logging.WARNING):
        assert await index.behind() == []
        all_of_them = await fill(index, data, 3)
    assert await listed(index) == all_of_them
    assert sum("made anew" in record.message for record in caplog.records) == FAILURES
    assert "until the next start the list is in memory" in caplog.text
    await index.close()


async def test_a_closed_index_refuses_and_closes_again(index: Index) -> None:
    await index.close()
    with pytest.raises(StateFileError, match="is closed"):
        await index.get(ident(1))
    await index.close()


async def test_a_folder_that_is_not_there_has_no_sessions(data: Path) -> None:
    data.mkdir()
    index = Index(data, Files(data), VERSION)
    assert await index.behind() == []
    assert await listed(index) == []
    await index.close()

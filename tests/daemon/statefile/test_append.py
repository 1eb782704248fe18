import asyncio
import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.protocol import records
from daemon.protocol.records import BadRecord, Record, draft
from daemon.statefile.errors import DamagedError, MissingError, NoSpaceError, ReopenError
from daemon.statefile.reader import CHUNK
from daemon.statefile.scan import scan
from daemon.statefile.store import Store
from daemon.statefile.writer import ON_LOOP, Log
from tests.daemon.statefile.fakes import Clock, Disk, pieces, some

drafts = st.builds(
    draft,
    st.sampled_from(["message", "text", "call", "result", "from-later"]),
    st.binary(max_size=300) | st.text(max_size=100),
    via=st.text(max_size=10),
    id=st.just("") | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
)


async def everything(log: Log) -> bytes:
    return b"".join([chunk async for chunk in log.chunks(0)])


async def test_an_append_numbers_dates_measures_and_names_each_record(store: Store) -> None:
    _, log = await store.create(*some(2))
    first, second = await log.append(draft("message", "häß"), draft("call", "{}", id="toolu_1"))
    assert [(r.n, r.kind, r.header.len, r.header.time) for r in (first, second)] == [
        (3, "message", 5, "2026-03-04T05:06:09.891Z"),
        (4, "call", 2, "2026-03-04T05:06:09.891Z"),
    ]
    assert len(first.id) == 16
    assert int(first.id, 16) >= 0
    assert second.id == "toolu_1"
    assert records.parse_header(first.raw) == first.header
    assert await log.read(3) == [first, second]
    assert (log.n, log.durable_n) == (4, 4)


async def test_an_append_of_nothing_writes_nothing(store: Store) -> None:
    _, log = await store.create(*some())
    size = log.path.stat().st_size
    assert await log.append() == []
    assert log.path.stat().st_size == size


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(drafts, min_size=1, max_size=4), max_size=6), st.booleans())
def test_any_sequence_of_appends_round_trips(appends: list[list[Record]], durable: bool) -> None:
    async def run(data: Path) -> None:
        store = Store(data, clock=Clock())
        id, log = await store.create(draft("start"))
        written = await log.read()
        for group in appends:
            written += await log.append(*group, durable=durable)
        assert await log.read() == written
        assert [record.body for record in written[1:]] == [
            record.body for group in appends for record in group
        ]
        await log.sync()
        content = await everything(log)
        await store.close()
        again = Store(data)
        reopened = await again.open(id)
        assert await reopened.read() == written
        assert await everything(reopened) == content == reopened.path.read_bytes()
        await again.close()

    with tempfile.TemporaryDirectory(prefix="or-") as folder:
        asyncio.run(run(Path(folder)))


async def test_any_span_is_those_records_bytes(store: Store) -> None:
    _, log = await store.create(*some(6))
    found = await log.read()
    parts = [record.raw + b"\n" + record.body + b"\n" for record in found]
    for after, limit in itertools.product(range(7), [None, 0, 1, 2, 9]):
        stop = 6 if limit is None else min(6, after + limit)
        start, end = log.span(after, limit)
        assert b"".join([chunk async for chunk in log.chunks(after, limit)]) == b"".join(parts[after:stop])
        assert end - start == sum(map(len, parts[after:stop]))
        lines = [record.raw + b"\n" for record in found[after:stop]]
        assert await log.headers(after, limit) == b"".join(lines)
        assert await log.read(after + 1, stop) == found[after:stop]


@pytest.mark.parametrize("after", [-1, 4])
async def test_a_span_past_the_tip_names_the_records_there_are(store: Store, after: int) -> None:
    _, log = await store.create(*some(3))
    with pytest.raises(ValueError, match="has records 1 to 3"):
        log.span(after)
    with pytest.raises(ValueError, match="has records 1 to 3"):
        await log.headers(after)


async def test_a_body_of_8_mib_goes_in_and_comes_out_in_pieces(store: Store) -> None:
    _, log = await store.create(*some())
    body = os.urandom(8 << 20)
    stored = await log.append(draft("message", body, "image/png"))
    assert (await log.read(4))[0] == stored[0]
    chunks = [chunk async for chunk in log.chunks(3)]
    assert {len(chunk) for chunk in chunks[:-1]} == {CHUNK}
    assert b"".join(chunks) == stored[0].raw + b"\n" + body + b"\n"
    assert (await log.headers(3)) == stored[0].raw + b"\n"
    assert scan(log.path).damage is None


async def test_a_header_longer_than_a_peek_is_found(store: Store) -> None:
    _, log = await store.create(*some())
    stored = await log.append(draft("result", "x" * 10, full_output="p" * 60_000))
    assert await log.headers(3) == stored[0].raw + b"\n"


async def test_a_header_that_no_file_takes_is_refused_and_nothing_is_written(store: Store) -> None:
    _, log = await store.create(*some())
    before = log.path.read_bytes()
    for bad in (draft("result", full_output="p" * 70_000), draft("result", worker="\ud83d")):
        with pytest.raises(BadRecord):
            await log.append(draft("message", "good"), bad)
    assert log.path.read_bytes() == before
    assert (await log.append(draft("message", "next")))[0].n == 4


async def test_text_with_all_kinds_of_line_ends_is_kept(store: Store) -> None:
    id, log = await store.create(*some())
    text = "a\u2028b\u0085c\u2029d\r\n\n\x0b\x0c\x1ce\x00"
    await log.append(draft("message", text))
    await store.close()
    again = Store(log.path.parent.parent)
    assert (await (await again.open(id)).read(4))[0].text() == text
    await again.close()


async def test_a_large_append_that_nobody_waits_for_any_more_is_whole(store: Store, disk: Disk) -> None:
    _, log = await store.create(*some())
    task = asyncio.get_running_loop().create_task(log.append(draft("message", bytes(ON_LOOP + 1))))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await log.append(draft("message", "after")))[0].n == 5
    assert [record.header.len for record in await log.read(4)] == [ON_LOOP + 1, 5]


async def test_small_appends_wait_for_a_large_one_and_keep_their_order(store: Store) -> None:
    _, log = await store.create(*some())
    bodies = [bytes(ON_LOOP + 1) if k % 5 == 0 else b"%d" % k for k in range(20)]
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(log.append(draft("message", body)))
    assert sorted(record.body for record in await log.read(4)) == sorted(bodies)
    assert scan(log.path).damage is None


async def test_a_small_append_that_is_not_durable_never_yields_to_the_loop(store: Store) -> None:
    _, log = await store.create(*some())
    await log.append(draft("message", "the first one looks at the file"))
    step = log.append(draft("message", "x"), durable=False)
    with pytest.raises(StopIteration) as done:
        step.send(None)
    assert done.value.value[0].n == 5


# Torn and damaged files


async def reopened(store: Store, content: bytes) -> Log:
    """A session whose file holds `content`, as another daemon left it."""
    log = (await store.create(*some()))[1]
    path = log.path.with_name("0123456789abcdef.state")
    path.write_bytes(content)
    return await store.open(path.stem)


def aside(log: Log) -> list[Path]:
    return sorted(log.path.parent.glob(f"{log.id}.torn-*"))


async def test_a_file_cut_at_any_byte_of_its_last_record_goes_on_without_it(data: Path) -> None:
    parts = pieces(some(4))
    whole, last = b"".join(parts[:3]), parts[3]
    for length in range(len(last)):
        store = Store(data, clock=Clock())
        log = await reopened(store, whole + last[:length])
        assert (log.n, log.damage) == (3, None)
        assert await everything(log) == whole
        assert (await log.append(draft("message", "new")))[0].n == 4
        await store.close()
        again = Store(data)
        log = await again.open(log.id)
        assert [record.body for record in (await log.read())[2:]] == [b"line 3\nand more", b"new"]
        assert log.path.read_bytes().startswith(whole)
        assert [path.read_bytes() for path in aside(log)] == ([last[:length]] if length else [])
        await again.close()
        for path in [*aside(log), *log.path.parent.glob("*.state")]:
            path.unlink()


async def test_a_torn_tail_stays_until_somebody_writes_and_the_log_says_where_it_went(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    content = b"".join(pieces(some(3))) + b'{"n":4,'
    log = await reopened(store, content)
    assert len(await log.read()) == 3
    assert log.path.read_bytes() == content
    await log.append(draft("message", "new"))
    (path,) = aside(log)
    assert path.name == f"{log.id}.torn-20260304T050609.891Z"
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"session {log.id}: its last 7 bytes were not a whole record; moved to {path}" in caplog.text


async def test_two_torn_tails_of_one_moment_are_both_kept(store: Store) -> None:
    content = b"".join(pieces(some(3))) + b"torn"
    log = await reopened(store, content)
    for name in ("20260304T050609.891Z", "20260304T050609.891Z-2"):
        log.path.with_name(f"{log.id}.torn-{name}").write_bytes(b"older")
    await log.append(draft("message", "new"))
    assert sorted(path.read_bytes() for path in aside(log)) == [b"older"] * 2 + [b"torn"]


async def test_a_damaged_session_reads_up_to_there_and_is_not_written(store: Store) -> None:
    parts = pieces(some(5))
    content = b"".join([*parts[:2], parts[2].replace(b"line", b"lime"), *parts[3:]])
    log = await reopened(store, content)
    assert log.damage is not None
    assert (log.damage.n, log.damage.offset, log.n, log.durable_n) == (3, len(parts[0] + parts[1]), 2, 2)
    assert await everything(log) == b"".join(parts[:2])
    with pytest.raises(DamagedError, match="record 3 at byte 303 does not read: check sum"):
        await log.append(draft("message"))
    assert log.path.read_bytes() == content
    assert not aside(log)
    copied = await store.open(await store.copy(log.id, 3))
    assert await everything(copied) == b"".join(parts[:2])
    await copied.append(draft("message", "goes on"))


async def test_damage_that_comes_while_the_log_is_open_is_found_on_reading(store: Store) -> None:
    _, log = await store.create(*some(5))
    content = log.path.read_bytes()
    log.path.write_bytes(content.replace(b"line 4", b"lime 4"))
    assert len(await log.read(1, 3)) == 3
    with pytest.raises(DamagedError, match="record 4 at byte"):
        await log.read()
    assert log.damage is not None
    with pytest.raises(DamagedError):
        await log.append(draft("message"))


@pytest.mark.parametrize("looked_at", [False, True])
async def test_a_file_that_another_program_changed_is_read_again_before_it_is_written(
    store: Store, looked_at: bool
) -> None:
    log = await reopened(store, b"".join(pieces(some(3))))
    if looked_at:
        await log.append(draft("message"))
    content = log.path.read_bytes() + pieces([draft("message", "by hand")], log.n + 1)[0]
    log.path.write_bytes(content)
    for size in (1, ON_LOOP + 1):
        with pytest.raises(ReopenError, match="another program changed the file: it has"):
            await log.append(draft("message", bytes(size)))
    assert log.broken
    await log.at_rest()
    assert log.path.read_bytes() == content
    fresh = await store.open(log.id)
    assert fresh is not log
    assert (await fresh.append(draft("message")))[0].n == log.n + 2


async def test_nothing_is_said_to_be_written_to_a_file_that_was_removed(store: Store) -> None:
    id, log = await store.create(*some(3))
    log.path.unlink()
    with pytest.raises(ReopenError, match="it was removed or replaced"):
        await log.append(draft("message"))
    with pytest.raises(MissingError):
        await store.open(id)


async def test_a_file_that_became_shorter_ends_its_readers_with_an_error(store: Store) -> None:
    _, log = await store.create(*some(5))
    os.truncate(log.path, log.span(3)[0] + 5)
    with pytest.raises(DamagedError, match="the file has become shorter"):
        await everything(log)
    with pytest.raises(DamagedError, match="record 4"):
        await log.headers(0)


async def test_a_file_that_is_read_only_is_read_and_says_so_when_written(data: Path) -> None:
    store = Store(data, max_open=1)
    _, log = await store.create(*some(3))
    fd = os.open(log.path, os.O_RDONLY)
    log._file.close()
    log._file._keep(fd)
    with pytest.raises(NoSpaceError, match="the file is read-only"):
        await log.append(draft("message"))
    assert len(await log.read()) == 3
    await store.close()

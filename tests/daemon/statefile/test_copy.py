import asyncio
from pathlib import Path

import pytest

from daemon.protocol.records import Record, draft
from daemon.statefile.errors import CopyPointError, MissingError
from daemon.statefile.points import copy_points
from daemon.statefile.store import Store
from daemon.statefile.writer import stored
from tests.daemon.statefile.fakes import NOW, some

# 3 message, 4 text and 5, 6 calls of step 7, 8, 9 their results, 10 a step, 11 a message, 12 a call of a
# step that never came.
SESSION = [
    *some(3),
    draft("text", "let me see", step="s1"),
    draft("call", "{}", id="c1", step="s1"),
    draft("call", "{}", id="c2", step="s1"),
    draft("step", id="s1", upto=3),
    draft("result", "two", for_="c2"),
    draft("result", "one", for_="c1"),
    draft("step", id="s2", upto=9),
    draft("message", "more"),
    draft("call", "{}", id="c3", step="never"),
]
END = draft("end", reason="ended")


def points_of(drafts: list[Record]) -> tuple[list[int], int]:
    return copy_points(record.raw for record in stored(drafts, 1, NOW)[0])


def test_a_copy_may_end_anywhere_but_between_a_call_and_its_result() -> None:
    assert points_of(SESSION) == ([3, 4, 5, 6, 7, 10, 11, 12, 13], 13)


def test_nothing_from_an_end_record_on_is_copied() -> None:
    assert points_of([*some(3), END, draft("config"), END]) == ([3, 4], 4)
    assert points_of([draft("start"), END]) == ([], 2)


def came_from(store: Store, id: str) -> tuple[str, int] | None:
    origin = store.origin(id)
    return (origin.session, origin.n) if origin is not None else None


def test_a_result_that_came_before_its_step_counts() -> None:
    parts = [*some(2), draft("call", id="c", step="s"), draft("result", for_="c"), draft("step", id="s")]
    assert points_of(parts) == ([3, 4, 5, 6], 6)


@pytest.mark.parametrize("n", [3, 4, 7, 10, 13])
async def test_a_copy_is_the_records_before_n_byte_for_byte(store: Store, n: int) -> None:
    id, log = await store.create(*SESSION)
    copy = await store.copy(id, n)
    opened = await store.open(copy)
    assert opened.path.read_bytes() == log.path.read_bytes()[: log.span(n - 1)[0]]
    assert opened.n == n - 1
    assert came_from(store, copy) == (id, n)
    assert store.origin(id) is None
    assert (await opened.append(draft("message", "on")))[0].n == n
    assert log.n == len(SESSION)


@pytest.mark.parametrize(("n", "nearest"), [(8, 7), (9, 10), (0, 3), (2, 3), (-5, 3), (14, 13), (99, 13)])
async def test_a_copy_that_could_not_go_on_names_the_nearest_that_would(
    store: Store, n: int, nearest: int
) -> None:
    id, _ = await store.create(*SESSION)
    with pytest.raises(CopyPointError, match=f"the nearest n that would do is {nearest}$") as refused:
        await store.copy(id, n)
    assert (refused.value.n, refused.value.nearest) == (n, nearest)
    assert await asyncio.to_thread(store.ids) == [id]


async def test_a_copy_of_an_ended_session_goes_on(store: Store) -> None:
    id, log = await store.create(*some(3), END)
    for n, expected in ((5, 3), (4, 3), (3, 2)):
        copy = await store.copy(id, n)
        opened = await store.open(copy)
        assert opened.n == expected
        assert came_from(store, copy) == (id, expected + 1)
        await opened.append(draft("message"))
    assert log.n == 4


async def test_a_session_without_two_records_cannot_be_copied(store: Store) -> None:
    id, _ = await store.create(draft("start"))
    with pytest.raises(
        CopyPointError, match="1 of its records reads, and a copy has 2 at least; no n would do"
    ):
        await store.copy(id, 3)


async def test_only_what_is_durable_is_copied(store: Store) -> None:
    id, log = await store.create(*some(3))
    await log.append(draft("message"), durable=False)
    with pytest.raises(CopyPointError, match="so n is 3 to 4"):
        await store.copy(id, 5)
    await log.sync()
    assert (await store.open(await store.copy(id, 5))).n == 4


async def test_a_copy_of_a_copy_names_the_copy(store: Store) -> None:
    id, _ = await store.create(*some(5))
    first = await store.copy(id, 5)
    second = await store.copy(first, 4)
    assert came_from(store, second) == (first, 4)


async def test_a_large_session_is_copied_whole(store: Store) -> None:
    id, log = await store.create(*some(3), *(draft("message", bytes(700_000)) for _ in range(5)))
    copy = await store.open(await store.copy(id, 8))
    assert copy.path.read_bytes() == log.path.read_bytes()[: log.span(7)[0]]


async def test_a_lost_or_spoilt_sidecar_loses_the_lineage_alone(
    store: Store, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    id, _ = await store.create(*some(3))
    copy = await store.copy(id, 4)
    sidecar = data / "sessions" / f"{copy}.from"
    assert sidecar.read_bytes().startswith(b'{"session":"%b","n":4,"time":"20' % id.encode())
    for spoilt in (b"", b"\xff", b"[]", b'{"session":"x"}', b'{"n":"4"}', b"[" * 3000):
        sidecar.write_bytes(spoilt)
        assert store.origin(copy) is None
    assert f"session {copy}: where it was copied from does not read" in caplog.text
    sidecar.unlink()
    assert store.origin(copy) is None
    assert (await store.open(copy)).n == 3


async def test_a_copy_of_nothing_is_missing(store: Store) -> None:
    with pytest.raises(MissingError):
        await store.copy("0" * 16, 3)

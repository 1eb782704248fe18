import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.harness import live
from daemon.harness.live import KEPT, OUTPUT, LiveReaders
from daemon.protocol.api import Delta, Restart, RetryEvent
from daemon.protocol.records import Kind, Record, draft
from daemon.provider.base import Delta as Piece
from daemon.statefile.store import Store
from daemon.streaming import Live
from tests.daemon.harness.doubles import Clock, FakePool, FakeProvider, bench, says, text
from tests.daemon.statefile.fakes import Disk

KINDS: Final[tuple[Literal["thinking", "text", "call"], ...]] = ("thinking", "text", "call")


class Session:
    """One whose pieces and records are made here, as the harness does; no two pieces are alike."""

    def __init__(self) -> None:
        self.passing = LiveReaders()
        self.passing.tip = lambda: self.durable
        self.records: list[Record] = []
        self.durable = 0
        self.texts: list[str] = []  # all that ever streamed, whole as far as it came
        self._open: dict[
            int, tuple[int, int]
        ] = {}  # blocks of this try: (which text, number of its record or 0)
        self._whole = 0  # blocks of it that are records
        self._tries = 0
        self._run: int | None = None  # the text of the run that goes
        self._runs = 0

    def expected(self, cursor: int) -> list[str]:
        """What is to be seen beside the records up to `cursor`."""
        found = [self.texts[at] for at, n in self._open.values() if not 0 < n <= cursor]
        return found + ([] if self._run is None else [self.texts[self._run]])

    def piece(self, size: int) -> None:
        """Of the block that is open; a first one without a word begins it."""
        kind = KINDS[self._whole % 3]
        at, _ = self._open.setdefault(self._whole, (self._new(), 0))
        name = "run" if kind == "call" else ""
        self.passing.put(Delta(kind, self._more(at, size), self._whole, name=name, step=f"s{self._tries}"))

    def whole(self, size: int) -> None:
        """The block is whole."""
        at, _ = self._open.get(self._whole, (-1, 0))
        said = self.texts[at] if at >= 0 else ""
        self._append(KINDS[self._whole % 3], said, step=f"s{self._tries}", block=self._whole)
        if at >= 0:
            self._open[self._whole] = (at, len(self.records))
        self._whole += 1

    def closed(self, size: int) -> None:
        """The answer is over."""
        self._append("step", id=f"s{self._tries}")
        self.synced(0)
        self._next()

    def failed(self, size: int) -> None:
        """It broke off, and is not asked for again."""
        self._append("error")
        self.synced(0)
        self._next()

    def restart(self, size: int) -> None:
        """It broke off, and is."""
        self.passing.put(RetryEvent("reset", 1.0, 2))
        self.passing.put(Restart())
        self._next()

    def posted(self, size: int) -> None:
        """A message comes in between."""
        self._append("message", "hi")
        self.durable = len(self.records)  # nobody tells those who stream of that

    def printed(self, size: int) -> None:
        """Output of a run."""
        if self._run is None:
            self._run = self._new()
            self._runs += 1
        self.passing.put(Delta("output", self._more(self._run, size), call=f"c{self._runs}"))

    def ran(self, size: int) -> None:
        """The run has its result."""
        self._append("result", for_=f"c{self._runs}")
        self.synced(0)
        self._run = None

    def synced(self, size: int) -> None:
        """What was appended is on disk."""
        self.durable = len(self.records)
        self.passing.durable(self.durable)

    def killed(self, size: int) -> None:
        """The daemon is another; what was not on disk is gone."""
        del self.records[self.durable :]
        self.passing.clear()
        self._run = None
        self._next()

    def _append(self, kind: Kind, body: str = "", **fields: Any) -> None:
        made = draft(kind, body, **fields)
        header = msgspec.structs.replace(made.header, n=len(self.records) + 1, id=made.id or "x")
        self.records.append(Record(header, made.body))
        self.passing.appended(self.records[-1:])

    def _new(self) -> int:
        self.texts.append("")
        return len(self.texts) - 1

    def _more(self, at: int, size: int) -> str:
        text = f"{sum(map(len, self.texts))}." * size
        self.texts[at] += text
        return text

    def _next(self) -> None:
        self._open, self._whole = {}, 0
        self._tries += 1


class Reader:
    """Reads as an event stream is written and taken, over lost connections; checks what is drawn at each moment."""

    def __init__(self, session: Session, cursor: int) -> None:
        self._session = session
        self._stack = ExitStack()
        self._live: live.Live | None = None
        self.cursor = cursor
        self.view = Live()

    def read(self) -> None:
        """Take all that there is."""
        if self._live is None:
            self._live = self._stack.enter_context(self._session.passing.read())
        while True:
            last = self._session.durable
            for event in self._live.take(self.cursor):
                if isinstance(event, Delta):
                    self.view.feed(event)
                elif isinstance(event, Restart):
                    self.view.restart()
                self._check()
            if self.cursor == last:
                break
            for record in self._session.records[self.cursor : self._live.until(self.cursor, last)]:
                self.cursor = record.n
                self.view.record(record)
                self._check()
        shown = ["".join(stream.pieces) for stream in self.view.streams() if not stream.broken]
        assert sorted(shown) == sorted(self._session.expected(self.cursor))

    def lose(self) -> None:
        """The connection is lost."""
        before = ["".join(stream.pieces) for stream in self.view.streams()]
        self._stack.close()
        self._live = None
        self.view.lost()
        assert ["".join(stream.pieces) for stream in self.view.streams()] == before
        self._check()

    def _check(self) -> None:
        """Nothing is drawn that is not the beginning of something, nor twice, nor beside its record."""
        streams = self.view.streams()
        drawn = [text for stream in streams if (text := "".join(stream.pieces))]
        of = [next(at for at, whole in enumerate(self._session.texts) if whole.startswith(t)) for t in drawn]
        assert len(set(of)) == len(of)
        assert not any(stream.begin for stream in streams)
        recorded = [record.text() for record in self._session.records[: self.cursor]]
        assert not any(said.startswith(text) for said in recorded for text in drawn)


SESSION: Final[dict[str, Callable[[Session, int], None]]] = {
    "piece": Session.piece,
    "whole": Session.whole,
    "closed": Session.closed,
    "failed": Session.failed,
    "restart": Session.restart,
    "posted": Session.posted,
    "printed": Session.printed,
    "ran": Session.ran,
    "synced": Session.synced,
    "killed": Session.killed,
}


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*SESSION, "piece", "piece", "join", "read", "read", "lose"]), st.integers(0, 3)
        ),
        min_size=15,
        max_size=60,
    )
)
def test_whoever_joins_when_and_over_whatever_connections_sees_what_a_reader_from_the_start_sees(
    steps: list[tuple[str, int]],
) -> None:
    session = Session()
    readers = [Reader(session, 0)]
    for name, size in steps:
        if name in SESSION:
            SESSION[name](session, size)
            if name == "killed":
                for reader in readers:
                    reader.lose()
        elif name == "join":
            readers.append(Reader(session, max(0, session.durable - size)))
            readers[-1].read()
        elif name == "read":
            readers[size % len(readers)].read()
        else:
            readers[size % len(readers)].lose()
    for reader in readers:
        reader.read()


# What is kept.


def test_a_reader_gets_of_much_that_came_at_once_one_piece() -> None:
    passing = LiveReaders()
    with passing.read() as reader:
        for n in range(1000):
            passing.put(Delta("text", f"{n} ", step="s"))
        assert reader.take(0) == [Delta("text", "".join(f"{n} " for n in range(1000)), step="s")]
        assert reader.take(0) == []
        passing.put(Delta("text", "more", step="s"))
        (more,) = reader.take(0)
        assert isinstance(more, Delta)
        assert more.text == "more"


def test_what_is_kept_of_one_session_is_bounded_and_what_is_left_out_is_told() -> None:
    passing = LiveReaders()
    for block in range(3):
        for n in range(KEPT // 10):
            passing.put(Delta("text", f"{n:09} ", block, step="s"))
    with passing.read() as reader:
        pieces = reader.take(0)
    assert sum(len(piece.text) for piece in pieces if isinstance(piece, Delta)) <= KEPT
    for piece in pieces:
        assert isinstance(piece, Delta)
        assert piece.at > 0
        assert piece.at + len(piece.text) == KEPT // 10 * 10
        assert piece.text.endswith(f"{KEPT // 10 - 1:09} ")


def test_of_a_runs_output_the_end_is_kept() -> None:
    passing = LiveReaders()
    passing.put(Delta("text", "so", step="s"))
    for _ in range(100):
        passing.put(Delta("output", "x" * 8000, call="c"))
    with passing.read() as reader:
        answer, output = reader.take(0)
    assert answer == Delta("text", "so", step="s")
    assert isinstance(output, Delta)
    assert OUTPUT // 2 <= len(output.text) <= OUTPUT
    assert output.at + len(output.text) == 800_000


def test_one_piece_that_is_too_long_is_cut_too() -> None:
    passing = LiveReaders()
    passing.put(Delta("call", "x" * (3 * KEPT), step="s", name="write"))
    passing.put(Delta("call", "!", step="s"))
    with passing.read() as reader:
        (piece,) = reader.take(0)
    assert isinstance(piece, Delta)
    assert (piece.name, piece.text[-1], piece.at + len(piece.text)) == ("write", "!", 3 * KEPT + 1)
    assert len(piece.text) <= KEPT


def test_nothing_is_kept_once_the_step_is_closed_and_on_disk() -> None:
    session = Session()
    for name in ("piece", "whole", "piece", "whole", "piece", "printed"):
        SESSION[name](session, 1)
    session.closed(0)
    session.ran(0)
    assert list(session.passing._all()) == []
    assert session.passing._size == 0


def test_a_reader_that_is_late_still_gets_what_streamed_before_its_record() -> None:
    session = Session()
    with session.passing.read() as reader:
        session.piece(1)
        session.piece(1)
        session.whole(0)
        session.closed(0)
        (piece,) = reader.take(0)
        assert isinstance(piece, Delta)
        assert piece.text == session.texts[0]
        assert reader.take(2) == []


def test_one_that_takes_nothing_does_not_hold_on_to_all_that_streams() -> None:
    session = Session()
    with session.passing.read() as reader:
        for _ in range(5):
            session.piece(KEPT // 8)
            session.closed(0)
        assert sum(one.size for one in reader._left) <= KEPT


async def test_a_reader_waits_for_what_comes() -> None:
    passing = LiveReaders()
    with passing.read() as reader:
        await reader.wait()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(reader.wait(), name="a reader")
            await asyncio.sleep(0)
            assert not waiting.done()
            passing.put(RetryEvent("busy", 1.0, 2))
        assert reader.take(0) == [RetryEvent("busy", 1.0, 2)]
        assert passing
    assert not passing


def test_the_next_step_makes_void_what_is_left_of_one_that_could_not_be_closed() -> None:
    passing = LiveReaders()
    with passing.read() as reader:
        passing.put(Delta("text", "half", step="s1"))
        assert len(reader.take(0)) == 1
        passing.put(Delta("thinking", "hm", step="s2"))
        assert reader.take(0) == [Delta("thinking", "hm", step="s2")]
    with passing.read() as late:
        assert late.take(0) == [Delta("thinking", "hm", step="s2")]


def test_output_that_a_worker_sends_again_is_there_once() -> None:
    passing, view = LiveReaders(), Live()
    with passing.read() as reader:
        for piece in ("1\n", "2\n", "", "1\n2\n3\n", "4\n"):
            if piece:
                passing.put(Delta("output", piece, call="c"))
            else:
                passing.again("c")
            for event in reader.take(0):
                assert isinstance(event, Delta)
                view.feed(event)
    (item,) = view.items()
    assert item.body == "1\n2\n3\n4"


async def test_an_answer_that_begins_before_its_message_is_on_disk_comes_after_it(tmp_path: Path) -> None:
    disk, on = Disk(), asyncio.Event()
    store = Store(tmp_path, clock=Clock(), sync=disk)
    provider = FakeProvider([Piece("text", "Hel"), on, *says(text("Hello"))])
    async with bench(store, provider, FakePool()) as b, asyncio.TaskGroup() as group:
        id = await b.session("")
        log = await b.harness.log(id)
        with b.harness.live(id) as reader:
            await reader.wait()  # at first at once
            syncing = disk.hold()
            post = group.create_task(b.post(id, "hi"))
            await syncing.wait()
            await reader.wait()
            assert reader.take(log.durable_n) == []
            disk.let_go()
            n = await post
            assert [event.text for event in reader.take(n) if isinstance(event, Delta)] == ["Hel"]
        on.set()
        assert await b.rest(id) == "closed"
    await store.close()

"""The log of one session: its records, what streams, and the keys to read, search, fold and copy them."""

import asyncio
import time
from datetime import tzinfo
from functools import partial
from typing import Final, Self, assert_never

from textual import on
from textual.app import ComposeResult
from textual.timer import Timer
from textual.widgets import Input

from daemon.client import ApiFailure, Back, Followed, Lost, Unreachable
from daemon.plain import line, seconds
from daemon.protocol import api
from daemon.protocol.records import Record
from tui import beside
from tui.ahead import focus_now
from tui.log.keys import BINDINGS
from tui.log.messages import Failed, Moved, Opened, Picture, Said, Source
from tui.log.pane import Pane, Range
from tui.log.pattern import Pattern
from tui.log.record import RecordActions
from tui.log.rows import Rows
from tui.log.search import Hit, Search

FLUSH: Final = 0.04  # seconds between two drawings of what has come: smooth to the eye
REST: Final = 6  # times as long as a drawing took, painting not counted, nothing is drawn: keys come first
TAIL: Final = 200  # records at the end that are loaded first, whole: some screens
HEADERS: Final = 5000  # headers in one go: some 15 ms of work, in which no key is heard


class LogView(RecordActions):
    """The records of one session and what streams in below them; no widget per record.

    A screen uses it so:

        def compose(self):
            yield LogView(id="log")

        def show(self, info: api.Info) -> None:
            log = self.query_one(LogView)
            log.open(info.id, self.client, info.n)            # returns at once, loads in a worker
            beside.run(self, partial(self.follow, log, info), self.failed, "follow", exclusive=True)

        async def follow(self, log, info):
            async with aclosing(self.client.follow(info.id, info.n, deltas=True)) as events:
                async for event in events:
                    log.feed(event)                           # every event, in order; cheap, draws nothing

        def on_fork(self, message: Fork) -> None: ...         # and Zoom, Copied, Said, Picture, Moved, Opened, Failed

    The messages stand in `tui.log.messages`; all derive from LogMessage. The log writes to the clipboard itself, what
    is to be said of it is the screen's to show. `focus()` gives its list of records the focus. Keys are in BINDINGS,
    each with an id (`log.down` …) for `App.set_keymap`; `i` and `ctrl+x` are the screen's own.
    `zone`: of the times shown, None is the machine's.
    """

    BINDINGS = BINDINGS
    DEFAULT_CSS = """
    LogView { height: 1fr; width: 1fr; layout: vertical; }
    LogView > Pattern { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    """

    def __init__(
        self, *, zone: tzinfo | None = None, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._zone = zone
        self._session = ""
        self._source: Source | None = None
        self._flushing: Timer | None = None
        self._dirty = False
        self._rest = 0.0  # until when nothing that has come is drawn
        self._asking = False
        self._shown = (True, 0)
        self._search: Search | None = None

    def compose(self) -> ComposeResult:
        """The rows, and below them where a search is typed."""
        yield self._rows
        yield Pattern(placeholder="search, Enter to find, Esc to leave", select_on_focus=True)

    def on_mount(self) -> None:
        """The one timer that draws."""
        self._flushing = self.set_interval(FLUSH, self._flush, name="log flush", pause=True)
        if self._dirty:
            self._flushing.resume()

    # What a screen calls.

    @property
    def last(self) -> int:
        """Number of the last record that is known, 0 for none: where to follow from."""
        return self.pane.last

    @property
    def opened(self) -> bool:
        """Whether a session is shown."""
        return self._source is not None

    def say(self, text: str) -> None:
        """Say something below the records until more comes; nothing takes it away."""
        self.pane.say(line(text, 1000))
        self._touch()

    def focus(self, scroll_visible: bool = True) -> Self:
        """Give the records the focus."""
        self._rows.focus(scroll_visible)
        return self

    def open(self, session: str, source: Source, last: int) -> None:
        """Show a session whose last record has number `last`; whatever was shown before goes."""
        self._session, self._source = session, source
        old = self.pane
        self._rows.pane = Pane(last, self._zone)
        self._rows.pane.resize(old.columns, old.lines)
        self._rows.pattern = ""
        self._search = None
        self._asking = False
        self.workers.cancel_group(self, "search")
        self.workers.cancel_group(self, "bodies")
        self._touch()
        self.reload()

    def reload(self) -> None:
        """Try again to load what could not be loaded."""
        if self._source is not None:
            load = partial(self._load, self._session, self._source, self.pane)
            beside.run(self, load, self._failed, "load", exclusive=True)

    def feed(self, event: Followed) -> None:
        """Take an event of `Client.follow(session, last, deltas=True)` in; records seen before are passed over."""
        pane = self.pane
        match event:
            case Record():
                pane.append(event)
            case api.Delta():
                pane.delta(event)
            case api.RetryEvent():
                wait = f"in {seconds(event.wait)}" if event.wait else "now"
                pane.say(line(f"{event.why}: trying again {wait}, try {event.attempt}"))
            case api.Restart():
                pane.live.restart()
            case Lost():
                pane.live.lost()
            case Back():
                return
            case _:
                assert_never(event)
        self._touch()

    # Drawing.

    def _touch(self) -> None:
        """Something has come: draw it with the next turn of the timer."""
        if not self._dirty:
            self._dirty = True
            if self._flushing is not None:
                self._flushing.resume()

    def _flush(self) -> None:
        if not self._dirty:
            self._rows.settle()
            if self._flushing is not None:
                self._flushing.pause()
            return
        start = time.monotonic()
        if start < self._rest:
            return
        self._dirty = False
        self._redraw()
        end = time.monotonic()
        self._rest = end + REST * (end - start)

    def _redraw(self) -> None:
        self.pane.layout()
        self._rows.sync()
        self._after()

    def _after(self) -> None:
        """After the view was moved or drawn: ask for what is missed, and say how it stands."""
        if self.pane.missed and not self._asking and self._source is not None:
            self._asking = True
            ask = partial(self._ask, self._session, self._source, self.pane)
            beside.run(self, ask, self._failed, "bodies")
        shown = (self.pane.follow, self.pane.new)
        if shown != self._shown:
            self._shown = shown
            self.post_message(Moved(*shown))

    @on(Rows.Scrolled)
    def _scrolled(self, message: Rows.Scrolled) -> None:
        message.stop()
        self._after()

    # Loading.

    async def _load(self, session: str, source: Source, pane: Pane) -> None:
        last = pane.last
        if pane.ledger.noted < last:
            tail = await source.records(session, max(0, last - TAIL), min(last, TAIL))
            pane.preview(tail)
            self._redraw()
        self.post_message(Opened(last))
        while (after := pane.ledger.noted) < last:
            found = await source.headers(session, after, min(HEADERS, last - after))
            pane.note(record.header for record in found)
            await asyncio.sleep(0)  # a source may have them all at hand, and keys want to be heard in between
            if pane.ledger.noted == after:
                raise ApiFailure(502, f"the headers after record {after} of session {session} did not come")
        pane.noted()
        self._touch()

    def _failed(self, error: Exception) -> None:
        """Records could not be read; a fault of ours would be the same again."""
        self.post_message(Failed(beside.sentence(error), isinstance(error, ApiFailure | Unreachable)))

    async def _ask(self, session: str, source: Source, pane: Pane) -> None:
        """Get the bodies that are missed on the screen, until none is."""
        asked: Range | None = None
        try:
            while (wanted := pane.wanted()) is not None and wanted != asked and pane is self.pane:
                asked = wanted
                pane.keep(await source.records(session, wanted.after, wanted.limit))
                pane.layout()
                self._rows.sync()
        finally:
            if pane is self.pane:
                self._asking = False

    # Moving.

    def action_select(self, step: int) -> None:
        """The next record, or the one before."""
        self.pane.select(step)
        self._rows.moved()

    def action_half(self, step: int) -> None:
        """Half a page."""
        self.pane.scroll(step * max(1, self.pane.lines // 2))
        self._rows.moved()

    def action_page(self, step: int) -> None:
        """A page but for one line, to read on from."""
        self.pane.scroll(step * max(1, self.pane.lines - 1))
        self._rows.moved()

    def action_top(self) -> None:
        """The first record."""
        self.pane.to_top()
        self._rows.moved()

    def action_follow(self) -> None:
        """The end, and what comes there."""
        self.pane.to_end()
        self._rows.moved()

    def action_next_error(self) -> None:
        """The next error, or result that failed."""
        pane, ledger = self.pane, self.pane.ledger
        found = (ledger.find("error", pane.cursor), ledger.find("result", pane.cursor, state="failed"))
        self._go(min((n for n in found if n), default=0), "error")

    def action_next_message(self) -> None:
        """The next message of a user."""
        self._go(self.pane.ledger.find("message", self.pane.cursor), "message")

    def _go(self, n: int, what: str) -> None:
        if not n:
            self.post_message(Said(f"no {what} below this record"))
            return
        self.pane.reveal(n)
        self._rows.moved()

    @on(Rows.Touched)
    def _touched(self, message: Rows.Touched) -> None:
        message.stop()
        pane = self.pane
        if not message.n:
            self.action_follow()
        elif message.n <= pane.last:
            pane.cursor = message.n
            rows = pane.rows(message.n)
            title = next((at for at, row in enumerate(rows) if row.spans), 0)
            item = pane.item(message.n)
            if item is not None and item.media and message.line > title:
                self._redraw()
                self.post_message(Picture(item.n, item.media))
            elif message.line == title:
                self._fold()
            else:
                self._redraw()

    # Folding.

    def action_fold(self) -> None:
        """Fold the record at the cursor, or open it; an image opens outside."""
        item = self.pane.item(self.pane.cursor)
        if item is not None and item.media and not self.pane.folded(item.n):
            self.post_message(Picture(item.n, item.media))
        else:
            self._fold()

    def _fold(self) -> None:
        n = self.pane.cursor
        folded = self.pane.folded(n)
        if folded is not None:
            self.pane.fold(n, not folded)
            self._redraw()

    def action_fold_kind(self) -> None:
        """Fold all records of this kind, or open them all."""
        n = self.pane.cursor
        folded = self.pane.folded(n)
        if folded is not None:
            self.pane.fold_kind(self.pane.ledger.kind(n), not folded)
            self._redraw()

    def action_thinking(self) -> None:
        """Open all thinking, or fold it."""
        self.pane.fold_kind("thinking", self.pane.kind_folded("thinking") is False)
        self._redraw()

    # Searching.

    def action_search(self) -> None:
        """Type what to search for."""
        pattern = self.query_one(Pattern)
        pattern.display = True
        focus_now(pattern)

    @on(Pattern.Left)
    def _left(self, message: Pattern.Left) -> None:
        message.stop()
        self.query_one(Pattern).display = False
        self._rows.focus()

    @on(Input.Submitted)
    def _submitted(self, message: Input.Submitted) -> None:
        message.stop()
        message.input.display = False
        self._rows.focus()
        self._rows.pattern = message.value
        if message.value:
            self._search = Search(message.value, -1 if self.pane.follow else 1)
            self._find(1)

    def action_again(self, step: int) -> None:
        """The next match in the direction of the search, or the one before."""
        if self._search is None:
            self.post_message(Said("nothing was searched for yet: /"))
            return
        self._find(step)

    def _find(self, step: int) -> None:
        assert self._search is not None
        found = partial(self._found, self._search, step * self._search.step)
        beside.run(self, found, self._failed, "search", exclusive=True)

    async def _found(self, search: Search, step: int) -> None:
        pane, source = self.pane, self._source
        if source is None:
            return
        hit = await search.find(pane, source, self._session, step)
        if pane is self.pane:
            self._show(search, hit)

    def _show(self, search: Search, hit: Hit | None) -> None:
        if hit is None:
            self.post_message(Said(line(f"not found: {search.pattern}")))
            return
        self.pane.reveal(hit.n, hit.line)
        self._rows.moved()
        if hit.line is None:
            self.post_message(Said("it is in the part that is not shown: v"))
        elif hit.wrapped:
            self.post_message(Said("searched on from the other end"))

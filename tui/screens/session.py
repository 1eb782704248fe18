"""One session: its head, its log, and the composer; or the list of sessions beside them."""

import asyncio
from contextlib import aclosing
from functools import partial
from typing import ClassVar, Final, assert_never

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.css.query import NoMatches
from textual.timer import Timer
from textual.widgets import Static

from daemon.client import ApiFailure, Back, Followed, Lost, Unreachable
from daemon.plain import line, seconds
from daemon.protocol import api
from daemon.protocol.records import Record
from tui import attach, beside
from tui.ahead import focus_now
from tui.desk import Chip
from tui.keymap import key
from tui.log import messages as log
from tui.log.logview import LogView
from tui.messages import OutboxChanged, RosterChanged
from tui.roster import OVER, RETRIED
from tui.screens.base import DaemonScreen
from tui.screens.change import ChangeScreen
from tui.widgets.banner import Banner
from tui.widgets.composer import Composer
from tui.widgets.header import SessionHeader
from tui.widgets.hints import Hints
from tui.widgets.sending import Sending
from tui.widgets.table import SessionTable

KEEP: Final = 0.5  # seconds of writing after which a draft is kept
AGAIN: Final = 1.0  # seconds until a daemon that was just there is asked again
REFUSED: Final = 5.0  # and one that has refused
PASSING: Final = frozenset(
    {401, 403, 429}
)  # refusals that may pass, as every 5xx: a key is given, a crowd goes
NONE: Final = 404
STOPS: Final = frozenset({"session.stop", "composer.stop"})
WRITES: Final = frozenset({"session.compose", "session.change", "composer.send", "composer.newline"})
SIDE: Final = 90  # columns from which the list can stand beside a session


class SessionScreen(DaemonScreen):
    """The session `session`. It follows it as long as it is there."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("session.compose", "i", "compose", "Write", show=True),
        key("session.stop", "ctrl+x", "stop", "Stop", show=True),
        key("session.retry", "ctrl+r", "retry", "Retry", show=True),
        key("session.fork", "ctrl+f", "fork", "Copy all of it"),
        key("session.take-back", "ctrl+o", "take_back", "Take back", show=True),
        key("session.change", "f3", "change", "Change model, workers, limits"),
        key("session.end", "f8", "end", "End for good"),
        key("session.side", "ctrl+b", "side", "List beside it"),
        key("session.back", "escape,q", "app.sessions", "Sessions", show=True),
    ]

    def __init__(self, session: str) -> None:
        super().__init__()
        self.session = session
        self._note = ""
        self._more = "loading …"  # or records that came below what is shown
        self._going: list[tuple[str, tuple[Chip, ...]]] = []  # sent, and not in the outbox yet
        self._keeping: Timer | None = None  # the draft is about to be kept
        self._status = ""  # as the line at the bottom knows it
        self._failed = False  # the log could not be read
        self._failure = ""  # why that was, as it was told
        self._out = ""  # why it will not be read any more
        self.ready = False  # the draft stands in the composer

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield SessionTable(self.outrider.row, self.outrider.now, head=False, id="side")
            with Vertical():
                yield SessionHeader(id="head")
                yield Banner(id="banner")
                yield LogView(id="log")
                yield Sending(self.outrider.outbox, id="sending")
                yield Static("", id="chips", markup=False)
                yield Composer(id="composer")
        yield Hints()

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def log_view(self) -> LogView:
        return self.query_one("#log", LogView)

    def on_mount(self) -> None:
        draft = self.outrider.desk.draft(self.session)
        self.composer.put(draft.text, draft.chips, draft.history)
        self.ready = True
        self.composer.focus()
        self.query_one("#chips").display = False
        self._show()
        self._show_sending()
        self._begin()

    # ---- what comes

    def _begin(self) -> None:
        self._out = ""
        self.refresh_bindings()
        beside.run(self, self._follow, self.outrider.complain, "follow", exclusive=True)

    async def _follow(self) -> None:
        """Follow the session until it is refused for good, and then say so in its log."""
        while True:
            await self.outrider.linked.wait()
            try:
                await self._followed()
                return
            except Unreachable:
                await asyncio.sleep(AGAIN)
            except ApiFailure as error:
                why = line(error.message, 500)
                if error.status < 500 and error.status not in PASSING:
                    self._ended(why, error.status == NONE)
                    return
                self.log_view.say(f"not read: {why}; it is tried again every {seconds(REFUSED)}")
                await asyncio.sleep(REFUSED)

    async def _followed(self) -> None:
        app, view = self.outrider, self.log_view
        if not view.opened:
            info = await app.client.info(self.session)
            app.roster.take(info)
            view.open(info.id, app.client, info.n)
            self._show()
        view.say("")
        async with aclosing(app.client.follow(self.session, view.last, deltas=True)) as events:
            async for event in events:
                self._take(event)

    def _ended(self, why: str, gone: bool) -> None:
        """It will not be read (on)."""
        self._out, self._more = why, ""
        go = "its file is not in the daemon's folder; esc goes back to the list" if gone else "esc goes back"
        self.log_view.say(f"not read: {why}; {go}")
        self._show()
        self.refresh_bindings()

    def _take(self, event: Followed) -> None:
        self.log_view.feed(event)
        match event:
            case api.RetryEvent():
                wait = f"in {seconds(event.wait)}" if event.wait else "now"
                self._say(f"{event.why}: trying again {wait}, try {event.attempt}")
            case Record() | api.Restart() | api.Delta():
                self._say("")
            case Lost() | Back():
                pass
            case _:
                assert_never(event)

    def _say(self, note: str) -> None:
        if note != self._note:
            self._note = line(note)
            self._show()

    def on_roster_changed(self, event: RosterChanged) -> None:
        if self.is_current:
            self._refresh(event.ids)

    def on_screen_resume(self) -> None:
        """What lay over it is gone: what came meanwhile is shown, and is seen with that."""
        self._refresh(frozenset(self.outrider.roster.infos))
        self.outrider.mark(set())

    def _refresh(self, ids: frozenset[str]) -> None:
        if not self.ready:
            return
        if self._failed and not self.outrider.lost:
            self._failed = False
            self.log_view.reload()
        if self._out and self.session in self.outrider.roster.infos and self.session in ids:
            self._begin()  # its file was put back
        self._show()
        self._show_sending()
        side = self.query_one("#side", SessionTable)
        if side.display:
            rows = tuple(info.id for info in self.outrider.roster.rows())
            if rows != side.ids:
                side.show(rows)
            else:
                side.touch(ids)

    def on_resize(self) -> None:
        self._show_side()

    def _show(self) -> None:
        app = self.outrider
        try:
            self.query_one(Banner).tell(app.lost)
            if app.roster.info(self.session) is not None:
                row = app.row(self.session)
                if row.info.status != self._status:
                    self._status = row.info.status
                    self.refresh_bindings()
                self.query_one(SessionHeader).show(row, self._note or self._more)
                over = row.info.status in OVER
                self.composer.read_only = over or bool(self._out)
                self.composer.placeholder = (
                    "it cannot be read, and takes no message"
                    if self._out
                    else f"it is {row.info.status}; ctrl+f makes a copy that can go on"
                    if over
                    else "write a message"
                )
        except NoMatches:  # not composed yet, or no longer
            return

    def idle(self) -> frozenset[str]:
        """Keys that would do nothing now; they are not in the line at the bottom."""
        info = self.outrider.roster.infos.get(self.session)
        status = info.status if info else ""
        stop = frozenset() if status == "stepping" else STOPS
        stop |= WRITES if status in OVER or self._out else frozenset()
        stop |= frozenset() if self.outrider.desk.unsent(self.session) else {"session.take-back"}
        return stop if status in RETRIED else stop | {"session.retry"}

    def _show_side(self) -> None:
        side = self.query_one("#side", SessionTable)
        side.display = self.outrider.side and self.size.width >= SIDE
        if side.display:
            side.show([info.id for info in self.outrider.roster.rows()])
            side.cursor = self.session

    # ---- the log's words

    def on_fork(self, event: log.Fork) -> None:
        self.outrider.fork(self.session, event.n, event.text)

    def on_zoom(self) -> None:
        self.toggle_class("zoomed")

    def on_copied(self, event: log.Copied) -> None:
        if event.sure:  # else the app has said it
            self.outrider.tell(event.said)

    def on_said(self, event: log.Said) -> None:
        self.outrider.tell(event.text)

    def on_opened(self) -> None:
        self._more = ""
        self._show()

    def on_failed(self, event: log.Failed) -> None:
        self._more = ""
        if event.again:
            self._failed = True
            self.set_timer(REFUSED, lambda: self._refresh(frozenset()))
        if event.why != self._failure:  # once, however often it is tried again
            self._failure = event.why
            self.outrider.tell(event.why, bad=True)

    def on_picture(self, event: log.Picture) -> None:
        self.outrider.work(partial(self._picture, event.n, event.media), "picture")

    async def _picture(self, n: int, media: str) -> None:
        app = self.outrider
        record = self.log_view.pane.record(n) or (await app.client.records(self.session, n - 1, 1))[0]
        app.tell(await app.pictures.show(self.session, n, media, record.body))

    def on_moved(self, event: log.Moved) -> None:
        self._more = f"{event.new} new ↓" if event.new and not event.follow else ""
        self._show()

    def on_session_table_opened(self, event: SessionTable.Opened) -> None:
        self.outrider.open_session(event.session)

    # ---- the composer's words

    def on_text_area_changed(self) -> None:
        if self._keeping is None:
            self._keeping = self.set_timer(KEEP, self.keep)

    def on_composer_attached(self) -> None:
        chips = self.composer.chips
        shown = self.query_one("#chips", Static)
        shown.display = bool(chips)
        shown.update("\n".join(f"[{at}] {line(chip.name)}" for at, chip in enumerate(chips, 1)))
        self.keep()

    def keep(self) -> None:
        """Keep the draft as it is now; it is written a little later."""
        self._keeping = None
        if self.ready and self.is_attached and self.query(Composer):
            self.outrider.desk.write(self.session, *self._all_written())
            self.outrider.keep()

    def _all_written(self) -> tuple[str, tuple[Chip, ...]]:
        """The draft, behind what is sent and not in the outbox yet: nothing is lost if all ends now."""
        written = [*self._going, (self.composer.written, self.composer.chips)]
        return "\n".join(text for text, _ in written if text), tuple(
            chip for _, chips in written for chip in chips
        )

    def on_composer_sent(self, event: Composer.Sent) -> None:
        self.log_view.action_follow()  # who writes wants to see what comes of it
        self._going.append((event.text, event.chips))
        if len(self._going) == 1:
            self.outrider.work(self._post, "post")

    async def _post(self) -> None:
        """Read what is attached, and hand all to the outbox, in order; what cannot be posted comes back."""
        app = self.outrider
        while self._going:
            text, chips = self._going[0]
            try:
                parts = await asyncio.to_thread(attach.parts, text, chips)
            except attach.NotPostable as error:
                app.tell(str(error), bad=True)
                written = self._all_written()
                self._going.clear()
                self.composer.put(*written, self.composer.posts)
            else:
                del self._going[0]
                if parts:
                    app.post(self.session, text, parts, chips)
                self.composer.posts = app.desk.draft(self.session).history
            self.keep()

    def on_outbox_changed(self, event: OutboxChanged) -> None:
        if event.session == self.session:
            self._show_sending()

    def give_back(self, text: str, chips: tuple[Chip, ...]) -> None:
        """A post that will not be sent comes back, before what has been written since."""
        self.composer.give_back(text, chips)
        self.keep()

    def _show_sending(self) -> None:
        app = self.outrider
        if self.query_one(Sending).show(app.desk.unsent(self.session), bool(app.lost)):
            self.refresh_bindings()

    def on_composer_left(self) -> None:
        self.log_view.focus()

    def on_composer_tells(self, event: Composer.Tells) -> None:
        self.outrider.tell(event.text, event.bad)

    def on_composer_editor(self) -> None:
        self.outrider.work(self._edit, "editor", exclusive=True)

    async def _edit(self) -> None:
        composer = self.composer
        await composer.rewrite(self.outrider.edited)
        composer.focus()

    # ---- keys

    def action_compose(self) -> None:
        focus_now(self.composer)

    def action_stop(self) -> None:
        self.outrider.stop(self.session)

    def action_retry(self) -> None:
        self.outrider.retry(self.session)

    def action_fork(self) -> None:
        self.outrider.fork(self.session)

    def action_take_back(self) -> None:
        if not self.outrider.outbox.take_back(self.session):
            self.outrider.tell("every post has arrived: there is nothing to take back")

    def action_change(self) -> None:
        if (info := self.outrider.roster.infos.get(self.session)) is None:
            return
        if info.status in OVER:
            self.outrider.tell("this session is over; f in the log goes on in a copy of it", bad=True)
        else:
            self.app.push_screen(ChangeScreen(info))

    def action_end(self) -> None:
        self.outrider.end(self.session)

    def action_side(self) -> None:
        app = self.outrider
        if self.size.width < SIDE:
            app.tell(f"the list beside a session needs {SIDE} columns")
            return
        app.side = not app.side
        self._show_side()
        (self.query_one("#side") if app.side else self.composer).focus()

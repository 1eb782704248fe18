"""The terminal UI's app: one daemon watched, its sessions opened, what is posted sent, every error told in a line."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, assert_never

from textual.binding import BindingType
from textual.filter import LineFilter
from textual.screen import ModalScreen, Screen
from textual.timer import Timer

from daemon.client import ApiFailure, Back, Client, Lost, Watched
from daemon.plain import line
from daemon.protocol import api
from tui import beside, colours, keymap, palette, patches, places, themes, words
from tui.deeds import Given
from tui.desk import Desk
from tui.doing import Doing
from tui.log.pager import Pager
from tui.messages import RosterChanged
from tui.pictures import Pictures
from tui.posting import Posting
from tui.screens.base import Dialog
from tui.screens.session import SessionScreen
from tui.screens.sessions import SessionsScreen
from tui.widgets.table import Row

FLUSH: Final = 0.1  # seconds in which changes of sessions are gathered before the screen is told
AGAIN: Final = 5.0  # seconds until a daemon that refused to be watched is asked again
WORTH: Final = 3.0  # seconds after which a lost connection is told of
KEY: Final = "OUTRIDER_KEY"
KEYLESS: Final = 401
TOASTS: Final = 3  # at once; more are counted
THEME: Final = "textual-dark"
FEW: Final = {"standard": "ansi-dark"}  # the theme to begin with where the terminal has not enough for that


class OutriderApp(Posting):
    """Screens draw; what they know of the daemon stands here, in `roster`, and what they change goes through here."""

    CSS_PATH = "app.tcss"
    TITLE = "outrider"
    COMMANDS = {palette.Everything}
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        keymap.key("app.quit", "ctrl+q", "quit", "Quit", first=True),
        keymap.key("app.palette", "ctrl+p", "command_palette", "Palette", show=True, first=True),
        keymap.key("app.help", "f1,question_mark", "show('help')", "Help", show=True),
        keymap.key("app.sessions", "ctrl+s", "sessions", "Sessions"),
        keymap.key("app.new", "ctrl+n", "new", "New session"),
        keymap.key("app.workers", "f4", "show('workers')", "Workers"),
        keymap.key("app.settings", "f9", "show('settings')", "Settings"),
        keymap.key("app.previous", "left_square_bracket", "beside(-1)", "Previous session"),
        keymap.key("app.next", "right_square_bracket", "beside(1)", "Next session"),
        keymap.key("app.urgent", "exclamation_mark", "urgent", "Next that wants you"),
    ]

    def __init__(
        self,
        client: Client,
        desk: Desk,
        given: Given,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        edit: Callable[[Path], Awaitable[None]] | None = None,
    ) -> None:
        patches.apply()
        super().__init__(client, desk, given, edit, now)
        self.focused_terminal = True
        self.side = False  # whether sessions show the list beside them
        self.pictures = Pictures()
        self.limits: dict[str, int] = {}  # of models' contexts, in tokens
        self.doing = Doing(client, lambda id: self.mark({id}))
        self._changed: set[str] = set()
        self._flushing: Timer | None = None
        self._tries = 0  # to connect, that failed in a row
        self._title = ""
        if given.keys:
            self.set_keymap(given.keys)
        for own in given.themes:
            self.register_theme(own)
        theme = given.theme or desk.prefs.theme
        usual = FEW.get(given.colours, THEME)
        self.theme = theme if theme in self.available_themes else usual

    def get_default_screen(self) -> Screen[Any]:
        return SessionsScreen()

    def get_css_variables(self) -> dict[str, str]:
        variables = colours.readable(super().get_css_variables(), themes.chosen(self.current_theme))
        self.theme_variables = variables
        return variables

    def get_line_filters(self) -> Sequence[LineFilter]:
        return colours.filters(super().get_line_filters(), self.native_ansi_color, self.given.colours)

    def on_mount(self) -> None:
        patches.ask_for_keys(self)
        self.work(self._watch, "watch")
        self.work(self.doing.run, "doing")
        self.send()
        self.theme_changed_signal.subscribe(self, lambda theme: self.prefer(theme=theme.name))

    def on_unmount(self) -> None:
        patches.set_title(self, "")

    # ---- the daemon's events

    async def _watch(self) -> None:
        while True:
            await beside.guard(self._watch_once(), self.complain)
            await asyncio.sleep(AGAIN)

    async def _watch_once(self) -> None:
        try:
            async with aclosing(self.client.events(api.MAX_LIST)) as events:
                async for event in events:
                    self._take(event)
        except ApiFailure as error:
            here = f"; here {KEY} holds it" if error.status == KEYLESS else ""
            self._link(line(error.message, 500) + here)

    def _take(self, event: Watched) -> None:
        match event:
            case api.State():
                first = not self.roster.loaded
                before = dict(self.roster.infos)
                ids = self.roster.state(event)
                self._tries = 0
                self._link("")
                if first and not self.roster.began:
                    self.roster.began = max((info.updated for info in event.sessions), default="")
                    self.prefer(began=self.roster.began or "0")
                if not first:
                    self._toast(ids, before)
                self.mark(ids)
                self.send()
                self.work(partial(self._catch_up, event), "catch up", exclusive=True)
                self.work(self._limits, "limits", exclusive=True)
            case api.Info():
                before = {event.id: known} if (known := self.roster.infos.get(event.id)) else {}
                waited = known is not None and bool(self.roster.waits(known))
                if self.roster.take(event):
                    self._toast({event.id}, before, waited)
                    self.mark({event.id})
            case api.Workers():
                waiting = {info.id for info in self.roster.infos.values() if self.roster.waits(info)}
                self.roster.set_workers(event.workers)
                now = {info.id for info in self.roster.infos.values() if self.roster.waits(info)}
                self._toast(now - waiting, {})
                self.mark(waiting ^ now)
            case Lost():
                self._tries += 1
                why = line(event.why.partition(";")[0], 500)
                self.linked.clear()
                if self._tries > 1 or not self.roster.loaded:
                    self._link(why)
                else:  # one that is back at once is not worth a word
                    self.set_timer(WORTH, lambda: self._still_lost(why))
            case Back():
                pass  # a State follows
            case _:
                assert_never(event)

    def _link(self, lost: str) -> None:
        """Whether the daemon is there; told at once."""
        if not lost:
            self.linked.set()
        if lost != self.lost:
            self.lost = lost
            self.mark(set())

    def _still_lost(self, why: str) -> None:
        """Also of a daemon that takes connections and says nothing on them, as one that is stopped does."""
        if not self.linked.is_set() and not self.lost:
            self._link(why)

    async def _catch_up(self, state: api.State) -> None:
        """The sessions that a State had no room for; what is not among them either is gone."""
        page = state.sessions
        while len(page) == api.MAX_LIST:
            page = tuple(await self.client.list(limit=api.MAX_LIST, after=page[-1].id))
            self.mark({info.id for info in page if self.roster.take(info)})
        self.mark(self.roster.forget())

    async def _limits(self) -> None:
        """The limits of the models' contexts."""
        self.limits = {
            model.name: model.context
            for provider in (await self.client.providers()).providers
            for model in provider.models
        }
        self.mark(set(self.roster.infos))

    def mark(self, ids: set[str]) -> None:
        """The screen is to be told of these, soon and together."""
        self._changed |= ids
        if self._flushing is None:
            self._flushing = self.set_timer(FLUSH, self._tell_screens)

    def _tell_screens(self) -> None:
        self._flushing = None
        ids, self._changed = frozenset(self._changed), set()
        if self.focused_terminal and (shown := self.shown) and self.roster.look(shown):
            self.prefer(seen=dict(list(self.roster.seen.items())[-2000:]))
        for screen in self.screen_stack:
            screen.post_message(RosterChanged(ids))
        self._retitle()

    # ---- what wants a person

    @property
    def shown(self) -> str:
        """The id of the session before the person, empty for none; a dialog or one of its records may lie over it."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, SessionScreen):
                return screen.session
            if not isinstance(screen, ModalScreen | Pager):
                break
        return ""

    def on_app_focus(self) -> None:
        self.focused_terminal = True
        self.mark(set())

    def on_app_blur(self) -> None:
        self.focused_terminal = False

    def _toast(self, ids: set[str], before: Mapping[str, api.Info], waited: bool = False) -> None:
        """Tell of sessions that came to wait, to fail or to end, unless a person looks at them."""
        told = 0
        for id in () if self.prefs.quiet else ids:
            info = self.roster.infos[id]
            old = before.get(id)
            if (id == self.shown and self.focused_terminal) or (info.status == "ended" and id in self.own):
                continue
            waits = self.roster.waits(info)
            if (waits and waited) or (old is not None and old.status == info.status and not waits):
                continue
            if old is None and not waits:
                continue
            if waits or info.status in ("failed", "closed", "ended", "expired"):
                told += 1
                if told <= TOASTS:
                    text = f"{line(words.title(info), 60)}: {words.standing(info, waits)}"
                    bad = info.status == "failed" or bool(waits)
                    self.notify(text, severity="warning" if bad else "information", markup=False)
        if told > TOASTS:
            self.notify(f"… and {told - TOASTS} more", markup=False)
        if told and self.prefs.bell:
            self.bell()

    def _retitle(self) -> None:
        """The terminal's title: how many sessions want a person, and what is on the screen."""
        wanting = len(self.roster.urgent())
        info = self.roster.infos.get(self.shown)
        parts = [f"({wanting})" if wanting else "", words.title(info) if info else "", "outrider"]
        title = line(" · ".join(part for part in parts if part), 80)
        if title != self._title:
            self._title = title
            patches.set_title(self, title)

    # ---- rows

    def row(self, id: str) -> Row:
        """A session as it is drawn, also one that went a moment ago."""
        info = self.roster.info(id)
        assert info is not None
        waits = self.roster.waits(info)
        doing = "" if waits else self.doing.of(info)
        return Row(
            info,
            self._hitch(id) or doing or words.standing(info, waits),
            self.roster.absent(info),
            self.roster.attention(info),
            info.config.context or self.limits.get(info.config.model, 0),
        )

    def _hitch(self, id: str) -> str:
        """What keeps a post to a session from being taken; empty for nothing."""
        found = (self.outbox.hitch(post) for post in self.desk.unsent(id))
        return next((f"↑ not taken: {hitch.why}" for hitch in found if hitch), "")

    # ---- what a person can do

    def action_show(self, name: str) -> None:
        """Show one of the screens of `places.SCREENS`."""
        screen = places.SCREENS[name]()
        if type(screen) is not type(self.screen):
            self.push_screen(screen)

    async def action_quit(self) -> None:
        self.put_away()
        self.exit()

    def action_sessions(self) -> None:
        """Back to the list."""
        self.put_away()
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.mark(set())

    def open_session(self, id: str) -> None:
        """Show a session."""
        if id == self.shown:
            return
        self.put_away()
        while len(self.screen_stack) > 1 and not isinstance(self.screen, SessionScreen | Dialog):
            self.pop_screen()  # what lies over a session would be left in between
        if id == self.shown:
            return
        screen = SessionScreen(id)
        if isinstance(self.screen, SessionScreen):
            self.switch_screen(screen)
        else:
            self.push_screen(screen)
        self.mark(set())

    def action_beside(self, by: int) -> None:
        if id := self.roster.beside(self.shown, by):
            self.open_session(id)

    def action_urgent(self) -> None:
        if id := self.roster.next_urgent(self.shown):
            self.open_session(id)
        else:
            self.tell("no session wants you")

    def action_new(self) -> None:
        """The screen for a new session."""
        self.action_show("new")

"""What a person can do to a daemon and its sessions, each deed beside the screen and its error told in a line."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from textual.app import SuspendNotSupported
from textual.theme import Theme

from daemon.client import ApiFailure, Client
from daemon.plain import line, safe
from daemon.protocol import api
from tui import beside, editor, words
from tui.ahead import Ahead
from tui.desk import Desk
from tui.log import clipboard
from tui.outbox import VIA
from tui.roster import Roster
from tui.screens.confirm import Confirm

NOT_NOW: Final = 409


class Given(Struct, frozen=True):
    """What the command line hands over. `here`: the daemon's socket is on this machine; `cwd`: where we were started.

    `start` starts a daemon here and returns when it is ready, None where that cannot be. `where`: for people.
    `themes`: the person's own. `colours`: which the terminal has, as Rich calls it.
    """

    where: str
    here: bool
    cwd: str
    start: Callable[[], Awaitable[None]] | None = None
    themes: tuple[Theme, ...] = ()
    theme: str = ""
    keys: Mapping[str, str] = {}
    colours: str = "truecolor"


class Deeds(Ahead):
    """The app without its watching: what it knows of the daemon is in `roster`, `desk` has what was begun here."""

    def __init__(
        self, client: Client, desk: Desk, given: Given, edit: Callable[[Path], Awaitable[None]] | None = None
    ) -> None:
        super().__init__()
        self.client = client
        self.desk = desk
        self.given = given
        self.roster = Roster(desk.prefs.seen, desk.prefs.began)
        self.lost = ""  # why the daemon is not there, empty while it is
        self.starting = False
        self.own: set[str] = set()  # sessions that were ended from here: no news
        self._edit = edit or self._run_editor

    def mark(self, ids: set[str]) -> None:
        """The screens are to be told of these sessions, soon and together."""
        raise NotImplementedError

    def open_session(self, id: str) -> None:
        """Show a session."""
        raise NotImplementedError

    def keep(self) -> None:
        """Write what changed of drafts and posts, soon."""
        raise NotImplementedError

    def put_away(self) -> None:
        """What is written on the screen is kept."""
        raise NotImplementedError

    # ---- work and its errors

    def work(
        self, what: Callable[[], Coroutine[Any, Any, None]], group: str, exclusive: bool = False
    ) -> None:
        """Run something beside the screen; what goes wrong is told in a line, and the app goes on."""
        beside.run(self, what, self.complain, group, exclusive)

    def complain(self, error: Exception) -> None:
        """Say what went wrong."""
        self.tell(beside.sentence(error), bad=True)

    def tell(self, text: str, bad: bool = False) -> None:
        """A line that goes away by itself."""
        self.notify(
            safe(text), severity="error" if bad else "information", markup=False, timeout=8 if bad else 4
        )

    def copy(self, text: str, what: str = "") -> None:
        """Copy to the terminal's clipboard and say so, or what to do instead. `what`: the text for people."""
        self.copy_to_clipboard(text)
        said, sure = clipboard.said(text, os.environ, what)
        if sure:
            self.tell(said)

    def copy_to_clipboard(self, text: str) -> None:
        """Also Textual's own way, by ctrl+c: where nothing arrives, that is said."""
        super().copy_to_clipboard(text)
        said, sure = clipboard.said(text, os.environ)
        if not sure:
            self.tell(said, bad=True)

    # ---- deeds

    def create(self, create: api.Create, draft: str = "") -> None:
        """Make a session and show it; `draft` stands in its composer."""
        self.work(partial(self._create, create, draft), "create")

    async def _create(self, create: api.Create, draft: str) -> None:
        id = await self.client.create(create)
        if draft:
            self.desk.write(id, draft)
            self.keep()
        self.roster.take(await self.client.info(id))
        self.open_session(id)
        self.mark({id})

    def fork(self, id: str, n: int = 0, draft: str = "") -> None:
        """Copy a session's records before number `n`, all where it is 0, and show the copy."""
        if (info := self.roster.info(id)) is not None:
            self.create(api.Create(from_=id, n=n or info.n + 1), draft)

    def stop(self, id: str, ask: bool = False) -> None:
        """Stop what a session does."""
        if ask:
            info = self.roster.info(id)
            if info is not None and info.status != "stepping":
                self.tell(f"{self._called(id)} is {info.status}: there is nothing to stop")
                return
            self._confirm(
                f"Stop {self._called(id)}?", "stop", lambda: self.work(partial(self._stop, id), "stop")
            )
        else:
            self.work(partial(self._stop, id), "stop")

    async def _stop(self, id: str) -> None:
        try:
            await self.client.stop(id, VIA)
        except ApiFailure as error:
            if error.status != NOT_NOW:
                raise
            self.tell(f"{self._called(id)} is at no step: there is nothing to stop")
        else:
            self.tell(f"{self._called(id)} was stopped")

    def retry(self, id: str) -> None:
        """Let a session that failed or was stopped go on."""
        self.work(partial(self._retry, id), "retry")

    async def _retry(self, id: str) -> None:
        info = await self.client.info(id)
        if info.status in ("closed", "stepping"):
            what = "has its answer: a post lets it go on" if info.status == "closed" else "is at work already"
            self.tell(f"{self._called(id)} {what}")
        else:
            self.tell(f"{self._called(id)} is {await self.client.retry(id)}")

    def end(self, id: str) -> None:
        """End a session for good."""
        question = (
            f"End {self._called(id)} for good? It can be read and copied afterwards, and takes no more posts."
        )
        self._confirm(question, "end", lambda: self.work(partial(self._end, id), "end"), typed=True)

    async def _end(self, id: str) -> None:
        self.own.add(id)
        await self.client.end(id, VIA)
        self.tell(f"{self._called(id)} has ended")

    def _called(self, id: str) -> str:
        info = self.roster.info(id)
        return f"“{line(words.title(info), 60)}”" if info else f"session {line(id, 60)}"

    def _confirm(self, question: str, word: str, then: Callable[[], None], typed: bool = False) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                then()

        self.push_screen(Confirm(question, word, typed=typed), answered)

    def start(self) -> None:
        """Start a daemon on this machine."""
        if self.given.start is not None and self.lost and not self.starting:
            self.work(self._start, "start")

    async def _start(self) -> None:
        assert self.given.start is not None
        self.starting = True
        self.mark(set())
        try:
            await self.given.start()
        finally:
            self.starting = False
            self.mark(set())

    # ---- the editor

    async def edited(self, text: str) -> str:
        """`text` as it comes back from the person's editor."""
        return await editor.edited(text, self._edit)

    async def _run_editor(self, path: Path) -> None:
        """It has the terminal and everything else waits; streams go on by number afterwards."""
        self.put_away()
        await asyncio.to_thread(self.desk.save)  # it may be left open for days
        try:
            failed: OSError | editor.Failed | None = None
            with self.suspend():  # it gives the screen back only where nothing is raised
                try:
                    editor.run(path)
                except (OSError, editor.Failed) as error:
                    failed = error
        except SuspendNotSupported as error:
            raise editor.Failed("an editor needs a terminal, which a browser is not") from error
        if failed is not None:
            raise failed

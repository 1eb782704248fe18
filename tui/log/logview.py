"""The log of one session: its records, what streams, and the keys to read, search, fold and copy them."""

from datetime import tzinfo
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from daemon.client import Followed
from tui.log.messages import Source


class LogView(Widget):
    """The records of one session and what streams in below them; no widget per record.

    A screen uses it so:

        def compose(self):
            yield LogView(id="log")

        def show(self, info: api.Info) -> None:
            log = self.query_one(LogView)
            log.open(info.id, self.client, info.n)            # returns at once, loads in a worker
            self.run_worker(self.follow(log, info), group="follow", exclusive=True, exit_on_error=False)

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

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "down", "Down", show=False, id="log.down"),
        Binding("k,up", "up", "Up", show=False, id="log.up"),
        Binding("ctrl+d", "half(1)", "Half a page down", show=False, id="log.half-down"),
        Binding("ctrl+u", "half(-1)", "Half a page up", show=False, id="log.half-up"),
        Binding("space,pagedown", "page(1)", "Page down", show=False, id="log.page-down"),
        Binding("b,pageup", "page(-1)", "Page up", show=False, id="log.page-up"),
        Binding("g,home", "top", "Top", show=False, id="log.top"),
        Binding("G,end", "follow", "Follow", id="log.follow"),
        Binding("enter", "fold", "Fold", id="log.fold"),
        Binding("E", "fold_kind", "Fold all of this kind", show=False, id="log.fold-kind"),
        Binding("t", "thinking", "Thinking", id="log.thinking"),
        Binding("slash", "search", "Search", id="log.search"),
        Binding("n", "again(1)", "Next match", show=False, id="log.next"),
        Binding("N", "again(-1)", "Previous match", show=False, id="log.previous"),
        Binding("e", "next_error", "Next error", show=False, id="log.error"),
        Binding("u", "next_message", "Next message", show=False, id="log.message"),
        Binding("y", "copy", "Copy", id="log.copy"),
        Binding("Y", "copy_body", "Copy code or result", show=False, id="log.copy-body"),
        Binding("v", "pager", "View all", id="log.pager"),
        Binding("z", "zoom", "Zoom", show=False, id="log.zoom"),
        Binding("f", "fork", "Fork here", id="log.fork"),
    ]

    def __init__(
        self, *, zone: tzinfo | None = None, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._zone = zone

    def open(self, session: str, source: Source, last: int) -> None:
        """Show a session whose last record has number `last`; whatever was shown before goes."""
        raise NotImplementedError

    def feed(self, event: Followed) -> None:
        """Take an event of `Client.follow(session, last, deltas=True)` in; records seen before are passed over."""
        raise NotImplementedError

    def reload(self) -> None:
        """Try again to load what could not be loaded."""
        raise NotImplementedError

    @property
    def last(self) -> int:
        """Number of the last record that is known, 0 for none: where to follow from."""
        raise NotImplementedError

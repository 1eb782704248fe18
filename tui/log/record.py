"""What can be done with the record at the log's cursor: copy it, read all of it, fork from it."""

import os

from textual.widget import Widget

from tui.log import clipboard
from tui.log.messages import Copied, Fork, Picture, Said, Zoom
from tui.log.pager import Pager
from tui.log.pane import Pane
from tui.log.rows import Rows


class RecordActions(Widget):
    """The actions of the log's keys that are about one record."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._rows = Rows()

    @property
    def pane(self) -> Pane:
        """What is shown."""
        return self._rows.pane

    def action_copy(self) -> None:
        """Copy what is selected, else the record."""
        selected = self.screen.get_selected_text()
        item = self.pane.item(self.pane.cursor)
        if selected:
            self._copy(selected)
        elif item is not None:
            self._copy(item.body or item.title)

    def action_copy_body(self) -> None:
        """Copy the code of a call, or what came of it, without the title."""
        item = self.pane.item(self.pane.cursor)
        if item is not None and item.body:
            self._copy(item.body)
        else:
            self.post_message(Said("this record has no code or result"))

    def _copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)
        said, sure = clipboard.said(text, os.environ)
        self.post_message(Copied(text, said, sure))

    def action_pager(self) -> None:
        """All of the record; an image opens outside."""
        item = self.pane.item(self.pane.cursor)
        if item is None:
            return
        if item.media:
            self.post_message(Picture(item.n, item.media))
        else:
            self.app.push_screen(Pager(item, self._rows.pattern), self._paged)

    def _paged(self, text: str | None) -> None:
        if text:
            self._copy(text)

    def action_zoom(self) -> None:
        """The log alone on the screen, or no longer."""
        self.post_message(Zoom())

    def action_fork(self) -> None:
        """A new session from here."""
        n = self.pane.cursor
        record = self.pane.record(n)
        if record is not None and record.kind == "message":
            self.post_message(Fork(n, record.text()))
        elif n:  # not within a step: its answer would be void in the copy
            self.post_message(Fork(self.pane.ledger.whole(n) + 1, ""))

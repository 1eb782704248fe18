"""Where a message is written: several lines, history, an editor, completion of file names, attachments."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ClassVar, Final

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Location, Selection

from daemon.plain import safe
from tui import attach, beside
from tui.desk import Chip
from tui.keymap import key

SHOWN: Final = 8  # completions that are shown at once


class Composer(TextArea):
    """A TextArea without a language, which would make each key slow. Its screen sends and keeps drafts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("composer.send", "enter", "send", "Send", show=True),
        key("composer.newline", "shift+enter,ctrl+j,alt+enter", "newline", "New line", show=True),
        key("composer.history-back", "up", "back", "Up, at the start: the post before"),
        key("composer.history-on", "down", "on", "Down, at the end: the post after"),
        key("composer.editor", "ctrl+g", "editor", "Write in $EDITOR"),
        key("composer.complete", "tab", "complete", "Complete @file, else go to the log"),
        key("composer.take-out", "backspace", "take_out", "Delete; at the start, the last attachment"),
        key("composer.leave", "escape", "leave", "Log", show=True),
        key("composer.stop", "ctrl+x", "screen.stop", "Stop", show=True),
    ]

    class Sent(Message):
        """Enter: this is to be sent. The composer is empty already, for what is typed next."""

        def __init__(self, text: str, chips: tuple[Chip, ...]) -> None:
            super().__init__()
            self.text = text
            self.chips = chips

    class Left(Message):
        """Escape: the log is to have the focus."""

    class Editor(Message):
        """What is written is to be edited in another program."""

    class Attached(Message):
        """The attachments changed."""

    class Tells(Message):
        """A line about what a key did; `bad`: it could not be done."""

        def __init__(self, text: str, bad: bool = False) -> None:
            super().__init__()
            self.text = text
            self.bad = bad

    def __init__(self, id: str | None = None) -> None:
        super().__init__(
            "", id=id, soft_wrap=True, tab_behavior="focus", compact=True, highlight_cursor_line=False
        )
        self.cursor_blink = False
        self.chips: tuple[Chip, ...] = ()
        self.posts: tuple[str, ...] = ()
        self._at: int | None = None  # place in the history that is shown
        self._before = ""  # what was written when the history was gone into

    # ---- what stands in it

    def put(self, text: str, chips: Sequence[Chip] = (), posts: tuple[str, ...] = ()) -> None:
        """Another session's draft and history."""
        self._at = None
        self.posts = posts
        self.load_text(text)
        self.move_cursor(self.document.end)
        self._set_chips(tuple(chips))

    @property
    def written(self) -> str:
        """What is being written: not a post of the history that is only looked at."""
        at = self._at
        looked_at = at is not None and at < len(self.posts) and self.text == self.posts[at]
        return self._before if looked_at else self.text

    def give_back(self, text: str, chips: tuple[Chip, ...]) -> None:
        """What was sent and did not arrive comes before what has been written since, in which the cursor stays."""
        if self._at is not None:
            self._recall(self.written)
            self._at = None
            self.move_cursor(self.document.end)
        since, (start, end) = self.text, self.selection
        given = f"{text}\n" if text and since else text
        self.replace(given, (0, 0), (0, 0), maintain_selection_offset=False)
        if since:
            rows = given.count("\n")
            self.selection = Selection((start[0] + rows, start[1]), (end[0] + rows, end[1]))
        self._set_chips((*chips, *self.chips))

    async def rewrite(self, edited: Callable[[str], Awaitable[str]]) -> None:
        """Have `edited` make another text of what stands here; what is given back meanwhile stays before that."""
        before = self.text
        text = await edited(before)
        if self.is_attached:
            given = self.text.removesuffix(before) if self.text != before else ""
            self.put(f"{given.rstrip()}\n{text}" if given else text, self.chips, self.posts)

    def _set_chips(self, chips: tuple[Chip, ...]) -> None:
        if chips != self.chips:
            self.chips = chips
            self.post_message(self.Attached())

    # ---- keys

    async def _on_key(self, event: events.Key) -> None:
        """A key that is bound here acts at once: by way of the app it would act after what was typed behind it.

        What was read together with a key that moved the focus belongs to where that went.
        """
        field = self.app.focused
        if field is not None and field is not self:
            event.stop()
            event.prevent_default()
            field._forward_event(event.copy())
            return
        if event.is_printable:
            return
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.node is self:
            event.stop()
            event.prevent_default()
            await self.app.run_action(bound.binding.action, self)

    def action_send(self) -> None:
        row, column = self.cursor_location
        if self.document.get_line(row)[:column].endswith(
            "\\"
        ):  # `\` and enter, where a terminal knows no shift+enter
            self._type("\n", (row, column - 1), (row, column))
            return
        if self.read_only or not (self.text.strip() or self.chips):
            return
        text, chips = self.text, self.chips
        self.put("", (), self.posts)
        self.post_message(self.Sent(text, chips))

    def _type(self, text: str, start: Location, end: Location) -> None:
        """`text` in place of what stands between, and the cursor behind it."""
        self.move_cursor(self.replace(text, start, end).end_location)

    def action_newline(self) -> None:
        self._type("\n", *self.selection)

    def action_back(self) -> None:
        if self.cursor_location != (0, 0) and not (self._at is not None and self.cursor_at_first_line):
            if self.cursor_at_first_line:
                self.move_cursor((0, 0))
            else:
                self.action_cursor_up()
            return
        if not self.posts or self._at == 0:
            return
        if self._at is None:
            self._before, self._at = self.text, len(self.posts)
        self._at -= 1
        self._recall(self.posts[self._at])
        self.move_cursor((0, 0))

    def action_on(self) -> None:
        if self._at is None or not self.cursor_at_last_line:
            self.action_cursor_down()
            return
        self._at += 1
        if self._at >= len(self.posts):
            self._at = None
            self._recall(self._before)
        else:
            self._recall(self.posts[self._at])
        self.move_cursor(self.document.end)

    def _recall(self, text: str) -> None:
        self.load_text(text)

    def action_editor(self) -> None:
        self.post_message(self.Editor())

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def action_take_out(self) -> None:
        if self.chips and self.selection.is_empty and self.cursor_location == (0, 0):
            self.post_message(self.Tells(f"taken out: {self.chips[-1].name}"))
            self._set_chips(self.chips[:-1])
        else:
            self.action_delete_left()

    def _failed(self, error: Exception) -> None:
        self.post_message(self.Tells(beside.sentence(error), bad=True))

    # ---- completion

    def action_complete(self) -> None:
        """Complete the word before the cursor where it begins with `@`; else the focus goes on."""
        begun = self._begun()
        if begun is None:
            self.screen.focus_next()
        else:
            beside.run(self, partial(self._complete, begun), self._failed, "complete", exclusive=True)

    def _begun(self) -> str | None:
        row, column = self.cursor_location
        word = self.document.get_line(row)[:column].split(" ")[-1].rpartition("\t")[2]
        return word[1:] if word.startswith("@") else None

    async def _complete(self, begun: str) -> None:
        found = await asyncio.to_thread(attach.completions, begun)
        if self._begun() != begun:  # more was typed meanwhile
            return
        if not found:
            self.post_message(self.Tells(f"there is no file that begins so: {safe(begun)}", bad=True))
            return
        row, column = self.cursor_location
        longer = attach.common(found)
        if len(found) == 1 and not longer.endswith("/"):
            longer += " "
        if longer != begun:
            self._type(longer, (row, column - len(begun)), (row, column))
        elif len(found) > 1:
            names = [
                name.rstrip("/").rpartition("/")[2] + ("/" if name.endswith("/") else "") for name in found
            ]
            more = f" … and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            self.post_message(self.Tells(safe("  ".join(names[:SHOWN])) + more))

    # ---- pastes

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = safe(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        if path := attach.pasted_path(text):
            beside.run(self, partial(self._paste_picture, path, text), self._failed, "paste")
        elif len(text) > attach.LONG_PASTE:
            self._set_chips((*self.chips, attach.pasted(text)))
        else:
            self._type(text, *self.selection)

    async def _paste_picture(self, path: str, text: str) -> None:
        """The picture at a path that was pasted becomes an attachment; where there is none, the text stays text."""
        chip = await asyncio.to_thread(attach.picture, path)
        if chip is None:
            self._type(text, *self.selection)
        else:
            self._set_chips((*self.chips, chip))

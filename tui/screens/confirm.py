"""Ask before what cannot be taken back: yes or no, or a word that is to be typed."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from tui.keymap import key
from tui.screens.base import Dialog


class Confirm(Dialog[bool]):
    """True where it is to be done. `word` says what: with `typed` it has to be typed, else `y` or enter is enough."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("confirm.yes", "y,enter", "answer(True)", "Yes", show=True),
        key("confirm.no", "n,escape", "answer(False)", "No", show=True),
    ]

    def __init__(self, question: str, word: str, *, typed: bool = False) -> None:
        super().__init__()
        self._question = question
        self._word = word
        self._typed = typed

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(self._question, markup=False)
            if self._typed:
                yield Input(placeholder=f"type {self._word} and enter; esc leaves it", compact=True)
            else:
                yield Static(f"y, enter: {self._word}    n, esc: leave it", markup=False, classes="dim")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip().lower() == self._word:
            self.dismiss(True)
        else:
            event.input.add_class("wrong")

    def action_answer(self, yes: bool) -> None:
        if not (yes and self._typed):
            self.dismiss(yes)

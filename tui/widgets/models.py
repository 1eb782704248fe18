"""A field for a model's name, and what the daemon serves: grouped by provider, filtered by what is typed."""

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from daemon.plain import line
from daemon.protocol import api
from tui import choice
from tui.keymap import key


class ModelList(OptionList):
    """Arrows and vim keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("models.down", "j", "cursor_down", "Next model"),
        key("models.up", "k", "cursor_up", "Model before"),
    ]


class ModelPicker(Vertical):
    """Any name may be written, also one that no provider lists. The list is there while the field has the focus."""

    DEFAULT_CSS = """
    ModelPicker { height: auto; }
    ModelPicker ModelList { height: auto; max-height: 8; border: none; background: $surface; }
    """

    class Picked(Message):
        """A model is chosen."""

    def __init__(self, value: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._providers = api.Providers("", ())
        self._value = value

    def compose(self) -> ComposeResult:
        yield Input(self._value, placeholder="the daemon's default", id="model-name", compact=True)
        yield ModelList(id="model-list", compact=True)

    def on_mount(self) -> None:
        self._list.display = False

    def on_descendant_focus(self) -> None:
        self._list.display = True

    def on_descendant_blur(self) -> None:
        self._list.display = self._list.has_focus or self.field.has_focus

    @property
    def field(self) -> Input:
        return self.query_one(Input)

    @property
    def _list(self) -> ModelList:
        return self.query_one(ModelList)

    def load(self, providers: api.Providers) -> None:
        """What the daemon serves."""
        self._providers = providers
        if providers.default:
            self.field.placeholder = f"the daemon's default, {line(providers.default)}"
        self._filter()

    def _filter(self) -> None:
        words = self.field.value
        names = {one.name for _, models in choice.grouped(self._providers) for one in models}
        groups = choice.grouped(self._providers, "" if words in names else words)
        self._list.clear_options()
        for name, models in groups:
            self._list.add_option(Option(Content(line(name)).stylize("bold"), disabled=True))
            for one in models:
                text = choice.model_line(one, self._providers.default)
                self._list.add_option(Option(Content(f"  {text}"), id=one.name))
        if not groups:
            text = f"no model that is served has {words!r} in its name" if words else "no model is served"
            self._list.add_option(Option(Content(text), disabled=True))
        if words in names:
            self._list.highlighted = self._list.get_option_index(words)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._filter()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter takes the only one that passes; any other text stands as it is written."""
        event.stop()
        found = [one.name for _, models in choice.grouped(self._providers, event.value) for one in models]
        if event.value.strip() and len(found) == 1:
            self.field.value = found[0]
        self.post_message(self.Picked())

    def on_key(self, event: events.Key) -> None:
        """Down leads into the list; up, at its top, out of it."""
        if event.key == "down" and self.field.has_focus:
            event.stop()
            self._list.focus()
            if self._list.highlighted is None:
                self._list.action_first()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option.id:
            self.field.value = event.option.id
            self.post_message(self.Picked())

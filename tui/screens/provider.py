"""Set a provider up: its key, and for some kinds where it is asked; a key goes in and is shown nowhere."""

from functools import partial
from typing import ClassVar, Final

import msgspec
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Label, Static

from daemon.client import ApiFailure
from daemon.plain import count, line
from daemon.protocol import api
from tui.keymap import key
from tui.screens.base import Dialog

LATER: Final = "for requests that begin from now on"
EMPTY: Final[dict[tuple[str, api.Asked], str]] = {  # what a field of a kind says while it is empty
    ("openai-chat", "url"): "http://127.0.0.1:11434/v1; empty: OpenAI's own",
    ("openai-chat", "key"): "paste it; a local server needs none",
    ("bedrock", "region"): "as in eu-west-1; empty: AWS_REGION's",
    ("bedrock", "key"): "paste it; empty: the daemon's AWS credentials",
}
WHAT: Final = {  # of a kind whose name does not say it
    "openai": ", OpenAI by its newer wire (Responses)",
    "openai-chat": ", OpenAI or any other server of Chat Completions",
}
PASTE: Final = "paste it; it is not shown"


class KeyDialog(Dialog[None]):
    """For a provider that is there, or one that is offered. What is left as it is, is not sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("provider-key.leave", "escape", "dismiss", "Leave it", show=True),
    ]
    DEFAULT_CSS = """
    KeyDialog { align: center middle; }
    KeyDialog #wrong { color: $text-error; height: auto; }
    KeyDialog .field Label { width: 8; }
    """

    def __init__(self, provider: api.ProviderInfo | api.Offer) -> None:
        super().__init__()
        self._new = isinstance(provider, api.Offer)
        self._provider = (
            api.ProviderInfo(provider.name, provider.name, "", False, True, (), asks=provider.asks)
            if isinstance(provider, api.Offer)
            else provider
        )
        self._setting = False

    def compose(self) -> ComposeResult:
        asks = self._provider.asks
        with Vertical(id="dialog"):
            yield Static(self._title(), markup=False)
            for name in asks:
                empty = EMPTY.get((self._provider.kind, name), PASTE)
                field = Input(
                    self._now(name), placeholder=empty, password=name == "key", id=name, compact=True
                )
                if len(asks) == 1:
                    yield field
                else:
                    with Horizontal(classes="field"):
                        yield Label(name)
                        yield field
            yield Static("", id="wrong", markup=False)
            tab = "    tab: next field" if len(asks) > 1 else ""
            yield Static(f"enter: set it{tab}    esc: leave it as it is", classes="dim", markup=False)

    def _title(self) -> str:
        name, provider = line(self._provider.name), self._provider
        if self._new:
            return (
                f"Set up {name}{WHAT.get(provider.kind, '')}. A key goes to the daemon and is shown nowhere."
            )
        if provider.problem:
            return f"The key of {name}, {LATER}. It is missing: {line(provider.problem, 500)}"
        now = (
            "It has one; empty and enter takes out the one that was set here."
            if provider.has_key
            else "It has none."
        )
        return f"The key of {name}, {LATER}. {now}"

    def _now(self, field: api.Asked) -> str:
        return {"key": "", "url": line(self._provider.url, 1000), "region": line(self._provider.region)}[
            field
        ]

    def on_mount(self) -> None:
        self._say("")

    def _say(self, wrong: str) -> None:
        said = self.query_one("#wrong", Static)
        said.display = bool(wrong)
        said.update(wrong)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        written = {name: self.query_one(f"#{name}", Input).value.strip() for name in self._provider.asks}
        given: dict[str, str] = {name: text for name, text in written.items() if text != self._now(name)}
        takes_out = not given and self._provider.has_key and event.input.id == "key"
        if not given and not takes_out:
            ways = ["paste one" if name == "key" else f"write its {name}" for name in reversed(written)]
            self._say(f"key: {', '.join(ways)}, or leave it with esc")
        elif not self._setting:
            self._setting = True
            self.outrider.work(partial(self._set, given or {"key": ""}), "set key")

    async def _set(self, given: dict[str, str]) -> None:
        setting = msgspec.convert(given, api.ProviderSetting)
        try:
            made = await self.outrider.client.set_provider(self._provider.name, setting)
        except ApiFailure as error:
            if not self.is_attached:
                raise
            self._say(line(error.message, 1000))
            return
        finally:
            self._setting = False
        self._tell(made, given.get("key"))
        if self.is_current:
            self.dismiss()

    def _tell(self, made: api.ProviderInfo, secret: str | None) -> None:
        name = line(made.name)
        if secret == "":
            self.outrider.tell(f"the key of {name} that was set here is out")
            return
        has = "has its key" if secret else "is set up"
        known = f", and {count(len(made.models), 'model')}" if made.models else ""
        self.outrider.tell(f"{name} {has}{known}")
        if "region" in made.asks and not (made.region or made.url):
            self.outrider.tell(f"{name} has no region yet: enter on it sets one", bad=True)

"""Join tokens: those that there are, a new one, which is shown this once, and revoking one."""

import re
from functools import partial
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Label, Static

from daemon.client import ApiFailure
from daemon.plain import count, line
from daemon.protocol import api
from tui import workertext
from tui.keymap import key
from tui.messages import RosterChanged
from tui.screens.base import DaemonScreen, Dialog
from tui.screens.confirm import Confirm
from tui.widgets.banner import Banner
from tui.widgets.hints import Hints
from tui.widgets.rows import Line, NamedRows
from tui.widgets.tick import Tick

LONGEST: Final = 100_000  # characters of a shell line; one with a token of eight long names has 3,000
TONES: Final[dict[str, workertext.Tone]] = {"good": "good", "used": "dim", "expired": "dim", "revoked": "dim"}
LABELS: Final = {"uses": "machines", "expires": "good for"}
_LIFETIME: Final = re.compile(r"([0-9]{1,9})(s|m|min|h|d|w)?")
_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def lifetime(text: str) -> float:
    """Seconds of `90s`, `30m`, `12h`, `7d`, `2w`; a number alone could be any of these. Raises ValueError."""
    found = _LIFETIME.fullmatch(text.strip())
    if found and not found[2]:
        raise ValueError(f"say of what, as in {found[1]}m, {found[1]}h or {found[1]}d")
    length = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < length <= api.MAX_LIFETIME:
        raise ValueError(f"write a time such as 30m, 24h or 7d, at most {api.MAX_LIFETIME / 86400:.0f}d")
    return length


def uses(text: str) -> int:
    """How many machines. Raises ValueError."""
    plain = text.strip()
    if not (plain.isascii() and plain.isdecimal() and 0 < int(plain[:9]) <= api.MAX_USES and len(plain) < 9):
        raise ValueError(f"write a number of machines, 1 to {api.MAX_USES:,}")
    return int(plain)


class TokensScreen(DaemonScreen):
    """Each token with what is left of it and who joined by it; the tokens themselves are nowhere any more."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("tokens.new", "a,n", "new", "New", show=True),
        key("tokens.revoke", "x,delete", "revoke", "Revoke", show=True),
        key("tokens.back", "escape,q", "dismiss", "Back", show=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[str, api.TokenInfo] = {}
        self._said = "…"

    def compose(self) -> ComposeResult:
        yield Static("join tokens", id="bar", markup=False)
        yield Banner(id="banner")
        yield NamedRows(workertext.TOKEN_HEAD, id="tokens")
        yield Static("", id="empty", markup=False)
        yield Hints()

    def on_mount(self) -> None:
        self.query_one(NamedRows).focus()
        self._show()

    def on_screen_resume(self) -> None:
        self.arrived()
        self.look()

    def on_roster_changed(self, event: RosterChanged) -> None:
        if (self.arrived() or not event.ids) and self.is_current:
            self.look()

    def look(self) -> None:
        """Ask for the list again."""
        self.query_one(Banner).tell(self.outrider.lost)
        if not self.outrider.lost:
            self.outrider.work(self._look, "look at tokens", exclusive=True)

    async def _look(self) -> None:
        try:
            found = await self.outrider.client.tokens()
        except ApiFailure as error:
            self._said = line(error.message, 400)
        else:
            self._tokens = {str(token.id): token for token in found}
            self._said = "No token yet.\n\na: a new one, with which a machine joins as a worker"
        self._show()

    def _show(self) -> None:
        good = sum(token.state == "good" for token in self._tokens.values())
        self.query_one("#bar", Static).update(
            f"{count(len(self._tokens), 'join token')}, {good} good · who has joined by one stays when it is revoked"
        )
        self.query_one(NamedRows).show(
            [
                Line(name, workertext.token_cells(token), ((2, TONES[token.state]),))
                for name, token in self._tokens.items()
            ]
        )
        self.query_one(NamedRows).display = bool(self._tokens)
        empty = self.query_one("#empty", Static)
        empty.display = not self._tokens
        empty.update(self._said)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return bool(self._tokens) if action == "revoke" else True

    def action_new(self) -> None:
        self.app.push_screen(NewTokenDialog())

    def action_revoke(self) -> None:
        token = self._tokens.get(self.query_one(NamedRows).named)
        if token is None:
            return
        if token.state != "good":
            self.outrider.tell(f"token {token.id} is {token.state}: it lets no machine join already")
            return
        named = f" ({line(token.name)})" if token.name else ""
        question = (
            f"Revoke token {token.id}{named}? It lets no machine join any more; who has joined by it stays."
        )

        def answered(yes: bool | None) -> None:
            if yes:
                self.outrider.work(partial(self._revoke, token.id), "revoke")

        self.app.push_screen(Confirm(question, "revoke"), answered)

    async def _revoke(self, id: int) -> None:
        await self.outrider.client.revoke_token(id)
        self.outrider.tell(f"token {id} lets no machine join any more")
        await self._look()


class NewTokenDialog(Dialog[None]):
    """What a new token is to let in. Made, it is shown in place of the questions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("new-token.make", "enter", "make", "Make it", show=True),
        key("new-token.cancel", "escape", "dismiss", "Leave it", show=True),
    ]
    DEFAULT_CSS = """
    NewTokenDialog { align: center middle; }
    NewTokenDialog .wrong { color: $text-error; height: auto; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._making = False

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(
                "A token lets machines join as workers. It is a secret until it is used up.", markup=False
            )
            for label, field in (
                ("name", Input(placeholder="for you", id="name", compact=True, max_length=api.MAX_NAME)),
                ("machines", Input("1", placeholder="how many", id="uses", compact=True)),
                ("good for", Input("24h", placeholder="30m, 24h, 7d", id="expires", compact=True)),
            ):
                with Horizontal(classes="field"):
                    yield Label(label)
                    yield field
            yield Tick("ephemeral: they leave when they are not heard of", id="ephemeral")
            yield Static("", classes="wrong", id="wrong", markup=False)
            yield Static("enter: make it    tab: next field    esc: leave it", classes="dim", markup=False)

    def on_mount(self) -> None:
        self._say("")

    def _say(self, wrong: str) -> None:
        said = self.query_one("#wrong", Static)
        said.display = bool(wrong)
        said.update(wrong)

    def on_input_submitted(self) -> None:
        self.action_make()

    def action_make(self) -> None:
        if self._making:
            return
        made = {}
        for name, read in (("uses", uses), ("expires", lifetime)):
            field = self.query_one(f"#{name}", Input)
            try:
                made[name] = read(field.value)
            except ValueError as error:
                self._say(f"{LABELS[name]}: {error}")
                field.focus()
                return
        new = api.NewToken(
            self.query_one("#name", Input).value.strip(),
            int(made["uses"]),
            made["expires"],
            self.query_one("#ephemeral", Tick).value,
        )
        self._making = True
        self._say("making it; the first one brings the mesh up, which takes some seconds …")
        self.outrider.work(partial(self._make, new), "make token")

    async def _make(self, new: api.NewToken) -> None:
        try:
            made = await self.outrider.client.make_token(new)
        except ApiFailure as error:
            if self.is_attached:
                self._say(line(error.message, 1000))
            else:
                raise  # it was left meanwhile: told in a line
        else:
            why = await self._lacks()
            # Also where it was left meanwhile: the token is there, and is shown nowhere else.
            if self.is_attached:
                self.dismiss()
            self.app.push_screen(MadeTokenDialog(made, why))
        finally:
            self._making = False

    async def _lacks(self) -> str:
        """What is in the way of those who join, if anything; the token is made whatever becomes of asking."""
        try:
            return (await self.outrider.client.mesh()).why
        except ApiFailure:
            return ""


class MadeTokenDialog(Dialog[None]):
    """A token that was made, this once, with the line that makes a machine a worker; `why`: what is in its way."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("made-token.line", "y,enter", "copy('line')", "Copy the line", show=True),
        key("made-token.token", "Y,t", "copy('token')", "Copy the token", show=True),
        key("made-token.close", "escape,q", "dismiss", "Close", show=True),
    ]
    DEFAULT_CSS = """
    MadeTokenDialog { align: center middle; }
    MadeTokenDialog #made {
        width: 110; max-width: 96%; height: auto; padding: 1 2; border: round $primary; background: $surface;
    }
    MadeTokenDialog #made > * { margin-bottom: 1; }
    MadeTokenDialog #why { color: $text-warning; }
    MadeTokenDialog VerticalScroll { height: auto; max-height: 12; border-left: thick $primary; padding: 0 1; }
    MadeTokenDialog VerticalScroll Static { height: auto; }
    """

    def __init__(self, made: api.TokenMade, why: str = "") -> None:
        super().__init__()
        self._made = made
        self._why = why

    def compose(self) -> ComposeResult:
        made = self._made
        named = f" ({line(made.name)})" if made.name else ""
        gone = "; they leave by themselves when gone for long" if made.ephemeral else ""
        with Vertical(id="made"):
            yield Static(
                f"Token {made.id}{named} lets {count(made.uses, 'machine')} join\n"
                f"until {workertext.local(made.expires)}{gone}. It is shown this once.",
                markup=False,
            )
            if self._why:
                yield Static(line(self._why, 500), id="why", markup=False)
            yield Static("This line, on a machine, makes it a worker:", markup=False)
            with VerticalScroll():
                yield Static(line(made.line, LONGEST), id="line", markup=False)
            yield Static("The token alone:", markup=False)
            with VerticalScroll():
                yield Static(line(made.token, LONGEST), id="token", markup=False)
            yield Static(
                "y, enter: copy the line   Y, t: the token   esc: close",
                classes="dim",
                markup=False,
            )

    def action_copy(self, what: str) -> None:
        text = self._made.line if what == "line" else self._made.token
        self.outrider.copy(line(text, LONGEST), f"the {what}, where the terminal allows it (OSC 52)")

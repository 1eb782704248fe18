"""Where keys hold, and the screens by name: what help, the palette and `[tui.keys]` are made from.

A new screen is one entry of SCREENS, and its class one of _CLASSES for its keys; a provider of the palette is one of
`palette.PROVIDERS`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from textual.dom import DOMNode
from textual.screen import Screen

from tui import keymap


def _help() -> Screen[Any]:
    from tui.screens.help import HelpScreen

    return HelpScreen()


def _workers() -> Screen[Any]:
    from tui.screens.workers import WorkersScreen

    return WorkersScreen()


def _tokens() -> Screen[Any]:
    from tui.screens.tokens import TokensScreen

    return TokensScreen()


def _new() -> Screen[Any]:
    from tui.screens.new import NewScreen

    return NewScreen()


def _settings() -> Screen[Any]:
    from tui.screens.settings import SettingsScreen

    return SettingsScreen()


def _keys() -> Screen[Any]:
    from tui.screens.settings import KeysScreen

    return KeysScreen()


SCREENS: Mapping[str, Callable[[], Screen[Any]]] = {
    "help": _help,
    "new": _new,
    "workers": _workers,
    "tokens": _tokens,
    "settings": _settings,
    "keys": _keys,
}


def places() -> list[keymap.Place]:
    """Every place with its bindings, in help's order."""
    from tui.app import OutriderApp
    from tui.log.logview import LogView
    from tui.log.pager import Pager
    from tui.screens.change import ChangeScreen
    from tui.screens.confirm import Confirm
    from tui.screens.help import HelpScreen
    from tui.screens.new import NewScreen
    from tui.screens.provider import KeyDialog
    from tui.screens.session import SessionScreen
    from tui.screens.sessions import SessionsScreen
    from tui.screens.settings import KeysScreen, SettingsScreen
    from tui.screens.tokens import MadeTokenDialog, NewTokenDialog, TokensScreen
    from tui.screens.workers import WorkersScreen
    from tui.widgets.composer import Composer
    from tui.widgets.models import ModelList
    from tui.widgets.rows import NamedRows
    from tui.widgets.table import SessionTable
    from tui.widgets.tick import Tick

    classes: tuple[tuple[str, tuple[type[DOMNode], ...]], ...] = (
        ("Everywhere", (OutriderApp,)),
        ("Sessions", (SessionTable, SessionsScreen)),
        ("A session", (SessionScreen,)),
        ("The log", (LogView,)),
        ("A record, all of it", (Pager,)),
        ("The composer", (Composer,)),
        ("A new session", (NewScreen, ModelList, Tick)),
        ("What a session has", (ChangeScreen,)),
        ("Workers", (NamedRows, WorkersScreen)),
        ("Join tokens", (TokensScreen,)),
        ("A new join token", (NewTokenDialog,)),
        ("A token that was made", (MadeTokenDialog,)),
        ("Settings", (SettingsScreen,)),
        ("A provider's key", (KeyDialog,)),
        ("The list of keys", (KeysScreen,)),
        ("Questions", (Confirm,)),
        ("Help", (HelpScreen,)),
    )
    return [
        keymap.Place(name, tuple(binding for kind in kinds for binding in keymap.of(kind.BINDINGS)))
        for name, kinds in classes
    ]

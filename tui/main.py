"""Run the terminal UI on one daemon, from plain values; what cannot be used is a sentence before anything is drawn."""

import asyncio
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from textual.constants import COLOR_SYSTEM
from textual.theme import Theme

from daemon.client import Client
from tui import keymap, patches, places
from tui.app import OutriderApp
from tui.deeds import Given
from tui.desk import Desk
from tui.themes import BadTheme, known, read

LAST: Final = 0.2  # seconds a thread has to end when the person has quit


class BadSettings(ValueError):
    """`[tui]` of outrider.toml or a theme's file cannot be used; the message names the key and what there is."""


def run(
    client: Client,
    *,
    where: str,
    here: bool,
    state: Path,
    cwd: str,
    start: Callable[[], Awaitable[None]] | None,
    themes: Path,
    theme: str,
    keys: Mapping[str, str | tuple[str, ...]],
) -> int:
    """Show the daemon that `client` asks until the person quits; returns the exit code.

    `where`: the daemon for people; `here`: it is on this machine. `state`: the folder for drafts. `start` starts a
    daemon here. `themes`: the folder of one's own. `keys`: ids of bindings and their keys, `''` or none for none.
    Raises BadSettings.
    """
    own = _themes(themes)
    given = Given(where, here, cwd, start, own, _theme(theme, own), _keys(keys), _colours())
    desk = Desk(state, where)
    _draw_what_it_can()
    try:
        code = asyncio.run(_run(client, desk, given))
    finally:
        desk.save()
    if desk.complaint:
        print(f"outrider: {desk.complaint}", file=sys.stderr)  # noqa: T201 - the screen is gone
    _leave(code)
    return code


def _draw_what_it_can() -> None:
    """A terminal that is not one of UTF-8 gets a `?` for what it has no sign for: `\\u2502` would shift the line."""
    if isinstance(sys.__stderr__, io.TextIOWrapper):
        sys.__stderr__.reconfigure(errors="replace")


async def _run(client: Client, desk: Desk, given: Given) -> int:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_Impatient())
    async with client:
        app = OutriderApp(client, desk, given)
        gc.freeze()  # what is imported stays: to look it all through takes 40 ms, in which no key is heard
        loop.add_signal_handler(signal.SIGTERM, lambda: app.call_later(app.action_quit))
        loop.add_signal_handler(signal.SIGHUP, _ended, signal.SIGHUP, app, desk)
        for number in (
            signal.SIGINT,
            signal.SIGQUIT,
        ):  # not by the loop: it would hear what an editor's keys sent
            signal.signal(
                number, lambda number, _: loop.call_soon_threadsafe(_ended, signal.Signals(number), app, desk)
            )
        await app.run_async()
    if (fault := patches.fault(app)) is not None:
        raise fault
    return app.return_code or 0


def _ended(number: signal.Signals, app: OutriderApp, desk: Desk) -> None:
    """End at once: the terminal may be gone, and whatever is drawn then would wait for it for ever.

    What was written is kept, and a terminal that is still there is given back.
    """
    app.put_away()
    desk.save()
    patches.give_back(app)
    os._exit(128 + number)


def _themes(folder: Path) -> tuple[Theme, ...]:
    try:
        return read(folder)
    except BadTheme as error:
        raise BadSettings(str(error)) from error


def _theme(name: str, own: tuple[Theme, ...]) -> str:
    there = known(own)
    if name and name not in there:
        raise BadSettings(f"tui.theme: there is no {name!r}; there are {', '.join(there)}")
    return name


def _colours() -> str:
    wanted: Any = COLOR_SYSTEM
    return Console(color_system=wanted, force_terminal=True).color_system or ""  # as Textual finds it out


def _keys(keys: Mapping[str, str | tuple[str, ...]]) -> dict[str, str]:
    try:
        return keymap.checked(keys, places.places())
    except keymap.BadKeys as error:
        raise BadSettings(str(error)) from error


class _Impatient(ThreadPoolExecutor):
    """Never waits for its threads: a name that is being looked up must not keep a person who quits."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def _leave(code: int) -> None:
    """End the process here where a thread still waits for the network: Python's own end would wait for it."""
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in others:
        if not thread.daemon:
            thread.join(LAST)
    if any(thread.is_alive() and not thread.daemon for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

"""What Textual 8.2.8 gets wrong for us, put right in one place; another version is left as it is."""

import codecs
import os
import re
import signal
import sys
import termios
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import textual
from rich.console import Console
from rich.segment import Segment
from textual import _xterm_parser, events, screen
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.drivers import linux_driver, web_driver
from textual.message import Message
from textual.strip import Strip

from daemon.plain import bare, safe
from tui.pastes import Pastes

VERSION: Final = "8.2.8"  # pinned in pyproject.toml; look at each patch again with the next one
INSTALLED: Final[str] = textual.__version__  # read from a file: not in the loop
PAINT: Final = 1 / 120  # seconds between two paintings: a key's echo waits for the one after that of a record
HELD: Final = 64  # characters of a report's beginning that wait for its end in the next read

# xterm's and tmux's way to write a key with modifiers: CSI 27 ; modifiers ; character ~
_OTHER_KEY: Final = re.compile(r"\x1b\[27;(\d+);(\d+)~")
# What a terminal answers to questions, here of programs that ran before: colours, its name, what it can do.
_REPORT: Final = re.compile(
    r"\x1b\]\d{1,4};[^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[P_^X][^\x07\x1b]*\x1b\\|\x1b\[[?>=][\d;:]*[A-Za-z]"
)
_REPORT_BEGUN: Final = re.compile(r"\x1b(?:\]\d{1,4}(?:;|\Z)|[P_^X])[^\x07\x1b]*\x1b?\Z|\x1b\[[?>=][\d;:]*\Z")

# Out of bracketed paste, mouse, focus reports, other keys, title, alternate screen; lines wrap, the cursor shows.
LEAVE: Final = (
    b"\x1b[?2026l\x1b[?2004l\x1b[?7h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2048l"
    b"\x1b[?1004l\x1b[>4m\x1b[<u\x1b[23;2t\x1b[?1049l\x1b[?25h"
)

_patched = False


def apply() -> bool:
    """Put them in, once; whether they are in: not for another version of Textual."""
    global _patched
    if not _patched and INSTALLED == VERSION:
        _paint_sooner()
        _tolerate_any_bytes()
        _know_modified_keys()
        _keep_pastes_whole_and_drop_reports()
        _draw_nothing_that_acts()
        _leave_a_screen_once()
        _go_on_after_a_stop()
        _end_in_a_sentence()
        _end_with_the_terminal()
        _end_with_the_page()
        _patched = True
    return _patched


def _paint_sooner() -> None:
    """A key pressed just after records were painted would wait for most of 1/60 s. What comes is painted less often."""
    screen.UPDATE_PERIOD = PAINT  # type: ignore[misc]


def _tolerate_any_bytes() -> None:
    """One byte that is not UTF-8 ends the thread that reads the keyboard: https://github.com/Textualize/textual/issues/6456"""

    linux_driver.getincrementaldecoder = lambda _: _Tolerant  # type: ignore[attr-defined, assignment]


class _Tolerant(codecs.getincrementaldecoder("utf-8")):  # type: ignore[misc]
    """Any bytes; none at all are the end of a terminal, where Textual would ask for more without a pause."""

    def __init__(self) -> None:
        super().__init__(errors="replace")

    def decode(self, data: bytes, final: bool = False) -> str:
        if not data and not final:
            raise EOFError
        return str(super().decode(data, final))


def _know_modified_keys() -> None:
    """`ESC CR` arrives as enter, and so would send a half-written message; `CSI 27;2;13~` as a key `shift+\\r`.

    The first is how a legacy terminal writes alt+enter, the second xterm's modifyOtherKeys and tmux's extended-keys.
    """
    original = _xterm_parser.XTermParser._sequence_to_key_events

    def known(self: Any, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        if alt and sequence in ("\r", "\n"):
            return [events.Key("alt+enter", None)]
        if found := _OTHER_KEY.fullmatch(sequence):
            sequence = f"\x1b[{found[2]};{found[1]}u"
        return original(self, sequence, alt)

    _xterm_parser.XTermParser._sequence_to_key_events = known  # type: ignore[method-assign]


def _keep_pastes_whole_and_drop_reports() -> None:
    """Of escape sequences within a paste Textual makes keys, enter among them, and it takes 2 s for each MB.

    A terminal's answer that nobody waits for is typed into whatever has the focus, character by character.
    """
    original = _xterm_parser.XTermParser.feed

    def typed(self: Any, data: str) -> Iterable[Message]:
        text: str = getattr(self, "_held_report", "") + data
        self._held_report = ""
        text = _REPORT.sub("", text)
        if (begun := _REPORT_BEGUN.search(text)) and len(begun[0]) <= HELD:
            self._held_report, text = begun[0], text[: begun.start()]
        return original(self, text) if text else ()

    def feed(self: Any, data: str) -> Iterable[Message]:
        if not data:
            yield from original(self, data)  # the end of all input
            return
        pastes: Pastes | None = getattr(self, "_pastes", None)
        if pastes is None:
            pastes = self._pastes = Pastes()
        for is_paste, text in pastes.split(data):
            if is_paste:
                yield events.Paste(safe(text.replace("\r\n", "\n").replace("\r", "\n")))
            else:  # between the marks that it sees there is nothing, of which it makes a paste too
                found = typed(self, text)
                yield from (one for one in found if not isinstance(one, events.Paste))

    _xterm_parser.XTermParser.feed = feed  # type: ignore[method-assign]


def _draw_nothing_that_acts() -> None:
    """What a widget gives to be drawn goes to the terminal as it is: escape sequences too, where it forgot them."""
    original = Strip.render

    def render(self: Strip, console: Console) -> str:
        if self._render_cache is None and not all(text.isprintable() for text, _, _ in self._segments):
            self._segments = [
                Segment(bare(text) if control is None else text, style, control)
                for text, style, control in self._segments
            ]
        return original(self, console)

    Strip.render = render  # type: ignore[method-assign]


def _leave_a_screen_once() -> None:
    """Two quick keys that leave a screen end the app, or take the screen below along."""
    original = screen.Screen.dismiss

    def dismiss(self: Any, result: Any = None) -> AwaitComplete:
        return original(self, result) if self.is_active and self.is_attached else AwaitComplete()

    screen.Screen.dismiss = dismiss  # type: ignore[method-assign]


def _go_on_after_a_stop() -> None:
    """A SIGCONT has Textual read the keyboard once more, beside what reads it: each has a part of what is typed.

    Of a stop that goes on at once nothing reads it. Both signals come while the other is still being handled.
    """

    def reads(self: Any) -> bool:
        return self._key_thread is not None and self._key_thread.is_alive()

    def go_on(self: Any) -> None:
        again = True
        while again:  # what came meanwhile may have been another program's time on the terminal
            self._continued = False
            if reads(self):
                self.suspend_application_mode()
            self._must_signal_resume = self._away = True
            self.resume_application_mode()
            self._away = not reads(self)  # in the background it has to wait for the next one
            again = self._continued

    def stopped(self: Any, *_: object) -> None:
        if getattr(self, "_turning", False):
            return
        self._turning, self._continued = True, False
        try:
            if shown := self._auto_restart and reads(self):
                self.suspend_application_mode()
            if not self._continued:
                os.kill(os.getpid(), signal.SIGSTOP)
            if shown:
                go_on(self)
        finally:
            self._turning = False

    def continued(self: Any, *_: object) -> None:
        self._continued = True
        if not getattr(self, "_turning", False) and self._auto_restart:
            self._turning = True
            try:
                if reads(self) or getattr(self, "_away", False):
                    go_on(self)
            finally:
                self._turning = False

    linux_driver.LinuxDriver._sigtstp_application = stopped  # type: ignore[method-assign]
    linux_driver.LinuxDriver._sigcont_application = continued  # type: ignore[method-assign]


def _end_in_a_sentence() -> None:
    """A fault would end in a page of code with the values of all variables, keys among them: see `fault`."""

    def close(self: Any) -> None:
        self._close_messages_no_wait()

    App._fatal_error = close  # type: ignore[method-assign]


def _end_with_the_terminal() -> None:
    """A terminal that goes away does not send SIGHUP to everybody: not to who is in no session of it, say."""

    def read(self: Any) -> None:
        try:
            self.run_input_thread()
        except (OSError, EOFError):
            os.kill(os.getpid(), signal.SIGHUP)
        except Exception as error:  # noqa: BLE001 - there is no other way out of this thread
            self._app.call_later(self._app._handle_exception, error)

    linux_driver.LinuxDriver._run_input_thread = read  # type: ignore[method-assign]


def _end_with_the_page() -> None:
    """A server that is killed closes the input of its apps, which would go on for ever without one."""
    original = web_driver.WebDriver.run_input_thread

    def read(self: Any) -> None:
        original(self)
        if not self.exit_event.is_set():
            os.kill(os.getpid(), signal.SIGHUP)

    web_driver.WebDriver.run_input_thread = read  # type: ignore[method-assign]


def fault(app: App[Any]) -> Exception | None:
    """What ended the app that should not have; who started it tells it."""
    return app._exception


def ask_for_keys(app: App[Any]) -> None:
    """Ask for modified keys the xterm way too: tmux knows no other. A terminal that does not know it passes over it."""
    _write(app, "\x1b[>4;1m\x1b[22;2t")


def set_title(app: App[Any], title: str) -> None:
    """The terminal's title; empty gives the one from before back, with the keys as they were."""
    _write(app, f"\x1b]2;{title}\x07" if title else "\x1b[>4m\x1b[23;2t")


def give_back(app: App[Any]) -> None:
    """The terminal as it was before, without waiting: it may be gone, or take nothing any more."""
    driver = app._driver
    if not isinstance(driver, linux_driver.LinuxDriver):
        return
    with suppress(OSError, termios.error):
        if driver.attrs_before is not None:
            termios.tcsetattr(driver.fileno, termios.TCSANOW, driver.attrs_before)
        out = sys.__stderr__.fileno() if sys.__stderr__ else -1  # where Textual draws
        waits = os.get_blocking(out)
        os.set_blocking(out, False)
        try:
            os.write(out, LEAVE)
        finally:
            os.set_blocking(out, waits)


def _write(app: App[Any], text: str) -> None:
    """What Textual has no word for, to the terminal itself; nothing where there is none."""
    driver = app._driver
    if driver is not None and not app.is_headless and not app.is_web:
        driver.write(text)
        driver.flush()

"""Each trap of Textual that is patched, at the place where the terminal's bytes come in."""

import codecs
from typing import Any

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers import linux_driver
from textual.screen import ModalScreen

from tui import patches


def keys(*pieces: str) -> list[str]:
    """What a terminal's bytes become, piece by piece as they are read; then the wait after an escape is over."""
    assert patches.apply()
    parser = XTermParser()
    found: list[Any] = []
    for piece in pieces:
        found += parser.feed(piece)
    if parser._timeout_time is not None:
        parser._timeout_time = 0.0
    found += parser.tick()
    return [
        event.key if isinstance(event, events.Key) else f"paste {event.text}"
        for event in found
        if isinstance(event, events.Key | events.Paste)
    ]


def test_bytes_that_are_not_utf8_are_shown_as_such_and_end_nothing() -> None:
    assert patches.apply()
    decoder = linux_driver.getincrementaldecoder("utf-8")()  # type: ignore[attr-defined]
    assert decoder.decode(b"a\xffb\xc3") == "a\ufffdb"
    assert decoder.decode(b"\xa9") == "é"
    assert codecs.getincrementaldecoder("utf-8")().errors == "strict"  # nobody else's


def test_escape_and_return_is_no_enter() -> None:
    assert keys("\x1b\r") == ["alt+enter"]
    assert keys("\r") == ["enter"]


@pytest.mark.parametrize(
    ("sequence", "key"),
    [
        ("\x1b[27;2;13~", "shift+enter"),
        ("\x1b[13;2u", "shift+enter"),
        ("\x1b[27;5;106~", "ctrl+j"),
        ("\x1b[27;5;13~", "ctrl+enter"),
    ],
)
def test_keys_with_modifiers_are_known_in_both_ways_that_terminals_write_them(
    sequence: str, key: str
) -> None:
    assert keys(sequence) == [key]


@pytest.mark.parametrize(
    "report",
    [
        "\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\",
        "\x1b]10;rgb:ffff/ffff/ffff\x07",
        "\x1b[?62;22c",
        "\x1b[>41;354;0c",
        "\x1bP1+r524742=38\x1b\\",
        "\x1b[?997;1n",
        "\x1b[I",
        "\x1b[O",
    ],
)
def test_what_a_terminal_reports_is_never_typed(report: str) -> None:
    assert keys(f"a{report}b") == ["a", "b"]


@pytest.mark.parametrize("at", range(4, 24))
def test_a_report_that_comes_in_two_reads_is_never_typed(at: int) -> None:
    report = "\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\"
    assert keys(report[:at], report[at:] + "b") == ["b"]


def test_a_paste_stays_whole() -> None:
    assert keys("\x1b[200~two\nlines\x1b[201~") == ["paste two\nlines"]


@pytest.mark.parametrize("at", range(1, 6))
def test_a_paste_whose_marks_come_in_two_reads_stays_whole(at: int) -> None:
    pieces = ("\x1b[200~"[:at], "\x1b[200~"[at:] + "two" + "\x1b[201~"[:at], "\x1b[201~"[at:] + "b")
    assert keys(*pieces) == ["paste two", "b"]


@pytest.mark.parametrize(
    ("pasted", "text"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]0;a title\rb\rc", "␛]0;a title\nb\nc"),
        ("\x1b]52;c;aGVsbG8=\x07", "␛]52;c;aGVsbG8=␇"),
        ("\x1b[I\x1b[<0;1;1M\x1b\r", "␛[I␛[<0;1;1M␛\n"),
        ("a\x1b[200~b\x00\r\n\u202e", "a␛[200~b␀\n\\u202e"),
    ],
)
def test_no_escape_sequence_within_a_paste_is_a_key_or_gets_further(pasted: str, text: str) -> None:
    assert keys(f"a\x1b[200~{pasted}\x1b[201~b") == ["a", f"paste {text}", "b"]


class Keyboard:
    """A driver as the signals' handlers see it; `did`: what they had it do."""

    def __init__(self) -> None:
        self._auto_restart = True
        self.did: list[str] = []
        self.reading = True

    @property
    def _key_thread(self) -> "Keyboard":
        return self

    def is_alive(self) -> bool:
        return self.reading

    def suspend_application_mode(self) -> None:
        assert self.reading
        self.reading = False
        self.did.append("stops reading")

    def resume_application_mode(self) -> None:
        assert not self.reading
        self.reading = True
        self.did.append("reads")

    def go_on(self) -> None:
        driver: Any = self
        linux_driver.LinuxDriver._sigcont_application(driver)


def test_after_a_stop_the_keyboard_is_read_by_one_reader() -> None:
    assert patches.apply()
    keyboard = Keyboard()
    for _ in range(3):
        keyboard.go_on()
    assert keyboard.did == ["stops reading", "reads"] * 3


def test_a_signal_to_go_on_before_the_app_began_or_while_an_editor_runs_starts_nothing() -> None:
    assert patches.apply()
    keyboard = Keyboard()
    keyboard.reading = False
    keyboard.go_on()
    keyboard.reading, keyboard._auto_restart = True, False
    keyboard.go_on()
    assert keyboard.did == []


def test_going_on_while_it_goes_on_reads_once_more_and_not_twice() -> None:
    assert patches.apply()

    class Interrupted(Keyboard):
        def resume_application_mode(self) -> None:
            super().resume_application_mode()
            if len(self.did) == 2:
                self.go_on()

    keyboard = Interrupted()
    keyboard.go_on()
    assert keyboard.did == ["stops reading", "reads"] * 2


def test_in_the_background_it_waits_for_the_next_signal() -> None:
    assert patches.apply()

    class Behind(Keyboard):
        def resume_application_mode(self) -> None:
            super().resume_application_mode()
            self.reading = len(self.did) > 2

    keyboard = Behind()
    keyboard.go_on()
    keyboard.go_on()
    keyboard.reading = False  # as when the app has ended
    keyboard.go_on()
    assert keyboard.did == ["stops reading", "reads", "reads"]


class Two(App[None]):
    """An app with a screen over the usual one."""

    def on_mount(self) -> None:
        self.push_screen(ModalScreen[bool]())


async def test_a_screen_that_is_left_twice_is_left_once() -> None:
    assert patches.apply()
    async with Two().run_test() as pilot:
        over = pilot.app.screen
        over.dismiss(True)
        over.dismiss(True)
        await pilot.pause()
        assert len(pilot.app.screen_stack) == 1
    assert patches.fault(pilot.app) is None

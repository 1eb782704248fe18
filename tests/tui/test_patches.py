"""Each trap of Textual that is patched, at the place where the terminal's bytes come in."""

import codecs
from typing import Any

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver

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

"""What is typed in one go after the key that opens a field is written in the field, and is no command."""

from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input

from tests.tui.daemonfake import FakeClient, info, stored
from tests.tui.driving import Driver, running
from tui.log.pattern import Pattern
from tui.widgets.composer import Composer
from tui.widgets.table import SessionTable


def two() -> FakeClient:
    client = FakeClient()
    client.add(info("a1", "closed", "Mend the fence", n=1), stored(1, "start"))
    client.add(info("b2", "closed", "Oil the hinge", n=1), stored(1, "start"))
    return client


def read(on: Driver, text: str) -> None:
    """All of it in one read of the terminal."""
    for char in text:
        on.app.post_message(events.Key({"/": "slash"}.get(char, char), char))


async def in_the_log(on: Driver) -> None:
    await on.until(lambda: "a1" in on.app.roster.infos)
    on.app.open_session("a1")
    await on.until(lambda: on.app.shown == "a1" and on.client.following("a1"))
    composer: Composer = on.one(Composer)
    await on.until(lambda: composer.has_focus)
    await on.press("escape")
    await on.until(lambda: not composer.has_focus)


async def test_words_after_i_are_written_in_the_message(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        await in_the_log(on)
        read(on, "iexes")
        composer: Composer = on.one(Composer)
        await on.until(lambda: composer.text == "exes")
        assert len(on.app.screen_stack) == 2, "no dialog was opened"


async def test_words_after_a_slash_are_searched_for(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        await in_the_log(on)
        read(on, "/exes")
        pattern: Pattern = on.one(Pattern)
        await on.until(lambda: pattern.value == "exes")


@pytest.mark.parametrize("word", ["hinge", "sex"])
async def test_words_after_a_slash_filter_the_list(tmp_path: Path, word: str) -> None:
    async with running(two(), tmp_path) as on:
        await on.until(lambda: len(on.app.roster.infos) == 2)
        table: SessionTable = on.one(SessionTable)
        await on.until(lambda: len(table.ids) == 2)
        read(on, f"/{word}")
        field = on.app.screen.query_one("#filter", Input)
        await on.until(lambda: field.value == word)
        await on.until(lambda: table.ids == (("b2",) if word == "hinge" else ()))


async def test_keys_that_no_field_opens_for_are_commands_as_ever(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        await on.until(lambda: len(on.app.roster.infos) == 2)
        table: SessionTable = on.one(SessionTable)
        await on.until(lambda: len(table.ids) == 2)
        before = table.cursor
        read(on, "jkj")
        await on.until(lambda: table.cursor != before)


async def test_keys_that_come_while_the_app_ends_are_nobodys(tmp_path: Path) -> None:
    async with running(two(), tmp_path) as on:
        await on.until(lambda: len(on.app.roster.infos) == 2)
        on.app._screen_stack.clear()
        forwarded = events.Key("j", "j")
        forwarded._set_forwarded()
        await on.app.on_event(events.Key("j", "j"))
        await on.app.on_event(forwarded)

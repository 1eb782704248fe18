"""Screens that were opened while no daemon was there: they say so, and ask it once it is."""

from pathlib import Path

import pytest

from tests.tui.daemonfake import MODEL, FakeClient, info
from tests.tui.driving import running

AWAY = "no daemon listens on /nowhere/api.sock"


@pytest.mark.parametrize(
    ("key", "shown"), [("ctrl+n", f"the daemon's default, {MODEL}"), ("f9", "rehearsal")]
)
async def test_a_screen_that_was_opened_too_early_asks_the_daemon_once_it_is_there(
    tmp_path: Path, key: str, shown: str
) -> None:
    client = FakeClient()
    client.gone = AWAY
    async with running(client, tmp_path) as on:
        await on.sees(AWAY)
        await on.press(key)
        await on.sees(f"▲ {AWAY} · read only")
        assert shown not in on.text()
        assert not on.said()
        client.add(info("a1"))
        client.back()
        await on.sees(shown)
        assert "▲" not in on.text()


async def test_that_there_is_no_worker_is_said_only_when_the_daemon_said_so(tmp_path: Path) -> None:
    client = FakeClient()
    client.gone = AWAY
    client.worker_infos = ()
    async with running(client, tmp_path) as on:
        await on.sees(AWAY)
        await on.press("f4")
        await on.sees(f"▲ {AWAY}")
        assert "no worker" not in on.text()
        assert "0 workers" not in on.text()

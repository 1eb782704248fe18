"""A join token, made in the terminal UI: asked for, shown this once, with what is in its way."""

from collections.abc import Sequence
from pathlib import Path

from daemon.client import ApiFailure
from daemon.protocol import api
from tests.tui.daemonfake import FakeClient
from tests.tui.driving import Driver, running

WHY = "machines that join get no wheel from here: run `outrider wheelhouse`"


class Tokening(FakeClient):
    """One that makes tokens; `why`: what its mesh says, None where it does not answer."""

    def __init__(self, why: str | None = "") -> None:
        super().__init__()
        self.why = why
        self.asked: list[api.NewToken] = []

    async def make_token(self, new: api.NewToken) -> api.TokenMade:
        self.asked.append(new)
        until = "2026-12-01T12:00:00.000Z"
        return api.TokenMade(1, new.name, new.uses, until, until, new.ephemeral, "orj_x", "echo orj_x | sh")

    async def tokens(self) -> Sequence[api.TokenInfo]:
        return []

    async def mesh(self) -> api.MeshInfo:
        if self.why is None:
            raise ApiFailure(503, "the daemon is ending")
        return api.MeshInfo("up", "hub", why=self.why)


async def ask(on: Driver) -> None:
    """Open the dialog that makes one."""
    await on.press("f4")
    await on.sees("local")
    await on.press("t")
    await on.sees("No token yet")
    await on.press("a")
    await on.sees("A token lets machines join")


async def test_a_token_is_shown_once_with_its_line_and_nothing_in_its_way(tmp_path: Path) -> None:
    client = Tokening()
    async with running(client, tmp_path) as on:
        await ask(on)
        await on.press("enter")
        await on.sees("echo orj_x | sh")
        assert client.asked == [api.NewToken("", 1, 86400.0, False)]
        assert not on.app.screen.query("#why")
        await on.press("escape")
        await on.sees("No token yet")


async def test_what_is_in_the_way_of_who_joins_is_shown_with_it(tmp_path: Path) -> None:
    async with running(Tokening(WHY), tmp_path, (80, 24)) as on:
        await ask(on)
        await on.press("enter")
        await on.sees("echo orj_x | sh")
        await on.sees("get no wheel from here")


async def test_a_mesh_that_does_not_answer_hides_no_token(tmp_path: Path) -> None:
    async with running(Tokening(None), tmp_path) as on:
        await ask(on)
        await on.press("enter")
        await on.sees("echo orj_x | sh")


async def test_a_number_that_is_none_is_told_and_asks_for_nothing(tmp_path: Path) -> None:
    client = Tokening()
    async with running(client, tmp_path) as on:
        await ask(on)
        await on.press("tab")
        await on.press("x", "enter")
        await on.sees("machines:")
        assert client.asked == []

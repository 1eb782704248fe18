"""Each screen as it looks in each state: empty, loading, as usual, with the daemon lost, and with what is hard to draw.

Characters and styles, at 80x24 and 160x45; what is expected stands in `snapshots`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from textual.widgets import Input

from daemon.client import ApiFailure, Watched
from daemon.protocol import api
from daemon.protocol.records import JSON, CallBody, Config, ErrorBody, Usage, WorkerRef
from tests.tui.daemonfake import FakeClient, info, stored, worker
from tests.tui.driving import Driver, running
from tests.tui.snapshots import SIZES, check, screen_styles, screen_text

LONG = (
    "A title that goes on and on, 日本語のとても長い題名, with 🚀 and \x1b[31mcodes\x1b[0m, "
    "until no screen has room for it all "
) * 2
WORKERS = (
    worker(),
    api.WorkerInfo(
        "gpu", "connected", "", "0.1.0", "linux", "x86_64", "rack-7", ("bash", "python"), "/scratch", "/home/ada", 64,
        256 << 30, "", 2,
        mesh=api.Membership("10.7.0.2", "2026-11-01T00:00:00Z", 1, False, "direct", "198.51.100.7:51820",
                            "2026-11-30T12:00:10.000Z", 5_000_000, 7_000),
    ),
    api.WorkerInfo("attic", "refused", "its release 0.0.9 is older than 0.1.0"),
    api.WorkerInfo("laptop", "gone", seen="2026-11-30T08:00:00.000Z"),
)  # fmt: skip


def at(minute: int) -> str:
    return f"2026-11-30T11:{minute:02}:00.000Z"


class Fake(FakeClient):
    """One that also has a mesh and tokens, and answers nothing while it is `silent`."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = False
        self.served = True
        self.made: tuple[api.TokenInfo, ...] = ()
        self.state: api.MeshInfo = api.MeshInfo("idle", "hub")
        self.refused: ApiFailure | None = None

    async def _there(self) -> None:
        if self.silent:
            await asyncio.Event().wait()
        await super()._there()

    async def events(self, first: int = api.FIRST) -> AsyncGenerator[Watched, None]:
        if self.silent:
            await asyncio.Event().wait()
        async for event in super().events(first):
            yield event

    async def providers(self, wait: float = 0.0) -> api.Providers:
        found = await super().providers()
        return found if self.served else api.Providers("", ())

    async def workers(self) -> Sequence[api.WorkerInfo]:
        await self._there()
        return self.worker_infos

    async def mesh(self) -> api.MeshInfo:
        await self._there()
        return self.state

    async def tokens(self) -> Sequence[api.TokenInfo]:
        await self._there()
        if self.refused is not None:
            raise self.refused
        return self.made


def many(client: Fake) -> None:
    """A session of every kind."""
    client.worker_infos = WORKERS
    gone = Config("anthropic/claude", workers=(WorkerRef("laptop"),))
    client.add(info("a1", "closed", "What is this machine?", updated=at(50), prompt=2085))
    client.add(info("b2", "stepping", "Port the parser", updated=at(55), prompt=5100))
    client.add(info("c3", "failed", "Read the logs", updated=at(54), prompt=9900))
    client.add(info("d4", "stepping", "Train the model", updated=at(53), config=gone))
    client.add(info("e5", "ended", "An old one", updated=at(10)))
    client.add(info("f6", "open", "A copy", updated=at(40)))
    client.add(msgspec.structs.replace(info("g7", "closed", updated=at(30), prompt=0), title=""))


def talk(client: Fake) -> None:
    """A session with one of about everything."""
    call = msgspec.json.encode(
        CallBody("run", '{"worker": "local", "code": "uname -a\\nls", "interpreter": "bash"}')
    ).decode()
    client.add(
        info("a1", "stepping", "What is this machine?", n=9, prompt=2085, usage=Usage(7600, 402), cost=0.0),
        stored(1, "start"),
        stored(2, "system", "You are an agent.\nBe brief.", source="harness"),
        stored(3, "message", "What is this machine?", via="tui"),
        stored(4, "thinking", "I look at it.", step="s1"),
        stored(5, "text", "# Looking\n\nI run **two** commands:\n\n- `uname -a`\n- `ls`", step="s1"),
        stored(6, "call", call, type=JSON, id="c1", step="s1"),
        stored(7, "step", id="s1", model="m-1", usage=Usage(1200, 340), stop="tool_use"),
        stored(8, "result", "Linux\nfile-a\n", for_="c1", exit=1, seconds=0.5, worker="local"),
        stored(9, "result", b"\x89PNG\r\n\x1a\n", type="image/png", for_="c1"),
    )


def broken(client: Fake) -> None:
    """A session that failed, with words and lines that no screen has room for."""
    error = msgspec.json.encode(ErrorBody("auth", "invalid x-api-key (status 401)")).decode()
    config = Config(
        "anthropic/" + "m" * 90, workers=(WorkerRef("local"), WorkerRef("laptop", "/srv/" + "d" * 80))
    )
    client.add(
        info("a1", "failed", LONG, n=4, prompt=9900, config=config),
        stored(1, "start"),
        stored(2, "message", LONG * 3 + "x" * 300, via="tui"),
        stored(3, "text", f"| a |\n|---|\n| 日本 {'y' * 120} |\n\n```python\n{'z = 1  # ' * 30}\n```", step="s1"),
        stored(4, "error", error, type=JSON),
    )  # fmt: skip


def new(client: Fake) -> None:
    """A session that was just made."""
    client.add(msgspec.structs.replace(info("a1", "closed", prompt=0, n=1), title=""), stored(1, "start"))


def tokens(client: Fake) -> None:
    client.state = api.MeshInfo(
        "up", "hub", how="the kernel's WireGuard", port=51820, join=("198.51.100.1:4601",)
    )
    client.made = (
        api.TokenInfo(1, "rack", "good", 3, at(1), "2026-12-01T12:00:00.000Z", False, ("gpu",)),
        api.TokenInfo(2, "", "used", 0, at(2), at(59), True, ()),
        api.TokenInfo(3, LONG[:60], "revoked", 1, at(3), at(59), False, ("a" * 40, "b" * 40)),
    )


def fleet(client: Fake) -> None:
    many(client)
    tokens(client)


def nothing(client: Fake) -> None: ...


def silent(client: Fake) -> None:
    client.silent = True


def without(client: Fake) -> None:
    client.gone = "no daemon listens on /nowhere/api.sock; start one"


def long(client: Fake) -> None:
    many(client)
    for n in range(60):
        client.add(
            info(f"l{n:02}", "damaged", LONG, updated=at(56), damage="record 7 does not read", prompt=n * 200)
        )


def unserved(client: Fake) -> None:
    client.served = False


def viewer(client: Fake) -> None:
    many(client)
    client.state = api.MeshInfo("failing", "hub", why="UDP 51820 is taken by another program " * 4)
    client.refused = ApiFailure(403, "the key laptop is viewer's; this takes admin's")


async def opened(on: Driver, *words: str) -> None:
    await on.until(lambda: "a1" in on.app.roster.infos)
    on.app.open_session("a1")
    await on.until(lambda: on.app.shown == "a1")
    for word in words:
        await on.sees(word)


async def lost(on: Driver) -> None:
    client = on.client
    client.lose()
    await on.sees("▲")


def keys(*pressed: str) -> Callable[[Driver], Awaitable[None]]:
    """The list first, then these keys."""

    async def go(on: Driver) -> None:
        await on.until(lambda: on.app.roster.loaded)
        await on.press(*pressed)

    return go


async def still(on: Driver) -> None: ...


async def talking(on: Driver) -> None:
    await opened(on, "▣ image/png")


async def unread(on: Driver) -> None:
    await on.until(lambda: "a1" in on.app.roster.infos)
    on.client.silent = True  # type: ignore[attr-defined]
    await opened(on)


async def unanswered(on: Driver, *pressed: str) -> None:
    await on.until(lambda: on.app.roster.loaded)
    on.client.silent = True  # type: ignore[attr-defined]
    await on.press(*pressed)


async def wrong(on: Driver) -> None:
    await keys("n")(on)
    await on.sees("local · connected")
    for name, text in (("context", "much"), ("steps", "few"), ("cost", "a lot")):
        on.app.screen.query_one(f"#{name}", Input).value = text
    await on.press("f2")
    await on.sees("'much' is not a number of tokens")


async def models(on: Driver) -> None:
    await keys("n")(on)
    await on.write("Port the parser\nto the new grammar")
    await on.sees("grammar")
    await on.press("tab")
    await on.sees("rehearsal/echo · context 10k")


Case = tuple[str, str, Callable[[Fake], None], Callable[[Driver], Awaitable[None]], str]
CASES: tuple[Case, ...] = (
    ("sessions", "empty", nothing, still, "No session yet"),
    ("sessions", "loading", silent, still, "…"),
    ("sessions", "usual", many, still, "(no message yet)"),
    ("sessions", "lost", many, lost, "▲ no daemon listens"),
    ("sessions", "without", without, still, "It is looked for"),
    ("sessions", "long", long, keys("j", "j"), "67 sessions"),
    ("session", "empty", new, opened, "session started"),
    ("session", "loading", talk, unread, "What is this machine?"),
    ("session", "usual", talk, talking, "ctrl+x Stop"),
    ("session", "lost", talk, lambda on: _then(on, talking, lost), "▲"),
    ("session", "long", broken, opened, "error: auth"),
    ("workers", "empty", lambda client: setattr(client, "worker_infos", ()), keys("w"), "0 workers"),
    ("workers", "loading", many, lambda on: unanswered(on, "w"), "4 workers"),
    ("workers", "usual", fleet, keys("w", "j"), "mesh up"),
    ("workers", "lost", many, lambda on: _then(on, keys("w"), _mesh, lost), "▲"),
    ("workers", "refused", viewer, keys("w", "j", "j"), "Read only"),
    ("tokens", "empty", nothing, keys("w", "t"), "No token yet"),
    ("tokens", "loading", nothing, lambda on: unanswered(on, "w", "t"), "0 join tokens"),
    ("tokens", "usual", tokens, keys("w", "t"), "revoked"),
    ("tokens", "lost", tokens, lambda on: _then(on, keys("w", "t"), _rack, lost), "▲"),
    ("tokens", "asked", tokens, lambda on: _then(on, keys("w", "t"), _rack, keys("a")), "machines"),
    ("new", "empty", nothing, lambda on: _then(on, keys("n"), _default), "local · connected"),
    ("new", "loading", nothing, lambda on: unanswered(on, "n"), "local · connected"),
    ("new", "usual", many, models, "gpu · connected"),
    ("new", "lost", many, lambda on: _then(on, keys("n"), _default, lost), "▲"),
    ("new", "wrong", nothing, wrong, "cost: 'a lot' is not an amount"),
    ("settings", "loading", nothing, lambda on: unanswered(on, "f9"), "Colours"),
    ("settings", "usual", nothing, keys("f9"), "new sessions have"),
    ("settings", "lost", nothing, lambda on: _then(on, keys("f9"), _served, lost), "▲"),
    ("settings", "empty", unserved, keys("f9"), "Colours"),
    ("settings", "changed", nothing, lambda on: _then(on, keys("f9"), _served, keys("tab", "space")), "[ ] tell"),
    ("settings", "keys", nothing, lambda on: _then(on, keys("f9"), _served, keys("e")), "sessions.top"),
    ("palette", "usual", many, keys("ctrl+p"), "Workers"),
    ("help", "session", talk, lambda on: _then(on, talking, keys("f1")), "Copy"),
    ("help", "workers", fleet, lambda on: _then(on, keys("w"), _mesh_up, keys("f1")), "Cordon"),
    ("help", "new", nothing, lambda on: _then(on, keys("n"), _default, keys("f1")), "Send"),
    ("help", "lost", many, lambda on: _then(on, keys("f1"), _paged, lost), "Page down"),
    ("help", "usual", many, keys("f1"), "Page down"),
    ("end", "asked", many, lambda on: _then(on, _rows, keys("e")), "for good?"),
)  # fmt: skip


async def _then(on: Driver, *steps: Callable[[Driver], Awaitable[None]]) -> None:
    for step in steps:
        await step(on)


async def _mesh(on: Driver) -> None:
    await on.sees("mesh idle")


async def _mesh_up(on: Driver) -> None:
    await on.sees("mesh up")


async def _paged(on: Driver) -> None:
    await on.sees("Page down")


async def _rack(on: Driver) -> None:
    await on.sees("rack")


async def _rows(on: Driver) -> None:
    await on.sees("Port the parser")


async def _served(on: Driver) -> None:
    await on.sees("new sessions have")


async def _default(on: Driver) -> None:
    await on.sees("the daemon's default, rehearsal/echo")


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times on the screen are the machine's own."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
async def test_a_screen_looks_as_it_was_reviewed(tmp_path: Path, case: Case, size: tuple[int, int]) -> None:
    screen, state, make, go, word = case
    client = Fake()
    make(client)
    async with running(client, tmp_path, size, cwd="/home/ada/src", start=asyncio.Event().wait) as on:
        on.app.animation_level = "none"
        await go(on)
        await on.sees(word)
        for field in on.app.screen.query(Input):
            field.cursor_blink = False
        await on.sees("f1 Help")
        looks = ""
        while looks != (looks := screen_text(on.app) + "\n" + screen_styles(on.app)):
            await on.pilot.pause()
        check(__file__, f"{screen}-{state}-{size[0]}x{size[1]}", looks)

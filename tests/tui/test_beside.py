"""One door for what runs beside the screen: no error of it ends silently, and none ends the app."""

import ast
import gc
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.events import Paste

import tui
from daemon.client import ApiFailure, Unreachable
from daemon.protocol.records import Record
from tests.tui.daemonfake import FakeClient, info
from tests.tui.driving import running
from tui import attach, beside, editor
from tui.log.logview import LogView
from tui.widgets.composer import Composer

ROOT = Path(tui.__file__).parent
DOOR = "beside.py"
FAULT = "a fault of outrider itself: ZeroDivisionError: by nothing"


def test_nothing_is_run_beside_the_screen_past_the_door() -> None:
    past = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in ("run_worker", "create_task", "ensure_future"))
        or (isinstance(node, ast.ImportFrom) and any(name.name == "work" for name in node.names))
    ]
    assert [place.partition(":")[0] for place in past] == [DOOR]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ApiFailure(409, "it is closed"), "it is closed"),
        (Unreachable("no daemon listens; start one"), "not done: no daemon listens"),
        (editor.Failed("vi ended with exit 1"), "vi ended with exit 1"),
        (attach.NotPostable("a.png is too long"), "a.png is too long"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (KeyError("a\x1b[2J"), "a fault of outrider itself: KeyError: 'a\\x1b[2J'"),
    ],
)
def test_an_error_is_a_sentence(error: Exception, said: str) -> None:
    assert beside.sentence(error) == said


async def test_what_goes_wrong_is_handed_on_and_what_is_never_begun_says_nothing() -> None:
    async def deed(error: Exception | None) -> None:
        done.append("begun")
        if error:
            raise error

    done: list[str] = []
    failed: list[Exception] = []
    app: App[None] = App()
    async with app.run_test():
        fault = ZeroDivisionError()
        beside.run(app, partial(deed, fault), failed.append, "a")
        await app.workers.wait_for_complete()
        assert failed == [fault]
        beside.run(app, partial(deed, None), failed.append, "a")
        app.workers.cancel_group(app, "a")
        gc.collect()  # a coroutine that nobody awaited warns here, and a warning is an error
    assert done == ["begun"]


class Faulty(FakeClient):
    """A client that has a fault in what `broken` names."""

    broken = ""

    async def records(
        self, id: str, after: int = 0, limit: int | None = None, wait: float = 0.0
    ) -> Sequence[Record]:
        self._break("records")
        return await super().records(id, after, limit, wait)

    async def headers(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        self._break("headers")
        return await super().headers(id, after, limit)

    def _break(self, what: str) -> None:
        if self.broken == what:
            raise ZeroDivisionError("by nothing")


@pytest.mark.parametrize("what", ["records", "headers"])
async def test_a_fault_while_records_are_read_is_told_once_and_the_app_goes_on(
    tmp_path: Path, what: str
) -> None:
    client = Faulty()
    client.add(info("a1", n=500))
    client.broken = what
    async with running(client, tmp_path) as on:
        await on.sees("session a1")
        await on.press("enter")
        await on.until(lambda: on.said() == [FAULT])
        client.change("a1", title="Another")
        await on.sees("Another")
        assert on.said() == [FAULT]


async def test_a_fault_of_a_search_is_told(tmp_path: Path) -> None:
    client = Faulty()
    client.add(info("a1", n=900))
    async with running(client, tmp_path) as on:
        await on.sees("session a1")
        await on.press("enter")
        await on.until(lambda: on.one(LogView).opened and on.one(LogView).pane.ledger.noted == 900)
        client.broken = "records"
        await on.press("escape", "slash", *"text", "space", "3", "enter")
        await on.until(lambda: on.said() == [FAULT])


class Slip(Composer):
    """A composer with faults."""

    async def _complete(self, begun: str) -> None:
        raise ZeroDivisionError("by nothing")

    async def _paste_picture(self, path: str, text: str) -> None:
        raise ZeroDivisionError("by nothing")


class Slips(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def compose(self) -> ComposeResult:
        yield Slip()

    def on_composer_tells(self, event: Composer.Tells) -> None:
        self.told.append(event.text)


async def test_faults_of_the_composer_are_told() -> None:
    app = Slips()
    async with app.run_test() as pilot:
        app.query_one(Slip).focus()
        await pilot.press("at", "a", "tab")
        await app.workers.wait_for_complete()
        await pilot.pause()
        app.query_one(Slip).post_message(Paste("/tmp/a.png"))
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.told == [FAULT, FAULT]

import asyncio
from pathlib import Path

import pytest

from daemon.client import ApiFailure
from daemon.protocol.api import Part
from tests.fakes import Tasks
from tests.tui.daemonfake import FakeClient, info
from tui.desk import Desk, Unsent
from tui.outbox import Outbox

PARTS = (Part("text/plain", b"x"),)


class Box:
    def __init__(self, desk: Desk) -> None:
        self.client = FakeClient()
        for id in ("a1", "b2"):
            self.client.add(info(id))
        self.desk = desk
        self.linked = asyncio.Event()
        self.linked.set()
        self.changed: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.outbox = Outbox(self.client, desk, self.linked, self.changed.append, self._refused)

    def _refused(self, post: Unsent, why: str) -> None:
        self.refused.append((post.text, why))

    def post(self, session: str, text: str) -> None:
        self.desk.post(session, text, (Part("text/plain", text.encode()),), (), len(self.desk.unsent()))


@pytest.fixture
async def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr("tui.outbox.AGAIN", 0.001)
    return Box(await asyncio.to_thread(Desk, tmp_path, "d"))


async def test_posts_of_a_session_arrive_in_the_order_in_which_they_were_made(box: Box) -> None:
    for n in range(5):
        box.post("a1", f"post {n}")
    assert box.outbox.idle() == ["a1"]
    await box.outbox.send("a1")
    assert [text for _, text in box.client.texts] == [f"post {n}" for n in range(5)]
    assert box.desk.unsent() == []
    assert box.outbox.idle() == []


async def test_one_that_cannot_go_keeps_those_behind_it_and_no_other_session(box: Box) -> None:
    tasks = Tasks()
    box.client.hangs.clear()
    box.post("a1", "first")
    box.post("a1", "second")
    waiting = tasks.start(box.outbox.send("a1"))
    await asyncio.sleep(0)
    box.post("b2", "other")
    assert box.outbox.idle() == ["b2"]
    await box.outbox.send("a1")  # somebody sends it already
    box.client.hangs.set()
    await box.outbox.send("b2")
    await waiting
    assert box.client.texts.index(("a1", "first")) < box.client.texts.index(("a1", "second"))
    assert ("b2", "other") in box.client.texts


@pytest.mark.parametrize("failure", [ApiFailure(503, "later"), ApiFailure(429, "too many")])
async def test_a_refusal_for_now_is_tried_again(box: Box, failure: ApiFailure) -> None:
    box.client.refusal = failure
    box.post("a1", "x")
    tasks = Tasks()
    sending = tasks.start(box.outbox.send("a1"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert box.refused == []
    box.client.refusal = None
    await sending
    assert box.client.texts == [("a1", "x")]


async def test_a_refusal_for_good_gives_the_post_back_and_the_next_goes(box: Box) -> None:
    box.client.refusal = ApiFailure(410, "it has ended")
    box.post("a1", "x")
    await box.outbox.send("a1")
    assert box.refused == [("x", "it has ended")]
    assert box.desk.unsent() == []

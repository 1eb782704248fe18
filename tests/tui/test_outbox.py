import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daemon.client import ApiFailure
from daemon.protocol.api import Part
from tests.fakes import Tasks
from tests.tui.daemonfake import FakeClient, info
from tui.desk import Desk, Unsent
from tui.outbox import Outbox

PARTS = (Part("text/plain", b"x"),)
CLOCK = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)
FULL = ApiFailure(507, "the data folder cannot be written: No space left on device")


class Box:
    def __init__(self, desk: Desk) -> None:
        self.client = FakeClient()
        for id in ("a1", "b2"):
            self.client.add(info(id))
        self.desk = desk
        self.linked = asyncio.Event()
        self.linked.set()
        self.changed: list[str] = []
        self._told = asyncio.Event()
        self.returned: list[tuple[str, str]] = []
        self.outbox = self.made()

    def made(self) -> Outbox:
        return Outbox(self.client, self.desk, self.linked, self._tell, self._back, now=lambda: CLOCK)

    def _tell(self, session: str) -> None:
        self.changed.append(session)
        self._told.set()

    def _back(self, post: Unsent, said: str, bad: bool) -> None:
        self.returned.append((post.text, said))

    @property
    def hitches(self) -> list[str]:
        """What keeps each post that is not sent, in their order."""
        return [hitch.why if (hitch := self.outbox.hitch(post)) else "" for post in self.desk.unsent()]

    async def told(self) -> None:
        """Until `changed` is told of something new."""
        self._told.clear()
        async with asyncio.timeout(20):
            await self._told.wait()

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
    assert box.returned == []
    box.client.refusal = None
    await sending
    assert box.client.texts == [("a1", "x")]


async def test_a_refusal_for_good_gives_the_post_back_and_the_next_goes(box: Box) -> None:
    box.client.refusal = ApiFailure(410, "it has ended")
    box.post("a1", "x")
    await box.outbox.send("a1")
    assert box.returned == [("x", "not posted: it has ended")]
    assert box.desk.unsent() == []


async def test_what_keeps_a_post_is_known_until_it_is_taken(box: Box) -> None:
    box.client.refusal = FULL
    box.post("a1", "first")
    box.post("a1", "second")
    sending = Tasks().start(box.outbox.send("a1"))
    await box.told()
    assert box.hitches == [FULL.message, ""]
    [post, _] = box.desk.unsent()
    hitch = box.outbox.hitch(post)
    assert hitch is not None
    assert hitch.again - CLOCK == timedelta(seconds=0.001)
    box.client.refusal = ApiFailure(503, "it is starting")
    while box.hitches[0] != "it is starting":
        await box.told()
    box.client.refusal = None
    await sending
    assert box.client.texts == [("a1", "first"), ("a1", "second")]
    assert box.outbox.hitch(post) is None


async def test_what_kept_a_post_says_nothing_once_the_link_is_lost(box: Box) -> None:
    box.client.refusal = FULL
    box.post("a1", "x")
    sending = Tasks().start(box.outbox.send("a1"))
    await box.told()
    box.client.gone = "no daemon listens"
    while box.hitches != [""]:
        await box.told()
    box.client.gone, box.client.refusal = "", None
    await sending


async def test_a_post_that_is_not_taken_can_be_taken_back_at_once_and_the_next_goes(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.outbox.AGAIN", 3600.0)
    box.client.refusal = FULL
    box.post("a1", "first")
    sending = Tasks().start(box.outbox.send("a1"))
    await box.told()
    box.client.refusal = None
    assert box.outbox.take_back("a1")
    box.post("a1", "second")
    await sending
    assert box.returned == [("first", "taken back: it was not posted")]
    assert box.client.texts == [("a1", "second")]
    assert not box.outbox.take_back("a1")


async def test_the_newest_is_taken_back_first(box: Box) -> None:
    box.linked.clear()
    sending = Tasks().start(box.outbox.send("a1"))
    for text in ("first", "second", "third"):
        box.post("a1", text)
    assert box.outbox.take_back("a1")
    assert box.outbox.take_back("a1")
    box.linked.set()
    await sending
    await box.outbox.send("a1")
    assert [text for text, _ in box.returned] == ["third", "second"]
    assert box.client.texts == [("a1", "first")]


async def test_one_on_the_wire_comes_back_only_where_it_does_not_arrive(box: Box) -> None:
    tasks = Tasks()
    for refusal, returned in ((None, []), (FULL, ["x"])):
        box.client.hangs.clear()
        box.client.refusal = refusal
        box.post("a1", "x")
        sending = tasks.start(box.outbox.send("a1"))
        await asyncio.sleep(0)
        assert box.outbox.take_back("a1")
        assert not box.outbox.take_back("a1")  # it is wanted back already
        assert box.returned == []
        box.client.hangs.set()
        await sending
        assert [text for text, _ in box.returned] == returned
    assert box.client.texts == [("a1", "x")]
    assert box.desk.unsent() == []


@pytest.mark.parametrize("how", ["cut", "gateway", "earlier start"])
async def test_one_that_may_have_arrived_says_so_when_it_is_taken_back(
    box: Box, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.outbox.AGAIN", 3600.0)
    box.client.cut_posts = 1 if how == "cut" else 0
    box.client.refusal = ApiFailure(504, "the gateway has waited") if how == "gateway" else None
    box.post("a1", "x")
    tasks = Tasks()
    if how == "earlier start":
        box.linked.clear()
        box.outbox = box.made()
    sending = tasks.start(box.outbox.send("a1"))
    if how != "earlier start":
        await box.told()
    assert box.outbox.take_back("a1")
    box.linked.set()
    await sending
    [(text, said)] = box.returned
    assert text == "x"
    assert "it may have arrived before" in said

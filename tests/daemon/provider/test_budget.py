import asyncio
import threading
from typing import Any

import msgspec
import pytest

from daemon.chain import Media, Result, Text, Turn
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import Model, Provider, Query, Request, Wire
from daemon.provider.budget import KEPT, LEFT_OUT, MAX_BYTES, MAX_IMAGES
from daemon.provider.compiling import compiled
from daemon.provider.fitting import MAX_SIDE, heavy
from daemon.provider.models import TEXT_AND_IMAGES
from daemon.provider.openai_chat import OpenAIChat
from tests.daemon.provider.contexts import TOOL, assistant, call, context, picture, unmarked, user

MODEL = Model("model-x", input=TEXT_AND_IMAGES)
PNG = Media("image/png", picture())
MARKS = (b'{"type":"image",', b'{"type":"image_url",')


@pytest.fixture(params=[Anthropic(), OpenAIChat("chat", url="http://127.0.0.1:1")], ids=["messages", "chat"])
def provider(request: pytest.FixtureRequest) -> Provider:
    found: Provider = request.param
    return found


def seen(result: str, image: Media = PNG) -> Result:
    return Result(result, "run", (image, Text("[done]")), False)


def compile_(provider: Provider, turns: list[Turn], wire: Wire, *, judged: bool = True) -> bytes:
    request = provider.compile(Query(MODEL, context(*turns), [TOOL], {}, "s"), wire)
    assert not judged or provider.problems(request) == []
    return unmarked(request.body)


def shown(sent: bytes) -> int:
    return sum(map(sent.count, MARKS))


def test_the_oldest_of_too_many_images_give_way_to_a_note_and_many_at_once(provider: Provider) -> None:
    wire, turns, changes = Wire(), [user("go", PNG)], 0
    before = sent = b""
    for number in range(2 * MAX_IMAGES):
        turns += assistant(call(f"c{number}")), user(seen(f"c{number}"))
        sent = compile_(provider, turns, wire, judged=number % 20 == 19)  # to judge takes its time
        assert 0 < shown(sent) <= MAX_IMAGES
        assert shown(sent) + sent.count(LEFT_OUT.encode()) == number + 2
        changes += not sent.startswith(before)
        before = sent.removesuffix(b"]}")
    assert changes == 2, "what a provider has cached stays good for long"
    last = sent[sent.rindex(b"c198") :]
    assert shown(last) > 0, "the newest are the ones that stay"


def test_images_that_come_at_once_are_too_many_at_once(provider: Provider) -> None:
    sent = compile_(provider, [user("go", *[PNG] * (MAX_IMAGES + 1))], Wire())
    assert shown(sent) == KEPT


@pytest.mark.campaign
def test_a_request_that_is_too_large_loses_half_of_its_images(provider: Provider) -> None:
    image = Media("image/png", picture() + bytes(MAX_BYTES // 13))
    turns, wire = [user("go", *[image] * 20)], Wire()
    sent = compile_(provider, turns, wire)
    assert len(sent) < MAX_BYTES + 4096
    assert shown(sent) == 5, "half of a half"
    turns += assistant("x"), user("y" * MAX_BYTES)
    assert shown(compile_(provider, turns, wire, judged=False)) == 0, "words are never left out"


def test_another_model_or_a_summary_begins_the_count_anew(provider: Provider) -> None:
    wire, turns = Wire(), [user("go", *[PNG] * (MAX_IMAGES + 1)), assistant("x"), user("y")]
    compile_(provider, turns, wire)
    assert wire.left_out
    query = Query(MODEL, context(user("z", PNG), epoch=1), [TOOL], {}, "s")
    assert shown(provider.compile(query, wire).body) == 1
    assert not wire.left_out


# Off the loop.


class Watched:
    """A provider that notes the threads in which it was asked; the first time it waits where it is told to."""

    def __init__(self, inner: Provider) -> None:
        self.inner = inner
        self.threads: list[threading.Thread] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def compile(self, query: Query, wire: Wire) -> Request:
        self.threads.append(threading.current_thread())
        request = self.inner.compile(query, wire)
        if len(self.threads) == 1:
            self.go_on.wait()
        return request


WIDE = Media("image/png", picture(size=(MAX_SIDE + 9, 9)))


def query(*turns: Turn) -> Query:
    return Query(MODEL, context(*turns), [TOOL], {}, "s")


async def test_an_image_that_takes_long_is_written_in_a_thread_and_once(provider: Provider) -> None:
    watched, wire = Watched(provider), Wire()
    turns = [user("go"), assistant(call("a")), user(seen("a", WIDE)), assistant("x"), user("y")]
    request = await compiled(watched, query(*turns), wire)
    assert request == provider.compile(query(*turns), Wire())
    assert len(wire.turns) == 4
    await compiled(watched, query(*turns, assistant("z"), user("w")), wire)
    main = threading.main_thread()
    assert [thread is main for thread in watched.threads] == [False, True]


async def test_without_such_an_image_no_thread_is_needed(provider: Provider) -> None:
    watched = Watched(provider)
    await compiled(watched, query(user("go", PNG, Media("image/png", b"broken"))), Wire())
    assert watched.threads == [threading.main_thread()]


async def test_a_cancelled_build_leaves_the_kept_form_alone(provider: Provider) -> None:
    watched, wire = Watched(provider), Wire()
    watched.go_on.clear()
    turns = [user("go", WIDE), assistant("x"), user("y")]
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await compiled(watched, query(*turns), wire)
    finally:
        watched.go_on.set()
    assert wire.turns == []
    assert msgspec.json.decode((await compiled(watched, query(*turns), wire)).body)
    assert len(wire.turns) == 2


def test_what_takes_long_is_told_from_the_bytes() -> None:
    assert heavy(WIDE.data)
    assert heavy(PNG.data + bytes(2 << 20))
    assert not heavy(PNG.data)
    assert not heavy(b"broken")

"""A machine that asks the join listener how it stands, or leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh import keys, messages, sealed, standing
from mesh.join import SKEW, Joined, Reply
from mesh.messages import MessageError
from mesh.nodes import Facts
from tests.mesh.joining import Harness, harness, hub_keys, worker_keys


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path) as made:
        yield made


def ask(
    hub: Harness, number: int = 1, *, leave: bool = False, ahead: float = 0.0
) -> tuple[Reply, standing.Told | None, messages.Answer | None]:
    pair, public = worker_keys(number), hub.keys.join.public
    box, reply_key = standing.ask(pair, public, hub.clock() + ahead, leave)
    reply = hub.hub.standing(box, "198.51.100.7")
    if reply.status != 200:
        return reply, None, None
    return reply, *standing.told(reply.body, reply_key, box)


def test_a_member_is_told_what_a_join_would_tell_it_now(hub: Harness) -> None:
    joined = hub.join(hub.token())
    assert isinstance(joined, Joined)
    reply, told, answer = ask(hub)
    assert told == standing.Told(state="member", answer=messages.dump(joined.answer))
    assert (answer, reply.node) == (joined.answer, None)
    assert reply.stuck is not None
    assert reply.stuck.number == 2


def test_a_removed_machine_and_a_stranger_are_told_so(hub: Harness) -> None:
    assert isinstance(hub.join(hub.token()), Joined)
    assert hub.registry.remove(2)
    assert ask(hub)[1:] == (standing.Told(state="removed"), None)
    assert ask(hub, 7)[1:] == (standing.Told(state="unknown"), None)


def test_one_that_leaves_is_handed_on_to_be_removed_and_asking_alone_removes_nothing(hub: Harness) -> None:
    assert isinstance(hub.join(hub.token()), Joined)
    assert not ask(hub)[0].left
    reply, told, _ = ask(hub, leave=True)
    assert told == standing.Told(state="removed")
    assert reply.left
    assert reply.node is not None
    assert reply.node.name == "gpu1"
    assert hub.registry.remove(reply.node.number)
    assert not ask(hub, leave=True)[0].left


@pytest.mark.parametrize("ahead", [SKEW + 60, -SKEW - 60])
def test_a_clock_that_is_off_is_told(hub: Harness, ahead: float) -> None:
    reply, told, _ = ask(hub, ahead=ahead)
    assert told is None
    assert (reply.status, b"set the clock that is wrong" in reply.body) == (400, True)


def test_nobody_asks_or_leaves_for_another(hub: Harness) -> None:
    assert isinstance(hub.join(hub.token()), Joined)
    public = hub.keys.join.public
    mine, other = worker_keys(7), worker_keys(1)
    box, reply = standing.ask(mine, public, hub.clock(), True)
    plain = sealed.unseal(hub.keys.join, box, standing._QUESTION + keys.fingerprint(public))
    theirs = plain.replace(_base64(mine.public), _base64(other.public))
    assert theirs != plain
    forged = sealed.seal(public, theirs, standing._QUESTION + keys.fingerprint(public))
    answered = hub.hub.standing(forged, "198.51.100.7")
    assert (answered.status, answered.left) == (400, False)
    assert b"has not shown" in answered.body
    turned = plain.replace(b'"leave":true', b'"leave":false')  # what it says is in the proof
    assert turned != plain
    forged = sealed.seal(public, turned, standing._QUESTION + keys.fingerprint(public))
    assert hub.hub.standing(forged, "198.51.100.7").status == 400
    assert reply


def _base64(key: bytes) -> bytes:
    return keys.encode(key).encode()


def test_what_is_damaged_or_for_another_harness_is_refused_and_counted(hub: Harness) -> None:
    box, _ = standing.ask(worker_keys(1), hub_keys(2).join.public, hub.clock(), False)
    for body in (box, b"", b"x" * (standing.MAX_QUESTION + 1)):
        assert hub.hub.standing(body, "198.51.100.8").status == 400
    for _ in range(40):
        hub.hub.standing(b"", "198.51.100.8")
    assert hub.hub.standing(box, "198.51.100.8").status == 429
    assert ask(hub)[0].status == 200, "others are heard"


def test_an_answer_is_of_its_question_alone(hub: Harness) -> None:
    assert isinstance(hub.join(hub.token()), Joined)
    box, key = standing.ask(worker_keys(1), hub.keys.join.public, hub.clock(), False)
    reply = hub.hub.standing(box, "198.51.100.7")
    for body, reply_key, asked in (
        (reply.body + b"x", key, box),
        (reply.body, bytes(32), box),
        (reply.body, key, box + b"x"),
    ):
        with pytest.raises(MessageError, match="changed on the way"):
            standing.told(body, reply_key, asked)
    for plain in (b"{}", b'{"state":"other"}', b'{"state":"removed","v":2}'):
        with pytest.raises(MessageError):
            standing.told(sealed.seal_reply(key, plain, standing._telling(box)), key, box)


def test_a_machine_may_say_the_name_that_it_would_have(hub: Harness) -> None:
    facts = Facts("gpu1.example", "linux", "x86_64", "0.1.0", "Big One")
    text = hub.token(uses=3)
    names = []
    for number in (1, 2):
        joined = hub.join(text, number, facts)
        assert isinstance(joined, Joined)
        names.append(joined.answer.name)
    assert names == ["big-one", "big-one-2"]
    node = hub.registry.named("big-one")
    assert node is not None
    assert node.facts.hostname == "gpu1.example"

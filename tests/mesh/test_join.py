from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh import address, keys, limiter, messages, sealed, token
from mesh.address import Place
from mesh.join import SKEW, TABLE, Event, Failed, Get, Joined, Joining, Post, Reply, State
from mesh.limiter import Limiter
from mesh.messages import Answer, MessageError
from mesh.nodes import Facts
from mesh.token import Token
from tests.mesh.joining import FACTS, PLACE, Clock, Harness, harness, hub_keys, worker_keys

SPENT = (
    "this token joins no more machines: it was used, has expired or was revoked; `outrider token new` on the harness "
    "makes another"
)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path) as made:
        yield made


def test_a_machine_with_a_token_joins_and_is_told_all_that_it_needs(one: Harness) -> None:
    joined = one.join(one.token())
    (node,) = one.registry.nodes()
    network = address.prefix(one.keys.wireguard.public)
    assert joined == Joined(
        Answer(
            name="gpu1",
            address=address.address(network, 2),
            prefix=network,
            hub=one.keys.wireguard.public,
            preshared=node.preshared,
            endpoints=(Place("192.0.2.1", 51820),),
            control=4602,
            harness="hub",
            mtu=1420,
            keepalive=25,
        )
    )
    assert (node.key, node.facts) == (worker_keys(1).public, FACTS)
    assert [type(step) for step in one.seen] == [Get, Post]
    assert (one.seen[0].path, one.seen[1].path) == ("/join/key", "/join")


def test_the_reply_says_who_is_to_be_a_peer(one: Harness) -> None:
    _, step = one.post(one.token())
    assert one.respond(step).node == one.registry.node(2)


def test_what_is_sent_says_nothing_to_who_listens(one: Harness) -> None:
    text = one.token()
    joining, step = one.post(text)
    reply = one.respond(step)
    joining.feed(reply.status, reply.body)
    (node,) = one.registry.nodes()
    for secret in (token.decode(text).secret, b"gpu1", worker_keys(1).public, node.preshared):
        for said in (secret, keys.encode(secret).encode().rstrip(b"=")[:-1]):
            assert said not in step.body + reply.body


def test_an_answer_is_kept_as_it_came(one: Harness) -> None:
    joined = one.join(one.token())
    assert isinstance(joined, Joined)
    assert messages.load(messages.dump(joined.answer)) == joined.answer
    assert keys.encode(joined.answer.preshared) not in repr(joined)


# Who is not let in


def test_used_expired_revoked_and_unknown_tokens_get_one_same_answer(one: Harness) -> None:
    used, expired, revoked = one.token(), one.token(lifetime=60), one.token()
    one.join(used)
    one.clock.at += 60
    one.registry.revoke(3)
    unknown = token.encode(msgspec.structs.replace(token.decode(used), secret=bytes(16)))
    replies = {one.respond(one.post(text, 2)[1]) for text in (used, expired, revoked, unknown)}
    assert replies == {Reply(status=403, body=SPENT.encode())}
    assert one.join(unknown, 2) == Failed(f"the harness refused: {SPENT}", again=False)
    assert len(one.registry.nodes()) == 1


def test_a_stolen_token_joins_nothing_after_its_owner_did(one: Harness) -> None:
    text = one.token()
    assert isinstance(one.join(text, 1), Joined)
    assert isinstance(one.join(text, 2), Failed)
    assert [node.key for node in one.registry.nodes()] == [worker_keys(1).public]


def test_a_thief_with_a_token_gets_nothing_of_a_worker_whose_key_it_knows(one: Harness) -> None:
    text = one.token()
    one.join(text)
    (before,) = one.registry.nodes()
    other, secret = one.token(), token.decode(text).secret
    thief, victim, hub = worker_keys(2), worker_keys(1).public, one.keys.join.public
    for secret in (token.decode(text).secret, token.decode(other).secret):
        asked = messages.ask(secret, thief.private, victim, bytes(32), one.clock(), FACTS, hub)
        reply = one.hub.join(messages.seal_ask(asked, hub), "198.51.100.7")
        assert (reply.status, reply.node) == (400, None)
        assert b"has not shown that its WireGuard key is its own" in reply.body
    assert one.registry.nodes() == (before,)
    assert [grant.uses for grant in one.registry.grants()] == [0, 1]


@pytest.mark.parametrize("key", [bytes(32), hub_keys().wireguard.public], ids=["of low order", "the hub's"])
def test_a_key_that_no_worker_can_have_joins_nothing(one: Harness, key: bytes) -> None:
    secret, hub = token.decode(one.token()).secret, one.keys.join.public
    asked = messages.ask(secret, worker_keys(1).private, key, bytes(32), one.clock(), FACTS, hub)
    assert one.hub.join(messages.seal_ask(asked, hub), "198.51.100.7").status == 400
    assert one.registry.nodes() == ()


def test_a_removed_worker_that_keeps_its_key_is_refused_with_any_token(one: Harness) -> None:
    text = one.token(uses=5)
    one.join(text)
    one.registry.remove(2)
    for again in (text, one.token()):
        refused = one.join(again)
        assert isinstance(refused, Failed)
        assert "was removed from the mesh and its key is refused" in refused.reason
    assert isinstance(one.join(text, 2), Joined)


def test_a_replayed_join_is_refused_and_takes_nothing(one: Harness) -> None:
    _, step = one.post(one.token(uses=5))
    first = one.respond(step)
    assert first.status == 200
    replayed = one.respond(step, "203.0.113.9")
    assert (replayed.status, replayed.body) == (409, b"this request was answered before; join anew")
    one.clock.at += SKEW
    assert one.respond(step).status == 409
    one.clock.at += 2 * SKEW
    assert b"clock" in one.respond(step).body
    assert [grant.uses for grant in one.registry.grants()] == [4]


def test_a_replay_in_the_same_moment_joins_once(one: Harness) -> None:
    _, step = one.post(one.token(uses=9))
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(one.respond, [step] * 8))
    assert sorted(reply.status for reply in replies) == [200] + [409] * 7
    assert [grant.uses for grant in one.registry.grants()] == [8]


@pytest.mark.parametrize(
    ("ahead", "why"),
    [
        (SKEW + 1, "clock is 10 minutes ahead of the harness's, and may be 10 minutes: set the"),
        (-SKEW - 1, "clock is 10 minutes behind the harness's"),
        (-1.8e9, "clock is 20833 days behind"),  # a board without a battery begins in 1970
    ],
)
def test_a_clock_that_is_off_is_refused_with_the_reason(one: Harness, ahead: float, why: str) -> None:
    text = one.token()
    refused = one.carry(one.joining(text, ahead=ahead))
    assert isinstance(refused, Failed)
    assert why in refused.reason
    assert isinstance(one.carry(one.joining(text, ahead=ahead / abs(ahead) * SKEW)), Joined)


# Another harness, and what changes messages on the way


def test_nothing_is_sent_to_who_offers_another_key(one: Harness) -> None:
    joining = one.joining(one.token())
    joining.feed(200, hub_keys(2).join.public)
    ended = joining.next()
    assert isinstance(ended, Failed)
    assert "another harness than the token's answers there; nothing was sent to it" in ended.reason


@given(st.binary(max_size=1300), st.integers(100, 599))
def test_no_response_but_the_key_makes_a_machine_send_anything(body: bytes, status: int) -> None:
    trusted = keys.fingerprint(hub_keys().join.public)
    made = Token(places=(PLACE,), fingerprint=trusted, secret=bytes(16))
    joining = Joining(made, FACTS, worker_keys(1), Clock())
    joining.feed(status, body)
    assert isinstance(joining.next(), Failed)


def test_a_key_of_the_right_hash_that_is_none_ends_it() -> None:
    made = Token(places=(PLACE,), fingerprint=keys.fingerprint(b"\xff" * 1216), secret=bytes(16))
    joining = Joining(made, FACTS, worker_keys(1), Clock())
    joining.feed(200, b"\xff" * 1216)
    ended = joining.next()
    assert isinstance(ended, Failed)
    assert "this is not a join key" in ended.reason


def test_a_question_cut_or_changed_at_any_byte_joins_nothing(one: Harness) -> None:
    _, step = one.post(one.token())
    body = step.body
    wrong = [body[:end] for end in range(len(body))]
    wrong += [body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :] for at in range(len(body))]
    for number, box in enumerate(wrong):
        assert one.hub.join(box, f"10.{number >> 8}.{number & 255}.1").status == 400
    assert one.registry.nodes() == ()
    assert one.respond(step).status == 200


def test_an_answer_cut_or_changed_at_any_byte_is_no_membership(one: Harness) -> None:
    joining, step = one.post(one.token())
    reply = one.respond(step)
    body, reply_key, box = reply.body, joining._reply, joining._box  # each would need an attempt of its own
    wrong = [body[:end] for end in range(len(body))]
    wrong += [body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :] for at in range(len(body))]
    for answer in wrong:
        with pytest.raises(MessageError):
            messages.open_answer(answer, reply_key, box)
    joining.feed(200, body[:-1])
    ended = joining.next()
    assert isinstance(ended, Failed)
    assert "it was changed on the way" in ended.reason


def test_the_answer_to_another_question_is_none(one: Harness) -> None:
    text = one.token()
    first, asked = one.post(text)
    second, other = one.post(text)
    answer = one.respond(asked).body
    second.feed(200, answer)
    assert isinstance(second.next(), Failed)
    first.feed(200, answer)
    assert isinstance(first.next(), Joined)
    assert one.respond(other).status == 200


def test_an_answer_is_bound_to_the_very_box_that_it_answers() -> None:
    hub = hub_keys().wireguard.public
    network = address.prefix(hub)
    good = GOOD | {"hub": keys.encode(hub), "prefix": str(network), "address": str(network[2])}
    answer = messages.load(msgspec.json.encode(good))
    box = messages.seal_answer(answer, bytes(32), b"the box")
    assert messages.open_answer(box, bytes(32), b"the box") == answer
    with pytest.raises(MessageError, match="changed on the way"):
        messages.open_answer(box, bytes(32), b"another")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=3000))
def test_garbage_joins_nothing(one: Harness, body: bytes) -> None:
    assert one.hub.join(body, "198.51.100.7").status in (400, 429)
    assert one.registry.nodes() == ()


PLAIN = msgspec.to_builtins(
    messages.Ask(secret=bytes(16), key=bytes(32), reply=bytes(32), proof=bytes(32), time=1.0)
)


@pytest.mark.parametrize(
    "change",
    [
        {"secret": ""},
        {"key": "AAAA"},
        {"reply": "AA"},
        {"proof": 5},
        {"time": -1},
        {"time": 1e300},
        {"time": "now"},
        {"hostname": "x" * 256},
        {"v": 2},
        {"v": "1"},
        {"v": None},
    ],
)
def test_a_question_of_wrong_fields_is_not_understood(change: dict[str, object]) -> None:
    made = hub_keys().join
    context = b"outrider join ask 1\0" + keys.fingerprint(made.public)
    good = msgspec.json.encode(PLAIN | {"later": [1]})
    assert messages.open_ask(sealed.seal(made.public, good, context), made).time == 1.0
    bad = msgspec.json.encode(PLAIN | change)
    with pytest.raises(MessageError):
        messages.open_ask(sealed.seal(made.public, bad, context), made)


@pytest.mark.parametrize("plain", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 5000, b"{}"])
def test_a_question_that_is_no_message_is_not_understood(plain: bytes) -> None:
    made = hub_keys().join
    context = b"outrider join ask 1\0" + keys.fingerprint(made.public)
    with pytest.raises(MessageError):
        messages.open_ask(sealed.seal(made.public, plain, context), made)


def test_another_version_is_told_what_to_install() -> None:
    made = hub_keys().join
    context = b"outrider join ask 1\0" + keys.fingerprint(made.public)
    with pytest.raises(MessageError, match="version 7 there and 1 here: install the same Outrider on both"):
        messages.open_ask(sealed.seal(made.public, b'{"v":7}', context), made)


def test_a_body_that_is_too_long_is_refused_before_it_is_opened(one: Harness) -> None:
    reply = one.hub.join(bytes(messages.MAX_ASK + 1), "198.51.100.7")
    assert (reply.status, reply.body) == (400, b"a join request has at most 8192 bytes")


def test_what_a_worker_and_a_harness_say_fits_the_limits(one: Harness) -> None:
    name = ".".join(["a" * 60] * 4)
    one.offer = msgspec.structs.replace(
        one.offer, harness="h" * 255, endpoints=tuple(Place(name, 65535 - n) for n in range(16))
    )
    wide = Facts(*["\N{GRINNING FACE}" * 300] * 4)
    joining = one.joining(one.token(), facts=wide)
    joining.feed(200, one.hub.key())
    step = joining.next()
    assert isinstance(step, Post)
    assert len(step.body) <= messages.MAX_ASK
    reply = one.respond(step)
    assert reply.status == 200
    assert len(reply.body) <= step.limit


def test_what_a_machine_says_of_itself_moves_no_cursor(one: Harness) -> None:
    one.join(one.token(), facts=Facts("a\x1b[2Jb\nc", "\u202elinux", "\udcff", "0\x000"))
    (node,) = one.registry.nodes()
    assert node.facts == Facts("a[2Jbc", "linux", "?", "00")
    assert node.name == "a-2jbc"


GOOD = msgspec.json.decode(
    messages.dump(
        Answer(
            name="gpu1",
            address=IPv6Address("fd66:687a:adf8::2"),
            prefix=IPv6Network("fd66:687a:adf8::/48"),
            hub=bytes(32),
            preshared=bytes(32),
            endpoints=(),
            control=1,
            harness="",
        )
    )
)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"name": "a\n"},
        {"address": "fd66:687a:adf8::1"},
        {"address": "fd66:687a:adf9::2"},
        {"address": "192.0.2.1"},
        {"address": 7},
        {"prefix": "fd66:687a:adf8::/32"},
        {"prefix": "::/0"},
        {"hub": keys.encode(bytes(32))},
        {"hub": keys.encode(hub_keys(2).wireguard.public)},
        {"preshared": ""},
        {"control": 0},
        {"mtu": 100},
        {"endpoints": [{"host": "a b", "port": 1}]},
        {"endpoints": [{"host": "a", "port": 0}]},
        {"endpoints": [{"host": "a", "port": 1}] * 17},
        {"v": 2},
    ],
)
def test_an_answer_that_does_not_fit_together_is_refused(change: dict[str, object]) -> None:
    hub = hub_keys().wireguard.public
    network = address.prefix(hub)
    good = GOOD | {"hub": keys.encode(hub), "prefix": str(network), "address": str(network[2])}
    assert messages.load(msgspec.json.encode(good | {"later": 1})).name == "gpu1"
    with pytest.raises(MessageError):
        messages.load(msgspec.json.encode(good | change))


# Networks that lose things


def test_a_join_whose_answer_was_lost_is_answered_again_though_the_token_is_used_up(one: Harness) -> None:
    text = one.token()
    joining, step = one.post(text)
    assert one.respond(step).status == 200
    joining.lost("connection reset")
    ended = joining.next()
    assert ended == Failed("this machine could not join: 192.0.2.1:4601: connection reset", again=True)
    joined = one.join(text)
    assert isinstance(joined, Joined)
    (node,) = one.registry.nodes()
    assert (joined.answer.name, joined.answer.preshared) == ("gpu1", node.preshared)
    assert [grant.uses for grant in one.registry.grants()] == [0]


def test_the_endpoints_are_tried_in_order_until_one_lets_it_join(one: Harness) -> None:
    places = tuple(Place("192.0.2.1", 4600 + number) for number in range(1, 7))
    text, _ = one.hub.issue(places)
    joining = one.joining(text)
    tried: list[int] = []
    while not isinstance(step := joining.next(), Joined | Failed):
        tried.append(step.place.port)
        if step.place == places[0]:
            joining.lost("no route to host")
        elif step.place == places[1]:
            joining.feed(200, hub_keys(2).join.public)
        elif step.place == places[2]:
            joining.feed(404, b"<html>")
        elif step.place == places[3] and isinstance(step, Post):
            joining.feed(502, b"Bad\tGateway\x1b[2J")
        elif step.place == places[4] and isinstance(step, Post):
            one.respond(step)
            joining.lost("connection reset")
        else:
            reply = one.respond(step)
            joining.feed(reply.status, reply.body)
    assert isinstance(step, Joined)
    assert tried == [4601, 4602, 4603, 4604, 4604, 4605, 4605, 4606, 4606]


def test_a_harness_that_has_too_many_connections_is_not_taken_for_none(one: Harness) -> None:
    text, _ = one.hub.issue((PLACE,))
    joining = one.joining(text)
    joining.feed(503, b"")
    ended = joining.next()
    assert isinstance(ended, Failed)
    assert ended.reason == (
        "this machine could not join: 192.0.2.1:4601: it has too many connections just now, or too many of this address"
    )
    assert ended.again


def test_where_no_endpoint_is_left_each_says_why(one: Harness) -> None:
    text, _ = one.hub.issue((PLACE, Place("2001:db8::1", 4601), Place("hub.example", 80)))
    joining = one.joining(text)
    joining.lost("no route to host")
    joining.feed(301, b"moved")
    joining.feed(200, one.hub.key())
    joining.feed(502, b"Bad\tGateway\x1b[2J")
    ended = joining.next()
    assert isinstance(ended, Failed)
    assert ended.reason == (
        "this machine could not join: 192.0.2.1:4601: no route to host; [2001:db8::1]:4601: no harness lets "
        "machines join there (HTTP status 301); hub.example:80: Bad Gateway[2J (HTTP status 502)"
    )
    assert ended.again
    assert joining.next() is ended


def test_a_refusal_without_words_is_told_so(one: Harness) -> None:
    joining, _ = one.post(one.token())
    joining.feed(403, b"\x00\xff"[:1])
    assert joining.next() == Failed("the harness refused: it does not say why", again=False)


def test_every_state_that_is_not_the_end_knows_every_event_that_can_come() -> None:
    assert {state for state, _ in TABLE} == {State.FETCHING, State.ASKING}
    assert {event for state, event in TABLE if state is State.ASKING} == set(Event)
    assert {event for state, event in TABLE if state is State.FETCHING} == set(Event) - {Event.REFUSED}


def test_a_registry_that_fails_is_told_to_the_operator_and_not_to_who_asks(one: Harness) -> None:
    _, step = one.post(one.token())
    one.registry.close()
    reply = one.respond(step)
    assert reply.status == 503
    assert reply.body == b"the harness cannot let machines join now; its log says why"
    assert "mesh.db cannot be used" in reply.fault


# Who asks too often


def test_after_30_wrong_ones_in_a_minute_an_address_waits(one: Harness) -> None:
    text = one.token()
    for number in range(limiter.MOST_WRONG):
        one.tick.at = float(number)
        assert one.hub.join(b"x", "198.51.100.7").status == 400
    refused = one.join(text)
    assert refused == Failed(
        "the harness refused: too many requests from this address were refused; try again in 31 s", True, 31.0
    )
    assert isinstance(one.carry(one.joining(text), "198.51.100.8"), Joined)
    one.tick.at = 59.9
    assert one.hub.join(b"x", "198.51.100.7").retry_after == 1
    one.tick.at = 60.0
    assert isinstance(one.join(text), Joined)


def test_guessing_tokens_counts_and_joining_does_not(one: Harness) -> None:
    good = one.token(uses=100)
    for number in range(40):
        assert isinstance(one.join(good, number), Joined)
    guess = token.encode(msgspec.structs.replace(token.decode(good), secret=bytes(16)))
    statuses = [one.respond(one.post(guess)[1]).status for _ in range(31)]
    assert statuses == [403] * 30 + [429]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("unknown", "unknown", True),
    ],
)
def test_an_ipv6_party_is_its_network(first: str, second: str, same: bool) -> None:
    limits = Limiter(Clock(0.0))
    for _ in range(limiter.MOST_WRONG):
        limits.wrong(first)
    assert (limits.wait(second) > 0) == same


def test_many_addresses_take_bounded_room_and_the_latest_are_remembered() -> None:
    limits = Limiter(Clock(0.0))
    for _ in range(limiter.MOST_WRONG):
        limits.wrong("192.0.2.1")
    for number in range(limiter.MOST_ADDRESSES - 1):
        limits.wrong(f"10.0.{number >> 8}.{number & 255}")
    assert limits.wait("192.0.2.1") > 0
    limits.wrong("198.51.100.1")
    assert limits.wait("192.0.2.1") == 0


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from("ab")), max_size=150))
def test_no_address_is_heard_more_than_30_times_a_minute(tries: list[tuple[float, str]]) -> None:
    clock, heard = Clock(0.0), {"a": [0.0] * 0, "b": [0.0] * 0}
    limits = Limiter(clock)
    for step, peer in tries:
        clock.at += step / 10
        if not limits.wait(peer):
            limits.wrong(peer)
            heard[peer].append(clock.at)
    for times in heard.values():
        for early, late in zip(times, times[limiter.MOST_WRONG :], strict=False):
            assert late - early >= limiter.WINDOW - 1e-6


@given(st.binary(max_size=300))
def test_garbage_is_no_kept_answer(data: bytes) -> None:
    with suppress(MessageError):
        messages.load(data)

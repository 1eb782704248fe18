import asyncio
import base64
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.api.gate import MOST, Gate, Refused
from daemon.api.keys import LENT, Keys, fresh
from daemon.harness.errors import Conflict, Invalid, NoSpace, NotFound
from daemon.ownfile import OwnFileError
from daemon.protocol import api
from tests.daemon.api.conftest import Http
from tests.daemon.api.fakes import FakeHarness, serve
from tests.fakes import FakeClock

NEVER = "ork_" + "a" * 32
ANY: list[tuple[api.Role, str]] = [("viewer", "v"), ("operator", "o"), ("admin", "a")]


def now() -> datetime:
    return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def keys(path: Path) -> Keys:
    return Keys(path.with_name("keys.toml"), now)


class Tcp:
    """The API over TCP, asked with or without a key."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def __call__(self, method: str, url: str, status: int = 200, key: str = "", **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with aiohttp.ClientSession(f"http://{self.address}", headers=headers) as session:
            return await Http(session)(method, url, status, **more)


@asynccontextmanager
async def over_tcp(harness: FakeHarness, keys: Keys, clock: FakeClock | None = None) -> AsyncIterator[Tcp]:
    gate = Gate(keys, (clock or FakeClock()).time)
    async with serve(harness, keys=keys, gate=gate, tcp=["127.0.0.1:0"]) as served:
        yield Tcp(served.tcp[0])


async def test_a_key_has_160_random_bits_and_the_file_has_its_hash_alone(keys: Keys, path: Path) -> None:
    made = await keys.add(api.NewKey("laptop", "operator"))
    assert made == api.KeyMade("laptop", "operator", "2026-01-02T03:04:05Z", made.key)
    assert len(base64.b32decode(made.key.removeprefix("ork_").upper())) * 8 == 160
    file = path.with_name("keys.toml")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made.key[4:] not in file.read_text()
    again = await asyncio.to_thread(Keys, file)
    assert again.find(made.key) == api.KeyInfo("laptop", "operator", made.created)
    assert again.list() == (api.KeyInfo("laptop", "operator", made.created),)
    assert again.find(made.key[:-1]) is None
    assert again.find("ork_é\udcff") is None
    assert [file.name for file in path.parent.iterdir()] == ["keys.toml"]


async def test_a_name_stands_once_and_a_removed_key_is_gone(keys: Keys, path: Path) -> None:
    first = await keys.add(api.NewKey("a", "viewer"))
    with pytest.raises(Conflict, match="name: there is a key a already"):
        await keys.add(api.NewKey("a", "admin"))
    await keys.remove("a")
    assert keys.find(first.key) is None
    with pytest.raises(NotFound, match="there is no key a"):
        await keys.remove("a")
    second = await keys.add(api.NewKey("a", "admin"))
    assert second.key != first.key
    again = await asyncio.to_thread(Keys, path.with_name("keys.toml"))
    assert again.find(second.key) is not None


async def test_many_keys_made_at_once_are_all_kept(keys: Keys, path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keys.add(api.NewKey(f"k{n}", "viewer"))) for n in range(20)]
    again = await asyncio.to_thread(Keys, path.with_name("keys.toml"))
    assert all(again.find(task.result().key) for task in tasks)


async def test_what_cannot_be_written_changes_nothing(path: Path) -> None:
    keys = Keys(path.parent / "gone" / "keys.toml")
    with pytest.raises(NoSpace, match=r"nothing was changed: .*keys.toml cannot be written: No such file"):
        await keys.add(api.NewKey("a", "viewer"))
    assert keys.list() == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[keys", "not valid TOML"),
        (f"x = {'[' * 5000}", "not valid TOML"),
        ('[keys.a]\nrole = "root"\nsha256 = "00"\n', "role"),
        ('[keys.a]\nrole = "admin"\nsha256 = "00"\n', "sha256"),
        ('[keys."a b"]\nrole = "admin"\n', "keys"),
        ("[others]\n", "others"),
    ],
)
def test_a_file_of_keys_that_is_not_right_is_refused_by_name(path: Path, text: str, words: str) -> None:
    file = path.with_name("keys.toml")
    file.write_text(text)
    with pytest.raises(OwnFileError, match=f"keys.toml: .*{words}"):
        Keys(file)


async def test_over_tcp_all_but_liveness_needs_a_key(harness: FakeHarness, keys: Keys) -> None:
    async with over_tcp(harness, keys) as ask:
        await ask("GET", "/healthz")
        await ask("GET", "/readyz")
        for method, url in [
            ("GET", "/"),
            ("POST", "/sessions"),
            ("GET", "/nowhere"),
            ("DELETE", "/healthz/"),
        ]:
            assert "a key is needed" in await ask(method, url, 401)
        assert "not one of this daemon's" in await ask("GET", "/", 401, NEVER)
        made = await keys.add(api.NewKey("a", "admin"))
        assert await ask("GET", "/", 200, made.key) == {"version": "1", "protocol": api.VERSION}
        async with aiohttp.ClientSession(f"http://{ask.address}") as session:
            for header in ["", "Bearer", "Bearer ", f"Basic {made.key}", made.key]:
                async with session.get("/", headers={"Authorization": header}) as answer:
                    assert answer.status == 401
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
            async with session.get("/", headers={"Authorization": f"bearer  {made.key} "}) as answer:
                assert answer.status == 200
    assert harness.created == []


async def test_a_role_may_what_those_before_it_may(harness: FakeHarness, keys: Keys) -> None:
    id = harness.session()
    harness.known_workers = [api.WorkerInfo("gpu", "gone")]
    asked: list[tuple[api.Role, str, str, dict[str, Any] | None, int]] = [
        ("viewer", "GET", "/sessions", {}, 200),
        ("viewer", "GET", f"/sessions/{id}/records?limit=1", None, 200),
        ("viewer", "GET", f"/sessions/{id}/check", None, 200),
        ("viewer", "GET", "/metrics", None, 200),
        ("operator", "POST", f"/sessions/{id}/retry", {}, 200),
        ("operator", "POST", f"/sessions/{id}/end?via=me", {}, 204),
        ("operator", "PUT", f"/sessions/{id}/workers?via=me", {"json": []}, 200),
        ("operator", "PATCH", f"/sessions/{id}/config?via=me", {"json": {}}, 200),
        ("operator", "POST", "/workers/gpu/cordon", {}, 204),
        ("admin", "GET", "/keys", {}, 200),
        ("admin", "POST", "/keys", {"json": {"name": "x", "role": "viewer"}}, 201),
        ("admin", "DELETE", "/keys/x", {}, 204),
        ("admin", "PUT", "/providers/p", {"json": {"key": "k"}}, 200),
        ("operator", "POST", "/providers/rehearsal/test", {"json": {}}, 200),
        ("admin", "POST", "/scan", {"json": {}}, 200),
    ]
    secret = {role: (await keys.add(api.NewKey(name, role))).key for role, name in ANY}
    async with over_tcp(harness, keys) as ask:
        for least, method, url, more, status in asked:
            allowed = False
            for role, name in ANY:
                allowed = allowed or role == least
                if not allowed:
                    said = await ask(method, url, 403, secret[role])
                    assert said == f"the key {name} is {role}'s; this takes {least}'s"
                elif role == least and more is not None:
                    await ask(method, url, status, secret[role], **more)
    assert [info.name for info in keys.list()] == ["a", "o", "v"]


async def test_thirty_refused_keys_a_minute_are_told_apart_from_none(
    harness: FakeHarness, keys: Keys
) -> None:
    clock = FakeClock()
    right = (await keys.add(api.NewKey("a", "viewer"))).key
    async with over_tcp(harness, keys, clock) as ask:
        for _ in range(MOST):
            await ask("GET", "/", 401, NEVER)
            clock.advance(1)
        async with aiohttp.ClientSession(f"http://{ask.address}") as session:
            for _ in range(2):
                async with session.get("/", headers={"Authorization": f"Bearer {NEVER}"}) as answer:
                    assert (answer.status, answer.headers["Retry-After"]) == (429, "30")
        await ask("GET", "/", 401)  # without a key nothing is guessed
        await ask("GET", "/", 200, right)
        clock.advance(30)
        await ask("GET", "/", 401, NEVER)
        assert "were refused; wait 1 s" in await ask("GET", "/", 429, NEVER)


def test_refused_keys_are_counted_by_address_and_by_an_ipv6_network() -> None:
    clock = FakeClock()
    refused = Refused(clock.time)
    for n in range(MOST):
        assert refused.add(f"2001:db8::{n:x}") == 0
        assert refused.add("192.0.2.1") == 0
    assert refused.add("2001:db8::ffff%eth0") == 60
    assert refused.add("2001:db8:0:1::1") == 0
    assert refused.add("192.0.2.1") == 60
    assert refused.add("::ffff:192.0.2.1") == 0
    assert refused.add("") == 0
    for n in range(20_000):
        refused.add(f"10.0.{n // 256}.{n % 256}")
    assert len(refused._times) == 10_000


async def test_keys_are_made_listed_and_revoked_over_the_api(http: Http) -> None:
    assert await http("GET", "/keys") == []
    for body, words in [
        (
            {"name": "a b", "role": "viewer"},
            "name: expected a name of up to 63 letters, digits, dots, - and _",
        ),
        ({"name": "a", "role": "root"}, "role: 'root' is none; there are viewer, operator, admin"),
        ({"name": "a"}, "role: is missing"),
        ({"name": "a", "role": "viewer", "ttl": 3}, "ttl: there is no such field; known are name, role"),
    ]:
        assert words in await http("POST", "/keys", 422, json=body)
    assert "there is no key" in await http("DELETE", "/keys/a", 404)
    assert "there is no key 'a/b'" in await http("DELETE", "/keys/a%2Fb", 404)


async def test_a_made_key_is_shown_once(harness: FakeHarness, keys: Keys, path: Path) -> None:
    async with serve(harness, keys=keys, socket=path), Http.to(path) as http:
        made = await http("POST", "/keys", 201, json={"name": "a", "role": "viewer"})
        assert set(made) == {"name", "role", "created", "key"}
        assert "there is a key a already" in await http(
            "POST", "/keys", 409, json={"name": "a", "role": "admin"}
        )
        assert await http("GET", "/keys") == [
            {"name": "a", "role": "viewer", "created": "2026-01-02T03:04:05Z"}
        ]
        async with http.session.post("/keys", json={"name": "b", "role": "viewer"}) as answer:
            assert answer.headers["Location"] == "/keys/b"
            assert answer.headers["Cache-Control"] == "no-store"


async def test_a_revoked_key_is_refused_at_once_and_what_it_has_open_ends(
    harness: FakeHarness, keys: Keys
) -> None:
    id = harness.session()
    kept, lost = [(await keys.add(api.NewKey(name, "admin"))).key for name in ("kept", "lost")]
    waiting = asyncio.Event()
    wait = harness.logs[id].wait

    async def told(after: int) -> None:
        waiting.set()
        await wait(after)

    harness.logs[id].wait = told  # type: ignore[method-assign]
    async with over_tcp(harness, keys) as ask:
        base = f"http://{ask.address}"
        async with (
            aiohttp.ClientSession(base, headers={"Authorization": f"Bearer {lost}"}) as theirs,
            aiohttp.ClientSession(base, headers={"Authorization": f"Bearer {kept}"}) as ours,
            theirs.get(f"/sessions/{id}/events?after=2") as records,
            theirs.get("/events") as all,
            ours.get("/events") as others,
        ):
            await all.content.readuntil(b"event: state\n")
            poll = asyncio.ensure_future(theirs.get(f"/sessions/{id}/records?after=2&wait=300"))  # noqa: TID251 - awaited below
            await waiting.wait()
            await ask("DELETE", "/keys/lost", 204, kept)
            assert b"event: record" not in await records.read()
            await all.read()
            async with await poll as answer:
                assert (answer.status, await answer.read()) == (200, b"")
            assert "revoked" in await ask("GET", "/", 401, lost)
            harness.changed.put(id)
            await others.content.readuntil(b"event: session\n")
        again = (await keys.add(api.NewKey("lost", "viewer"))).key
        assert await ask("GET", "/", 200, again)


async def test_no_key_is_made_of_the_name_of_the_one_that_is_lent(keys: Keys) -> None:
    with pytest.raises(Invalid, match="name: serve is what the key of an `outrider serve` is called"):
        await keys.add(api.NewKey(LENT, "viewer"))
    assert keys.list() == ()


@pytest.mark.parametrize("first", ["lent", "kept"])
async def test_a_lent_key_and_one_of_its_name_are_never_taken_for_each_other(
    harness: FakeHarness, keys: Keys, path: Path, first: str
) -> None:
    file, lent = path.with_name("keys.toml"), fresh()
    kept = (await keys.add(api.NewKey("old", "viewer"))).key
    owner = (await keys.add(api.NewKey("owner", "admin"))).key
    text = await asyncio.to_thread(file.read_text)
    await asyncio.to_thread(
        file.write_text, text.replace("keys.old", f"keys.{LENT}")
    )  # when it was not taken
    both = await asyncio.to_thread(Keys, file, lent=lent)
    id = harness.session()
    async with over_tcp(harness, both) as ask:
        await ask("GET", "/", 200, lent if first == "lent" else kept)
        for _ in range(2):
            await ask("POST", f"/sessions/{id}/retry", 403, kept)
            await ask("POST", f"/sessions/{id}/retry", 200, lent)
        headers = {"Authorization": f"Bearer {lent}"}
        async with (
            aiohttp.ClientSession(f"http://{ask.address}", headers=headers) as theirs,
            theirs.get("/events") as events,
        ):
            await events.content.readuntil(b"event: state\n")
            await ask("DELETE", f"/keys/{LENT}", 204, owner)
            await ask("GET", "/", 401, kept)
            await ask("GET", "/", 200, lent)
            harness.changed.put(id)
            await events.content.readuntil(b"event: session\n")

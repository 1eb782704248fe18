"""The routes of the mesh, over a fake one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemon.api.keys import Keys
from daemon.client import ApiFailure, Client
from daemon.harness.errors import Conflict, Invalid, NoSpace
from daemon.protocol import api
from tests.daemon.api.conftest import Http
from tests.daemon.api.fakes import TIME, FakeHarness, FakeMesh, serve


@pytest.fixture
def mesh() -> FakeMesh:
    return FakeMesh()


@pytest.fixture
async def http(harness: FakeHarness, mesh: FakeMesh, path: Path) -> AsyncIterator[Http]:
    async with serve(harness, mesh=mesh, socket=path, finish=5), Http.to(path) as http:
        yield http


async def test_the_mesh_says_how_it_stands(http: Http, mesh: FakeMesh) -> None:
    assert await http("GET", "/mesh") == {"state": "idle", "name": "hub"}
    mesh.info = api.MeshInfo(
        state="failing", name="hub", why="the port is taken", relay=api.RelayCounts(1, 2, 3, 4, 5, 6, 7, 8, 9)
    )
    found = await http("GET", "/mesh")
    assert (found["state"], found["why"], found["relay"]["dropped"]) == ("failing", "the port is taken", 9)


async def test_a_token_is_shown_once(http: Http, mesh: FakeMesh) -> None:
    body = {"name": "rack 7", "uses": 3, "expires": 3600, "ephemeral": True}
    async with http.session.post("/tokens", json=body) as answer:
        assert (answer.status, answer.headers["Location"]) == (201, "/tokens/1")
        assert answer.headers["Cache-Control"] == "no-store"
        made = await answer.json()
    assert (made["token"], made["line"]) == ("orj_x", "echo orj_x | sh")
    assert mesh.made == [api.NewToken("rack 7", 3, 3600, True)]
    (listed,) = await http("GET", "/tokens")
    assert listed == {
        "id": 1,
        "name": "rack 7",
        "state": "good",
        "uses": 3,
        "created": TIME,
        "expires": TIME,
        "ephemeral": True,
        "joined": [],
    }


async def test_a_token_has_one_use_and_a_day_unless_told(http: Http, mesh: FakeMesh) -> None:
    await http("POST", "/tokens", 201, json={})
    assert mesh.made == [api.NewToken("", 1, 86400, False)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"uses": 0}, "uses: expected a whole number of at least 1"),
        ({"uses": 1_000_001}, "uses: expected a whole number of at most 1000000"),
        ({"uses": "3"}, "uses: expected a whole number, not text"),
        ({"expires": 0}, "expires: expected a number of over 0"),
        ({"expires": 1e12}, "expires: expected a number of at most 315360000"),
        ({"name": "x" * 201}, "name: expected text of at most 200 characters"),
        ({"lifetime": 1}, "lifetime: there is no such field; known are name, uses, expires, ephemeral"),
    ],
)
async def test_a_token_that_cannot_be_is_refused_by_its_field(
    http: Http, mesh: FakeMesh, body: dict[str, object], words: str
) -> None:
    assert words in await http("POST", "/tokens", 422, json=body)
    assert mesh.made == []


async def test_where_the_mesh_is_not_up_a_token_says_why(http: Http, mesh: FakeMesh) -> None:
    for failure, status in [
        (Conflict("the mesh is not up: no back end"), 409),
        (Invalid("name: at most 200 printable characters"), 422),
        (NoSpace("nothing was changed: mesh.db is damaged"), 507),
    ]:
        mesh.failure = failure
        assert await http("POST", "/tokens", status, json={}) == str(failure)
    assert "mesh.db" in await http("GET", "/tokens", 507)
    assert "mesh.db" in await http("DELETE", "/tokens/1", 507)
    assert "mesh.db" in await http("DELETE", "/workers/gpu-1", 507)


async def test_a_token_is_revoked_once_or_again_and_one_that_is_not_there_is_404(
    http: Http, mesh: FakeMesh
) -> None:
    await http("POST", "/tokens", 201, json={})
    for _ in range(2):
        assert await http("DELETE", "/tokens/1", 204) is None
    assert (await http("GET", "/tokens"))[0]["state"] == "revoked"
    for id in ("2", "x", "-1", "1.5", "9" * 20):
        assert "there is no token" in await http("DELETE", f"/tokens/{id}", 404)
    assert "takes DELETE, not GET" in await http("GET", "/tokens/1", 405)


async def test_a_worker_is_removed_and_then_is_none(http: Http, mesh: FakeMesh) -> None:
    mesh.joined = {"gpu-1"}
    assert await http("DELETE", "/workers/gpu-1", 204) is None
    assert await http("DELETE", "/workers/gpu-1", 404) == "there is no worker gpu-1"
    assert "there is no worker" in await http("DELETE", "/workers/%F0%9F%A4%96", 404)
    mesh.failure = Conflict("local is the worker that this daemon keeps by itself")
    assert "keeps by itself" in await http("DELETE", "/workers/local", 409)


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", True), ("admin", True)])
async def test_who_may_only_look_sees_the_mesh_and_changes_nothing(
    harness: FakeHarness, mesh: FakeMesh, tmp_path: Path, role: api.Role, may: bool
) -> None:
    keys = Keys(tmp_path / "keys.toml")
    secret = (await keys.add(api.NewKey("k", role))).key
    mesh.joined = {"gpu-1"}
    async with (
        serve(harness, mesh=mesh, keys=keys, tcp=["127.0.0.1:0"]) as served,
        Client(f"http://{served.tcp[0]}", secret) as client,
    ):
        assert (await client.mesh()).name == "hub"
        asked = [
            client.tokens(),
            client.make_token(api.NewToken()),
            client.revoke_token(1),
            client.remove_worker("gpu-1"),
        ]
        for one in asked:
            if may:
                await one
            else:
                with pytest.raises(ApiFailure) as refused:
                    await one
                assert refused.value.status == 403
    assert len(mesh.made) == int(may)


async def test_a_worker_of_the_mesh_is_shown_with_its_place_in_it(http: Http, harness: FakeHarness) -> None:
    at = api.Membership(
        "fd00::2", TIME, 3, ephemeral=True, path="relay", endpoint="198.51.100.7", handshake=TIME, rx=1, tx=2
    )
    harness.known_workers = [api.WorkerInfo("gpu-1", "gone", mesh=at), api.WorkerInfo("local", "connected")]
    found = await http("GET", "/workers")
    assert found[0]["mesh"] == {
        "address": "fd00::2",
        "joined": TIME,
        "token": 3,
        "ephemeral": True,
        "path": "relay",
        "endpoint": "198.51.100.7",
        "handshake": TIME,
        "rx": 1,
        "tx": 2,
    }
    assert "mesh" not in found[1]

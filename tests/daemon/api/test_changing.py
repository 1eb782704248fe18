import pytest

from daemon.protocol import api
from daemon.protocol.records import WorkerRef
from tests.daemon.api.conftest import Http
from tests.daemon.api.fakes import FakeHarness

NOBODY = "f" * 16


async def test_end_needs_a_name_and_ends_once(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    assert "via" in await http("POST", f"/sessions/{id}/end", 400)
    assert await http("POST", f"/sessions/{id}/end?via=me", 204) is None
    assert harness.seen == [("end", id, "me")]
    assert "has ended" in await http("POST", f"/sessions/{id}/end?via=me", 410)


async def test_workers_are_replaced_as_a_list(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    url = f"/sessions/{id}/workers?via=me"
    assert await http("PUT", url, json=[{"name": "a"}, {"name": "b", "cwd": "/srv"}]) == {"n": 3}
    assert harness.workers_of == (WorkerRef("a"), WorkerRef("b", "/srv"))
    assert await http("PUT", url, json=[]) == {"n": 4}
    assert harness.logs[id].stored[-1].header.via == "me"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'[{"cwd": "a"}]', 422, "[0].name: is missing"),
        (b'[{"name": "a", "cw": 1}]', 422, "[0].cw: there is no such field"),
        (b'[{"name": ""}]', 422, "[0].name: "),
        (b'{"name": "a"}', 422, "body: expected a list, not an object"),
        (b"[", 400, "not JSON"),
        (b"", 400, "empty"),
    ],
)
async def test_workers_that_are_not_right_are_refused_by_name(
    http: Http, harness: FakeHarness, body: bytes, status: int, words: str
) -> None:
    url = f"/sessions/{harness.session()}/workers?via=me"
    json = {"Content-Type": "application/json"}
    assert words in await http("PUT", url, status, data=body, headers=json)


async def test_a_config_is_patched_as_json_or_merge_patch(http: Http, harness: FakeHarness) -> None:
    url = f"/sessions/{harness.session()}/config?via=me"
    assert await http("PATCH", url, json={"context": 9, "params": {"a": None}}) == {"n": 3}
    merge = {"Content-Type": "application/merge-patch+json"}
    assert await http("PATCH", url, data=b'{"model": null}', headers=merge) == {"n": 4}
    assert harness.patches == [api.ConfigPatch(context=9, params={"a": None}), api.ConfigPatch(model=None)]
    for body, words in [
        (
            {"workers": []},
            "workers: there is no such field; known are model, params, tools, input, context, limits",
        ),
        ({"limits": {"step": 1}}, "limits.step: there is no such field"),
        ({"context": "9"}, "context: expected a whole number or null, not text"),
    ]:
        assert words in await http("PATCH", url, 422, json=body)
    assert "send application/merge-patch+json" in await http(
        "PATCH", url, 415, data=b"{}", headers={"Content-Type": "text/plain"}
    )


async def test_a_change_of_a_session_that_is_not_there_is_404(http: Http) -> None:
    for method, path in [("PUT", "workers"), ("PATCH", "config")]:
        assert "there is no session" in await http(
            method, f"/sessions/{NOBODY}/{path}?via=me", 404, data=b"{"
        )


@pytest.mark.parametrize("what", ["retry", "stop?via=me", "end?via=me"])
async def test_a_body_of_which_nothing_comes_is_refused(http: Http, harness: FakeHarness, what: str) -> None:
    id = harness.session()
    harness.stepping.add(id)
    for body in ({"json": {"model": "x"}}, {"data": b"x" * 100_000}):
        assert "the body: none is taken here" in await http("POST", f"/sessions/{id}/{what}", 400, **body)
    async with http.session.post(f"/sessions/{id}/{what}", json={}) as answer:
        assert answer.status in (200, 204)

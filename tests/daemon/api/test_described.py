"""What the daemon says of itself: its metrics and its schema."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from prometheus_client.parser import text_string_to_metric_families

from daemon.harness.counts import Counts
from daemon.protocol import agentserver, api, records
from daemon.protocol.records import Record, Status, Usage, draft
from tests.daemon.api.conftest import Http
from tests.daemon.api.fakes import TIME, FakeHarness, FakeMesh, serve


async def scraped(http: Http) -> dict[tuple[str, str], float]:
    """The samples by name and the value of their one label."""
    async with http.session.get("/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await answer.text()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            found[sample.name, "".join(sample.labels.values())] = sample.value
    return found


async def test_metrics_count_what_happened(harness: FakeHarness, path: Path) -> None:
    counts = Counts()
    counts.step("anthropic", Usage(1, 20, 300, 4000))
    counts.tries["anthropic"] += 2
    counts.retries["anthropic"] += 1
    counts.failures["anthropic", "auth"] += 1
    counts.calls[True] += 1
    counts.posts += 7
    line, data = records.encode(Record(draft("text", "hello").header, b"hello"))
    counts.appended([Record(draft("text", "hello").header, b"hello", line)])
    near = api.Membership("fd00::2", TIME, 1, path="direct", rx=10, tx=4)
    far = api.Membership("fd00::3", TIME, 1, path="relay", rx=5)
    harness.known_workers = [
        *(api.WorkerInfo(name, "gone") for name in "ab"),
        *(api.WorkerInfo(name, "connected", mesh=at) for name, at in (("c", near), ("d", far))),
    ]
    mesh = FakeMesh()
    mesh.info = api.MeshInfo("up", "hub", relay=api.RelayCounts(1, 2, 3, 4, 5, 6, 7, 8, 9))
    harness.session()
    harness.stepping = {harness.session()}
    async with (
        serve(harness, version="1.2.3", socket=path, counts=counts, mesh=mesh),
        Http.to(path) as http,
    ):
        await http("GET", "/nowhere", 404)
        async with http.session.get("/events") as watch:
            await watch.content.readuntil(b"\n\n")
            found = await scraped(http)
    assert {key: value for key, value in found.items() if value} == {
        ("outrider_info", "1.2.3"): 1,
        ("outrider_sessions", "closed"): 1,
        ("outrider_sessions", "stepping"): 1,
        ("outrider_workers", "gone"): 2,
        ("outrider_workers", "connected"): 2,
        ("outrider_mesh", "up"): 1,
        ("outrider_mesh_workers", "direct"): 1,
        ("outrider_mesh_workers", "relay"): 1,
        ("outrider_mesh_bytes", "in"): 15,
        ("outrider_mesh_bytes", "out"): 4,
        ("outrider_relay_connections", ""): 1,
        ("outrider_relay_opened_total", ""): 2,
        ("outrider_relay_refused_total", ""): 3,
        ("outrider_relay_hostile_total", ""): 4,
        ("outrider_relay_packets_total", "in"): 5,
        ("outrider_relay_bytes_total", "in"): 6,
        ("outrider_relay_packets_total", "out"): 7,
        ("outrider_relay_bytes_total", "out"): 8,
        ("outrider_relay_dropped_total", ""): 9,
        ("outrider_event_readers", "daemon"): 1,
        ("outrider_steps_total", "anthropic"): 1,
        ("outrider_provider_tries_total", "anthropic"): 2,
        ("outrider_provider_retries_total", "anthropic"): 1,
        ("outrider_step_failures_total", "authanthropic"): 1,
        ("outrider_prompt_tokens_total", "anthropic"): 4301,
        ("outrider_output_tokens_total", "anthropic"): 20,
        ("outrider_calls_total", "true"): 1,
        ("outrider_http_answers_total", "404"): 1,
        ("outrider_posts_total", ""): 7,
        ("outrider_records_appended_total", ""): 1,
        ("outrider_appended_bytes_total", ""): len(data),
    }
    assert ("outrider_sessions", "damaged") in found


async def test_each_answer_is_counted_by_its_status(harness: FakeHarness, path: Path) -> None:
    counts = Counts()
    async with serve(harness, socket=path, counts=counts), Http.to(path) as http:
        await http("GET", "/sessions")
        await http("POST", "/sessions", 201, json={})
        await http("POST", "/sessions", 422, json={"a": 1})
        harness.failure = RuntimeError("why")
        await http("POST", "/sessions", 500, json={})
    assert counts.answers == {200: 1, 201: 1, 422: 1, 500: 1}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


async def test_the_schema_describes_every_route_and_nothing_else(http: Http) -> None:
    document = await http("GET", "/openapi.json")
    assert (document["openapi"], document["info"]["version"]) == ("3.1.0", "1.2.3")
    for path, methods in document["paths"].items():
        async with http.session.request("TRACE", re.sub(r"\{\w+\}", "0" * 16, path)) as answer:
            assert answer.status == 405
            served = set(answer.headers["Allow"].split(", ")) - {"HEAD"}
            assert served == {method.upper() for method in methods}
    constants = [*vars(api).items(), *vars(agentserver).items()]
    named = [value for name, value in constants if name.isupper() and isinstance(value, str)]
    served_paths = {value for value in named if value.startswith("/")}
    assert set(document["paths"]) == {"/", *served_paths}


async def test_the_schema_is_whole(http: Http) -> None:
    document = await http("GET", "/openapi.json")
    for reference in references(document):
        place = document
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            assert one["summary"].endswith(".")
            in_path = {part["name"] for part in one["parameters"] if part["in"] == "path"}
            assert in_path == set(re.findall(r"\{(\w+)\}", path))
            statuses = set(map(int, one["responses"]))
            assert ({401, 403, 429} <= statuses) == (path not in (api.HEALTHZ, api.READYZ))
            assert ({400, 413, 415} <= statuses) == (
                method in ("post", "put", "patch") and "requestBody" in one
            )


async def test_the_schema_has_the_types_that_are_read_and_written(http: Http) -> None:
    document = await http("GET", "/openapi.json")
    schemas = document["components"]["schemas"]
    create = document["paths"]["/sessions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert create == {"$ref": "#/components/schemas/Create"}
    assert schemas["Create"]["additionalProperties"] is False
    assert "from" in schemas["Create"]["properties"]
    assert set(schemas["Info"]["properties"]["status"]["enum"]) == set(get_args(Status))
    records_parameters = document["paths"]["/sessions/{id}/records"]["get"]["parameters"]
    assert [one["name"] for one in records_parameters] == ["id", "after", "limit", "wait", "bodies"]
    post = document["paths"]["/sessions/{id}/records"]["post"]
    assert [(one["name"], one["in"], one["required"]) for one in post["parameters"]] == [
        ("id", "path", True),
        ("via", "query", True),
        ("Idempotency-Key", "header", False),
    ]


async def test_the_schema_has_the_frames_of_turns(http: Http) -> None:
    document = await http("GET", "/openapi.json")
    schemas = document["components"]["schemas"]
    assert set(schemas["Frame"]["properties"]["type"]["enum"]) == set(agentserver.TYPES.values())
    assert {type.__name__ for type in agentserver.TYPES} <= schemas.keys()
    assert document["paths"]["/v1/sessions"]["post"]["requestBody"]["required"] is False
    assert document["paths"]["/v1/sessions/{id}/turns"]["post"]["requestBody"]["required"] is True

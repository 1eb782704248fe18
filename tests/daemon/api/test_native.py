import asyncio
from collections.abc import AsyncIterator, MutableMapping, MutableSequence, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.harness import errors
from daemon.protocol import api, records
from daemon.protocol.records import draft
from daemon.statefile.errors import (
    AnewError,
    CopyPointError,
    Damage,
    DamagedError,
    LockedError,
    MissingError,
    NoSpaceError,
    ReopenError,
    StateFileError,
)
from tests.daemon.api.conftest import Http
from tests.daemon.api.fakes import FakeHarness, FakeProviders, serve

NOBODY = "f" * 16
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_001


def whole(data: bytes) -> list[tuple[int, bytes]]:
    decoder = records.decoder()
    decoder.feed(data)
    found = []
    while (unit := decoder.next()) is not None:
        header, line, body = unit
        records.check(line, body)
        found.append((header.n, body))
    assert not decoder.pending
    return found


async def test_the_root_names_release_and_protocol(http: Http) -> None:
    assert await http("GET", "/") == {"version": "1.2.3", "protocol": api.VERSION}
    async with http.session.get("/") as answer:
        assert answer.headers["Server"] == "outrider"


async def test_health_is_about_the_process_and_readiness_about_the_harness(
    http: Http, harness: FakeHarness
) -> None:
    assert await http("GET", "/readyz") == {"status": "ready"}
    harness.ready = False
    assert await http("GET", "/healthz") == {"status": "alive"}
    async with http.session.get("/readyz") as answer:
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0


async def test_create_hands_the_whole_body_on_and_answers_the_id(http: Http, harness: FakeHarness) -> None:
    body = {"model": "rehearsal/tour", "context": 9, "workers": [{"name": "w"}], "params": {"effort": "low"}}
    async with http.session.post("/sessions", json=body) as answer:
        assert answer.status == 201
        id = (await answer.json())["id"]
        assert answer.headers["Location"] == f"/sessions/{id}"
    (create,) = harness.created
    assert (create.model, create.context, create.workers[0].name) == ("rehearsal/tour", 9, "w")
    assert create.params == {"effort": "low"}


async def test_a_copy_is_asked_for_by_from_and_n(http: Http, harness: FakeHarness) -> None:
    await http("POST", "/sessions", 201, json={"from": NOBODY, "n": 3})
    assert (harness.created[0].from_, harness.created[0].n) == (NOBODY, 3)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"modle": "x"}', 422, ["modle", "no such field", "model", "from"]),
        (b'{"context": "9"}', 422, ["context", "a whole number, not text"]),
        (b'{"context": -1}', 422, ["context", "0"]),
        (b'{"workers": [{"name": "w", "cwd": 3}]}', 422, ["workers[0].cwd", "expected text"]),
        (b'{"limits": {"step": 3}}', 422, ["limits.step", "no such field"]),
        (b'{"model": "nobody/none"}', 422, ["model"]),
        (b'{"n": 5}', 422, ["n: ", "`from`"]),
        (b'{"n": 0}', 422, ["n: ", "`from`"]),
        (b'{"from": ""}', 422, ["from: it is empty"]),
        (b'{"from": "0123456789abcdef", "limits": {"steps": 3}}', 422, ["limits: a copy takes it"]),
        (b'{"from": "0123456789abcdef", "workers": []}', 422, ["workers: a copy takes it"]),
        (b'{"from": "0123456789abcdef", "n": 4, "context": 0}', 422, ["context: a copy takes it"]),
        (b"[]", 422, ["object"]),
        (b'{"model": ', 400, ["not JSON"]),
        (b'{"model": "\xff"}', 400, ["not JSON"]),
        (b"", 400, ["empty"]),
        pytest.param(b'{"params": ' + DEEP, 400, ["not JSON"], id="too deep for any parser"),
    ],
)
async def test_a_create_that_is_not_right_is_refused_by_name(
    http: Http, body: bytes, status: int, words: list[str]
) -> None:
    message = await http(
        "POST", "/sessions", status, data=body, headers={"Content-Type": "application/json; charset=utf-8"}
    )
    for word in words:
        assert word in message


async def test_a_create_that_is_not_json_or_too_large_is_refused(http: Http) -> None:
    assert "application/json" in await http("POST", "/sessions", 415, data={"model": "x"})
    large = b'{"instructions": "' + b"x" * api.MAX_JSON + b'"}'
    json = {"Content-Type": "application/json"}
    assert str(api.MAX_JSON) in await http("POST", "/sessions", 413, data=BytesIO(large), headers=json)
    zipped = json | {"Content-Encoding": "gzip"}
    assert "compressed" in await http("POST", "/sessions", 415, data=b"{}", headers=zipped)


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit(http: Http) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 65536

    try:
        message = await http(
            "POST", "/sessions", 413, data=endless(), headers={"Content-Type": "application/json"}
        )
    except aiohttp.ClientError:  # the server may have closed before we looked at the answer
        return
    assert str(api.MAX_JSON) in message


async def test_the_list_passes_its_query_on(http: Http, harness: FakeHarness) -> None:
    ids = [harness.session() for _ in range(5)]
    harness.stepping = {ids[0], ids[2]}
    assert [info["id"] for info in await http("GET", "/sessions")] == ids[::-1]
    assert [info["id"] for info in await http("GET", "/sessions?status=stepping")] == [ids[2], ids[0]]
    assert [info["id"] for info in await http("GET", f"/sessions?limit=2&after={ids[3]}")] == [ids[2], ids[1]]


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("status=nice", "status: 'nice' is none; there are open, "),
        ("limit=0", "limit: '0' is not a whole number from 1 to 1000"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=%F0%9F%98%80", "limit"),
        ("limit=1&limit=2", "limit: given 2 times"),
        ("after=x", "after"),
        (f"after={NOBODY}", "after"),
    ],
)
async def test_a_list_query_that_is_not_right_is_refused_by_name(http: Http, query: str, word: str) -> None:
    assert word in await http("GET", f"/sessions?{query}", 400)


async def test_info_is_the_harness_own(http: Http, harness: FakeHarness) -> None:
    id = harness.session("hello")
    info = await http("GET", f"/sessions/{id}")
    assert (info["id"], info["status"], info["n"]) == (id, "closed", 3)


async def test_a_check_is_the_harness_own_and_takes_a_model(http: Http, harness: FakeHarness) -> None:
    id = harness.session("hello")
    found = await http("GET", f"/sessions/{id}/check")
    assert found == {"id": id, "status": "closed", "model": "rehearsal/tour", "accepted": True, "n": 3}
    assert (await http("GET", f"/sessions/{id}/check?model=a/b"))["model"] == "a/b"
    assert "nobody/none" in await http("GET", f"/sessions/{id}/check?model=nobody/none", 422)
    for name in ("", "x" * 501, "%0a"):
        assert "model: name one as provider/model" in await http(
            "GET", f"/sessions/{id}/check?model={name}", 400
        )


@pytest.mark.parametrize("id", [NOBODY, "x", "F" * 16, "%2e%2e%2f" * 4, "%00" * 16, "%ff"])
async def test_a_session_that_is_not_there_is_404_everywhere(http: Http, id: str) -> None:
    for method, path in [
        ("GET", ""),
        ("GET", "/check"),
        ("GET", "/records"),
        ("GET", "/events"),
        ("POST", "/records?via=me"),
        ("POST", "/retry"),
        ("POST", "/stop?via=me"),
    ]:
        message = await http(method, f"/sessions/{id}{path}", 404)
        assert message.startswith(("there is no session", "there is nothing at"))


async def test_records_are_the_files_own_bytes(http: Http, harness: FakeHarness) -> None:
    id = harness.session("one", "two\n" * 1000, "three")
    log = harness.logs[id]
    async with http.session.get(f"/sessions/{id}/records") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == records.MEDIA_TYPE
        assert answer.headers[api.LAST_HEADER] == "5"
        assert await answer.read() == log.file
    async with http.session.get(f"/sessions/{id}/records?after=3&limit=1") as answer:
        assert answer.headers[api.LAST_HEADER] == "4"
        assert whole(await answer.read()) == [(4, b"two\n" * 1000)]
    async with http.session.get(f"/sessions/{id}/records?after=5") as answer:
        assert (answer.status, answer.headers[api.LAST_HEADER]) == (200, "5")
        assert await answer.read() == b""


async def test_headers_come_one_a_line_without_bodies(http: Http, harness: FakeHarness) -> None:
    id = harness.session("one", "two")
    async with http.session.get(f"/sessions/{id}/records?bodies=0&after=1&limit=2") as answer:
        assert answer.headers["Content-Type"].startswith(records.MEDIA_TYPE)
        lines = (await answer.read()).splitlines()
    assert lines == [record.raw for record in harness.logs[id].stored[1:3]]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("after=4", "after: 4 is past the last record, 3"),
        ("after=-1", "after: '-1'"),
        ("after=99999999999999999999", "after"),
        ("limit=0", "limit"),
        ("bodies=no", "bodies: 'no' is neither 0 nor 1"),
        ("wait=soon", "wait: 'soon' is not a time; write it as 30s, 500ms, 2m or 30"),
        ("wait=-1", "wait"),
        ("wait=1e9", "wait"),
        ("wait=nan", "wait"),
        ("wait=6m", "wait: '6m' is too long; at most 300s"),
        ("wait=", "wait"),
    ],
)
async def test_a_records_query_that_is_not_right_is_refused_by_name(
    http: Http, harness: FakeHarness, query: str, words: str
) -> None:
    assert words in await http("GET", f"/sessions/{harness.session('x')}/records?{query}", 400)


async def test_a_long_poll_answers_as_soon_as_there_is_a_record(http: Http, harness: FakeHarness) -> None:
    id = harness.session("one")
    log = harness.logs[id]
    waiting = asyncio.Event()
    wait = log.wait

    async def told(after: int) -> None:
        waiting.set()
        await wait(after)

    log.wait = told  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:

        async def read() -> bytes:
            async with http.session.get(f"/sessions/{id}/records?after=3&wait=5m") as answer:
                return await answer.read()

        task = group.create_task(read())
        await waiting.wait()
        log.append(draft("message", "two"))
    assert whole(task.result()) == [(4, b"two")]


@pytest.mark.parametrize("wait", ["1ms", "0.001s", "0.001", "0.00002m", "0"])
async def test_a_long_poll_ends_empty_when_its_time_is_over(
    http: Http, harness: FakeHarness, wait: str
) -> None:
    id = harness.session("one")
    async with http.session.get(f"/sessions/{id}/records?after=3&wait={wait}") as answer:
        assert (answer.status, await answer.read()) == (200, b"")


async def test_a_long_poll_ends_empty_when_the_daemon_ends(harness: FakeHarness, path: Path) -> None:
    id = harness.session("one")
    waiting = asyncio.Event()

    async def told(after: int) -> None:
        waiting.set()
        await asyncio.Event().wait()

    harness.logs[id].wait = told  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group, Http.to(path) as http:
        async with serve(harness, version="1", socket=path, finish=60):
            task = group.create_task(http.session.get(f"/sessions/{id}/records?after=3&wait=300"))
            await waiting.wait()
        answer = await task
        assert (answer.status, await answer.read()) == (200, b"")


async def test_a_post_of_one_body_is_one_message(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    answer = await http(
        "POST",
        f"/sessions/{id}/records?via=alice%20b",
        data="hé".encode(),
        headers={"Content-Type": "text/plain"},
    )
    assert answer == {"n": 3}
    record = harness.logs[id].stored[-1]
    assert (record.header.type, record.text(), record.header.via) == (records.TEXT, "hé", "alice b")


async def test_a_multipart_post_is_one_message_a_part(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    form = aiohttp.MultipartWriter("mixed")
    form.append(b"look", {"Content-Type": "text/markdown; charset=UTF-8"})
    form.append(bytes(range(256)) + b"\r\n--", {"Content-Type": "image/png"})
    form.append(b"", {"Content-Type": "text/plain"})
    with form:
        assert await http("POST", f"/sessions/{id}/records?via=me", data=form) == {"n": 5}
    stored = harness.logs[id].stored[2:]
    assert [record.header.type for record in stored] == [
        "text/markdown; charset=utf-8",
        "image/png",
        records.TEXT,
    ]
    assert [record.body for record in stored] == [b"look", bytes(range(256)) + b"\r\n--", b""]


async def test_a_form_as_curl_sends_it_is_a_post(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("a", "one")
    form.add_field("b", b"\x89PNG", filename="x.png", content_type="image/png")
    assert await http("POST", f"/sessions/{id}/records?via=me", data=form) == {"n": 4}


async def test_the_idempotency_key_is_passed_on(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    url, headers = f"/sessions/{id}/records?via=me", {"Content-Type": "text/plain", "Idempotency-Key": "k 1"}
    for _ in range(2):
        assert await http("POST", url, data=b"a", headers=headers) == {"n": 3}
    assert "key" in await http("POST", url, 409, data=b"b", headers=headers)


@pytest.mark.parametrize(
    ("query", "headers", "body", "status", "word"),
    [
        ("", {"Content-Type": "text/plain"}, b"x", 400, "?via="),
        ("via=", {"Content-Type": "text/plain"}, b"x", 400, "via"),
        ("via=%20", {"Content-Type": "text/plain"}, b"x", 400, "via"),
        ("via=a%0Ab", {"Content-Type": "text/plain"}, b"x", 400, "via"),
        ("via=" + "a" * 201, {"Content-Type": "text/plain"}, b"x", 400, "via"),
        ("via=me", {"Content-Type": ""}, b"x", 415, "Content-Type"),
        ("via=me", {"Content-Type": "text"}, b"x", 400, "media type"),
        ("via=me", {"Content-Type": "application/x-www-form-urlencoded"}, b"x", 415, "say text/plain"),
        ("via=me", {"Content-Type": "text/plain; charset"}, b"x", 400, "media type"),
        ("via=me", {"Content-Type": "text/plain; charset=latin-1"}, b"x", 415, "UTF-8"),
        ("via=me", {"Content-Type": "text/plain; charset*=u''x"}, b"\xff", 422, "byte 0"),
        (
            "via=me",
            {"Content-Type": 'text/plain; charset="UTF-8";'},
            b"ab\xff",
            422,
            "body: not UTF-8 at byte 2",
        ),
        ("via=me", {"Content-Type": "application/json"}, b'{"a":"\xff"}', 422, "not UTF-8 at byte 6"),
        ("via=me", {"Content-Type": "application/json; charset=utf-16"}, b"{}", 415, "UTF-8"),
        ("via=me", {"Content-Type": "multipart/mixed"}, b"x", 400, "boundary"),
        ("via=me", {"Content-Type": 'multipart/mixed; boundary="a\\"b"'}, b"x", 400, "boundary"),
        ("via=me", {"Content-Type": "multipart/mixed; boundary=b"}, b"x", 400, "boundary"),
        ("via=me", {"Content-Type": "multipart/mixed; boundary=b"}, b"--b--\r\n", 400, "no part"),
        ("via=me", {"Content-Type": "multipart/mixed; boundary=b"}, b"--b\r\n\r\nx", 400, "part 1"),
        ("via=me", {"Content-Type": "multipart/mixed; boundary=b"}, b"--b\r\nx\r\n--b--", 400, "part 1"),
        (
            "via=me",
            {"Content-Type": "multipart/mixed; boundary=b"},
            b"--b\r\n:x\r\n\r\n\r\n--b--",
            400,
            "part 1",
        ),
        (
            "via=me",
            {"Content-Type": "multipart/mixed; boundary=b"},
            b"--b\r\nContent-Transfer-Encoding: base64\r\n\r\nYQ==\r\n--b--",
            415,
            "part 1",
        ),
        (
            "via=me",
            {"Content-Type": "multipart/mixed; boundary=b"},
            b"--b\r\n\r\n\r\n" * (api.MAX_PARTS + 1) + b"--b--",
            413,
            "parts",
        ),
        ("via=me", {"Content-Type": "text/plain", "Idempotency-Key": ""}, b"x", 400, "Idempotency-Key"),
        ("via=me", {"Content-Type": "text/plain", "Idempotency-Key": "é"}, b"x", 400, "Idempotency-Key"),
        (
            "via=me",
            {"Content-Type": "text/plain", "Idempotency-Key": "k" * 201},
            b"x",
            400,
            "Idempotency-Key",
        ),
    ],
)
async def test_a_post_that_is_not_right_is_refused_by_name(
    http: Http, harness: FakeHarness, query: str, headers: dict[str, str], body: bytes, status: int, word: str
) -> None:
    id = harness.session()
    assert word in await http("POST", f"/sessions/{id}/records?{query}", status, data=body, headers=headers)
    assert harness.logs[id].durable_n == 2


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("text/plain", "text/plain; charset=utf-8"),
        ('Text/Markdown ;variant="GFM";Charset=UTF8', "text/markdown; charset=utf-8; variant=GFM"),
        ('application/json; profile="x"', "application/json; profile=x"),
        ('application/json; profile="a b\\"\\\\"; v=', 'application/json; profile="a b\\"\\\\"; v=""'),
        ('image/png; name="\xe4.png"; x="\x85"', 'image/png; name="\xe4.png"; x="\ufffd"'),
    ],
)
async def test_a_content_type_is_kept_with_its_parameters(
    http: Http, harness: FakeHarness, sent: str, kept: str
) -> None:
    id = harness.session()
    await http("POST", f"/sessions/{id}/records?via=me", data=b"{}", headers={"Content-Type": sent})
    assert harness.logs[id].stored[-1].header.type == kept
    form = b"--b\r\nContent-Type: " + kept.encode("latin-1", "replace") + b"\r\n\r\n{}\r\n--b--"
    headers = {"Content-Type": "multipart/mixed; boundary=b"}
    await http("POST", f"/sessions/{id}/records?via=me", data=form, headers=headers)
    assert harness.logs[id].stored[-1].header.type == kept.replace("\ufffd", "?")


async def test_a_post_may_be_8_mib_and_not_a_byte_more(http: Http, harness: FakeHarness) -> None:
    url = f"/sessions/{harness.session()}/records?via=me"
    image = {"Content-Type": "image/png"}
    assert await http("POST", url, data=BytesIO(bytes(api.MAX_POST)), headers=image) == {"n": 3}
    assert str(api.MAX_POST) in await http(
        "POST", url, 413, data=BytesIO(bytes(api.MAX_POST + 1)), headers=image
    )
    for over, status in [(0, 200), (1, 413)]:
        form = aiohttp.MultipartWriter("mixed")
        form.append(BytesIO(bytes(api.MAX_POST // 2)), image)
        form.append(BytesIO(bytes(api.MAX_POST // 2 + over)), image)
        with form:
            await http("POST", url, status, data=form)


async def test_retry_answers_the_status(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    assert await http("POST", f"/sessions/{id}/retry") == {"status": "stepping"}
    assert harness.seen == [("retry", id)]


async def test_stop_needs_a_name_and_a_session_that_steps(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    harness.stepping = {id}
    assert "via" in await http("POST", f"/sessions/{id}/stop", 400)
    assert await http("POST", f"/sessions/{id}/stop?via=me", 204) is None
    assert harness.seen == [("stop", id, "me")]
    await http("POST", f"/sessions/{id}/stop?via=me", 409)


async def test_workers_and_providers_are_listed(http: Http, harness: FakeHarness) -> None:
    harness.known_workers = [api.WorkerInfo("w", "refused", "another release")]
    assert await http("GET", "/workers") == [{"name": "w", "state": "refused", "reason": "another release"}]
    said = await http("GET", "/providers")
    assert said["default"] == "rehearsal/tour"
    expected = {
        "name": "rehearsal",
        "kind": "rehearsal",
        "url": "",
        "has_key": False,
        "key_from": "",
        "problem": "",
        "served": True,
        "asking": False,
        "region": "",
        "asks": [],
        "models": [{"name": "rehearsal/tour", "context": 1000}],
    }
    (provider,) = said["providers"]
    assert {name: provider[name] for name in expected} == expected


async def test_a_read_of_the_providers_waits_for_servers_only_where_it_says_how_long(
    harness: FakeHarness, path: Path
) -> None:
    providers = FakeProviders()
    async with serve(harness, providers=providers, socket=path), Http.to(path) as http:
        await http("GET", "/providers")
        await http("GET", "/providers?wait=1500ms")
        assert "wait: '11s' is too long; at most 10s" in await http("GET", "/providers?wait=11s", 400)
    assert providers.waits == [0.0, 1.5]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Malformed("m"), 400),
        (errors.Conflict("m"), 409),
        (errors.Ended("m"), 410),
        (errors.TooLarge("m"), 413),
        (errors.Unsupported("m"), 415),
        (errors.Invalid("m"), 422),
        (errors.Unready("m"), 503),
        (errors.NoSpace("m"), 507),
    ],
)
async def test_each_refusal_of_the_harness_has_its_status(
    http: Http, harness: FakeHarness, error: errors.HarnessError, status: int
) -> None:
    harness.failure = error
    async with http.session.post("/sessions", json={}) as answer:
        assert answer.status == status
        assert await answer.json() == {"error": {"code": status, "message": "m"}}
        assert ("Retry-After" in answer.headers) == (status == 503)


FILE_ERRORS: Sequence[tuple[StateFileError, int]] = [
    (MissingError(NOBODY), 404),
    (DamagedError(NOBODY, Damage(3, 9, "why")), 409),
    (CopyPointError(NOBODY, 2, "why", 3), 422),
    (NoSpaceError("m"), 507),
    (ReopenError("m"), 507),
    (StateFileError("m"), 503),
    (AnewError("m"), 503),
    (LockedError("/data", 7), 503),
]


def test_no_error_of_the_state_file_is_without_a_status() -> None:
    def below(kind: type[StateFileError]) -> set[type[StateFileError]]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    assert {type(error) for error, _ in FILE_ERRORS} == below(StateFileError)


@pytest.mark.parametrize(("error", "status"), FILE_ERRORS)
async def test_a_read_that_the_file_refuses_says_so(
    http: Http, harness: FakeHarness, error: StateFileError, status: int
) -> None:
    id = harness.session()

    async def failing(*_: int) -> bytes:
        raise error

    with pytest.raises(errors.HarnessError) as caught, errors.translated():
        raise error
    assert (caught.value.status, str(error) in str(caught.value)) == (status, True)
    harness.logs[id].headers = failing  # type: ignore[method-assign,assignment]
    harness.logs[id].wait = failing  # type: ignore[method-assign,assignment]
    for query in ("bodies=0", "after=2&wait=9"):
        assert str(caught.value) == await http("GET", f"/sessions/{id}/records?{query}", status)
        async with http.session.get(f"/sessions/{id}/records?{query}") as answer:
            assert ("Retry-After" in answer.headers) == (status == 503)


async def test_a_fault_of_ours_is_a_plain_500(http: Http, harness: FakeHarness) -> None:
    harness.failure = RuntimeError("secret detail")
    async with http.session.post("/sessions", json={}, headers={"Accept": "text/html"}) as answer:
        assert answer.status == 500
        assert "secret" not in (await answer.json())["error"]["message"]


async def test_a_fault_while_records_are_sent_cuts_the_answer(http: Http, harness: FakeHarness) -> None:
    id = harness.session("x" * 5000)
    log = harness.logs[id]
    good = log.chunks

    async def broken(after: int, limit: int | None = None) -> AsyncIterator[bytes]:
        async for piece in good(after, limit):
            yield piece
            raise RuntimeError("the disk is gone")

    log.chunks = broken  # type: ignore[method-assign]
    async with http.session.get(f"/sessions/{id}/records") as answer:
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


async def test_a_path_or_method_that_is_not_served_is_told_in_our_shape(
    http: Http, harness: FakeHarness
) -> None:
    id = harness.session()
    assert "/nowhere" in await http("GET", "/nowhere", 404)
    for path, allow in [
        ("/", "GET, HEAD"),
        ("/sessions", "GET, HEAD, POST"),
        (f"/sessions/{id}/records", "GET, POST"),
        (f"/sessions/{id}/stop", "POST"),
    ]:
        async with http.session.delete(path) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, allow)
            assert (await answer.json())["error"]["code"] == 405
    assert await http("GET", "/", 417, headers={"Expect": "miracles"})


async def test_a_post_goes_through_when_its_client_goes_away(http: Http, harness: FakeHarness) -> None:
    id = harness.session()
    began, go = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        began.set()
        await go.wait()

    harness.before = held
    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            http.session.post(
                f"/sessions/{id}/records?via=me", data=b"x", headers={"Content-Type": "text/plain"}
            )
        )
        await began.wait()
        task.cancel()
    go.set()
    await harness.logs[id].wait(2)
    assert harness.logs[id].stored[-1].body == b"x"


@pytest.mark.parametrize(
    ("error", "level"), [(errors.Conflict("not now"), "info"), (RuntimeError("why"), "error")]
)
async def test_a_call_that_fails_after_its_client_went_is_logged(
    http: Http,
    harness: FakeHarness,
    logs: MutableSequence[MutableMapping[str, Any]],
    error: Exception,
    level: str,
) -> None:
    id = harness.session()
    began, go, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def held() -> None:
        began.set()
        try:
            await go.wait()
            raise error
        finally:
            over.set()

    harness.before = held
    async with asyncio.TaskGroup() as group:
        task = group.create_task(http.session.post(f"/sessions/{id}/retry"))
        await began.wait()
        task.cancel()
    await http("GET", "/healthz")  # by now the server has seen the end of the other connection
    go.set()
    await over.wait()
    await http("GET", "/healthz")
    assert [(line["log_level"], line["call"], line["client"]) for line in logs] == [
        (level, f"retry of {id}", "gone")
    ]


async def test_a_worker_is_cordoned_and_uncordoned_and_again_is_fine(
    harness: FakeHarness, http: Http
) -> None:
    harness.known_workers = [api.WorkerInfo("gpu", "gone")]
    for _ in range(2):
        assert await http("POST", "/workers/gpu/cordon", 204) is None
    assert harness.cordoned == {"gpu"}
    for _ in range(2):
        assert await http("POST", "/workers/gpu/uncordon", 204) is None
    assert harness.cordoned == set()
    for name in ("cpu", "a%20b"):
        assert "no worker" in await http("POST", f"/workers/{name}/cordon", 404)
    harness.failure = errors.NoSpace("nothing was changed: the disk is full")
    await http("POST", "/workers/gpu/cordon", 507)


async def test_a_name_in_the_query_that_the_route_does_not_have_is_refused(
    http: Http, harness: FakeHarness
) -> None:
    for path, words in [
        (
            "/sessions?limt=5",
            "'limt': there is no such name in a query of /sessions; known are status, limit, after",
        ),
        (f"/sessions/{harness.session()}?after=3", "'after': there is no such name"),
        ("/readyz?verbose", "/readyz, which takes no query"),
    ]:
        assert words in await http("GET", path, 400)

import asyncio
import socket
import stat
from collections.abc import MutableMapping, MutableSequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from daemon.api.crowd import Complaints
from daemon.api.keys import Keys
from daemon.api.listening import ListenError, split
from daemon.api.stream import Limits
from tests.daemon.api.conftest import Http, check
from tests.daemon.api.fakes import FakeHarness, serve


async def test_only_the_owner_may_open_the_socket_and_it_is_gone_afterwards(
    harness: FakeHarness, path: Path
) -> None:
    deep = path.parent / "a" / "b.sock"
    async with serve(harness, version="1", socket=deep) as served:
        assert served.socket == deep
        assert stat.S_IMODE(deep.stat().st_mode) == 0o600
        assert stat.S_IMODE(deep.parent.stat().st_mode) == 0o700
    assert not deep.exists()


async def test_a_stale_socket_is_replaced(harness: FakeHarness, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with serve(harness, version="1", socket=path), Http.to(path) as http:
        assert await http("GET", "/healthz") == {"status": "alive"}


async def test_a_live_socket_is_refused_and_stays(harness: FakeHarness, path: Path) -> None:
    async with serve(harness, version="1", socket=path):
        with pytest.raises(ListenError, match="another daemon listens on"):
            async with serve(harness, version="2", socket=path):
                pass
        async with Http.to(path) as http:
            assert (await http("GET", "/"))["version"] == "1"


async def test_what_is_not_a_socket_is_left_alone(harness: FakeHarness, path: Path) -> None:
    path.write_text("notes")
    with pytest.raises(ListenError, match="is not a socket"):
        async with serve(harness, version="1", socket=path):
            pass
    assert path.read_text() == "notes"


async def test_a_path_that_cannot_be_is_refused_in_a_sentence(harness: FakeHarness, path: Path) -> None:
    path.write_text("")
    for wrong, words in [
        (path.parent / ("x" * 108), "at most 107 bytes"),
        (path / "sock", "cannot listen on"),
    ]:
        with pytest.raises(ListenError, match=words):
            async with serve(harness, version="1", socket=wrong):
                pass


async def test_a_socket_that_another_daemon_put_there_since_is_not_removed(
    harness: FakeHarness, path: Path
) -> None:
    async with serve(harness, version="1", socket=path):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("0.0.0.0:1", "not a loopback"),
        ("[::]:1", "not a loopback"),
        ("192.0.2.1:4600", "in the clear: set cert and key in"),
        ("example.org:1", "IP address"),
        ("4600", "not HOST:PORT"),
        ("127.0.0.1", "not HOST:PORT"),
        ("127.0.0.1:65536", "not HOST:PORT"),
        ("::1:4600", "not HOST:PORT"),
        ("", "not HOST:PORT"),
    ],
)
def test_an_address_that_is_not_loopback_is_refused(address: str, words: str) -> None:
    with pytest.raises(ListenError, match=words):
        split(address)


def test_loopback_is_taken_in_every_form() -> None:
    assert [split(a) for a in ("127.0.0.1:0", "127.9.9.9:1", "[::1]:65535", "localhost:2")] == [
        ("127.0.0.1", 0),
        ("127.9.9.9", 1),
        ("::1", 65535),
        ("127.0.0.1", 2),
    ]


async def test_a_port_in_use_is_told(harness: FakeHarness, path: Path) -> None:
    async with serve(harness, version="1", tcp=["127.0.0.1:0"]) as served:
        with pytest.raises(ListenError, match=f"^cannot listen on {served.tcp[0]}: Address already in use$"):
            async with serve(harness, version="1", socket=path, tcp=served.tcp):
                pass
    assert not path.exists()


async def test_each_failed_request_is_one_line_in_the_log(
    http: Http, harness: FakeHarness, logs: MutableSequence[MutableMapping[str, Any]]
) -> None:
    await http("GET", "/sessions")
    await http("GET", "/nowhere", 404)
    harness.failure = RuntimeError("why")
    await http("POST", "/sessions", 500, json={})
    assert [
        (line["event"], line["log_level"], line["method"], line["path"], line["status"]) for line in logs
    ] == [
        ("request refused", "info", "GET", "/nowhere", 404),
        ("request failed", "error", "POST", "/sessions", 500),
    ]
    assert logs[1]["exc_info"]


async def raw(path: Path, data: bytes) -> bytes:
    """What the server says to these bytes until it closes."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 10_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nX\x00Y: a\r\nAccept: text/html\r\n\r\n",
        b"POST /sessions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /sessions HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["tls", "words", "version", "header", "line", "value", "name", "length", "chunk"],
)
async def test_what_is_not_http_is_told_in_our_shape(http: Http, path: Path, data: bytes) -> None:
    head, _, body = (await raw(path, data)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.")
    assert head.split()[1] == b"400"
    assert b"content-type: application/json" in head.lower()
    assert b"Server: outrider\r\n" in head
    message = check(400, "application/json", body)
    assert "\n" not in message


name = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
junk = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["0", "1", "-1", "1e9", "9" * 30, "30s", "%ff%00", "me", "closed", "0" * 16]),
)
paths = st.sampled_from(
    [
        "",
        "/sessions",
        "/sessions/{id}",
        "/sessions/{id}/records",
        "/sessions/{id}/retry",
        "/sessions/{id}/stop",
        "/sessions/{id}/end",
        "/sessions/{id}/workers",
        "/sessions/{id}/config",
        "/providers/p",
        "/keys",
        "/keys/k",
        "/metrics",
        "/openapi.json",
        "/workers",
        "/providers",
        "/healthz",
        "/readyz",
        "/sessions/%00",
        "/sessions/../x",
        "/%f0%9f",
        "/sessions/{id}/x",
    ]
)
types = st.one_of(
    st.none(),
    st.sampled_from(
        ["application/json", "text/plain", "image/png", "multipart/mixed; boundary=b", 'text/plain; a="b']
    ),
    name,
)
content = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"{}",
            b"[]",
            b'[{"name":"w"}]',
            b'{"name":"k","role":"viewer"}',
            b'{"params":{"a":1e999}}',
            b'{"context":1e3}',
            b"--b\r\n\r\n\xff\r\n--b--",
            b'"\\ud800"',
        ]
    ),
    st.lists(st.sampled_from([b"--b", b"\r\n", b"--", b"X: y", b"x"]), max_size=10).map(b"".join),
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "BREW"]),
    where=paths,
    query=st.lists(
        st.tuples(st.sampled_from(["after", "limit", "wait", "bodies", "via", "status", "x"]), junk),
        max_size=3,
    ),
    type=types,
    body=content,
    headers=st.dictionaries(
        st.sampled_from(
            ["Idempotency-Key", "Last-Event-ID", "Accept", "Expect", "Range", "Cookie", "Content-Encoding"]
        ),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=10),
        max_size=3,
    ),
)
async def test_no_request_whatever_it_holds_is_a_5xx_or_answered_in_another_shape(
    path: Path,
    method: str,
    where: str,
    query: list[tuple[str, str]],
    type: str | None,
    body: bytes,
    headers: dict[str, str],
) -> None:
    harness = FakeHarness()
    id = harness.session("one")
    query = [(key, value) for key, value in query if key != "wait" or value in ("0", "-1", "x")]
    target = str(URL.build(path="/").with_query(query).raw_query_string)
    lines = [
        f"{method} {where.format(id=id) or '/'}?{target} HTTP/1.1",
        "Host: d",
        f"Content-Length: {len(body)}",
    ]
    lines += [
        f"{key}: {value}"
        for key, value in headers.items()
        if key != "Expect" or value.strip() != "100-continue"
    ]
    lines += [f"Content-Type: {type}"] if type is not None else []
    keys = await asyncio.to_thread(Keys, path.with_name("keys.toml"))
    async with serve(harness, version="1", socket=path, keys=keys):
        answer = await raw(path, "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
    head, _, content = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    assert status < 500, answer
    if method != "HEAD" and status >= 400:
        (kind,) = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-type:")]
        check(status, kind.split(b":")[1].strip().decode(), content)


async def test_a_post_in_work_is_finished_when_the_daemon_ends(harness: FakeHarness, path: Path) -> None:
    id = harness.session()
    began, go = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        began.set()
        await go.wait()

    harness.before = held
    async with asyncio.TaskGroup() as group, Http.to(path) as http:
        async with serve(harness, version="1", socket=path, finish=60):
            task = group.create_task(
                http(
                    "POST",
                    f"/sessions/{id}/records?via=me",
                    data=b"x",
                    headers={"Content-Type": "text/plain"},
                )
            )
            await began.wait()
            asyncio.get_running_loop().call_soon(go.set)
        assert await task == {"n": 3}


async def test_what_does_not_finish_in_time_is_cut(harness: FakeHarness, path: Path) -> None:
    id = harness.session()
    began = asyncio.Event()

    async def held() -> None:
        began.set()
        await asyncio.Event().wait()

    harness.before = held
    async with asyncio.TaskGroup() as group, Http.to(path) as http:

        async def cut() -> None:
            with pytest.raises(aiohttp.ClientError):
                await http.session.post(f"/sessions/{id}/retry")

        async with serve(harness, version="1", socket=path, finish=0.01):
            group.create_task(cut())
            await began.wait()


async def test_a_connection_without_a_whole_request_is_closed(harness: FakeHarness, path: Path) -> None:
    async with serve(harness, version="1", socket=path, limits=Limits(idle=0.1)):
        for sent in (b"", b"GET / HTTP/1.1\r\nX: ", b"GET /healthz HTTP/1.1\r\nHost: d\r\n\r\n"):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(sent)
            said = await reader.read()  # to its end
            assert said.startswith(b"HTTP/1.1 200 OK" if b"healthz" in sent else b"")
            writer.close()
            await writer.wait_closed()


async def test_more_connections_than_there_is_room_for_are_told_and_others_go_on(
    harness: FakeHarness, path: Path
) -> None:
    async with serve(
        harness, version="1", socket=path, tcp=["127.0.0.1:0"], limits=Limits(connections=4)
    ) as served:
        host, port = split(served.tcp[0])
        remote = [await asyncio.open_connection(host, port) for _ in range(3)]
        reader, writer = await asyncio.open_connection(host, port)
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        writer.close()
        async with Http.to(path) as http:  # room of its own
            assert (await http("GET", "/"))["version"] == "1"
            for _, one in remote:
                one.close()
                await one.wait_closed()
            again = await asyncio.open_connection(host, port)
            again[1].write(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert (await again[0].read()).startswith(b"HTTP/1.0 200")
            again[1].close()


async def test_that_nothing_can_be_accepted_is_said_once(
    logs: MutableSequence[MutableMapping[str, Any]],
) -> None:
    complaints, loop = Complaints(), asyncio.get_running_loop()
    for _ in range(1000):
        complaints(loop, {"message": "socket.accept() out of system resource", "exception": OSError(24, "x")})
    assert [line["log_level"] for line in logs] == ["error"]

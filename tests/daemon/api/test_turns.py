"""Turns under clients that come at once, go away, stop reading and send what they like, on disks that are full."""

import asyncio
import errno
import io
import json
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.api.agentserver import Caps
from daemon.api.stream import Limits
from daemon.harness.errors import Ended
from daemon.protocol import api
from daemon.provider.base import Delta, ProviderError
from daemon.statefile.memory import MemoryStore
from daemon.statefile.store import Store
from daemon.turns import Text
from tests.daemon.api.agents import V1, Server, server, settled
from tests.daemon.harness.doubles import Clock, FakeProvider, run, says, text
from tests.daemon.statefile.fakes import Disk

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}


async def raw(path: Path, where: str, body: bytes, length: int) -> asyncio.StreamWriter:
    """A connection that has sent this much of a POST's body, and reads little."""
    _, writer = await asyncio.open_unix_connection(str(path), limit=1024)
    head = f"POST {where} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
    await writer.drain()
    return writer


async def ended(*names: str) -> None:
    """Until no task of such a name is left."""
    while left := [task for task in asyncio.all_tasks() if task.get_name().startswith(names)]:
        await asyncio.wait(left)


async def idle(s: Server) -> None:
    """Until no turn is under way, nor what a client that went had asked for."""
    await s.served.drain.turns.over()
    await ended("turn of", "stop of")


async def test_what_streams_in_comes_between_the_steps_that_it_is_of(path: Path) -> None:
    provider = FakeProvider(
        [Delta("text", "He"), Delta("text", "llo"), *says(text("Hello"), run("c", "x", "local"))],
        [Delta("text", "Wor"), Delta("text", "ld"), *says(text("World"))],
    )
    async with server(path, provider) as s:
        id = await s.create()
        async with s.turn(id, query="?deltas=1") as frames:
            told = await frames.rest()
        so_far, spoken = "", []
        for _, type, data in told:
            if type == "message.delta":
                so_far += data["text"]
            elif type == "message" and data["role"] == "assistant":
                spoken.append((so_far, data["text"]))
                so_far = ""
        assert spoken == [("Hello", "Hello"), ("World", "World")]
        assert so_far == ""
        types = [type for _, type, _ in told if type.startswith(("model", "message.delta"))]
        one = ["model.request", "message.delta", "model.response"]
        assert [type for type, _ in groupby(types)] == [*one, *one]


async def test_of_two_turns_posted_at_once_one_is_taken(path: Path) -> None:
    hold = asyncio.Event()
    async with server(path, FakeProvider([hold, *says(text("one"))])) as s:
        id = await s.create()

        async def post(k: int) -> int:
            async with s.turn(id, f"from {k}") as frames:
                if frames.status == 200:
                    await frames.until("message")
                    taken.set()
                    await frames.rest()
                return frames.status

        taken = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            posts = [group.create_task(post(k)) for k in range(8)]
            await taken.wait()
            while sum(one.done() for one in posts) < 7:
                await asyncio.wait([one for one in posts if not one.done()], return_when="FIRST_COMPLETED")
            hold.set()
        assert sorted(one.result() for one in posts) == [200, *[409] * 7]
        assert len(await s.b.bodies(id, "message")) == 1
        await settled(s, id)
        assert s.served.drain.turns.running == 0


@pytest.mark.parametrize("query", ["", "?on_disconnect=stop"])
async def test_a_client_that_goes_before_its_body_is_whole_posted_nothing(path: Path, query: str) -> None:
    async with server(path, FakeProvider()) as s:
        id = await s.create()
        writer = await raw(path, f"{V1}/{id}/turns{query}", b'{"input": ', 20)
        writer.close()
        await writer.wait_closed()
        assert (await s.call("GET", f"{V1}/{id}"))[0] == 200
        await idle(s)
        assert await s.b.bodies(id, "message") == []
        assert s.served.drain.turns.running == 0


@pytest.mark.parametrize(("query", "left"), [("", "text"), ("?on_disconnect=stop", "error")])
async def test_a_client_that_goes_before_the_first_byte_had_its_turn_taken_or_stopped(
    path: Path, query: str, left: str
) -> None:
    hold, disk = asyncio.Event(), Disk()
    store = Store(path.parent / "d", sync=disk)
    async with server(path, FakeProvider([hold, *says(text("done"))]), store=store) as s:
        id = await s.create()
        begun = disk.hold()
        body = b'{"input": "x"}'
        writer = await raw(path, f"{V1}/{id}/turns{query}", body, len(body))
        await asyncio.wait_for(begun.wait(), 30)  # it is accepted, and not yet durable
        assert s.served.drain.turns.running == 1
        writer.close()
        await writer.wait_closed()
        disk.let_go()
        if not query:
            hold.set()
        await idle(s)
        assert (await s.b.kinds(id))[-2:][0 if left == "text" else 1] == left
        assert s.served.drain.turns.running == 0


async def test_a_stop_at_a_disconnect_is_not_for_somebody_elses_turn(path: Path) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    provider = FakeProvider([first, *says(text("one"))], [second, *says(text("two"))])
    async with server(path, provider) as s:
        id = await s.create()
        turns = s.served.drain.turns
        n = await turns.begin(id, "a", "one")
        assert turns.goes_on(id, n)
        first.set()
        await settled(s, id)
        later = await turns.begin(id, "b", "two")
        assert (turns.goes_on(id, n), turns.goes_on(id, later)) == (False, True)
        second.set()
        await settled(s, id)
        assert not turns.goes_on(id, later)


async def test_a_stream_that_left_its_turn_has_no_number_at_its_end(path: Path) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    script = [text("I look"), first, *says(run("c", "x", "local"))]
    async with server(path, FakeProvider(script, [second, *says(text("done"))])) as s:
        id = await s.create()
        async with s.turn(id) as frames:
            begun = await frames.until("message")
            log = await s.b.harness.log(id)
            await log.wait(5)  # what it said so far is a record, and no frame yet
            s.gate.close()
            left = await frames.rest()
        assert [(n, type) for n, type, _ in left] == [(0, "warning"), (0, "session.ended")]
        first.set()
        second.set()
        await settled(s, id)
        s.gate._closed = False
        s.gate._local.gone.clear()
        async with s.events(id) as frames:
            whole = await frames.rest()
        async with s.events(id, begun[-1][0]) as frames:
            rest = await frames.rest()
        assert [frame for frame in (*begun, *rest) if frame[0]] == [frame for frame in whole if frame[0]]


@pytest.mark.parametrize("how", ["error", "cancelled"])
async def test_a_turn_that_failed_is_told_as_failed_from_any_number_on(path: Path, how: str) -> None:
    script: list[Any] = [ProviderError("no such model", status=404)] if how == "error" else [asyncio.Event()]
    async with server(path, FakeProvider(says(text("one")), script)) as s:
        id = await s.create()
        await s.told(id)
        await settled(s, id)
        async with s.turn(id, query="" if how == "error" else "?on_disconnect=stop") as frames:
            await frames.until("message")
        await settled(s, id)
        tip = (await s.b.harness.info(id)).n
        for n in range(tip - 1, tip + 1):
            async with s.events(id, n) as frames:
                assert (await frames.rest())[-1][2]["reason"] == how
        async with s.events(id, 7) as frames:  # within the first turn
            assert [type for _, type, _ in await frames.rest()][-2:] == ["error", "session.ended"]


async def test_a_turn_that_cannot_be_recorded_any_more_is_an_error_and_not_silence(path: Path) -> None:
    hold, disk = asyncio.Event(), Disk()
    store = Store(path.parent / "d", sync=disk)
    async with server(path, FakeProvider([hold, *says(text("x"))]), store=store) as s:
        id = await s.create()
        async with s.turn(id) as frames:
            await frames.until("message")
            disk.error = OSError(errno.ENOSPC, "No space left on device")
            hold.set()
            assert [type for _, type, _ in await frames.rest()][-1] == "session.ended"
        await idle(s)
        assert (await s.call("GET", f"{V1}/{id}/events"))[0] == 507
        disk.error = None  # there is room again, and nobody has said that it shall go on
        async with s.events(id) as frames:
            error, end = (await frames.rest())[-2:]
        assert (error[1], error[2]["kind"], end[1], end[2]["reason"]) == (
            "error",
            "no_space",
            "session.ended",
            "error",
        )
        s.b.provider.answers.append(says(text("after all")))
        assert (await s.told(id, "again"))[-1][2]["reason"] == "completed"


async def test_what_a_full_disk_refuses_is_507_and_takes_no_place(path: Path) -> None:
    disk = Disk()
    store = Store(path.parent / "d", sync=disk)
    provider = FakeProvider(*[says(text("x")) for _ in range(5)])  # some of it asked for and lost
    async with server(path, provider, store=store, caps=Caps(sessions=1, turns=1)) as s:
        id = await s.create()
        disk.error = OSError(errno.ENOSPC, "No space left on device")
        for _ in range(3):
            assert (await s.call("POST", f"{V1}/{id}/turns", {"input": "x"}))[0] == 507
            assert s.served.drain.turns.running == 0
            await ended("session ")  # until then it is busy, which is a 409
        disk.error = None
        await s.b.harness.end(id, "me")
        folder = path.parent / "d/sessions"
        await asyncio.to_thread(folder.rename, path.parent / "away")
        await asyncio.to_thread(folder.write_text, "")
        for _ in range(3):
            assert (await s.call("POST", V1))[0] == 507
        assert s.b.harness.census.count("v1") == 0
        await asyncio.to_thread(folder.unlink)
        await asyncio.to_thread((path.parent / "away").rename, folder)
        assert (await s.told(await s.create()))[-1][2]["reason"] == "completed"
        assert (await s.call("POST", V1))[0] == 429


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (b'{"input": "\\ud800"}', {400, 422}),
        (b'{"input": "\xff"}', {400}),
        (b'{"input": 5}', {422}),
        (b'{"input": ["a"]}', {422}),
        (b'{"input": "x", "agent": "y"}', {422}),
        (b'"x"', {422}),
        (f'{{"input": {DEEP}}}'.encode(), {400, 422}),
        (b'{"input": "' + b"x" * (1 << 20) + b'"}', {413}),
        (b"\x00", {400}),
    ],
    ids=range(9),
)
async def test_a_turns_bad_body_is_refused_and_takes_no_place(
    path: Path, body: bytes, statuses: set[int]
) -> None:
    async with server(path, FakeProvider()) as s:
        id = await s.create()
        async with s.http.post(f"http://x{V1}/{id}/turns", data=io.BytesIO(body), headers=JSON) as answer:
            assert answer.status in statuses, await answer.text()
            assert json.loads(await answer.text())["error"]["message"]
        assert s.served.drain.turns.running == 0
        assert await s.b.bodies(id, "message") == []


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (b'{"inputs": {"who": "\\ud800"}}', {400, 422}),
        (b'{"inputs": {"who": "\xff"}}', {400}),
        (b'{"inputs": {"\\ud800": "x"}}', {400, 422}),
        (b'{"inputs": {"who": ' + b"1" * 5000 + b"}}", {400, 422}),
        (b'{"inputs": {"who": 1e999}}', {400, 422}),
        (f'{{"inputs": {{"who": {DEEP}}}}}'.encode(), {400, 422}),
        (b'{"inputs": {"who": "' + b"x" * (1 << 20) + b'"}}', {413}),
        (b'{"inputs": null}', {422}),
        (b'{"agent": "\\u0000"}', {422}),
        (b'{"inputs": {"who": "a\\u0000b"}}', {201}),
        (b'{"inputs": {"who": "' + b"x" * ((1 << 20) - 100) + b'"}}', {201}),
    ],
    ids=range(11),
)
async def test_a_creates_odd_body_is_made_or_refused_and_never_fails(
    path: Path, body: bytes, statuses: set[int]
) -> None:
    async with server(path, FakeProvider()) as s:
        async with s.http.post(f"http://x{V1}", data=io.BytesIO(body), headers=JSON) as answer:
            assert answer.status in statuses, (await answer.text())[:500]
            made = answer.status == 201
        assert s.b.harness.census.count("v1") == made


async def test_a_number_that_is_none_is_refused_by_where_it_stands(path: Path) -> None:
    async with server(path, FakeProvider()) as s:
        body = io.BytesIO(b'{"inputs": {"who": 1e999}}')
        async with s.http.post(f"http://x{V1}", data=body, headers=JSON) as answer:
            why = (await answer.json())["error"]["message"]
            assert (answer.status, why) == (422, "inputs: number out of range")


async def test_a_number_of_any_size_is_taken_as_an_input(path: Path) -> None:
    agents = "apiVersion: agent-controller.dev/v1alpha1\nkind: Agent\nmetadata: {name: n}\n"
    agents += "spec: {task: 'Count to ${inputs.n}.', tools: [], inputs: {n: {type: number}}}\n"
    async with server(path, FakeProvider(), agents=agents) as s:
        for number in ("9" * 400, "9" * 5000, "1e300", "-0.5"):
            body = f'{{"inputs": {{"n": {number}}}}}'.encode()
            async with s.http.post(f"http://x{V1}", data=io.BytesIO(body), headers=JSON) as answer:
                assert answer.status in (201, 400, 422), await answer.text()


@pytest.mark.parametrize("cursor", ["-1", "x", "9" * 30, "1.0", "", " ", "٣", "99"])
async def test_a_cursor_that_is_none_is_400(path: Path, cursor: str) -> None:
    async with server(path, FakeProvider()) as s:
        id = await s.create()
        url = f"http://x{V1}/{id}/events"
        async with s.http.get(url, params={"after": cursor}) as answer:
            assert answer.status == 400
        if cursor.isascii():
            async with s.http.get(url, headers={"Last-Event-ID": cursor}) as answer:
                assert answer.status == 400


async def test_two_hundred_streams_on_one_turn_all_tell_it_whole(path: Path) -> None:
    hold = asyncio.Event()
    async with server(path, FakeProvider([hold, *says(text("x"))])) as s:
        id = await s.create()
        connector = aiohttp.UnixConnector(str(path), limit=0)
        async with aiohttp.ClientSession(connector=connector) as s.http, AsyncExitStack() as stack:
            first = await stack.enter_async_context(s.turn(id))
            others = [await stack.enter_async_context(s.events(id)) for _ in range(200)]
            for frames in others:
                await frames.until("message")
            assert s.served.drain.turns.running == 1
            hold.set()
            told = await first.rest()
            for frames in others:
                rest = await frames.rest()
                assert rest[-1] == told[-1]
        assert s.b.counts.readers["session"] == 0


async def test_a_reader_that_takes_nothing_is_dropped_and_the_turn_goes_on(path: Path) -> None:
    big = "x" * (4 << 20)
    hold = asyncio.Event()
    provider = FakeProvider(says(text(big), run("c", "y", "local")), [hold, *says(text("done"))])
    async with server(path, provider, limits=Limits(slow=0.2)) as s:
        id = await s.create()
        body = b'{"input": "x"}'
        writer = await raw(path, f"{V1}/{id}/turns", body, len(body))
        await s.b.pool.started.wait()
        await ended("events of")  # nobody reads here
        assert (await s.b.harness.info(id)).status == "stepping"
        hold.set()
        await settled(s, id)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        assert (await s.b.harness.info(id)).status == "closed"


async def test_a_turn_whose_body_comes_after_the_drain_is_refused(path: Path) -> None:
    async with server(path, FakeProvider()) as s:
        id = await s.create()

        async def body(rest: bytes) -> Any:
            assert not s.served.drain.closed
            await s.served.drain.leave(0, 0)
            yield rest

        for where, rest in ((f"{V1}/{id}/turns", b'{"input": "x"}'), (V1, b"{}")):
            s.served.drain.closed = False
            asked = s.http.post(f"http://x{where}", data=body(rest), headers=JSON, expect100=True)
            async with asked as answer:  # the body is asked for by who has found that it may come
                assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        assert await s.b.bodies(id, "message") == []
        assert s.b.harness.census.count("v1") == 1


@pytest.mark.parametrize("first", ["sweep", "turn"])
async def test_of_a_sweep_and_a_turn_at_the_same_moment_one_wins_whole(path: Path, first: str) -> None:
    clock = Clock()
    store = MemoryStore(path.parent, clock=clock)
    provider = FakeProvider(*[says(text("x")) for _ in range(20)])
    async with server(path, provider, store=store, caps=Caps(ttl=1000, turns=0), clock=clock) as s:
        ids = [await s.create() for _ in range(20)]
        clock.now += timedelta(seconds=2000)

        async def post(id: str) -> int:
            try:
                await s.served.drain.turns.begin(id, "me", "x")
            except Ended:
                return 404
            return 200

        async with asyncio.TaskGroup() as group:
            sweep = [group.create_task(s.b.harness.sweep())] if first == "sweep" else []
            posts = {id: group.create_task(post(id)) for id in ids}
            sweep = sweep or [group.create_task(s.b.harness.sweep())]
        await idle(s)
        for id, post_ in posts.items():
            kinds, status = await s.b.kinds(id), (await s.b.harness.info(id)).status
            taken = post_.result() == 200
            assert (kinds.count("message"), kinds.count("end")) == ((1, 0) if taken else (0, 1))
            assert status == ("closed" if taken else "expired")
        active = sum(one.result() == 200 for one in posts.values())
        assert s.b.harness.census.count("v1") == active
        assert active > 0 if first == "turn" else active < len(ids)


async def test_stops_ends_and_turns_at_once_leave_nothing_running(path: Path) -> None:
    async with server(path, FakeProvider(), caps=Caps(turns=4)) as s:
        s.b.provider.answers = [[text("x"), *says(text("y"))] for _ in range(200)]
        ids = [await s.create() for _ in range(4)]

        async def turns(id: str) -> None:
            for k in range(6):
                async with s.turn(id, query="?on_disconnect=stop" if k % 2 else "") as frames:
                    if frames.status == 200 and k % 3:
                        await frames.rest()

        async def stops(id: str) -> None:
            for _ in range(6):
                await s.call("POST", f"/sessions/{id}/stop?via=me")
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for id in ids:
                group.create_task(turns(id))
                group.create_task(turns(id))
                group.create_task(stops(id))
        for id in ids[:2]:
            assert (await s.call("DELETE", f"{V1}/{id}"))[0] == 204
        await idle(s)
        for id in ids:
            await s.b.harness.rested(id)
        await s.served.drain.turns.over()
        assert s.served.drain.turns.running == 0
        assert s.served.drain.turns._current == {}
        assert not s.served.drain.turns._tasks
        assert not any(info.status == "stepping" for info in await s.b.harness.list())


async def test_only_what_a_turn_began_needs_no_place_among_the_steps(path: Path) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    provider = FakeProvider([first, *says(text("native"))], [second, *says(text("turn"))], says(text("late")))
    async with server(path, provider, max_steps=1) as s:
        one, other = await s.create(), await s.create()
        await s.b.post(one, "from the native side")
        await provider.asked.wait()
        provider.asked.clear()
        await s.b.post(await s.b.session(""), "waits")
        await s.served.drain.turns.begin(other, "a", "a turn")
        await provider.asked.wait()
        assert [query.context.last.parts[-1] for query in provider.queries if query.context.last] == [
            Text("from the native side"),
            Text("a turn"),
        ]
        second.set()
        await settled(s, other)
        assert len(provider.queries) == 2
        first.set()
        await s.b.rest(one)


async def test_a_retry_after_a_failed_turn_waits_for_a_place(path: Path) -> None:
    hold = asyncio.Event()
    provider = FakeProvider(
        [ProviderError("no", status=400)], [hold, *says(text("x"))], *[says(text("y"))] * 2
    )
    async with server(path, provider, max_steps=1) as s:
        id = await s.create()
        await s.told(id)
        await settled(s, id)
        provider.asked.clear()
        native = await s.b.session("a")
        await provider.asked.wait()
        await s.b.harness.retry(id)
        await s.told(await s.create())
        assert await s.b.bodies(id, "text") == []  # a turn went by, and it waits for the native session
        hold.set()
        assert [await s.b.rest(native), await s.b.rest(id)] == ["closed", "closed"]


async def test_a_turn_that_goes_on_after_a_restart_is_counted_and_waited_for(path: Path) -> None:
    store = Store(path.parent / "d")
    async with server(path, FakeProvider([asyncio.Event()], [asyncio.Event()]), store=store) as s:
        id, native = await s.create(), await s.create()
        begun = await s.served.drain.turns.begin(id, "a", "hi")
        await s.b.provider.asked.wait()
        s.b.provider.asked.clear()
        await s.b.post(native, "from the native side")
        await s.b.provider.asked.wait()
    turn, other = asyncio.Event(), asyncio.Event()
    store = Store(path.parent / "d")
    provider = FakeProvider([turn, *says(text("on"))], [other, *says(text("on"))])
    async with server(path, provider, store=store, caps=Caps(turns=1)) as s:
        turns = s.served.drain.turns
        assert (turns.running, turns.goes_on(id, begun)) == (1, True)
        async with s.turn(await s.create()) as frames:
            assert frames.status == 429
        async with asyncio.TaskGroup() as group:
            group.create_task(s.served.drain.leave(0, 30))
            turn.set()
            other.set()
        assert turns.running == 0
        assert await s.b.rest(id) == await s.b.rest(native) == "closed"


async def test_what_is_posted_while_draining_is_answered_after_the_restart_and_not_before(path: Path) -> None:
    hold = asyncio.Event()
    provider = FakeProvider(says(text("first")), [hold, *says(text("then"))], says(text("both")))
    async with server(path, provider, store=Store(path.parent / "d")) as s:
        waiting, turning = await s.b.session("a"), await s.create()
        assert await s.b.rest(waiting) == "closed"
        async with s.turn(turning) as frames:
            await frames.until("message")
            async with asyncio.TaskGroup() as group:
                group.create_task(s.served.drain.leave(0, 30))
                await asyncio.sleep(0)
                posted = 0
                for id in (turning, waiting):
                    where = f"/sessions/{id}/records?via=me"
                    status, said = await s.call("POST", where, data=b"more", headers=TEXT)
                    assert status == 200, said
                    posted = said["n"]
                status, why = await s.call("POST", f"/sessions/{waiting}/retry")
                assert (status, "draining" in why) == (503, True)
                info = await s.b.harness.info(waiting)
                assert (info.status, info.n) == ("open", posted), "it is kept, and nobody works on it"
                assert not s.b.harness.resumed, "so that no stream takes it for one that is stuck"
                hold.set()
            assert (await frames.rest())[-1][2]["reason"] == "completed"
        assert len(provider.queries) == 3, "a session at work takes up what is posted to it"
        assert await s.b.bodies(waiting, "text") == ["first"]
    async with server(path, FakeProvider(says(text("second"))), store=Store(path.parent / "d")) as s:
        assert await s.b.rest(waiting) == "closed"
        assert await s.b.bodies(waiting, "text") == ["first", "second"]
        assert await s.b.bodies(turning, "text") == ["then", "both"]


async def test_a_turn_that_was_let_in_before_the_drain_is_taken_though_its_post_comes_after(
    path: Path,
) -> None:
    async with server(path, FakeProvider(says(text("x")))) as s:
        id = await s.create()
        session = await s.b.harness._sessions.get(id)
        async with asyncio.TaskGroup() as group, session.posting:
            begun = group.create_task(s.served.drain.turns.begin(id, "me", "hi"))
            await asyncio.sleep(0)
            leaving = group.create_task(s.served.drain.leave(0, 30))
            await asyncio.sleep(0)
            assert (s.served.drain.closed, leaving.done(), begun.done()) == (True, False, False)
        assert await s.b.rest(id) == "closed"
        assert await s.b.bodies(id, "text") == ["x"]


async def test_a_copy_of_a_session_with_a_turn_under_way_has_none(path: Path) -> None:
    hold = asyncio.Event()
    store = Store(path.parent / "d")
    async with server(path, FakeProvider([hold, *says(text("x"))], says(text("copy"))), store=store) as s:
        id = await s.create()
        n = await s.served.drain.turns.begin(id, "a", "hi")
        copy = await s.b.harness.create(api.Create(from_=id, n=n + 1))
        session = await s.b.harness._sessions.get(copy)
        assert (session.chain.turn, session.turn) == (n, 0)
        hold.set()
        await settled(s, id)

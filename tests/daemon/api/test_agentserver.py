import asyncio
import json
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from daemon.api.agentserver import Caps
from daemon.protocol import api
from daemon.provider.base import Delta, ProviderError
from daemon.statefile.memory import MemoryStore
from daemon.statefile.store import Store
from tests.daemon.api.agents import V1, server, settled
from tests.daemon.harness.doubles import Clock, FakePool, FakeProvider, run, says, text

NOBODY = "0" * 16


async def test_a_session_is_made_told_about_and_ended(path: Path) -> None:
    async with server(path, FakeProvider()) as s:
        status, made = await s.call("POST", V1, {"inputs": {"who": "Bob"}, "agent": "greeter"})
        assert status == 201
        assert made.keys() == {"id", "agentName", "runtimeType", "status", "createdAt"}
        assert (made["agentName"], made["runtimeType"], made["status"]) == ("greeter", "outrider", "active")
        one = f"{V1}/{made['id']}"
        assert await s.call("GET", one) == (200, made)
        assert await s.call("GET", V1) == (200, [made])
        assert await s.call("GET", f"{V1}?status=active") == (200, [made])
        assert await s.call("GET", f"{V1}?status=ended") == (200, [])
        assert await s.call("DELETE", one) == (204, None)
        assert await s.call("DELETE", one) == (204, None)
        assert (await s.call("GET", one))[1]["status"] == "ended"
        assert [found["id"] for found in (await s.call("GET", f"{V1}?status=ended"))[1]] == [made["id"]]
        assert (await s.call("GET", f"{V1}?status=busy"))[0] == 400


async def test_its_text_and_settings_come_from_the_definition(path: Path) -> None:
    async with server(path, FakeProvider()) as s:
        id = await s.create(who="${inputs.who}")
        info = await s.b.harness.info(id)
        assert (info.config.model, info.config.tools, info.config.agent, info.config.surface) == (
            "fake/m",
            ("run",),
            "greeter",
            "v1",
        )
        assert [ref.name for ref in info.config.workers] == ["local"]
        assert info.config.params == {"temperature": 0.5}
        found = [r for r in await (await s.b.harness.log(id)).read() if r.header.source == "agent"]
        assert found[0].text() == "Your role: Greeter\n\nBe brief.\n\nYour task:\nGreet ${inputs.who}."


async def test_an_empty_body_is_a_session_without_inputs(path: Path) -> None:
    async with server(path, FakeProvider()) as s:
        for more in ({}, {"data": b""}, {"data": b"", "headers": {"Content-Type": "application/json"}}):
            async with s.http.post(f"http://x{V1}", **more) as answer:
                assert answer.status == 201


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"inputs": {"who": 1}}, 422, "inputs.who: it is text, not 1"),
        ({"inputs": {"x": "y", "z": 1}}, 422, "inputs.x: there is no such input; there are who; inputs.z"),
        ({"inputs": []}, 422, "inputs: expected an object, not a list"),
        ({"agent": "nobody"}, 422, "agent: there is no agent 'nobody'; there are greeter"),
        ({"task": "x"}, 422, "task: there is no such field; known are inputs, agent"),
        ([], 422, "body: expected an object, not a list"),
    ],
)
async def test_a_bad_create_is_refused_by_its_field(path: Path, body: Any, status: int, said: str) -> None:
    async with server(path, FakeProvider()) as s:
        found = await s.call("POST", V1, body)
        assert found[0] == status
        assert found[1].startswith(said)
        assert await s.call("GET", V1) == (200, [])


async def test_what_is_not_json_is_400_and_what_is_not_there_404(path: Path) -> None:
    async with server(path, FakeProvider()) as s:
        id = await s.create()
        json = {"Content-Type": "application/json"}
        for where in (V1, f"{V1}/{id}/turns"):
            async with s.http.post(f"http://x{where}", data=b"{", headers=json) as answer:
                assert answer.status == 400
        assert (await s.call("POST", f"{V1}/{id}/turns", {"input": " \n"}))[0] == 400
        assert (await s.call("POST", f"{V1}/{id}/turns", {"input": ""}))[0] == 422
        assert (await s.call("POST", f"{V1}/{id}/turns", {}))[0] == 422
        for method, where in (("GET", ""), ("DELETE", ""), ("POST", "/turns"), ("GET", "/events")):
            assert (await s.call(method, f"{V1}/{NOBODY}{where}", {"input": "x"}))[0] == 404
        assert (await s.call("GET", f"{V1}/{id}/events?after=99"))[0] == 400


async def test_a_turn_is_a_stream_of_frames_that_ends_with_one_end(path: Path) -> None:
    provider = FakeProvider(says(text("I look"), run("c1", "ls", "local")), says(text("done")))
    async with server(path, provider) as s:
        id = await s.create()
        told = await s.told(id, "hello")
        assert [(type, data) for _, type, data in told if type != "model.response"] == [
            ("session.started", {"agentName": "greeter", "model": "fake/m"}),
            ("warning", told[1][2]),
            ("message", {"role": "user", "text": "hello"}),
            ("model.request", {"messageCount": 1}),
            ("message", {"role": "assistant", "text": "I look"}),
            ("tool.call", {"toolName": "run", "callId": "c1", "args": {"worker": "local", "code": "ls"}}),
            ("tool.result", {"callId": "c1", "isError": False, "content": "ls"}),
            ("model.request", {"messageCount": 3}),
            ("message", {"role": "assistant", "text": "done"}),
            ("session.ended", told[-1][2]),
        ]
        assert "skills" in told[1][2]["message"]
        assert told[-1][2]["reason"] == "completed"
        async with s.events(id) as frames:
            assert await frames.rest() == told


async def test_two_turns_of_one_session_go_on_where_the_first_ended(path: Path) -> None:
    async with server(path, FakeProvider(says(text("one")), says(text("two")))) as s:
        id = await s.create()
        await s.told(id)
        await settled(s, id)
        told = await s.told(id, "more")
        assert [data["text"] for _, type, data in told if type == "message"] == ["more", "two"]
        assert ("model.request", {"messageCount": 3}) in [(type, data) for _, type, data in told]


async def test_a_providers_failure_is_one_error_and_then_the_end(path: Path) -> None:
    async with server(path, FakeProvider([ProviderError("no such model", status=404)])) as s:
        told = await s.told(await s.create())
        assert [type for _, type, _ in told][-3:] == ["message", "error", "session.ended"]
        assert "no such model" in told[-2][2]["message"]
        assert told[-1][2]["reason"] == "error"


async def test_a_busy_session_is_409_while_another_is_free(path: Path) -> None:
    hold = asyncio.Event()
    async with server(path, FakeProvider([hold, *says(text("late"))], says(text("free")))) as s:
        busy, free = await s.create(), await s.create()
        async with s.turn(busy) as frames:
            await frames.until("message")
            status, said = await s.call("POST", f"{V1}/{busy}/turns", {"input": "more"})
            assert (status, "busy" in said) == (409, True)
            assert (await s.told(free))[-1][2]["reason"] == "completed"
            hold.set()
            assert (await frames.rest())[-1][2]["reason"] == "completed"


async def test_turns_past_the_cap_are_429_and_zero_is_no_cap(path: Path) -> None:
    hold = asyncio.Event()
    waiting = [hold, *says(text("late"))]
    async with server(path, FakeProvider(waiting, says(text("x"))), caps=Caps(turns=1)) as s:
        one, two = await s.create(), await s.create()
        async with s.turn(one) as frames:
            await frames.until("message")
            status, said = await s.call("POST", f"{V1}/{two}/turns", {"input": "x"})
            assert (status, "1 turns are running" in said) == (429, True)
            assert await s.b.kinds(two) == await s.b.kinds(await s.create())
            hold.set()
            await frames.rest()
        await settled(s, one)
        assert (await s.told(two))[-1][2]["reason"] == "completed"
    hold.clear()
    many = [[hold, *says(text("late"))] for _ in range(12)]
    async with server(path, FakeProvider(*many), caps=Caps(turns=0)) as s:
        ids = [await s.create() for _ in range(12)]
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(s.turn(id)) for id in ids]
            for frames in streams:
                await frames.until("message")
            assert s.served.drain.turns.running == 12
            hold.set()
            for frames in streams:
                assert (await frames.rest())[-1][2]["reason"] == "completed"


async def test_deleting_during_a_turn_stops_it_and_it_stays_ended(path: Path) -> None:
    async with server(path, FakeProvider([asyncio.Event()])) as s:
        id = await s.create()
        async with s.turn(id) as frames:
            await frames.until("message")
            assert (await s.call("DELETE", f"{V1}/{id}"))[0] == 204
            rest = await frames.rest()
        assert [type for _, type, _ in rest] == ["error", "session.ended"]
        assert rest[-1][2]["reason"] == "cancelled"
        assert (await s.call("GET", f"{V1}/{id}"))[1]["status"] == "ended"
        assert (await s.call("POST", f"{V1}/{id}/turns", {"input": "x"}))[0] == 404
        async with s.events(id) as frames:
            assert (await frames.rest())[-1][2]["reason"] == "cancelled"


async def test_a_client_that_goes_leaves_the_turn_and_takes_it_up_by_the_last_frame(path: Path) -> None:
    hold = asyncio.Event()
    provider = FakeProvider(says(text("one"), run("c", "x", "local")), [hold, *says(text("two"))])
    async with server(path, provider) as s:
        id = await s.create()
        async with s.turn(id) as frames:
            first = await frames.until("tool.result")
        assert (await s.b.harness.info(id)).status == "stepping"
        async with s.events(id, first[-1][0]) as frames:
            assert (await frames.next())[1] == "session.started"
            hold.set()
            rest = await frames.rest()
        assert [data["text"] for _, type, data in rest if type == "message"] == ["two"]
        numbers = [n for n, type, _ in (*first, *rest) if n and type != "session.ended"]
        assert numbers == sorted(set(numbers))
        assert rest[-1][2]["reason"] == "completed"


async def test_a_client_that_goes_may_take_the_turn_with_it(path: Path) -> None:
    async with server(path, FakeProvider([asyncio.Event()])) as s:
        id = await s.create()
        async with s.turn(id, query="?on_disconnect=stop") as frames:
            await frames.until("message")
        await settled(s, id)
        assert "stopped by v1" in (await s.b.bodies(id, "error"))[0]
        assert (await s.call("POST", f"{V1}/{id}/turns?on_disconnect=x", {"input": "x"}))[0] == 400


async def test_deltas_are_told_to_who_asks_for_them(path: Path) -> None:
    provider = FakeProvider(
        [Delta("text", "He"), Delta("text", "llo"), *says(text("Hello"))],
        [Delta("text", "x"), *says(text("y"))],
    )
    async with server(path, provider) as s:
        id = await s.create()
        async with s.turn(id, query="?deltas=1") as frames:
            told = await frames.rest()
        assert "".join(data["text"] for _, type, data in told if type == "message.delta") == "Hello"
        await settled(s, id)
        assert not any(type == "message.delta" for _, type, _ in await s.told(id))


async def test_the_callers_span_is_in_every_frame(path: Path) -> None:
    span = f"00-{'a' * 32}-{'b' * 16}-01"
    async with server(path, FakeProvider(says(text("x")), says(text("y")))) as s:
        for given, found in ((span, True), ("nonsense", False)):
            id = await s.create()
            async with s.http.post(
                f"http://x{V1}/{id}/turns", json={"input": "x"}, headers={"traceparent": given}
            ) as answer:
                lines = [line for line in (await answer.text()).split("\n") if line.startswith("data:")]
            assert all((span in line) is found for line in lines)


async def test_a_turn_goes_on_over_a_restart(path: Path) -> None:
    store = Store(path.parent / "data")
    async with server(path, FakeProvider([asyncio.Event()]), store=store) as s:
        id = await s.create()
        async with s.turn(id) as frames:
            seen = await frames.until("message")
            await s.served.drain.leave(0, 0)
            assert s.served.drain.turns.running == 1
    again = Store(path.parent / "data")
    async with server(path, FakeProvider(says(text("after all"))), store=again) as s:
        async with s.events(id, seen[-1][0]) as frames:
            told = await frames.rest()
        assert [data["text"] for _, type, data in told if type == "message"] == ["after all"]
        assert told[-1][2]["reason"] == "completed"


async def test_a_stream_that_ends_before_its_turn_says_so_and_has_its_end_too(path: Path) -> None:
    async with server(path, FakeProvider([asyncio.Event()])) as s:
        id = await s.create()
        async with s.turn(id) as frames:
            await frames.until("message")
            s.gate.close()
            found = await frames.rest()
    assert [type for _, type, _ in found] == ["warning", "session.ended"]
    assert (found[0][2]["kind"], found[1][2]["reason"]) == ("detached", "cancelled")


async def test_while_draining_what_is_new_is_refused_in_json_and_turns_end(path: Path) -> None:
    hold = asyncio.Event()
    async with server(path, FakeProvider([hold, *says(text("last words"))])) as s:
        id, other = await s.create(), await s.create()
        async with s.turn(id) as frames:
            await frames.until("message")
            assert (await s.call("GET", "/readyz"))[0] == 200
            async with asyncio.TaskGroup() as group:
                leaving = group.create_task(s.served.drain.leave(0, 30))
                await asyncio.sleep(0)
                assert (await s.call("GET", "/readyz"))[0] == 503
                assert (await s.call("GET", "/healthz"))[0] == 200
                for where, body in ((V1, {}), (f"{V1}/{other}/turns", {"input": "x"}), ("/sessions", {})):
                    status, said = await s.call("POST", where, body)
                    assert (status, "draining" in said) == (503, True)
                assert (await s.call("GET", f"{V1}/{id}"))[0] == 200
                assert not leaving.done()
                hold.set()
            assert (await frames.rest())[-1][2]["reason"] == "completed"


async def test_what_was_told_ready_is_taken_during_the_delay(path: Path) -> None:
    async with server(path, FakeProvider(says(text("x")))) as s, asyncio.TaskGroup() as group:
        leaving = group.create_task(s.served.drain.leave(3600, 0))
        await asyncio.sleep(0)
        assert (await s.call("GET", "/readyz"))[0] == 503
        assert (await s.told(await s.create()))[-1][2]["reason"] == "completed"
        leaving.cancel()


async def test_two_thousand_creates_at_once_never_exceed_the_cap(path: Path) -> None:
    async with server(path, FakeProvider(), caps=Caps(sessions=1500)) as s:
        statuses: list[int] = []
        ids: list[str] = []

        async def one() -> None:
            status, made = await s.call("POST", V1)
            statuses.append(status)
            if status == 201:
                ids.append(made["id"])

        async with asyncio.TaskGroup() as group:
            for _ in range(2000):
                group.create_task(one())
        assert (statuses.count(201), statuses.count(429)) == (1500, 500)
        assert len(set(ids)) == 1500
        assert s.b.harness.census.count("v1") == 1500
        assert await s.call("DELETE", f"{V1}/{ids[0]}") == (204, None)
        assert (await s.call("POST", V1))[0] == 201
        assert (await s.call("POST", V1))[0] == 429


async def test_two_thousand_creates_without_a_cap_give_two_thousand_ids(path: Path) -> None:
    async with server(path, FakeProvider(), caps=Caps(sessions=0)) as s:
        ids: list[str] = []

        async def one() -> None:
            ids.append(await s.create())

        async with asyncio.TaskGroup() as group:
            for _ in range(2000):
                group.create_task(one())
        assert len(set(ids)) == 2000


async def test_the_cap_counts_what_was_made_before_a_restart(path: Path) -> None:
    async with server(path, FakeProvider(), store=Store(path.parent / "d"), caps=Caps(sessions=2)) as s:
        first = await s.create()
        await s.b.session("")
    async with server(path, FakeProvider(), store=Store(path.parent / "d"), caps=Caps(sessions=2)) as s:
        await s.create()
        assert (await s.call("POST", V1))[0] == 429
        await s.b.harness.end(first, "me")
        await s.create()


async def test_an_idle_session_expires_and_one_that_steps_does_not(path: Path) -> None:
    clock, hold = Clock(), asyncio.Event()
    provider, store = FakeProvider([hold, *says(text("x"))]), MemoryStore(path.parent, clock=clock)
    async with server(path, provider, store=store, caps=Caps(ttl=1000), clock=clock) as s:
        idle, busy, native = await s.create(), await s.create(), await s.b.session("")
        async with s.turn(busy) as frames:
            await frames.until("message")
            await s.b.harness.sweep()
            assert (await s.call("GET", f"{V1}/{idle}"))[1]["status"] == "active"
            clock.now += timedelta(seconds=2000)
            await s.b.harness.sweep()
            assert (await s.call("GET", f"{V1}/{idle}"))[1]["status"] == "expired"
            assert (await s.call("GET", f"{V1}/{busy}"))[1]["status"] == "active"
            hold.set()
            assert (await frames.rest())[-1][2]["reason"] == "completed"
        assert (await s.b.harness.info(native)).status == "closed"
        assert (await s.call("POST", f"{V1}/{idle}/turns", {"input": "x"}))[0] == 404
        async with s.events(idle) as frames:
            assert (await frames.rest())[-1][2]["reason"] == "cancelled"
        assert await s.call("DELETE", f"{V1}/{idle}") == (204, None)
        assert [found["id"] for found in (await s.call("GET", f"{V1}?status=expired"))[1]] == [idle]


async def test_a_session_of_either_surface_is_seen_on_both(path: Path) -> None:
    async with server(path, FakeProvider(says(text("one")), says(text("two")))) as s:
        made, native = await s.create(), await s.b.session("from the native side")
        await s.b.rest(native)
        assert {info.id for info in await s.b.harness.list()} == {made, native}
        found = {one["id"]: one["agentName"] for one in (await s.call("GET", V1))[1]}
        assert found == {made: "greeter", native: ""}
        assert (await s.told(native, "more"))[-1][2]["reason"] == "completed"
        assert await s.b.bodies(native, "message") == ["from the native side", "more"]


async def test_a_native_create_may_name_an_agent_too(path: Path) -> None:
    async with server(path, FakeProvider()) as s:
        status, made = await s.call("POST", "/sessions", {"agent": "greeter", "inputs": {"who": "Eve"}})
        assert status == 201
        info = await s.b.harness.info(made["id"])
        assert (info.config.agent, info.config.surface, info.config.limits.ttl) == ("greeter", "", 0)
        asked = {"agent": "greeter", "params": {"temperature": 1}, "tools": "default"}
        _, made = await s.call("POST", "/sessions", asked)
        info = await s.b.harness.info(made["id"])
        assert (info.config.params, info.config.tools) == ({"temperature": 1}, "default")
        none: dict[str, list[str]] = {"workers": []}
        for more, workers in (({}, ("local",)), (none, ())):
            _, made = await s.call("POST", "/sessions", {"agent": "greeter", **more})
            info = await s.b.harness.info(made["id"])
            assert tuple(ref.name for ref in info.config.workers) == workers
        assert (await s.call("POST", "/sessions", {"inputs": {"who": "x"}}))[0] == 422
        assert (await s.call("POST", "/sessions", {"agent": "x"}))[0] == 422


async def test_a_daemon_without_definitions_says_how_to_get_one(path: Path) -> None:
    async with server(path, FakeProvider()) as s:
        s.b.harness.agents = {}
        status, said = await s.call("POST", V1)
        assert (status, "--agent FILE" in said) == (422, True)


async def test_native_sessions_wait_their_turn_past_max_steps(path: Path) -> None:
    holds = [asyncio.Event() for _ in range(3)]
    answers = [[hold, *says(text("x"))] for hold in holds]
    async with server(path, FakeProvider(*answers, says(text("free"))), max_steps=1) as s:
        first = await s.b.session("a")
        await s.b.provider.asked.wait()
        second, third = await s.b.session("b"), await s.b.session("c")
        assert len(s.b.provider.queries) == 1
        assert (await s.b.harness.info(second)).status == "stepping"
        await s.b.harness.stop(third, "me")
        holds[0].set()
        await s.b.rest(first)
        holds[1].set()
        assert await s.b.rest(second) == "closed"
        assert (await s.b.harness.info(third)).status == "failed"
        assert len(s.b.provider.queries) == 2


async def test_every_config_keeps_where_it_came_from(path: Path) -> None:
    async with server(path, FakeProvider()) as s:
        id = await s.create()
        await s.b.harness.patch_config(id, "me", api.ConfigPatch(context=5000))
        config = (await s.b.harness.info(id)).config
        assert (config.agent, config.surface, config.context) == ("greeter", "v1", 5000)
        assert structs.replace(config, context=0).limits.ttl == 0


async def test_a_pool_without_its_worker_fails_the_call_and_not_the_turn(path: Path) -> None:
    provider = FakeProvider(says(run("c", "x", "local")), says(text("then not")))
    async with server(path, provider, pool=FakePool()) as s:
        told = await s.told(await s.create())
        assert [data["isError"] for _, type, data in told if type == "tool.result"] == [True]
        assert told[-1][2]["reason"] == "completed"


@pytest.mark.parametrize("data", [b"", b"not a record\n"])
async def test_a_session_whose_first_record_does_not_read_is_told_without_a_time_that_is_none(
    path: Path, data: bytes
) -> None:
    async with server(path, FakeProvider(), store=Store(path.parent / "d")) as s:
        id = await s.create()
        file = path.parent / "d" / "sessions" / f"{id}.state"
    await asyncio.to_thread(file.write_bytes, data)
    async with server(path, FakeProvider(), store=Store(path.parent / "d")) as s:
        status, told = await s.call("GET", f"{V1}/{id}")
        assert (status, told["createdAt"]) == (200, None)
        assert (await s.call("GET", V1))[1] == [told]
        async with s.http.get(f"http://x{V1}/{id}/events") as answer:
            frames = [line for line in (await answer.text()).splitlines() if line.startswith("data: ")]
        assert all(datetime.fromisoformat(json.loads(frame[6:])["ts"]) for frame in frames)
        why, last = (json.loads(frame[6:]) for frame in frames[-2:])
        assert (why["type"], why["data"]["kind"]) == ("error", "damaged")
        assert why["data"]["message"].startswith("the session's file is damaged: record 1 at byte 0: ")
        assert (last["type"], last["data"]["reason"]) == ("session.ended", "error")

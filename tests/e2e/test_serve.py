"""`outrider serve` as it is used: one definition, a key, turns over HTTP, and an end that loses none of them."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemon.worker import keeper
from tests.e2e.driving import processes
from tests.running import Place, place

TURNS = 20
AGENT = """\
apiVersion: agent-controller.dev/v1alpha1
kind: Agent
metadata: {{name: waiter}}
spec:
  model: {{provider: rehearsal, name: {model}}}
  task: Wait for ${{inputs.what}}.
  tools: [{{name: bash}}]
  inputs: {{what: {{default: it}}}}
"""
SAID = '[[steps]]\ntext = "done"\n'


def running(code: str) -> str:
    """A script that runs this code, and then says that it is done."""
    arguments = f"arguments = {{ worker = '{{worker}}', code = '{code}' }}"
    return f"[[steps]]\ntext = 'I wait.'\n[[steps.calls]]\ntool = 'run'\n{arguments}\n{SAID}"


@pytest.fixture
def here() -> Iterator[Place]:
    with place() as here:
        yield here


def definition(here: Place, script: str) -> str:
    """An agent that plays a rehearsal; the path of its file."""
    here.script("waiting", script)
    file = here.home / "agent.yaml"
    file.write_text(AGENT.format(model="waiting"))
    return str(file)


@contextmanager
def serving(
    here: Place, file: str, *more: str, **environ: str
) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """(The process, what it said of itself) of a running `serve` on a free port."""
    with here.start("serve", file, "--port", "0", "--json", *more, **environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read())
        try:
            yield process, json.loads(line)
        finally:
            if process.poll() is None:  # what is in memory takes its folder with it
                process.terminate()
                process.wait(30)


@asynccontextmanager
async def client(said: Any, key: str = "") -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {key or said['key']}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(said["url"], headers=headers, connector=connector) as http:
        yield http


async def create(http: aiohttp.ClientSession) -> str:
    async with http.post("/v1/sessions") as answer:
        assert answer.status == 201
        return str((await answer.json())["id"])


async def turn(http: aiohttp.ClientSession, id: str, begun: asyncio.Event) -> list[str]:
    """The types of a turn's frames; `begun` is set at the first one of a call."""
    types = []
    async with http.post(f"/v1/sessions/{id}/turns", json={"input": "go"}) as answer:
        assert answer.status == 200
        async for line in answer.content:
            if line.startswith(b"event: "):
                types.append(line[7:].decode().strip())
                if types[-1] == "tool.call":
                    begun.set()
    begun.set()
    return types


def test_a_turn_over_http_and_its_session_in_the_list(here: Place) -> None:
    file = definition(here, running("echo hi"))

    async def use(said: Any) -> str:
        async with client(said) as http:
            id = await create(http)
            types = await turn(http, id, asyncio.Event())
            assert types == [
                "session.started", "message", "model.request", "message", "tool.call", "model.response",
                "tool.result", "model.request", "message", "model.response", "session.ended",
            ]  # fmt: skip
            async with http.get("/v1/sessions", headers={"Authorization": "Bearer ork_wrong"}) as answer:
                assert answer.status == 401
            return id

    with serving(here, file) as (process, said):
        assert said["agent"] == "waiter"
        id = asyncio.run(use(said))
        assert id in here.ok("ls")
        assert "echo hi" in here.ok("tail", id)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_sigterm_loses_no_turn_and_refuses_nothing_that_was_told_ready(here: Place) -> None:
    gate = here.home / "gate"
    file = definition(here, running(f"until [ -e {gate} ]; do sleep 0.05; done"))

    async def use(process: subprocess.Popen[str], said: Any) -> None:
        refused: list[int] = []
        leaving = asyncio.Event()
        async with client(said) as http, asyncio.TaskGroup() as group:
            ids = [await create(http) for _ in range(TURNS)]
            begun = [asyncio.Event() for _ in ids]
            turns = [group.create_task(turn(http, id, event)) for id, event in zip(ids, begun, strict=True)]
            for event in begun:
                await event.wait()

            async def balance() -> int:
                """Send a request after each time that /readyz says it may; how many were taken."""
                taken = 0
                while True:
                    async with http.get("/readyz") as answer:
                        if answer.status == 503:
                            leaving.set()
                            return taken
                    async with http.post("/v1/sessions") as answer:
                        if answer.status != 201:
                            refused.append(answer.status)
                        taken += 1

            balancing = group.create_task(balance())
            process.send_signal(signal.SIGTERM)
            await leaving.wait()
            gate.touch()
            found = [await one for one in turns]
            await balancing
        assert refused == []
        assert all(types[-1] == "session.ended" and types.count("session.ended") == 1 for types in found)
        assert all("tool.result" in types and "error" not in types for types in found)

    more = ("--max-concurrent-turns", "0", "--drain-delay", "2s", "--shutdown-grace", "60s")
    with serving(here, file, *more) as (process, said):
        asyncio.run(use(process, said))
        assert process.wait(50) == 0
    here.up()
    assert {info["status"] for info in here.json("ls")} == {"closed"}


def test_a_turn_that_outlasts_the_grace_goes_on_at_the_next_start(here: Place) -> None:
    gate = here.home / "gate"
    fifo = here.home / "fifo"
    os.mkfifo(fifo)
    code = f"echo ran >> {here.home}/ran; echo > {fifo}; until [ -e {gate} ]; do sleep 0.05; done"
    file = definition(here, running(code))
    more = ("--shutdown-grace", "0s")

    async def begin(process: subprocess.Popen[str], said: Any) -> tuple[str, list[str]]:
        async with client(said) as http, asyncio.TaskGroup() as group:
            id = await create(http)
            going = group.create_task(turn(http, id, asyncio.Event()))
            await asyncio.to_thread(fifo.read_text)  # it runs
            process.send_signal(signal.SIGTERM)
            types = await going
        return id, types

    async def attach(said: Any, id: str) -> bytes:
        async with client(said) as http, http.get(f"/v1/sessions/{id}/events") as answer:
            gate.touch()
            return await answer.read()

    with serving(here, file, *more) as (process, said):
        id, types = asyncio.run(begin(process, said))
        assert types[-2:] == ["warning", "session.ended"]
        assert process.wait(30) == 0
    with serving(here, file, *more) as (process, said):
        told = asyncio.run(attach(said, id)).decode()
        assert '"reason":"completed"' in told
        assert told.count("event: tool.result") == 1
    assert (here.home / "ran").read_text() == "ran\n"


async def numbered(answer: aiohttp.ClientResponse, until: str) -> list[tuple[int, str]]:
    """(id, type) of the frames with a number, up to the first of a type."""
    assert answer.status == 200
    found, n = [], 0
    async for line in answer.content:
        if line.startswith(b"id: "):
            n = int(line[4:])
        elif line.startswith(b"event: "):
            type = line[7:].decode().strip()
            found += [(n, type)] if n else []
            n = 0
            if type == until:
                return found
    raise AssertionError(f"the stream ended before {until}: {found}")


def test_killed_in_a_turn_again_and_again_it_is_told_once_each_frame(here: Place) -> None:
    gates = [here.home / f"gate{k}" for k in range(2)]
    waits = [f"until [ -e {gate} ]; do sleep 0.05; done; echo {gate.name}" for gate in gates]
    file = definition(here, "".join(running(code).removesuffix(SAID) for code in waits) + SAID)
    seen: list[tuple[int, str]] = []

    async def begin(said: Any) -> str:
        async with client(said) as http:
            id = await create(http)
            async with http.post(f"/v1/sessions/{id}/turns", json={"input": "go"}) as answer:
                seen.extend(await numbered(answer, "tool.call"))
        return id

    async def go_on(said: Any, id: str, after: int, until: str) -> list[tuple[int, str]]:
        last = {"Last-Event-ID": str(after)}
        async with client(said) as http, http.get(f"/v1/sessions/{id}/events", headers=last) as answer:
            return await numbered(answer, until)

    with serving(here, file) as (process, said):
        id = asyncio.run(begin(said))
        process.kill()
    gates[0].touch()
    with serving(here, file) as (process, said):
        seen += asyncio.run(go_on(said, id, seen[-1][0], "tool.call"))
        process.kill()
    gates[1].touch()
    with serving(here, file) as (_, said):
        seen += asyncio.run(go_on(said, id, seen[-1][0], "session.ended"))
        assert seen == asyncio.run(go_on(said, id, 0, "session.ended"))
    assert [type for _, type in seen].count("tool.result") == 2
    assert [type for _, type in seen].count("message") == 4


def test_a_second_signal_ends_it_at_once_and_one_at_the_start_in_order(here: Place) -> None:
    file = definition(here, running("sleep 600"))

    async def begin(said: Any) -> str:
        async with client(said) as http:
            id = await create(http)
            async with http.post(f"/v1/sessions/{id}/turns", json={"input": "go"}) as answer:
                await numbered(answer, "tool.call")
        return id

    async def drained(said: Any) -> None:
        async with client(said) as http:
            while True:
                async with http.get("/readyz") as answer:
                    if answer.status == 503:
                        return

    with serving(here, file, "--shutdown-grace", "0") as (process, said):
        id = asyncio.run(begin(said))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with serving(here, file, "--shutdown-grace", "600s") as (process, said):
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0  # the turn that goes on from before was not begun on this surface
    with serving(here, file, "--drain-delay", "600s") as (process, said):
        process.send_signal(signal.SIGTERM)
        asyncio.run(drained(said))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
    with here.start("serve", file, "--port", "0") as process:
        assert process.stderr is not None
        process.stderr.readline()  # it is on its way
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
    here.up()
    assert here.json("ls")[0]["id"] == id
    assert "agent    waiter" in here.ok("info", id)


def test_in_memory_nothing_is_kept(here: Place) -> None:
    file = definition(here, SAID)

    async def use(said: Any) -> list[str]:
        async with client(said) as http:
            return await turn(http, await create(http), asyncio.Event())

    with serving(here, file, "--in-memory") as (process, said):
        folder = Path(said["data"])
        assert folder.is_dir()
        assert asyncio.run(use(said))[-1] == "session.ended"
        assert not list((folder / "sessions").glob("*.state"))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert not folder.exists()
    assert not here.data.exists()


def test_what_a_killed_one_left_in_memory_goes_with_the_next_start(here: Place) -> None:
    file = definition(here, running("true").removesuffix(SAID) + running("sleep 600"))
    temporary = here.home / "t"
    mine = temporary / "outrider-memory-mine"
    mine.mkdir(parents=True)

    async def use(said: Any) -> None:
        async with client(said) as http:
            turns = f"/v1/sessions/{await create(http)}/turns"
            async with http.post(turns, json={"input": "go"}) as answer:
                while b"tool.result" not in await answer.content.readline():
                    pass

    with serving(here, file, "--in-memory", TMPDIR=str(temporary)) as (first, said):
        left = Path(said["data"])
        asyncio.run(use(said))
        worker = keeper.holder(left / "worker" / keeper.LOCK)
        assert worker in processes(str(left))
        with serving(here, file, "--in-memory", TMPDIR=str(temporary)) as (_, other):
            assert left.is_dir(), "one that runs is left alone"
            assert Path(other["data"]).parent == temporary
            first.kill()
            first.wait()
        assert left.is_dir()
        assert keeper.holder(left / "worker" / keeper.LOCK) == worker
        with serving(here, file, "--in-memory", TMPDIR=str(temporary)):
            assert not left.exists()
            assert processes(str(left)) == []
    assert list(temporary.iterdir()) == [mine]


def test_the_key_may_be_chosen_and_is_not_said(here: Place) -> None:
    file = definition(here, SAID)
    chosen = "a-key-of-my-own-choosing"

    async def use(said: Any) -> None:
        async with client(said, chosen) as http:
            await create(http)
            async with http.get("/keys") as answer:
                assert answer.status == 403  # it is operator's

    with serving(here, file, "--in-memory", OUTRIDER_KEY=chosen) as (process, said):
        assert said["key"] == ""
        asyncio.run(use(said))
        assert chosen not in Path(f"/proc/{process.pid}/cmdline").read_text()


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["none.yaml"], {}, "none.yaml: No such file or directory"),
        (["FILE", "--session-ttl", "soon"], {}, "--session-ttl: 'soon' is not a time; write it as 30s"),
        (["FILE", "--host", "0.0.0.0", "--in-memory"], {}, "loopback"),
        (["FILE", "--in-memory", "--data", "x"], {}, "leave one of the two out"),
        (["."], {}, ". is a folder, and this takes one definition"),
        (["FILE", "--in-memory"], {"OUTRIDER_KEY": "short"}, "OUTRIDER_KEY has 5 characters"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(
    here: Place, arguments: list[str], environ: dict[str, str], said: str
) -> None:
    file = definition(here, SAID)
    done = here.outrider("serve", *(file if word == "FILE" else word for word in arguments), **environ)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_taken_already_is_said_with_the_way_out(here: Place) -> None:
    file = definition(here, SAID)
    with serving(here, file) as (_, said):
        port = said["url"].rpartition(":")[2]
        for more, why in (
            (["--port", "0"], "or name another data folder with --data FOLDER, or --in-memory for none"),
            (
                ["--port", port, "--in-memory"],
                "Address already in use; choose another --port, 0 for a free one",
            ),
        ):
            done = here.outrider("serve", file, *more)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.rstrip().endswith(why)


def test_a_model_that_is_not_served_is_warned_of_at_the_start(here: Place) -> None:
    file = definition(here, SAID)
    Path(file).write_text(AGENT.format(model="missing"))
    with serving(here, file, "--in-memory") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "spec.model: " in process.stderr.read()


def test_a_service_manager_is_told_when_it_is_ready_and_when_it_stops(here: Place) -> None:
    address = str(here.home / "notify")
    file = definition(here, SAID)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(30)
        with serving(here, file, "--in-memory", NOTIFY_SOCKET=address) as (process, _):
            assert manager.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert process.wait(30) == 0


def test_a_definition_is_checked_without_a_daemon(here: Place) -> None:
    file = definition(here, SAID)
    assert "agent waiter can be used: rehearsal/waiting, run" in here.ok("agent", "check", file)
    assert here.json("agent", "check", file)["name"] == "waiter"
    Path(file).write_text("kind: Agent\n")
    done = here.outrider("agent", "check", file)
    assert done.returncode == 1
    assert "begins with apiVersion" in done.stderr


def test_a_daemon_takes_definitions_by_file_and_folder(here: Place) -> None:
    file = definition(here, SAID)
    here.json("up", "--listen", "none", "--agent", os.path.dirname(file))
    id = here.ok("new", "--agent", "waiter", "--input", "what=the end").strip()
    assert "Wait for the end." in here.ok("tail", "--full", id)
    head, row = here.ok("ls").splitlines()
    assert head.split() == ["ID", "STATUS", "UPDATED", "CONTEXT", "AGENT", "MODEL", "TITLE"]
    assert row.split()[-3] == "waiter"
    done = here.outrider("new", "--agent", "nobody")
    assert "there is no agent 'nobody'" in done.stderr

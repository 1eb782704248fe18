"""Overhead of a step: from the end of the model's reply to the arrival of the next request, at three lengths."""

import argparse
import asyncio
import secrets
import statistics
import time
from pathlib import Path

import aiohttp
import common

from daemon.client import Client
from daemon.harness import prompt
from daemon.protocol import api
from daemon.protocol.records import (
    TEXT,
    CallBody,
    Config,
    Usage,
    WorkerRef,
    draft,
    json_draft,
)
from daemon.statefile.store import Store

MODEL = "anthropic/claude-sonnet-5"
WARM = 10  # steps that are not counted


async def build(data: Path, steps: int) -> str:
    """A closed session of so many steps, each with a call of `true`; its id."""
    store = Store(data)
    with store.lock():
        config = Config(
            MODEL, workers=(WorkerRef("local", str(data)),), context=10**9, params={"max_tokens": 1000}
        )
        first = [
            draft("start"),
            json_draft("config", config),
            draft("system", prompt.SYSTEM, source="harness"),
            draft("system", "(workers)", source="workers"),
        ]
        id, log = await store.create(*first)
        await log.append(draft("message", f"[[conv:{id}]] go", via="bench"))
        for k in range(steps):
            step = secrets.token_hex(8)
            call = CallBody("run", '{"worker":"local","code":"true"}')
            last = k == steps - 1
            blocks = [draft("text", "Next.", step=step)]
            if not last:
                blocks.append(json_draft("call", call, id=f"toolu_{id}_{k}", step=step))
            closing = draft(
                "step",
                id=step,
                provider="anthropic",
                model="claude-sonnet-5",
                upto=log.n,
                usage=Usage(100, 20),
                stop="tool_use",
            )
            after = (
                []
                if last
                else [draft("result", "", for_=f"toolu_{id}_{k}", worker="local", exit=0, seconds=0.001)]
            )
            await log.append(*blocks, closing, *after, durable=last)
        await store.close()
    return id


async def measure(data: Path, lengths: list[int], counted: int) -> None:
    ids = {length: await build(data, length) for length in lengths}
    with common.mock() as url, common.daemon(data, url) as socket:
        async with common.client(socket) as one, aiohttp.ClientSession() as http:
            rows: dict[int, tuple[list[float], list[float], int]] = {}
            floors: list[float] = []
            for length, id in ids.items():
                await common.configure(http, url, calls=WARM + counted)
                floor = [
                    common.median_ms(await common.whole_requests(http, url, 2_000, 100)),
                    common.median_ms(common.fsynced_append(data / "floor", 50)),
                    common.median_ms(common.pipe_round_trips(50)),
                ]
                floors.append(sum(floor))
                await common.configure(http, url, calls=WARM + counted)
                await one.post(id, [api.Part(TEXT, b"again")], "bench")
                status = await common.until_rest(one, id)
                if status != "closed":
                    raise SystemExit(f"the session ended {status}: {(await one.info(id))}")
                log = await common.log_of(http, url)
                gaps = [log[i + 1]["body"] - log[i]["end"] for i in range(WARM, len(log) - 1)]
                size = int(log[-1]["size"])
                bare = await common.bare_requests(http, url, size, 30)
                rows[length] = (gaps, bare, size)
                print(
                    f"at step {length:6}: {common.ms(gaps)}   body {size / 1e6:6.2f} MB, bare request of that size "
                    f"{common.median_ms(bare):6.2f} ms   floor {floor[0]:.2f} request + {floor[1]:.2f} fsync + "
                    f"{floor[2]:.2f} pipe = {sum(floor):.2f} ms",
                    flush=True,
                )
    base = statistics.median(floors)
    small = common.median_ms(rows[lengths[0]][0])
    print(f"median at step {lengths[0]} over the floor: {small / base:.2f} times (aim: at most 2)")
    grown = [
        common.median_ms(gaps) - common.median_ms(bare)
        for gaps, bare, _ in (rows[lengths[0]], rows[lengths[-1]])
    ]
    where = f"at step {lengths[-1]} over step {lengths[0]}, without the request"
    print(f"{where}: {grown[1] / grown[0]:.2f} (aim: at most 1.3)")


async def many(data: Path, sessions: int, steps: int) -> None:
    with common.mock() as url, common.daemon(data, url) as socket:
        async with common.client(socket) as one, aiohttp.ClientSession() as http:
            await common.configure(http, url, calls=steps)
            ref = WorkerRef("local", str(data))
            ids = [
                await one.create(api.Create(model=MODEL, workers=(ref,), context=10**9))
                for _ in range(sessions)
            ]
            start = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                waits = [group.create_task(go(one, id)) for id in ids]
            taken = time.perf_counter() - start
            closed = sum(task.result() == "closed" for task in waits)
            made = sum(entry["conv"] != "floor" for entry in await common.log_of(http, url))
    rate = f"{made / taken:.0f} steps a second, {closed} closed (aim: over 400)"
    print(f"{sessions} sessions of {steps} steps at once: {rate}")


async def go(one: Client, id: str) -> str:
    await one.post(id, [api.Part(TEXT, f"[[conv:{id}]] go".encode())], "bench")
    return await common.until_rest(one, id)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="50,1000,10000")
    parser.add_argument("--counted", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    with common.folder() as one_folder:
        asyncio.run(measure(one_folder, [int(n) for n in asked.lengths.split(",")], asked.counted))
    with common.folder() as one_folder:
        asyncio.run(many(one_folder, asked.sessions, asked.steps))

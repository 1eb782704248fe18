"""A Messages API that plays a script: `python tests/mock_messages.py --port 0` prints `PORT n`.

What it answers is decided by the request body alone, so it is the same after a restart of whoever asks: with k
assistant turns in the body, the answer is `parallel` calls of `run` while k modulo (calls + 1) is below `calls`, and
a final text otherwise. `[[conv:ID]]` in the first user message names the conversation; no two may share one. In
`code`, `text` and `final` stand {conv}, {k} and {p} (which of the parallel calls). A body that the real service
would refuse is answered 400.

GET or POST /_ctl/config   the script, see `Script`; POST takes a part of it, and forgets nothing
GET /_ctl/log              one entry a request: conv, k, attempt, bytes, status, whether the answer was sent whole
GET /_ctl/bad              what was wrong, one entry a bad request: conv, k, problems
POST /_ctl/release         let go what `hold` or `stall` holds back
POST /_ctl/reset           forget the log, what was bad, the tries and what was held back
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

CONV = re.compile(r"\[\[conv:([A-Za-z0-9_.-]+)\]\]")
MAX_REQUEST = 1 << 30  # the service's own limit is far lower; a campaign's histories may pass it
Check = Callable[[bytes], list[str]]


class Script(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is answered. Delays in seconds.

    `trouble` befalls the first `tries` tries (-1: all) of each step whose number `every` divides: `status` answers
    that HTTP status, with `retry_after` where it is given; `stall` and `cut` stop or break the stream after `after`
    events; `hold` does not answer at all.
    """

    calls: int = 3
    parallel: int = 1
    worker: str = "local"
    code: str = "echo {conv}.{k}.{p}"
    text: str = "Step {k}."
    final: str = "All done."
    input_tokens: int = 100
    output_tokens: int = 20
    first_delay: float = 0
    event_delay: float = 0
    trouble: Literal["", "status", "stall", "cut", "hold"] = ""
    tries: int = -1
    every: Annotated[int, Meta(ge=1)] = 1
    after: int = 3
    status: int = 529
    retry_after: str = ""


class Entry(Struct):
    """One request in the log."""

    conv: str
    k: int
    attempt: int
    bytes: int
    status: int = 0
    whole: bool = False


class Bad(Struct):
    """One request that was not as it should be."""

    conv: str
    k: int
    problems: list[str]


class History:
    """What earlier requests of one conversation said, to hold later ones to it: what is settled never changes."""

    def __init__(self) -> None:
        self._settled: dict[int, str] = {}
        self._sent: dict[int, set[str]] = {}
        self._fixed: dict[str, str] = {}
        self._systems: set[str] = set()

    def check(self, body: dict[str, Any], k: int) -> list[str]:
        """In what way this request says something else than the ones before, apart from cache marks."""
        problems = []
        messages = [_print(message) for message in body["messages"]]
        for at, print_ in enumerate(messages[:-1]):
            if self._settled.setdefault(at, print_) != print_:
                problems.append(f"messages.{at}: not what it was when it was settled")
            elif at % 2 == 0 and print_ not in self._sent.get(at, {print_}):
                problems.append(f"messages.{at}: settled as something else than was sent")
        self._sent.setdefault(len(messages) - 1, set()).add(messages[-1])
        system = _print(body.get("system"))
        if k == 0:
            self._systems.add(system)
        elif self._systems and system not in self._systems:
            problems.append("system: not what the first request had")
        problems += [
            f"{name}: not what it was"
            for name in ("model", "tools", "max_tokens")
            if self._fixed.setdefault(name, _print(body.get(name))) != _print(body.get(name))
        ]
        return problems


class Mock:
    """The server's state; one script for all conversations."""

    def __init__(self, check: Check, record: IO[bytes] | None) -> None:
        self.script = Script()
        self._check = check
        self._record = record
        self._held = asyncio.Event()
        self._forget()

    def _forget(self) -> None:
        self._log: list[Entry] = []
        self._bad: list[Bad] = []
        self._tries: Counter[tuple[str, int]] = Counter()
        self._histories: dict[str, History] = {}

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_REQUEST)
        app.add_routes(
            [
                web.post("/v1/messages", self._messages),
                web.get("/_ctl/config", self._get_config),
                web.post("/_ctl/config", self._set_config),
                web.get("/_ctl/log", self._get_log),
                web.get("/_ctl/bad", self._get_bad),
                web.post("/_ctl/release", self._release),
                web.post("/_ctl/reset", self._reset),
            ]
        )
        return app

    async def _get_config(self, _: web.Request) -> web.Response:
        return _json(self.script)

    async def _set_config(self, request: web.Request) -> web.Response:
        try:
            part = msgspec.json.decode(await request.read(), type=dict[str, Any])
            self.script = msgspec.convert(msgspec.structs.asdict(self.script) | part, Script)
        except msgspec.DecodeError as error:
            return web.json_response({"error": str(error)}, status=400)
        return _json(self.script)

    async def _get_log(self, _: web.Request) -> web.Response:
        return _json(self._log)

    async def _get_bad(self, _: web.Request) -> web.Response:
        return _json(self._bad)

    async def _release(self, _: web.Request) -> web.Response:
        self._held.set()
        self._held = asyncio.Event()
        return web.Response(status=204)

    async def _reset(self, _: web.Request) -> web.Response:
        self._forget()
        return web.Response(status=204)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        problems = self._check(body)
        conv, k = "?", -1
        if not problems:
            value = json.loads(body)
            conv, k = _conv(value), sum(message["role"] == "assistant" for message in value["messages"])
            changed = self._histories.setdefault(conv, History()).check(value, k)
            if changed:
                self._bad.append(Bad(conv, k, changed))
        attempt = self._tries[conv, k]
        self._tries[conv, k] += 1
        entry = Entry(conv, k, attempt, len(body))
        self._log.append(entry)
        if self._record is not None:
            line = {"conv": conv, "k": k, "attempt": attempt, "body": body.decode("utf-8", "replace")}
            self._record.write(json.dumps(line).encode() + b"\n")
            self._record.flush()
        if problems:
            self._bad.append(Bad(conv, k, problems))
            return _error(entry, 400, "invalid_request_error", "; ".join(problems))
        return await self._answer(request, entry)

    async def _answer(self, request: web.Request, entry: Entry) -> web.StreamResponse:
        script, held = self.script, self._held
        befallen = script.tries < 0 or entry.attempt < script.tries
        trouble = script.trouble if befallen and entry.k % script.every == 0 else ""
        if trouble == "status":
            headers = {"retry-after": script.retry_after} if script.retry_after else {}
            return _error(entry, script.status, "overloaded_error", "Overloaded", headers)
        if trouble == "hold":
            await held.wait()
        await asyncio.sleep(script.first_delay)
        entry.status = 200
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "request-id": "req_mock"})
        try:
            await response.prepare(request)
            for at, event in enumerate(_events(script, entry)):
                if at == script.after and trouble == "stall":
                    await held.wait()
                if at == script.after and trouble == "cut":
                    assert request.transport is not None
                    request.transport.abort()
                await response.write(event)
                if script.event_delay:
                    await asyncio.sleep(script.event_delay)
            await response.write_eof()
            entry.whole = True
        except ConnectionError:
            pass  # whoever asked is gone, or was cut off by us
        return response


def _events(script: Script, entry: Entry) -> Iterator[bytes]:
    """The answer as server-sent events; its last bytes are its last event."""
    conv, k = entry.conv, entry.k
    count = script.parallel if k % (script.calls + 1) < script.calls else 0
    usage = {"input_tokens": script.input_tokens + 10 * k, "output_tokens": 1}
    message = {
        "id": f"msg_{conv}_{k}",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "content": [],
    }
    yield _event("message_start", message=message | {"stop_reason": None, "usage": usage})
    said = _filled(script.text if count else script.final, conv, k)
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for piece in _halves(said):
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
    yield _event("content_block_stop", index=0)
    for p in range(count):
        block = {
            "type": "tool_use",
            "id": f"toolu_{conv}_{k}_{p}".replace(".", "_"),
            "name": "run",
            "input": {},
        }
        yield _event("content_block_start", index=p + 1, content_block=block)
        for piece in _halves(json.dumps({"worker": script.worker, "code": _filled(script.code, conv, k, p)})):
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield _event("content_block_delta", index=p + 1, delta=delta)
        yield _event("content_block_stop", index=p + 1)
    stop = {"stop_reason": "tool_use" if count else "end_turn", "stop_sequence": None}
    yield _event("message_delta", delta=stop, usage={"output_tokens": script.output_tokens})
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _filled(text: str, conv: str, k: int, p: int = 0) -> str:
    return text.replace("{conv}", conv).replace("{k}", str(k)).replace("{p}", str(p))


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _conv(body: dict[str, Any]) -> str:
    found = CONV.search(json.dumps(body["messages"][0]))
    return found[1] if found else "default"


def _print(value: Any) -> str:
    """A fingerprint of a JSON value without its cache marks."""
    return hashlib.sha256(json.dumps(_unmarked(value), sort_keys=True).encode()).hexdigest()


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(item) for name, item in value.items() if name != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _error(
    entry: Entry, status: int, kind: str, message: str, headers: dict[str, str] | None = None
) -> web.Response:
    entry.status = status
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_mock"}
    return web.json_response(body, status=status, headers=headers)


async def serve(port: int, check: Check, record: IO[bytes] | None, until_eof: bool) -> None:
    """Serve on loopback until cancelled, or until stdin is closed; prints the port."""
    runner = web.AppRunner(Mock(check, record).application(), access_log=None, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    sys.stdout.write(f"PORT {runner.addresses[0][1]}\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    if until_eof:
        fd = sys.stdin.fileno()

        def at_end() -> None:
            if not os.read(fd, 4096):
                os._exit(0)  # who asked is gone; requests that are held would keep a clean end waiting

        asyncio.get_running_loop().add_reader(fd, at_end)
    try:
        await ended.wait()
    finally:
        await runner.cleanup()


def main() -> None:
    """The script's entry."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from daemon.provider.rules_messages import problems

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--record", help="a file that each request's body is appended to, as lines of JSON")
    parser.add_argument("--until-eof", action="store_true", help="end when stdin is closed")
    given = parser.parse_args()
    record = open(given.record, "ab") if given.record else None  # noqa: SIM115 - open as long as the process
    asyncio.run(serve(given.port, problems, record, given.until_eof))


if __name__ == "__main__":
    main()

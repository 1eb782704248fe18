"""A model server for benchmarks: answers each request with one tool call until a session has had its number of them.

Speaks Anthropic Messages and Chat Completions, streaming. The conversation is the `[[conv:ID]]` in the body's first
message. Times are CLOCK_MONOTONIC seconds, comparable across processes of one machine: `body` when a request was
whole, `end` just before the last bytes of its answer were written.
"""

import argparse
import asyncio
import os
import re
import sys
import time

import msgspec
from aiohttp import web

CONV = re.compile(rb"\[\[conv:([\w.-]+)\]\]")


class Mock:
    def __init__(self) -> None:
        self.calls = 50
        self.code = "true"
        self.asked: dict[str, int] = {}
        self.log: list[dict[str, float | str | int]] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/_log":
            return web.Response(body=msgspec.json.encode(self.log), content_type="application/json")
        if request.path == "/_config":
            config = msgspec.json.decode(await request.read())
            self.calls, self.code = config.get("calls", self.calls), config.get("code", self.code)
            self.asked.clear()
            self.log.clear()
            return web.Response()
        body = await request.read()
        at = time.monotonic()
        if request.path == "/_floor":
            self.log.append({"conv": "floor", "body": at, "end": time.monotonic(), "size": len(body)})
            return web.Response(body=b"ok")
        found = CONV.search(body)
        conv = found[1].decode() if found else "default"
        k = self.asked[conv] = self.asked.get(conv, -1) + 1
        chat = request.path.endswith("/chat/completions")
        pieces = (self._chat if chat else self._messages)(conv, k, k < self.calls)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"".join(pieces[:-1]))
        entry = {"conv": conv, "k": k, "body": at, "end": time.monotonic(), "size": len(body)}
        self.log.append(entry)
        await response.write_eof(pieces[-1])
        return response

    def _arguments(self) -> str:
        return msgspec.json.encode({"worker": "local", "code": self.code}).decode()

    def _messages(self, conv: str, k: int, call: bool) -> list[bytes]:
        usage = {"input_tokens": 100, "output_tokens": 1}
        events: list[dict[str, object]] = [
            {"type": "message_start", "message": {"id": f"m{k}", "model": "mock", "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Next."}},
            {"type": "content_block_stop", "index": 0},
        ]
        if call:
            block = {
                "type": "tool_use",
                "id": f"toolu_{conv}_{k}_{time.monotonic_ns()}",
                "name": "run",
                "input": {},
            }
            delta = {"type": "input_json_delta", "partial_json": self._arguments()}
            events += [
                {"type": "content_block_start", "index": 1, "content_block": block},
                {"type": "content_block_delta", "index": 1, "delta": delta},
                {"type": "content_block_stop", "index": 1},
            ]
        stop = "tool_use" if call else "end_turn"
        events += [
            {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 20}},
            {"type": "message_stop"},
        ]
        return [f"event: {e['type']}\ndata: ".encode() + msgspec.json.encode(e) + b"\n\n" for e in events]

    def _chat(self, conv: str, k: int, call: bool) -> list[bytes]:
        deltas: list[dict[str, object]] = [{"role": "assistant", "content": "Next."}]
        if call:
            function = {"name": "run", "arguments": self._arguments()}
            id = f"call_{conv}_{k}_{time.monotonic_ns()}"
            deltas.append({"tool_calls": [{"index": 0, "id": id, "type": "function", "function": function}]})
        chunks: list[dict[str, object]] = [
            {"id": f"c{k}", "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas
        ]
        finish = "tool_calls" if call else "stop"
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        chunks.append({"id": f"c{k}", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        chunks.append({"id": f"c{k}", "choices": [], "usage": usage})
        return [*(b"data: " + msgspec.json.encode(c) + b"\n\n" for c in chunks), b"data: [DONE]\n\n"]


async def serve(port: int) -> None:
    mock, loop = Mock(), asyncio.get_running_loop()

    def request(message, payload, protocol, writer, task):  # type: ignore[no-untyped-def]
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=1 << 30)

    server = web.Server(mock.answer, request_factory=request)
    listening = await loop.create_server(server, "127.0.0.1", port, backlog=1024)
    print(f"PORT {listening.sockets[0].getsockname()[1]}", flush=True)
    done = asyncio.Event()

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            done.set()

    loop.add_reader(sys.stdin.fileno(), read)
    await done.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(serve(parser.parse_args().port))

"""Keys never leave the daemon but to their providers, whatever those write back."""

import json
import re
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.running import Place, place

STORED = "sk-proj-stored+0123456789/abcdefgh="
NAMED = "sk-proj-named+9876543210/hgfedcba="
HEADER = "team-secret-5566778899aabb"


def forms(key: str) -> list[str]:
    """A key as people and programs write it."""
    basic = b64encode(f"user:{key}".encode()).decode()
    return [key, quote(key, safe=""), b64encode(key.encode()).decode(), basic, f"{key[:24]}…"]


def traces(key: str) -> list[str]:
    """Parts of those forms, of which any would be of use to somebody."""
    return [key[8:24], quote(key, safe="")[8:30], *(form[10:40] for form in forms(key)[2:4])]


@pytest.fixture
def echo() -> Iterator[str]:
    """A provider that repeats every header of a request in its errors, in all ways; its address."""
    seen: list[str] = []
    posts: list[str] = []

    class Echoes(BaseHTTPRequestHandler):
        def _said(self) -> str:
            given = [
                self.headers.get(name, "").removeprefix("Bearer ") for name in ("Authorization", "X-Team")
            ]
            seen.extend(given)
            return " ".join(form for key in given if key for form in forms(key))

        def do_GET(self) -> None:
            self._reply(403, {"error": {"message": self._said()}})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            posts.append(self.path)
            if len(posts) % 3:
                self._reply(400, {"error": {"message": self._said(), "type": self._said()}})
                return
            event = json.dumps({"error": {"message": self._said(), "code": 400}})
            self._reply(200, f"data: {event}\n\n", "text/event-stream")

        def _reply(self, status: int, body: object, type: str = "application/json") -> None:
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Type", type)
            self.send_header("X-Request-Id", "r1")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Echoes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()
        assert {STORED, NAMED, HEADER} <= set(seen), "the provider itself has them"


def said(there: Place, path: str) -> str:
    """What the API answers."""
    connection = HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(there.socket))
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def command_lines() -> str:
    """Of every process of this user's that can be read."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def test_a_key_is_in_nothing_that_the_daemon_writes_or_answers(echo: str) -> None:
    with place() as there:
        (there.home / ".config/outrider/outrider.toml").write_text(
            f'[providers.named]\nkind = "openai-chat"\nurl = "{echo}"\nkey = "$NAMED_KEY"\n'
            f'headers = {{ x-team = "$TEAM" }}\n[providers.named.models.m]\n'
        )
        there.environ |= {"NAMED_KEY": NAMED, "TEAM": HEADER}
        with there.start("daemon", "--listen", "none") as daemon:
            assert daemon.stdout is not None
            written = [daemon.stdout.readline()]
            assert written[0].startswith("ready")
            asked = [
                there.outrider(
                    "providers",
                    "set",
                    "stored",
                    "--kind",
                    "openai-chat",
                    "--url",
                    echo,
                    "--key",
                    input=STORED,
                ),
                *(there.outrider("providers", "test", f"{name}/m") for name in ("stored", "named") * 2),
                *(there.outrider("run", "--model", f"{name}/m", "hello") for name in ("stored", "named")),
                there.outrider("providers", "--json"),
                there.outrider("providers", "set", "stored", "--url", f"http://user:{STORED}@ /"),
                there.outrider("models", "--json"),
                there.outrider("ls", "--json"),
                there.outrider("doctor"),
                there.outrider("doctor", "--json"),
            ]
            assert [done.returncode for done in asked[:7]] == [0, 1, 1, 1, 1, 1, 1]
            for id in [info["id"] for info in there.json("ls")]:
                asked += [
                    there.outrider("tail", "--full", "--json", id),
                    there.outrider("info", "--json", id),
                ]
            written += [said(there, path) for path in ("/metrics", "/providers", "/openapi.json", "/workers")]
            written.append(command_lines())
            daemon.terminate()
            out, err = daemon.communicate(timeout=30)
            written += [out, err]
        written += [done.stdout + done.stderr for done in asked]
        files = [path for path in there.home.rglob("*") if path.is_file() and not path.is_symlink()]
        own = there.data / "providers.toml"
        assert STORED in own.read_text()
        assert own.stat().st_mode & 0o777 == 0o600
        assert NAMED not in own.read_text()
        written += [path.read_bytes().decode(errors="replace") for path in files if path != own]
        everything = "\n".join(written)
        assert everything.count("***") > 10, "they were repeated, and hidden"
        for key in (STORED, NAMED, HEADER):
            for trace in traces(key):
                assert trace not in everything, trace
        assert not re.search(r"Traceback", "".join(done.stderr for done in asked))

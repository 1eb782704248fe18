import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from daemon.api import listening
from tests.daemon.api import certificates
from tests.daemon.api.certificates import Files

ROOT = Path(__file__).resolve().parents[2]

LOADED = """
import os, ssl
make = ssl.create_default_context
from daemon.trust import LateTrust, aiohttp
print(sorted(name for name in os.environ if name.startswith("SSL_")))
assert ssl.create_default_context is make
assert type(make()) is ssl.SSLContext
late = aiohttp.connector._SSL_CONTEXT_VERIFIED
assert type(late) is LateTrust and late.verify_mode == ssl.CERT_REQUIRED and late.check_hostname
for context in (late, aiohttp.connector._SSL_CONTEXT_UNVERIFIED):
    assert context.cert_store_stats()["x509"] == 0
late.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="there")
print(late.cert_store_stats()["x509"])
"""

GET = """
import asyncio, sys
from daemon.trust import aiohttp
async def get():
    async with aiohttp.ClientSession() as http:
        for _ in range(2):
            async with http.get(sys.argv[1]) as answer:
                print(await answer.text())
try:
    asyncio.run(get())
except aiohttp.ClientConnectorCertificateError:
    print("not trusted")
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return certificates.make(tmp_path)


@pytest.fixture
async def url(files: Files) -> AsyncIterator[str]:
    """A server whose certificate our own authority signed."""

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text="hello")

    server = web.Server(answer)
    context = listening.tls(files.cert, files.key)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, ssl=context)
    yield f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    listener.close()
    await server.shutdown()


async def said(code: str, *args: str, ca: Path | None) -> list[str]:
    """What a fresh interpreter prints, where `ca` is all that the system trusts, or nothing is named."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SSL_")}
    if ca is not None:
        env["SSL_CERT_FILE"] = str(ca)
    run = [sys.executable, "-c", code, *args]
    done = await asyncio.to_thread(
        subprocess.run, run, env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


async def test_certificates_are_read_at_the_first_connection_and_nothing_else_is_changed(
    files: Files,
) -> None:
    assert await said(LOADED, ca=files.ca) == ["['SSL_CERT_FILE']", "1"]
    assert (await said(LOADED, ca=None))[0] == "[]"


async def test_what_the_system_trusts_is_trusted(files: Files, url: str) -> None:
    assert await said(GET, url, ca=files.ca) == ["hello", "hello"]


async def test_what_it_does_not_trust_is_not(url: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = certificates.make(tmp_path / "other")
    assert await said(GET, url, ca=other.ca) == ["not trusted"]

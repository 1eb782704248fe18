"""What a worker's link says of its way through the mesh to who asks on this machine, over a socket in its folder."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

SOCKET: Final = "mesh.sock"  # in the scratch folder
MOST: Final = 64 << 10  # bytes of an answer
WAIT: Final = 3.0  # seconds for one


class Tunnel(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A worker's end of the mesh. `name`, `address`: its own; `harness`: its harness's name; `how`: which WireGuard.

    `path`: how packets go to the harness, in words; `relay`: how the relay's connection stands, where it is used.
    `handshake`: when there was the last one, UTC, empty for none yet; `rx` and `tx`: bytes since the interface is up;
    `mtu` in bytes. `removed`: the harness has put this machine out.
    """

    name: str
    harness: str
    address: str
    path: str = ""
    relay: str = ""
    handshake: str = ""
    rx: int = 0
    tx: int = 0
    mtu: int = 0
    how: str = ""
    removed: bool = False


@asynccontextmanager
async def answering(scratch: Path, say: Callable[[], Awaitable[Tunnel]]) -> AsyncIterator[None]:
    """Answer who asks for as long as the context is open. Raises OSError."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(WAIT):
                writer.write(msgspec.json.encode(await say()))
                await writer.drain()
        writer.close()

    path = scratch / SOCKET
    await asyncio.to_thread(path.unlink, missing_ok=True)  # of a link that was killed: we hold the lock
    server = await asyncio.start_unix_server(answer, str(path))
    try:
        await asyncio.to_thread(path.chmod, 0o600)
        async with server:
            yield
    finally:
        await asyncio.to_thread(path.unlink, missing_ok=True)


async def ask(scratch: Path) -> Tunnel | None:
    """What the link of a scratch folder says; None where none answers."""
    with suppress(OSError, TimeoutError, msgspec.MsgspecError):
        async with asyncio.timeout(WAIT):
            reader, writer = await asyncio.open_unix_connection(str(scratch / SOCKET))
            try:
                return msgspec.json.decode(await reader.read(MOST), type=Tunnel)
            finally:
                writer.close()
    return None

"""The small process that holds the privilege: it makes the interface and hands out sockets of its namespace.

Its standard input is one end of a mesh.channel; it ends when the other end does. Run as `helper.main(["start", …])`
by mesh.handle. Where an ordinary user starts it, it becomes pasta or slirp4netns, which start it again inside of a
user namespace. What it needs of its rights after that is CAP_NET_ADMIN; it gives up the rest, and root's user.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, assert_never

import msgspec

from mesh import picking, privilege, verbs, ways
from mesh.channel import Channel, Closed, close_all
from mesh.picking import Backend, Off, Picked
from mesh.station import Refusal, Station
from mesh.wireguard.base import WireGuardError

CHANNEL: Final = 0  # the descriptor: whatever starts us on behalf of the node passes its standard input on
FIRST_WAIT: Final = 30.0  # seconds for the first request
_CODE: Final = (
    "import sys; root = sys.argv[1]; root in sys.path or sys.path.insert(0, root); "
    "from mesh import helper; helper.main(sys.argv[2:])"
)
# What starts it, before its arguments: this Python, isolated from the user's, and this package.
BEGIN: Final = (sys.executable, "-I", "-c", _CODE, str(Path(__file__).parents[1]))


def main(arguments: Sequence[str]) -> None:
    """`examine BACKEND PORT`: print the choice as JSON. `start JSON`: be the helper."""
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for who started us, who ends us when it ends
        signal.signal(number, signal.SIG_IGN)
    match arguments:
        case ["examine", backend, port]:
            choice = picking.pick(
                msgspec.convert(backend, Backend), picking.look(os.environ), listens=port != "0"
            )
            sys.stdout.buffer.write(msgspec.json.encode(choice))
        case ["start", text]:
            start = msgspec.json.decode(text, type=verbs.Start)
            if start.picked is None:
                start = _begin(start)
            else:
                privilege.die_with_parent()
            assert start.picked is not None
            asyncio.run(_serve(start, start.picked))
        case _:
            sys.exit("this is a part of outrider, which starts it by itself")


def _begin(start: verbs.Start) -> verbs.Start:
    """Pick; returns where this process is the helper itself, and becomes the way out where there is to be one."""
    picked = picking.pick(start.backend, picking.look(os.environ), listens=start.port != 0)
    if isinstance(picked, Off):
        with socket.socket(fileno=os.dup(CHANNEL)) as sock:
            sock.send(verbs.encode(verbs.Failed(id=0, message=picked.said, off=True)))
        sys.exit(1)
    inside = msgspec.structs.replace(start, picked=picked)
    again = [*BEGIN, "start", msgspec.json.encode(inside).decode()]
    match picked.way_out:
        case "":
            pass
        case "pasta":
            ways.pasta(picked.way, start.port, again)
        case "slirp4netns":
            ways.slirp4netns(picked.way, again)
        case _:
            assert_never(picked.way_out)
    return inside


async def _serve(start: verbs.Start, picked: Picked) -> None:
    """Take requests until the node is gone or asks to end; leave nothing behind."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    with Channel(socket.socket(fileno=os.dup(CHANNEL))) as channel:
        try:
            async with asyncio.timeout(FIRST_WAIT):
                up, fds = await _first(channel)
        except (Closed, TimeoutError):
            return
        try:
            async with Station(start, picked, up, fds) as station:
                await channel.send(verbs.encode(station.ready(up.id)), station.namespaces())
                ended = await _until_end(channel, station, ending)
            if ended:
                await channel.send(verbs.encode(verbs.Ended(reason=ended)))
        except WireGuardError as error:
            with contextlib.suppress(Closed):
                await channel.send(verbs.encode(_failed(up.id, error)))
        except Closed:
            pass


async def _first(channel: Channel) -> tuple[verbs.Up, list[int]]:
    body, fds = await channel.receive()
    match verbs.request(body):
        case verbs.Up() as up:
            return up, fds
        case other:
            raise Closed(f"the first request is {type(other).__name__}, not Up")


async def _until_end(channel: Channel, station: Station, ending: asyncio.Event) -> str:
    """Serve; returns when it is over, with the reason where it ended of itself."""
    async with asyncio.TaskGroup() as group:
        died = group.create_task(station.ended(), name="engine")
        told = group.create_task(ending.wait(), name="ending")
        left = group.create_task(_requests(channel, station), name="requests")
        await asyncio.wait((died, told, left), return_when=asyncio.FIRST_COMPLETED)
        reason = died.result() if died.done() else ""
        for task in (died, told, left):
            task.cancel()
    return reason


async def _requests(channel: Channel, station: Station) -> None:
    """Answer each request in a task of its own, until the other end is gone or asks to end."""
    async with asyncio.TaskGroup() as group:
        with contextlib.suppress(Closed):
            while True:
                body, fds = await channel.receive()
                close_all(fds)  # only the first has any
                try:
                    request = verbs.request(body)
                except msgspec.ValidationError as error:
                    await channel.send(verbs.encode(verbs.Failed(id=verbs.id_of(body), message=str(error))))
                    continue
                if isinstance(request, verbs.Down):
                    return
                group.create_task(_answer(channel, station, request), name=type(request).__name__)


async def _answer(channel: Channel, station: Station, request: verbs.Request) -> None:
    with contextlib.suppress(Closed):
        try:
            async for answer, fds in station.answers(request):
                try:
                    await channel.send(verbs.encode(answer), fds)
                finally:
                    close_all(fds)
        except (Refusal, WireGuardError, OSError) as error:
            await channel.send(verbs.encode(_failed(request.id, error)))


def _failed(id: int, error: Refusal | WireGuardError | OSError) -> verbs.Failed:
    if isinstance(error, OSError):
        number = error.errno or 0
        return verbs.Failed(id=id, message=os.strerror(number) if number else str(error), number=number)
    return verbs.Failed(id=id, message=str(error), number=error.number)

"""What the helper does once it is one: it has the interface, and answers the node's requests at their channel."""

import asyncio
import contextlib
import os
import signal
import socket
from typing import Final

import msgspec

from mesh import verbs
from mesh.channel import Channel, Closed, close_all
from mesh.picking import Picked
from mesh.station import Refusal, Station
from mesh.wireguard.base import WireGuardError

FIRST_WAIT: Final = 30.0  # seconds for the first request


async def serve(start: verbs.Start, picked: Picked, channel_fd: int) -> None:
    """Take requests from the channel until the node is gone or asks to end; leave nothing behind."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    with Channel(socket.socket(fileno=os.dup(channel_fd))) as channel:
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

"""Blocking work on files, for as long as somebody waits for it."""

import asyncio
import threading

import pytest

from daemon.protocol import frames
from daemon.worker import patience, transfer


async def test_what_comes_when_nobody_waits_any_more_is_undone() -> None:
    begun, go, undone = threading.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    given: list[str] = []

    def opened() -> str:
        begun.set()
        go.wait()
        return "a descriptor"

    def undo(what: str) -> None:
        given.append(what)
        loop.call_soon_threadsafe(undone.set)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(patience.limited(opened, undo=undo))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await undone.wait()
    assert given == ["a descriptor"]


async def test_what_is_waited_for_is_not_undone() -> None:
    given: list[int] = []
    assert await patience.limited(lambda: 7, undo=given.append) == 7
    assert given == []


async def test_a_failure_that_comes_when_nobody_waits_any_more_is_dropped() -> None:
    begun, go = threading.Event(), threading.Event()
    given: list[None] = []

    def fails() -> None:
        begun.set()
        go.wait()
        raise OSError

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(patience.limited(fails, undo=given.append))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
    assert given == []


def test_a_write_that_was_answered_holds_no_piece_that_came_before_or_after() -> None:
    upload = transfer.Upload()
    upload.put(bytes(frames.PIECE), last=False)
    assert upload.waiting == frames.PIECE
    upload.close()
    for _ in range(2 * frames.WINDOW // frames.PIECE):
        upload.put(bytes(frames.PIECE), last=False)
    assert upload.waiting == 0

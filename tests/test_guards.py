"""The guards of tests/conftest.py work."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from blockbuster import BlockingError

ROOT = Path(__file__).resolve().parent.parent


def ours(blocking: Callable[[], object]) -> Callable[[], object]:
    """A function that calls `blocking` and that passes for code of the daemon."""
    names: dict[str, Callable[[], object]] = {"blocking": blocking}
    exec(compile("def call(): return blocking()", str(ROOT / "daemon" / "__init__.py"), "exec"), names)  # noqa: S102 - a file name of our choice
    return names["call"]


@pytest.mark.parametrize("blocking", [lambda: time.sleep(0), lambda: os.fsync(1), lambda: Path("/").exists()])
async def test_a_blocking_call_of_our_code_in_the_loop_fails(blocking: Callable[[], object]) -> None:
    with pytest.raises(BlockingError):
        ours(blocking)()


async def test_our_code_may_block_in_a_thread_and_a_test_may_block_at_will(tmp_path: Path) -> None:
    assert await asyncio.to_thread(ours(tmp_path.exists))
    assert tmp_path.exists()


def test_our_code_may_block_where_no_loop_runs(tmp_path: Path) -> None:
    assert ours(tmp_path.exists)()


async def test_our_code_may_start_a_process_in_the_loop() -> None:
    process = ours(lambda: subprocess.Popen([sys.executable, "-c", ""]))()
    assert isinstance(process, subprocess.Popen)
    assert await asyncio.to_thread(process.wait) == 0


async def test_a_timeout_that_comes_in_a_callback_of_the_loop_ends_the_test() -> None:
    def late() -> None:
        pytest.fail("Timeout (>60.0s) from pytest-timeout.")

    never = asyncio.Event()
    asyncio.get_running_loop().call_soon(late)
    with pytest.raises(asyncio.CancelledError, match="Timeout"):
        await never.wait()
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()

"""The list of sessions on a pseudo terminal of 160×45: processor time with 500 sessions and 200 changes a second."""

import argparse
import asyncio
import fcntl
import json
import os
import pty
import resource
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

import msgspec

from tests.tui.daemonfake import FakeClient, info
from tui.app import OutriderApp
from tui.deeds import Given
from tui.desk import Desk

COLUMNS, LINES = 160, 45


async def _play(sessions: int, rate: int, seconds: float) -> dict[str, float]:
    """Run the app and have sessions change; processor seconds per second once all is on the screen."""
    client = FakeClient()
    for n in range(sessions):
        moment = f"2026-11-30T10:{n // 60 % 60:02}:{n % 60:02}.000Z"
        client.infos[f"{n:016x}"] = info(f"{n:016x}", "stepping", f"Session number {n}", updated=moment)
    app = OutriderApp(client, Desk(Path(tempfile.mkdtemp()), "bench"), Given("bench", True, "/"))
    found: dict[str, float] = {}

    async def drive() -> None:
        await asyncio.sleep(2)
        before, began, count = _used(), time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            while count < now * rate:
                count += 1
                id = f"{count * 7919 % sessions:016x}"
                one = client.infos[id]
                moment = f"2026-11-30T11:{count // 6000:02}:{count // 100 % 60:02}.{count % 100:02}0Z"
                client.infos[id] = msgspec.structs.replace(one, n=one.n + 1, updated=moment, prompt=count)
                client.tell(client.infos[id])
            await asyncio.sleep(1 / rate)
        found.update(cpu=(_used() - before) / (time.monotonic() - began), changes=count)
        app.exit()

    async with asyncio.TaskGroup() as group:
        group.create_task(drive(), name="drive")
        await app.run_async()
    return found


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _swallow(fd: int) -> None:
    try:
        while os.read(fd, 65536):
            continue
    except OSError:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--rate", type=int, default=200, help="changes a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.into:
        found = asyncio.run(_play(given.sessions, given.rate, given.seconds))
        given.into.write_text(json.dumps(found))
        return
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    threading.Thread(target=_swallow, args=(mine,), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "found"
        command = [sys.executable, __file__, "--into", str(into), *sys.argv[1:]]
        environ = os.environ | {"TERM": "xterm-256color"}
        subprocess.run(command, stdin=its, stdout=its, stderr=its, env=environ, check=True)
        found = json.loads(into.read_text())
    print(
        f"{given.sessions} sessions, {found['changes'] / given.seconds:.0f} changes a second: "
        f"{100 * found['cpu']:.0f}% of a processor"
    )


if __name__ == "__main__":
    main()

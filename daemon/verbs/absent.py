"""Say which workers of a session are not connected, since what is meant for them waits without a word."""

from collections.abc import Sequence
from typing import Final

from daemon.client import Client
from daemon.plain import line
from daemon.protocol.records import WorkerRef
from daemon.verbs.reach import note

LOCAL: Final = "local"  # the daemon starts it by itself, and anew where it ended


async def warn_of_absent(client: Client, refs: Sequence[WorkerRef]) -> None:
    """Say so of each worker in `refs` that is not connected to the daemon."""
    names = [ref.name for ref in refs if ref.name != LOCAL]
    if not names:
        return
    here = {worker.name for worker in await client.workers() if worker.state == "connected"}
    for name in names:
        if name not in here:
            note(f"worker {line(name)} is not here: what is meant for it waits until it connects")

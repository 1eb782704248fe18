"""So many sessions step at once and no more; the others wait, each for one step at a time."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext

from daemon.harness.session import Session


class Queue:
    """Places for steps, given in the order they are asked for. `most`: 0 for any number.

    A session asks anew for each step, behind those that wait: a long one holds up the others for one step at a time.
    A turn of the agent-server surface needs no place: those have a cap of their own.
    """

    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most) if most else None

    def place(self, session: Session) -> AbstractAsyncContextManager[None]:
        """A place for one step."""
        if self._places is None or session.turn:
            return nullcontext()
        return self._places

"""A run that has not ended, and who waits for it."""

import asyncio
from pathlib import Path
from typing import Protocol

from daemon.protocol import frames
from daemon.worker import journal, output
from daemon.worker.environment import Stop


class Peer(Protocol):
    """Where answers go: a connection; one that is closed takes them to nowhere."""

    def send(self, frame: frames.ToHarness, body: bytes = b"") -> None: ...

    def send_live(self, frame: frames.Output, body: bytes) -> None:
        """Send, or drop where the peer is behind."""

    @property
    def has_more(self) -> bool:
        """Whether more of what it sent waits to be taken up."""


class Run:
    """One run that has not ended: what is asked, who waits for it, what it printed last."""

    def __init__(self, frame: frames.Run, code: bytes, interpreter: str) -> None:
        self.key = (frame.session, frame.call)
        self.frame = frame
        self.code = code
        self.interpreter = interpreter
        self.stop = Stop()
        self.waiting: list[tuple[Peer, int]] = []
        self.meta: journal.Meta | None = None  # of one that is written down
        self.file: Path
        self.sink: output.Sink | None = None
        self.began = 0.0
        self.fault: Exception | None = None  # that came meanwhile
        self._sent = 0
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def printed(self) -> None:
        """There is new output: it goes out now, or when the last chunk is old enough."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time(), self._sent_at + frames.LIVE_EVERY)
            self._timer = loop.call_at(at, self._send_live)

    def _send_live(self) -> None:
        self._timer = None
        if self.sink is None or self.sink.size == self._sent:
            return
        size, ring = self.sink.size, self.sink.ring
        chunk = ring[-min(frames.LIVE_CHUNK, size - self._sent) :]
        if len(chunk) < size - self._sent:
            chunk = output.from_character(chunk)
        self._sent, self._sent_at = size, asyncio.get_running_loop().time()
        for peer, id in self.waiting:
            peer.send_live(frames.Output(id=id), chunk)

    def quiet(self) -> None:
        """No live output any more."""
        if self._timer:
            self._timer.cancel()
            self._timer = None


def result_frame(id: int, result: journal.Result) -> frames.Result:
    """What a run's result is on the wire; its body is the text."""
    return frames.Result(
        id=id,
        exit=result.exit,
        seconds=result.seconds,
        truncated=result.truncated,
        full_output=result.full_output,
        reset=result.reset,
        unknown=result.unknown,
        stopped=result.stopped,
        notes=result.notes,
        images=result.images,
    )

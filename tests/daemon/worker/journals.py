"""Journals with runs in them, for the tests of this folder."""

from pathlib import Path

from daemon.worker.journal import Journal, Key, Meta, Result


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.up = 50.0  # seconds since the machine was started

    def __call__(self) -> float:
        return self.now


def run(kept: Journal, clock: Clock, call: str, size: int = 0, session: str = "s") -> Key:
    """A run that ended now, with that much output."""
    kept.begin(Meta(session=session, call=call, started=clock.now), b"code")
    if size:
        printed(kept, (session, call), b"x" * size)
    kept.finish((session, call), Result(ended=clock.now, exit=0, text="text"), size)
    clock.now += 1
    return session, call


def printed(kept: Journal, key: Key, data: bytes) -> Path:
    """The file of what a run has printed."""
    kept.path(key).mkdir(parents=True)
    file = kept.path(key) / "output"
    file.write_bytes(data)
    return file


def last(kept: Journal) -> Path:
    """The file of the log that is written to."""
    return kept.folder / f"log-{len(list(kept.folder.glob('log-*')))}"

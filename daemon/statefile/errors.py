"""What the state files refuse, each with the sentence that an operator reads."""

from typing import Final

from msgspec import Struct

FIRST: Final = 3  # n of a copy, the least: start and config belong to every session


class Damage(Struct, frozen=True):
    """Where a file stops reading: number of the first record that does not, its byte offset, and why."""

    n: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"record {self.n} at byte {self.offset} does not read: {self.reason}"

    @property
    def way_on(self) -> str:
        """What can be done with a session whose file is damaged there."""
        if self.n < FIRST:
            return "nothing before it is enough for a copy; make a new session"
        return f"it can be read up to there, and a copy of that (n = {self.n}) can go on"


class StateFileError(Exception):
    """A session's file cannot be used like this."""


class MissingError(StateFileError):
    """There is no session of this id in the data folder."""

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no session {id!r}")
        self.id = id


class DamagedError(StateFileError):
    """The session's file is damaged: it can be read and copied up to there, and not written."""

    def __init__(self, id: str, damage: Damage) -> None:
        super().__init__(f"session {id} is damaged: {damage}; {damage.way_on}")
        self.id = id
        self.damage = damage


class NoSpaceError(StateFileError):
    """The disk is full or failed: nothing was written, the file was cut back and is whole."""


class ReopenError(NoSpaceError):
    """The disk did not confirm a write: this Log writes nothing more, the session has to be opened again."""


class AnewError(StateFileError):
    """The list of sessions was lost and is empty: ask what it does not know, and then again."""


class LockedError(StateFileError):
    """Another daemon works on this data folder. `pid` is the holder's, 0 where it is not known."""

    def __init__(self, data: str, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"{data} is in use by {holder}: end that daemon, or name another data folder")
        self.pid = pid


class CopyPointError(StateFileError):
    """A session cannot be copied at this record. `nearest` is the nearest n that would do, 0 where none would."""

    def __init__(self, id: str, n: int, why: str, nearest: int) -> None:
        hint = f"the nearest n that would do is {nearest}" if nearest else "no n would do"
        super().__init__(f"session {id} cannot be copied with n = {n}: {why}; {hint}")
        self.id = id
        self.n = n
        self.nearest = nearest

"""What the log tells the screen that it stands on, and what it needs from whoever has the records."""

from collections.abc import Sequence
from typing import Protocol

from textual.message import Message

from daemon.protocol.records import Record


class Source(Protocol):
    """Where records are read; `daemon.client.Client` is one. Both raise ApiFailure or Unreachable."""

    async def headers(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """The records after number `after` without their bodies."""
        ...

    async def records(self, id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """The records after number `after`, whole."""
        ...


class LogMessage(Message):
    """A message of the log: the screen handles those it cares for."""


class Opened(LogMessage):
    """The end of the session stands on the screen; `n` is the number of its last record."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n


class Failed(LogMessage):
    """Records could not be read: `why` is a sentence. What is there stays; `LogView.reload` tries again, where that
    is of use: `again`.
    """

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__()
        self.why = why
        self.again = again


class Fork(LogMessage):
    """Fork here: a new session is wanted with the records before number `n` (`Create.n`).

    `text` is the message `n`, to be edited and posted anew; empty when the record is another, which is then kept:
    `n` is already the number after it.
    """

    def __init__(self, n: int, text: str) -> None:
        super().__init__()
        self.n = n
        self.text = text


class Zoom(LogMessage):
    """The log wants the whole screen, or to give it back."""


class Copied(LogMessage):
    """`text` was sent to the terminal's clipboard. `said` is a line to show; `sure`: False when the terminal is known
    not to take it, and `said` then says what to do.
    """

    def __init__(self, text: str, said: str, sure: bool) -> None:
        super().__init__()
        self.text = text
        self.said = said
        self.sure = sure


class Said(LogMessage):
    """A short line about what a key did, for the screen's notifications."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Picture(LogMessage):
    """Record `n`, an image of media type `media`, is to be opened outside."""

    def __init__(self, n: int, media: str) -> None:
        super().__init__()
        self.n = n
        self.media = media


class Moved(LogMessage):
    """The view follows the end or not, and `new` records have come since it does not."""

    def __init__(self, follow: bool, new: int) -> None:
        super().__init__()
        self.follow = follow
        self.new = new

"""Tell what is pasted from what is typed: a terminal writes both into one stream, with marks around a paste."""

from collections.abc import Iterator
from typing import Final

START: Final = "\x1b[200~"
END: Final = "\x1b[201~"
_LESS: Final = len(START) - 1  # characters of a mark that may have come before the rest of it


class Pastes:
    """A stream in pieces, as they are read. Marks are left in what is typed: START before a paste, END behind it."""

    def __init__(self) -> None:
        self._before = ""  # the end of what came last, which may be the beginning of a mark
        self._pasted: list[str] | None = None  # of a paste that has begun

    def split(self, data: str) -> Iterator[tuple[bool, str]]:
        """(whether it is a paste, which is whole; its text) for each part of the next piece."""
        while data:
            mark = START if self._pasted is None else END
            joined = self._before + data
            if (at := joined.find(mark)) < 0:
                self._before = joined[-_LESS:]
                if self._pasted is None:
                    yield False, data
                else:
                    self._pasted.append(data)
                return
            end = at + len(mark) - len(self._before)
            begun, rest = data[:end], data[end:]
            self._before = ""
            if self._pasted is None:
                self._pasted = []
                yield False, begun
                data = rest
            else:
                text = "".join((*self._pasted, begun))[: -len(END)]
                self._pasted = None
                yield True, text
                data = END + rest

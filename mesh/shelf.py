"""The folder of wheels that the operator made, read anew when it is another than it was."""

from pathlib import Path

import structlog

from mesh import wheelhouse
from mesh.wheelhouse import Wheelhouse, WheelhouseError

FOLDER = "wheelhouse"  # in the data folder

log = structlog.get_logger("mesh.shelf")


class Shelf:
    """One folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: object = None
        self._read: Wheelhouse | None = None

    def read(self) -> Wheelhouse | None:
        """What it holds, None where there is nothing that can be served. Blocks; quick where nothing has changed."""
        seen = self._look()
        if seen != self._seen:
            try:
                self._read = wheelhouse.read(self._folder) if seen else None
            except WheelhouseError as error:
                log.warning("machines that join get no wheels from here", why=str(error))
                self._read = None
            self._seen = seen
        return self._read

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        """What tells one content from another without reading it."""
        found = []
        try:
            for path in self._folder.iterdir():
                if path.suffix == ".whl":
                    status = path.stat()
                    found.append((path.name, status.st_size, status.st_mtime_ns))
        except OSError:  # there is none, or a file went while we looked: the next look sees it
            return ()
        return tuple(sorted(found))

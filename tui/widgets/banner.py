"""The line that says that the daemon is not there, and what still works."""

from typing import Final

from textual.widgets import Static

LOST: Final = "read only until it is back; nothing is lost"


class Banner(Static):
    """Hidden while all is well."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.display = False

    def tell(self, why: str) -> None:
        """Show why the daemon is away; nothing hides the line."""
        self.display = bool(why)
        self.update(f"▲ {why} · {LOST}" if why else "")

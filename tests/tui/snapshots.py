"""Screens as plain text, compared with what was reviewed: files of text in a folder `snapshots` beside the test.

OUTRIDER_SNAPSHOTS=write writes them anew; look at the diff before it is committed.
"""

import os
from pathlib import Path

from textual.app import App


def screen_text(app: App[object]) -> str:
    """What stands on the screen, without spaces at the ends of lines."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines) + "\n"


def check(test: str, name: str, text: str) -> None:
    """Compare `text` with the snapshot `name` of the test file `test` (its `__file__`)."""
    path = Path(test).parent / "snapshots" / f"{name}.txt"
    if os.environ.get("OUTRIDER_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.is_file(), f"{path} is missing: OUTRIDER_SNAPSHOTS=write makes it"
    assert text == path.read_text()

"""The posts of a session that the daemon does not have yet, and what keeps them."""

from collections.abc import Sequence
from typing import Final

from textual.widgets import Static

from daemon.plain import line
from tui import words
from tui.desk import Unsent
from tui.outbox import Outbox

SHOWN: Final = 50  # characters of each post, a line on a narrow screen: what keeps it matters more


class Sending(Static):
    """A line for each post, none where there is none. `outbox` has them on their way."""

    def __init__(self, outbox: Outbox, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._outbox = outbox
        self._shown = ""
        self.display = False

    def show(self, posts: Sequence[Unsent], lost: bool) -> bool:
        """Whether that is news. `lost`: the daemon is away, which keeps all of them."""
        said = "\n".join(self._said(post, post is posts[0], lost) for post in posts)
        if said == self._shown:
            return False
        self._shown, self.display = said, bool(posts)
        self.update(said)
        return True

    def _said(self, post: Unsent, first: bool, lost: bool) -> str:
        text = line(post.text or "attachments", SHOWN)
        if self._outbox.leaves(post):
            return f"↑ taken back unless it arrives now: {text}"
        if lost:
            return f"↑ waits for the daemon: {text}"
        if (hitch := self._outbox.hitch(post)) is not None:
            return f"↑ not taken yet: {hitch.why}\n  tried again at {words.clock(hitch.again)}: {text}"
        return f"↑ {'on its way' if first else 'waits for the one before'}: {text}"

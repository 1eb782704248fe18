"""The posts of a session that the daemon does not have yet, and what keeps them."""

from collections.abc import Callable, Sequence
from typing import Final

from textual.widgets import Static

from daemon.plain import line
from tui import words
from tui.desk import Unsent
from tui.outbox import Hitch

SHOWN: Final = 50  # characters of each post, a line on a narrow screen: what keeps it matters more


class Sending(Static):
    """A line for each post, none where there is none. `hitch` tells what keeps one, as far as the daemon has said."""

    def __init__(self, hitch: Callable[[Unsent], Hitch | None], id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._hitch = hitch
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
        if lost:
            return f"↑ waits for the daemon: {text}"
        if (hitch := self._hitch(post)) is not None:
            return f"↑ not taken yet: {hitch.why}\n  tried again at {words.clock(hitch.again)}: {text}"
        return f"↑ {'on its way' if first else 'waits for the one before'}: {text}"

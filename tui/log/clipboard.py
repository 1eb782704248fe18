"""Whether a terminal takes text for its clipboard by OSC 52, as far as its environment tells; it never answers."""

from collections.abc import Mapping
from typing import Final

from daemon.plain import count, size

TAKEN: Final = 74_994  # bytes of text in base64 that xterm takes, and after it many others
BROWSER: Final = "textual"  # the TERM_PROGRAM of a page that `outrider --web` serves


def said(text: str, environ: Mapping[str, str], what: str = "") -> tuple[str, bool]:
    """(what to say of a text that was sent to the clipboard, whether nothing speaks against its having arrived).

    `what`: the text for people; without it its length stands there.
    """
    much = what or (count(text.count("\n") + 1, "line") if "\n" in text else count(len(text), "character"))
    length = len(text.encode()) * 4 // 3
    if environ.get("TERM_PROGRAM") == BROWSER:  # whatever terminal its server was started in
        return f"copied {much}", True
    if environ.get("TERM") == "linux":
        return "this console has no clipboard: open the session in another terminal to copy", False
    if environ.get("TERM_PROGRAM") == "Apple_Terminal":
        return (
            "Apple's Terminal lets no program copy: hold Fn and drag to select, then copy with Command-C",
            False,
        )
    if environ.get("VTE_VERSION"):
        return f"copied {much}; where the terminal lets no program copy, hold Shift and drag to select", False
    if environ.get("STY"):
        return "screen lets no program copy: hold Shift and drag to select", False
    if length > TAKEN:
        return f"copied {much}, {size(length)}: more than many terminals take", False
    if environ.get("TMUX"):
        return f"copied {much} (tmux passes it on with `set -g set-clipboard on`)", True
    return f"copied {much}", True

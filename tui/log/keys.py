"""The log's keys, each with an id by which it can be changed."""

from typing import Final

from textual.binding import Binding, BindingType

BINDINGS: Final[list[BindingType]] = [
    Binding("j,down", "select(1)", "Down", show=False, id="log.down"),
    Binding("k,up", "select(-1)", "Up", show=False, id="log.up"),
    Binding("ctrl+d", "half(1)", "Half a page down", show=False, id="log.half-down"),
    Binding("ctrl+u", "half(-1)", "Half a page up", show=False, id="log.half-up"),
    Binding("space,pagedown", "page(1)", "Page down", show=False, id="log.page-down"),
    Binding("b,pageup", "page(-1)", "Page up", show=False, id="log.page-up"),
    Binding("g,home", "top", "Top", show=False, id="log.top"),
    Binding("G,end", "follow", "Follow", id="log.follow"),
    Binding("enter", "fold", "Fold", id="log.fold"),
    Binding("E", "fold_kind", "Fold all of this kind", show=False, id="log.fold-kind"),
    Binding("t", "thinking", "Thinking", show=False, id="log.thinking"),
    Binding("slash", "search", "Search", id="log.search"),
    Binding("n", "again(1)", "Next match", show=False, id="log.next"),
    Binding("N", "again(-1)", "Previous match", show=False, id="log.previous"),
    Binding("e", "next_error", "Next error", show=False, id="log.error"),
    Binding("u", "next_message", "Next message", show=False, id="log.message"),
    Binding("y", "copy", "Copy", id="log.copy"),
    Binding("Y", "copy_body", "Copy code or result", show=False, id="log.copy-body"),
    Binding("v", "pager", "View all", id="log.pager"),
    Binding("z", "zoom", "Zoom", show=False, id="log.zoom"),
    Binding("f", "fork", "Fork here", id="log.fork"),
]

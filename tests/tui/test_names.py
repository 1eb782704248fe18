"""The names of widgets, by which the stylesheets of all of them find theirs."""

import importlib
import pkgutil

from textual import widgets
from textual.widget import Widget

import tui
from tests.tui.served import daemon, screen
from tui.log.logview import LogView
from tui.log.rows import Rows


def test_no_two_widgets_have_one_name() -> None:
    """The rules of one would hold for the other, from the time on when its screen was shown first."""
    for module in pkgutil.walk_packages(tui.__path__, "tui."):
        importlib.import_module(module.name)
    owners = {name: f"textual.widgets.{name}" for name in vars(widgets)["__all__"]}
    pending: list[type[Widget]] = [Widget]
    while pending:
        for kind in pending.pop().__subclasses__():
            pending.append(kind)
            if kind.__module__.startswith("tui."):
                here = f"{kind.__module__}.{kind.__qualname__}"
                assert owners.setdefault(kind.__name__, here) == here


async def test_the_log_fills_its_screen_also_after_the_tables_of_other_screens_were_shown() -> None:
    async with daemon() as served, screen(served) as at:
        await at.shows("No session yet")
        for key, shown in (("f4", "worker"), ("f9", "Providers")):
            await at.press(key)
            await at.shows(shown)
            await at.press("escape")
            await at.shows("No session yet")
        await at.press("ctrl+n", "f2")
        await at.until(lambda: at.app.shown != "" and bool(at.app.screen.query(Rows)))
        log = at.app.screen.query_one(Rows)
        await at.until(lambda: log.pane.lines > 0)
        assert log.pane.lines == at.app.screen.query_one(LogView).size.height

"""The command palette: every action that can be done now, every session to go to, every theme."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode

from daemon.plain import line
from tui import keymap, words

if TYPE_CHECKING:
    from tui.app import OutriderApp

OFFERED: Final = 8  # sessions that are offered before anything is typed
SCREENS: Final = {
    "new": ("new session", "model, workers, limits, first message"),
    "workers": ("workers", "which are here, cordon, remove"),
    "tokens": ("join tokens", "new ones, revoke"),
    "settings": ("settings", "providers' keys, colours, telling"),
    "keys": ("keys", "every key with its id"),
}
HIDDEN: Final = frozenset({"app.palette"})  # it is open


def _plain(text: str) -> str:
    """A text of which the palette makes no markup: what a title has in brackets would act, or end the app."""
    return cast(str, Content(text))


class _Ours(Provider):
    @property
    def outrider(self) -> "OutriderApp":
        return cast("OutriderApp", self.app)

    def _hits(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """(what it is called, more about it, what does it), each."""
        raise NotImplementedError

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, more, run in self._hits():
            score, places = matcher.fuzzy_search.match(query, name)
            if score > 0:
                shown = Content(name)
                for at in places:
                    shown = shown.stylize(matcher.match_style, at, at + 1)
                yield Hit(score, shown, run, text=name, help=_plain(more))


class Actions(_Ours):
    """What keys do here, with the keys; also what they do in parts of the screen that have no focus now."""

    async def discover(self) -> Hits:
        for name, more, run in self._hits():
            yield DiscoveryHit(Content(name), run, text=name, help=_plain(more))

    def _hits(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        nodes: list[DOMNode] = [self.screen, *self.screen.query("*"), self.app]
        if self.focused is not None:
            nodes = [self.focused, *(node for node in nodes if node is not self.focused)]
        keys = self.outrider.given.keys
        idle: frozenset[str] = getattr(self.screen, "idle", frozenset)()
        seen = set(HIDDEN | idle)
        found = [(node, binding) for node in nodes for binding in keymap.of(type(node).BINDINGS)]
        for node, binding in sorted(found, key=lambda one: not one[1].show):  # those of the last line first
            id = binding.id or ""
            if id in seen or not self._enabled(node, binding):
                continue
            seen.add(id)
            wanted = keys.get(id, binding.key)
            shown = "" if wanted == keymap.REMOVED else "  ".join(map(keymap.display, wanted.split(",")))
            yield (
                binding.description,
                f"{shown or 'no key'} · {id}",
                partial(self._run, node, binding.action),
            )

    def _enabled(self, node: DOMNode, binding: Binding) -> bool:
        name = binding.action.partition("(")[0].rpartition(".")[2]
        return bool(node.check_action(name, ()))

    async def _run(self, node: DOMNode, action: str) -> None:
        await self.app.run_action(action, node)


class Sessions(_Ours):
    """`go to session …`."""

    async def discover(self) -> Hits:
        for at, (name, more, run) in enumerate(self._hits()):
            if at == OFFERED:
                break
            yield DiscoveryHit(Content(name), run, text=name, help=_plain(more))

    def _hits(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        for info in self.outrider.roster.rows():
            name = f"go to session {line(words.called(info), 80)}"
            yield name, f"{info.status} · {line(info.id)}", partial(self.outrider.open_session, info.id)


class Screens(_Ours):
    """`go to …`: the screens, from everywhere."""

    async def discover(self) -> Hits:
        for name, more, run in self._hits():
            yield DiscoveryHit(Content(name), run, text=name, help=_plain(more))

    def _hits(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        yield "go to sessions", "the list", self.outrider.action_sessions
        for screen, (name, more) in SCREENS.items():
            yield f"go to {name}", more, partial(self.outrider.action_show, screen)


class Themes(_Ours):
    """`theme …`: it is remembered."""

    def _hits(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        for name in self.app.available_themes:
            yield f"theme {name}", "colours", partial(setattr, self.app, "theme", name)


PROVIDERS: Final[tuple[type[Provider], ...]] = (Actions, Screens, Sessions, Themes)


class Everything(Provider):
    """All of them, one after the other: Textual has a set of providers, whose order is another one each time."""

    def _parts(self) -> Iterator[Provider]:
        return (kind(self.screen, self.match_style) for kind in PROVIDERS)

    async def discover(self) -> Hits:
        for part in self._parts():
            async for hit in part.discover():
                yield hit

    async def search(self, query: str) -> Hits:
        for part in self._parts():
            async for hit in part.search(query):
                yield hit

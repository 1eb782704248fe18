"""What a shell completes a half-written argument to: asks the daemon, and says nothing where it is not quick."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from daemon.client import Client

QUICK: Final = 0.5  # seconds; who presses Tab does not wait longer
MOST: Final = 200  # sessions that are offered, those updated last
TITLE: Final = 50  # characters beside an id, where the shell shows them

T = TypeVar("T")


def ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of sessions, each with its status and title."""
    from daemon.plain import line

    found = _ask(ctx, lambda client: client.list(limit=MOST)) or ()
    return _beginning(
        incomplete, [(info.id, f"{info.status}  {line(info.title, TITLE)}".rstrip()) for info in found]
    )


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of models."""
    found = _ask(ctx, lambda client: client.providers())
    if found is None:
        return []
    return _beginning(
        incomplete, [(model.name, "") for provider in found.providers for model in provider.models]
    )


def workers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of workers."""
    found = _ask(ctx, lambda client: client.workers()) or ()
    return _beginning(incomplete, [(worker.name, worker.state) for worker in found])


def providers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of providers, also of those that could be set up."""
    found = _ask(ctx, lambda client: client.providers(0))
    if found is None:
        return []
    there = [(each.name, each.kind) for each in found.providers]
    return _beginning(incomplete, there + [(each.name, "not set up") for each in found.offered])


def tokens(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of join tokens that let machines join."""
    found = _ask(ctx, lambda client: client.tokens()) or ()
    return _beginning(incomplete, [(str(each.id), each.name) for each in found if each.state == "good"])


def keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of API keys."""
    found = _ask(ctx, lambda client: client.keys()) or ()
    return _beginning(incomplete, [(key.name, key.role) for key in found])


def _beginning(start: str, words: Sequence[tuple[str, str]]) -> list[CompletionItem]:
    return [
        CompletionItem(word, help=help or None)
        for word, help in words
        if word.startswith(start) and word.isprintable() and " " not in word
    ]


def _ask(ctx: click.Context, ask: Callable[["Client"], Awaitable[T]]) -> T | None:
    """What the daemon says that the command line names so far; None where it says nothing in time."""
    from daemon.client import ApiFailure
    from daemon.config import ConfigError
    from daemon.verbs import reach

    given = ctx.find_root().params

    async def answer(place: reach.Where) -> T:
        async with asyncio.timeout(QUICK), reach.connect(place) as client:
            return await ask(client)

    try:
        place = reach.where(given.get("socket") or "", given.get("url") or "", os.environ)
        return asyncio.run(answer(place))
    except (reach.VerbError, ConfigError, ApiFailure, TimeoutError, OSError):
        return None

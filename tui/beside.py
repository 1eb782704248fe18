"""Run something beside the screen, the one way to do it: what goes wrong in it is said in a sentence."""

from collections.abc import Callable, Coroutine
from typing import Any

from textual.dom import DOMNode
from textual.worker import WorkType

from daemon.client import ApiFailure, Unreachable
from daemon.plain import line
from tui import editor
from tui.attach import NotPostable


def run(
    node: DOMNode,
    what: Callable[[], Coroutine[Any, Any, None]],
    failed: Callable[[Exception], None],
    group: str,
    exclusive: bool = False,
) -> None:
    """Do `what` as long as `node` is there; `failed` is called with what goes wrong, and has it told.

    Where the node goes before it was begun, it is never called: a coroutine that nobody awaits would complain.
    `exclusive`: what runs in the node's `group` is cancelled first.
    """

    async def guarded() -> None:
        await guard(what(), failed)

    begun: WorkType[None] = guarded
    node.run_worker(begun, name=group, group=group, exclusive=exclusive, exit_on_error=False)


async def guard(what: Coroutine[Any, Any, None], failed: Callable[[Exception], None]) -> None:
    """Do `what`; an error of it is handed to `failed`, and is over then."""
    try:
        await what
    except Exception as error:  # noqa: BLE001 - the one funnel: a person is told, the app goes on
        failed(error)


def sentence(error: Exception) -> str:
    """What went wrong, for a person, in a line."""
    match error:
        case ApiFailure():
            return line(error.message, 1000)
        case Unreachable():
            return f"not done: {line(str(error).partition(';')[0], 500)}"
        case editor.Failed() | NotPostable():
            return line(str(error), 500)
        case OSError() if error.strerror:
            return line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 500)
        case _:
            return line(f"a fault of outrider itself: {type(error).__name__}: {error}", 500)

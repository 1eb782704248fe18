"""Who is quiet, and which ephemeral nodes go. Pure: clocks and thresholds are arguments.

Times are seconds since the epoch. `since` is when the harness began to listen: what it could not hear before counts
against nobody.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Final

from msgspec import Struct

from mesh.nodes import Node

HANDSHAKE: Final = (
    180.0  # seconds without a handshake: WireGuard makes one every 120 s while anything is sent
)
BYTES: Final = 60.0  # seconds without a byte: keepalives come every 25 s
GONE: Final = 180.0  # seconds that an ephemeral node may be quiet
SETTLE: Final = 60.0  # seconds after `since` in which nobody goes: a worker that lives dials again within 30


class Heard(Struct, frozen=True):
    """What was heard of a node: its last handshake, and when its counters moved last; 0 for never."""

    handshake: float = 0.0
    moved: float = 0.0


def stale(handshake: float, now: float) -> bool:
    """Whether the last handshake is none of now, by a clock that may have been set since. 0, none yet, is not stale."""
    return handshake > 0 and abs(now - handshake) >= HANDSHAKE


def quiet(heard: Heard, since: float, now: float, handshake: float = HANDSHAKE, still: float = BYTES) -> bool:
    """No handshake for `handshake` seconds and no byte for `still`, both counted from `since` at the earliest."""
    return now - max(heard.handshake, since) >= handshake and now - max(heard.moved, since) >= still


def noted(
    nodes: Iterable[Node],
    heard: Mapping[int, Heard],
    since: float,
    now: float,
    handshake: float = HANDSHAKE,
    still: float = BYTES,
) -> dict[int, float | None]:
    """What changed: since when nodes are quiet, None for those that are heard of again; for `Registry.note`.

    A node that was quiet stays so until something is heard of it, also across a restart; or until the clock is set
    back to before that, since nothing that is heard by then would be newer.
    """
    changes: dict[int, float | None] = {}
    for node in nodes:
        news = heard.get(node.number, Heard())
        if node.quiet is None:
            if quiet(news, max(since, node.joined), now, handshake, still):
                changes[node.number] = now
        elif max(news.handshake, news.moved) > node.quiet or node.quiet > now:  # the clock was ahead then
            changes[node.number] = None
    return changes


def expired(
    nodes: Iterable[Node],
    awaited: Container[str],
    since: float,
    now: float,
    gone: float = GONE,
    settle: float = SETTLE,
) -> list[Node]:
    """The ephemeral nodes to remove: quiet for `gone` seconds, and no run of theirs is waited for.

    `awaited`: names of workers whose runs the harness waits for.
    """
    if now - since < settle:
        return []
    return [
        node
        for node in nodes
        if node.ephemeral
        and node.removed is None
        and node.quiet is not None
        and now - node.quiet >= gone
        and node.name not in awaited
    ]

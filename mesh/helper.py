"""The small process that holds the privilege: it makes the interface and hands out sockets of its namespace.

Its standard input is one end of a mesh.channel; it ends when the other end does. Run as `helper.main(["start", …])`
by mesh.handle. Where an ordinary user starts it, it becomes pasta or slirp4netns, which start it again inside of a
user namespace. What it needs of its rights after that is CAP_NET_ADMIN; it gives up the rest, and root's user.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, assert_never

import msgspec

from mesh import picking, privilege, verbs, ways
from mesh.picking import Backend, Off

CHANNEL: Final = 0  # the descriptor: whatever starts us on behalf of the node passes its standard input on
_CODE: Final = (
    "import sys; root = sys.argv[1]; root in sys.path or sys.path.insert(0, root); "
    "from mesh import helper; helper.main(sys.argv[2:])"
)
# What starts it, before its arguments: this Python, isolated from the user's, and this package.
BEGIN: Final = (sys.executable, "-I", "-c", _CODE, str(Path(__file__).parents[1]))


def main(arguments: Sequence[str]) -> None:
    """`examine BACKEND PORT`: print the choice as JSON. `start JSON`: be the helper."""
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for who started us, who ends us when it ends
        signal.signal(number, signal.SIG_IGN)
    match arguments:
        case ["examine", backend, port]:
            choice = picking.pick(
                msgspec.convert(backend, Backend), picking.look(os.environ), listens=port != "0"
            )
            sys.stdout.buffer.write(msgspec.json.encode(choice))
        case ["start", text]:
            start = msgspec.json.decode(text, type=verbs.Start)
            if start.picked is None:
                start = _begin(start)
            else:
                privilege.die_with_parent()
            assert start.picked is not None
            from mesh import serving  # a netlink library comes with it, which nobody but the helper needs

            asyncio.run(serving.serve(start, start.picked, CHANNEL))
        case _:
            sys.exit("this is a part of outrider, which starts it by itself")


def _begin(start: verbs.Start) -> verbs.Start:
    """Pick; returns where this process is the helper itself, and becomes the way out where there is to be one."""
    picked = picking.pick(start.backend, picking.look(os.environ), listens=start.port != 0)
    if isinstance(picked, Off):
        with socket.socket(fileno=os.dup(CHANNEL)) as sock:
            sock.send(verbs.encode(verbs.Failed(id=0, message=picked.said, off=True)))
        sys.exit(1)
    inside = msgspec.structs.replace(start, picked=picked)
    again = [*BEGIN, "start", msgspec.json.encode(inside).decode()]
    match picked.way_out:
        case "":
            pass
        case "pasta":
            ways.pasta(picked.way, start.port, again)
        case "slirp4netns":
            ways.slirp4netns(picked.way, again)
        case _:
            assert_never(picked.way_out)
    return inside

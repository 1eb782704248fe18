"""Start the mesh's helper as root for a worker that is another user's: what root keeps, and what asks it.

Root's process listens on a socket that only the worker has, and starts nothing but this installation's own helper,
which gives up all rights but those to its interface. A node asks by `launcher`, a small process that stands for the
helper: it ends with it.
"""

import array
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from mesh import helper, privilege, verbs

LONGEST: Final = 4096  # bytes of a request
_FDS: Final = 3  # that go along: the helper's channel, where it logs, and a pipe that it holds while it lives
_CODE: Final = (
    "import sys; root = sys.argv[1]; root in sys.path or sys.path.insert(0, root); "
    "from mesh import starter; starter.ask(sys.argv[2:])"
)


def pair() -> tuple[socket.socket, socket.socket]:
    """Root's end of the socket, and the worker's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def launcher(fd: int) -> tuple[str, ...]:
    """What a node's helper is started by: `fd` is the worker's end, which the command has to inherit."""
    return (sys.executable, "-I", "-c", _CODE, str(Path(__file__).parents[1]), str(fd))


def ask(arguments: Sequence[str]) -> None:
    """Have the helper started that the arguments end with, and wait for its end."""
    privilege.close_to_others()  # whoever has the socket may ask
    with socket.socket(fileno=int(arguments[0])) as sock:
        alive, held = os.pipe()
        descriptors = array.array("i", [helper.CHANNEL, 2, held])
        sock.sendmsg([arguments[-1].encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        os.close(held)
    os.close(helper.CHANNEL)  # the helper's end alone: it is to see when the node is gone
    os.read(alive, 1)


class Starter:
    """Root's end. `take` when the socket has something; `close` when the worker has ended."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._started: list[subprocess.Popen[bytes]] = []

    def take(self) -> bool:
        """Start what is asked; False when nobody asks any more. What is no request starts nothing."""
        data, fds, _, _ = socket.recv_fds(self._sock, LONGEST, _FDS)
        try:
            self._started = [process for process in self._started if process.poll() is None]
            if len(fds) == _FDS:
                self._start(msgspec.json.decode(data, type=verbs.Start), fds)
        except msgspec.MsgspecError:
            pass  # the pipe is closed below, and who asked ends
        except OSError as error:  # likewise, and is told why by its log; it asks again
            with contextlib.suppress(OSError):
                os.write(fds[1], f"root cannot start the helper: {error.strerror or error}\n".encode())
        finally:
            for fd in fds:
                os.close(fd)
        return bool(data)

    def _start(self, asked: verbs.Start, fds: Sequence[int]) -> None:
        channel, log, held = fds
        # The files that a user names are not root's to open; where a port listens is not a worker's to say.
        start = verbs.Start(backend=asked.backend, port=0, log=os.devnull)
        os.set_inheritable(held, True)
        self._started.append(
            subprocess.Popen(
                [*helper.BEGIN, "start", msgspec.json.encode(start).decode()],
                stdin=channel,
                stdout=log,
                stderr=log,
                pass_fds=[held],
                process_group=0,  # as mesh.handle has it
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )
        )

    def close(self) -> None:
        """Wait until no helper is left: each ends when its node has."""
        self._sock.close()
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()

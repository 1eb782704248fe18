"""A way by the system's ssh to the Unix socket of a daemon elsewhere: opened when needed, and anew when lost.

One ssh runs: it signs in once, finds the socket there, and then lives as long as its stdin is open, so it goes with
this process, however that ends. A forwarding is asked of it by its own control socket.
"""

import asyncio
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

OPEN: Final = 60.0  # seconds to sign in: a person may have to type
CLOSE: Final = 3.0  # seconds ssh has to end
MARK: Final = "outrider-socket:"  # before the socket's path: a shell's profile may write too
SAID: Final = 2000  # bytes of what ssh complained of that are read
FOLDERS: Final = "or-ssh-"  # how the folders of the sockets begin
LOCK: Final = (
    "lock"  # a file there, locked as long as the process of the folder lives, in whatever namespace that is
)
OPTIONS: Final = (
    "-T",
    "-o", "ControlMaster=yes",
    "-o", "ControlPersist=no",
    "-o", "ClearAllForwardings=yes",  # those of the person's own configuration are another ssh's business
    "-o", "ServerAliveInterval=15",
    "-o", "ServerAliveCountMax=3",
    "-o", "ConnectTimeout=10",
)  # fmt: skip
# Run by the other end's login shell, whichever that is: plain sh, in single quotes, without one inside.
FIND: Final = (
    'for s in "$XDG_RUNTIME_DIR/outrider/api.sock" "/run/user/$(id -u)/outrider/api.sock" '
    '"${OUTRIDER_DATA:-${XDG_DATA_HOME:-$HOME/.local/share}/outrider}/api.sock" /var/lib/outrider/api.sock; '
    f'do if [ -S "$s" ]; then echo "{MARK}$s"; exec cat >/dev/null; fi; done; echo "{MARK}"'
)
HOST: Final = re.compile(r"[A-Za-z0-9_.:%][A-Za-z0-9_.:%-]*")
USER: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@\\-]*")


class TunnelError(Exception):
    """There is no way to that daemon now; the message says why."""


class Far(Struct, frozen=True):
    """Where ssh goes, and the socket there; empty: where a daemon has it by itself."""

    host: str
    user: str = ""
    port: int = 0
    socket: str = ""

    def arguments(self) -> list[str]:
        """What names it to ssh."""
        to = f"{self.user}@{self.host}" if self.user else self.host
        return [*(["-p", str(self.port)] if self.port else []), "--", to]


def parse(url: str) -> Far:
    """`ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]`. Raises ValueError."""
    try:
        parts = urlsplit(url)
        user, port = unquote(parts.username or ""), parts.port or 0
        host = parts.hostname or ""
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from error
    good = parts.scheme == "ssh" and HOST.fullmatch(host) and (not user or USER.fullmatch(user))
    if not good or parts.password or parts.query or parts.fragment:
        raise ValueError(f"{url}: write ssh://HOST, ssh://USER@HOST:PORT or ssh://HOST/PATH/OF/api.sock")
    path = unquote(parts.path)
    return Far(host, user, port, path if path != "/" else "")


class Tunnel:
    """A local socket that leads to a daemon's. `quiet` is set by who has taken the terminal: ssh asks nothing then.

    Nothing of it belongs to a loop: it can be opened in one and used in the next. `close` ends it.
    """

    def __init__(self, url: str, program: Sequence[str] = ("ssh",)) -> None:
        self.url = url
        self.quiet = False
        self._far = parse(url)
        self._program = list(program)
        self._folder: Path | None = None
        self._lock = -1  # the descriptor that has it
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def socket(self) -> str:
        """The local socket; there once it is open."""
        assert self._folder is not None
        return str(self._folder / "s")

    @property
    def is_open(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def open(self) -> None:
        """Open it where it is not open. Raises TunnelError."""
        if self.is_open:
            return
        await self.close()
        folder, self._lock = await asyncio.to_thread(_made)
        self._folder = folder
        try:
            async with asyncio.timeout(OPEN):
                await self._open(folder / "c")
        except BaseException as error:
            said = await asyncio.to_thread(self._said)
            await self.close()
            match error:
                case TimeoutError():
                    raise TunnelError(
                        f"ssh to {self._far.host} did not sign in within {OPEN:.0f} s"
                    ) from error
                case FileNotFoundError():
                    raise TunnelError(
                        "there is no ssh program on this machine: install openssh-client"
                    ) from error
                case TunnelError() if said and not error.args[0]:
                    raise TunnelError(f"ssh to {self._far.host}: {said}") from error
                case TunnelError() if not error.args[0]:
                    raise TunnelError(f"ssh to {self._far.host} ended without a word") from error
            raise

    async def _open(self, control: Path) -> None:
        far = self._far
        command = f"echo {shlex.quote(MARK + far.socket)}; exec cat >/dev/null" if far.socket else FIND
        batch = ["-o", "BatchMode=yes"] if self.quiet else []
        self._log = await asyncio.to_thread(tempfile.TemporaryFile)
        self._process = _spawn(
            [
                *self._program,
                *OPTIONS,
                "-o",
                f"ControlPath={control}",
                *batch,
                *far.arguments(),
                _sh(command),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,  # what it asks, it asks of the terminal
            start_new_session=self.quiet,  # without a terminal of its own it cannot ask
        )
        there = await self._found()
        if not there:
            raise TunnelError(f"no daemon listens on {far.host}: `outrider up` there starts one")
        forward = _spawn(
            [*self._program, "-o", f"ControlPath={control}", "-O", "forward", "-L", f"{self.socket}:{there}",
             *far.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )  # fmt: skip
        try:
            code = await _ended(forward)
        except BaseException:
            forward.kill()
            forward.wait()
            raise
        if code:
            raise TunnelError("")

    async def _found(self) -> str:
        """The socket's path that the other end says; empty where it found none. Raises TunnelError where ssh ends."""
        assert self._process is not None
        assert self._process.stdout is not None
        fd, loop, text = self._process.stdout.fileno(), asyncio.get_running_loop(), b""
        os.set_blocking(fd, False)
        while True:
            ready = loop.create_future()
            loop.add_reader(fd, _set, ready)
            try:
                await ready
            finally:
                loop.remove_reader(fd)
            piece = os.read(fd, 4096)
            if not piece:
                raise TunnelError("")
            text += piece
            for line in text.split(b"\n")[:-1]:
                if (at := line.find(MARK.encode())) >= 0:
                    return os.fsdecode(line[at + len(MARK) :].strip())

    def _said(self) -> str:
        """The last line that ssh complained with."""
        if self._log is None:
            return ""
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - SAID))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    async def close(self) -> None:
        """End ssh and remove the local socket."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.terminate()
            try:
                async with asyncio.timeout(CLOSE):
                    await _ended(process)
            except TimeoutError:
                process.kill()
                process.wait()
        log, self._log = self._log, None
        if log is not None:
            log.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, True)
            os.close(self._lock)


def _made() -> tuple[Path, int]:
    """A new folder of ours alone, and the lock by which others see that we live. Raises OSError."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*/{LOCK}"):
        _sweep(path)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=FOLDERS))
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / LOCK).exists():  # else it was swept just before it was locked
            return folder, lock
        os.close(lock)


def _sweep(path: Path) -> None:
    """Take away the folder of the lock at `path`, where it is ours and its process is dead: nobody has the lock."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, True)
    except BlockingIOError:
        return
    finally:
        os.close(lock)


def _spawn(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Not asyncio's: what it starts belongs to no loop."""
    return subprocess.Popen(command, **options)


def _sh(command: str) -> str:
    return f"sh -c {shlex.quote(command)}"


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


async def _ended(process: "subprocess.Popen[bytes]") -> int:
    """The exit code, once there is one."""
    if (code := process.poll()) is not None:
        return code
    handle, loop = os.pidfd_open(process.pid), asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(handle, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return process.wait()

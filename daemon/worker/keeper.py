"""The keeper: owns a worker's environments, journals and files, and serves the protocol on a Unix socket."""

import asyncio
import contextlib
import fcntl
import logging
import os
import platform
import signal
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from daemon.allowance import Allowance
from daemon.protocol import frames
from daemon.worker import access, connection, descriptors, interpreters, journal, pasts, runs, surroundings
from daemon.worker.retention import Retention
from daemon.worker.writes import Writes

LOCK: Final = "keeper.lock"
SOCKET: Final = "keeper.sock"
LOG: Final = "keeper.log"
HELLO_RUNS: Final = 48 << 10  # bytes of hello's `runs`: its header has 64 KiB in all
CLEAN_EVERY: Final = 600.0  # seconds between two looks at what may go of the journal
CLEAN_PAUSE: Final = 10.0  # the same, while runs end
WATCH: Final = 5.0  # seconds between two looks whether the scratch folder is still ours
THREADS: Final = (
    128  # a login profile holds one for 20 s; asyncio's own choice is six on a machine with two CPUs
)
READY: Final = "ready"
BUSY: Final = "busy"  # another keeper serves this scratch folder
FLOCK: Final = "hhqqi"  # struct flock: type, whence, start, length, pid
SHUT_DOWN: Final = "the worker's keeper was ended"
REMOVED: Final = "the worker's scratch folder, or its journal, was removed or replaced"

log = logging.getLogger(__name__)


class Busy(Exception):
    """Another keeper serves this scratch folder."""


class Keeper:
    """One worker's keeper; everything it holds on disk is under `scratch`."""

    def __init__(
        self,
        scratch: Path,
        release: str,
        environ: Mapping[str, str],
        find: Callable[[Mapping[str, str]], tuple[str, ...]] = interpreters.find,
    ) -> None:
        self.scratch = scratch
        self._find = find
        self.release = release
        self._environ = environ
        self._started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._tasks: asyncio.TaskGroup | None = None
        self._stop = asyncio.Event()
        self._reason = SHUT_DOWN
        self._retiring = ""
        self._home = ""
        self._lock = self._journal = (0, 0)  # device and inode of the lock file and of the journal's folder
        self._ended = asyncio.Event()
        self._access = access.EVERYWHERE
        self.runs: runs.Runs
        self.writes: Writes

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of the keeper: one that fails is logged and ends nothing else."""
        assert self._tasks is not None
        return self._tasks.create_task(self._guarded(work, name), name=name)

    async def _guarded(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except Exception:  # the one around one request: its fault must not end the others
            log.exception("%s failed", name)

    def stop(self) -> None:
        """Have `serve` return: environments end, what was going is unknown."""
        self._stop.set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Locked and listening; on the way out everything that was started is ended. Raises Busy."""
        with contextlib.ExitStack() as held:
            kept, sock, names, allowed = await asyncio.to_thread(self._open, held)
            async with asyncio.TaskGroup() as self._tasks:
                self.runs = runs.Runs(kept, self.spawn, self._environ, names)
                self.runs.on_end = self._run_ended
                self._allow(allowed)
                self.writes = Writes(kept, self.spawn)
                server = await asyncio.get_running_loop().create_unix_server(self._connection, sock=sock)
                own = (
                    self.spawn(self._clean(), "clean the journal"),
                    self.spawn(self._watch(), "watch the scratch folder"),
                )
                serving: set[asyncio.Task[None]] = set()
                self._serving = serving
                try:
                    yield
                finally:
                    server.close()
                    if await asyncio.to_thread(self._ours):
                        await asyncio.to_thread((self.scratch / SOCKET).unlink, missing_ok=True)
                    for task in (*own, *serving):  # who dials again reaches the next keeper
                        task.cancel()
                    await self.runs.close(self._reason)

    def _open(
        self, held: contextlib.ExitStack
    ) -> tuple[journal.Journal, socket.socket, tuple[str, ...], Allowance]:
        """Lock, find the interpreters, take up the journals, listen; a socket that a killed keeper left is replaced.

        Blocks.
        """
        held.enter_context(locked(self.scratch / LOCK))
        self._lock = identity(self.scratch / LOCK)
        allowed = access.load(self.scratch)
        names = self._find(allowed.variables(self._environ))
        kept = journal.Journal(self.scratch / "runs")
        held.callback(kept.close)
        self._journal = identity(kept.folder)
        kept.load()
        self._home = surroundings.home()
        path = self.scratch / SOCKET
        path.unlink(missing_ok=True)
        return kept, listener(path), names, allowed

    async def serve(self) -> None:
        """Serve until `stop`."""
        await self._stop.wait()

    def _connection(self) -> connection.Connection:
        return connection.Connection(
            self._connected, self.runs, self.writes, self._update, lambda: self._access
        )

    def _connected(self, one: connection.Connection) -> None:
        _, uid, _ = peer(one.socket)
        if uid not in (0, os.getuid()):
            log.warning("a connection of user %d was refused", uid)
            one.close()
            return
        task = self.spawn(self._serve_one(one), "connection")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        task.add_done_callback(lambda _: one.close())

    async def _serve_one(self, one: connection.Connection) -> None:
        """What is allowed is looked up anew for each connection: a worker that is started again brings its own."""
        try:
            self._allow(await asyncio.to_thread(access.load, self.scratch))
        except access.Unreadable as error:
            log.error("%s; what was allowed before still is", error)
        await one.serve(self.hello())

    def _allow(self, allowed: Allowance) -> None:
        if allowed != self.runs.allowed:
            log.info("allowed from now on: %s", msgspec.json.encode(allowed).decode())
            self.runs.allowed = allowed
            self._access = access.Access(allowed, self.scratch)
            for name in self.runs.missing:
                log.warning(
                    "worker.interpreters allows %s, which is not there: install it, start the worker anew",
                    name,
                )

    def hello(self) -> frames.Hello:
        """What this worker is and still knows."""
        account = surroundings.account()
        return frames.Hello(
            protocol=frames.PROTOCOL,
            release=self.release,
            os=platform.system().lower(),
            arch=platform.machine(),
            hostname=socket.gethostname(),
            interpreters=self.runs.names,
            scratch=str(self.scratch),
            home=self._home,
            user=account.pw_name,
            cpus=len(os.sched_getaffinity(0)),
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            started=self._started,
            journal=self.runs.journal.origin.id,
            journal_age=self.runs.journal.origin.age,
            running=len(self.runs.going),
            environments=self.runs.slots.alive,
            runs=tuple(self.runs.journal.runs(HELLO_RUNS)),
        )

    def _update(self, release: str) -> None:
        """Another release is to take over: end as soon as no run is going."""
        if release != self.release:
            self._retiring = release
            self._retire_if_idle()

    def _retire_if_idle(self) -> None:
        if self._retiring and not self.runs.going:
            self._reason = f"the worker was updated from release {self.release} to {self._retiring}"
            self.stop()

    def _run_ended(self) -> None:
        self._ended.set()
        self._retire_if_idle()

    async def _clean(self) -> None:
        """Let go of journals from time to time: soon after a run, else for those whose day is over."""
        kept = Retention(self.runs.journal)
        while True:
            await asyncio.to_thread(kept.clean)
            await asyncio.to_thread(pasts.clean, self.scratch / pasts.FOLDER, time.time())
            await asyncio.sleep(CLEAN_PAUSE)
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEAN_EVERY):
                    await self._ended.wait()

    def _ours(self) -> bool:
        """Whether the lock is still where the next keeper looks for it. Blocks."""
        return identity(self.scratch / LOCK) == self._lock

    def _is_whole(self) -> bool:
        """Whether the scratch folder is still ours, and the journal still in it. Blocks."""
        return self._ours() and identity(self.runs.journal.folder) == self._journal

    async def _watch(self) -> None:
        """End with the scratch folder: nothing can be journaled any more, nobody can dial, and nobody would end us."""
        while await asyncio.to_thread(self._is_whole):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH):
                    await self._stop.wait()
                    return
        log.error("%s: %s", self.scratch, REMOVED)
        self._reason = REMOVED
        self.stop()


def identity(path: Path) -> tuple[int, int]:
    """Device and inode of a file, zeros where there is none. Opens nothing: to close a locked file unlocks it."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel lets it go however this process ends. Raises Busy."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            raise Busy(f"another keeper holds {path}") from None
        yield
    finally:
        os.close(fd)


def holder(path: Path) -> int:
    """Process id of who holds a keeper's lock file; 0 where nobody does. Asking takes no lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        asked = struct.pack(FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else pid
    finally:
        os.close(fd)


def listener(path: Path) -> socket.socket:
    """A listening Unix socket that only its owner may open."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    sock.listen(64)
    return sock


def peer(sock: socket.socket) -> tuple[int, int, int]:
    """Process, user and group id of who is at the other end of a Unix socket."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", found)
    return pid, uid, gid


async def keep(scratch: Path, release: str, ready: int) -> None:
    """Run a keeper to its end; `ready` is a descriptor that hears READY, BUSY or what is wrong, and is closed."""
    keeper = Keeper(scratch, release, os.environ)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, "keeper"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, keeper.stop)
    told = False
    try:
        async with keeper.listening():
            told = tell(ready, READY)
            log.info("keeper %d of release %s serves %s", os.getpid(), release, scratch)
            await keeper.serve()
    except Busy:
        tell(ready, BUSY)
    except OSError as error:
        if told:
            raise
        tell(ready, str(error))


def tell(fd: int, what: str) -> bool:
    """Write a line to a pipe and close it; who started this keeper may be gone, the next one finds it."""
    try:
        with contextlib.suppress(BrokenPipeError):
            os.write(fd, what.encode("utf-8", "replace"))
    finally:
        os.close(fd)
    return True


def main(scratch: str, release: str, ready: int) -> None:
    """The keeper's process; the one that called it returns at once, so that the keeper is nobody's child."""
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    descriptors.take()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(keep(Path(scratch), release, ready))

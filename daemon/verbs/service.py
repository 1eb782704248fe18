"""The verbs on the daemon itself: daemon, up, down."""

import asyncio
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import msgspec
from msgspec import UNSET, Struct, UnsetType

from daemon import config
from daemon.client import ApiFailure, Client, Unreachable
from daemon.config import Settings
from daemon.plain import safe
from daemon.protocol.dialing import LOCAL
from daemon.statefile.errors import LockedError, StateFileError
from daemon.statefile.store import Store
from daemon.verbs.lean import without
from daemon.verbs.reach import COMPLAINT, OK, USAGE, VerbError, say, say_json
from daemon.worker import keeper, launch

START: Final = 60.0  # seconds a daemon has to be ready: it looks at every session first
POLL: Final = 0.1  # seconds between two looks at a daemon that starts or ends
CLOSED: Final = 2.0  # seconds from the close of its stdout to the end of a daemon that does not start
END: Final = 60.0  # seconds it has to end: turns have 25 and requests in flight 15
WORKER: Final = (
    5.0  # seconds that `up` waits for the local worker; without it sessions wait for it all the same
)
LOG: Final = "daemon.log"
MAX_LOG: Final = 16 << 20  # bytes after which `up` begins a new log and keeps one old one
SHOWN: Final = 20  # lines of the log when a daemon does not come up


class Options(Struct, frozen=True):
    """What the command line says about a daemon; None and empty are as configured."""

    data: str = ""
    socket: str = ""
    listen: tuple[str, ...] | None = None
    insecure: bool = False
    agents: tuple[str, ...] = ()

    def settings(self, environ: Mapping[str, str]) -> Settings:
        """All settings under these. Raises ConfigError."""
        read = config.load(
            environ, data=self.data, socket=self.socket, listen=self.listen, insecure=self.insecure
        )
        config.check_socket(read.socket)
        if not self.agents:
            return read
        files = tuple(Path(os.path.abspath(Path(file).expanduser())) for file in self.agents)
        agents = msgspec.structs.replace(read.agents, files=files)
        return msgspec.structs.replace(read, agents=agents, agents_given=True)

    def arguments(self) -> list[str]:
        """The same as a command line."""
        given = [f"--data={self.data}"] if self.data else []
        given += [f"--socket={self.socket}"] if self.socket else []
        if self.listen is not None:
            given += [f"--listen={address}" for address in self.listen or ("none",)]
        given += [f"--agent={os.path.abspath(Path(file).expanduser())}" for file in self.agents]
        return given + (["--insecure"] if self.insecure else [])


class Up(Struct, frozen=True, omit_defaults=True):
    """A daemon that is ready, as `daemon` and `up` tell it. `listen`: HOST:PORT each, unset where it is not known."""

    pid: int
    data: str
    socket: str
    listen: tuple[str, ...] | UnsetType = UNSET
    release: str = ""
    started: bool = False


def daemon(options: Options, environ: Mapping[str, str], json: bool) -> int:
    """Be the daemon until a signal ends it; one line on stdout says where it listens."""
    settings = options.settings(environ)
    with without("rich"):  # structlog would take it for tracebacks that we do not print: 28 ms and 5 MiB
        from daemon import compose
    gc.freeze()  # what is loaded stays: a full collection over it would hold the loop for some 15 ms each time
    compose.log_to(sys.stderr)

    def announce(ready: compose.Ready) -> None:
        up = Up(os.getpid(), str(settings.data), str(ready.socket), ready.listen, compose.release())
        try:
            if json:
                say_json(up)
            else:
                listen = "".join(f" listen={address}" for address in ready.listen)
                say(f"ready pid={up.pid} socket={safe(up.socket)}{listen} data={safe(up.data)}")
        except BrokenPipeError:  # who started us did not wait for it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    try:
        compose.run(settings, environ, announce)
    except compose.StartError as error:
        raise VerbError(str(error)) from error
    return OK


def up(options: Options, environ: Mapping[str, str], json: bool) -> int:
    """Start a daemon in the background, unless one runs, and return when it is ready."""
    settings = options.settings(environ)
    for warning in settings.warnings:
        click.echo(f"{COMPLAINT}{safe(warning)}", err=True)
    found = _running(settings)
    if found is None:
        found = _start(options, settings)
        asyncio.run(_until_worker(settings.socket))
    if json:
        say_json(found)
    else:
        say(f"outrider {'is up' if found.started else 'was up already'}, pid {found.pid}")
        listen = () if found.listen is UNSET else found.listen
        for name, value in (
            ("socket", found.socket),
            *(("listen", address) for address in listen),
            ("data", found.data),
        ):
            say(f"{name:<6}  {safe(value)}")
    return OK


def down(options: Options, environ: Mapping[str, str], json: bool) -> int:
    """End the daemon and its local worker, also where the configuration has become one that cannot be read."""
    data, scratch, _ = config.folders(environ, options.data)
    pid = _holder(data)
    if options.socket and pid != (listener := _listener(options.socket)):
        other = f"that of pid {listener}" if listener else "none"
        raise VerbError(
            f"the daemon that listens on {options.socket} is {other}, and the one that works on {data} is "
            f"{f'that of pid {pid}' if pid else 'none'}: name its folder with --data, or leave --socket out",
            USAGE,
        )
    if pid is not None:
        _end(pid)
    worker = keeper.holder(scratch / keeper.LOCK)
    asyncio.run(launch.end(scratch))
    if json:
        say_json({"daemon": pid, "worker": worker or None})
    elif pid is None and not worker:
        say("outrider was not up")
    else:
        ended = [f"daemon (pid {pid})"] if pid else []
        ended += [f"local worker (pid {worker})"] if worker else []
        say(f"outrider is down: ended {' and '.join(ended)}")
    return OK


def _holder(data: Path) -> int | None:
    """The pid of the daemon that works on a data folder, None where none does."""
    if not data.is_dir():
        return None
    try:
        with Store(data).lock():
            return None
    except LockedError as error:
        if not error.pid:
            raise VerbError(f"a daemon works on {data}, and its pid is not known: end it by hand") from error
        return error.pid
    except StateFileError as error:
        raise VerbError(str(error)) from error


def _listener(path: str) -> int | None:
    """The pid of who listens on a Unix socket, None where nobody does."""
    with socket.socket(socket.AF_UNIX) as asked:
        try:
            asked.connect(os.path.expanduser(path))
        except OSError:
            return None
        (pid,) = struct.unpack("i8x", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _end(pid: int) -> None:
    """SIGTERM, and wait until the process is gone. Raises VerbError when it does not go."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not select.select([handle], [], [], END)[0]:
            raise VerbError(f"the daemon, pid {pid}, did not end within {END:.0f} s; `kill -9 {pid}` ends it")
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _running(settings: Settings) -> Up | None:
    """The daemon on this data folder, None where none runs; waits for one that is just starting or ending."""
    give_up = time.monotonic() + START
    while (pid := _holder(settings.data)) is not None:
        if asyncio.run(_answers(settings.socket)):
            return Up(pid, str(settings.data), str(settings.socket))
        if time.monotonic() > give_up:
            raise VerbError(
                f"a daemon works on {settings.data}, pid {pid}, and does not answer at {settings.socket}: "
                "name its socket, or end it with `outrider down`"
            )
        time.sleep(POLL)
    return None


async def _answers(socket: Path) -> bool:
    async with Client(socket) as client:
        try:
            await client.version()
        except (Unreachable, ApiFailure):
            return False
    return True


async def _until_worker(path: Path) -> None:
    """Wait for the local worker, for WORKER seconds at most: the next verb may ask for it."""
    give_up = time.monotonic() + WORKER
    async with Client(path) as client:
        while time.monotonic() < give_up:
            try:
                if any(worker.name == LOCAL for worker in await client.workers()):
                    return
            except (Unreachable, ApiFailure):
                return
            await asyncio.sleep(POLL)


def _start(options: Options, settings: Settings) -> Up:
    """Start a daemon that outlives us, and wait for the line that says it is ready. Raises VerbError."""
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise VerbError(f"cannot make the folder {settings.data}: {error.strerror}") from error
    path = settings.data / LOG
    if path.exists() and path.stat().st_size > MAX_LOG:
        path.replace(path.with_suffix(".log.old"))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        begin = os.fstat(log).st_size
        process = subprocess.Popen(  # -P: what lies in the caller's folder is not imported
            [sys.executable, "-P", "-m", "daemon.cli", "daemon", "--json", *options.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    assert process.stdout is not None
    with process.stdout as stdout:
        line = _first_line(stdout.fileno())
    if line.endswith(b"\n"):
        return msgspec.structs.replace(msgspec.json.decode(line, type=Up), started=True)
    try:
        code = process.wait(CLOSED)
    except subprocess.TimeoutExpired as error:
        process.terminate()
        process.wait()
        raise VerbError(
            f"the daemon was not ready after {START:.0f} s and was ended; its log: {path}"
        ) from error
    with path.open("rb") as file:
        file.seek(begin)
        said = safe(file.read().decode(errors="replace")).rstrip()
    if (last := said.rpartition(COMPLAINT)[2]) != said:
        raise VerbError(f"{last}\nThe daemon did not start; its log: {path}")
    lines = "\n".join(said.split("\n")[-SHOWN:])
    raise VerbError(f"the daemon did not start, code {code}; its log, {path}, ends so:\n{lines}")


def _first_line(fd: int) -> bytes:
    """What comes on `fd` up to the first line's end, its close, or START seconds."""
    give_up = time.monotonic() + START
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, give_up - time.monotonic()))[0]:
            break
        if not (piece := os.read(fd, 4096)):
            break
        line += piece
    return line

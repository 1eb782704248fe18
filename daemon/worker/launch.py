"""Find or start the keeper of a scratch folder, and end it: a process that outlives whoever started it."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from daemon.allowance import Allowance
from daemon.protocol import frames, framing
from daemon.worker import access, keeper, smallfiles, surroundings

START_WAIT: Final = 30.0  # seconds for a keeper to listen: it may have many journals to read
HELLO_WAIT: Final = frames.HELLO_WAIT  # seconds for one that listens to say hello
RETIRE_WAIT: Final = 0.5  # seconds for an idle keeper of another release to close the connection
END_WAIT: Final = 15.0  # seconds from SIGTERM to SIGKILL: it ends its environments meanwhile
PATH_MAX: Final = 107  # bytes of a Unix socket's path
LOG_MAX: Final = 1 << 20  # bytes of the log above which the next start begins a new one
LOOK_EVERY: Final = 0.05  # seconds between two looks at a keeper that starts or ends


class LaunchError(Exception):
    """No keeper could be had for this scratch folder; the message says why and what to do."""


async def ensure(scratch: Path, release: str, allowed: Allowance | None = None) -> Path:
    """The socket of a live keeper for `scratch`, started where none runs or where an idle one is of another release.

    One of another release that still has runs is left to finish them: it ends by itself then, and its connections
    with it; call this again. `allowed` holds for it from now on, also where it runs already; None leaves what holds.
    Raises LaunchError.
    """
    scratch = Path(await asyncio.to_thread(os.path.abspath, scratch))
    path = scratch / keeper.SOCKET
    if len(os.fsencode(path)) > PATH_MAX:
        raise LaunchError(
            f"{path} is longer than a socket's path may be ({PATH_MAX} bytes): choose a shorter scratch"
        )
    try:
        await asyncio.to_thread(smallfiles.make_folder, scratch)
    except OSError as error:
        raise LaunchError(
            f"the worker's scratch folder {scratch} cannot be made: {error.strerror}"
        ) from error
    if allowed is not None:
        try:
            await asyncio.to_thread(access.store, scratch, allowed)
        except OSError as error:
            raise LaunchError(
                f"what is allowed cannot be written into {scratch}: {error.strerror}"
            ) from error
    lock = scratch / keeper.LOCK
    loop = asyncio.get_running_loop()
    give_up = loop.time() + START_WAIT
    pid = 0
    while loop.time() < give_up:
        if await _usable(path, release):
            return path
        if pid := await asyncio.to_thread(keeper.holder, lock):  # it starts, or ends
            await asyncio.sleep(LOOK_EVERY)
            continue
        said = await asyncio.to_thread(_start, scratch, release)
        if said == keeper.READY:
            return path
        if said != keeper.BUSY:  # somebody else started one at the same time
            raise LaunchError(
                f"the worker's keeper did not start: {said or 'it said nothing'} (log: {scratch / keeper.LOG})"
            )
    raise LaunchError(f"the worker's keeper, process {pid}, neither listens nor ends: end it")


async def _usable(path: Path, release: str) -> bool:
    """Whether a keeper listens that is ours to use; one of another release is told to make room."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return False
    try:
        hello = await hello_of(reader)
        if hello is None:
            return False
        if hello.release == release:
            return True
        writer.write(frames.encode(frames.Update(release=release)))
        busy = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETIRE_WAIT):
                while await reader.read(1 << 16):
                    pass
                busy = False
        return busy
    except OSError:
        return False
    finally:
        writer.close()


async def hello_of(reader: asyncio.StreamReader) -> frames.Hello | None:
    """The first frame of a connection, None where the keeper ends before it; raises LaunchError when it hangs."""
    decoder = frames.harness_decoder()
    try:
        async with asyncio.timeout(HELLO_WAIT):
            while data := await reader.read(1 << 16):
                decoder.feed(data)
                if unit := decoder.next():
                    return unit[0] if isinstance(unit[0], frames.Hello) else None
    except TimeoutError:
        raise LaunchError("the worker's keeper is there but says nothing: end it, then try again") from None
    except framing.FramingError as error:
        raise LaunchError(f"what listens on the keeper's socket is not a keeper: {error}") from error
    return None


def _start(scratch: Path, release: str) -> str:
    """Start a keeper and wait until it listens: `ready`, or what it said instead. Blocks."""
    root = str(Path(keeper.__file__).parents[2])
    told_read, told_write = os.pipe2(os.O_CLOEXEC)
    logfile = scratch / keeper.LOG
    with contextlib.suppress(OSError):
        if logfile.stat().st_size > LOG_MAX:
            logfile.replace(logfile.with_name(keeper.LOG + ".1"))
    code = (
        "import sys; root, scratch, release, ready = sys.argv[1:]; root in sys.path or sys.path.insert(0, root); "
        "from daemon.worker import keeper; keeper.main(scratch, release, int(ready))"
    )
    try:
        with open(logfile, "ab", opener=_private) as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", code, root, str(scratch), release, str(told_write)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(told_write,),
                start_new_session=True,
                cwd="/",
                env=surroundings.without_private(os.environ),
            )
    except OSError as error:
        os.close(told_read)
        return str(error)
    finally:
        os.close(told_write)
    try:
        said = _told(told_read)
    finally:
        os.close(told_read)
        process.wait()  # it has forked the keeper and is done
    return said


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _told(fd: int) -> str:
    said = b""
    give_up = time.monotonic() + START_WAIT
    while (left := give_up - time.monotonic()) > 0:
        if not select.select([fd], [], [], left)[0]:
            break
        data = os.read(fd, 4096)
        if not data:
            break
        said += data
    return said.decode(errors="replace").strip()


async def end(scratch: Path) -> None:
    """End the keeper of `scratch` with its environments; done when it is gone, at once where none runs."""
    await asyncio.to_thread(end_holder, scratch / keeper.LOCK)


def end_holder(lock: Path) -> None:
    """End the process that holds a lock file, by SIGTERM, after END_WAIT by SIGKILL; done when it is gone. Blocks."""
    pid = keeper.holder(lock)
    if not pid:
        return
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if keeper.holder(lock) != pid:  # it ended meanwhile, and the number may be somebody else's
            return
        for number, wait in ((signal.SIGTERM, END_WAIT), (signal.SIGKILL, END_WAIT)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
            if select.select([fd], [], [], wait)[0]:
                return
    finally:
        os.close(fd)

"""Change a worker's release for the harness's: when to try, what to go on as, and what to say of it.

What was decided is in update.json in the scratch folder, so that it outlives every process: the release that `outrider
worker` goes on as, the last failure, and when the release was changed.
"""

import asyncio
import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from daemon.protocol import dialing, frames
from daemon.worker import fetch, install, keeper, link, smallfiles
from daemon.worker.fetch import UpdateError
from daemon.worker.install import Job, Outcome

STATE: Final = "update.json"
AGAIN: Final = 600.0  # seconds until what failed is tried again
CHANGES: Final = (
    4  # changes of release within AGAIN, after which it waits: harnesses of two releases take turns
)
FETCH_AGAIN: Final = link.LONGEST_WAIT  # seconds until a wheel is fetched again after the connection was lost
INSTALL_WAIT: Final = 1800.0  # seconds in which an installation ends by its own limits, and does not hang
NAME: Final = re.compile(r"[0-9][A-Za-z0-9.+_-]{0,99}")  # a release; it names a folder
STANDING: Final = "this worker's operator allows no updates (update = false in [worker])"

log = logging.getLogger(__name__)
Install = Callable[[Job], Awaitable[Outcome]]


class Failed(Struct, frozen=True):
    """An update that failed. `at`: seconds since 1970. Another wheel, by its SHA-256, is another update."""

    release: str
    sha256: str
    reason: str
    at: float


class State(Struct, frozen=True, omit_defaults=True):
    """What is kept. `chosen`: the release to go on as, over the release `base` of what the operator installed.

    `changes`: when the release was changed, the last few, in seconds since 1970.
    """

    chosen: str = ""
    base: str = ""
    changes: tuple[float, ...] = ()
    failed: Failed | None = None


def load(scratch: Path) -> State:
    """What was decided; nothing where the file is missing or does not read. Blocks."""
    return smallfiles.read(scratch / STATE, State) or State()


def save(scratch: Path, state: State) -> None:
    """Keep it, also over a power cut. Blocks. Raises OSError."""
    smallfiles.write_whole(scratch / STATE, msgspec.json.encode(state), durable=True)


def successor(scratch: Path, release: str) -> Path | None:
    """The interpreter of the release to go on as, when `release` starts; None to go on as it is. Blocks.

    That is over when the operator installed another one meanwhile, and when it does not start any more.
    """
    state = load(scratch)
    if not state.chosen or state.chosen == release or _within(scratch):
        return None
    python = install.python_of(scratch, state.chosen)
    why = ""
    if state.base != release:
        why = f"release {release} was installed over {state.base}"
    else:
        try:
            install.starts(python, state.chosen)
        except install.InstallError as error:
            why = str(error)
    if not why:
        return python
    log.warning("not going on as release %s, to which this worker was updated: %s", state.chosen, why)
    with contextlib.suppress(OSError):
        save(scratch, replace(state, chosen="", base=""))
    return None


def _within(scratch: Path) -> bool:
    """Whether this process is of a release that was installed here."""
    return Path(sys.prefix).parent == scratch / install.FOLDER


def sentence(state: State, now: float) -> str:
    """What is to be known of the last failure, empty where it is over."""
    if state.failed is None or not _recent(state.failed.at, now):
        return ""
    again = datetime.fromtimestamp(state.failed.at + AGAIN, UTC).strftime("%H:%M UTC")
    return (
        f"the update to release {state.failed.release} failed: {state.failed.reason}; tried again at {again}"
    )


def _recent(at: float, now: float) -> bool:
    return abs(now - at) < AGAIN  # a clock that was set back does not stop it for ever


class Updater:
    """One worker's updates. `dial` opens a stream to the harness, `greeting` is said there first for a purpose, with a
    sentence; `allowed`: whether the operator lets the harness do this.

    `now` is the time of day, in seconds since 1970, `sleep` takes seconds.
    """

    def __init__(
        self,
        scratch: Path,
        release: str,
        *,
        dial: Callable[[], Awaitable[link.Stream]],
        greeting: Callable[[str, str], bytes],
        allowed: bool,
        install: Install | None = None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._scratch = scratch
        self._release = release
        self._dial = dial
        self._greeting = greeting
        self._allowed = allowed
        self._install = install or installed
        self._now = now
        self._sleep = sleep
        self._wanted: frames.Update | None = None
        self._news = asyncio.Event()
        self._state = State()
        self._doing = ""
        self._turned = 0  # how often another release was offered than the one that was to be fetched
        self._lost = ""  # why fetching was cut short last

    async def load(self) -> None:
        """Take up what was decided before; to be called first."""
        self._state = await asyncio.to_thread(load, self._scratch)

    def asked(self, update: frames.Update | None) -> None:
        """A harness wants this release here, or none other than it has. Returns at once."""
        if update != self._wanted:
            self._wanted = update
            self._news.set()

    def standing(self) -> str:
        """How it goes, in a sentence for the harness; empty where there is nothing to say."""
        return self._doing or sentence(self._state, self._now())

    async def run(self) -> Path:
        """Carry out what is asked until a release is installed; its interpreter, to go on as."""
        while True:
            await self._news.wait()
            self._news.clear()
            if (update := self._wanted) is None:
                self._doing = ""
                continue
            if why := self._hindered(update):
                await self._tell(why)
                continue
            if wait := self._wait(update):
                if not self.standing():
                    await self._tell(
                        f"it waits, since it was updated {CHANGES} times in {AGAIN / 60:.0f} minutes"
                    )
                await self._either(wait)
                continue
            if (python := await self._try(update)) is not None:
                return python

    def _hindered(self, update: frames.Update) -> str:
        """Why nothing can come of it, whenever it is tried."""
        if not self._allowed:
            return STANDING
        if update.sha256:
            return ""
        return f"the daemon cannot give its release: {update.missing or 'it does not say why'}"

    def _wait(self, update: frames.Update) -> float:
        """Seconds until this may be tried."""
        now, failed = self._now(), self._state.failed
        same = failed and (failed.release, failed.sha256) == (update.release, update.sha256)
        if failed and same and _recent(failed.at, now):
            return max(1.0, failed.at + AGAIN - now)
        recent = [at for at in self._state.changes if _recent(at, now)]
        if len(recent) < CHANGES:
            return 0.0
        return max(1.0, recent[0] + AGAIN - now)

    async def _either(self, wait: float) -> None:
        """Sleep, or until something else is asked; then look again."""
        sleeping = asyncio.ensure_future(self._sleep(wait))  # noqa: TID251 - owned here, to the end of this method
        asked = asyncio.ensure_future(self._news.wait())  # noqa: TID251 - the same
        try:
            await asyncio.wait({sleeping, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            asked.cancel()
            await asyncio.wait({sleeping, asked})
        self._news.set()

    async def _try(self, update: frames.Update) -> Path | None:
        """One attempt: the interpreter, or None after a failure that is written down, or a lost connection."""
        self._doing = f"it is updating itself to release {update.release}"
        log.info("updating from release %s to %s", self._release, update.release)
        try:
            offered, wheel = await self._fetch(update)
            if wheel is None:
                self._turned += 1
                if self._turned > 1:  # two harnesses at one address, by turns
                    await self._either(FETCH_AGAIN)
                self.asked(offered if offered.release != self._release else None)
                return None
            update, self._turned = offered, 0
            try:
                python = await self._installed(wheel, update.release)
            finally:
                await asyncio.to_thread(wheel.unlink, missing_ok=True)
            await self._choose(update.release)
        except link.Gone as gone:
            if str(gone) != self._lost:
                log.warning("the release could not be fetched, trying again: %s", gone)
                self._lost = str(gone)
            await self._either(FETCH_AGAIN)
            return None
        except (UpdateError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            await self._fail(update, reason)
            return None
        log.info("going on as release %s", update.release)
        return python

    async def _fetch(self, wanted: frames.Update) -> tuple[frames.Update, Path | None]:
        """What the harness says by now, and the wheel while it is what is wanted. Raises link.Gone and UpdateError."""
        greeting = self._greeting(dialing.WHEEL, self._doing)
        async with fetch.offered(self._dial, greeting) as (update, reader):
            if update.release != wanted.release or not update.sha256:
                return update, None
            return update, await fetch.take(reader, update, self._scratch / install.FOLDER)

    async def _installed(self, wheel: Path, release: str) -> Path:
        if not NAME.fullmatch(release):
            raise UpdateError(f"{release[:100]!r} cannot be a release's name")
        kept = await asyncio.to_thread(in_use, self._scratch)
        job = Job(wheel=str(wheel), release=release, scratch=str(self._scratch), keep=(release, *kept))
        outcome = await self._install(job)
        if not outcome.python:
            raise UpdateError(outcome.reason)
        return Path(outcome.python)

    async def _choose(self, release: str) -> None:
        """From here on it is what `outrider worker` goes on as."""
        now = self._now()
        recent = [at for at in self._state.changes if _recent(at, now)]
        base = self._state.base if _within(self._scratch) else self._release
        state = State(chosen=release, base=base, changes=(*recent, now)[-CHANGES:])
        await asyncio.to_thread(save, self._scratch, state)
        self._state = state

    async def _fail(self, update: frames.Update, reason: str) -> None:
        reason = " ".join(reason.split())
        log.error(
            "the update to release %s failed, it is tried again in %d minutes: %s",
            *(update.release, AGAIN / 60, reason),
        )
        failed = Failed(update.release, update.sha256, reason[: dialing.MAX_UPDATE], self._now())
        self._state = replace(self._state, failed=failed)
        with contextlib.suppress(OSError):  # a disk that is full is the likely reason
            await asyncio.to_thread(save, self._scratch, self._state)
        self._doing = ""
        self._news.set()
        await fetch.note(self._dial, self._greeting(dialing.NOTE, self.standing()))

    async def _tell(self, why: str) -> None:
        """Let the harness know, once."""
        if why != self._doing:
            log.warning("this worker is of release %s, the daemon is not: %s", self._release, why)
            self._doing = why
            await fetch.note(self._dial, self._greeting(dialing.NOTE, why))


def in_use(scratch: Path) -> tuple[str, ...]:
    """Releases that were installed here and that this process or the keeper runs from. Blocks."""
    folder = scratch / install.FOLDER
    found = [Path(sys.prefix).name] if _within(scratch) else []
    pid = keeper.holder(scratch / keeper.LOCK)
    with contextlib.suppress(OSError, IndexError):
        program = Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]))
        if program.is_relative_to(folder):
            found.append(program.relative_to(folder).parts[0])
    return tuple(found)


async def installed(job: Job) -> Outcome:
    """Have it installed by a process of its own, which ends with this one and when this is cancelled."""
    root = str(Path(install.__file__).parents[2])
    code = (
        "import sys; root = sys.argv.pop(); root in sys.path or sys.path.insert(0, root); "
        "from daemon.worker import install; install.main()"
    )
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "OUTRIDER_"))
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", code, msgspec.json.encode(job).decode(), str(os.getpid()), root),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environ,
    )
    try:
        async with asyncio.timeout(INSTALL_WAIT):
            said, wrong = await process.communicate()
    except TimeoutError:
        return Outcome(reason=f"it was not installed within {INSTALL_WAIT / 60:.0f} minutes")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        return msgspec.json.decode(said, type=Outcome)
    except msgspec.MsgspecError:
        last = (wrong.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
        return Outcome(reason=f"the installing process ended with code {process.returncode}: {last}")

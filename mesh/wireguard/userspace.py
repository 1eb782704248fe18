"""WireGuard in a process of its own, `wireguard-go`: start it, configure it over its socket, notice its death."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

from mesh.plan import Actual, Change
from mesh.wireguard import uapi
from mesh.wireguard.base import Absent, WireGuardError
from mesh.wireguard.kernel import port_taken

SOCKETS: Final = Path("/var/run/wireguard")  # fixed in wireguard-go: so this has to be a folder of our own
START_WAIT: Final = 10.0  # seconds for it to take connections
UP_WAIT: Final = 10.0  # seconds for it to notice that its interface is up: it looks once a second
ANSWER_WAIT: Final = 20.0  # seconds for one answer
END_WAIT: Final = 2.0  # seconds from SIGTERM to SIGKILL
LOOK_EVERY: Final = 0.02  # seconds between two looks
ANSWER_MAX: Final = 64 << 20  # bytes of one answer: 100,000 peers
AT_ONCE: Final = 200  # changes of one request
LOG_MAX: Final = 1 << 20  # bytes of its log above which the next start begins a new one
SAID: Final = 2000  # bytes of its log, from the end, in which its last words are looked for


T = TypeVar("T")


class Userspace:
    """One wireguard-go and its interface, which goes with it."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._socket = SOCKETS / f"{name}.sock"
        self._gone = asyncio.Event()
        self._handle = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._handle, self._ended)

    @classmethod
    async def start(cls, program: str, name: str, log: Path, prepare: Callable[[], None]) -> Self:
        """Start it in this process's namespaces; it has an interface `name` there when this returns.

        `prepare` runs in the new process before it becomes wireguard-go. Raises Absent and WireGuardError.
        """
        process, start = _spawn(program, name, log, prepare)
        self = cls(name, process, log)
        try:
            async with asyncio.timeout(START_WAIT):
                while not await self._listens():
                    if self._gone.is_set():
                        raise WireGuardError(f"wireguard-go did not start: {self._last_words(start)}")
                    await asyncio.sleep(LOOK_EVERY)
        except TimeoutError:
            await self.close()
            raise WireGuardError(f"wireguard-go takes no connections after {START_WAIT:.0f} s") from None
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _listens(self) -> bool:
        """Whether it takes connections: the socket's file is there before it does."""
        try:
            _, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            return False
        writer.close()
        return True

    def _ended(self) -> None:
        self._process.poll()
        self._gone.set()
        asyncio.get_running_loop().remove_reader(self._handle)

    def _last_words(self, start: int = 0) -> str:
        """The last line of the log, from `start` on."""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - SAID))
            if lines := file.read().decode(errors="replace").strip().splitlines():
                return lines[-1].strip()
        code = self._process.returncode
        return (
            f"it ended with status {code}" if code is None or code >= 0 else f"it was ended by signal {-code}"
        )

    async def ended(self) -> str:
        await self._gone.wait()
        code = self._process.returncode or 0
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return f"wireguard-go ended {how} (log: {self._log})"

    async def close(self) -> None:
        """End it; done when it and its interface are gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self._gone.is_set():
                self._process.send_signal(number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._gone.wait(), END_WAIT)
        if self._handle >= 0:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1
        self._process.wait()
        with contextlib.suppress(OSError):  # killed, it leaves its socket's file
            self._socket.unlink()

    async def listen(self, private: bytes, port: int) -> None:
        """It notices by itself that the interface is up, and binds a port; a given one is asked for then, since only
        then it says whether it got it."""
        await self._ask(uapi.own(private, 0))
        try:
            async with asyncio.timeout(UP_WAIT):
                while (await self.read()).port == 0:  # noqa: ASYNC110 - another process's state
                    await asyncio.sleep(LOOK_EVERY)
        except TimeoutError:
            raise WireGuardError(
                f"wireguard-go does not see {self._name} come up (log: {self._log})"
            ) from None
        if port:
            try:
                await self._ask(uapi.own(port=port))
            except WireGuardError as error:
                if uapi.in_use(error.number):
                    raise port_taken(port) from error
                raise

    async def apply(self, changes: Sequence[Change]) -> None:
        for at in range(0, len(changes), AT_ONCE):
            await self._ask(uapi.changing(changes[at : at + AT_ONCE]))

    async def read(self) -> Actual:
        return _understood(uapi.parse, await self._answer(uapi.GET))

    async def _ask(self, request: bytes) -> None:
        _understood(uapi.answered, await self._answer(request))

    async def _answer(self, request: bytes) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_WAIT):
                reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=ANSWER_MAX)
                try:
                    writer.write(request)
                    await writer.drain()
                    return await reader.readuntil(uapi.END)
                finally:
                    writer.close()
        except TimeoutError:
            raise WireGuardError(f"wireguard-go does not answer within {ANSWER_WAIT:.0f} s") from None
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            raise WireGuardError(f"wireguard-go does not answer: {error}") from error


def _spawn(
    program: str, name: str, log: Path, prepare: Callable[[], None]
) -> tuple["subprocess.Popen[bytes]", int]:
    """The process, and where in the log its words begin."""
    try:
        with contextlib.suppress(OSError):
            if log.stat().st_size > LOG_MAX:
                log.replace(log.with_name(f"{log.name}.1"))
        with open(log, "ab", opener=_private) as output:
            start = output.tell()
            process = subprocess.Popen(
                [program, "-f", name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={"PATH": os.environ.get("PATH", ""), "LOG_LEVEL": "error"},
                preexec_fn=prepare,
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise Absent(f"{program} cannot be started: {error}") from error
    return process, start


def _understood(read: Callable[[bytes], T], answer: bytes) -> T:
    try:
        return read(answer)
    except uapi.Refused as error:
        raise WireGuardError(f"wireguard-go refuses the change: {error}", error.number) from error
    except uapi.UapiError as error:
        raise WireGuardError(str(error)) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)

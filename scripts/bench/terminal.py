"""The log on a pseudo terminal of 160×45: opening, keys while records come, streaming; beside Textual's own Log."""

import argparse
import asyncio
import fcntl
import gc
import os
import pty
import re
import resource
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import common
import msgspec
from list import memory
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Log, Static

from daemon.protocol.api import Delta
from daemon.protocol.records import Record
from daemon.view import Fold
from tests.tui.log.fakes import ANSWER, Book, FakeSource, long
from tui import patches
from tui.log.logview import LogView
from tui.log.messages import Opened

COLUMNS, LINES = 160, 45
TOKEN = 4  # characters
PIECES = 10  # records are fed this many at a time: a connection brings several in one read
ECHO = re.compile(rb"echo=(\d+)")
KEPT = 1 << 20  # bytes of what was written, in which a text is looked for
GIVE_UP = 120.0


class Shown(Protocol):
    """What is measured: ours, or Textual's Log doing the same work."""

    def start(self, records: list[Record]) -> Any: ...
    def record(self, record: Record) -> None: ...
    def piece(self, text: str) -> None: ...


class Ours(LogView):
    """The log as the app has it."""

    def start(self, records: list[Record]) -> None:
        book = Book()
        book.records = records
        self.open("bench", FakeSource(book), len(records))

    def record(self, record: Record) -> None:
        self.feed(record)

    def piece(self, text: str) -> None:
        self.feed(Delta("text", text, 0))


class Theirs(Log):
    """Textual's Log with the same items as plain lines, not wrapped."""

    def on_mount(self) -> None:
        self._fold = Fold()

    def start(self, records: list[Record]) -> None:
        self.write_lines([row for record in records for row in self._rows(record)])

    def record(self, record: Record) -> None:
        self.write_lines(self._rows(record))

    def piece(self, text: str) -> None:
        self.write(text)

    def _rows(self, record: Record) -> list[str]:
        item = self._fold.add(record)
        return [f"#{item.n} {item.title}", *([] if item.folded else item.body.split("\n"))]


class Bare(Static):
    """Nothing: what a key costs Textual, and the machine, as they are."""

    def start(self, records: list[Record]) -> None: ...
    def record(self, record: Record) -> None: ...
    def piece(self, text: str) -> None: ...


WIDGETS: Final[dict[str, type[Ours | Theirs | Bare]]] = {"ours": Ours, "theirs": Theirs, "bare": Bare}
NAMES: Final = {"ours": "the log", "theirs": "Textual's Log", "bare": "an empty app"}


class Bench(App[None]):
    """One widget, a line that echoes keys, and the load."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "key('k')", priority=True),
        Binding("j", "key('j')", priority=True),
        Binding("G", "key('G')", priority=True),
        Binding("q", "quit", priority=True),
    ]
    CSS = "#echo { height: 1; }"

    def __init__(self, what: str, load: str, count: int, seconds: float, out: Path) -> None:
        patches.apply()  # as the app does
        super().__init__()
        self._what, self._load, self._count, self._seconds, self._out = what, load, count, seconds, out
        self._keys = 0
        self._found: dict[str, float] = {}
        self._book = long(count)
        coming = int(1000 * seconds) + PIECES if load == "append" else 0
        self._more = long(count + coming).records[count:] if coming else []
        self._memory = 0.0
        self._began = self._used = 0.0

    def compose(self) -> ComposeResult:
        yield WIDGETS[self._what](id="log")
        yield Static("ready", id="echo")

    def on_mount(self) -> None:
        self.query_one("#log").focus()
        self.call_after_refresh(self._begin)

    @property
    def shown(self) -> Any:
        return self.query_one("#log")

    def _begin(self) -> None:
        gc.collect()
        self._memory, self._began, self._used = memory(), time.perf_counter(), _cpu()
        self.shown.start(self._book.records)
        if self._what != "ours":
            self.call_after_refresh(self._opened)

    def on_opened(self, _: Opened) -> None:
        self.call_after_refresh(self._opened)

    def _opened(self) -> None:
        self._found |= {"open": time.perf_counter() - self._began, "open_cpu": _cpu() - self._used}
        self.run_worker(self._run())

    async def _run(self) -> None:
        if self._what == "ours":
            while self.shown.pane.ledger.noted < self._count:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)
            self._found |= {"headers": time.perf_counter() - self._began, "headers_cpu": _cpu() - self._used}
        await asyncio.sleep(0.5)
        gc.collect()
        self._found["memory"] = memory() - self._memory
        gc.freeze()  # what the bench itself made is not looked through again and again
        self.query_one("#echo", Static).update("go")
        before, start = _cpu(), time.perf_counter()
        match self._load:
            case "append":
                await self._append()
            case "stream":
                await self._stream()
            case _:
                pass
        self._found["cpu"] = (_cpu() - before) / max(1e-9, time.perf_counter() - start)
        self._out.write_bytes(msgspec.json.encode(self._found))
        self.query_one("#echo", Static).update("done")

    async def _append(self) -> None:
        """1,000 records a second."""
        more = self._more
        start, fed = time.perf_counter(), 0
        while fed < 1000 * self._seconds:
            due = int((time.perf_counter() - start) * 1000)
            while fed < min(due, len(more)):
                self.shown.record(more[fed])
                fed += 1
            await asyncio.sleep(PIECES / 1000)

    async def _stream(self) -> None:
        """400 tokens a second, each for itself."""
        text = ANSWER * (1 + int(400 * self._seconds * TOKEN / len(ANSWER)))
        start, fed = time.perf_counter(), 0
        while fed < 400 * self._seconds:
            due = int((time.perf_counter() - start) * 400)
            while fed < due:
                self.shown.piece(text[fed * TOKEN : (fed + 1) * TOKEN])
                fed += 1
            await asyncio.sleep(1 / 400)

    def action_key(self, key: str) -> None:
        shown = self.shown
        if isinstance(shown, LogView):
            if key == "G":
                shown.action_follow()
            else:
                shown.action_select(1 if key == "j" else -1)
        elif key == "G":
            shown.scroll_end(animate=False)
        else:
            shown.scroll_relative(y=1 if key == "j" else -1, animate=False)
        self._keys += 1
        self.query_one("#echo", Static).update(f"echo={self._keys}")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def scheduled(pid: int) -> tuple[float, float]:
    """Seconds that the main thread of a process ran, and was ready to run and got no processor, since it began."""
    used, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(used) / 1e9, int(waited) / 1e9


class Terminal:
    """A child on a pseudo terminal; everything it writes is read at once."""

    def __init__(self, arguments: list[str]) -> None:
        self._main, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        env = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            arguments, stdin=child, stdout=child, stderr=child, env=env, close_fds=True
        )
        os.close(child)
        self.written = 0
        self._text = b""
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._main, 1 << 16)
            except OSError:
                return
            with self._changed:
                self.written += len(data)
                self._text = (self._text + data)[-KEPT:]
                self._changed.notify_all()

    def until(self, text: bytes) -> float:
        """The moment at which it has written `text`."""
        with self._changed:
            if not self._changed.wait_for(lambda: text in self._text, GIVE_UP):
                raise SystemExit(f"the bench never showed {text!r}: {self._text[-500:]!r}")
            return time.perf_counter()

    def press(self, key: str) -> None:
        with self._changed:
            self._text = b""
        os.write(self._main, key.encode())


class Echo(msgspec.Struct, frozen=True):
    """Seconds of a key until its echo stood on the terminal; of these, those that the app ran, and waited to run."""

    seconds: float
    used: float
    waited: float


def measured(what: str, load: str, count: int, seconds: float) -> tuple[dict[str, float], list[Echo]]:
    """(figures, echoes of keys)."""
    with common.folder() as folder:
        out = folder / "found.json"
        own = [sys.executable, __file__, "--child", what, load, str(count), str(seconds), str(out)]
        terminal = Terminal(own)
        terminal.until(b"go" if seconds else b"done")
        echoes: list[Echo] = []
        if load == "append":
            # What is typed is answered while records come: reading further up, and at the end.
            keys = ["G", "k", "k", "k", "j", "k", "k", "j", "G", "k"]
            end = time.perf_counter() + seconds - 1
            while time.perf_counter() < end:
                key = keys[len(echoes) % len(keys)]
                before, start = scheduled(terminal.process.pid), time.perf_counter()
                terminal.press(key)
                taken = terminal.until(f"echo={len(echoes) + 1}".encode()) - start
                after = scheduled(terminal.process.pid)
                echoes.append(Echo(taken, after[0] - before[0], after[1] - before[1]))
                time.sleep(0.07)
        terminal.until(b"done")
        terminal.press("q")
        terminal.process.wait()
        return msgspec.json.decode(out.read_bytes(), type=dict[str, float]), echoes


def _whole(found: dict[str, float]) -> str:
    return f", all headers noted after {found['headers']:.2f} s, {found['headers_cpu']:.2f} of CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="that are opened")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        what, load, count, seconds, out = asked.child
        Bench(what, load, int(count), float(seconds), Path(out)).run()
        return
    for what, name in list(NAMES.items())[:2]:
        found, _ = measured(what, "open", asked.records, 0)
        whole = _whole(found) if "headers" in found else ""
        print(
            f"open {asked.records:,} records, {name}: {found['open']:.2f} s, {found['open_cpu']:.2f} of CPU "
            f"(aim: under 0.5)"
            f"{whole}; "
            f"{found['memory']:.1f} MiB over the records (aim: under 20)",
            flush=True,
        )
    for what, name in NAMES.items():
        found, echoes = measured(what, "append", 1000, asked.seconds)
        print(
            f"1,000 records/s, {name}: key echo {common.ms([echo.seconds for echo in echoes])} of {len(echoes)} "
            f"(aim: p95 under 30), without the waits for a processor "
            f"{common.ms([max(0.0, echo.seconds - echo.waited) for echo in echoes])}, of CPU "
            f"{common.ms([echo.used for echo in echoes])}; CPU {found['cpu']:.0%}, "
            f"{found['cpu'] * 1000:.0f} ms of it per 1,000 records",
            flush=True,
        )
    for what, name in NAMES.items():
        cpus = [measured(what, "stream", 1000, asked.seconds)[0]["cpu"] for _ in range(2)]
        print(f"400 tokens/s, {name}: CPU {statistics.median(cpus):.1%} (aim: under 15%)", flush=True)


if __name__ == "__main__":
    main()

"""Run agents' code in this process, one order after another: the script that a persistent python starts with.

`python3 -u driver.py CONTROL STATUS`. It imports nothing of ours and needs Python 3.6. The descriptor CONTROL brings
orders: a line `N LENGTH` and the path of a file of code, LENGTH bytes. STATUS hears `ready PID` once; then of each run
`s` when its code begins, `threads N` where it leaves threads behind, and `N STATUS` at its end. Code that python does
not accept is answered by `refused HEX`, a message as hexadecimal UTF-8, and nothing of it runs.
"""

import __future__

import ast
import contextlib
import faulthandler
import io
import linecache
import os
import select
import signal
import sys
import tokenize
import traceback
import types

REMEMBERED = 1000  # runs whose source is kept, for tracebacks through functions that they defined
MESSAGE_MAX = 4000  # characters of a refusal
FAILURES_MAX = 100
INTERRUPTED = 130  # what a shell reports for a program that SIGINT ended
STREAMS = (("stdin", "r", "strict"), ("stdout", "w", "surrogateescape"), ("stderr", "w", "backslashreplace"))
FUTURE = 0  # the compiler flags of `from __future__ import …`
for _name in __future__.all_feature_names:
    FUTURE |= getattr(__future__, _name).compiler_flag


class Whole(io.FileIO):
    """A file without a buffer that writes all it is given: one of the io module may write a part and be done."""

    def write(self, data):  # type: ignore[no-untyped-def]
        left = memoryview(data).cast("B")
        size = left.nbytes
        while left:
            written = super().write(left)
            if written is None:  # another process made the pipe non-blocking
                select.select([], [self], [])
            else:
                left = left[written:]
        return size


def stream(number: int) -> io.TextIOWrapper:
    """A fresh sys.stdin, sys.stdout or sys.stderr. UTF-8 whatever the locale; closing it leaves the descriptor."""
    name, mode, errors = STREAMS[number]
    raw = Whole(number, mode, closefd=False)
    raw.name = f"<{name}>"
    if mode == "r":
        return io.TextIOWrapper(io.BufferedReader(raw), encoding="utf-8", errors=errors)
    made = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
    made.mode = mode  # type: ignore[misc]
    return made


def names(number: int) -> "tuple[str, str]":
    """Where sys has the stream of a descriptor."""
    name = STREAMS[number][0]
    return name, f"__{name}__"


def is_closed(one: object) -> bool:
    """Whether a stream takes nothing any more."""
    try:
        return one is None or bool(getattr(one, "closed", False))
    except Exception:  # noqa: BLE001 - a detached one raises ValueError, one of the code's own anything
        return True


def ignore(*_: object) -> None:
    """What SIGINT does between two runs. Not SIG_IGN: what a thread starts meanwhile would inherit that."""


class Refused(Exception):
    """Python does not accept the code."""


class Driver:
    """The state between two orders. `number` is the run that has no answer yet, 0 for none."""

    def __init__(self, control: int, status: int) -> None:
        self.control = control
        self.status = status
        self.pid = os.getpid()
        self.buffer = b""
        self.number = 0
        self.running = False
        self.over = False
        self.failed = 0  # times that no order was taken, one after another
        self.flags = 0  # `from __future__ import …` holds for the runs after it, as at the prompt
        self.own = sys.modules["__main__"]
        self.main = types.ModuleType("__main__")
        self.kept = [os.dup(number) for number in range(3)]  # for code that closes them
        self.spare = os.dup(0)  # for code that leaves no descriptor free

    def serve(self) -> None:
        """Take orders until the control pipe ends. No interrupt, however late, gets out of here."""
        while not self.over:
            try:
                self.step()
            except BaseException as error:  # noqa: BLE001 - SIGINT, or a handler of the code's own that raises
                self.failed += 1
                if self.failed > FAILURES_MAX:  # the code has replaced something that is needed here
                    self.die()
                if not self.number:
                    report(error)

    def gate(self, *_: object) -> None:
        """SIGURG stops code that handles SIGINT itself, or ignores it."""
        if self.running:
            raise KeyboardInterrupt

    def step(self) -> None:
        """Carry out one order; first the answer to one that was cut short."""
        self.quiet()
        if self.number:
            self.answer(INTERRUPTED, living())
        order = self.next_order()
        if order is None:
            self.over = True
            return
        number, path = order
        self.failed = 0
        self.repair()
        threads = living()
        self.number = number
        try:
            parts = self.parse(number, path)
        except Refused as refused:
            self.number = 0
            self.tell(f"refused {str(refused).encode('utf-8', 'replace').hex()}\n")
            return
        self.answer(self.execute(parts), threads)

    def next_order(self) -> "tuple[int, bytes] | None":
        """Number and path of the next order, None at the end."""
        while True:
            head, newline, rest = self.buffer.partition(b"\n")
            if newline:
                number, length = map(int, head.split())
                if len(rest) >= length:
                    self.buffer = rest[length:]
                    return number, rest[:length]
            try:
                data = os.read(self.control, 1 << 16)
            except OSError:
                self.die()
                raise
            if not data:
                return None
            self.buffer += data

    def repair(self) -> None:
        """Put back what code before this may have spoiled: descriptors, streams, `__main__`, the signal mask."""
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                os.dup2(self.kept[number], number)
            for name in names(number):
                if is_closed(getattr(sys, name, None)):
                    setattr(sys, name, stream(number))
        sys.modules["__main__"] = self.main
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGURG})

    def parse(self, number: int, path: bytes) -> "list[types.CodeType]":
        """The code, and by itself its last expression. Raises Refused."""
        name = f"<run {number}>"
        lines: list[str] = []
        try:
            source = self.read(path)
            tree = compile(source, name, "exec", self.flags | ast.PyCF_ONLY_AST, True)
            lines = text(source)
            body = tree.body
            last = body.pop().value if body and isinstance(body[-1], ast.Expr) else None
            parts = [compile(tree, name, "exec", self.flags, True)]
            flags = self.flags | parts[0].co_flags & FUTURE
            if last is not None:
                parts.append(compile(ast.Expression(last), name, "eval", flags, True))
        except (
            OSError,
            NameError,
            TypeError,
            AttributeError,
        ):  # not of the code: of what reads and compiles it
            self.die()
            raise
        except Exception as error:
            if isinstance(error, SyntaxError) and not error.text and 0 < (error.lineno or 0) <= len(lines):
                error.text = lines[(error.lineno or 0) - 1]
            raise Refused(
                "".join(traceback.format_exception_only(type(error), error))[-MESSAGE_MAX:]
            ) from error
        self.flags = flags
        linecache.cache[name] = (len(source), None, lines, name)
        linecache.cache.pop(f"<run {number - REMEMBERED}>", None)
        return parts

    def read(self, path: bytes) -> bytes:
        """The content of a file of code."""
        with contextlib.suppress(OSError):
            os.close(self.spare)
        with open(path, "rb") as file:
            source = file.read()
        with contextlib.suppress(OSError):
            self.spare = os.dup(0)
        return source

    def execute(self, parts: "list[types.CodeType]") -> int:
        """Run code, and show the value of the last part as the prompt does; the status."""
        try:
            try:
                self.running = True
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self.tell("s\n")
                value = None
                for part in parts:
                    value = eval(part, self.main.__dict__)  # noqa: S307 - it is what this is for
                if value is not None:
                    sys.displayhook(value)
                value = None
                status = 0
            except BaseException as error:  # noqa: BLE001 - the code's own, shown as the prompt shows it
                status = report(error)
            flush()
        except BaseException as error:  # noqa: BLE001 - an interrupt meanwhile, or streams that do not take it
            status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        self.leave_if_forked(status)
        self.quiet()
        return status

    def quiet(self) -> None:
        """From here on, SIGINT does nothing."""
        self.running = False
        while True:
            try:
                signal.signal(signal.SIGINT, ignore)
                break
            except KeyboardInterrupt:
                continue
        sys.settrace(None)
        sys.setprofile(None)
        self.leave_if_forked(1)

    def answer(self, status: int, threads: "set[object]") -> None:
        """Say how the run has ended, and how many threads live that did not at its begin; it is answered then."""
        left = len(living() - threads)
        number, self.number = self.number, 0
        self.tell((f"threads {left}\n" if left else "") + f"{number} {status}\n")

    def tell(self, what: str) -> None:
        if os.getpid() == self.pid:
            try:
                os.write(self.status, what.encode())
            except OSError:
                self.die()

    def die(self) -> None:
        """Without its pipes this process is of no use; what is printed tells the model why."""
        with contextlib.suppress(OSError):
            os.write(
                2, b"the code broke what the interpreter needs (its open descriptors, os.read), so it ends\n"
            )
        os._exit(1)

    def leave_if_forked(self, status: int) -> None:
        """An os.fork in the code that came back here as the child is over."""
        if os.getpid() != self.pid:
            os._exit(status)


def text(source: bytes) -> "list[str]":
    """The lines of source code as python reads it."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return io.TextIOWrapper(io.BytesIO(source), encoding).readlines()


def living() -> "set[object]":
    """The threads beside this one that live now."""
    threading = sys.modules.get("threading")
    return set(threading.enumerate()) - {threading.main_thread()} if threading else set()


def report(error: BaseException) -> int:
    """Print an exception that the code did not handle; the status it ends with."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(type(error), error, trace)
        else:
            sys.excepthook(type(error), error, trace)
    except Exception:  # noqa: BLE001 - the code's own hook, or its own sys.stderr
        traceback.print_exception(type(error), error, trace, file=sys.__stderr__)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def flush() -> None:
    """Write out what the code printed."""
    for one in (sys.stdout, sys.stderr):
        if not is_closed(one):
            one.flush()


def main(control: int, status: int) -> None:
    """Be the interpreter of an environment until the control pipe ends."""
    here = os.path.dirname(os.path.realpath(__file__))
    if sys.path and os.path.realpath(sys.path[0]) == here:  # not so with PYTHONSAFEPATH
        sys.path[0] = ""
    sys.argv[:] = [""]
    for fd in (control, status):
        os.set_inheritable(fd, False)
    for number in range(3):
        fresh = stream(number)
        for name in names(number):
            setattr(sys, name, fresh)
    faulthandler.enable(2)
    driver = Driver(control, status)
    signal.signal(signal.SIGURG, driver.gate)
    driver.quiet()
    driver.tell(f"ready {driver.pid}\n")
    while not driver.over:
        with contextlib.suppress(BaseException):  # an interrupt between two others
            driver.serve()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""Hold one environment's processes: a subreaper that starts the interpreter, reaps, and finds and ends them all.

Run as a script of its own (`python -I -S reaper.py FD`): it imports nothing of ours, so it is one file, whatever its
length. FD is one end of a stream socket to the keeper, which carries JSON lines. The first is the program to start:
`{"argv", "env", "cwd", "fds": {number in the program: number here}, "cgroup"}`, the last a folder for it to be in, or
empty; then requests `{"id", "op", …}`, each answered by `{"id", …}`; and the events `{"event": "started", "pid"}` and
`{"event": "exit", "status"}`. When the socket closes, the keeper is gone: everything here ends.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import time
from typing import Any, NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
END_GRACE = 0.5  # seconds from SIGTERM to SIGKILL: enough to remove a lock file
END_TRIES = 5.0  # seconds that processes get to go after SIGKILL; one in an uninterruptible wait may not
ROUND = 0.005  # seconds between two rounds of killing
SWEEP_TRIES = 2.0  # the same for those of a run that was stopped: somebody waits for it
QUIET = 0.03  # seconds without an orphan after which nobody hops: who is the same for a look is seen by it
FRESH = 0.1  # seconds that the number of a group which was seen is surely not another's: pids do not go round faster
SNATCHES = 100  # times that children are killed unseen before others are looked for again
NEAR = 32  # pids after that of one that ended, in which its children are looked for where they are not listed
LOOKS = 8  # times that the subreaper's children are read anew, where some ended meanwhile
OOM_SCORE = "300"  # short of memory, the kernel takes an agent's processes before the keeper
NAME_LENGTH = 120  # characters of a command line that is shown


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    started: int  # clock ticks since boot: with the pid it names a process for ever
    state: str


def process(pid: int) -> Process | None:
    """What /proc says of a pid, None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state = fields[0].decode()
    if state == "Z" and int(fields[17]) > 1:
        state = "S"  # only its first thread has ended; the others go on, or have not ended yet
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[19]), state)


def children(pid: int) -> list[int]:
    """Pids of the children of every thread of `pid`; raises FileNotFoundError where the kernel does not list them.

    A thread that ends meanwhile hands its children to another, which may have been read before: then all are read anew.
    """
    found: set[int] = set()
    for _ in range(LOOKS):
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            break
        ended = False
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    found.update(map(int, file.read().split()))
            except FileNotFoundError:
                if os.path.exists(f"/proc/{pid}/task/{thread}"):
                    raise
                ended = True
            except OSError:
                ended = True
        if not ended:
            break
    return list(found)


def descendants(root: int) -> dict[int, Process]:
    """Every process below `root`, a subreaper, now; one that forks meanwhile may be missed, so killing goes in rounds.

    A process that ends while it is looked at hands its children to `root`, which is then asked once more: what is
    never the same process for long would else be seen as nothing at all.
    """
    try:
        found: dict[int, Process] = {}
        for _ in range(LOOKS):
            todo = [pid for pid in children(root) if pid not in found]
            ended = False
            while todo:
                pid = todo.pop()
                below = children(pid)
                one = process(pid)
                if one is None or one.state in "ZX":
                    ended = True
                if one is not None and pid not in found:
                    found[pid] = one
                    todo += below
            if not ended:
                break
        return found
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return descendants_by_parent(root)


def descendants_by_parent(root: int) -> dict[int, Process]:
    """The same from the parent of every process of the machine."""
    below: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (one := process(int(name))):
            below.setdefault(one.parent, []).append(one)
    found: dict[int, Process] = {}
    todo = list(below.get(root, ()))
    while todo:
        one = todo.pop()
        if one.pid not in found:
            found[one.pid] = one
            todo += below.get(one.pid, ())
    return found


def name(pid: int) -> str:
    """A process's command line, or its name in brackets."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read(4096).replace(b"\0", b" ").strip()
        if not line:
            with open(f"/proc/{pid}/comm", "rb") as file:
                line = b"[" + file.read().strip() + b"]"
    except OSError:
        return "?"
    text = " ".join(line.decode("utf-8", "replace").split())
    return text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…"


def link(pid: int, number: int) -> str | None:
    """What a process has as that descriptor, empty for nothing; None where it may not be looked at."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except PermissionError:
        return None
    except OSError:
        return ""


def program(pid: int) -> str:
    """The file that a process runs."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def send_signal(one: Process, number: int) -> bool:
    """Signal exactly this process, not another that got its pid; False where it is gone or is not ours to signal."""
    try:
        fd = os.pidfd_open(one.pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            return False
        fd = -1  # before Linux 5.3, or forbidden by a container that is as old: its number has to do
    try:
        now = process(one.pid)
        if now is None or now.started != one.started or now.state == "Z":
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(one.pid, number)
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def kill_groups(groups: set[int], seen: float) -> set[int]:
    """End whole process groups of descendants: none of them comes by between the look at it and the signal.

    Returns those that were still there.

    The interpreter leads a session of its own, so a group below it has descendants only. One may have emptied since
    it was seen (at that time of the monotonic clock), so what was seen long ago is let be.
    """
    hit: set[int] = set()
    if time.monotonic() - seen > FRESH:
        return hit
    for group in groups - {os.getpgrp(), 0, 1}:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
            hit.add(group)
    return hit


class Reaper:
    """The environment's processes: `shell` (the interpreter) and all that came of it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.me = os.getpid()
        self.shell = 0
        self.inner: Process | None = None  # the interpreter, where a wrapper was started for it
        self.output = 0
        self.cgroup = ""
        self.alive = False
        self.ending = False
        self.marked: set[tuple[int, int]] = set()
        self.struck: set[tuple[int, int, int, str]] = set()
        self.orphaned = 0.0  # when, by the monotonic clock, the last one that had lost its parent was reaped

    def send(self, message: dict[str, Any]) -> None:
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def start(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        fds: dict[str, int],
        cgroup: str,
        descriptors: int,
    ) -> None:
        self.output = os.fstat(fds["1"]).st_ino
        self.cgroup = cgroup
        self.shell = os.fork()
        if self.shell == 0:
            if cgroup:
                write(f"{cgroup}/cgroup.procs", "0")
            become(argv, env, cwd, {int(number): fd for number, fd in fds.items()}, descriptors)
        self.alive = True
        for fd in set(fds.values()):
            os.close(fd)
        self.send({"event": "started", "pid": self.shell})

    def reap(self) -> bool:
        """Collect every child that ended, ours or adopted; tell of the interpreter's end.

        False once there is no child. Whoever loses its parent becomes a child of ours, so nobody is below us then:
        what /proc lists cannot show that, as one may fork and end while the list is read.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if not self.alive:
                    self.ending = True  # nobody is left and nobody can come
                return False
            if pid == 0:
                return True
            if pid == self.shell:
                self.alive = False
                self.send({"event": "exit", "status": os.waitstatus_to_exitcode(status)})
            else:
                self.orphaned = time.monotonic()

    def new(self) -> list[Process]:
        """Living descendants since the mark, without the interpreter."""
        return [one for one in self.beside() if (one.pid, one.started) not in self.marked]

    def beside(self) -> list[Process]:
        """Living descendants, without the interpreter."""
        return [one for one in self.living() if not self.is_interpreter(one)]

    def is_interpreter(self, one: Process) -> bool:
        """Whether this is the interpreter or its wrapper."""
        inner = self.inner
        return one.pid == self.shell or (
            inner is not None and (one.pid, one.started) == (inner.pid, inner.started)
        )

    def interpreter(self, pid: int) -> dict[str, Any]:
        """The interpreter says that it is process `pid`; what was started may be a wrapper that waits for it."""
        self.inner = process(pid) if pid != self.shell else None
        return {}

    def mark(self) -> dict[str, Any]:
        self.marked = {(one.pid, one.started) for one in descendants(self.me).values()}
        self.struck.clear()
        return {}

    def list_new(self) -> dict[str, Any]:
        beside = self.beside()
        new = [one for one in beside if (one.pid, one.started) not in self.marked]
        parents = {self.shell} | ({self.inner.pid} if self.inner else set())
        return {
            "processes": [[one.pid, name(one.pid)] for one in new],
            "own": [one.pid for one in new if one.parent in parents],
            "alone": not beside,
            "printing": any(self.holds_output(one.pid) for one in new),
            **self.detours(beside),
        }

    def holds_output(self, pid: int) -> bool:
        """Whether a process can still print into the interpreter's output; one that cannot be looked at may."""
        folder = f"/proc/{pid}/fd"
        ours = f"pipe:[{self.output}]"
        try:
            numbers = os.listdir(folder)
        except OSError:
            return process(pid) is not None
        for number in numbers:
            try:
                if os.readlink(f"{folder}/{number}") == ours:
                    return True
            except OSError:
                continue
        return False

    def detours(self, beside: list[Process]) -> dict[str, Any]:
        """Whether the interpreter's own output is a pipe to another process by now, and which of it comes back."""
        pid = self.inner.pid if self.inner else self.shell
        found: dict[int, str] = {}
        for number in (1, 2) if beside else ():
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{number}")
                if stat.S_ISFIFO(status.st_mode) and status.st_ino != self.output:
                    found[number] = os.readlink(f"/proc/{pid}/fd/{number}")
        back = [number for number, pipe in found.items() if self.comes_back(pipe, beside)]
        return {"detour": bool(found), "returning": back}

    def comes_back(self, pipe: str, beside: list[Process]) -> bool:
        """Whether what goes into a pipe is printed here by who has it as its input, itself or through others.

        Who cannot be looked at may print it. A shell that has started another one to read only waits for that.
        """
        ours = (f"pipe:[{self.output}]", None)
        links = {one: (link(one.pid, 0), link(one.pid, 1)) for one in beside}
        todo, seen = [pipe], {pipe}
        while todo:
            pipe = todo.pop()
            readers = [one for one in beside if links[one][0] in (pipe, None)]
            waiting = {one.parent for one in readers}
            for target in (links[one][1] for one in readers if one.pid not in waiting):
                if target in ours:
                    return True
                if target.startswith("pipe:") and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return False

    def signal(self, interpreter: int, others: int) -> dict[str, Any]:
        """Send the interpreter and what is new a signal each, 0 for none; one that was halted goes on to take it.

        What came while the interpreter got its own is left for the next time: it may not have got it in time to end
        its code, and would go on with it if what it waits for were ended.

        Asked again, it signals only what has come since: a process, or the program that one has become. One that
        was between fork and exec has lost its signal; one that tidies up must not get a second.
        """
        new = self.new() if others else []
        for pid in self.takes(interpreter) if interpreter and self.alive else ():
            if (one := process(pid)) and self.is_interpreter(one):
                send_signal(one, interpreter)
                if one.state == "T" and interpreter != signal.SIGKILL:
                    send_signal(one, signal.SIGCONT)
        sent = []
        for one in new:
            title = name(one.pid)
            stroke = (others, one.pid, one.started, program(one.pid))
            if stroke not in self.struck and send_signal(one, others):
                self.struck.add(stroke)
                sent.append([one.pid, title])
        return {"processes": sent}

    def takes(self, number: int) -> list[int]:
        """Who of the interpreter gets a signal: a wrapper only the one that ends it for sure."""
        if self.inner is None:
            return [self.shell]
        return [self.inner.pid, self.shell] if number == signal.SIGKILL else [self.inner.pid]

    def living(self) -> list[Process]:
        return [one for one in descendants(self.me).values() if one.state not in "ZX"]

    def end(self) -> dict[str, Any]:
        """End every descendant: SIGTERM, a moment to tidy up, then SIGKILL in rounds until there is none."""
        ended: dict[int, str] = {}
        grace = time.monotonic() + END_GRACE
        for one in self.living():
            title = name(one.pid)
            if self.is_interpreter(one):  # it must not go on with its code when a command of it ends
                send_signal(one, signal.SIGSTOP)
            elif send_signal(one, signal.SIGTERM):
                ended[one.pid] = title
        while self.beside() and time.monotonic() < grace:
            self.reap()
            time.sleep(ROUND)
        if self.cgroup:
            for one in self.beside():  # names, before all go at once
                ended.setdefault(one.pid, name(one.pid))
            write(f"{self.cgroup}/cgroup.kill", "1")
        gone = self.kill(ended, END_TRIES, spare=False)
        self.ending = True
        self.remove_cgroup()
        return self.receipt(ended, gone, self.living())

    def sweep(self) -> dict[str, Any]:
        """End what is new since the mark by SIGKILL in rounds, until there is none and none comes any more."""
        ended: dict[int, str] = {}
        gone = self.kill(ended, SWEEP_TRIES, spare=True)
        return self.receipt(ended, gone, self.new())

    @staticmethod
    def receipt(ended: dict[int, str], gone: bool, living: list[Process]) -> dict[str, Any]:
        """What was ended, and what is left: those that live, or something that hides where not all are `gone`."""
        left = {one.pid: name(one.pid) for one in living}
        if not gone and not left:
            left = {0: "what forks and ends faster than it can be found"}
        return {
            "ended": [[pid, title] for pid, title in ended.items() if pid not in left],
            "left": [[pid, title] for pid, title in left.items()],
        }

    def kill(self, ended: dict[int, str], tries: float, *, spare: bool) -> bool:
        """SIGKILL in rounds, for `tries` seconds: whether all are gone then; into `ended` goes who was hit.

        To all descendants; or, to `spare` the interpreter and what was there at the mark, to the others. As the
        interpreter lives then, nobody can say that there is no child; but who is never seen hands us an orphan each
        time that it becomes another process. So may what was there at the mark: then who is not seen counts as gone.
        """
        give_up = time.monotonic() + tries
        while True:
            looked = time.monotonic()
            living = self.living()
            spared = [one for one in living if spare and self.is_spared(one)]
            found = [one for one in living if one not in spared]
            missed: dict[int, tuple[int, str]] = {}  # one of each group
            for one in found:
                title = ended.get(one.pid) or name(one.pid)
                hit = send_signal(one, signal.SIGKILL)
                if hit and not self.is_interpreter(one):
                    ended[one.pid] = title
                elif not hit and not self.is_interpreter(one):
                    missed[one.group] = one.pid, title
            there = kill_groups({one.group for one in found} - {one.group for one in spared}, looked)
            ended |= dict(missed[group] for group in there & missed.keys())
            now = time.monotonic()
            if not self.reap() or (spare and not found and now - self.orphaned > QUIET):
                return True
            if now > give_up:
                return not found and not all(map(self.is_interpreter, spared))
            for pid, title in self.snatch({one.pid for one in spared}).items():
                ended.setdefault(pid, title)  # a name from before it was hit is a better one
            time.sleep(ROUND)

    def is_spared(self, one: Process) -> bool:
        """Whether this outlives a run that is stopped."""
        return self.is_interpreter(one) or (one.pid, one.started) in self.marked

    def snatch(self, spared: set[int]) -> dict[int, str]:
        """Kill children the moment they are seen: one that is never the same for long is gone when it is looked at.

        Returns the last of them, but for the interpreter. A child's pid is nobody else's until it is reaped here, so
        it needs no second look.
        """
        last: dict[int, str] = {}
        interpreters = {self.shell, self.inner.pid if self.inner else 0}
        try:
            listed = os.open(f"/proc/self/task/{self.me}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            listed = -1
        for _ in range(SNATCHES):
            found = os.pread(listed, 1 << 16, 0).split() if listed >= 0 else self.heirs()
            for pid in {*map(int, found)} - spared:
                with contextlib.suppress(OSError):  # one that is not ours to signal keeps no other
                    os.kill(pid, signal.SIGKILL)
                    last = {pid: name(pid)} if pid not in interpreters else last
            if not self.reap():
                break
        if listed >= 0:
            os.close(listed)
        return last

    def heirs(self) -> list[int]:
        """Children of one that has just ended, where the kernel does not list ours: their pids are near its own."""
        with contextlib.suppress(ChildProcessError):
            if ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                near = map(process, range(ended.si_pid, ended.si_pid + NEAR))
                return [one.pid for one in near if one is not None and one.parent == self.me]
        return []

    def remove_cgroup(self) -> None:
        """Remove the cgroup, unless something is left in it."""
        if self.cgroup:
            with contextlib.suppress(OSError):
                os.rmdir(self.cgroup)

    def answer(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "mark":
                answer = self.mark()
            case "new":
                answer = self.list_new()
            case "signal":
                answer = self.signal(message["interpreter"], message["others"])
            case "interpreter":
                answer = self.interpreter(message["pid"])
            case "sweep":
                answer = self.sweep()
            case "end":
                answer = self.end()
            case other:
                answer = {"error": f"no op {other}"}
        self.send(answer | {"id": message["id"]})


def become(argv: list[str], env: dict[str, str], cwd: str, fds: dict[int, int], descriptors: int) -> None:
    """Turn this forked process into the program, in a session of its own, with these descriptors only.

    `descriptors`: how many it may have open; 0 leaves it at what the keeper has.
    """
    try:
        os.setsid()
        libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(OOM_SCORE)
        soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # our numbers may be above it
        high = max(fds) + 1
        if most < 2 * high:
            raise OSError(
                f"only {most} descriptors may be open here (`ulimit -Hn`), where {2 * high} are needed"
            )
        held = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, high) for number, fd in fds.items()}
        for number, fd in held.items():
            os.dup2(fd, number, inheritable=True)
        for number in {*range(3, high), *fds.values()}:  # ours may be above them all
            if number not in fds:
                with contextlib.suppress(OSError):
                    os.close(number)
        for number in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
            signal.SIGCHLD,
            signal.SIGHUP,
            signal.SIGINT,
            signal.SIGTERM,
        ):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors or soft, most))
        os.chdir(cwd)
        os.execve(argv[0], argv, env)  # noqa: S606 - the interpreter that was asked for
    except BaseException as error:  # noqa: BLE001 - this process must never return into the reaper's loop
        said = f"{argv[0]} could not be started: {error}\n".encode(errors="replace")
        try:
            os.write(fds[2], said)
        except OSError:  # it is the one numbered 2 already
            os.write(2, said)
    finally:
        os._exit(127)


def write(path: str, text: str) -> None:
    """Tell the kernel something; where it does not take it, what follows does without."""
    with contextlib.suppress(OSError), open(path, "w") as file:
        file.write(text)


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def main(fd: int) -> None:
    """Serve one environment until it has ended or the keeper has."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reaper = Reaper(socket.socket(fileno=fd))
    buffer = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    try:
        while not reaper.ending:
            for ready, _ in poll.poll():
                if ready == wake_read:
                    os.read(wake_read, 4096)
                    reaper.reap()
                    continue
                data = reaper.sock.recv(1 << 16)
                if not data:
                    raise ConnectionResetError
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if reaper.shell == 0:
                        reaper.start(
                            message["argv"],
                            message["env"],
                            message["cwd"],
                            message["fds"],
                            message["cgroup"],
                            message.get("descriptors", 0),
                        )
                    else:
                        reaper.answer(message)
        reaper.remove_cgroup()
    except OSError:  # the keeper is gone
        reaper.send = lambda message: None  # type: ignore[method-assign]
        reaper.end()


if __name__ == "__main__":
    main(int(sys.argv[1]))

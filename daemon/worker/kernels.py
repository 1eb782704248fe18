"""Run agents' code in a Jupyter kernel, which this process starts and talks to: a script of its own.

`python3 -I kernels.py --list` prints the names of the kernels that are installed, a line each; `kernels.py NAME CONTROL
STATUS` starts one. It needs jupyter_client and imports nothing of ours. The descriptor CONTROL brings orders: a line
`run N LENGTH LENGTH`, the path of a file of code and that of a folder for images, of so many bytes; and `stop N`.
STATUS hears `ready PID` of the kernel once; then of each run `s` when its code is with the kernel, `image HEX` (JSON:
name, type and size) for each image that it shows, and `N STATUS` at its end.
"""

import asyncio
import base64
import ctypes
import json
import logging
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
PR_SET_PDEATHSIG = 1
READY_WAIT = 60.0  # seconds for a kernel to come up: some compile first
STOP_EVERY = 1.0  # seconds between two interrupts of code that does not stop
LAST_WORDS = 0.3  # seconds for what a kernel said before its end
INTERRUPTED = 130  # what a shell reports for a program that SIGINT ended
IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
MAX_IMAGES = 20  # of one run
MAX_IMAGE = 20 << 20  # bytes of one: what the harness takes
TEXTS = (
    "text/plain",
    "text/markdown",
    "text/html",
    "image/svg+xml",
    "application/json",
)  # the first is shown


def specs() -> KernelSpecManager:
    """Where kernels are looked for: not in the environment that this process runs in."""
    return KernelSpecManager(ensure_native_kernel=False)


def installed() -> list[str]:
    """The names of the kernels that are there."""
    own = os.path.realpath(sys.prefix) if sys.prefix != sys.base_prefix else ""
    return [
        name
        for name, folder in sorted(specs().find_kernel_specs().items())
        if NAME.fullmatch(name) and not (own and os.path.realpath(folder).startswith(f"{own}/"))
    ]


def connection_file() -> str:
    """Where it is written how the kernel is reached: else that is a file of its own in /tmp, which nobody removes."""
    folder = jupyter_runtime_dir()
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, f"kernel-{os.getpid()}.json")


def end_with_parent() -> None:
    """Have the kernel end when this process does, however that is."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def print_all(text: str) -> None:
    """Write text to standard output whole, also where another process has made that non-blocking."""
    left = memoryview(text.encode("utf-8", "replace"))
    while left:
        try:
            left = left[os.write(1, left) :]
        except BlockingIOError:
            os.set_blocking(1, True)


class Driver:
    """One kernel, and the run that is going in it."""

    def __init__(self, name: str, control: int, status: int) -> None:
        self.control = control
        self.status = status
        self.buffer = b""
        self.number = 0  # the run that is going
        self.message = ""  # its request
        self.folder = Path()  # for its images
        self.images = 0
        self.reply: int | None = None  # its status, once the kernel has said it
        self.idle = False  # the kernel has said that all of its output is out
        self.stopping: asyncio.TimerHandle | None = None
        self.manager = AsyncKernelManager(
            kernel_name=name, kernel_spec_manager=specs(), connection_file=connection_file()
        )
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)  # noqa: TID251 - owned by `tasks`
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def tell(self, line: str) -> None:
        try:
            os.write(self.status, line.encode())
        except OSError:
            os._exit(1)

    async def main(self) -> None:
        await self.manager.start_kernel(preexec_fn=end_with_parent, stdin=None)
        provisioner: Any = self.manager.provisioner
        self.process = provisioner.process
        pid = self.process.pid
        pidfd = os.pidfd_open(pid)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, ended.set)
        self.client = self.manager.client()
        self.client.start_channels()
        ready = asyncio.ensure_future(self.client.wait_for_ready(timeout=READY_WAIT))  # noqa: TID251 - awaited here
        over = asyncio.ensure_future(ended.wait())  # noqa: TID251 - awaited below
        await asyncio.wait({ready, over}, return_when=asyncio.FIRST_COMPLETED)
        if not over.done():
            await ready
            self.spawn(self.listen(self.client.get_iopub_msg, self.heard))
            self.spawn(self.listen(self.client.get_shell_msg, self.replied))
            self.spawn(self.listen(self.client.get_stdin_msg, self.asked))
            os.set_blocking(self.control, False)
            loop.add_reader(self.control, self.orders)
            self.tell(f"ready {pid}\n")
            await over
            await asyncio.sleep(LAST_WORDS)
        self.leave()

    def leave(self) -> None:
        """End as the kernel has ended."""
        code = self.process.wait()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
            os.kill(os.getpid(), -code)
        os._exit(code if code >= 0 else 128 - code)

    async def listen(self, get: Any, take: Any) -> None:
        while True:
            message = await get()
            take(
                message["header"]["msg_type"], message["parent_header"].get("msg_id", ""), message["content"]
            )

    def orders(self) -> None:
        try:
            data = os.read(self.control, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)
        self.buffer += data
        while b"\n" in self.buffer:
            head, _, rest = self.buffer.partition(b"\n")
            op, number, *lengths = head.split()
            sizes = [int(one) for one in lengths]
            if len(rest) < sum(sizes):
                return
            self.buffer = rest[sum(sizes) :]
            if op == b"stop":
                self.stop(int(number))
            else:
                self.begin(int(number), rest[: sizes[0]], Path(os.fsdecode(rest[sizes[0] : sum(sizes)])))

    def begin(self, number: int, file: bytes, folder: Path) -> None:
        with open(file, "rb") as opened:
            code = opened.read().decode("utf-8", "replace")
        self.number, self.folder, self.images = number, folder, 0
        self.reply, self.idle = None, False
        self.message = self.client.execute(code, allow_stdin=False)
        self.tell("s\n")

    def stop(self, number: int) -> None:
        """Interrupt a run, again and again until it is over."""
        if number == self.number:
            self.spawn(self.manager.interrupt_kernel())
            self.stopping = asyncio.get_running_loop().call_later(STOP_EVERY, self.stop, number)

    def replied(self, kind: str, parent: str, content: dict[str, Any]) -> None:
        if kind == "execute_reply" and parent == self.message:
            interrupted = content["status"] == "aborted" or content.get("ename") == "KeyboardInterrupt"
            self.reply = INTERRUPTED if interrupted else int(content["status"] != "ok")
            self.settle()

    def asked(self, kind: str, _: str, content: dict[str, Any]) -> None:
        """A kernel asks for input though it was told that there is none."""
        if kind == "input_request":
            print_all(
                f"{content.get('prompt', '')}\n[input cannot be asked for here: the run is interrupted]\n"
            )
            self.stop(self.number)

    def heard(self, kind: str, parent: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            print_all(content["text"])
        elif kind in ("execute_result", "display_data", "update_display_data"):
            self.show(content["data"])
        elif kind == "error":
            print_all("\n".join(content["traceback"] or [f"{content['ename']}: {content['evalue']}"]) + "\n")
        elif kind == "status" and content["execution_state"] == "idle" and parent == self.message:
            self.idle = True
            self.settle()

    def settle(self) -> None:
        if self.number and self.idle and self.reply is not None:
            if self.stopping:
                self.stopping.cancel()
            number, self.number, self.stopping = self.number, 0, None
            self.tell(f"{number} {self.reply}\n")

    def show(self, data: dict[str, Any]) -> None:
        """What a rich value has as text, and its image."""
        image = next((type for type in IMAGES if type in data), "")
        if (text := next((data[type] for type in TEXTS if type in data), None)) is not None:
            print_all((text if isinstance(text, str) else json.dumps(text)).removesuffix("\n") + "\n")
        if image:
            try:
                self.keep(image, base64.b64decode(data[image]))
            except (ValueError, OSError) as error:
                print_all(f"[an image ({image}) could not be kept: {error}]\n")

    def keep(self, type: str, body: bytes) -> None:
        if len(body) > MAX_IMAGE or self.images >= MAX_IMAGES:
            limit = f"{MAX_IMAGES} of one run" if self.images >= MAX_IMAGES else f"{MAX_IMAGE} bytes"
            print_all(f"[an image ({type}, {len(body)} bytes) was not kept: at most {limit} are]\n")
            return
        self.images += 1
        path = self.folder / f"image-{self.images}.{IMAGES[type]}"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(body)
        said = json.dumps({"path": str(path), "type": type, "size": len(body)})
        self.tell(f"image {said.encode().hex()}\n")


def main(arguments: list[str]) -> None:
    logging.disable(logging.ERROR)  # what goes wrong with a kernel shows by its end
    if arguments == ["--list"]:
        sys.stdout.write("".join(f"{name}\n" for name in installed()))
        return
    name, control, status = arguments[0], int(arguments[1]), int(arguments[2])
    for fd in (control, status):
        os.set_inheritable(fd, False)
    try:
        asyncio.run(Driver(name, control, status).main())
    except Exception as error:  # noqa: BLE001 - whatever it was, the model is told in a sentence
        with suppress(OSError):
            print_all(f"{type(error).__name__}: {error}\n")
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])

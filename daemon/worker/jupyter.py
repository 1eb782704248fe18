"""A Jupyter kernel: any that is installed, held by a process of ours that speaks its protocol."""

import asyncio
import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from daemon.allowance import KERNELS
from daemon.protocol.frames import Image
from daemon.worker import login
from daemon.worker.environment import Spawn
from daemon.worker.interpreter import GATE, Interpreter
from daemon.worker.program import STATUS_FD

SCRIPT: Final = str(Path(__file__).with_name("kernels.py"))
CLIENT: Final = "jupyter_client"  # of the extra `jupyter`; this process never imports it
START_WAIT: Final = 60.0  # seconds to come up: some kernels compile first

_image = msgspec.json.Decoder(Image).decode


def names(env: Mapping[str, str]) -> tuple[str, ...]:
    """The interpreters that are kernels: none without the extra `jupyter`. Blocks.

    To look for them makes an IPython folder where there is none.
    """
    if importlib.util.find_spec(CLIENT) is None:
        return ()
    with tempfile.TemporaryDirectory(prefix="outrider-") as spare:
        said = login.output([sys.executable, "-I", SCRIPT, "--list"], {**env, **_ipython(env, spare)})
    return tuple(KERNELS + name for name in said.decode().split())


def places(env: Mapping[str, str], own: Path) -> dict[str, str]:
    """Variables that keep what Jupyter and IPython write in an environment's own folder, not in the operator's home.

    Whoever has an IPython folder has its profile in it, so that one stays. Blocks. Raises OSError.
    """
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {"JUPYTER_RUNTIME_DIR": str(own / "runtime"), **_ipython(env, str(own / "ipython"))}


def _ipython(env: Mapping[str, str], spare: str) -> dict[str, str]:
    """The variable that has IPython write into `spare`, none where the operator has a folder for it."""
    home = Path(env.get("HOME", "/"))
    theirs = ("IPYTHONDIR" in env, (home / ".ipython").exists(), (home / ".config/ipython").exists())
    return {} if any(theirs) else {"IPYTHONDIR": spare}


class Kernel(Interpreter):
    """The kernel is the interpreter, our process a wrapper around it. GATE has a kernel that was halted go on."""

    CONTROL_FD: ClassVar = STATUS_FD + 1
    ENDED_BY: ClassVar = "the code or the kernel did that"
    STOPS: ClassVar = (GATE, GATE, GATE)

    def __init__(self, name: str, cwd: str, environ: Mapping[str, str], spawn: Spawn, own: Path) -> None:
        super().__init__(cwd, spawn)
        self.NAME = name
        self._environ = environ
        self._own = own

    async def _start(self) -> tuple[str, ...]:
        env = await asyncio.to_thread(login.environment, self._environ)
        env |= await asyncio.to_thread(places, env, self._own)
        await self._come_up(sys.executable, ["-I", SCRIPT, self.NAME.removeprefix(KERNELS)], env)
        return ()

    def _order(self, number: int, code: Path) -> bytes:
        path, folder = bytes(code), os.fsencode(self._folder)
        return b"run %d %d %d\n%b%b" % (number, len(path), len(folder), path, folder)

    def _patience(self) -> float:
        return START_WAIT

    def _halt(self) -> None:
        self._say(b"stop %d\n" % self._n)

    def _heard(self, words: list[bytes]) -> None:
        match words:
            case [b"image", said]:
                self._images.append(_image(bytes.fromhex(said.decode())))
            case _:
                pass

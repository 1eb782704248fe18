"""Which interpreters a worker has, and an environment of each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from daemon.allowance import KERNELS
from daemon.worker import jupyter, login
from daemon.worker.bash import Bash
from daemon.worker.environment import Environment, Spawn
from daemon.worker.jupyter import Kernel
from daemon.worker.node import Node
from daemon.worker.python import Python

BASH: Final = Bash.NAME
PYTHON: Final = Python.NAME
NODE: Final = Node.NAME


def find(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The interpreters that are there, the default first. Blocks."""
    env = login.environment(environ)
    python = (PYTHON,) if login.runs_python(env) else ()
    node = (NODE,) if login.runs_node(env) else ()
    return (BASH, *python, *node, *jupyter.names(env))


def make(name: str, cwd: str, environ: Mapping[str, str], spawn: Spawn, own: Path) -> Environment:
    """A new environment of one of them, not yet started, in a folder that exists; `own` is for what it writes."""
    if name.startswith(KERNELS):
        return Kernel(name, cwd, environ, spawn, own)
    return {PYTHON: Python, NODE: Node}.get(name, Bash)(cwd, environ, spawn)

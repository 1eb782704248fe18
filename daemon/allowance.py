"""What a worker allows whatever a harness asks: `[worker]` of its own configuration, enforced by its keeper."""

import fnmatch
import os
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

ALWAYS: Final = ("HOME",)  # without it code would not be at home where the worker is
INTERPRETERS: Final = ("bash", "python", "node")  # that a worker can have, beside Jupyter kernels
KERNELS: Final = (
    "jupyter:"  # what the names of those begin with: a kernel called `bash` is another than our bash
)
Text = Annotated[str, Meta(min_length=1)]


class AllowanceError(Exception):
    """A key of `[worker]` cannot be used; the message names the key and what would be right."""


class Allowance(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What is allowed; None and 0 are no limit.

    `interpreters`: those that code may be run with. `read`, `write`: folders, or files, that may be read and written.
    `seconds`: of one run. `output`: bytes of one run's output that are kept. `runs`: that go or wait at once.
    `environment`: patterns of the names of variables that code gets of those that the worker was started with; HOME it
    always gets. `as_root`: whether it may run as root. `update`: whether a harness of another release may replace it:
    that is the harness's code, which enforces none of this unless it wants to.
    """

    interpreters: tuple[Text, ...] | None = None
    read: tuple[Text, ...] | None = None
    write: tuple[Text, ...] | None = None
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    output: Annotated[int, Meta(ge=0)] = 0
    runs: Annotated[int, Meta(ge=0)] = 0
    environment: tuple[Text, ...] | None = None
    as_root: bool = False
    update: bool = True

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Those of `environ` that code may get."""
        if self.environment is None:
            return dict(environ)
        return {
            name: value
            for name, value in environ.items()
            if name in ALWAYS or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.environment)
        }


def checked(given: Allowance) -> Allowance:
    """`given` with its folders from the root on, `~` expanded. Raises AllowanceError.

    An interpreter that there can be and that is not installed is for the worker to find out.
    """
    for name in given.interpreters or ():
        if name not in INTERPRETERS and not (name.startswith(KERNELS) and name != KERNELS):
            raise AllowanceError(
                f"worker.interpreters: there is no interpreter {name!r}; there are {', '.join(INTERPRETERS)} and "
                f"{KERNELS}NAME, for a Jupyter kernel"
            )
    return msgspec.structs.replace(
        given, read=_folders("read", given.read), write=_folders("write", given.write)
    )


def _folders(key: str, paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if paths is None:
        return None
    made = tuple(os.path.expanduser(path) for path in paths)
    for path in made:
        if not os.path.isabs(path) or "\0" in path:
            raise AllowanceError(f"worker.{key}: {path!r} is not a path from the root on, as in /srv/data")
    return tuple(os.path.normpath(path) for path in made)

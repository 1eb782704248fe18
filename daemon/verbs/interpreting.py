"""The doctor's check of what code is run with: the local worker's own finders say it."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from daemon.allowance import Allowance
from daemon.verbs.examine import Check, failing, ok
from daemon.worker import login, syntax

PACKAGES: Final = {"python": "python3", "node": "nodejs"}  # of Debian and Ubuntu
OLDEST: Final = {"python": "3.6", "node": "18"}  # what the worker's drivers need


class Interpreter(Struct, frozen=True):
    """One that the local worker would take: `path` is empty where there is none, `runs` whether it is fit to."""

    name: str
    path: str
    runs: bool


def interpreters(allowed: Allowance, environ: Mapping[str, str]) -> Check:
    """What the local worker runs code with, looked for as that does it: by a login shell."""
    env = login.environment(allowed.variables(environ))
    found = (
        Interpreter("bash", bash := syntax.program() or "", bool(bash)),
        Interpreter("python", login.python(env) or "", login.runs_python(env)),
        Interpreter("node", login.node(env) or "", login.runs_node(env)),
    )
    return runs_code(found, allowed.interpreters)


def runs_code(found: Sequence[Interpreter], allowed: Sequence[str] | None) -> Check:
    """Whether code can be run with these; `allowed`: the names of those that are, None for all."""
    name = "interpreters"
    if allowed is not None and not allowed:
        return ok(name, "none is allowed by [worker]: no code runs here")
    wanted = [one for one in found if allowed is None or one.name in allowed]
    there = ", ".join(one.path for one in wanted if one.runs)
    lacking = [one for one in wanted if not one.runs]
    if any(one.name == "bash" for one in lacking):
        return failing(name, "there is no bash on the PATH", "install bash: commands run in it")
    if not lacking:
        return ok(name, there or ", ".join(allowed or ()))
    why = ", ".join(
        f"{one.path} does not start or is older than {one.name} {OLDEST[one.name]}"
        if one.path
        else f"no {one.name}"
        for one in lacking
    )
    packages = " ".join(PACKAGES[one.name] for one in lacking)
    fix = f"`apt-get install {packages}`, or its like, then `outrider down` and `outrider up`"
    missed = allowed is not None or any(one.name == "python" for one in lacking)
    return Check(name, "warning" if missed else "ok", f"{there}; {why}" if there else why, fix)

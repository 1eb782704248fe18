"""What a release needs of the distributions that are there: which those are, and whether they surely satisfy it. Pure.

There is no packaging library here, so this reads what is plain (numbers, `>=`, `<`) and leaves the rest to pip.
"""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from typing import Final

OWN: Final = "outrider"
_REQUIREMENT: Final = re.compile(
    r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?"
)
_EXTRA: Final = re.compile(r"""\bextra\s*==\s*['"]([^'"]*)['"]""")
_VERSION: Final = re.compile(r"(\d+(?:\.\d+)*)(\.post\d+)?(?:\+[a-z0-9.]+)?")
_CLAUSE: Final = re.compile(r"\s*(~=|==|!=|<=|>=|<|>)\s*(\d+(?:\.\d+)*)\s*")


def normal(name: str) -> str:
    """A distribution's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(requires: Iterable[str], present: Iterable[Distribution]) -> list[Distribution]:
    """Those of `present` that these requirements name, of whatever extra, and what they need in turn, of asked ones."""
    known: dict[str, Distribution] = {}
    for one in present:
        if one.name:  # the first of a name on the path is the one that is imported
            known.setdefault(normal(one.name), one)
    seen: set[tuple[str, str]] = set()  # names and extras
    waiting = list(requires)
    while waiting:
        match = _REQUIREMENT.match(waiting.pop())
        if match is None or (name := normal(match[1])) not in known or name == OWN:
            continue
        for extra in ["", *map(normal, re.findall(r"[\w.-]+", match[2] or ""))]:
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [one for one in known[name].requires or [] if _is_of(one, extra)]
    return [known[name] for name in sorted({name for name, _ in seen})]


def _is_of(requirement: str, extra: str) -> bool:
    """Whether a requirement is of an extra; empty: of none."""
    marker = requirement.partition(";")[2]
    named = _EXTRA.findall(marker)
    return extra in map(normal, named) if extra else not named


def unsatisfied(requires: Iterable[str], present: Iterable[Distribution]) -> Iterator[str]:
    """The requirements, extras' ones aside, that these distributions do not surely satisfy: pip is to judge them."""
    versions = {normal(one.name): one.version for one in present if one.name}
    for requirement in requires:
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            yield requirement
            continue
        name, extras, clauses, marker = match.groups("")
        if "extra" not in marker and (extras or not _holds(clauses, versions.get(normal(name), ""))):
            yield requirement


def _holds(clauses: str, version: str) -> bool:
    """Whether a version is surely in a set like `<9,>=8.2`: one that cannot be read is in none."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return False
    have, after = _numbers(match[1]), bool(match[2])
    for clause in filter(None, clauses.strip().split(",")):
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            return False
        want = _numbers(found[2])
        match found[1]:
            case ">=":
                holds = have >= want
            case "<":
                holds = have < want
            case "~=":
                most = found[2].split(".")[:-1]
                holds = have >= want and have[: len(most)] == tuple(map(int, most))
            case ">" | "<=" | "==" | "!=" if after:
                return False
            case ">":
                holds = have > want
            case "<=":
                holds = have <= want
            case "==":
                holds = have == want
            case _:
                holds = have != want
        if not holds:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    """A version's numbers, made so long that 8.2 and 8.2.0 are one."""
    numbers = tuple(map(int, text.split(".")))
    return numbers + (0,) * (8 - len(numbers))

"""Worker names: one from each hostname, and no two alike. Pure."""

import re
import unicodedata
from collections.abc import Container
from itertools import count
from typing import Final

RESERVED: Final = ("harness", "local")  # the daemon itself, and the worker that it starts
LONGEST: Final = 63  # characters: a DNS label's
NAMELESS: Final = "worker"  # the name of a machine whose hostname has no letter or digit
_OTHERS: Final = re.compile(r"[^a-z0-9]+")


def name_of(hostname: str) -> str:
    """The hostname's first label in 1 to LONGEST of a-z, 0-9 and -, a letter or digit first and last.

    Accents go, whatever else a name cannot have becomes one `-`. It may be reserved: see `unique`.
    """
    label = hostname.strip().partition(".")[0]
    plain = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode().lower()
    return _OTHERS.sub("-", plain).strip("-")[:LONGEST].rstrip("-") or NAMELESS


def unique(name: str, taken: Container[str]) -> str:
    """The name, or where it is taken or reserved, the first of NAME-2, NAME-3 … that is not."""
    candidate = name
    for number in count(2):
        if candidate not in taken and candidate not in RESERVED:
            break
        end = f"-{number}"
        candidate = name[: LONGEST - len(end)].rstrip("-") + end
    return candidate

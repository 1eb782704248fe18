"""How many descriptors a keeper may have open, which needs more than what it runs."""

import resource
from typing import Final

_GIVEN: Final[list[int]] = []  # the soft limit that this process was started with, where it was raised


def take() -> None:
    """Let this process have as many open as it may: each environment takes up to eight of them."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    _GIVEN.append(soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def given() -> int:
    """How many what runs here may have open: as many as if this process had taken no more for itself."""
    return _GIVEN[0] if _GIVEN else resource.getrlimit(resource.RLIMIT_NOFILE)[0]

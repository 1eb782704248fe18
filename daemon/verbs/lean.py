"""Load a package as if others were not installed: what it would bring along and we never use costs each daemon."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*names: str) -> Iterator[None]:
    """While this is open, importing one of these raises ImportError, unless it is loaded already."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # how the import system is told so
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]

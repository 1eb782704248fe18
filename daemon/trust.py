"""aiohttp, whose default is to read every certificate that the system trusts, twice, as it loads: here at first use.

Most of our processes never speak https; it costs each of them 40 ms and 2 MiB. Whoever loads aiohttp first takes it
from here, and it is the same aiohttp for all.
"""

import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["aiohttp"]


class LateTrust(ssl.SSLContext):
    """A client's context that reads what the system trusts, as the environment names it, at its first connection."""

    trusts = False

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        self._read()
        return super().wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        self._read()
        return super().wrap_socket(*args, **kwargs)

    def _read(self) -> None:
        if not self.trusts:
            self.trusts = True
            self.load_default_certs()


@contextmanager
def _late() -> Iterator[None]:
    """While this is open, contexts with the system's certificates are made without them, the default one LateTrust."""
    make, paths = ssl.create_default_context, ssl.get_default_verify_paths()
    named = {name: os.environ.get(name) for name in (paths.openssl_cafile_env, paths.openssl_capath_env)}

    def made(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        context = make(*args, **kwargs)
        context.__class__ = LateTrust
        return context

    ssl.create_default_context = made
    os.environ.update(dict.fromkeys(named, os.devnull))
    try:
        yield
    finally:
        ssl.create_default_context = make
        for name, value in named.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


if "aiohttp" in sys.modules:
    import aiohttp
else:
    with _late():
        import aiohttp

"""The Unix socket and the TCP addresses that the API listens on: checked, opened and taken away again."""

import ipaddress
import os
import re
import socket
import ssl
import stat
from pathlib import Path
from typing import Final

MAX_PATH: Final = 107  # bytes of a Unix socket's path
_ADDRESS: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*):([0-9]{1,5})")


class ListenError(Exception):
    """An address cannot be listened on; the message says why and what would do."""


def tls(cert: Path, key: Path) -> ssl.SSLContext:
    """What TCP is served with, TLS 1.2 and up. Reads the files: blocks. Raises ListenError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for name, path in (("tls.cert", cert), ("tls.key", key)):
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise ListenError(f"{name}: {path}: {error.strerror}") from error
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except _Encrypted:
        raise ListenError(f"tls.key: {key} is encrypted; give one that is not, mode 0600") from None
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise ListenError(
            f"tls.cert, tls.key: {cert} and {key} are not a PEM certificate (with its chain) and its key: {why}"
        ) from error
    return context


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    raise _Encrypted  # where OpenSSL would ask the terminal


def split(address: str, secure: bool = False) -> tuple[str, int]:
    """(host, port) of HOST:PORT. Raises ListenError for one that is not loopback unless it is `secure`."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise ListenError(f"{address!r} is not HOST:PORT, such as 127.0.0.1:4600")
    host = "127.0.0.1" if found[1] == "localhost" else found[1].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ListenError(f"{address!r}: write the host as an IP address, such as 127.0.0.1:4600") from None
    if not loopback and not secure:
        raise ListenError(
            f"{address} is not a loopback address, and keys and sessions would cross the network in the clear: set "
            "cert and key in [tls] of outrider.toml, or say --insecure where something else protects it"
        )
    return host, int(found[2])


def unix(path: Path) -> tuple[socket.socket, tuple[int, int]]:
    """(a bound socket at `path`, what identifies it), mode 0600 from before anybody can connect. Blocks.

    Raises ListenError.
    """
    if len(os.fsencode(path)) > MAX_PATH:
        raise ListenError(
            f"{path} is too long for a Unix socket: at most {MAX_PATH} bytes; use a shorter folder"
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_way(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
            return listener, _identity(path)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {error.strerror or error}") from error


def _make_way(path: Path) -> None:
    """Remove the socket that an ended daemon left. Raises ListenError when somebody listens, or it is no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} is there and is not a socket; move it away or name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass  # a full queue is a listener's
    raise ListenError(f"another daemon listens on {path}; end it, or use another data folder")


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def remove(path: Path, ours: tuple[int, int]) -> None:
    """Remove the socket unless another daemon's stands there by now. Blocks."""
    try:
        if _identity(path) == ours:
            path.unlink()
    except FileNotFoundError:
        pass

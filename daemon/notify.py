"""Tell a service manager how the daemon stands, by the protocol of systemd's sd_notify(3)."""

import socket
from collections.abc import MutableMapping

import structlog

READY = "READY=1"
STOPPING = "STOPPING=1"

log = structlog.get_logger()


class Notifier:
    """Says lines to the socket that `NOTIFY_SOCKET` names, and nothing where it names none.

    It is taken out of the environment, so that no program the daemon starts speaks for it.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")

    def say(self, *lines: str) -> None:
        """Send one message. A failure is logged: nobody can be waited for."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            log.warning("the service manager was not told", what=lines[0], why=error.strerror)

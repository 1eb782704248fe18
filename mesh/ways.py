"""The way out of a user namespace: become pasta or slirp4netns, which have the helper below them, inside of it."""

import os
import signal
from collections.abc import Sequence
from typing import Final, NoReturn

from mesh import privilege
from mesh.plan import Endpoint

# Of the inside: our address and the gateway's. Networks for benchmarks and of our own, since the machine's own
# addresses, which pasta takes else, could not be reached from inside; what is sent to the gateway goes to the
# machine's loopback, so a harness on the same machine is reached too.
PASTA_V4: Final = ("198.18.91.2", "198.18.91.1")
PASTA_V6: Final = ("fd5e:0:6f72::2", "fd5e:0:6f72::1")
SLIRP_V4: Final = "10.0.2.2"  # slirp4netns's own
SLIRP_MTU: Final = 65520


def pasta(program: str, port: int, command: Sequence[str]) -> NoReturn:
    """Become pasta, which makes the namespaces, runs `command` there and ends with it. UDP `port`: let in, 0: none."""
    signal.signal(
        signal.SIGPIPE, signal.SIG_DFL
    )  # Python ignores it; pasta takes that for a failure and ends
    addresses = [
        argument
        for own, gateway in (PASTA_V4, PASTA_V6)
        for argument in ("--address", own, "--gateway", gateway)
    ]
    closed = ["--tcp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none"]
    let_in = ["--udp-ports", str(port) if port else "none"]
    os.execv(  # noqa: S606 - no shell is wanted
        program,
        [
            program,
            "--foreground",
            "--config-net",
            *addresses,
            "--netmask",
            "24",
            *closed,
            *let_in,
            "--",
            *command,
        ],
    )


def slirp4netns(program: str, command: Sequence[str]) -> NoReturn:
    """Become slirp4netns; `command` runs below it, in new namespaces. Each ends with the other."""
    ends, held = os.pipe()  # slirp4netns ends when nobody holds the second
    ready, made = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ends)
            os.close(ready)
            privilege.unshare(privilege.NEWUSER | privilege.NEWNET | privilege.NEWNS)
            os.write(made, b"1")
            os.set_inheritable(held, True)
            os.execv(command[0], list(command))  # noqa: S606 - no shell is wanted
        finally:
            os._exit(1)
    os.close(held)
    os.close(made)
    if not os.read(ready, 1):
        os._exit(1)
    os.set_inheritable(ends, True)
    flags = ["--configure", f"--mtu={SLIRP_MTU}", "--enable-ipv6", f"--exit-fd={ends}"]
    os.execv(program, [program, *flags, str(pid), "tap0"])  # noqa: S606 - no shell is wanted


def inward(endpoint: Endpoint, way_out: str) -> Endpoint:
    """An endpoint as it is reached from inside: this machine's loopback is behind the gateway.

    IPv6's too: WireGuard listens for both, and what comes from there by IPv6 comes from a link-local address.
    """
    if not way_out or not (endpoint.host.startswith("127.") or endpoint.host == "::1"):
        return endpoint
    return Endpoint(PASTA_V4[1] if way_out == "pasta" else SLIRP_V4, endpoint.port)

"""How this daemon's mesh is set up: `[mesh]` of outrider.toml, checked."""

import re
from ipaddress import ip_address
from typing import Annotated, Final

from msgspec import Meta, Struct

BACKENDS: Final = ("auto", "kernel", "wireguard-go", "off")
MOST_ENDPOINTS: Final = 8  # a token holds no more
Port = Annotated[int, Meta(ge=1, le=65535)]
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?"
)
_WITH_PORT: Final = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")


class MeshTableError(Exception):
    """A key of `[mesh]` cannot be used; the message names the key and what would be right."""


class MeshTable(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`backend`: which WireGuard, or off. `port`: WireGuard's, UDP. `join_listen`: where machines join, IP:PORT.

    `control_port`: where workers dial inside of the mesh, TCP. `endpoints`: HOST or HOST:PORT, where other machines
    reach WireGuard; none: this machine's own addresses and name. `join_endpoints`: the same of the join listener; none:
    the hosts of `endpoints`. `mtu` in bytes. `name`: the harness's, as workers show it; empty: the hostname's first
    label. `relay`: whether WireGuard's packets may come over the join listener. `quiet`: seconds without a handshake,
    and `still`: without a byte, after which a worker counts as quiet; `gone`: seconds that an ephemeral one may be so.
    """

    backend: str = "auto"
    port: Port = 51820
    join_listen: tuple[str, ...] | str = "[::]:4601"
    control_port: Port = 4602
    endpoints: tuple[str, ...] = ()
    join_endpoints: tuple[str, ...] = ()
    mtu: Annotated[int, Meta(ge=1280, le=9000)] = 1420
    name: str = ""
    relay: bool = True
    quiet: Annotated[float, Meta(ge=1)] = 180.0
    still: Annotated[float, Meta(ge=1)] = 60.0
    gone: Annotated[float, Meta(ge=1)] = 180.0

    @property
    def listens(self) -> tuple[str, ...]:
        """`join_listen` as a list."""
        return (self.join_listen,) if isinstance(self.join_listen, str) else self.join_listen


def checked(given: MeshTable) -> MeshTable:
    """`given`. Raises MeshTableError."""
    if given.backend not in BACKENDS:
        raise MeshTableError(f"mesh.backend is {given.backend!r}; it is one of {', '.join(BACKENDS)}")
    if not given.listens:
        raise MeshTableError("mesh.join_listen is empty: name one IP:PORT, as in [::]:4601")
    for text in given.listens:
        _check_listen(text)
    for key, texts in (("endpoints", given.endpoints), ("join_endpoints", given.join_endpoints)):
        if len(texts) > MOST_ENDPOINTS:
            raise MeshTableError(
                f"mesh.{key} has {len(texts)} entries: at most {MOST_ENDPOINTS} fit into a token"
            )
        for text in texts:
            _check_endpoint(key, text)
    if given.name and not _NAME.fullmatch(given.name):
        raise MeshTableError(
            f"mesh.name: {given.name!r} is no name: it has 1 to 63 of a-z, 0-9 and -, a letter or digit first"
        )
    return given


def _check_listen(text: str) -> None:
    found = _WITH_PORT.fullmatch(text)
    host = found and (found[1] or found[2])
    if not found or not found[3] or int(found[3]) > 65535 or not _is_address(host or "", bool(found[1])):
        raise MeshTableError(
            f"mesh.join_listen: {text!r} is not IP:PORT; write [::]:4601 for every address, or one of this machine's"
        )


def _check_endpoint(key: str, text: str) -> None:
    wrong = MeshTableError(
        f"mesh.{key}: {text!r} is not HOST or HOST:PORT; write a DNS name or an IP address that other machines "
        "reach this one by, as in hub.example.org or [2001:db8::1]:51820"
    )
    if _is_address(text, True):
        return
    found = _WITH_PORT.fullmatch(text)
    if found is None or (found[3] and not 1 <= int(found[3]) <= 65535):
        raise wrong
    if found[1] is not None:
        if not _is_address(found[1], True):
            raise wrong
    elif not _HOST.fullmatch(found[2]) or (found[2][-1:].isdigit() and not _is_address(found[2], False)):
        raise wrong


def _is_address(text: str, v6: bool) -> bool:
    try:
        return (ip_address(text).version == 6) is v6 and "%" not in text
    except ValueError:
        return False

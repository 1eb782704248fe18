"""What a node asks of its helper and what that answers: one message each, over mesh.channel."""

from ipaddress import IPv6Address, IPv6Interface, IPv6Network
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from mesh.picking import Backend, Picked
from mesh.plan import Change, Hiding, PeerState

PAGE: Final = 100  # peers of one page of what an interface is: a message has room for them
NAME: Final = 15  # characters of an interface's name, as Linux has it

Port = Annotated[int, Meta(ge=0, le=65535)]
Mtu = Annotated[int, Meta(ge=1280, le=65535)]


class Start(Struct, frozen=True, kw_only=True):
    """How to start, as JSON on the command line. `port`: what other machines are to reach, 0 where they are not."""

    backend: Backend
    port: int
    log: str  # the file for what WireGuard's process says
    picked: Picked | None = None  # where we are inside of the way out already


class Up(Hiding, frozen=True, kw_only=True, tag="up"):
    """Make the interface; the first request, once. A network namespace may come with it, to go on with."""

    id: int
    name: Annotated[str, Meta(min_length=1, max_length=NAME)]
    private: Annotated[bytes, Meta(min_length=32, max_length=32)]
    address: IPv6Interface
    port: Port
    mtu: Mtu


class Apply(Struct, frozen=True, kw_only=True, tag="apply"):
    """Make these changes, in order."""

    id: int
    changes: list[Change]


class Read(Struct, frozen=True, kw_only=True, tag="read"):
    """Say what the interface is: pages of peers, then Interface."""

    id: int


class Listen(Struct, frozen=True, kw_only=True, tag="listen"):
    """Listen for TCP on the interface's address; 0: any port. The answer is Given."""

    id: int
    port: Port


class Dial(Struct, frozen=True, kw_only=True, tag="dial"):
    """Connect by TCP from the interface's address, within `timeout` seconds. The answer is Given."""

    id: int
    host: IPv6Address
    port: Port
    timeout: Annotated[float, Meta(gt=0, le=60)]


class Echo(Struct, frozen=True, kw_only=True, tag="echo"):
    """Ask a peer for an echo of a packet of `size` bytes, for at most `timeout` seconds. The answer is Echoed."""

    id: int
    host: IPv6Address
    size: Annotated[int, Meta(ge=64, le=65535)]
    timeout: Annotated[float, Meta(gt=0, le=60)]


class Resize(Struct, frozen=True, kw_only=True, tag="resize"):
    """Set the interface's MTU."""

    id: int
    mtu: Mtu


class Down(Struct, frozen=True, kw_only=True, tag="down"):
    """Take everything down and end."""

    id: int


Request = Up | Apply | Read | Listen | Dial | Echo | Resize | Down


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """The interface is up; `engine` and `said` tell how. Its network namespace comes along where it can be kept."""

    id: int
    pid: int
    engine: str
    said: str


class Done(Struct, frozen=True, kw_only=True, tag="done"):
    """What was asked is done."""

    id: int


class Page(Hiding, frozen=True, kw_only=True, tag="page"):
    """Some of the peers."""

    id: int
    peers: list[PeerState]


class Interface(Struct, frozen=True, kw_only=True, tag="interface"):
    """The interface, after its peers."""

    id: int
    public: bytes
    port: int


class Given(Struct, frozen=True, kw_only=True, tag="given"):
    """A socket comes along."""

    id: int


class Echoed(Struct, frozen=True, kw_only=True, tag="echoed"):
    """Whether the echo came."""

    id: int
    came: bool


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """It could not be done; `number` is the errno, 0 where there is none. `off`: no try will do better."""

    id: int
    message: str
    number: int = 0
    off: bool = False


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """The helper ends, unasked; why."""

    reason: str


Answer = Ready | Done | Page | Interface | Given | Echoed | Failed | Ended


def _encode(value: Any) -> str:
    if isinstance(value, IPv6Network | IPv6Address):  # IPv6Interface is an address
        return str(value)
    raise NotImplementedError(f"a {type(value).__name__} in a message")


def _decode(kind: type, value: Any) -> Any:
    if kind in (IPv6Network, IPv6Address, IPv6Interface) and isinstance(value, str):
        return kind(value)
    raise NotImplementedError(f"a {kind.__name__} in a message")


class _Numbered(Struct):
    id: int


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode)
_requests = msgspec.msgpack.Decoder(Request, dec_hook=_decode)
_answers = msgspec.msgpack.Decoder(Answer, dec_hook=_decode)


def encode(message: Request | Answer) -> bytes:
    return _encoder.encode(message)


def request(body: bytes) -> Request:
    """Raises msgspec.MsgspecError."""
    return _requests.decode(body)


def id_of(body: bytes) -> int:
    """The id of a request that does not read otherwise. Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(body, type=_Numbered).id


def answer(body: bytes) -> Answer:
    """Raises msgspec.MsgspecError."""
    return _answers.decode(body)

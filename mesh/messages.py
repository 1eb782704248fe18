"""The join's two messages as bytes: JSON in a box, sealed in a context of its own. Pure.

The worker asks, sealed to the harness's join key; the harness answers, sealed with the reply key that was in the
question and bound to that very box. Unknown fields are passed over; another version is not read.
"""

import hashlib
from ipaddress import IPv6Address, IPv6Network
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from mesh import sealed
from mesh.address import HARNESS, BadPlaceError, Place, number_of, place, prefix
from mesh.keys import BadKeyError, JoinKey, check_public, encode, fingerprint
from mesh.nodes import Facts
from mesh.plan import KEY
from mesh.sealed import SealError
from mesh.token import SECRET

VERSION: Final = 1
MAX_ASK: Final = (
    8 << 10
)  # bytes of a sealed question: 1.1 kB of box, 0.4 of keys, five facts of 255 characters
MAX_ANSWER: Final = 16 << 10  # bytes of a sealed answer: endpoints with names of any length fit
KEEPALIVE: Final = 25  # seconds; some networks forget a UDP flow after 30
MTU: Final = 1420  # bytes: 1500 less IPv6, UDP and WireGuard's own
LONGEST_FACT: Final = 255  # characters
_ASK: Final = b"outrider join ask 1\0"
_ANSWER: Final = b"outrider join answer 1\0"
_PROOF: Final = b"outrider join proof 1\0"

Secret = Annotated[bytes, Meta(min_length=SECRET, max_length=SECRET)]
Key = Annotated[bytes, Meta(min_length=KEY, max_length=KEY)]
Fact = Annotated[str, Meta(max_length=LONGEST_FACT)]
Port = Annotated[int, Meta(ge=1, le=65535)]
T = TypeVar("T", "Ask", "Answer")


class MessageError(Exception):
    """This message cannot be opened or read; the message says why, as far as that is known."""


class Ask(Struct, frozen=True, kw_only=True):
    """What a worker asks with: the token's secret, its WireGuard public key and the proof that it is its own.

    `reply`: a fresh key for the answer. `time`: the worker's clock, seconds since the epoch.
    """

    secret: Secret
    key: Key
    reply: Key
    proof: Key
    time: Annotated[float, Meta(ge=0, le=1e11)]
    hostname: Fact = ""
    os: Fact = ""
    arch: Fact = ""
    release: Fact = ""
    name: Fact = ""
    v: int = VERSION

    def __repr__(self) -> str:
        return f"Ask(key={encode(self.key)!r})"

    def facts(self) -> Facts:
        """What it says of the machine; nothing in it moves a cursor where it is printed."""
        return Facts(*map(_printable, (self.hostname, self.os, self.arch, self.release, self.name)))


class Answer(Struct, frozen=True, kw_only=True):
    """All that a worker needs to be in the mesh.

    `hub`: the harness's WireGuard public key; `endpoints`: where it is heard, in the order to try; `control`: the TCP
    port at the harness's address inside the mesh; `keepalive` in seconds, `mtu` in bytes; `harness`: its name; `relay`:
    whether packets may come over the join listener.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}\Z")]
    address: IPv6Address
    prefix: IPv6Network
    hub: Key
    preshared: Key
    endpoints: Annotated[tuple[Place, ...], Meta(max_length=16)]
    control: Port
    harness: Fact
    mtu: Annotated[int, Meta(ge=1280, le=65535)] = MTU
    keepalive: Annotated[int, Meta(ge=0, le=65535)] = KEEPALIVE
    relay: bool = True
    v: int = VERSION

    def __repr__(self) -> str:
        return f"Answer(name={self.name!r}, address={str(self.address)!r}, harness={self.harness!r})"


class _Version(Struct):
    v: int = 0


def ask(
    secret: bytes, private: bytes, key: bytes, reply: bytes, time: float, facts: Facts, hub: bytes
) -> Ask:
    """The question of the worker with this WireGuard pair, for the harness with this join public key.

    Raises SealError where that is not one.
    """
    texts = [_printable(text.encode("utf-8", "replace").decode()) for text in msgspec.structs.astuple(facts)]
    return Ask(
        secret=secret,
        key=key,
        reply=reply,
        proof=sealed.proof(private, hub[-KEY:], _statement(hub, key, reply)),
        time=time,
        hostname=texts[0],
        os=texts[1],
        arch=texts[2],
        release=texts[3],
        name=texts[4],
    )


def proven(asked: Ask, join: JoinKey) -> bool:
    """Whether the worker has the private half of the key that it says is its own."""
    try:
        own = sealed.proof(join.private[-KEY:], asked.key, _statement(join.public, asked.key, asked.reply))
    except SealError:
        return False
    return sealed.same(own, asked.proof)


def seal_ask(asked: Ask, hub: bytes) -> bytes:
    """The question for the harness with this join public key. Raises SealError where that is not one."""
    return sealed.seal(hub, msgspec.json.encode(asked), _ASK + fingerprint(hub))


def open_ask(box: bytes, join: JoinKey) -> Ask:
    """The question that was sealed to this join key. Raises MessageError."""
    if len(box) > MAX_ASK:
        raise MessageError(f"a join request has at most {MAX_ASK} bytes")
    try:
        plain = sealed.unseal(join, box, _ASK + fingerprint(join.public))
    except SealError:
        raise MessageError(
            "this join request cannot be opened: it is damaged, or for another harness"
        ) from None
    return _parse(plain, Ask)


def seal_answer(answer: Answer, reply: bytes, box: bytes) -> bytes:
    """The answer to the question that was in the box, and that had this reply key."""
    return sealed.seal_reply(reply, dump(answer), _answering(box))


def open_answer(box: bytes, reply: bytes, asked: bytes) -> Answer:
    """The answer to the question in the box `asked`. Raises MessageError."""
    try:
        plain = sealed.unseal_reply(reply, box, _answering(asked))
    except SealError:
        raise MessageError("its answer cannot be opened: it was changed on the way") from None
    return load(plain)


def dump(answer: Answer) -> bytes:
    """The answer as JSON, as a worker keeps it. The preshared key is in it."""
    return msgspec.json.encode(answer, enc_hook=str)


def load(data: bytes) -> Answer:
    """The answer of `dump`, when it fits together. Raises MessageError."""
    answer = _parse(data, Answer)
    number = number_of(answer.prefix, answer.address)
    try:
        check_public(answer.hub)
        for where in answer.endpoints:
            place(str(where))
    except (BadKeyError, BadPlaceError) as error:
        raise MessageError(f"the harness's answer is not valid: {error}") from None
    if answer.prefix != prefix(answer.hub) or number is None or number <= HARNESS:
        raise MessageError("the harness's answer is not valid: its address is not one of this harness's mesh")
    return answer


def _parse(data: bytes, kind: type[T]) -> T:
    try:
        version = msgspec.json.decode(data, type=_Version).v
        if version != VERSION:
            raise MessageError(
                f"the join has version {version} there and {VERSION} here: install the same Outrider on both machines"
            )
        return msgspec.json.decode(data, type=kind, dec_hook=_hook)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"the message is not valid: {error}") from None


def _hook(kind: type[Any], value: Any) -> Any:
    return kind(str(value))  # the addresses; what they raise is a ValueError


def _statement(hub: bytes, key: bytes, reply: bytes) -> bytes:
    return _PROOF + fingerprint(hub) + key + reply


def _answering(box: bytes) -> bytes:
    return _ANSWER + hashlib.sha256(box).digest()


def _printable(text: str) -> str:
    return "".join(filter(str.isprintable, text))[:LONGEST_FACT]

"""What a machine that joined asks where no packet passes: whether it still is a node; or it says that it leaves. Pure.

A removed machine is no peer any more, so it is told at the join listener, with two messages sealed as a join's are. No
token is needed: the machine shows that its WireGuard key is its own.
"""

import hashlib
import secrets
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from mesh import messages, sealed
from mesh.keys import JoinKey, Pair, encode, fingerprint
from mesh.messages import Answer, Key, MessageError
from mesh.plan import KEY
from mesh.sealed import SealError

PATH: Final = "/join/standing"
MAX_QUESTION: Final = 4 << 10  # bytes, sealed: 1.1 kB of box, 0.3 of keys
MAX_TOLD: Final = messages.MAX_ANSWER * 3 // 2  # bytes: an answer in base64 is in it
VERSION: Final = 1
_QUESTION: Final = b"outrider standing question 1\0"
_TOLD: Final = b"outrider standing told 1\0"
_PROOF: Final = b"outrider standing proof 1\0"
T = TypeVar("T", "Question", "Told")


class Question(Struct, frozen=True, kw_only=True):
    """From the machine with this WireGuard key, and the proof that it is its own. `leave`: it leaves the mesh.

    `reply`: a fresh key for the answer. `time`: the machine's clock, seconds since the epoch.
    """

    key: Key
    reply: Key
    proof: Key
    time: Annotated[float, Meta(ge=0, le=1e11)]
    leave: bool = False
    v: int = VERSION

    def __repr__(self) -> str:
        return f"Question(key={encode(self.key)!r}, leave={self.leave})"


class Told(Struct, frozen=True, kw_only=True):
    """What became of the machine; `answer` is there for a member: a join's answer as it would be now, dumped.

    `removed` is for ever. `unknown`: the harness has never seen the key, or has lost its registry.
    """

    state: Literal["member", "removed", "unknown"]
    answer: bytes = b""
    v: int = VERSION

    def __repr__(self) -> str:
        return f"Told(state={self.state!r})"


def ask(pair: Pair, hub: bytes, time: float, leave: bool) -> tuple[bytes, bytes]:
    """A question, sealed for the harness with this join public key, and its reply key. Raises SealError."""
    reply = secrets.token_bytes(sealed.REPLY)
    proof = sealed.proof(pair.private, hub[-KEY:], _statement(hub, pair.public, reply, leave))
    asked = Question(key=pair.public, reply=reply, proof=proof, time=time, leave=leave)
    return sealed.seal(hub, msgspec.json.encode(asked), _QUESTION + fingerprint(hub)), reply


def opened(box: bytes, join: JoinKey) -> Question:
    """The question in the box, from who has the key in it. Raises MessageError."""
    if len(box) > MAX_QUESTION:
        raise MessageError(f"a question has at most {MAX_QUESTION} bytes")
    try:
        plain = sealed.unseal(join, box, _QUESTION + fingerprint(join.public))
    except SealError:
        raise MessageError("this question cannot be opened: it is damaged, or for another harness") from None
    asked = _parse(plain, Question)
    statement = _statement(join.public, asked.key, asked.reply, asked.leave)
    try:
        own = sealed.proof(join.private[-KEY:], asked.key, statement)
    except SealError:
        own = b""
    if not sealed.same(own, asked.proof):
        raise MessageError("the machine has not shown that its WireGuard key is its own")
    return asked


def seal(told: Told, reply: bytes, box: bytes) -> bytes:
    """The answer to the question that was in the box, and that had this reply key."""
    return sealed.seal_reply(reply, msgspec.json.encode(told), _telling(box))


def told(box: bytes, reply: bytes, asked: bytes) -> tuple[Told, Answer | None]:
    """The answer to the question in the box `asked`, and what a member is told in it. Raises MessageError."""
    try:
        plain = sealed.unseal_reply(reply, box, _telling(asked))
    except SealError:
        raise MessageError("its answer cannot be opened: it was changed on the way") from None
    found = _parse(plain, Told)
    return found, messages.load(found.answer) if found.answer else None


def _parse(data: bytes, kind: type[T]) -> T:
    try:
        made = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"the message is not valid: {error}") from None
    if made.v != VERSION:
        raise MessageError(f"the message has version {made.v} there and {VERSION} here")
    return made


def _statement(hub: bytes, key: bytes, reply: bytes, leave: bool) -> bytes:
    return _PROOF + fingerprint(hub) + key + reply + bytes([leave])


def _telling(box: bytes) -> bytes:
    return _TOLD + hashlib.sha256(box).digest()

"""Boxes that only one party can open, and only in the context they were made for. Pure.

The cryptography is loaded by the first box: see `mesh.keys`.
"""

import hashlib
import hmac
import secrets
from functools import cache
from typing import TYPE_CHECKING, Final

from mesh.keys import ENCAPSULATION, JOIN_PRIVATE, JOIN_PUBLIC, SEED, JoinKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hpke import Suite

OVERHEAD: Final = 1120 + 16  # bytes that sealing to a key adds: what the KEM encapsulated, and the tag
REPLY: Final = 32  # bytes of a reply key
_NONCE: Final = 12  # bytes before a reply; random, though a reply key should seal one reply only


class SealError(Exception):
    """This cannot be opened, or not be sealed to this: damaged, not for this key, or of another context."""


@cache
def _suite() -> "Suite":
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def seal(public: bytes, plain: bytes, context: bytes) -> bytes:
    """A box that only the owner of the join key can open, OVERHEAD bytes longer. Raises SealError for a bad key."""
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.hpke import MLKEM768X25519PublicKey

    if len(public) != JOIN_PUBLIC:
        raise SealError(f"a join key has {JOIN_PUBLIC} bytes, this has {len(public)}")
    try:
        kem = MLKEM768PublicKey.from_public_bytes(public[:ENCAPSULATION])
        curve = X25519PublicKey.from_public_bytes(public[ENCAPSULATION:])
        return _suite().encrypt(plain, MLKEM768X25519PublicKey(kem, curve), context)
    except ValueError:
        raise SealError("this is not a join key") from None


def unseal(key: JoinKey, box: bytes, context: bytes) -> bytes:
    """What was sealed to the key in this context. Raises SealError."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

    assert len(key.private) == JOIN_PRIVATE
    kem = MLKEM768PrivateKey.from_seed_bytes(key.private[:SEED])
    curve = X25519PrivateKey.from_private_bytes(key.private[SEED:])
    try:
        return _suite().decrypt(box, MLKEM768X25519PrivateKey(kem, curve), context)
    except (InvalidTag, ValueError):
        raise SealError("this box cannot be opened") from None


def seal_reply(key: bytes, plain: bytes, context: bytes) -> bytes:
    """A box for whoever made the reply key, REPLY bytes."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = secrets.token_bytes(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, context)


def unseal_reply(key: bytes, box: bytes, context: bytes) -> bytes:
    """What was sealed with this reply key in this context. Raises SealError."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(box[:_NONCE], box[_NONCE:], context)
    except (InvalidTag, ValueError):
        raise SealError("this reply cannot be opened") from None


def proof(private: bytes, public: bytes, statement: bytes) -> bytes:
    """Shows to the owner of one X25519 key that the owner of the other says this; both sides compute the same.

    Raises SealError where the public key is no usable one.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        peer = X25519PublicKey.from_public_bytes(public)
        shared = X25519PrivateKey.from_private_bytes(private).exchange(peer)
    except ValueError:
        raise SealError("this is no usable public key") from None
    return hmac.digest(shared, statement, hashlib.sha256)


def same(one: bytes, other: bytes) -> bool:
    """Whether both are the same, in a time that does not say how far."""
    return hmac.compare_digest(one, other)

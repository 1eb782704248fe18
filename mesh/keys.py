"""The keys of a mesh: a WireGuard pair, and the key that joins are sealed to, each made once in a file of its own.

The cryptography is loaded by the first key that is made or read: it is large, and a daemon without a mesh needs none.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from mesh import private
from mesh.plan import KEY
from mesh.private import PrivateFileError as PrivateFileError

FOLDER: Final = "mesh"  # in the data folder
WIREGUARD: Final = "wireguard.key"
JOIN: Final = "join.key"
SEED: Final = 64  # bytes of an ML-KEM private key, as FIPS 203 calls its seed (d and z)
JOIN_PRIVATE: Final = SEED + KEY  # bytes: the ML-KEM-768 seed, then the X25519 private key
ENCAPSULATION: Final = 1184  # bytes of an ML-KEM-768 public key
JOIN_PUBLIC: Final = ENCAPSULATION + KEY  # bytes: the ML-KEM-768 public key, then the X25519 one
FINGERPRINT: Final = 32  # bytes of SHA-256
_FIELD: Final = 2**255 - 19  # what a coordinate on Curve25519 is below


class BadKeyError(Exception):
    """This is not a WireGuard public key; the message says why."""


class Pair(Struct, frozen=True):
    """A WireGuard key, raw bytes. What is printed of it is the public half."""

    private: bytes
    public: bytes

    def __repr__(self) -> str:
        return f"Pair(public={encode(self.public)!r})"


class JoinKey(Struct, frozen=True):
    """The HPKE key of ML-KEM-768 and X25519 that joins are sealed to: JOIN_PRIVATE and JOIN_PUBLIC bytes."""

    private: bytes
    public: bytes

    def __repr__(self) -> str:
        return f"JoinKey(fingerprint={fingerprint(self.public).hex()!r})"


class HubKeys(Struct, frozen=True):
    """What the harness is known by."""

    wireguard: Pair
    join: JoinKey


def hub(folder: Path) -> HubKeys:
    """The harness's keys in this folder, made where there are none. Blocks. Raises PrivateFileError."""
    private.folder(folder)
    return HubKeys(wireguard(folder / WIREGUARD), join_key(folder / JOIN))


def wireguard(file: Path) -> Pair:
    """The pair of this file, as `wg genkey` prints one; made where there is none. Blocks. Raises PrivateFileError."""
    return pair(_once(file, "a WireGuard key", KEY, _new_wireguard))


def join_key(file: Path) -> JoinKey:
    """The join key of this file, made where there is none. Blocks. Raises PrivateFileError."""
    return join_pair(_once(file, "a join key", JOIN_PRIVATE, _new_join))


def pair(secret: bytes) -> Pair:
    """The pair with this private key, KEY bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return Pair(secret, X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw())


def join_pair(secret: bytes) -> JoinKey:
    """The join key with this private half, JOIN_PRIVATE bytes."""
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

    kem = MLKEM768PrivateKey.from_seed_bytes(secret[:SEED]).public_key().public_bytes_raw()
    return JoinKey(secret, kem + pair(secret[SEED:]).public)


def fingerprint(public: bytes) -> bytes:
    """What a token knows a join key by: SHA-256 of its public half."""
    return hashlib.sha256(public).digest()


def check_public(key: bytes) -> bytes:
    """`key`, when a peer can have it: in its one encoding, and no point that every secret agrees with.

    Raises BadKeyError.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    if len(key) != KEY:
        raise BadKeyError(f"a WireGuard public key has {KEY} bytes, this has {len(key)}")
    if int.from_bytes(key, "little") >= _FIELD:  # a second spelling of a key is a second peer to the registry
        raise BadKeyError("this WireGuard public key is not written in its one valid way")
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        raise BadKeyError("this is no usable WireGuard public key") from None
    return key


def encode(key: bytes) -> str:
    """A key as `wg` prints it."""
    return base64.b64encode(key).decode()


def decode(text: str) -> bytes:
    """The key that `wg` prints so. Raises BadKeyError."""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadKeyError("a WireGuard key is 44 characters of base64") from None
    if len(key) != KEY or encode(key) != text:
        raise BadKeyError("a WireGuard key is 44 characters of base64")
    return key


def _new_wireguard() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate().private_bytes_raw()


def _new_join() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

    return MLKEM768PrivateKey.generate().private_bytes_raw() + _new_wireguard()


def _once(file: Path, what: str, size: int, new: Callable[[], bytes]) -> bytes:
    """The key that the file holds; where there is none, a new one, which is on disk when this returns."""
    try:
        return _read(file, what, size)
    except FileNotFoundError:
        pass
    try:
        with private.making(file) as fresh:
            fresh.write_text(f"{encode(new())}\n")
    except FileExistsError:
        pass  # another process made it in between, and it is the one key
    return _read(file, what, size)


def _read(file: Path, what: str, size: int) -> bytes:
    content = private.read(file)
    try:
        key = base64.b64decode(content.removesuffix(b"\n"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != size:
        raise PrivateFileError(
            f"{file} is damaged, it does not hold {what}: put a copy of it back, or move it away; a new one is made "
            "then, and what joined by the old one must join again"
        )
    return key

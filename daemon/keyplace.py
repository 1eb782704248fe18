"""Where a provider's key is when no file of ours has it: `env:VARIABLE`, or `keyring:NAME` in the system's keyring."""

import re
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

SERVICE: Final = "outrider"  # under which keyrings have our keys
ENV: Final = "env:"
KEYRING: Final = "keyring:"
LIMIT: Final = 5.0  # seconds for a keyring: one that is locked may wait for somebody who is not there
VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
PLACE: Final = re.compile(r"env:\w+|keyring:[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
INSTEAD: Final = "or keep the key in the environment (--key-env) or in the daemon's own file (--key)"


class _Keyring(Protocol):
    def get_password(self, service: str, username: str, /) -> str | None: ...

    def set_password(self, service: str, username: str, password: str, /) -> None: ...


class KeyPlaceError(Exception):
    """A key cannot be had, or kept, where it is to be; the message says why and what to do, and holds no key."""


def checked(place: str) -> str:
    """`place`, where it is one. Raises ValueError that says what would be right."""
    if not PLACE.fullmatch(place):
        raise ValueError(f"{place[:80]!r} is no place of a key; write env:VARIABLE or keyring:NAME")
    return place


def of_key(key: str) -> str:
    """The place that a `key` of outrider.toml names, empty where it is a key itself, or one with variables inside."""
    if match := VARIABLE.fullmatch(key.strip()):
        return f"{ENV}{match[1] or match[2]}"
    return key.strip() if key.strip().startswith(KEYRING) else ""


def find(place: str, environ: Mapping[str, str], *, written: bool = False) -> str:
    """The key at a place; a keyring is asked in a thread that is left after LIMIT. Blocks. Raises KeyPlaceError.

    `written`: outrider.toml names the place, so that none but its owner can name another.
    """
    if place.startswith(ENV):
        variable = place.removeprefix(ENV)
        if key := environ.get(variable, ""):
            return key
        other = (
            "change key in [providers.NAME] of outrider.toml"
            if written
            else "set a key with `outrider providers set NAME --key`"
        )
        raise KeyPlaceError(
            f"there is no ${variable} in the daemon's environment; set it there and start the daemon anew, or {other}"
        )
    name = place.removeprefix(KEYRING)
    key = _asked(lambda: _keyring().get_password(SERVICE, name)) or ""
    if not key:
        command = f"`keyring set {SERVICE} {name}`"
        keeps = (
            f"{command} keeps one there"
            if written
            else f"`outrider providers set NAME --keyring` keeps one there, or {command}"
        )
        raise KeyPlaceError(f"the system's keyring has no key {name!r} of {SERVICE!r}; {keeps}")
    return key


def keep(place: str, key: str) -> None:
    """Keep a key in the keyring. Blocks as `find` does. Raises KeyPlaceError."""
    _asked(lambda: _keyring().set_password(SERVICE, place.removeprefix(KEYRING), key))


def _keyring() -> "_Keyring":
    try:
        import keyring
    except ImportError:
        what = "the system's keyring needs Outrider's extra `keyring`: pip install 'outrider[keyring]'"
        raise KeyPlaceError(f"{what}, {INSTEAD}") from None
    return keyring.get_keyring()


def _asked(work: Callable[[], T]) -> T:
    """What `work` gives. What a backend says in its errors is left out: it may repeat what it was given."""
    done: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except Exception as error:  # noqa: BLE001 - backends have errors of their own
            failed.append(error)

    thread = threading.Thread(target=run, name="keyring", daemon=True)
    thread.start()
    thread.join(LIMIT)
    if done:
        return done[0]
    if failed and isinstance(failed[0], KeyPlaceError):
        raise failed[0]
    kind = type(failed[0]).__name__ if failed else ""
    why = (
        f"it does not answer within {LIMIT:g} s: it may be locked"
        if not failed
        else "this machine has none that works here"
        if kind in ("NoKeyringError", "InitError")
        else "it is locked"
        if kind == "KeyringLocked"
        else f"it failed ({kind})"
    )
    raise KeyPlaceError(f"the system's keyring cannot be used: {why}; unlock or install one, {INSTEAD}")

"""Keys that stand in the environment or in the system's keyring, and what is said where they cannot be had."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends.fail import Keyring as NoKeyring
from keyring.errors import KeyringLocked

from daemon import config, keyplace
from daemon.chain import Context, Text, Turn
from daemon.config import ConfigError
from daemon.keyplace import KeyPlaceError
from daemon.protocol.api import ProviderSetting as Set
from daemon.provider.base import ProviderError, Query, Wire
from daemon.provider.http import stream
from daemon.provider.service import BadSetting, FixedSetting, Providers

KEY = "sk-very-secret-0123456789"


class FakeKeyring(KeyringBackend):
    """Keys in memory; `wrong`: how each request ends; `held`: nobody answers until it is set."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}
        self.wrong: Exception | None = None
        self.held: threading.Event | None = None

    def get_password(self, service: str, username: str) -> str | None:
        self._answer()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._answer()
        self.kept[service, username] = password

    def _answer(self) -> None:
        if self.held is not None:
            self.held.wait()
        if self.wrong is not None:
            raise self.wrong


@pytest.fixture
def ring() -> Iterator[FakeKeyring]:
    before = keyring.get_keyring()
    fake = FakeKeyring()
    keyring.set_keyring(fake)
    yield fake
    keyring.set_keyring(before)


async def made(folder: Path, written: dict[str, Any] | None = None, **environ: str) -> Providers:
    """The providers as a daemon that starts now has them."""
    everything = {"HOME": str(folder), "OUTRIDER_DATA": str(folder), **environ}
    settings = await asyncio.to_thread(config.load, everything, system_file=folder / "none")
    return await asyncio.to_thread(
        Providers, folder / config.STORED, settings.stored, written or {}, environ, None
    )


def sent(providers: Providers, name: str) -> str:
    """The key that a request has."""
    provider, model = providers.resolve(f"{name}/m")
    query = Query(model, Context("", (), Turn("user", (Text("hi"),)), 1, 0), (), {}, "s")
    return provider.compile(query, Wire()).headers.get("x-api-key", "")


async def failure(providers: Providers, name: str) -> ProviderError:
    provider, model = providers.resolve(f"{name}/m")
    query = Query(model, Context("", (), Turn("user", (Text("hi"),)), 1, 0), (), {}, "s")
    with pytest.raises(ProviderError) as caught:
        async for _ in stream(provider, provider.compile(query, Wire())):
            pass
    return caught.value


# In the environment.


async def test_a_key_in_a_variable_is_read_at_each_start_and_is_not_in_the_file(tmp_path: Path) -> None:
    providers = await made(tmp_path, MINE=KEY)
    info = await providers.set("anthropic", Set(key_from="env:MINE"))
    assert (info.has_key, info.key_from, info.problem) == (True, "env:MINE", "")
    assert sent(providers, "anthropic") == KEY
    assert KEY not in (tmp_path / config.STORED).read_text()
    assert sent(await made(tmp_path, MINE="sk-another-0123456789"), "anthropic") == "sk-another-0123456789"


async def test_a_variable_that_is_gone_is_told_where_the_provider_is_used(tmp_path: Path) -> None:
    await (await made(tmp_path, MINE=KEY)).set("anthropic", Set(key_from="env:MINE"))
    providers = await made(tmp_path)
    (info, *_) = providers.describe().providers
    assert (info.has_key, info.key_from) == (False, "env:MINE")
    why = (
        "there is no $MINE in the daemon's environment; set it there and start the daemon anew, or set a key"
    )
    assert info.problem.startswith(why)
    error = await failure(providers, "anthropic")
    assert (error.code, error.message) == ("auth", info.problem)
    assert "providers set anthropic --key" in info.problem


async def test_a_variable_of_outrider_toml_that_is_not_there_is_told_too(tmp_path: Path) -> None:
    written = {"mine": {"kind": "anthropic", "key": "${MINE}"}}
    assert sent(await made(tmp_path, written, MINE=KEY), "mine") == KEY
    error = await failure(await made(tmp_path, written), "mine")
    assert "there is no $MINE in the daemon's environment" in error.message


async def test_where_outrider_toml_names_the_place_nothing_is_advised_that_would_be_refused(
    tmp_path: Path, ring: FakeKeyring
) -> None:
    written = {
        "mine": {"kind": "anthropic", "key": "$MINE"},
        "ring": {"kind": "anthropic", "key_from": "keyring:x"},
    }
    providers = await made(tmp_path, written)
    problems = {info.name: info.problem for info in providers.describe().providers}
    assert problems["mine"].endswith(
        "start the daemon anew, or change key in [providers.mine] of outrider.toml"
    )
    assert problems["ring"].endswith("`keyring set outrider x` keeps one there")
    for name in written:
        with pytest.raises(FixedSetting):
            await providers.set(name, Set(key=KEY))


async def test_a_key_takes_the_place_of_a_place_and_the_other_way_round(tmp_path: Path) -> None:
    providers = await made(tmp_path, MINE=KEY)
    await providers.set("anthropic", Set(key_from="env:MINE"))
    info = await providers.set("anthropic", Set(key="sk-own-0123456789"))
    assert (info.key_from, sent(providers, "anthropic")) == ("", "sk-own-0123456789")
    await providers.set("anthropic", Set(key_from="env:MINE"))
    assert "sk-own" not in (tmp_path / config.STORED).read_text()
    info = await providers.set("anthropic", Set(key="", key_from=""))
    assert (info.has_key, info.key_from) == (False, "")


async def test_what_outrider_toml_says_of_a_key_goes_before_all_that_is_stored_of_it(tmp_path: Path) -> None:
    await (await made(tmp_path, MINE=KEY)).set("anthropic", Set(key_from="env:MINE"))
    providers = await made(tmp_path, {"anthropic": {"key": "sk-file-0123456789"}}, MINE=KEY)
    assert sent(providers, "anthropic") == "sk-file-0123456789"
    with pytest.raises(FixedSetting, match=r"^key_from: outrider.toml has key in \[providers.anthropic\]"):
        await providers.set("anthropic", Set(key_from="env:MINE"))
    with pytest.raises(ConfigError, match=r"^providers.mine.key_from: it has a key too"):
        await made(tmp_path, {"mine": {"kind": "anthropic", "key": "k", "key_from": "env:MINE"}})
    with pytest.raises(ConfigError, match=r"^providers.mine.key_from: 'keyring:' is no place"):
        await made(tmp_path, {"mine": {"kind": "anthropic", "key": "keyring:"}})


# In the system's keyring.


async def test_a_key_can_be_kept_in_the_keyring_and_nowhere_else(tmp_path: Path, ring: FakeKeyring) -> None:
    providers = await made(tmp_path)
    info = await providers.set("anthropic", Set(key=KEY, key_from="keyring:anthropic"))
    assert (info.has_key, info.key_from) == (True, "keyring:anthropic")
    assert ring.kept == {("outrider", "anthropic"): KEY}
    assert KEY not in (tmp_path / config.STORED).read_text()
    for one in (providers, await made(tmp_path)):
        assert sent(one, "anthropic") == KEY
    written = {"mine": {"kind": "anthropic", "key": "keyring:anthropic"}}
    assert sent(await made(tmp_path, written), "mine") == KEY


async def test_a_key_that_the_keyring_does_not_have_is_told(tmp_path: Path, ring: FakeKeyring) -> None:
    providers = await made(tmp_path)
    why = r"^key_from: the system's keyring has no key 'other' of 'outrider'; `outrider providers set anthropic --k"
    with pytest.raises(BadSetting, match=why):
        await providers.set("anthropic", Set(key_from="keyring:other"))
    assert not (tmp_path / config.STORED).exists()
    assert not ring.kept


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (KeyringLocked(f"no {KEY}"), "it is locked"),
        (RuntimeError(f"dbus has {KEY}"), r"it failed \(RuntimeError\)"),
    ],
)
async def test_a_keyring_that_fails_is_told_without_what_it_was_given(
    tmp_path: Path, ring: FakeKeyring, wrong: Exception, words: str
) -> None:
    providers = await made(tmp_path)
    ring.wrong = wrong
    with pytest.raises(
        BadSetting, match=f"^key_from: the system's keyring cannot be used: {words}"
    ) as caught:
        await providers.set("anthropic", Set(key=KEY, key_from="keyring:anthropic"))
    assert KEY not in str(caught.value)
    ring.wrong = None
    await providers.set("anthropic", Set(key=KEY, key_from="keyring:anthropic"))
    ring.wrong = wrong
    again = await made(tmp_path)
    assert (await failure(again, "anthropic")).message.startswith("the system's keyring cannot be used")


def test_a_machine_without_a_keyring_is_told_what_else_there_is() -> None:
    before = keyring.get_keyring()
    keyring.set_keyring(NoKeyring())  # type: ignore[no-untyped-call]
    try:
        with pytest.raises(KeyPlaceError, match=r"this machine has none that works here.*--key-env"):
            keyplace.find("keyring:x", {})
    finally:
        keyring.set_keyring(before)


def test_a_keyring_that_waits_for_somebody_is_left(
    ring: FakeKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring.held = threading.Event()
    monkeypatch.setattr(keyplace, "LIMIT", 0.05)
    with pytest.raises(KeyPlaceError, match=r"does not answer within 0.05 s: it may be locked"):
        keyplace.find("keyring:x", {})
    ring.held.set()
    for thread in threading.enumerate():
        if thread.name == "keyring":
            thread.join()


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "keyring", None)
    with pytest.raises(
        KeyPlaceError, match=r"needs Outrider's extra `keyring`: pip install 'outrider\[keyring\]'"
    ):
        keyplace.find("keyring:x", {})

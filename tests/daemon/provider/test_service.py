import asyncio
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon import config
from daemon.chain import Context
from daemon.ownfile import OwnFileError
from daemon.protocol import api
from daemon.provider.anthropic import Anthropic
from daemon.provider.base import ProviderError, Query, Wire
from daemon.provider.service import BadSetting, FixedSetting, Providers

Set = api.ProviderSetting


async def made(
    folder: Path, written: Mapping[str, Any] | None = None, model: str = "", **environ: str
) -> Providers:
    """The providers as a daemon that starts now has them."""
    everything = {"HOME": str(folder), "OUTRIDER_DATA": str(folder), **environ}
    settings = await asyncio.to_thread(config.load, everything, system_file=folder / "none")
    path = folder / config.STORED
    return await asyncio.to_thread(Providers, path, settings.stored, written or {}, environ, None, model)


def known(providers: Providers, name: str) -> api.ProviderInfo:
    (found,) = (info for info in providers.describe().providers if info.name == name)
    return found


async def test_without_a_key_the_rehearsal_is_served(tmp_path: Path) -> None:
    providers = await made(tmp_path)
    described = providers.describe()
    assert described.default == "rehearsal/tour"
    assert [(info.name, info.served, info.has_key) for info in described.providers] == [
        ("rehearsal", True, False)
    ]
    assert providers.served() == [model.name for model in described.providers[0].models]
    assert providers.describe().providers[0].models[0].context > 0


async def test_a_key_that_is_not_there_passes_the_default_on_to_the_next(tmp_path: Path) -> None:
    written = {
        "anthropic": {"key": "$ANTHROPIC_API_KEY"},
        "mine": {"kind": "anthropic", "key": "keyring:x.y"},
    }
    alone = await made(tmp_path, written)
    assert alone.describe().default == "rehearsal/tour"
    await alone.set("google", Set(key="k-12345678"))
    assert alone.default().startswith("google/")
    for environ, first in (({"GEMINI_API_KEY": "k"}, "google/"), ({"ANTHROPIC_API_KEY": "k"}, "anthropic/")):
        assert (await made(tmp_path, written, **environ)).default().startswith(first)


async def test_what_could_be_set_up_is_offered_until_it_is(tmp_path: Path) -> None:
    providers = await made(tmp_path)
    assert [(one.name, one.asks) for one in providers.describe().offered] == [
        ("anthropic", ("key",)),
        ("openai", ("key",)),
        ("openai-chat", ("url", "key")),
        ("google", ("key",)),
        ("bedrock", ("region", "key")),
    ]
    for offer in providers.describe().offered:
        values = {"key": "k-12345678", "url": "http://127.0.0.1:1/v1", "region": "eu-west-1"}
        setting = msgspec.convert({offer.asks[0]: values[offer.asks[0]]}, Set)
        info = await providers.set(offer.name, setting)
        assert (info.served, info.asks) == (True, offer.asks), "by the first of what it asks for alone"
        assert offer not in providers.describe().offered
        assert known(providers, offer.name) == info
    await providers.set("google", Set(key=""))
    assert [one.name for one in providers.describe().offered] == ["google"]


async def test_the_region_of_the_environment_is_told(tmp_path: Path) -> None:
    providers = await made(tmp_path, AWS_REGION="eu-west-1")
    assert (await providers.set("bedrock", Set(key="k-12345678"))).region == "eu-west-1"
    assert (await providers.set("bedrock", Set(region="us-east-1"))).region == "us-east-1"
    assert "eu-west-1" not in (tmp_path / config.STORED).read_text()


async def test_a_region_is_set_like_a_key(tmp_path: Path) -> None:
    providers = await made(tmp_path)
    await providers.set("bedrock", Set(key="k-12345678", region="eu-west-1"))
    for one in (providers, await made(tmp_path)):
        provider, model = one.resolve("bedrock/m")
        request = provider.compile(Query(model, Context("", (), None, 1, 0), (), {}, "s"), Wire())
        assert request.url.startswith("https://bedrock-runtime.eu-west-1.")
    with pytest.raises(BadSetting, match=r"^region: "):
        await providers.set("bedrock", Set(region="no where"))


async def test_a_key_that_is_set_holds_at_once_and_after_a_restart(tmp_path: Path) -> None:
    providers = await made(tmp_path)
    with pytest.raises(ProviderError):
        providers.resolve("anthropic/claude-opus-5")
    info = await providers.set("anthropic", Set(key="sk-secret-1234"))
    assert (info.name, info.kind, info.url, info.has_key, info.served) == (
        "anthropic",
        "anthropic",
        "",
        True,
        True,
    )
    again = await made(tmp_path)
    for one in (providers, again):
        assert one.default().startswith("anthropic/")
        provider, model = one.resolve("anthropic/claude-opus-5")
        assert isinstance(provider, Anthropic)
        assert model.context > 0
        assert b"secret" not in msgspec.json.encode(one.describe())
    file = tmp_path / config.STORED
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "sk-secret-1234" in file.read_text()


async def test_what_is_left_out_stays_and_an_empty_text_takes_it_out(tmp_path: Path) -> None:
    providers = await made(tmp_path)
    await providers.set("mine", Set(kind="anthropic", url="http://user:pass@127.0.0.1:1/x", key="k"))
    assert known(providers, "mine").url == "http://127.0.0.1:1/x"
    assert (await providers.set("mine", Set(url="https://a"))).has_key
    info = await providers.set("mine", Set(key="", url=""))
    assert (info.kind, info.url, info.has_key) == ("anthropic", "", False)
    await providers.set("anthropic", Set(key="$HOME"))
    await providers.set("anthropic", Set(key=""))
    assert (await made(tmp_path)).describe() == providers.describe()
    assert "anthropic]" not in (tmp_path / config.STORED).read_text()


async def test_a_text_is_taken_as_it_stands(tmp_path: Path) -> None:
    providers = await made(tmp_path, SECRET="from the environment")
    await providers.set("anthropic", Set(key='$SECRET"\\'))
    again = await made(tmp_path, SECRET="x")
    assert again._entries["anthropic"].key == '$SECRET"\\'


async def test_what_the_operators_file_says_goes_first(tmp_path: Path) -> None:
    providers = await made(
        tmp_path, {"anthropic": {"key": "$K", "url": "http://file"}}, "rehearsal/echo", K="k"
    )
    assert providers.default() == "rehearsal/echo"
    with pytest.raises(FixedSetting, match=r"^key: outrider.toml has key in \[providers.anthropic\]"):
        await providers.set("anthropic", Set(key="x"))
    assert known(providers, "anthropic").has_key
    other = await made(tmp_path, {"anthropic": {"url": "http://file"}}, ANTHROPIC_API_KEY="environment")
    assert (await other.set("anthropic", Set(key="set"))).url == "http://file"
    assert other._entries["anthropic"].key == "set"


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("mine", Set(key="k"), r"^kind: needs a kind: one of anthropic, "),
        ("mine", Set(kind="anthropc"), r"^kind: "),
        ("rehearsal", Set(url="http://x"), r"^url: a provider of kind rehearsal has none; leave it out"),
        ("rehearsal", Set(key="k"), r"^key: a provider of kind rehearsal has none; leave it out"),
        ("anthropic", Set(region="eu-west-1"), r"^region: a provider of kind anthropic has none"),
        ("anthropic", Set(url="http://a:secret@x /"), r"^url: 'http://\*\*\*@x /' is no address"),
        ("anthropic", Set(key="k", key_from="env:K"), r"^key_from: it contradicts key"),
        (
            "anthropic",
            Set(key_from="env:NOT_THERE"),
            r"^key_from: there is no \$NOT_THERE in the daemon's env",
        ),
        ("anthropic", Set(key_from="$K"), r"^key_from: '\$K' is no place of a key; write env:VARIABLE or"),
        ("anthropic", Set(url="ftp://x"), r"^url: 'ftp://x' is no address"),
        ("anthropic", Set(key="k\ney"), r"^key: it holds characters that no HTTP header can"),
    ],
)
async def test_a_setting_that_is_not_right_is_refused_by_its_field_and_changes_nothing(
    tmp_path: Path, name: str, setting: Set, words: str
) -> None:
    providers = await made(tmp_path)
    before = providers.describe()
    with pytest.raises(BadSetting, match=words):
        await providers.set(name, setting)
    assert providers.describe() == before
    assert not (tmp_path / config.STORED).exists()


async def test_a_setting_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    providers = await asyncio.to_thread(Providers, tmp_path / "gone" / "providers.toml", {}, {}, {}, None)
    with pytest.raises(OwnFileError, match="cannot be written: No such file"):
        await providers.set("anthropic", Set(key="k"))
    assert providers.default() == "rehearsal/tour"


async def test_settings_made_at_once_are_all_kept(tmp_path: Path) -> None:
    providers = await made(tmp_path)
    async with asyncio.TaskGroup() as group:
        for n in range(10):
            group.create_task(providers.set(f"p{n}", Set(kind="anthropic", key=f"k{n}")))
    again = await made(tmp_path)
    assert {name: entry.key for name, entry in again._entries.items()} == {
        f"p{n}": f"k{n}" for n in range(10)
    }

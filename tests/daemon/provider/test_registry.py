from pathlib import Path

import pytest

from daemon.config import ConfigError, ModelEntry, ProviderEntry
from daemon.provider import models
from daemon.provider.base import Model, ProviderError, Query, Wire
from daemon.provider.registry import SPEED, Registry
from tests.daemon.provider.contexts import context, user

KEY = "sk-ant-0123456789"
CLAUDE = ProviderEntry(kind="anthropic", key=KEY)


def test_without_any_provider_there_is_the_rehearsal() -> None:
    registry = Registry({}, env={})
    assert registry.served() == ["rehearsal/tour", "rehearsal/echo", "rehearsal/chaos"]
    assert registry.default() == "rehearsal/tour"
    provider, model = registry.resolve("rehearsal/tour")
    assert (provider.name, model.name) == ("rehearsal", "tour")


def test_the_first_configured_provider_gives_the_default_model() -> None:
    registry = Registry({"anthropic": CLAUDE}, env={})
    assert registry.default() == "anthropic/claude-sonnet-5"
    named = ProviderEntry(kind="anthropic", key=KEY, models={"claude-own": ModelEntry(context=5)})
    assert Registry({"mine": named}, env={}).default() == "mine/claude-own"


def test_an_entry_gives_url_key_headers_and_models() -> None:
    limits = {"claude-haiku-4-5": ModelEntry(output=7), "claude-own": ModelEntry(9, 8, ("text/plain",))}
    entry = ProviderEntry(
        "anthropic", "http://127.0.0.1:1/v1", f" {KEY} ", headers={"X-A": "b"}, models=limits
    )
    registry = Registry({"mine": entry}, env={})
    provider, model = registry.resolve("mine/claude-haiku-4-5-20251001")
    assert (model.context, model.output) == (200_000, 7)
    assert registry.resolve("mine/claude-own")[1] == Model("claude-own", 9, 8, ("text/plain",))
    request = provider.compile(Query(model, context(user("x")), (), {}, "s"), Wire())
    assert request.url == "http://127.0.0.1:1/v1/messages"
    assert (request.headers["x-api-key"], request.headers["x-a"]) == (KEY, "b")


def test_a_model_that_nobody_knows_is_the_providers_to_judge() -> None:
    _, model = Registry({"anthropic": CLAUDE}, env={}).resolve("anthropic/a/b")
    assert model == Model("a/b", input=("text/plain",))


@pytest.mark.parametrize(
    "name", ["", "tour", "rehearsal", "rehearsal/", "/tour", "nobody/tour", "rehearsal/nope"]
)
def test_what_is_not_served_lists_what_is(name: str) -> None:
    with pytest.raises(ProviderError, match="rehearsal/echo") as caught:
        Registry({}, env={}).resolve(name)
    assert caught.value.code == "model"


def test_a_kind_that_has_no_wire_yet_is_said_to_have_none() -> None:
    registry = Registry({"openai": ProviderEntry(kind="openai", key="x")}, env={})
    assert registry.default() == "rehearsal/tour"
    with pytest.raises(ProviderError, match="no wire of kind 'openai'"):
        registry.resolve("openai/gpt")


def test_a_users_rehearsals_are_served(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("not even TOML [")
    registry = Registry({}, tmp_path, env={SPEED: "0"})
    assert "rehearsal/mine" in registry.served(), (
        "a bad one is served too: its error names it when it is played"
    )


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        (ProviderEntry("anthropic", url="api.anthropic.com"), "providers.anthropic.url"),
        (ProviderEntry("anthropic", url="https://"), "https://host"),
        (ProviderEntry("anthropic", key="sk-ant-\n-x"), "providers.anthropic.key"),
        (ProviderEntry("anthropic", key="sk-ünt"), "copy it anew"),
        (ProviderEntry("anthropic", headers={"X-A": "\x07"}), "providers.anthropic.headers.X-A"),
    ],
)
def test_an_entry_that_cannot_be_used_names_the_field_and_the_fix(entry: ProviderEntry, names: str) -> None:
    with pytest.raises(ConfigError, match=names) as caught:
        Registry({"anthropic": entry}, env={})
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("speed", ["fast", "-1", "nan", "1e3"])
def test_a_speed_that_is_none_is_refused(speed: str) -> None:
    with pytest.raises(ConfigError, match=SPEED):
        Registry({}, env={SPEED: speed})


def test_a_dated_name_is_known_by_its_beginning() -> None:
    assert models.find("claude-haiku-4-5-20251001", models.ANTHROPIC).output == 64_000
    assert models.find("claude-sonnet-4-20250514", models.ANTHROPIC).context == 200_000
    assert models.find("claude-sonnet-4-0", models.ANTHROPIC).context == 200_000
    assert models.find("claude-sonnet-4-9", models.ANTHROPIC).context == 0, "another model is not an old one"
    assert models.find("claude-3-haiku-20240307", models.ANTHROPIC).output == 4096


def test_a_models_table_of_the_wrong_form_names_the_field() -> None:
    with pytest.raises(ValueError, match=r"models\.x: .*its fields are context"):
        models.overridden((), {"x": {"ctx": 1}})

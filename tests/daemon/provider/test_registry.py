from pathlib import Path

import msgspec
import pytest

from daemon.config import ConfigError, ModelEntry, ProviderEntry
from daemon.provider import models
from daemon.provider.base import Model, ProviderError, Query, Request, Wire
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


@pytest.mark.parametrize(
    ("entry", "answers"),
    [
        (ProviderEntry("anthropic", models={"claude-own": ModelEntry(9)}), False),
        (ProviderEntry("anthropic", "https://api.anthropic.com/v1"), False),
        (ProviderEntry("anthropic", "https://proxy.example"), True),
        (ProviderEntry("anthropic", headers={"X-Api-Key": KEY}), True),
        (ProviderEntry("anthropic", headers={"X-Team": "a"}), False),
        (ProviderEntry("google"), False),
        (ProviderEntry("openai"), False),
        (ProviderEntry("openai", "https://eu.api.openai.com/v1"), False),
        (ProviderEntry("openai-chat", "https://api.openai.com/v1"), False),
        (ProviderEntry("openai-chat", "http://127.0.0.1:1/v1", models={"qwen3": ModelEntry(9)}), True),
        (ProviderEntry("bedrock", region="eu-west-1"), True),
        (ProviderEntry("bedrock"), False),
        (ProviderEntry("bedrock", key=KEY), False),
        (ProviderEntry("bedrock", "https://vpce.example", key=KEY), True),
    ],
)
def test_who_cannot_answer_as_it_is_gives_no_default_model(entry: ProviderEntry, answers: bool) -> None:
    registry = Registry({"first": entry, "anthropic": CLAUDE}, env={"HOME": "/nowhere"})
    assert registry.default().partition("/")[0] == ("first" if answers else "anthropic")
    assert any(name.startswith("first/") for name in registry.served()), "it is listed all the same"
    alone = Registry({"first": entry}, env={"HOME": "/nowhere"})
    assert alone.default().partition("/")[0] == ("first" if answers else "rehearsal")


def test_a_chat_server_of_which_no_model_is_known_gives_no_default_model() -> None:
    entries = {"mine": ProviderEntry("openai-chat", "http://127.0.0.1:1/v1"), "anthropic": CLAUDE}
    assert Registry(entries, env={}).default() == "anthropic/claude-sonnet-5"


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
def test_what_is_not_served_says_what_is(name: str) -> None:
    with pytest.raises(ProviderError, match=r"there are rehearsal(/tour|, and `outrider models`)") as caught:
        Registry({}, env={}).resolve(name)
    assert caught.value.code == "model"


def test_a_wrong_name_among_hundreds_of_models_is_answered_in_one_line() -> None:
    served = {f"p{n}": ProviderEntry(kind="google", key=KEY) for n in range(5)}
    with pytest.raises(ProviderError) as caught:
        Registry(served, env={}).resolve("gemini-3.8-flash")
    assert "there are p0, p1, p2, p3, p4, rehearsal, and" in caught.value.message
    assert len(caught.value.message) < 200


def test_a_kind_that_has_no_wire_yet_is_said_to_have_none() -> None:
    registry = Registry({"new": ProviderEntry(kind="later", key="x")}, env={})
    assert registry.default() == "rehearsal/tour"
    with pytest.raises(ProviderError, match="no wire of kind 'later'"):
        registry.resolve("new/gpt")


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


# Chat servers.

LOCAL = "http://127.0.0.1:11434/v1"


def sent(registry: Registry, model: str) -> Request:
    provider, known = registry.resolve(model)
    return provider.compile(Query(known, context(user("x")), (), {}, "s"), Wire())


def test_a_chat_server_is_configured_by_its_address() -> None:
    entry = ProviderEntry("openai-chat", LOCAL, headers={"X-A": "b"}, models={"qwen3": ModelEntry(9, 8)})
    registry = Registry({"ollama": entry}, env={})
    assert registry.default() == "ollama/qwen3"
    request = sent(registry, "ollama/qwen3")
    assert request.url == f"{LOCAL}/chat/completions"
    assert (request.headers["x-a"], "authorization" in request.headers) == ("b", False)
    assert registry.resolve("ollama/qwen3")[1] == Model("qwen3", 9, 8, ("text/plain",))


def test_an_openai_key_alone_offers_openais_two_wires_the_newer_one_first() -> None:
    for entries in ({}, {"openai": ProviderEntry("openai", "", KEY)}):  # as the configuration has it
        registry = Registry(entries, env={"OPENAI_API_KEY": KEY})
        assert registry.default() == f"openai/{models.OPENAI[0].name}"
        assert f"openai-chat/{models.OPENAI[0].name}" in registry.served()
        for provider, path in (("openai", "responses"), ("openai-chat", "chat/completions")):
            request = sent(registry, f"{provider}/gpt-4o")
            assert request.url == f"https://api.openai.com/v1/{path}"
            assert request.headers["authorization"] == f"Bearer {KEY}"
            assert registry.entries[provider].key == KEY


def test_an_address_of_openais_in_the_environment_is_that_of_both_wires() -> None:
    for url in ("https://api.openai.com/v1", "https://eu.api.openai.com/v1"):
        registry = Registry({}, env={"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url})
        assert sent(registry, "openai/gpt-5").url == f"{url}/responses"
        assert registry.default() == f"openai/{models.OPENAI[0].name}"


def test_an_address_in_the_environment_of_another_server_is_taken_for_a_chat_servers() -> None:
    env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": LOCAL}
    for entries in ({}, {"openai": ProviderEntry("openai", f" {LOCAL}", KEY)}):  # as the configuration has it
        registry = Registry(entries, env=env)
        assert list(registry.providers) == ["openai-chat", "rehearsal"]
        with pytest.raises(ProviderError, match="there is no provider 'openai'"):
            registry.resolve("openai/gpt-5")


def test_a_table_makes_a_server_of_the_newer_wire() -> None:
    entry = ProviderEntry(
        "openai", "http://127.0.0.1:1234", "k" * 9, headers={"X-A": "b"}, models={"qwen3": ModelEntry(9)}
    )
    registry = Registry({"studio": entry, "openai": ProviderEntry("openai")}, env={"OPENAI_BASE_URL": LOCAL})
    request = sent(registry, "studio/qwen3")
    assert (request.url, request.headers["x-a"]) == ("http://127.0.0.1:1234/v1/responses", "b")
    assert sent(registry, "openai/gpt-5").url == "https://api.openai.com/v1/responses"
    assert registry.resolve("studio/gpt-5")[1].context == 400_000, "by its name"
    assert [model.name for model in registry.providers["studio"].models()] == ["qwen3"]
    written = ProviderEntry("openai", LOCAL, KEY, models={"qwen3": ModelEntry(9)})
    registry = Registry({"openai": written}, env={"OPENAI_BASE_URL": LOCAL, "OPENAI_API_KEY": KEY})
    assert registry.default() == "openai/qwen3"


def test_an_address_in_the_environment_offers_a_server_with_and_without_a_key() -> None:
    for key in ("", KEY):
        registry = Registry({}, env={"OPENAI_BASE_URL": LOCAL, "OPENAI_API_KEY": key})
        request = sent(registry, "openai-chat/anything")
        assert request.url == f"{LOCAL}/chat/completions"
        assert request.headers.get("authorization", "") == (f"Bearer {key}" if key else "")
        assert registry.default() == "rehearsal/tour", "its models are not known yet"


def test_the_environment_may_name_the_model_to_begin_with() -> None:
    registry = Registry({}, env={"OPENAI_BASE_URL": LOCAL, "OPENAI_MODEL": "qwen3"})
    assert registry.default() == "openai-chat/qwen3"
    registry = Registry({}, env={"OPENAI_API_KEY": KEY, "OPENAI_MODEL": "gpt-4o"})
    for provider in ("openai", "openai-chat"):
        names = [model.name for model in registry.providers[provider].models()]
        assert names[:2] == ["gpt-4o", models.OPENAI[0].name]
        assert registry.resolve(f"{provider}/gpt-4o")[1].context == 128_000
    assert registry.default() == "openai/gpt-4o"


def test_a_table_without_an_address_takes_that_of_the_environment() -> None:
    entry = ProviderEntry("openai-chat", models={"qwen3": ModelEntry(9)})
    registry = Registry({"openai-chat": entry}, env={"OPENAI_BASE_URL": LOCAL, "OPENAI_API_KEY": KEY})
    assert sent(registry, "openai-chat/qwen3").headers["authorization"] == f"Bearer {KEY}"


def test_the_key_of_the_environment_goes_to_no_other_address() -> None:
    for name in ("openai-chat", "mine"):
        entries = {name: ProviderEntry("openai-chat", LOCAL)}
        registry = Registry(entries, env={"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "https://api.other"})
        assert "authorization" not in sent(registry, f"{name}/x").headers


def test_another_kind_may_have_the_name() -> None:
    registry = Registry({"openai-chat": CLAUDE}, env={"OPENAI_API_KEY": KEY})
    assert registry.default() == "openai-chat/claude-sonnet-5"


def test_limits_of_well_known_models_are_known_on_any_chat_server() -> None:
    registry = Registry({"router": ProviderEntry("openai-chat", "https://openrouter.ai/api/v1")}, env={})
    model = registry.resolve("router/openai/gpt-4o-2024-08-06")[1]
    assert (model.name, model.context, model.output) == ("openai/gpt-4o-2024-08-06", 128_000, 16_384)
    assert registry.resolve("router/some/model")[1] == Model("some/model", input=("text/plain",))


def test_quirks_of_an_entry_go_over_those_of_its_host() -> None:
    entry = ProviderEntry("openai-chat", "https://api.mistral.ai/v1", quirks={"usage": True, "ids": "kept"})
    body = msgspec.json.decode(sent(Registry({"m": entry}, env={}), "m/x").body)
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        (ProviderEntry("openai-chat"), "providers.mine.url: it is missing"),
        (ProviderEntry("openai-chat", LOCAL, quirks={"usages": True}), "providers.mine.quirks: .*thinking"),
        (ProviderEntry("openai-chat", LOCAL, quirks={"thinking": "some"}), "providers.mine.quirks"),
        (ProviderEntry("anthropic", quirks={"usage": True}), "kind anthropic has none"),
        (ProviderEntry("openai", quirks={"usage": True}), "kind openai has none"),
        (ProviderEntry("openai", "localhost:1"), "providers.mine.url"),
        (ProviderEntry("openai-chat", "localhost:1"), "providers.mine.url"),
    ],
)
def test_a_chat_entry_that_cannot_be_used_names_the_field_and_the_fix(
    entry: ProviderEntry, names: str
) -> None:
    with pytest.raises(ConfigError, match=names):
        Registry({"mine": entry}, env={})


@pytest.mark.parametrize("env", [{"OPENAI_BASE_URL": "localhost"}, {"OPENAI_API_KEY": "sk-\n-x"}])
def test_an_environment_that_cannot_be_used_names_the_variable(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(env))):
        Registry({}, env=env)


# Bedrock.


def test_a_bedrock_key_in_the_environment_needs_a_region_and_no_table() -> None:
    entries = {"bedrock": ProviderEntry("bedrock", key=KEY)}
    registry = Registry(entries, env={"AWS_REGION": "eu-west-1"})
    assert registry.default() == "bedrock/global.anthropic.claude-sonnet-5"
    request = sent(registry, "bedrock/us.anthropic.claude-haiku-4-5-20251001-v1:0")
    host = "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert request.url == f"{host}/model/us.anthropic.claude-haiku-4-5-20251001-v1:0/converse-stream"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    nowhere = Registry(entries, env={"HOME": "/nowhere"})
    assert sent(nowhere, "bedrock/x").url.startswith("/"), "each request then says what to set"


def test_a_bedrock_entry_gives_region_url_headers_quirks_and_models() -> None:
    arn = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc"
    entry = ProviderEntry(
        "bedrock",
        region="us-gov-west-1",
        headers={"X-A": "b"},
        quirks={"cache": True},
        models={arn: ModelEntry(9, 8, ("text/plain", "image/png")), "amazon.nova-lite-v1:0": ModelEntry(7)},
    )
    registry = Registry({"mine": entry}, env={"AWS_REGION": "eu-west-1"})
    assert registry.default() == f"mine/{arn}"
    assert registry.resolve(f"mine/{arn}")[1] == Model(arn, 9, 8, ("text/plain", "image/png"))
    assert registry.resolve("mine/amazon.nova-lite-v1:0")[1].input == models.TEXT_AND_IMAGES
    assert registry.resolve("mine/amazon.nova-lite-v1:0")[1].context == 7
    request = sent(registry, f"mine/{arn}")
    assert request.url.startswith("https://bedrock-runtime.us-gov-west-1.amazonaws.com/model/arn:aws")
    assert (request.headers["x-a"], "authorization" in request.headers) == ("b", False)
    assert b"cachePoint" in request.body
    own = Registry({"mine": ProviderEntry("bedrock", "https://vpce.example/")}, env={"AWS_REGION": "x-1"})
    assert sent(own, "mine/m").url == "https://vpce.example/model/m/converse-stream"


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        (ProviderEntry("bedrock", region="eu west"), "providers.mine.region: .*us-east-1"),
        (ProviderEntry("bedrock", url="localhost:1"), "providers.mine.url"),
        (ProviderEntry("bedrock", key="a\nb"), "providers.mine.key"),
        (ProviderEntry("bedrock", quirks={"cached": True}), "providers.mine.quirks: .*cache, apart"),
        (ProviderEntry("bedrock", quirks={"cache": "yes"}), "providers.mine.quirks"),
    ],
)
def test_a_bedrock_entry_that_cannot_be_used_names_the_field(entry: ProviderEntry, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        Registry({"mine": entry}, env={"AWS_REGION": "x-1"})


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (ProviderEntry(url="http://x"), r"^providers.rehearsal.url: a provider of kind rehearsal has none"),
        (
            ProviderEntry(headers={"a": "b"}),
            r"^providers.rehearsal.headers: a provider of kind rehearsal has none",
        ),
        (
            ProviderEntry(models={"tour": ModelEntry(context=9)}),
            r"^providers.rehearsal.models.tour.context: a rehearsal's is its own",
        ),
    ],
)
def test_what_means_nothing_to_a_kind_of_provider_is_refused(entry: ProviderEntry, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Registry({"rehearsal": entry}, env={})
    with pytest.raises(
        ConfigError, match=r"^providers.anthropic.region: a provider of kind anthropic has none"
    ):
        Registry({"anthropic": ProviderEntry(region="eu-west-1")}, env={})

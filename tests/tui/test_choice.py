from collections.abc import Callable
from typing import Any

import pytest

from daemon.protocol import api
from daemon.protocol.records import WorkerRef
from tui import choice
from tui.choice import Choice, Wrong

MODELS = api.Providers(
    "a/big",
    (
        api.ProviderInfo(
            "a", "anthropic", "", True, True, (api.ModelInfo("a/big", 200_000), api.ModelInfo("a/small"))
        ),
        api.ProviderInfo("b", "bedrock", "", True, False, (api.ModelInfo("b/none"),)),
        api.ProviderInfo(
            "c", "openai-chat", "", False, True, (api.ModelInfo("c/big", input=("image/png",)),)
        ),
        api.ProviderInfo("d", "openai-chat", "", False, True, ()),
    ),
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        (" ", 0),
        ("0", 0),
        ("100000", 100_000),
        ("100k", 100_000),
        ("1.5M", 1_500_000),
        ("200_000", 200_000),
    ],
)
def test_a_context_limit_is_written_as_people_do(text: str, number: int) -> None:
    assert choice.context(text) == number


@pytest.mark.parametrize("text", ["large", "-1", "1.5", "k", "nan", "inf", "1e400", "1 2", "0x10"])
def test_what_is_no_number_of_tokens_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write 200000 or 200k"):
        choice.context(text)


@pytest.mark.parametrize(
    ("read", "text", "number"),
    [
        (choice.steps, "", 0),
        (choice.steps, " 50 ", 50),
        (choice.seconds, "", 0),
        (choice.seconds, "90", 90),
        (choice.seconds, "1.5h", 5400),
        (choice.seconds, "30 min", 1800),
        (choice.cost, " ", 0),
        (choice.cost, "$5", 5),
        (choice.cost, "0.50", 0.5),
    ],
)
def test_limits_are_written_as_people_do(read: Callable[[str], float], text: str, number: float) -> None:
    assert read(text) == number


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (choice.steps, "-1"),
        (choice.steps, "1.5"),
        (choice.steps, "²"),
        (choice.steps, "9" * 16),
        (choice.seconds, "soon"),
        (choice.seconds, "-1"),
        (choice.seconds, "1e9"),
        (choice.seconds, "inf"),
        (choice.cost, "5 EUR"),
        (choice.cost, "nan"),
        (choice.cost, "1" * 400),
    ],
)
def test_what_is_no_limit_says_what_to_write(read: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a.*: write "):
        read(text)


def test_each_limit_that_is_wrong_is_told_by_its_name() -> None:
    with pytest.raises(Wrong) as caught:
        choice.create(Choice(steps="x", tokens="2M", cost="y"))
    assert [said.partition(":")[0] for said in caught.value.fields["limits"].split("\n")] == ["steps", "cost"]


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("", {}),
        ("temperature = 0.2", {"temperature": 0.2}),
        ('{"thinking": {"type": "enabled"}}', {"thinking": {"type": "enabled"}}),
        ("[thinking]\ntype = 'enabled'", {"thinking": {"type": "enabled"}}),
    ],
)
def test_params_are_toml_or_json(text: str, table: dict[str, Any]) -> None:
    assert choice.params(text) == table


@pytest.mark.parametrize("text", ["temperature", "{", '{"a": }', "a = ", "{" * 10_000, '{"a":' * 5000])
def test_params_that_are_neither_say_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"not valid|too deeply"):
        choice.params(text)


def test_tools_are_a_set_or_a_list() -> None:
    assert choice.tools("") == ""
    assert choice.tools(" patch ") == "patch"
    assert choice.tools("run, read") == ("run", "read")
    assert choice.tools("run") == ("run",)


def test_every_wrong_field_is_told_at_once() -> None:
    with pytest.raises(Wrong) as raised:
        choice.create(Choice(context="much", params="{", workers=(WorkerRef("local", "src"),)))
    assert set(raised.value.fields) == {"context", "params", "workers"}


def test_a_good_choice_is_what_the_api_takes() -> None:
    made = choice.create(Choice("a/big", (WorkerRef("local", "/src"),), "100k", "run read", "top_k = 3"))
    assert made == api.Create(
        model="a/big",
        context=100_000,
        workers=(WorkerRef("local", "/src"),),
        params={"top_k": 3},
        tools=("run", "read"),
    )


@pytest.mark.parametrize(
    ("message", "field", "why"),
    [
        ("model: no provider serves x/y", "model", "no provider serves x/y"),
        ("workers[1].name: stands twice", "workers", "[1].name: stands twice"),
        ("params.thinking: not taken", "params", "thinking: not taken"),
        ("limits.steps: too small", "limits", "steps: too small"),
        ("the data folder is full", "", "the data folder is full"),
        ("mesh.port: taken", "", "mesh.port: taken"),
    ],
)
def test_a_refusal_finds_its_field(message: str, field: str, why: str) -> None:
    assert choice.field_of(message) == (field, why)


def test_models_are_grouped_by_provider_and_filtered_by_every_word() -> None:
    assert [(name, [one.name for one in models]) for name, models in choice.grouped(MODELS)] == [
        ("a", ["a/big", "a/small"]),
        ("c", ["c/big"]),
    ]
    assert [name for name, _ in choice.grouped(MODELS, "BIG c/")] == ["c"]
    assert choice.grouped(MODELS, "none") == []


def test_a_model_says_what_is_known_of_it() -> None:
    assert choice.model_line(api.ModelInfo("a/big", 200_000), "a/big") == "a/big · context 200k · default"
    assert choice.model_line(api.ModelInfo("c/big", input=("image/png",)), "a/big") == "c/big · images"


def test_workers_are_ticked_as_last_time_and_local_the_first_time() -> None:
    here = [api.WorkerInfo("local", "connected"), api.WorkerInfo("gpu", "gone")]
    assert choice.offered(here, ()) == [("local", "", True), ("gpu", "", False)]
    assert choice.offered(here, (WorkerRef("gpu", "/x"), WorkerRef("away"))) == [
        ("local", "", False),
        ("gpu", "/x", True),
        ("away", "", True),
    ]

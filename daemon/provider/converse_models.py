"""What is known of the models on Bedrock, under all the names that it has for one: limits, and what each takes.

`us.anthropic.claude-sonnet-4-5-20250929-v1:0` is a vendor's model behind a geography that serves it, with a date and
a version; an ARN ends in such a name, or in one that says nothing.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from daemon.provider import models
from daemon.provider.base import Model

WORDS: Final = models.TEXT_AND_IMAGES[:1]
SEES: Final = models.TEXT_AND_IMAGES
CLAUDE: Final = Model("", 200_000, 0, SEES)  # one of which no more is known

_GEOGRAPHY: Final = re.compile(r"(?:[a-z]{2}|us-gov|apac|global)\.")
_VERSION: Final = re.compile(r"(-v\d+)?(:\w+)*$")
_UNCACHED: Final = re.compile(r"anthropic\.claude-(instant|v\d|3-(haiku|sonnet|opus|5-sonnet-20240620))")

# By the beginning of a name, the longest first. No output limit: without one Bedrock takes the model's own.
FACTS: Final = (
    ("amazon.nova-2-lite", Model("", 1_000_000, 0, SEES)),
    ("amazon.nova-premier", Model("", 1_000_000, 0, SEES)),
    ("amazon.nova-micro", Model("", 128_000, 0, WORDS)),
    ("amazon.nova-lite", Model("", 300_000, 0, SEES)),
    ("amazon.nova-pro", Model("", 300_000, 0, SEES)),
    ("openai.gpt-oss-", Model("", 128_000, 0, WORDS)),
    ("meta.llama4-maverick-", Model("", 1_000_000, 0, SEES)),
    ("meta.llama3-", Model("", 128_000, 0, WORDS)),
    ("deepseek.r1", Model("", 128_000, 0, WORDS)),
    ("deepseek.v3", Model("", 128_000, 0, WORDS)),
    ("mistral.mistral-large-", Model("", 128_000, 0, WORDS)),
    ("qwen.qwen3-", Model("", 128_000, 0, WORDS)),
)

# Offered by themselves, the default first. `global.`: wherever there is room, as most accounts have them.
SERVED: Final = (
    "global.anthropic.claude-sonnet-5",
    "global.anthropic.claude-opus-5",
    "global.anthropic.claude-haiku-4-5-20251001-v1:0",
    "global.amazon.nova-2-lite-v1:0",
    "openai.gpt-oss-120b-1:0",
)


class Manners(Struct, frozen=True):
    """What a model takes.

    cache: marks after which Bedrock keeps what it read. apart: words and calls, or words and results, have to stand
    in messages of their own; where they need not, a result may also say that it is an error.
    """

    cache: bool
    apart: bool


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """What a configuration says of all models of a provider; None: as it is known of each. See Manners."""

    cache: bool | None = None
    apart: bool | None = None


def plain(name: str) -> str:
    """A model's name as its vendor has it on Bedrock: without ARN, geography and version."""
    name = name.rpartition("/")[2]
    return _VERSION.sub("", _GEOGRAPHY.sub("", name, count=1) if _GEOGRAPHY.match(name) else name, count=1)


def manners(name: str, quirks: Quirks) -> Manners:
    """What a model takes, by its name; one that says nothing is asked for the least."""
    short = plain(name)
    claude, nova = short.startswith("anthropic.claude-"), short.startswith("amazon.nova-")
    cache = nova or (claude and not _UNCACHED.match(short))
    return Manners(
        cache if quirks.cache is None else quirks.cache,
        not (claude or nova) if quirks.apart is None else quirks.apart,
    )


def find(name: str, known: Sequence[Model] = ()) -> Model:
    """What is known of a model: what was configured for this very name, else what its vendor's name tells."""
    for model in known:
        if model.name == name:
            return model
    short = plain(name)
    if short.startswith("anthropic.claude-"):
        fact = models.find(short.removeprefix("anthropic."), models.ANTHROPIC)
        return msgspec.structs.replace(fact if fact.context else CLAUDE, name=name)
    fact = next((fact for start, fact in FACTS if short.startswith(start)), Model("", input=WORDS))
    return msgspec.structs.replace(fact, name=name)


def served() -> tuple[Model, ...]:
    """The models that are offered by themselves."""
    return tuple(map(find, SERVED))

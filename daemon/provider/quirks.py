"""How servers of Chat Completions differ in what they take: known by host and model, overridden by a config."""

import re
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct, structs

Thinking = Literal["none", "same", "reasoning_content"]
Ids = Literal["kept", "short"]

MISTRAL: Final = re.compile(r"mistral|mixtral|ministral|magistral|codestral|devstral|pixtral", re.IGNORECASE)


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """What a server takes.

    usage: `stream_options.include_usage`, without which most send no counts.
    thinking: how reasoning goes back to the server and model that gave it. none: not at all; same: in the field that
    it came in; reasoning_content: in that field, an empty one where an answer had none, since the server asks for it.
    ids: kept as they are (40 characters at most), or short: nine letters and digits.
    bridge: a word of the assistant's has to stand between a result and what a user says next.
    cache_key: `prompt_cache_key`, so that a session's requests meet the same cache.
    """

    usage: bool = True
    thinking: Thinking = "same"
    ids: Ids = "kept"
    bridge: bool = False
    cache_key: bool = False


HOSTS: Final[Mapping[str, Quirks]] = {  # and all below them
    "api.openai.com": Quirks(thinking="none", cache_key=True),
    "openai.azure.com": Quirks(thinking="none"),
    "api.deepseek.com": Quirks(thinking="reasoning_content"),
    "api.moonshot.ai": Quirks(thinking="reasoning_content"),
    "api.moonshot.cn": Quirks(thinking="reasoning_content"),
    "api.mistral.ai": Quirks(usage=False, thinking="none", ids="short", bridge=True),
}


def of_host(url: str) -> Quirks:
    """The quirks of the server at `url`, as far as it is known."""
    host = (urlsplit(url).hostname or "").lower()
    while host:
        if host in HOSTS:
            return HOSTS[host]
        host = host.partition(".")[2]
    return Quirks()


def of_model(quirks: Quirks, model: str) -> Quirks:
    """The same for one model: Mistral's have a template of their own, whoever serves them."""
    return structs.replace(quirks, ids="short", bridge=True) if MISTRAL.search(model) else quirks

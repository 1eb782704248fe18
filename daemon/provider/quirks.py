"""How servers of Chat Completions differ in what they take: known by host and model, overridden by a config."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, structs

Thinking = Literal["none", "same", "reasoning_content"]
Ids = Literal["kept", "short"]
Auth = Literal["bearer", "api-key"]
System = Literal["system", "developer"]
Limit = Literal["kept", "max_tokens", "max_completion_tokens"]

LIMITS: Final = ("max_tokens", "max_completion_tokens")

MISTRAL: Final = re.compile(r"mistral|mixtral|ministral|magistral|codestral|devstral|pixtral", re.IGNORECASE)


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """What a server takes.

    usage: `stream_options.include_usage`, without which most send no counts.
    thinking: how reasoning goes back to the server and model that gave it. none: not at all; same: in the field that
    it came in; reasoning_content: in that field, an empty one where an answer had none, since the server asks for it.
    ids: kept as they are (40 characters at most), or short: nine letters and digits.
    bridge: a word of the assistant's has to stand between a result and what a user says next.
    cache_key: `prompt_cache_key`, so that a session's requests meet the same cache.
    session_header: the header that has the session's id for the same, empty for none.
    auth: how the key is sent. bearer: as `Authorization: Bearer KEY`; api-key: in a header of that name.
    system: the role of the system text.
    limit: under which of its two names the limit of an answer's tokens is sent where params have one of them; kept: as
    it is given. Some servers refuse the one, some the other.
    """

    usage: bool = True
    thinking: Thinking = "same"
    ids: Ids = "kept"
    bridge: bool = False
    cache_key: bool = False
    session_header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]*$")] = ""
    auth: Auth = "bearer"
    system: System = "system"
    limit: Limit = "kept"


HOSTS: Final[Mapping[str, Quirks]] = {  # and all below them
    "api.openai.com": Quirks(thinking="none", cache_key=True, limit="max_completion_tokens"),
    "openai.azure.com": Quirks(thinking="none", auth="api-key"),
    "cognitiveservices.azure.com": Quirks(thinking="none", auth="api-key"),
    "services.ai.azure.com": Quirks(thinking="none", auth="api-key"),
    "api.deepseek.com": Quirks(thinking="reasoning_content"),
    "api.moonshot.ai": Quirks(thinking="reasoning_content"),
    "api.moonshot.cn": Quirks(thinking="reasoning_content"),
    "api.mistral.ai": Quirks(usage=False, thinking="none", ids="short", bridge=True, limit="max_tokens"),
    "api.groq.com": Quirks(thinking="none"),  # it refuses each field that it does not know of a model
    "api.x.ai": Quirks(session_header="x-grok-conv-id"),
    "openrouter.ai": Quirks(),  # these take what is sent unless told otherwise
    "api.together.xyz": Quirks(),
    "api.together.ai": Quirks(),
}
AZURE: Final = ("openai.azure.com", "cognitiveservices.azure.com", "services.ai.azure.com")


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


def limited(quirks: Quirks, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A request's fields, the limit of the answer under the name that the server takes."""
    others = {name: value for name, value in fields.items() if name not in LIMITS}
    given = next((fields[name] for name in LIMITS if name in fields), None)
    return dict(fields) if quirks.limit == "kept" or given is None else {**others, quirks.limit: given}


def deployment(url: str) -> str:
    """The deployment that one of Azure's addresses is of, empty for none."""
    host, parts = (urlsplit(url).hostname or "").lower(), urlsplit(url).path.strip("/").split("/")
    if not is_azure(host) or "deployments" not in parts[:-1]:
        return ""
    return parts[parts.index("deployments") + 1]


def is_azure(host: str) -> bool:
    """Whether it is one of Azure's, which list all models there are and not those that are deployed."""
    return host.lower().endswith(AZURE)

"""Gemini's streamGenerateContent: a context made into a request body, turn by turn, and the vendor's list of models."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from daemon.chain import GO_ON, Context, Text
from daemon.provider import budget, errors, gemini, models, patch, repair, rules_gemini
from daemon.provider import gemini_contents as contents
from daemon.provider.base import Decoder, Model, ProviderError, Query, Request, Transport, Wire
from daemon.provider.gemini_contents import Writer

URL: Final = "https://generativelanguage.googleapis.com"
VERSION: Final = "/v1beta"  # functions with JSON Schemas, and thoughts, are in no other
METHOD: Final = ":streamGenerateContent"
GENERATES: Final = "generateContent"  # what a listed model that talks can do
PAGE: Final = 1000  # models in a list at most, by the vendor; there are about a hundred
OWNED: Final = frozenset(
    {"contents", "model", "systemInstruction", "system_instruction", "tools"}
)  # the vendor reads both ways of writing a name
CACHED: Final = ("cachedContent", "cached_content")
OTHER: Final = re.compile(  # models that do not talk, or not in words
    r"embed|-tts|-image|image-|native-audio|-live|live-|transcri|robotics|computer-use|omni|aqa|nano-banana",
    re.IGNORECASE,
)

_VERSIONED: Final = re.compile(r"/v\d\w*(/|$)")
_encode = msgspec.json.Encoder().encode


class Google:
    """A provider of Gemini's API. `url` is its root, with a version or without; `headers` win over its own.

    `known`: models, the first one the default. `lists`: the server is worth asking for its models.
    """

    def __init__(
        self,
        name: str = "google",
        *,
        url: str = URL,
        key: str = "",
        headers: Mapping[str, str] | None = None,
        known: Sequence[Model] = models.GOOGLE,
        lists: bool = True,
        transport: Transport | None = None,
    ) -> None:
        self.name = name
        self.transport = transport
        self._url = url
        own = {"content-type": "application/json", "accept": "text/event-stream"}
        own |= {"x-goog-api-key": key} if key else {}
        self._headers = own | {field.lower(): value for field, value in (headers or {}).items()}
        self.lists = lists
        self.facts: Sequence[Model] = models.GOOGLE
        self._known = tuple(known)
        self._listed: tuple[Model, ...] = ()

    def compile(self, query: Query, wire: Wire) -> Request:
        """See `base.Provider`; there are no marks on this wire, the vendor caches by itself."""
        model = query.model
        unknown = not model.context and "gemini" in model.name.lower()  # all there are see
        shows = unknown or any(type.startswith("image/") for type in model.input)
        writer = Writer(self.name, model.name, shows=shows)
        turns = self._turns(writer, query.context, wire, shows)
        while budget.shrink(turns, query.context, wire):
            turns = self._turns(writer, query.context, wire, shows)
        fields: dict[str, Any] = repair.scrub(patch.merge({}, query.params))
        if system := repair.text(query.context.system).strip():
            fields["systemInstruction"] = contents.system(system)
        if query.tools:
            fields["tools"] = contents.tools(query.tools)
        head = _encode(fields)[:-1]
        body = b'%b%b"contents":[%b]}' % (head, b"," if fields else b"", b",".join(turns))
        return Request(at(self._url, f"{_path(model.name)}{METHOD}", "alt=sse"), self._headers, body)

    def _turns(self, writer: Writer, context: Context, wire: Wire, shows: bool) -> list[bytes]:
        kept = wire.ready(self.name, writer.model, context.epoch, shows)
        budget.enter(context, wire)
        settled, last = context.settled, context.last
        for index in range(len(kept), len(settled)):
            turn = settled[index]
            if turn.role == "user":
                kept.append(writer.user(budget.within(turn.parts, index, wire)))
            else:
                kept.append(writer.answer(turn.parts))
        parts = (Text(GO_ON),) if last is None else budget.within(last.parts, len(settled), wire)
        return [*kept[: len(settled)], writer.user(parts)]

    def decoder(self) -> Decoder:
        return gemini.Decoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return errors.classify(status, headers, body)

    def check_params(self, params: Mapping[str, Any]) -> str:
        for name in CACHED:
            if params.get(name) is not None:
                what = "what it holds cannot stand beside the harness's own system text and tools"
                return f"params.{name}: {what}; leave it out, the provider caches by itself"
        for outer in ("generationConfig", "generation_config"):
            inner = params.get(outer)
            for name in ("candidateCount", "candidate_count"):
                if isinstance(inner, Mapping) and inner.get(name) not in (None, 1):
                    return f"params.{outer}.{name}: the harness takes one answer; leave it out of params"
        return patch.refused(params, OWNED)

    def problems(self, request: Request) -> list[str]:
        path = unquote(urlsplit(request.url).path)
        model = path.removesuffix(METHOD).rpartition("/")[2]
        return rules_gemini.problems(request.body, signed=contents.signs(model))

    def models(self) -> Sequence[Model]:
        """Those known, then those that the server listed."""
        named = {model.name for model in self._known}
        return (*self._known, *(model for model in self._listed if model.name not in named))

    @property
    def listing(self) -> Request:
        """The request, a GET, that the server answers with its models."""
        headers = {**self._headers, "accept": "application/json"}
        return Request(at(self._url, "/models", f"pageSize={PAGE}"), headers, b"")

    def learn(self, answer: Any) -> None:
        """Take in what the server says of its models. Raises ValueError when it says nothing of that kind."""
        entries = answer.get("models") if isinstance(answer, dict) else None
        if not isinstance(entries, list):
            raise ValueError("it lists no models")
        found = [_listed(entry) for entry in entries[:PAGE] if isinstance(entry, dict)]
        self._listed = tuple({model.name: model for model in found if model is not None}.values())


def at(url: str, path: str, query: str) -> str:
    """The address of one of the API's resources, from its root or from one with a version."""
    parts = urlsplit(url)
    root = parts.path.rstrip("/")
    root += "" if _VERSIONED.search(root) else VERSION
    return urlunsplit(parts._replace(path=root + path, query="&".join(filter(None, (parts.query, query)))))


def _path(model: str) -> str:
    """Where a model is; a name with a slash says so itself (`tunedModels/mine`)."""
    return f"/{quote(model)}" if "/" in model else f"/models/{quote(model, safe='')}"


def _listed(entry: dict[str, Any]) -> Model | None:
    """One entry of the list; None for a model that does not talk."""
    name, can = entry.get("name"), entry.get("supportedGenerationMethods")
    if not isinstance(name, str) or OTHER.search(name) or (isinstance(can, list) and GENERATES not in can):
        return None
    name = name.removeprefix("models/")
    fact = models.find(name, models.GOOGLE)
    sees = "gemini" in name.lower() or len(fact.input) > 1
    found = models.gemini(
        name,
        repair.count(entry.get("inputTokenLimit")) or fact.context,
        repair.count(entry.get("outputTokenLimit")) or fact.output,
    )
    return found if sees else msgspec.structs.replace(found, input=fact.input)

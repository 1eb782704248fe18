"""Chat Completions: a context made into a request body, turn by turn, for OpenAI and the many servers like it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from daemon.chain import GO_ON, Context, Text
from daemon.provider import budget, chat, errors, listed, models, patch, repair, rules_chat
from daemon.provider.base import Decoder, Model, ProviderError, Query, Request, Transport, Wire
from daemon.provider.chat_messages import Writer, tool
from daemon.provider.quirks import Quirks, limited, of_host, of_model

URL: Final = "https://api.openai.com/v1"
PATH: Final = "/chat/completions"
RESPONSES: Final = "/responses"
MODELS: Final = "/models"
OWNED: Final = frozenset({"model", "messages", "tools", "stream", "n"})

_encode = msgspec.json.Encoder().encode


class OpenAIChat:
    """A provider of Chat Completions.

    `url` is its root as clients of the wire write it, mostly with a version (`http://127.0.0.1:11434/v1`); one without
    a path gets `/v1`. `quirks`: what the server takes, else what is known of its host. `known`: models configured,
    the first one the default. `lists`: the server is worth asking for its models, which `learn` takes in.
    """

    def __init__(
        self,
        name: str = "openai-chat",
        *,
        url: str = URL,
        key: str = "",
        headers: Mapping[str, str] | None = None,
        known: Sequence[Model] = (),
        lists: bool = True,
        quirks: Quirks | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.name = name
        self.transport = transport
        self._url = at(url, PATH)
        self._models_url = at(url, MODELS)
        own = {"content-type": "application/json", "accept": "text/event-stream"}
        self._quirks = of_host(url) if quirks is None else quirks
        if key:
            own |= {"api-key": key} if self._quirks.auth == "api-key" else {"authorization": f"Bearer {key}"}
        self._headers = own | {field.lower(): value for field, value in (headers or {}).items()}
        self.lists = lists
        self.facts = models.CHAT
        self._known = tuple(known)
        self._listed: tuple[Model, ...] = ()

    def compile(self, query: Query, wire: Wire) -> Request:
        """See `base.Provider`; there are no marks on this wire."""
        model = query.model.name
        quirks = of_model(self._quirks, model)
        shows = any(type.startswith("image/") for type in query.model.input)
        writer = Writer(self.name, model, quirks, shows=shows)
        messages = self._messages(writer, query.context, wire, (quirks, shows))
        while budget.shrink(messages, query.context, wire):
            messages = self._messages(writer, query.context, wire, (quirks, shows))
        if system := repair.text(query.context.system).strip():
            messages.insert(0, writer.system(system))
        fields: dict[str, Any] = {"stream_options": {"include_usage": True}} if quirks.usage else {}
        fields |= {"prompt_cache_key": query.session} if quirks.cache_key else {}
        fields = limited(quirks, patch.merge(fields, query.params))
        body = [_encode({"model": model, **repair.scrub(fields), "stream": True})[:-1]]
        if query.tools:
            body.append(b',"tools":' + _encode([tool(one) for one in query.tools]))
        body += b',"messages":[', b",".join(messages), b"]}"
        headers = self._headers
        if quirks.session_header:
            headers = {quirks.session_header.lower(): query.session, **headers}
        return Request(self._url, headers, b"".join(body))

    def _messages(self, writer: Writer, context: Context, wire: Wire, key: tuple[Any, ...]) -> list[bytes]:
        kept = wire.ready(self.name, writer.model, context.epoch, *key)
        budget.enter(context, wire)
        settled, last = context.settled, context.last
        for index in range(len(kept), len(settled)):
            turn = settled[index]
            if turn.role == "user":
                kept.append(writer.user(budget.within(turn.parts, index, wire)))
            else:
                kept.append(writer.assistant(turn.parts))
        parts = (Text(GO_ON),) if last is None else budget.within(last.parts, len(settled), wire)
        return [*kept[: len(settled)], writer.user(parts)]

    def decoder(self) -> Decoder:
        return chat.Decoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return errors.classify(status, headers, body)

    def check_params(self, params: Mapping[str, Any]) -> str:
        return patch.refused(params, OWNED)

    def problems(self, request: Request) -> list[str]:
        model = msgspec.json.decode(request.body, type=_Named).model
        return rules_chat.problems(request.body, of_model(self._quirks, model))

    def models(self) -> Sequence[Model]:
        """Those configured, then those that the server listed."""
        named = {model.name for model in self._known}
        return (*self._known, *(model for model in self._listed if model.name not in named))

    @property
    def listing(self) -> Request:
        """The request, a GET, that the server answers with its models."""
        return Request(self._models_url, {**self._headers, "accept": "application/json"}, b"")

    def learn(self, answer: Any) -> None:
        """Take in what the server says of its models. Raises ValueError when it says nothing of that kind."""
        self._listed = listed.parse(answer)


class _Named(msgspec.Struct):
    """A request's body, of which only the model is read."""

    model: str


def at(url: str, path: str) -> str:
    """The address of one of a server's resources, from its root or from the address that it answers at."""
    parts = urlsplit(url)
    root = parts.path.rstrip("/").removesuffix(PATH).removesuffix(RESPONSES) or "/v1"
    return urlunsplit(parts._replace(path=root + path))

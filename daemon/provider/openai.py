"""The Responses API: a context made into a request body, turn by turn, for OpenAI and the servers that took it over.

Nothing is kept at the provider's: each request holds the whole session, encrypted reasoning included.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from daemon.chain import GO_ON, Context, Text
from daemon.provider import budget, errors, listed, models, patch, repair, responses, rules_responses
from daemon.provider.base import Decoder, Model, ProviderError, Query, Request, Transport, Wire
from daemon.provider.openai_chat import MODELS, RESPONSES, URL, at
from daemon.provider.responses_items import Writer, tool

OWNED: Final = frozenset(
    {
        "model",
        "input",
        "instructions",
        "tools",
        "stream",
        "previous_response_id",  # with these two the provider would add a history of its own
        "conversation",
        "background",  # it would go on after an interrupt
    }
)
ENCRYPTED: Final = "reasoning.encrypted_content"

_encode = msgspec.json.Encoder().encode


class OpenAI:
    """A provider of the Responses API.

    `url` is its root as clients of the wire write it (`https://api.openai.com/v1`); one without a path gets `/v1`.
    `known`: models configured, the first one the default. `lists`: the server is worth asking for its models, which
    `learn` takes in.
    """

    def __init__(
        self,
        name: str = "openai",
        *,
        url: str = URL,
        key: str = "",
        headers: Mapping[str, str] | None = None,
        known: Sequence[Model] = (),
        lists: bool = True,
        transport: Transport | None = None,
    ) -> None:
        self.name = name
        self.transport = transport
        self._url = at(url, RESPONSES)
        self._models_url = at(url, MODELS)
        own = {"content-type": "application/json", "accept": "text/event-stream"}
        own |= {"authorization": f"Bearer {key}"} if key else {}
        self._headers = own | {field.lower(): value for field, value in (headers or {}).items()}
        self.lists = lists
        self.facts = models.CHAT
        self._known = tuple(known)
        self._listed: tuple[Model, ...] = ()

    def compile(self, query: Query, wire: Wire) -> Request:
        """See `base.Provider`; there are no marks on this wire."""
        shows = any(type.startswith("image/") for type in query.model.input)
        writer = Writer(self.name, query.model.name, shows=shows)
        items = self._items(writer, query.context, wire, shows)
        while budget.shrink(items, query.context, wire):
            items = self._items(writer, query.context, wire, shows)
        fields: dict[str, Any] = {"store": False, "include": [ENCRYPTED], "prompt_cache_key": query.session}
        fields = patch.merge(fields, query.params)
        body = [_encode({"model": query.model.name, **repair.scrub(fields), "stream": True})[:-1]]
        if system := repair.text(query.context.system).strip():
            body.append(b',"instructions":' + _encode(system))
        if query.tools:
            body.append(b',"tools":' + _encode([tool(one) for one in query.tools]))
        body += b',"input":[', b",".join(items), b"]}"
        return Request(self._url, self._headers, b"".join(body))

    def _items(self, writer: Writer, context: Context, wire: Wire, shows: bool) -> list[bytes]:
        """A turn's items each."""
        kept = wire.ready(self.name, writer.model, context.epoch, shows)
        budget.enter(context, wire)
        settled, last = context.settled, context.last
        for index in range(len(kept), len(settled)):
            turn = settled[index]
            if turn.role == "user":
                before = settled[index - 1] if index else None
                kept.append(writer.user(budget.within(turn.parts, index, wire), before))
            else:
                kept.append(writer.assistant(turn.parts))
        parts = (Text(GO_ON),) if last is None else budget.within(last.parts, len(settled), wire)
        return [*kept[: len(settled)], writer.user(parts, settled[-1] if settled else None)]

    def problems(self, request: Request) -> list[str]:
        return rules_responses.problems(request.body)

    def decoder(self) -> Decoder:
        return responses.Decoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return errors.classify(status, headers, body)

    def check_params(self, params: Mapping[str, Any]) -> str:
        return patch.refused(params, OWNED)

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

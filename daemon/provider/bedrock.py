"""Amazon Bedrock's Converse API: a context made into a request body, turn by turn.

Requests go with a Bedrock API key as they are, or are signed with AWS credentials right before they are sent.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from daemon.chain import GO_ON, Context, Text
from daemon.provider import budget, converse, converse_errors, converse_models, patch, repair, rules_converse
from daemon.provider.aws import Signer
from daemon.provider.base import Decoder, Model, ProviderError, Query, Request, Transport, Wire
from daemon.provider.converse_messages import Writer, message, past_tools, text, tool
from daemon.provider.converse_models import Quirks, manners

PATH: Final = "/model/{}/converse-stream"
OWNED: Final = frozenset({"modelId", "messages", "system", "toolConfig"})
MARKED: Final = 2  # user turns with a cache mark: the newest, and the one before, which the last step wrote
MAX_IMAGES: Final = 20  # what the API's reference allows; some models take more
KEPT: Final = 10
MAX_BYTES: Final = 18 << 20  # Claude on Bedrock takes 20 MB; the rest of the request has to fit too

_MARK: Final = b'{"cachePoint":{"type":"default"}}'
_END: Final = b"]}"  # how every message ends: its content, itself
_ASSISTANT: Final = message("assistant", ()).removesuffix(_END)
_encode = msgspec.json.Encoder().encode


def endpoint(region: str) -> str:
    """The address of Bedrock's runtime in a region."""
    return f"https://bedrock-runtime.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


class Bedrock:
    """A provider of Converse. `url` is its root, empty where neither it nor a region is known, which each request then
    says. `key`: a Bedrock API key; without one `signer` signs. `known`: models configured, the first the default.
    """

    def __init__(
        self,
        name: str = "bedrock",
        *,
        url: str = "",
        key: str = "",
        signer: Signer | None = None,
        headers: Mapping[str, str] | None = None,
        known: Sequence[Model] = (),
        quirks: Quirks | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.name = name
        self.transport = transport
        self._url = url.rstrip("/")
        self._signer = None if key else signer
        own = {"content-type": "application/json", "accept": "application/vnd.amazon.eventstream"}
        own |= {"authorization": f"Bearer {key}"} if key else {}
        self._headers = own | {field.lower(): value for field, value in (headers or {}).items()}
        self._configured = tuple(known)
        self._quirks = quirks or Quirks()

    def compile(self, query: Query, wire: Wire) -> Request:
        """See `base.Provider`; the marks are indexes of turns."""
        model, context = query.model.name, query.context
        takes = manners(model, self._quirks)
        shows = any(type.startswith("image/") for type in query.model.input)
        writer = Writer(self.name, model, takes, shows=shows)
        key = (self.name, model, context.epoch, takes, shows)
        turns = self._turns(writer, context, wire, key)
        while budget.shrink(turns, context, wire, MAX_BYTES):
            turns = self._turns(writer, context, wire, key)
        marks: tuple[int, ...] = ()
        if takes.cache:
            users = (at for at in range(len(turns) - 1, -1, -1) if not turns[at].startswith(_ASSISTANT))
            marks = tuple(reversed([*islice(users, MARKED)]))
        for at in marks:
            turns[at] = turns[at].removesuffix(_END) + b"," + _MARK + _END
        fields: dict[str, Any] = {}
        if query.model.output:  # without one the API takes the model's own
            fields = {"inferenceConfig": {"maxTokens": query.model.output}}
        fields = repair.scrub(patch.merge(fields, query.params))
        body = [b"%b:%b" % (_encode(name), _encode(value)) for name, value in fields.items()]
        if system := repair.text(context.system).strip():
            mark = b"," + _MARK if takes.cache else b""
            body.append(b'"system":[%b%b]' % (text(system), mark))
        if tools := [tool(one) for one in query.tools] or past_tools(context.settled):
            body.append(b'"toolConfig":' + _encode({"tools": tools}))
        body.append(b'"messages":[' + b",".join(turns) + b"]")
        url = self._url + PATH.format(quote(model, safe=":"))
        return Request(url, self._headers, b"{" + b",".join(body) + b"}", marks)

    def _turns(self, writer: Writer, context: Context, wire: Wire, key: tuple[Any, ...]) -> list[bytes]:
        kept = wire.ready(*key)
        budget.enter(context, wire, MAX_IMAGES, KEPT)
        settled, last = context.settled, context.last
        for index in range(len(kept), len(settled)):
            turn = settled[index]
            if turn.role == "user":
                kept.append(writer.user(budget.within(turn.parts, index, wire)))
            else:
                kept.append(writer.assistant(turn.parts))
        parts = (Text(GO_ON),) if last is None else budget.within(last.parts, len(settled), wire)
        return [*kept[: len(settled)], writer.user(parts)]

    async def sign(self, request: Request) -> Request:
        """The request as it can be sent, signed where that is the way. Raises ProviderError."""
        if not self._url or (self._signer is not None and not self._signer.region):
            what = "the provider has no region: set AWS_REGION, or region in its table of outrider.toml"
            raise ProviderError(what, code="region")
        return request if self._signer is None else await self._signer.sign(request)

    def decoder(self) -> Decoder:
        return converse.Decoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        found = converse_errors.refused(status, headers, body)
        if found.code == "auth" and self._signer is not None:
            found.code = "credentials"
        return found

    def check_params(self, params: Mapping[str, Any]) -> str:
        return patch.refused(params, OWNED)

    def problems(self, request: Request) -> list[str]:
        model = unquote(request.url.removesuffix(PATH.partition("{}")[2]).rpartition("/")[2])
        takes = manners(model, self._quirks)
        return rules_converse.problems(request.body, apart=takes.apart, cache=takes.cache)

    def models(self) -> Sequence[Model]:
        """Those configured, then those that are offered by themselves."""
        named = {model.name for model in self._configured}
        return (*self._configured, *(one for one in converse_models.served() if one.name not in named))

    def find(self, name: str) -> Model:
        """What is known of any model by its name."""
        return converse_models.find(name, self._configured)

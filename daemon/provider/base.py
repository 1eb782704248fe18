"""What every provider is: compile a context into a request body, decode the answer's bytes into blocks."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, Protocol, runtime_checkable

from msgspec import Struct

from daemon.chain import Context
from daemon.protocol.api import Price
from daemon.protocol.records import TEXT, Usage

DEFAULT_OUTPUT: Final = 8192  # max_tokens where a vendor requires one and nobody knows the model's

End = Literal["normal", "calls", "length", "refusal", "filter", "context", "paused", "unknown"]


class Tool(Struct, frozen=True):
    """A tool as the model is told of it; `schema` is a JSON Schema of an object."""

    name: str
    description: str
    schema: Mapping[str, Any]


class Block(Struct, frozen=True):
    """One whole block of an answer: a record's kind, media type and body.

    text: TEXT, or a raw JSON block of the provider's own type that `records.readable` can read.
    thinking: the raw block as the provider wants it back, in a media type of its own; also every block we do not know.
    call: JSON of records.CallBody; `id` is the provider's own, empty where it gave none.
    """

    kind: Literal["text", "thinking", "call"]
    body: bytes
    type: str = TEXT
    id: str = ""


class Delta(Struct, frozen=True):
    """A piece that streams in, for live readers only. `block` counts from 0 within one answer."""

    kind: Literal["text", "thinking", "call"]
    text: str
    block: int = 0
    name: str = ""


class Outcome(Struct, frozen=True):
    """How an answer ended. `stop` is the provider's own word, `end` what it means; `model` what it says served it.

    `detail`: the provider's own sentence on why it stopped (a refusal), mostly empty.
    """

    usage: Usage
    stop: str
    end: End
    model: str = ""
    detail: str = ""


class Retry(Struct, frozen=True):
    """The request is tried again in `wait` seconds. `attempt`: the try that follows, from 2.

    `restart`: deltas and blocks given so far are void.
    """

    why: str
    wait: float
    attempt: int
    restart: bool


Event = Block | Delta | Outcome
Streamed = Block | Delta | Outcome | Retry


class ProviderError(Exception):
    """The provider refused or broke off; the message says what it said, with status and request id."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "provider",
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.request_id = request_id


class Wire:
    """The wire form of settled turns, kept between the steps of one session for one provider and model.

    Owned by whoever steps the session; a provider fills it in `compile`. Cleared when epoch, provider or model
    change. `images`: how many each settled turn has; `left_out`: how many of the oldest give way to a note.
    """

    def __init__(self) -> None:
        self.key: tuple[Any, ...] = ()
        self.turns: list[bytes] = []
        self.images: list[int] = []
        self.left_out = 0

    def ready(self, *key: Any) -> list[bytes]:
        """The kept turns when they were made under the same key, else an empty list to fill."""
        if key != self.key:
            self.key, self.turns, self.images, self.left_out = key, [], [], 0
        return self.turns

    def copy(self) -> "Wire":
        """One to fill apart."""
        other = Wire()
        other.take(self)
        return other

    def take(self, other: "Wire") -> None:
        """Become what `other` is."""
        self.key, self.turns, self.images = other.key, list(other.turns), list(other.images)
        self.left_out = other.left_out


class Model(Struct, frozen=True):
    """What is known of a model: limits in tokens (0: unknown), media types of input it takes, its price."""

    name: str
    context: int = 0
    output: int = 0
    input: tuple[str, ...] = ()
    price: Price | None = None


class Query(Struct, frozen=True):
    """All that a request is built from besides the provider itself. `model` is the name after the first slash."""

    model: Model
    context: Context
    tools: Sequence[Tool]
    params: Mapping[str, Any]
    session: str


class Request(Struct, frozen=True):
    """A request ready to send: `body` is the wire's own, `marks` the turns after which a cache mark stands."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    marks: tuple[int, ...] = ()


class Answer(Struct, frozen=True):
    """An HTTP answer whose body is still to come: header names in lower case, the body in any pieces."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


Transport = Callable[[Request], AbstractAsyncContextManager[Answer]]


class Decoder(Protocol):
    """Turns an answer's bytes, in any pieces, into events."""

    def feed(self, data: bytes) -> list[Event]:
        """Events complete by now; an Outcome is the last. Raises ProviderError for an error inside the stream.

        Where events came before the error, they are given first and the next call raises, so that the same bytes
        give the same events however they were cut; `feed(b"")` asks for it.
        """
        ...

    def end(self) -> list[Event]:
        """The body has ended. Raises a retryable ProviderError when the answer is not complete."""
        ...

    @property
    def events(self) -> int:
        """Real events so far (no comments, no pings): what the stall clock watches."""
        ...


@runtime_checkable
class Unmarked(Protocol):
    """A decoder of a wire whose answers may lack an end mark."""

    @property
    def whole(self) -> bool:
        """The answer is complete but for counts and an end mark, so that `end` gives its Outcome."""
        ...


class Provider(Protocol):
    """One configured provider. Both halves are pure; `daemon.provider.http.stream` does the I/O."""

    name: str

    @property
    def transport(self) -> Transport | None:
        """How its requests travel; None is HTTP."""
        ...

    def compile(self, query: Query, wire: Wire) -> Request:
        """The request for `query`; costs what is new since `wire` was last filled, and a join."""
        ...

    def decoder(self) -> Decoder:
        """A decoder for one answer."""
        ...

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """What an answer of `status` other than 200 means, by the classes of retry.py."""
        ...

    def check_params(self, params: Mapping[str, Any]) -> str:
        """Why these params cannot be used (a field that the harness owns), empty when they can."""
        ...

    def problems(self, request: Request) -> list[str]:
        """What this wire's rules say against a request; empty: it would be accepted."""
        ...

    def models(self) -> Sequence[Model]:
        """The models known to be served, best first."""
        ...


@runtime_checkable
class Lister(Provider, Protocol):
    """A provider whose server can tell which models it has."""

    @property
    def lists(self) -> bool:
        """The server is worth asking."""
        ...

    @property
    def listing(self) -> Request:
        """The request, a GET, that the server answers with its models."""
        ...

    @property
    def facts(self) -> Sequence[Model]:
        """What is known of models by their names alone, for those of which the server says nothing."""
        ...

    def learn(self, answer: Any) -> None:
        """Take in the server's answer, decoded JSON, so that `models` has what it lists.

        Raises ValueError when it says nothing of that kind.
        """
        ...

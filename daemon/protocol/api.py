"""The HTTP API's values, routes and limits, read by the daemon and by its clients.

One catalogue, longer than a module should be: it holds no logic, things are looked up in it by `api.NAME`, in the order
of the routes, and the API's schema is made of it. In parts, who looks for a shape would have to know whose part it is.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from daemon.protocol.records import Config, Limits, Status, Usage, WorkerRef

VERSION: Final = 1  # of the API
MAX_JSON: Final = 1 << 20
MAX_POST: Final = 8 << 20  # a paragraph and a screenshot; a file goes to a worker
MAX_WAIT: Final = 300.0  # seconds a read of records may be held open
MAX_LISTS_WAIT: Final = 10.0  # seconds one of the providers may be; a server is asked for half of that
HEARTBEAT: Final = 15.0  # seconds between comment lines of an event stream
SLOW_READER: Final = 30.0  # seconds a reader of events may take nothing
MAX_BEHIND: Final = 8 << 20  # bytes a reader of events may fall behind
MAX_PARTS: Final = 100  # records of one post
MAX_NAME: Final = 200  # characters of `via` and of an idempotency key
MAX_MODEL: Final = 500  # characters of a model's name: each step's record holds it in its header
SIGNED: Final = frozenset({"bedrock"})  # kinds of providers that need no key: their requests can be signed
MAX_LIST: Final = 1000  # sessions in one answer
FIRST: Final = 50  # sessions that GET /events begins with unless told: a screen of them
MAX_USES: Final = 1_000_000  # machines that one join token may let in
MAX_LIFETIME: Final = 10 * 365 * 86400.0  # seconds of a join token; what is to hold longer is a mistake
TEST_LIMIT: Final = (
    120.0  # seconds that a provider's test may take: a local server may have to load its model first
)
MAX_PORTS: Final = 100  # that one scan looks at
KEY_PREFIX: Final = "ork_"  # of an API key, so that a leaked one is known for what it is
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"  # of a key or a provider
IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
LAST_HEADER: Final = "Outrider-Last"  # of an answer with records: number of the last one in it

SESSIONS: Final = "/sessions"
SESSION: Final = "/sessions/{id}"
RECORDS: Final = "/sessions/{id}/records"
RETRY: Final = "/sessions/{id}/retry"
STOP: Final = "/sessions/{id}/stop"
END: Final = "/sessions/{id}/end"
WORKERS_OF: Final = "/sessions/{id}/workers"
CONFIG: Final = "/sessions/{id}/config"
CHECK: Final = "/sessions/{id}/check"
EVENTS: Final = "/sessions/{id}/events"
ALL_EVENTS: Final = "/events"
WORKERS: Final = "/workers"
CORDON: Final = "/workers/{name}/cordon"
UNCORDON: Final = "/workers/{name}/uncordon"
WORKER: Final = "/workers/{name}"
MESH: Final = "/mesh"
TOKENS: Final = "/tokens"
TOKEN: Final = "/tokens/{id}"
PROVIDERS: Final = "/providers"
PROVIDER: Final = "/providers/{name}"
PROVIDER_TEST: Final = "/providers/{name}/test"
SCAN: Final = "/scan"
KEYS: Final = "/keys"
KEY: Final = "/keys/{name}"
METRICS: Final = "/metrics"
OPENAPI: Final = "/openapi.json"
HEALTHZ: Final = "/healthz"
READYZ: Final = "/readyz"

Role = Literal["viewer", "operator", "admin"]
"""What a key may: look; also act on sessions; also set up the daemon. Each may what those before it may."""


class Create(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Body of POST /sessions: a fresh session, or with `from` a copy of that session's records 1 to n-1.

    `agent`: a definition that the daemon has, with its `inputs`; what is given beside them goes before what it says.
    """

    model: str = ""
    context: Annotated[int, Meta(ge=0)] = 0
    workers: tuple[WorkerRef, ...] = ()
    input: tuple[str, ...] = ()
    params: dict[str, Any] = {}
    tools: str | tuple[str, ...] = ""
    limits: Limits = Limits()
    instructions: str = ""
    agent: str = ""
    inputs: dict[str, Any] = {}
    from_: str = ""
    n: Annotated[int, Meta(ge=0)] = 0


class LimitsPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """A merge patch of records.Limits: what is left out stays, null is no limit."""

    steps: Annotated[int, Meta(ge=0)] | msgspec.UnsetType | None = msgspec.UNSET
    tokens: Annotated[int, Meta(ge=0)] | msgspec.UnsetType | None = msgspec.UNSET
    seconds: Annotated[float, Meta(ge=0)] | msgspec.UnsetType | None = msgspec.UNSET
    cost: Annotated[float, Meta(ge=0)] | msgspec.UnsetType | None = msgspec.UNSET
    ttl: Annotated[float, Meta(ge=0)] | msgspec.UnsetType | None = msgspec.UNSET


class ConfigPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of PATCH /sessions/{id}/config: a merge patch (RFC 7396); null takes a field's default.

    `tools` and `input` are named as at Create; null, or a change of `model` where nobody named them, leaves them to the
    model.

    `params` and `limits` are merged into the session's. A null in `limits` is no limit; one in `params` stays there, as
    at Create, and takes the field out of each request, also one that the daemon would send by itself.
    """

    model: str | msgspec.UnsetType | None = msgspec.UNSET
    params: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    tools: str | tuple[str, ...] | msgspec.UnsetType | None = msgspec.UNSET
    input: tuple[str, ...] | msgspec.UnsetType | None = msgspec.UNSET
    context: Annotated[int, Meta(ge=0)] | msgspec.UnsetType | None = msgspec.UNSET
    limits: LimitsPatch | msgspec.UnsetType | None = msgspec.UNSET


class Created(Struct, frozen=True):
    """Answer to POST /sessions."""

    id: str


class Part(Struct, frozen=True):
    """One record of a post: its media type and its bytes."""

    type: str
    body: bytes


class Posted(Struct, frozen=True):
    """Answer to a post: the number of its last record, durable by now."""

    n: int


class Kicked(Struct, frozen=True):
    """Answer to a retry: the session's status after it was asked for."""

    status: Status


class Origin(Struct, frozen=True, omit_defaults=True):
    """Where a copied session came from: records 1 to n-1 of `session`; `time`: when it was made, empty where that is
    not known.
    """

    session: str
    n: int
    time: str = ""


class Info(Struct, frozen=True, omit_defaults=True, rename={"from_": "from"}):
    """What the API says about a session. `prompt`: tokens of the last step's prompt.

    `cost`: about how many US dollars its steps cost, left out where the price of one is not known.
    """

    id: str
    status: Status
    config: Config
    created: str
    updated: str
    n: int
    prompt: int = 0
    usage: Usage = Usage()
    title: str = ""
    from_: Origin | None = None
    damage: str = ""
    cost: float | None = None


class Repair(Struct, frozen=True, omit_defaults=True):
    """Something that is sent otherwise than it stands in the records: `what`, and the record, 0 where it is none's.

    `last`: of several records in a row, the last one.
    """

    what: str
    n: int = 0
    last: int = 0


class Check(Struct, frozen=True, omit_defaults=True):
    """Answer to GET /sessions/{id}/check: what the next request would hold, by the records up to `n`.

    `accepted`: it could be sent and its wire's rules say nothing against it. `why`: what keeps the session from
    sending any; `problems`: what the rules say. `notes`: what is to be known of the session besides.

    `turns`: of both sides, the system text apart; `tokens`: about how many, of `context` (0: not known); `bytes`: of
    its body, with `images` and cache `marks`; `request`: the body's SHA-256, which the step's record will have.
    """

    id: str
    status: Status
    model: str
    accepted: bool
    n: int
    why: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    turns: int = 0
    tokens: int = 0
    context: int = 0
    bytes: int = 0
    images: int = 0
    marks: int = 0
    request: str = ""


class Membership(Struct, frozen=True, omit_defaults=True):
    """A worker's place in the mesh. `address`: inside of it; `endpoint`: where its packets come from, by which `path`.

    `handshake`: the last one, empty for none since the mesh is up; `rx` and `tx`: bytes from and to it since then.
    `quiet`: since when it has not been heard of, empty while it is. `token`: the id of the one that it joined with.
    """

    address: str
    joined: str
    token: int
    ephemeral: bool = False
    path: Literal["", "direct", "relay"] = ""
    endpoint: str = ""
    handshake: str = ""
    rx: int = 0
    tx: int = 0
    quiet: str = ""


class WorkerInfo(Struct, frozen=True, omit_defaults=True):
    """A worker as GET /workers shows it. `cordoned`: it takes nothing new, by its operator's word.

    `mesh`: of one that joined; what it said of its machine then stands here until it dials.
    """

    name: str
    state: Literal["connected", "refused", "gone"]
    reason: str = ""
    release: str = ""
    os: str = ""
    arch: str = ""
    hostname: str = ""
    interpreters: tuple[str, ...] = ()
    scratch: str = ""
    home: str = ""
    cpus: int = 0
    memory: int = 0
    seen: str = ""
    running: int = 0
    cordoned: bool = False
    mesh: Membership | None = None


class NewToken(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /tokens. `uses`: machines that it lets join; `expires`: seconds from now.

    `ephemeral`: whether they leave by themselves when they are not heard of any more.
    """

    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    uses: Annotated[int, Meta(ge=1, le=MAX_USES)] = 1
    expires: Annotated[float, Meta(gt=0, le=MAX_LIFETIME)] = 24 * 3600.0
    ephemeral: bool = False


class TokenInfo(Struct, frozen=True):
    """A join token as it is listed, without the token itself. `uses`: machines that it still lets join.

    `state`: whether it lets any; `joined`: workers that came by it and are there.
    """

    id: int
    name: str
    state: Literal["good", "used", "expired", "revoked"]
    uses: int
    created: str
    expires: str
    ephemeral: bool
    joined: tuple[str, ...] = ()


class TokenMade(Struct, frozen=True):
    """Answer to POST /tokens. `token` is shown here alone, and `line`, by which a shell makes its machine a worker."""

    id: int
    name: str
    uses: int
    created: str
    expires: str
    ephemeral: bool
    token: str
    line: str


class RelayCounts(Struct, frozen=True):
    """What went through the relay since it is open. `up`: to the harness."""

    connections: int
    opened: int
    refused: int
    hostile: int
    up_packets: int
    up_bytes: int
    down_packets: int
    down_bytes: int
    dropped: int


class MeshInfo(Struct, frozen=True, omit_defaults=True):
    """Answer to GET /mesh. `name`: this harness's. `state`: idle until the first token; failing: `why`, and it is tried
    again; off by configuration; up, with `why` machines that join cannot install Outrider from here, where they cannot.

    `how`: which WireGuard, in a sentence; of an idle one, which it would be, or `why` it can be none. `port` is
    WireGuard's, UDP; `control` the one inside of the mesh, TCP; both 0 while it is not up. `join`: where machines join;
    `endpoints`: where they are told that WireGuard is.
    """

    state: Literal["off", "idle", "starting", "failing", "up"]
    name: str
    why: str = ""
    how: str = ""
    address: str = ""
    port: int = 0
    control: int = 0
    join: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    workers: int = 0
    relay: RelayCounts | None = None


class Rates(Struct, frozen=True):
    """US dollars for a million tokens: of the prompt what is new, of the answer, of the prompt what a cache had and
    what it took in.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float


class Price(Rates, frozen=True, omit_defaults=True):
    """A model's price; `above` holds for each request whose prompt has more than `over` tokens."""

    over: int = 0
    above: Rates | None = None


class ModelInfo(Struct, frozen=True, omit_defaults=True):
    """A model by the name that sessions have it under, `provider/model`; limits in tokens, 0 where not known.

    `price`: left out where not known.
    """

    name: str
    context: int = 0
    output: int = 0
    input: tuple[str, ...] = ()
    price: Price | None = None


Asked = Literal["key", "url", "region"]  # fields of PUT /providers/{name} that somebody is asked for


class ProviderInfo(Struct, frozen=True):
    """A provider: where it is asked (empty: the vendor's own address) and whether it has a key, never the key.

    `served` is False for one of a kind that this release cannot speak with. `key_from`: where the key is when no file
    of the daemon's has it, `env:VARIABLE` or `keyring:NAME`; `problem`: why it cannot be had there. `asking`: its
    server is being asked which models it has, and `models` are those known before; `unlisted`: why it gave no list when
    it was last asked. `region`: empty where none is known. `asks`: what sets one of its kind up.
    """

    name: str
    kind: str
    url: str
    has_key: bool
    served: bool
    models: tuple[ModelInfo, ...]
    key_from: str = ""
    problem: str = ""
    asking: bool = False
    unlisted: str = ""
    region: str = ""
    asks: tuple[Asked, ...] = ("key",)


class Offer(Struct, frozen=True):
    """A provider that is not set up and could be, by this name, with one of what it `asks` for, or with more."""

    name: str
    asks: tuple[Asked, ...]


class Providers(Struct, frozen=True):
    """Answer to GET /providers. `default`: the model of a session for which none is named. `offered`: whom else there
    could be.
    """

    default: str
    providers: tuple[ProviderInfo, ...]
    offered: tuple[Offer, ...] = ()


class ProviderSetting(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of PUT /providers/{name}: what is left out stays as it is, an empty text takes the field out.

    `key_from`: `env:VARIABLE` or `keyring:NAME`, in place of a key; with a key too, it is kept in the keyring there.
    """

    kind: str | msgspec.UnsetType = msgspec.UNSET
    url: str | msgspec.UnsetType = msgspec.UNSET
    key: str | msgspec.UnsetType = msgspec.UNSET
    region: str | msgspec.UnsetType = msgspec.UNSET
    key_from: str | msgspec.UnsetType = msgspec.UNSET


class ProviderTest(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /providers/{name}/test. `model`: without the provider's name; empty is its first."""

    model: Annotated[str, Meta(max_length=MAX_MODEL)] = ""


class Tested(Struct, frozen=True, omit_defaults=True):
    """Answer to POST /providers/{name}/test: whether `model` (`provider/model`) gave a whole answer, within how many
    `seconds`.

    Of one that did: `served_by`, what says to have answered, what it `said`, the seconds to the `first` piece, tokens
    and `stop`. Of one that did not: `code`, a short word, the provider's own `message` and the `fix`.
    """

    ok: bool
    model: str
    seconds: float
    served_by: str = ""
    said: str = ""
    first: float | None = None
    usage: Usage = Usage()
    stop: str = ""
    code: str = ""
    message: str = ""
    fix: str = ""


class Scan(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /scan. `ports`: to look at; none are the usual ones."""

    ports: Annotated[tuple[Annotated[int, Meta(ge=1, le=65535)], ...], Meta(max_length=MAX_PORTS)] = ()


class Found(Struct, frozen=True, omit_defaults=True):
    """A server that POST /scan found: where, what it is, a free name for it as a provider, the names of its models.

    `note`: what is to be known of it; `configured`: the provider that has this address already.
    """

    url: str
    server: str
    name: str
    models: tuple[str, ...] = ()
    note: str = ""
    configured: str = ""


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /keys."""

    name: Annotated[str, Meta(pattern=NAME)]
    role: Role


class KeyInfo(Struct, frozen=True):
    """An API key as it is listed: without the key itself."""

    name: str
    role: Role
    created: str


class KeyMade(Struct, frozen=True):
    """Answer to POST /keys. `key` is shown here and never again."""

    name: str
    role: Role
    created: str
    key: str


class Health(Struct, frozen=True):
    """Answer to GET /healthz and GET /readyz: alive, or ready."""

    status: Literal["alive", "ready"]


class Version(Struct, frozen=True):
    """Answer to GET /: the daemon's release and the API's version."""

    version: str
    protocol: int


class ApiErrorBody(Struct, frozen=True):
    """The inside of every error answer."""

    code: int
    message: str


class ApiError(Struct, frozen=True):
    """Every answer of status 400 and up: `{"error": {"code": 409, "message": "…"}}`."""

    error: ApiErrorBody


class Delta(Struct, frozen=True, omit_defaults=True):
    """`event: delta`: a piece that streams in.

    `step` is the try that it is of and `block` counts its blocks from 0, as in the header of the record that takes
    the block's place; `call` names a run whose live output this is. `kind` is text, thinking, call (arguments; `name`
    is the tool) or output. `at`: where the piece begins, in characters from the beginning of its block or output.
    """

    kind: Literal["text", "thinking", "call", "output"]
    text: str
    block: int = 0
    call: str = ""
    name: str = ""
    step: str = ""
    at: int = 0


class RetryEvent(Struct, frozen=True):
    """`event: retry`: why a request is tried again, and in how many seconds."""

    why: str
    wait: float
    attempt: int


class Restart(Struct, frozen=True):
    """`event: restart`: what has streamed since the last step record is void, the step is asked for again."""


class State(Struct, frozen=True):
    """`event: state`, the first of GET /events: the sessions updated last, newest first, and every worker."""

    sessions: tuple[Info, ...]
    workers: tuple[WorkerInfo, ...]


class Workers(Struct, frozen=True):
    """`event: workers`: every worker as it is now; one came or went."""

    workers: tuple[WorkerInfo, ...]


def encode(value: Any) -> bytes:
    """`value` as JSON."""
    return msgspec.json.encode(value)

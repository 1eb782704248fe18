import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from daemon.chain import GO_ON, Call, Context, Media, Raw, Turn, fold
from daemon.protocol.records import draft
from daemon.provider import converse_models
from daemon.provider.aws import Signer
from daemon.provider.base import Model, Request, Tool, Wire
from daemon.provider.base import Query as Asked
from daemon.provider.bedrock import KEPT, MAX_BYTES, MAX_IMAGES, Bedrock, endpoint
from daemon.provider.budget import LEFT_OUT
from daemon.provider.converse import BLOCK, REASONING, Decoder
from daemon.provider.converse_messages import BRIDGE, NOTHING
from daemon.provider.converse_models import Manners, Quirks, find, manners, plain
from daemon.provider.fitting import MAX_SIDE
from daemon.provider.images import Image, inspect
from daemon.provider.repair import INVALID
from tests.daemon.book import Book
from tests.daemon.provider import aws_oracle
from tests.daemon.provider.contexts import TOOL, assistant, context, picture, result, user
from tests.daemon.provider.recorded import blocks, decode
from tests.daemon.provider.test_converse import Recording

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "us.amazon.nova-2-lite-v1:0"
LLAMA = "us.meta.llama4-maverick-17b-instruct-v1:0"
URL = "http://127.0.0.1:1"
MARK = {"cachePoint": {"type": "default"}}
SIGNED = b'{"text":"  Hm, \xc3\xbc ","signature":"c2ln+/=="}'


def call(id: str, arguments: str = "{}", name: str = "run", extra: bytes = b"") -> Call:
    return Call(id, name, arguments, extra, "bedrock")


def raw(body: bytes, provider: str = "bedrock", model: str = CLAUDE, type: str = REASONING) -> Raw:
    return Raw(provider, model, type, body, "")


def compile_(
    found: Context,
    *,
    model: Model | str = CLAUDE,
    provider: Bedrock | None = None,
    tools: Sequence[Tool] = (TOOL,),
    params: Mapping[str, Any] | None = None,
    wire: Wire | None = None,
) -> Request:
    """A request, which has passed the wire's rules and botocore."""
    provider = provider or Bedrock(url=URL, key="secret")
    known = find(model) if isinstance(model, str) else model
    request = provider.compile(Asked(known, found, tools, params or {}, "session"), wire or Wire())
    assert provider.problems(request) == []
    assert aws_oracle.refused(request) == ""
    return request


def body(found: Context, **options: Any) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(compile_(found, **options).body)
    return read


def messages(*turns: Turn, **options: Any) -> list[list[dict[str, Any]]]:
    """The content of each message of a request of these turns, without cache marks."""
    return [
        [block for block in message["content"] if block != MARK]
        for message in body(context(*turns), **options)["messages"]
    ]


def kinds(content: list[dict[str, Any]]) -> list[str]:
    return [next(iter(block)) for block in content]


# Follow-up requests that were recorded.


@pytest.mark.parametrize("name", ["converse-text-tool", "nova-tool-no-args"])
def test_a_recorded_follow_up_is_built_from_the_records_of_the_answer(streams_dir: Path, name: str) -> None:
    recording = Recording(streams_dir, name)
    expected = recording.said["followup_request"]["messages"]
    book = Book()
    book.message(expected[0]["content"][0]["text"])
    upto = book.n
    for block in blocks(decode([recording.answer], Decoder)):
        book.keep(draft(block.kind, block.body, block.type, id=block.id, step="s1", provider="bedrock"))
    book.step("s1", upto, provider="bedrock", model=NOVA)
    for block in expected[2]["content"]:
        found = block["toolResult"]
        found.pop("status", None)  # success is the default
        book.result(found["toolUseId"], found["content"][0]["text"])
    built = messages_of(fold(book.records).context())
    built[2][0]["toolResult"]["content"][0]["text"] = re.sub(
        r"\n\[[^\n]*\]$", "", built[2][0]["toolResult"]["content"][0]["text"]
    )
    assert built == [message["content"] for message in expected]


def messages_of(found: Context) -> list[list[dict[str, Any]]]:
    return [
        [block for block in one["content"] if block != MARK] for one in body(found, model=NOVA)["messages"]
    ]


# The head.


def test_the_request_goes_to_the_models_own_address_with_the_key() -> None:
    request = compile_(context(user("hi")))
    assert request.url == f"{URL}/model/{CLAUDE}/converse-stream"
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["accept"] == "application/vnd.amazon.eventstream"
    arn = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc"
    assert f"/model/{quote(arn, safe=':')}/" in compile_(context(user("hi")), model=arn).url
    other = Bedrock(url=f"{URL}/", headers={"X-More": "1"})
    bare = compile_(context(user("hi")), provider=other)
    assert ("authorization" in bare.headers, bare.headers["x-more"]) == (False, "1")
    assert endpoint("eu-west-1") == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert endpoint("cn-north-1").endswith(".amazonaws.com.cn")


def test_the_head_has_system_tools_and_the_models_limit() -> None:
    found = body(context(user("hi"), system=" You\ud83d are. "))
    assert found["system"] == [{"text": "You\ufffd are."}, MARK]
    spec = {"name": "run", "description": "Run code.", "inputSchema": {"json": TOOL.schema}}
    assert found["toolConfig"] == {"tools": [{"toolSpec": spec}]}
    assert found["inferenceConfig"] == {"maxTokens": 64_000}
    bare = body(context(user("hi"), system=" \n"), tools=(), model="nobody.knows-v1:0")
    assert bare.keys() == {"messages"}
    silent = body(context(user("hi")), tools=[Tool("run", " ", {"type": "object"})])
    assert "description" not in silent["toolConfig"]["tools"][0]["toolSpec"]


def test_params_are_merged_in_and_may_not_touch_what_the_harness_sets() -> None:
    params = {
        "inferenceConfig": {"temperature": 0.5, "maxTokens": 9},
        "additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 8}},
        "guardrailConfig": {"guardrailIdentifier": "g\ud83d", "guardrailVersion": "1"},
    }
    found = body(context(user("hi")), params=params)
    assert found["inferenceConfig"] == {"temperature": 0.5, "maxTokens": 9}
    assert found["additionalModelRequestFields"] == params["additionalModelRequestFields"]
    assert found["guardrailConfig"]["guardrailIdentifier"] == "g\ufffd"
    gone = body(context(user("hi")), params={"inferenceConfig": {"maxTokens": None}})
    assert gone["inferenceConfig"] == {}
    provider = Bedrock(url=URL)
    assert provider.check_params(params) == ""
    for field in ("modelId", "messages", "system", "toolConfig"):
        assert f"params.{field}" in provider.check_params({field: 1})


def test_tools_that_only_the_past_knows_are_named_where_none_is_offered() -> None:
    turns = [user("x"), assistant(call("a", name="b.c"), call("d")), user(result("a"), result("d"))]
    tools = body(context(*turns), tools=())["toolConfig"]["tools"]
    assert [tool["toolSpec"]["name"] for tool in tools] == ["b_c", "run"]


# Turns.


def test_results_come_first_and_say_what_failed() -> None:
    failed = result("a", Media("image/png", picture()), "seen", failed=True)
    turns = [
        user("do"),
        assistant("both", call("a"), call("b")),
        user(result("b", "two"), "also do Y", failed),
    ]
    content = messages(*turns)[2]
    assert kinds(content) == ["toolResult", "toolResult", "text"]
    assert content[0]["toolResult"] == {"toolUseId": "b", "content": [{"text": "two"}]}
    assert content[1]["toolResult"]["status"] == "error"
    assert kinds(content[1]["toolResult"]["content"]) == ["image", "text"]


def test_calls_go_last_in_an_answer() -> None:
    found = messages(user("x"), assistant(call("a"), "words", call("b")), user(result("a"), result("b")))
    assert kinds(found[1]) == ["text", "toolUse", "toolUse"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", {INVALID: "[1]"}),
        ('{"a', {INVALID: '{"a'}),
        ('{"a":"\\ud83d"}', {"a": "\ufffd"}),
    ],
)
def test_arguments_are_sent_as_an_object(given: str, sent: object) -> None:
    found = messages(user("x"), assistant(call("a", given)), user(result("a")))
    assert found[1][0]["toolUse"]["input"] == sent


def test_ids_and_names_of_another_provider_are_made_legal_on_both_sides() -> None:
    foreign = Call("functions.add:0", "functions.run", "{}", b'{"sig": 1}', "google")
    found = messages(user("x"), assistant(foreign), user(result("functions.add:0")))
    use = found[1][0]["toolUse"]
    assert use["toolUseId"] == found[2][0]["toolResult"]["toolUseId"]
    assert (use["name"], "sig" in use) == ("functions_run", False)


def test_blank_text_and_empty_results_are_never_sent() -> None:
    found = messages(user("x", " \n"), assistant("a", "\t", call("c")), user(result("c", " "), ""))
    assert found[0] == [{"text": "x"}]
    assert kinds(found[1]) == ["text", "toolUse"]
    assert found[2] == [{"toolResult": {"toolUseId": "c", "content": [{"text": NOTHING}]}}]


def test_a_turn_with_nothing_left_says_so() -> None:
    foreign = raw(b"{}", provider="google", type="application/x-other+json")
    assert messages(user(" "), assistant(foreign), user("go on"))[:2] == [[{"text": NOTHING}]] * 2


def test_half_characters_are_replaced_everywhere() -> None:
    found = messages(
        user("a\ud83d"),
        assistant("b\ude00", call("c\ud83d", name="d\ud83d")),
        user(result("c\ud83d", "e\ud83d")),
    )
    assert found[0][0]["text"] == "a\ufffd"
    assert found[1][0]["text"] == "b\ufffd"
    assert found[2][0]["toolResult"]["content"][0]["text"] == "e\ufffd"


def test_a_context_without_turns_and_one_that_was_answered_ask_to_go_on() -> None:
    assert messages() == [[{"text": GO_ON}]]
    assert messages(user("x"), assistant("y"))[2] == [{"text": GO_ON}]


# Models that want words apart.


def test_words_stand_apart_from_calls_and_results_where_a_model_wants_it() -> None:
    turns = [user("do"), assistant("I do.", call("a")), user(result("a", "no", failed=True), "and Y")]
    found = messages(*turns, model=LLAMA)
    assert found[1:4] == [
        [{"text": "I do."}],
        [{"text": GO_ON}],
        [{"toolUse": {"toolUseId": "a", "name": "run", "input": {}}}],
    ]
    assert found[4] == [{"toolResult": {"toolUseId": "a", "content": [{"text": "Error:"}, {"text": "no"}]}}]
    assert found[5:] == [[{"text": BRIDGE}], [{"text": "and Y"}]]


def test_what_a_model_takes_is_known_by_its_name_and_a_configuration_goes_over_it() -> None:
    assert manners(CLAUDE, Quirks()) == Manners(cache=True, apart=False)
    assert manners(NOVA, Quirks()) == Manners(cache=True, apart=False)
    assert manners("anthropic.claude-3-haiku-20240307-v1:0", Quirks()) == Manners(cache=False, apart=False)
    assert manners("us.anthropic.claude-3-7-sonnet-20250219-v1:0", Quirks()).cache
    assert manners(LLAMA, Quirks()) == Manners(cache=False, apart=True)
    assert manners("arn:aws:bedrock:x:1:inference-profile/" + CLAUDE, Quirks()).cache
    arn = "arn:aws:bedrock:x:1:application-inference-profile/abc"
    assert manners(arn, Quirks()) == Manners(cache=False, apart=True)
    assert manners(arn, Quirks(cache=True, apart=False)) == Manners(cache=True, apart=False)
    assert not manners(CLAUDE, Quirks(cache=False)).cache


def test_a_model_without_marks_gets_none() -> None:
    request = compile_(context(user("x"), assistant("y"), user("z")), model=LLAMA)
    assert (request.marks, b"cachePoint" in request.body) == ((), False)


# Thinking.


def test_reasoning_goes_back_byte_for_byte() -> None:
    bodies = [SIGNED, b'{"text":"","signature":"omitted"}']
    hidden = raw(b'{"redactedContent":"QUI="}')
    request = compile_(context(user("x"), assistant(*map(raw, bodies), hidden, "said"), user("y")))
    joined = b",".join(b'{"reasoningContent":{"reasoningText":%b}}' % one for one in bodies)
    assert joined + b',{"reasoningContent":{"redactedContent":"QUI="}},{"text":"said"}' in request.body


def test_reasoning_goes_back_to_the_provider_and_the_model_that_signed_it_alone() -> None:
    others = [
        raw(SIGNED, model=NOVA),
        raw(SIGNED, provider="anthropic"),
        raw(SIGNED, type=BLOCK),
        raw(b'{"text":"unsigned"}'),
        raw(b'{"text":"x","signature":""}'),
        raw(b'{"redactedContent":""}'),
        raw(b"{half"),
        raw(b'{"text":1}'),
        raw(b"[" * 100_000),
    ]
    found = messages(user("x"), assistant(*others, "said", call("a")), user(result("a")))
    assert kinds(found[1]) == ["text", "toolUse"]


def test_reasoning_is_never_the_last_block_of_a_message() -> None:
    assert kinds(messages(user("x"), assistant("y", raw(SIGNED)), user("z"))[1]) == [
        "text",
        "reasoningContent",
        "text",
    ]
    alone = messages(user("x"), assistant(raw(SIGNED)), user("z"))[1]
    assert alone[1] == {"text": NOTHING}


def test_reasoning_stays_before_the_calls_where_words_stand_apart() -> None:
    apart = Bedrock(url=URL, quirks=Quirks(apart=True))
    turns = [user("x"), assistant("y", raw(SIGNED), call("a")), user(result("a"))]
    found = messages(*turns, provider=apart)
    assert [kinds(content) for content in found[1:4]] == [["text"], ["text"], ["reasoningContent", "toolUse"]]
    found = messages(user("x"), assistant("y", raw(SIGNED)), user("z"), provider=apart)
    assert kinds(found[1]) == ["reasoningContent", "text"]


def test_blocks_that_we_do_not_know_stay_here_and_a_cited_text_goes_as_its_words() -> None:
    cited = Raw("bedrock", CLAUDE, BLOCK, b'{"text":"so","citations":[{}]}', "so")
    unknown = raw(b'{"image":{}}', type=BLOCK)
    assert messages(user("x"), assistant(unknown, cited), user("y"))[1] == [{"text": "so"}]


# Images.


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP"])
def test_an_images_format_is_the_one_its_bytes_show(format: str) -> None:
    data = picture(format)
    ((block,),) = messages(user(Media("image/jpg", data)))
    assert block["image"]["format"] == format.lower()
    assert base64.b64decode(block["image"]["source"]["bytes"]) == data


def test_an_image_that_cannot_be_sent_is_replaced_by_a_note() -> None:
    small, cut = picture(), picture(size=(50, 50))[:40]
    for data, model, why in ((cut, CLAUDE, "cut off"), (small, "openai.gpt-oss-120b-1:0", "takes no images")):
        ((block,),) = messages(user(Media("image/png", data)), model=model)
        assert why in block["text"]


def test_an_image_that_is_too_large_is_sent_smaller() -> None:
    ((block,),) = messages(user(Media("image/png", picture(size=(MAX_SIDE + 1, 4)))))
    sent = base64.b64decode(block["image"]["source"]["bytes"])
    assert inspect(sent) == Image("image/png", MAX_SIDE, 4)


def test_the_oldest_of_too_many_images_give_way_to_a_note_and_many_at_once() -> None:
    wire, image = Wire(), Media("image/png", picture())
    turns = [user("go", *[image] * MAX_IMAGES)]
    assert compile_(context(*turns), wire=wire).body.count(b'{"image"') == MAX_IMAGES
    turns += assistant(call("a")), user(result("a", image))
    sent = compile_(context(*turns), wire=wire).body
    assert (sent.count(b'{"image"'), sent.count(LEFT_OUT.encode())) == (KEPT, MAX_IMAGES + 1 - KEPT)


def test_a_request_that_is_too_large_gives_up_images() -> None:
    image = Media("image/png", picture() + bytes(MAX_BYTES // 10))
    sent = compile_(context(user(*[image] * 16))).body
    assert sent.count(b'{"image"') == 4
    assert len(sent) < MAX_BYTES + 4096 < 20_000_000


# Cache marks and the kept wire.


def test_marks_stand_on_the_system_text_and_the_last_two_user_turns() -> None:
    turns = [user("a"), assistant("b"), user("c"), assistant("d"), user("e", Media("image/png", picture()))]
    for model in (CLAUDE, NOVA):
        request = compile_(context(*turns), model=model)
        found = msgspec.json.decode(request.body)
        assert request.marks == (2, 4)
        assert found["system"][-1] == MARK
        marked = [index for index, message in enumerate(found["messages"]) if MARK in message["content"]]
        assert marked == [2, 4]
        assert all(found["messages"][index]["content"][-1] == MARK for index in marked)


def session(steps: int) -> Iterator[Book]:
    """A session before each of its steps, each with results that say how full the context is."""
    book = Book()
    book.message("go")
    for step in range(steps):
        yield book
        book.answer(f"s{step}", f"a{step}", f"b{step}", provider="bedrock", model=CLAUDE)
        book.result(f"b{step}", exit=0, seconds=0.5)
        if step % 3 == 1:
            book.message("and this")
        book.result(f"a{step}")


@pytest.mark.parametrize("model", [CLAUDE, LLAMA])
def test_the_bytes_before_a_mark_never_change_between_steps(model: str) -> None:
    wire, before = Wire(), b""
    for book in session(8):
        found = fold(book.records, "id").context()
        request = compile_(found, wire=wire, model=model)
        assert compile_(found, model=model).body == request.body, "the same without the kept form"
        now = request.body.replace(b',{"cachePoint":{"type":"default"}}', b"")
        assert now.startswith(before)
        before = now.removesuffix(b"]}")


class Watched(list[Turn]):
    """Turns that know which of them were looked at."""

    def __init__(self, turns: list[Turn]) -> None:
        super().__init__(turns)
        self.seen: set[int] = set()

    def __getitem__(self, index: Any) -> Any:
        self.seen.add(index)
        return super().__getitem__(index)


def test_a_step_looks_at_new_turns_only() -> None:
    wire = Wire()
    turns = [turn for _ in range(50) for turn in (user("x"), assistant("y"))]
    compile_(Context("s", turns, user("z"), 1, 0), wire=wire)
    watched = Watched([*turns, user("z"), assistant("w")])
    compile_(Context("s", watched, user("v"), 2, 0), wire=wire)
    assert min(watched.seen) >= len(turns) - 1


def test_a_summary_or_another_model_begins_the_kept_form_anew() -> None:
    wire = Wire()
    old = context(user("old"), assistant("a", call("c")), user(result("c"), "z"))
    new = context(user("new"), assistant("a", call("c")), user(result("c"), "z"), epoch=1)
    for found, model in ((old, CLAUDE), (new, CLAUDE), (new, LLAMA), (old, CLAUDE)):
        assert compile_(found, wire=wire, model=model).body == compile_(found, model=model).body


# Names.


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (CLAUDE, "anthropic.claude-sonnet-4-5-20250929"),
        ("global.anthropic.claude-opus-4-6-v1", "anthropic.claude-opus-4-6"),
        ("us-gov.anthropic.claude-sonnet-4-6", "anthropic.claude-sonnet-4-6"),
        ("apac.amazon.nova-micro-v1:0", "amazon.nova-micro"),
        ("amazon.nova-lite-v1:0:300k", "amazon.nova-lite"),
        ("openai.gpt-oss-120b-1:0", "openai.gpt-oss-120b-1"),
        (
            "arn:aws:bedrock:eu-west-1:1:inference-profile/eu." + CLAUDE[3:],
            "anthropic.claude-sonnet-4-5-20250929",
        ),
        ("anything", "anything"),
    ],
)
def test_a_models_name_is_known_without_geography_version_and_arn(name: str, short: str) -> None:
    assert plain(name) == short


def test_limits_of_a_model_are_those_of_its_vendors_name() -> None:
    sonnet = find(CLAUDE)
    assert (sonnet.name, sonnet.context, sonnet.output) == (CLAUDE, 200_000, 64_000)
    assert "image/png" in sonnet.input
    assert find("eu.anthropic.claude-opus-4-6-v1").context == 1_000_000
    old = find("anthropic.claude-3-7-sonnet-20250219-v1:0")
    assert (old.context, old.output, "image/png" in old.input) == (200_000, 0, True)
    assert find(NOVA).context == 1_000_000
    assert find("amazon.nova-lite-v1:0").context == 300_000
    assert find("nobody.knows") == Model("nobody.knows", input=("text/plain",))
    assert find(CLAUDE, [Model(CLAUDE, 7)]) == Model(CLAUDE, 7)


def test_the_models_offered_are_all_known_and_go_after_those_configured() -> None:
    assert all(model.context for model in converse_models.served())
    first = converse_models.SERVED[1]
    provider = Bedrock(url=URL, known=[Model(first, 7)])
    names = [model.name for model in provider.models()]
    assert names == [first, *(name for name in converse_models.SERVED if name != first)]
    assert provider.find(first).context == 7


# The provider's small parts.


async def test_without_a_region_the_request_says_what_to_set() -> None:
    request = Request("/model/x/converse-stream", {}, b"{}")
    for provider in (Bedrock(key="k"), Bedrock(url=URL, signer=Signer(""))):
        with pytest.raises(Exception, match="set AWS_REGION, or region in its table"):
            await provider.sign(request)
    assert await Bedrock(url=URL, key="k", signer=Signer("")).sign(request) is request


@pytest.mark.parametrize(
    ("status", "kind", "message", "code", "retryable"),
    [
        (429, "ThrottlingException", "Too many tokens, please wait before trying again.", "rate_limit", True),
        (424, "ModelErrorException", "The model failed.", "server", True),
        (408, "ModelTimeoutException", "It took too long.", "timeout", True),
        (503, "ServiceUnavailableException", "Try later.", "overloaded", True),
        (500, "InternalServerException", "Oh.", "server", True),
        (403, "AccessDeniedException", "You don't have access to the model.", "permission", False),
        (
            403,
            "ExpiredTokenException",
            "The security token included in the request is expired",
            "auth",
            False,
        ),
        (403, "UnrecognizedClientException", "The security token is invalid.", "auth", False),
        (404, "ResourceNotFoundException", "No such model.", "not_found", False),
        (400, "ValidationException", "Input is too long for requested model.", "context_overflow", False),
        (
            400,
            "ValidationException",
            "The toolConfig field must be defined when using toolUse and toolResult content blocks.",
            "bad_history",
            False,
        ),
        (
            400,
            "ValidationException",
            "The text field in the ContentBlock object at messages.0.content.0 is blank.",
            "bad_history",
            False,
        ),
        (400, "ValidationException", "The provided model identifier is invalid.", "invalid", False),
    ],
)
def test_errors_are_classed_by_awss_names_and_words(
    status: int, kind: str, message: str, code: str, retryable: bool
) -> None:
    headers = {"x-amzn-errortype": f"{kind}:http://internal.amazon.com/", "x-amzn-requestid": "r-1"}
    error = Bedrock(url=URL).error(status, headers, msgspec.json.encode({"message": message}))
    assert (error.code, error.retryable, error.status) == (code, retryable, status)
    assert message in error.message
    assert "r-1" in error.message


def test_a_refused_signature_is_a_matter_of_the_credentials_and_not_of_a_key() -> None:
    headers = {"x-amzn-errortype": "ExpiredTokenException"}
    said = b'{"message":"The security token included in the request is expired"}'
    assert Bedrock(url=URL, key="k", signer=Signer("r")).error(403, headers, said).code == "auth"
    assert Bedrock(url=URL, signer=Signer("r")).error(403, headers, said).code == "credentials"


def test_decoders_are_made_and_nothing_else_carries_requests() -> None:
    provider = Bedrock(url=URL)
    assert provider.decoder() is not provider.decoder()
    assert provider.transport is None

import base64
import json
from typing import Any

import pytest

from daemon.provider.gemini_contents import SKIP
from daemon.provider.rules_gemini import problems
from tests.daemon.provider.contexts import picture

PNG = base64.b64encode(picture()).decode()
IMAGE: dict[str, Any] = {"inlineData": {"mimeType": "image/png", "data": PNG}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def call(id: str = "a", name: str = "run", args: Any = None, **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"id": id, "name": name, "args": {} if args is None else args}, **fields}


def result(id: str = "a", name: str = "run", response: Any = None, **fields: Any) -> dict[str, Any]:
    response = {"output": "x"} if response is None else response
    return {"functionResponse": {"id": id, "name": name, "response": response, **fields}}


def found(*contents: Any, signed: bool = False, **fields: Any) -> list[str]:
    return problems(json.dumps({**fields, "contents": contents}).encode(), signed=signed)


SIGNED = call(thoughtSignature="c2ln")


def test_a_sound_request_has_no_problem() -> None:
    tools = [{"functionDeclarations": [{"name": "run", "parametersJsonSchema": {"type": "object"}}]}]
    system = {"parts": [{"text": "You are."}]}
    assert found(user("hi"), tools=tools, systemInstruction=system) == []
    code = {"executableCode": {"code": "1"}, "thoughtSignature": "c2ln"}
    ran = {"codeExecutionResult": {"output": "1"}}
    for signed in (True, False):
        assert (
            found(
                user("hi", IMAGE),
                model(code, ran, "x", {"text": "", "thoughtSignature": "c2ln"}),
                user("so"),
                model("on it", call(thoughtSignature=SKIP), call("b")),
                user(result(), result("b", response={"error": "no"})),
                user("also", IMAGE),
                model("done"),
                user("y"),
                signed=signed,
            )
            == []
        )
    assert found(user("x"), model(SIGNED), user(result(parts=[IMAGE])), signed=True) == []


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ((), "contents is empty"),
        ((model("x"), user("y")), "an answer to nothing"),
        ((user("x"), model("y")), "does not end with the user's"),
        ((user("x"), user("y")), "a user's content after another one"),
        ((user("x"), model("y"), model("z"), user("x")), "an answer to nothing"),
        ((user(), model("y"), user("x")), "no parts"),
        ((user("x"), {"role": "model"}, user("x")), "no parts"),
        (({"role": "tool", "parts": [{"text": "x"}]}, user("x")), "role 'tool'"),
        ((7, user("x")), "role None"),
        ((user(" "),), "blank text"),
        ((user({"text": 7}),), "blank text"),
        ((user("x"), model({"text": ""}), user("x")), "blank text"),
        ((user({}),), "nothing in it"),
        ((user({"text": "x", "inlineData": {}}),), "text, inlineData in it"),
        # "the number of function response parts is equal to the number of function call parts"
        ((user("x"), model(call()), user("y")), "where the calls are [('run', 'a')]"),
        ((user("x"), model(call(), call("b")), user(result())), "results of [('run', 'a')]"),
        ((user("x"), model(call()), user(result(), result("b"))), "results of"),
        ((user("x"), model(call()), user(result("z"))), "results of"),
        ((user("x"), model(call()), user(result(name="other"))), "results of"),
        ((user("x"), model(call(), call("b")), user(result("b"), result())), "not in the order"),
        ((user(result()),), "results of"),
        ((user("x"), model(call())), "ends in calls without results"),
        ((user("x"), model(call()), model("y"), user("z")), "results of [('run', 'a')] are missing"),
        ((user("x"), model(call()), user(result()), user(result())), "a user's content after another one"),
        # "Requests ending with a model turn are not supported."
        ((user("x"), model(call()), user(result(), "also do Y")), "something stands beside the results"),
        ((user("x"), model(call()), user(result(), IMAGE)), "something stands beside the results"),
        ((user(call()), model("x"), user("y")), "a call of the user's"),
        ((user("x"), model(result()), user("y")), "a result of the model's"),
        ((user("x"), model(call(name="9lives")), user(result(name="9lives"))), "the name '9lives'"),
        ((user("x"), model(call(name="a b")), user(result(name="a b"))), "the name 'a b'"),
        ((user("x"), model(call(args=[1])), user(result())), "its args are no object"),
        ((user("x"), model(call()), user(result(response="x"))), "its response is no object"),
        ((user("x"), model(call()), user(result(parts=[IMAGE]))), "images inside a result"),
        ((user({"text": "x", "thoughtSignature": "c2ln"}),), "a signature in what the user says"),
        ((user("x"), model({"text": "", "thoughtSignature": "ä"}), user("y")), "is no base64"),
        ((user("x"), model({"text": "y", "thoughtSignature": 7}), user("y")), "is no base64"),
        ((user({"inlineData": {"mimeType": "image/gif", "data": PNG}}),), "'image/gif' is no image"),
        ((user({"inlineData": {"mimeType": "image/jpeg", "data": PNG}}),), "it is no image/jpeg"),
        ((user({"inlineData": {"mimeType": "image/png", "data": "%"}}),), "not base64"),
        ((user({"executableCode": {"code": "1"}}),), "executableCode in what the user says"),
    ],
)  # fmt: skip
def test_what_the_vendor_refuses_is_a_problem(contents: tuple[Any, ...], problem: str) -> None:
    assert any(problem in one for one in found(*contents)), found(*contents)


def test_the_first_call_of_an_answer_has_to_be_signed_where_the_model_wants_that() -> None:
    """ "Function call is missing a thought_signature in functionCall parts."."""
    bare = user("x"), model("y", call(), call("b")), user(result(), result("b"))
    assert found(*bare) == []
    (problem,) = found(*bare, signed=True)
    assert "contents.1.parts.1: function call is missing a thought_signature" in problem
    late = model(call(), call("b", thoughtSignature="c2ln"))
    assert "missing a thought_signature" in found(user("x"), late, bare[2], signed=True)[0]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"systemInstruction": {}}, "systemInstruction: no parts"),
        ({"systemInstruction": {"parts": [{"text": " "}]}}, "blank text"),
        ({"tools": [{"functionDeclarations": [{"name": "a b"}]}]}, "'a b'"),
        ({"tools": [{"functionDeclarations": [{"name": "a"}, {"name": "a"}]}]}, "there twice"),
        ({"tools": [{"functionDeclarations": [{"name": "a", "parametersJsonSchema": []}]}]}, "no schema"),
    ],
)
def test_a_head_that_the_vendor_refuses_is_a_problem(fields: dict[str, Any], problem: str) -> None:
    assert any(problem in one for one in found(user("x"), **fields))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is not an object"),
        (b'{"contents":[NaN]}', "is not JSON"),
        (b'{"contents":[{"role":"user","parts":[{"text":"\\ud83d"}]}]}', "half a character"),
        (b'{"contents":{"role":"user"}}', "contents is empty"),
    ],
)
def test_a_body_of_another_form_is_a_problem(body: bytes, problem: str) -> None:
    assert any(problem in one for one in problems(body))

from email.utils import formatdate
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.provider import errors
from daemon.provider.base import ProviderError
from daemon.provider.errors import classify, in_stream, retry_after

NOW = 1_764_470_000.0


def said(message: str = "no", kind: str = "", **more: Any) -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message, **more}})


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "http-errors.jsonl").read_bytes().split(b"\n")
    return [msgspec.json.decode(line) for line in lines if line.strip()]


def test_every_recorded_error_is_of_its_class(streams_dir: Path) -> None:
    found = {
        row["name"]: classify(row["status"], row["headers"], row["body"].encode())
        for row in rows(streams_dir)
    }
    assert {name: error.code for name, error in found.items()} == {
        row["name"]: row["expected_class"] for row in rows(streams_dir)
    }
    retried = {name for name, error in found.items() if error.retryable}
    once = {"groq-tool-use-failed"}
    assert retried - once == {"azure-429-retry-after", "gemini-429-quota", "openrouter-429-upstream"}
    assert found["azure-429-retry-after"].retry_after == 1, "the longer of two waits"
    assert found["gemini-429-quota"].retry_after == pytest.approx(48.9, abs=0.1), "it stands in the body"
    assert found["anthropic-401"].request_id == "req_011CeCGmBjaWkq37Sf5iU7so"


def test_an_error_says_what_the_provider_said_with_status_and_request() -> None:
    error = classify(400, {"request-id": "req_1"}, said("max_tokens: too large", "invalid_request_error"))
    assert error.message == "max_tokens: too large (status 400, request req_1)"
    assert (error.code, error.status, error.request_id, error.retryable) == ("invalid", 400, "req_1", False)


@pytest.mark.parametrize(
    ("status", "body", "code", "retryable"),
    [
        (400, said("x", "invalid_request_error"), "invalid", False),
        (400, said("Your credit balance is too low to access the API."), "billing", False),
        (
            400,
            said("input length and `max_tokens` exceed context limit: 1 + 2 > 2"),
            "context_overflow",
            False,
        ),
        (400, said("This model's maximum context length is 8192 tokens."), "context_overflow", False),
        (400, said("messages.2: `tool_use_id` not found"), "bad_history", False),
        (400, said("API key not valid.", details=[{"reason": "API_KEY_INVALID"}]), "auth", False),
        (401, said("invalid x-api-key"), "auth", False),
        (402, said("pay"), "billing", False),
        (403, said("no"), "permission", False),
        (404, said("model: claude-9"), "not_found", False),
        (408, b"", "timeout", True),
        (409, b"", "busy", True),
        (413, said("Request exceeds the maximum size", "request_too_large"), "too_large", False),
        (413, said("prompt is too long"), "context_overflow", False),
        (422, said("x"), "invalid", False),
        (425, b"", "busy", True),
        (429, said("slow down", "rate_limit_error"), "rate_limit", True),
        (429, said("You exceeded your current quota", code="insufficient_quota"), "billing", False),
        (429, said("insufficient balance"), "billing", False),
        (500, said("x", "api_error"), "server", True),
        (501, b"", "server", True),
        (502, b"<html><h1>Bad Gateway</h1></html>", "server", True),
        (503, b"", "overloaded", True),
        (504, b"", "timeout", True),
        (529, said("Overloaded", "overloaded_error"), "overloaded", True),
        (599, b"", "server", True),
        (418, b"", "invalid", False),
    ],
)
def test_a_status_and_what_was_said_make_the_class(
    status: int, body: bytes, code: str, retryable: bool
) -> None:
    error = classify(status, {}, body, now=NOW)
    assert (error.code, error.retryable) == (code, retryable)
    assert f"status {status}" in error.message


def test_a_429_that_says_when_to_come_back_is_a_rate_limit_whatever_it_calls_itself() -> None:
    error = classify(429, {"retry-after": "7"}, said("quota", code="insufficient_quota"), now=NOW)
    assert (error.code, error.retryable, error.retry_after) == ("rate_limit", True, 7)


@pytest.mark.parametrize(
    ("message", "wait"),
    [
        ("Please try again in 1.5s.", 1.5),
        ("please retry in 48.939935699s.", 48.939935699),
        ("Try again in 6m0s", 360),
        ("try again in 1h2m3.5s", 3723.5),
        ("try again in 250ms", 0.25),
        ("retry after 20 seconds", 20),
        ("try again later", None),
        ("try again in a moment", None),
    ],
)
def test_a_wait_is_read_from_the_words(message: str, wait: float | None) -> None:
    assert classify(429, {}, said(message), now=NOW).retry_after == wait


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Bad Gateway"),
        (b"<html>\n <b>oops</b></html>", "Bad Gateway: <html> <b>oops</b></html>"),
        (b"\xff\xfe", "Bad Gateway: \ufffd\ufffd"),
        (b"[1]", "Bad Gateway: [1]"),
        (b"[]", "Bad Gateway: []"),
        (b"{}", "Bad Gateway: {}"),
        (b"[" * 2000, "Bad Gateway: " + "[" * errors.SHOWN),
        (b'"gone"', 'Bad Gateway: "gone"'),
        (b'{"error": "short"}', "short"),
        (b'{"error": "kind", "message": "long"}', "long"),
        (b'{"message": "flat"}', "flat"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc":["body"]}]'),
        (b'[{"error": {"message": "in a list"}}]', "in a list"),
        (b'{"error": {"code": 429}}', "429"),
        (b'{"error": {"message": "m", "metadata": {"raw": "r"}}}', "m: r"),
        (b'{"error": {"message": "m", "metadata": []}}', "m"),
    ],
)
def test_the_message_is_found_in_any_shape_of_body(body: bytes, message: str) -> None:
    assert classify(502, {}, body).message == f"{message} (status 502)"


def test_an_unknown_status_has_words_too() -> None:
    assert classify(599, {}, b"").message == "an unknown status (status 599)"


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "2"}, 2),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": formatdate(NOW + 3, usegmt=True)}, 3),
        ({"retry-after": formatdate(NOW - 3, usegmt=True)}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "abc"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": str(int(NOW) + 9)}, 9),
        ({"retry-after": str((int(NOW) + 9) * 1000)}, 9),
        ({"retry-after": str(int(NOW) - 9)}, None),
        ({"retry-after": "3600"}, 3600),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1),
        ({"retry-after-ms": "1500", "retry-after": "1"}, 1.5),
        ({"retry-after-ms": "soon"}, None),
        ({}, None),
    ],
)
def test_every_form_of_retry_after_is_read(headers: dict[str, str], wait: float | None) -> None:
    assert retry_after(headers, NOW) == wait


def test_a_date_to_retry_at_is_read_against_the_answers_own_date() -> None:
    headers = {"retry-after": formatdate(NOW + 60, usegmt=True), "date": formatdate(NOW + 50, usegmt=True)}
    assert retry_after(headers, NOW) == 10


def test_google_says_the_wait_in_the_bodys_details() -> None:
    details = [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "48s"},
        "odd",
        {"retryDelay": "9s"},
    ]
    assert classify(429, {}, said("x", details=details)).retry_after == 48


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"type": "overloaded_error", "message": "x"}, "overloaded"),
        ({"code": 502, "message": "x"}, "server"),
        ({"code": "429", "message": "x"}, "rate_limit"),
        ({"code": "insufficient_quota", "message": "x"}, "billing"),
        ({"code": "context_length_exceeded", "type": "invalid_request_error"}, "context_overflow"),
        ({"code": True, "message": "x"}, "server"),
        ({"code": 7}, "server"),
        ("words", "server"),
        (None, "server"),
    ],
)
def test_an_error_inside_a_stream_is_classed_as_the_status_it_would_have_had(error: Any, code: str) -> None:
    assert in_stream(error).code == code


def test_a_request_id_is_added_once() -> None:
    error = errors.with_request(ProviderError("broke"), "r1")
    assert (error.message, str(error)) == ("broke (request r1)", "broke (request r1)")
    assert errors.with_request(error, "r2").message == "broke (request r1)"
    assert errors.with_request(ProviderError("broke"), "").message == "broke"


def test_what_is_no_stream_is_an_error_inside_or_another_servers_page() -> None:
    inside = errors.not_a_stream("application/json", said("Overloaded", "overloaded_error"))
    assert (inside.code, inside.retryable) == ("overloaded", True)
    page = errors.not_a_stream("text/html; charset=utf-8", b"<h1>Log in</h1>")
    assert (page.code, page.retryable) == ("not_a_stream", False)
    assert "text/html came instead" in page.message
    assert "Log in" in page.message

"""Tell apart what providers answer when they refuse or break off: one class for each thing to do about it.

A class is the `code` of a ProviderError: auth, permission, billing, rate_limit, overloaded, server, timeout, busy,
context_overflow, bad_history, model_bad_call, too_large, not_found, invalid; and, from the stream, cut, malformed,
stalled, connection; and, before anything is sent, url, region, credentials, extra.
"""

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from math import isfinite
from typing import Any, Final

import msgspec
from msgspec import Struct

from daemon.provider.base import ProviderError

RETRYABLE: Final = frozenset({"rate_limit", "overloaded", "server", "timeout", "busy", "model_bad_call"})
ONCE: Final = frozenset(
    {"model_bad_call"}
)  # the model's own slip: another try may be free of it, a third is not
SHOWN: Final = 300  # characters of an answer that has no message of its own
MESSAGE: Final = 4000  # characters of an answer's own message; some servers repeat the whole request
EPOCH: Final = 1e9  # a Retry-After above this is not seconds to wait but a moment, as some proxies send
REQUEST_IDS: Final = ("request-id", "x-request-id", "x-amzn-requestid", "apim-request-id", "cf-ray")

# What a kind of error inside a stream, where there is no status, would have had as one.
STATUS_OF: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "api_error": 500,
    "server_error": 500,
    "server_is_overloaded": 503,
    "timeout_error": 504,
    "overloaded_error": 529,
}

BROKE: Final = re.compile(
    r"insufficient_quota|billing_(error|not_active|hard_limit)", re.IGNORECASE
)  # as a type or code
NO_CREDIT: Final = re.compile(
    r"credit balance is too low|insufficient (credits?|balance|funds)", re.IGNORECASE
)
OVERFLOW: Final = re.compile(
    r"context_length_exceeded|prompt is too long|context[ _](window|length|limit|size)|maximum context"
    r"|input tokens exceed|input is too long|(number of )?(input )?tokens? .{0,40}exceeds? .{0,20}maximum"
    r"|exceeds the maximum number of tokens|too many (input )?tokens( in|:)|context.{0,10}overflow"
    r"|maximum (prompt|model) length|reduce the length of the messages|`?max_new_tokens`? must be <="
    r"|token count of \d+ exceeds the limit|exceeded model token limit|range of input length should be",
    re.IGNORECASE,
)
HISTORY: Final = re.compile(
    r"tool_use\W.{0,30}ids were found|tool_result|tool_use_id|no tool output found|tool_call_ids?\b|tool calls? must be"
    r"|function call turn|function response|roles must alternate|unexpected role"
    r"|thought.?signature|ending with a model turn|multiturn requests"
    r"|reasoning_content.{0,60}(passed back|missing)|missing .{0,3}reasoning_content"
    r"|thinking.{0,20}blocks?.{0,60}(modified|signature)"
    r"|no tool call found for|provided without its required|items are not persisted|duplicate item found"
    r"|encrypted content .{0,200}(verified|match)|reasoning_text.{0,60}passed back",
    re.IGNORECASE,
)
NONE_AT_ALL: Final = re.compile(r"limit: 0\b")  # of Google's quotas, for models that a plan does not have
ASKED: Final = re.compile(
    r"(?:retry|try again) (?:in|after) ((?:\d+(?:\.\d+)?\s?(?:ms|m|h|s)[a-z]*\s?)+)", re.IGNORECASE
)
PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s?(ms|m|h|s)", re.IGNORECASE)
UNIT: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Said(Struct, frozen=True):
    """What an error body says, whoever sent it: message, type and code as words, the parsed error object."""

    message: str
    words: str
    error: Mapping[str, Any]
    request_id: str = ""


def classify(
    status: int, headers: Mapping[str, str], body: bytes, *, now: float | None = None
) -> ProviderError:
    """What an answer of `status` means. `headers` have lower-case names; `now`: Unix time, the clock's by default."""
    said = _read(status, headers, body)
    wait = _longest(retry_after(headers, time.time() if now is None else now), _asked(said))
    return _error(status, said, wait, request_id(headers) or said.request_id)


def in_stream(error: Any, *, request: str = "") -> ProviderError:
    """What an error object inside a stream means: classed as the status it would have had, retried when unknown."""
    said = _said(error if isinstance(error, dict) else {"message": str(error)})
    codes = (said.error.get("type"), said.error.get("code"), said.error.get("status"))
    status = next((s for c in codes if (s := _status_of(c))), 500)
    return _error(status, said, _asked(said), request, shown=None)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that an answer asks to wait, None when it asks for nothing that makes sense (0 and the past neither).

    `retry-after` may hold seconds, an HTTP date or, as some proxies have it, a Unix time; `retry-after-ms` may stand
    beside it. The longer of the two counts. A date is read against the answer's own `date`, so clocks may differ.
    """
    moment = _date(headers.get("date", ""))
    here = now if moment is None else moment
    return _longest(
        _seconds(headers.get("retry-after", ""), here), _positive(headers.get("retry-after-ms", ""), 0.001)
    )


def cut(what: str) -> ProviderError:
    """The answer ended before it was complete."""
    return ProviderError(f"the answer broke off: {what}", code="cut", retryable=True)


def malformed(what: str, data: bytes) -> ProviderError:
    """The stream holds something that is not of its format; the message carries the bytes."""
    return ProviderError(
        f"the answer cannot be read: {what}: {data[:SHOWN]!r}", code="malformed", retryable=True
    )


def endless(what: str) -> ProviderError:
    """The answer is longer than any; another try would cost as much again."""
    return ProviderError(f"the answer is too long: {what}", code="too_long")


def not_a_stream(kind: str, body: bytes) -> ProviderError:
    """What an answer of status 200 means that is not a stream: an error inside, or another server's page."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if isinstance(value, list) and value:
        value = value[0]  # Gemini's list
    if isinstance(value, dict) and value.get("error"):
        return in_stream(value["error"])
    what = kind.partition(";")[0] or "something without a type"
    return ProviderError(
        f"{what} came instead of a stream; check the provider's url: {_words(body)}", code="not_a_stream"
    )


def without_events(error: ProviderError, kind: str, head: bytes) -> ProviderError:
    """`error`, or a better one, of a stream that ended or broke before its first event. `head`: how it began.

    Some servers call their errors and pages a stream, or give them no type.
    """
    if head.lstrip()[:1] in (b"{", b"[", b"<"):
        return not_a_stream(kind, head)
    if error.code != "cut":
        return error
    if not head.strip():
        return cut("it was empty")
    return cut(f"the stream ended before its first event; what came: {_words(head)}")


def with_request(error: ProviderError, request: str) -> ProviderError:
    """`error` with the request's id, where it has none yet."""
    if request and not error.request_id:
        error.request_id = request
        error.message = f"{error.message} (request {request})"
        error.args = (error.message,)
    return error


def _error(
    status: int, said: Said, wait: float | None, request: str, shown: str | None = "status"
) -> ProviderError:
    code = _class(status, said, wait)
    message = said.message if len(said.message) <= MESSAGE else f"{said.message[:MESSAGE]}…"
    facts = [f"status {status}"] if shown else []
    facts += [f"request {request}"] if request else []
    note = f" ({', '.join(facts)})" if facts else ""
    return ProviderError(
        f"{message}{note}",
        code=code,
        status=status,
        retryable=code in RETRYABLE,
        retry_after=wait,
        request_id=request,
    )


def _class(status: int, said: Said, wait: float | None) -> str:
    everything = f"{said.words} {said.message}"
    if status == 401 or "api_key_invalid" in said.words:
        return "auth"
    if status == 429 and _spent(said):
        return "billing"
    if status == 429 and wait is not None:
        return "rate_limit"  # whatever it calls itself, it says when to come back
    broke = BROKE.search(said.words) or NO_CREDIT.search(said.message)
    if status == 402 or (broke and status in (400, 403, 429)):
        return "billing"
    if status == 429:
        return "rate_limit"
    if status in (400, 413, 422, 500) and OVERFLOW.search(everything):
        return "context_overflow"
    match status:
        case 400 | 422 if "tool_use_failed" in said.words:
            return "model_bad_call"
        case 400 | 422 if HISTORY.search(everything):
            return "bad_history"
        case 403:
            return "permission"
        case 404:
            return "not_found"
        case 408 | 499 | 504:  # 499: Google gave up on it
            return "timeout"
        case 409 | 425:
            return "busy"
        case 413:
            return "too_large"
        case 503 | 529:
            return "overloaded"
        case _:
            return "server" if status >= 500 else "invalid"


def _read(status: int, headers: Mapping[str, str], body: bytes) -> Said:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if isinstance(value, list) and value:
        value = value[0]  # Gemini wraps an error in a list where a stream was asked for
    if isinstance(value, dict):
        said = _said(value, headers.get("x-amzn-errortype", ""))
        if said.message:
            return said
    text = _words(body)
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "an unknown status"
    return Said(f"{phrase}: {text}" if text else phrase, "", {})


def _words(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())[:SHOWN]


def _said(body: Mapping[str, Any], kind: str = "") -> Said:
    error = body.get("error")
    if isinstance(error, str):
        error = {**body, "message": body.get("message") or error}
    elif not isinstance(error, dict):
        error = body
    message = error.get("message") or error.get("detail") or error.get("error_description") or ""
    raw = metadata.get("raw") if isinstance(metadata := error.get("metadata"), dict) else None
    if isinstance(raw, str) and raw:  # OpenRouter: what the provider behind it said
        message = f"{message}: {raw[:SHOWN]}"
    names = [kind, *(error.get(field) for field in ("type", "code", "status", "__type"))]
    details = error.get("details")
    if isinstance(details, list):
        names += [item.get("reason") for item in details if isinstance(item, dict)]
    words = " ".join(str(name) for name in names if name).lower()
    request = body.get("request_id")
    text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    return Said(text or words, words, error, request if isinstance(request, str) else "")


def _asked(said: Said) -> float | None:
    """Seconds that an error body asks to wait: Google's RetryInfo, or a sentence."""
    details = said.error.get("details")
    waits = [
        _span(str(item.get("retryDelay", "")))
        for item in (details if isinstance(details, list) else ())
        if isinstance(item, dict) and str(item.get("@type", "")).endswith("RetryInfo")
    ]
    if match := ASKED.search(said.message):
        waits.append(_span(match[1]))
    return _longest(*waits)


def _spent(said: Said) -> bool:
    """Whether Google's quota of a day is used up, or is none at all; the wait it names then is that of another one."""
    details = said.error.get("details")
    broken = [
        item.get("quotaId")
        for detail in (details if isinstance(details, list) else ())
        if isinstance(detail, dict) and isinstance(found := detail.get("violations"), list)
        for item in found
        if isinstance(item, dict)
    ]
    return any("PerDay" in str(quota) for quota in broken) or bool(
        broken and NONE_AT_ALL.search(said.message)
    )


def _span(text: str) -> float | None:
    total = sum(float(number) * UNIT[unit.lower()] for number, unit in PART.findall(text))
    return total if 0 < total < EPOCH else None


def _seconds(text: str, now: float) -> float | None:
    value = _positive(text)
    if value is None:
        moment = _date(text)
        return moment - now if moment is not None and moment > now else None
    if value < EPOCH:
        return value
    moment = value / 1000 if value > EPOCH * 1000 else value
    return moment - now if moment > now else None


def _positive(text: str, unit: float = 1.0) -> float | None:
    try:
        value = float(text.strip()) * unit
    except ValueError:
        return None
    return value if value > 0 and isfinite(value) else None


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _longest(*waits: float | None) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


def request_id(headers: Mapping[str, str]) -> str:
    """The request's id, by any of the names that vendors give it; empty when there is none."""
    return next((headers[name] for name in REQUEST_IDS if headers.get(name)), "")


def _status_of(code: Any) -> int:
    if isinstance(code, int):
        return code if 400 <= code < 600 else 0
    text = str(code)
    return int(text) if re.fullmatch("[45][0-9][0-9]", text) else STATUS_OF.get(text, 0)

"""Every failure as a status and `{"error": {"code", "message"}}`, and one log line for each."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, get_args, get_origin

import structlog
from aiohttp import web
from msgspec import StructMeta, ValidationError, structs

from daemon.harness.errors import HarnessError, Malformed, Unready, told
from daemon.plain import wanted
from daemon.protocol import api
from daemon.statefile.errors import StateFileError

RETRY_AFTER: Final = 2  # seconds; a start takes less, and a client that comes too early is told again
SERVER: Final = "outrider"  # the Server header: no library, no version
SHOWN: Final = 60  # characters of a refused value that are said back
NAMING: Final = "a name of up to 63 letters, digits, dots, - and _, a letter or digit first"
PHRASES: Final = {413: "the body is too large", 417: "this Expect header is not served"}
_AT: Final = re.compile(r"^(.*) - at `\$\.?(.*)`$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_ENUM: Final = re.compile(r"^Invalid enum value (.*)$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger("daemon.api")


class Refusal(Exception):
    """A request that the API itself refuses: its status, the sentence why, and headers that belong to it."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


def problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """The answer for a failure. Control characters and lone surrogates in `message` are replaced."""
    clean = "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in message)
    body = api.encode(api.ApiError(api.ApiErrorBody(status, clean)))
    all_headers = {"Server": SERVER} | dict(headers or {})
    return web.Response(status=status, body=body, content_type="application/json", headers=all_headers)


def shown(text: str | None) -> str:
    """A refused value, quoted and cut, for a message."""
    return repr(text if text is None or len(text) <= SHOWN else text[:SHOWN] + "…")


def explain(error: ValidationError, type: Any = None) -> str:
    """A sentence that begins with the field, out of msgspec's; `type` is what the whole body was to be."""
    text, where = str(error), ""
    if found := _AT.match(text):
        text, where = found[1], found[2].replace("[...]", "")  # some value of a table: which one is not told
    fields = {field.encode_name: field.type for field in structs.fields(type)} if _is_struct(type) else {}
    if found := _UNKNOWN.match(text):
        field = f"{where}.{found[1]}" if where else found[1]
        known_here = f"; known are {', '.join(fields)}" if fields and not where else ""
        return f"{field}: there is no such field{known_here}"
    if found := _MISSING.match(text):
        return f"{f'{where}.' if where else ''}{found[1]}: is missing"
    if (found := _ENUM.match(text)) and get_origin(fields.get(where)) is Literal:
        return f"{where}: {found[1]} is none; there are {', '.join(get_args(fields[where]))}"
    if text.endswith(f"matching regex {api.NAME!r}"):
        text = f"expected {NAMING}"
    text = wanted(text, "an object")
    text = text[:1].lower() + text[1:].replace("`", "")
    return f"{where or 'body'}: {text}"


def _is_struct(type: Any) -> bool:
    return isinstance(type, StructMeta)


async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What `handler` answers, or the answer for how it failed. The broad `except` around a request stands here."""
    try:
        return await handler(request)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        if request.writer.output_size > 0:  # too late to say anything but that it is cut
            if not isinstance(error, ConnectionError):
                log.exception("answer cut", **_about(request))
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the answer was cut") from error
        status, message, headers = _describe(request, error)
        if status == 500:
            log.exception("request failed", status=status, **_about(request))
        else:
            log.info("request refused", status=status, why=message, **_about(request))
        return problem(status, message, headers)


def _about(request: web.Request) -> dict[str, str]:
    return {"method": request.method, "path": request.path}


def _describe(request: web.Request, error: Exception) -> tuple[int, str, dict[str, str]]:
    match error:
        case Refusal():
            return error.status, str(error), error.headers
        case HarnessError():
            wait = {"Retry-After": str(RETRY_AFTER)} if isinstance(error, Unready) else {}
            return error.status, str(error), wait
        case StateFileError():
            return _describe(request, told(error))
        case web.HTTPMethodNotAllowed():
            allow = ", ".join(sorted(error.allowed_methods))
            return 405, f"{request.path} takes {allow}, not {request.method}", {"Allow": allow}
        case web.HTTPNotFound():
            return 404, f"there is nothing at {request.path}", {}
        case web.HTTPException():
            return error.status, PHRASES.get(error.status, error.reason.lower()), {}
        case web.RequestPayloadError():
            return Malformed.status, "the body did not arrive whole", {}
        case _:
            return 500, "the daemon failed at this request; its log says why", {}

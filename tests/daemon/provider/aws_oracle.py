"""What botocore makes of our requests and of the answers' bytes: the vendor's own reader, in tests alone."""

import base64
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from daemon.provider.base import Request


@cache
def operation() -> Any:
    """botocore's model of ConverseStream."""
    import botocore.session

    return (
        botocore.session.get_session().get_service_model("bedrock-runtime").operation_model("ConverseStream")
    )


def refused(request: Request) -> str:
    """Why botocore would not send such a request, or would send another body; empty where it is the same."""
    import botocore.serialize
    import botocore.validate

    body = msgspec.json.decode(request.body)
    model = unquote(urlsplit(request.url).path.removeprefix("/model/").removesuffix("/converse-stream"))
    params = {**_bytes(body), "modelId": model}
    report = botocore.validate.ParamValidator().validate(params, operation().input_shape)
    if report.has_errors():
        return str(report.generate_report())
    made = botocore.serialize.create_serializer("rest-json").serialize_to_request(params, operation())
    if msgspec.json.decode(made["body"]) != body:
        return f"another body: {made['body']!r}"
    if unquote(made["url_path"]) != unquote(urlsplit(request.url).path):
        return f"another path: {made['url_path']}"
    return ""


def _bytes(value: Any) -> Any:
    """The JSON with its base64 as bytes, as botocore's callers have them."""
    if isinstance(value, dict):
        return {
            name: base64.b64decode(item, validate=True)
            if name in ("bytes", "redactedContent") and isinstance(item, str)
            else item
            if name in ("json", "input", "additionalModelRequestFields")
            else _bytes(item)
            for name, item in value.items()
        }
    return [_bytes(item) for item in value] if isinstance(value, list) else value


def frames(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """The frames in an answer, headers and payload, as botocore reads them. Raises its ParserError."""
    from botocore.eventstream import EventStreamBuffer

    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return [(message.headers, message.payload) for message in buffer]


def events(data: bytes) -> list[dict[str, Any]]:
    """The events in an answer as botocore's clients get them. Raises its EventStreamError for an exception."""
    from botocore.eventstream import EventStream
    from botocore.parsers import EventStreamJSONParser

    class Source:
        def stream(self) -> Any:
            return iter([data])

        def close(self) -> None:
            pass

    shape = operation().output_shape.members["stream"]
    return list(EventStream(Source(), shape, EventStreamJSONParser(), "ConverseStream"))

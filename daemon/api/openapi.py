"""The API's description, OpenAPI 3.1, out of the routes that are served and the types that they read and write."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from daemon.api.parameters import Parameter
from daemon.api.routes import Content, Route
from daemon.protocol import api, events

Json = dict[str, Any]

SCHEMAS: Final = "#/components/schemas/{name}"
WHY: Final = {
    400: "Not well-formed: HTTP, the query, a header, JSON.",
    401: "No key, or one that is not valid.",
    403: "The key's role may not do this.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    409: "The state of things does not allow it.",
    410: "The session has ended: it can be read, not written.",
    413: "The body is too large.",
    415: "This media type, charset or encoding is not taken.",
    417: "This Expect header is not served.",
    422: "Well-formed, but not valid; the message begins with the field.",
    429: "Too many: refused keys of this address, turns at once, or sessions.",
    500: "A fault of the daemon; its log says more.",
    503: "Starting or draining.",
    507: "The data folder cannot be written; nothing was changed.",
}
HEADERS: Final = {
    401: ("WWW-Authenticate", "string", "How to give a key."),
    429: ("Retry-After", "integer", "Seconds to wait."),
    503: ("Retry-After", "integer", "Seconds to wait."),
}
OPTIONAL: Final = {503}  # the header may be missing: a file that cannot be read is no matter of seconds


def document(routes: Sequence[Route], version: str) -> Json:
    """The whole description."""
    types = [api.ApiError, *_types(routes)]
    schemas, components = msgspec.json.schema_components(types, ref_template=SCHEMAS)
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    statuses = sorted({status for route in routes for status in route.statuses})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Outrider",
            "version": version,
            "description": "Durable agent sessions: made, posted to, followed, stopped. Over the Unix socket no key is "
            "needed.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {f"Error{status}": _error(status, schema_of) for status in statuses},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key: `ork_…`."}
            },
        },
        "security": [{"key": []}],
    }


def _types(routes: Iterable[Route]) -> list[Any]:
    """Every type of a body, each once."""
    bodies = [content for route in routes for content in (route.body, route.answer.content) if content]
    types = [type for content in bodies for type in (content.type, *content.parts)]
    found = {repr(type): type for type in types if type is not None}
    return list(found.values())


def _operation(route: Route, schema_of: Json) -> Json:
    answer = route.answer
    said: Json = {"description": answer.what}
    if answer.content is not None:
        said["content"] = _content(answer.content, schema_of)
    if answer.headers:
        said["headers"] = {
            name: {"description": what, "required": True, "schema": {"type": "string"}}
            for name, what in answer.headers.items()
        }
    refusals = {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in route.statuses}
    role = (
        "Everybody may, without a key." if route.role is None else f"For a key of role {route.role} or more."
    )
    made: Json = {
        "operationId": _id(route),
        "summary": route.what,
        "description": role,
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "responses": {str(answer.status): said} | refusals,
    }
    if route.body is not None:
        made["requestBody"] = {"required": route.body.needed, "content": _content(route.body, schema_of)}
    if route.role is None:
        made["security"] = []
    return made


def _content(content: Content, schema_of: Json) -> Json:
    if events.MEDIA_TYPE in content.media:
        return {events.MEDIA_TYPE: {"schema": _event(content, schema_of)}}
    if content.type is None:
        schema: Json = {"type": "string", "description": content.what}
    else:
        schema = schema_of[repr(content.type)]
    return {media: {"schema": schema} for media in content.media}


def _event(content: Content, schema_of: Json) -> Json:
    """One event of a stream, each of its fields as it is sent."""
    data: Json = {"type": "string", "contentMediaType": "application/json"}
    if content.parts:
        data["contentSchema"] = schema_of[repr(content.parts[0])]
    return {
        "type": "object",
        "description": content.what,
        "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": data},
        "required": ["event", "data"],
    }


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.what,
        "schema": parameter.schema(),
    }


def _error(status: int, schema_of: Json) -> Json:
    said: Json = {
        "description": WHY.get(status, HTTPStatus(status).phrase),
        "content": {"application/json": {"schema": schema_of[repr(api.ApiError)]}},
    }
    if header := HEADERS.get(status):
        name, type, what = header
        required = status not in OPTIONAL
        said["headers"] = {name: {"description": what, "required": required, "schema": {"type": type}}}
    return said


def _id(route: Route) -> str:
    """A name for generated code: the method and the words of the path."""
    words = re.findall(r"\w+", route.path) or ["root"]
    return "_".join([route.method.lower(), *words])

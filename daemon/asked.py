"""A call's arguments as a person reads them: a title, and its code, diff or content; also while they are written."""

import re
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec

from daemon.plain import line, safe

COMPARED: Final = 400  # lines of an edit that are compared; comparing takes their square

# A field with text in an object that may break off anywhere. Possessive, so that no input makes it slow.
_TEXT_FIELD: Final = re.compile(r'"([a-z_]{1,40})"\s*:\s*"((?:[^"\\]|\\.)*+)')

# How a file's ending is called where a colour is looked for, if not by itself.
_ENDINGS: Final = {
    "yml": "yaml",
    "h": "c",
    "hpp": "cpp",
    "cc": "cpp",
    "mjs": "js",
    "cjs": "js",
    "bashrc": "bash",
    "markdown": "md",
}

Language = str
"""What a body is written in: `markdown` (to be laid out), `diff`, a language's short name, or empty for plain text."""


def call(name: str, arguments: str) -> tuple[str, str, Language]:
    """(title, body, language of the body) of a call: worker and interpreter or path, then code or content."""
    try:
        given = msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return line(f"{name} · arguments that are not valid JSON"), safe(arguments), ""
    if not isinstance(given, dict):
        return line(f"{name} · arguments that are not an object"), safe(arguments), ""
    fields = _Fields(given)
    worker = fields.take("worker")
    parts = [name, *([f"on {worker}"] if worker else [])]
    language: Language = ""
    match name:
        case "run":
            interpreter = fields.take("interpreter") or "bash"
            parts.append(interpreter)
            body = fields.take("code")
            language = _of_interpreter(interpreter.removeprefix("jupyter:"))
        case "read":
            parts.append(fields.take("path"))
            body = ""
        case "write":
            path = fields.take("path")
            parts.append(path)
            body, language = fields.take("content"), _of_file(path)
        case "edit":
            parts.append(fields.take("path"))
            body, language = "\n".join(_changed(fields.take("old"), fields.take("new"))), "diff"
        case "patch":
            body, language = fields.take("input"), "diff"
        case _:
            rest = fields.rest()
            body = msgspec.json.format(msgspec.json.encode(rest)).decode() if rest else ""
            return line(" · ".join(parts)), safe(body), "json" if rest else ""
    parts += [
        f"{key} {value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for key, value in fields.rest().items()
    ]
    return (
        line(" · ".join(part for part in parts if part)),
        safe(body.replace("\r\n", "\n")).rstrip("\n"),
        language,
    )


def _of_interpreter(name: str) -> Language:
    if name.startswith("python"):
        return "python"
    return {"bash": "bash", "node": "javascript"}.get(name, "")


def _of_file(path: str) -> Language:
    """By its ending, which every highlighter knows."""
    ending = path.rpartition("/")[2].rpartition(".")[2].lower() if "." in path.rpartition("/")[2] else ""
    return _ENDINGS.get(ending, ending)


class _Fields:
    """A call's arguments, taken one by one; what nobody took is left to be shown as it is."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = dict(given)

    def take(self, name: str) -> str:
        value = self._given.get(name)
        if not isinstance(value, str):
            return ""
        del self._given[name]
        return value

    def rest(self) -> dict[str, Any]:
        return self._given


def _changed(old: str, new: str) -> list[str]:
    """The lines of both with marks: what went, what came, what stayed."""
    before, after = _rows(old), _rows(new)
    if len(before) + len(after) > COMPARED:
        return [*_marked("-", before), *_marked("+", after)]
    found: list[str] = []
    for same, start, end, first, last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if same == "equal":
            found += _marked(" ", before[start:end])
        else:
            found += [*_marked("-", before[start:end]), *_marked("+", after[first:last])]
    return found


def _rows(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _marked(mark: str, rows: list[str]) -> list[str]:
    return [f"{mark} {row}" for row in rows]


def so_far(arguments: str) -> str:
    """The texts among arguments that are still being written, as whole JSON."""
    found = {}
    for match in _TEXT_FIELD.finditer(arguments):
        name, value = match.groups()
        while value:
            try:
                found[name] = msgspec.json.decode(f'"{value}"', type=str)
            except (msgspec.DecodeError, UnicodeError):
                value = value[: max(0, value.rfind("\\"))]  # an escape is only half there
            else:
                break
    return msgspec.json.encode(found).decode()

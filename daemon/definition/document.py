"""YAML made into plain values that know their lines: no types of its own, no key twice, no values without end."""

from collections.abc import Hashable
from typing import Any, Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_BYTES: Final = 1 << 20
MAX_NODES: Final = 20_000  # with what aliases repeat: a few lines of them can stand for billions
MAX_DEPTH: Final = 50
MAX_BITS: Final = 1024  # of a whole number: what a float holds, and far less than Python refuses to write out
_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
)
_DATE: Final = "tag:yaml.org,2002:timestamp"  # read as the text it is: JSON has no such type

Path = tuple[str | int, ...]


class BadDocument(Exception):
    """This YAML cannot be used; the message begins with the line."""


class Document:
    """A document's values as JSON has them, and where each stands. Raises BadDocument."""

    def __init__(self, text: bytes) -> None:
        self._lines: dict[Path, int] = {}
        self._left = MAX_NODES
        if len(text) > MAX_BYTES:
            raise BadDocument(f"it has {len(text)} bytes; at most {MAX_BYTES} are read")
        try:
            loader = yaml.SafeLoader(text)
        except yaml.YAMLError as error:
            raise BadDocument(f"not text: {_one_line(error)}") from error
        try:
            node = loader.get_single_node()
            self.value: Any = None if node is None else self._plain(loader, node, ())
        except yaml.MarkedYAMLError as error:
            raise BadDocument(_marked(error)) from error
        except yaml.YAMLError as error:
            raise BadDocument(f"not valid YAML: {_one_line(error)}") from error
        except RecursionError as error:
            raise BadDocument("nested too deeply") from error
        finally:
            loader.dispose()

    def line(self, path: Path) -> int:
        """Where what is at `path` stands, from 1; that of the nearest thing around it where it is not there."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def _plain(self, loader: yaml.SafeLoader, node: Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self._lines.setdefault(path, line)
        self._left -= 1
        if self._left < 0 or len(path) > MAX_DEPTH:
            what = f"over {MAX_NODES} values" if self._left < 0 else f"nested deeper than {MAX_DEPTH}"
            raise BadDocument(f"line {line}: {what}; write it without such aliases")
        match node:
            case MappingNode():
                return self._mapping(loader, node, path)
            case SequenceNode() if node.tag in _TAGS:
                return [self._plain(loader, item, (*path, at)) for at, item in enumerate(node.value)]
            case ScalarNode() if node.tag in _TAGS:
                self._check_text(node)
                return self._scalar(loader, node)
            case ScalarNode() if node.tag == _DATE:
                return node.value
        raise BadDocument(f"line {line}: the type {node.tag} is none that is known here; leave it out")

    def _scalar(self, loader: yaml.SafeLoader, node: ScalarNode) -> Any:
        try:
            value = loader.construct_object(node, deep=True)
        except ValueError as error:  # a number of thousands of digits, or one such as 0b2
            raise BadDocument(f"line {node.start_mark.line + 1}: no number: {_one_line(error)}") from error
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise BadDocument(f"line {node.start_mark.line + 1}: a number of over {MAX_BITS} bits")
        return value

    def _check_text(self, node: ScalarNode) -> None:
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise BadDocument(
                f"line {node.start_mark.line + 1}: half of a surrogate pair, which is no character"
            )

    def _mapping(self, loader: yaml.SafeLoader, node: MappingNode, path: Path) -> dict[str, Any]:
        if node.tag not in _TAGS:
            raise BadDocument(
                f"line {node.start_mark.line + 1}: the type {node.tag} is none that is known here; leave it out"
            )
        loader.flatten_mapping(node)
        made: dict[str, Any] = {}
        for name, value in node.value:
            key: Hashable = name.value if isinstance(name, ScalarNode) else None
            if isinstance(name, ScalarNode):
                self._check_text(name)
            line = name.start_mark.line + 1
            if not isinstance(key, str):
                raise BadDocument(f"line {line}: a name is text, and this one is a list or a mapping")
            if key in made:
                raise BadDocument(
                    f"line {line}: {key} is there twice; the first is on line {self.line((*path, key))}"
                )
            self._lines[*path, key] = line
            made[key] = self._plain(loader, value, (*path, key))
        return made


def _marked(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}: " if mark is not None else ""
    what = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{where}not valid YAML: {what or 'it does not parse'}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

"""Tool arguments as models send them."""

import pytest

from daemon.harness import sniffing, tools
from daemon.protocol.records import CallBody


def parse(arguments: str, name: str = "run") -> tools.Arguments:
    return tools.parse(CallBody(name, arguments), "")


def test_good_arguments_become_values() -> None:
    assert parse('{"worker":"w","code":"ls","timeout":"30"}') == tools.Run("w", "ls", "", 30.0)


def test_what_is_left_out_has_its_default() -> None:
    assert parse('{"worker":"w","path":"f"}', "read") == tools.Read("w", "f", 1, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"path": "a.txt", "text": "unfinish', "not valid JSON"),
        ("", "missing required field `worker`"),
        ("null", "missing required field `worker`"),
        ("[1]", "not a list"),
        ('"{\\"a\\":1}"', "not a string"),
        ("7", "not a number"),
        ("true", "not true or false"),
        ('{"worker":"w","code":"x","cwd":"/"}', "unknown field `cwd`"),
        ('{"worker":"w","code":"\\ud83d"}', r"half of a character, \\ud83d,"),
        ('{"worker":"w","code":"\\ud83d\\ude80 \\ude80"}', r"half of a character, \\ude80,"),
        ('{"worker":"w","code":"\\ud83d\\ude80 \\\\ud83d', "not valid JSON"),
        ('{"worker":"w","code":"x","timeout":0}', "timeout: expected a number of over 0"),
        ('{"worker":"w","code":"x","timeout":90000}', "timeout: expected a number of at most 86400"),
        ('{"worker":"w","code":5}', "code: expected text, not a whole number"),
    ],
)
def test_bad_arguments_are_told_what_would_be_right(arguments: str, says: str) -> None:
    with pytest.raises(tools.BadCall, match=says):
        parse(arguments)


def test_bad_arguments_are_quoted_but_never_at_length() -> None:
    with pytest.raises(tools.BadCall) as caught:
        parse('{"code": "' + "x" * 10_000)
    assert "xxx" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_tool_that_is_not_offered_is_named_with_those_that_are() -> None:
    with pytest.raises(tools.BadCall, match=r"no tool 'rm' here\. Tools: run, read, write, edit"):
        parse("{}", "rm")
    with pytest.raises(tools.BadCall, match="Tools: read"):
        tools.parse(CallBody("run", "{}"), ("read",))


def test_an_unknown_tool_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no set 'all'"):
        tools.names("all")
    with pytest.raises(ValueError, match="no tool 'fly'"):
        tools.names(("run", "fly"))


def test_each_tool_has_a_closed_schema_with_words_on_each_field() -> None:
    for tool in tools.offered(""):
        assert tool.schema["type"] == "object"
        assert tool.schema["additionalProperties"] is False
        assert all("description" in field for field in tool.schema["properties"].values())


@pytest.mark.parametrize(
    ("head", "type"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"BM6" + bytes(9), "image/bmp"),
        (b"#!/bin/sh", ""),
    ],
)
def test_an_image_is_known_by_its_bytes(head: bytes, type: str) -> None:
    assert sniffing.image(head) == type


def test_a_tool_that_is_named_twice_is_offered_once() -> None:
    assert [tool.name for tool in tools.offered(("run", "read", "run"))] == ["run", "read"]

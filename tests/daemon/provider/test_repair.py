import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.provider import patch, repair

ANY_TEXT = st.text(st.characters(codec=None))


def test_surrogate_pairs_are_joined_and_lone_ones_replaced() -> None:
    assert repair.text("a\ud83d\ude00b") == "a😀b"
    assert repair.text("a\ud83d") == "a\ufffd"
    assert repair.text("\ude00\ud83db") == "\ufffd\ufffdb"
    assert repair.text("plain ü") == "plain ü"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("", {}),
        (" \n", {}),
        ("null", {}),
        ('{"a": 1}', {"a": 1}),
        (' {"a": [1, 2.5, null]}\n', {"a": [1, 2.5, None]}),
        ("[1]", {repair.INVALID: "[1]"}),
        ("7", {repair.INVALID: "7"}),
        ('"{\\"a\\":1}"', {repair.INVALID: '"{\\"a\\":1}"'}),
        ('{"path": "a.txt", "text": "unfinish', {repair.INVALID: '{"path": "a.txt", "text": "unfinish'}),
        ('{"a": NaN}', {repair.INVALID: '{"a": NaN}'}),
        ('{"a": 1e999}', {repair.INVALID: '{"a": 1e999}'}),
        ('{"text":"\\ud83d"}', {"text": "\ufffd"}),
        ('{"text":"\\ud83d\\ude00"}', {"text": "😀"}),
        ('{"\\ud83d":["\\ude00"]}', {"\ufffd": ["\ufffd"]}),
        ("{\ud83d", {repair.INVALID: "{\ufffd"}),
        ('{"a": "\ud83d"}', {"a": "\ufffd"}),
        ('{"nul": "\\u0000"}', {"nul": "\0"}),
        ('{"big": 12345678901234567890123}', {"big": 12345678901234567890123}),
    ],
)
def test_arguments_are_sent_as_an_object(given: str, sent: object) -> None:
    assert json.loads(repair.arguments(given).decode()) == sent


def test_an_object_is_sent_word_for_word() -> None:
    assert repair.arguments('{"a":  1.0}') == b'{"a":  1.0}'


def test_arguments_nested_too_deeply_are_invalid_not_an_error() -> None:
    deep = "[" * 100_000
    assert json.loads(repair.arguments(deep)) == {repair.INVALID: deep}


@given(st.one_of(ANY_TEXT, st.recursive(st.none() | st.integers() | ANY_TEXT, st.lists).map(json.dumps)))
def test_whatever_the_arguments_are_an_object_of_valid_json_is_sent(given: str) -> None:
    assert isinstance(msgspec.json.decode(repair.arguments(given)), dict)


def test_json_that_is_not_json_is_an_error() -> None:
    for bad in ('{"a"', "NaN", "[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            repair.loads(bad)
    assert repair.loads(b'{"a": "\xff\\ud83d"}') == {"a": "\ufffd\ud83d"}


def test_names_and_ids_keep_to_the_characters_that_vendors_take() -> None:
    assert repair.name("run") == "run"
    assert repair.name("functions.run") == "functions_run"
    assert repair.name("") == "unknown"
    assert len(repair.name("x" * 200)) == repair.MAX_NAME


@given(ANY_TEXT, ANY_TEXT)
def test_ids_stay_different(one: str, other: str) -> None:
    assert len(repair.identifier(one)) <= repair.MAX_NAME
    assert (repair.identifier(one) == repair.identifier(other)) == (one == other)


def test_a_legal_id_stays_as_it_is() -> None:
    assert repair.identifier("toolu_01EcJNDtgucTvxugUxuGcJmF") == "toolu_01EcJNDtgucTvxugUxuGcJmF"
    assert repair.identifier("functions.add:0") != repair.identifier("functions_add_0") == "functions_add_0"


def test_a_merge_patch_merges_objects_and_takes_out_nulls() -> None:
    target = {"a": {"b": 1, "c": 2}, "d": [1]}
    assert patch.merge(target, {"a": {"b": None, "e": {"f": None, "g": 3}}, "d": {"x": 1}, "h": None}) == {
        "a": {"c": 2, "e": {"g": 3}},
        "d": {"x": 1},
    }
    assert target == {"a": {"b": 1, "c": 2}, "d": [1]}


def test_owned_fields_are_refused_by_name() -> None:
    assert patch.refused({"temperature": 1}, {"model"}) == ""
    assert "params.model" in patch.refused({"model": None, "x": 1}, {"model", "stream"})


@given(ANY_TEXT, ANY_TEXT)
def test_plain_and_short_ids_stay_different(one: str, other: str) -> None:
    assert 0 < len(repair.plain_id(one, 40)) <= 40
    assert (repair.plain_id(one, 40) == repair.plain_id(other, 40)) == (one == other)
    assert re.fullmatch("[a-zA-Z0-9]{9}", repair.short_id(one))
    assert (repair.short_id(one) == repair.short_id(other)) == (one == other)


def test_ids_as_servers_make_them_stay_as_they_are() -> None:
    for id in ("functions.add:0", "call_00_MRi7F2sfOet5LgvlZL3W5236", "chatcmpl-tool-9f149c74c42f265b"):
        assert repair.plain_id(id, 40) == id
    assert repair.short_id("gSIMJiOkT") == "gSIMJiOkT"

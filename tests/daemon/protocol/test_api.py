import re
from typing import Any

import msgspec
import pytest

from daemon.protocol import api, records
from daemon.protocol.records import Config, Limits, Usage, WorkerRef


def test_a_create_with_every_field_is_taken() -> None:
    body = {
        "model": "a/b",
        "context": 1000,
        "workers": [{"name": "local", "cwd": "/srv"}],
        "input": ["image/png"],
        "params": {"temperature": 1},
        "tools": ["run"],
        "limits": {"steps": 1, "tokens": 2, "seconds": 3.5, "cost": 0.5, "ttl": 60},
        "instructions": "be brief",
        "from": "00000000000000aa",
        "n": 3,
    }
    create = msgspec.json.decode(msgspec.json.encode(body), type=api.Create)
    assert create.from_ == "00000000000000aa"
    assert create.workers == (WorkerRef("local", "/srv"),)
    assert create.limits == Limits(1, 2, 3.5, 0.5, 60)
    assert msgspec.json.decode(api.encode(create)) == body
    assert msgspec.json.decode(b"{}", type=api.Create) == api.Create()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"modle": "a/b"}, "Object contains unknown field `modle`"),
        ({"from_": "x"}, "Object contains unknown field `from_`"),
        ({"workers": [{"name": "w", "gpu": 1}]}, "Object contains unknown field `gpu` - at `$.workers[0]`"),
        ({"limits": {"words": 1}}, "Object contains unknown field `words` - at `$.limits`"),
        ({"workers": [{}]}, "Object missing required field `name` - at `$.workers[0]`"),
        ({"workers": [{"name": ""}]}, "Expected `str` of length >= 1 - at `$.workers[0].name`"),
        ({"workers": [{"name": "w" * 64}]}, "Expected `str` of length <= 63 - at `$.workers[0].name`"),
        ({"workers": {"name": "w"}}, "Expected `array`, got `object` - at `$.workers`"),
        ({"context": -1}, "Expected `int` >= 0 - at `$.context`"),
        ({"context": 1.5}, "Expected `int`, got `float` - at `$.context`"),
        ({"n": -1}, "Expected `int` >= 0 - at `$.n`"),
        ({"model": 7}, "Expected `str`, got `int` - at `$.model`"),
        ({"params": []}, "Expected `object`, got `array` - at `$.params`"),
        ({"tools": 5}, "Expected `str | array`, got `int` - at `$.tools`"),
        ({"limits": {"steps": -1}}, "Expected `int` >= 0 - at `$.limits.steps`"),
        ({"limits": {"tokens": -1}}, "Expected `int` >= 0 - at `$.limits.tokens`"),
        ({"limits": {"seconds": -0.5}}, "Expected `float` >= 0.0 - at `$.limits.seconds`"),
        ({"limits": {"cost": -1}}, "Expected `float` >= 0.0 - at `$.limits.cost`"),
        ({"limits": {"ttl": -1}}, "Expected `float` >= 0.0 - at `$.limits.ttl`"),
    ],
)
def test_a_create_that_is_not_right_is_refused_by_the_field_s_name(body: dict[str, Any], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"^{re.escape(why)}$"):
        msgspec.json.decode(msgspec.json.encode(body), type=api.Create)


def test_a_config_patch_tells_what_is_left_out_from_what_is_null() -> None:
    patch = msgspec.json.decode(b'{"model":null,"limits":{"steps":2}}', type=api.ConfigPatch)
    assert patch == api.ConfigPatch(model=None, limits=api.LimitsPatch(steps=2))
    assert (patch.params, patch.context) == (msgspec.UNSET, msgspec.UNSET)
    assert msgspec.json.decode(api.encode(patch)) == {"model": None, "limits": {"steps": 2}}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"workers": []}, "Object contains unknown field `workers`"),
        ({"context": -1}, "Expected `int` >= 0 - at `$.context`"),
        ({"limits": {"words": 1}}, "Object contains unknown field `words` - at `$.limits`"),
        ({"params": "hot"}, "Expected `object | null`, got `str` - at `$.params`"),
    ],
)
def test_a_config_patch_that_is_not_right_is_refused_by_the_field_s_name(
    body: dict[str, Any], why: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"^{re.escape(why)}$"):
        msgspec.json.decode(msgspec.json.encode(body), type=api.ConfigPatch)


def test_an_info_leaves_out_what_is_empty_and_comes_back() -> None:
    bare = api.Info("x", "closed", Config("a/b"), "t0", "t1", 4)
    assert msgspec.json.decode(api.encode(bare)) == {
        "id": "x",
        "status": "closed",
        "config": {"model": "a/b"},
        "created": "t0",
        "updated": "t1",
        "n": 4,
    }
    full = api.Info(
        "x",
        "damaged",
        Config("a/b"),
        "t0",
        "t1",
        4,
        9,
        Usage(1, 2, 3, 4),
        "title",
        api.Origin("y", 3),
        "record 5",
    )
    assert msgspec.json.decode(api.encode(full))["from"] == {"session": "y", "n": 3}
    assert msgspec.json.decode(api.encode(full), type=api.Info) == full


def test_an_error_answer_has_the_one_shape() -> None:
    error = api.ApiError(api.ApiErrorBody(409, "session x is not stepping"))
    assert msgspec.json.decode(api.encode(error)) == {
        "error": {"code": 409, "message": "session x is not stepping"}
    }


def test_a_client_takes_answers_of_a_later_daemon() -> None:
    assert msgspec.json.decode(b'{"n":3,"later":1}', type=api.Posted) == api.Posted(3)
    assert msgspec.json.decode(b'{"version":"9","protocol":1,"x":[]}', type=api.Version) == api.Version(
        "9", 1
    )


def test_the_largest_post_fits_a_record() -> None:
    assert api.MAX_POST < records.MAX_BODY

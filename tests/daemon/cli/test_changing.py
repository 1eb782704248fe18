import json

import pytest

from daemon.protocol import api
from daemon.verbs import configure
from daemon.verbs.reach import VerbError
from tests.daemon.cli.saying import Said, terminal
from tests.running import Place


@pytest.fixture
def id(said: Said) -> str:
    """A session that has answered once; its records are 7."""
    made = said("new", "--model", "rehearsal/echo", "--limit", "steps=50").strip()
    said("post", "-f", made, "first")
    return made


# fork


def test_a_fork_is_a_copy_that_says_where_it_came_from(said: Said, there: Place, id: str) -> None:
    copy = said("fork", id).strip()
    assert copy != id
    assert there.records(copy) == [row | {"session": copy} for row in there.records(id)]
    assert f"copy of  {id}, records 1 to 7" in said("info", copy)


def test_a_fork_before_a_message_takes_it_in_other_words(said: Said, there: Place, id: str) -> None:
    shown = said("fork", id, "4", "--post", "other words", "--follow")
    assert "first" not in shown
    assert "answer\n  other words\n" in shown
    made = json.loads(said("fork", id, "4", "--post", "third", "--json"))
    assert (made["from"], made["n"], made["posted"]) == (id, 4, 4)
    assert [row["body"] for row in there.records(made["id"]) if row["kind"] == "message"] == ["third"]


def test_a_fork_where_a_session_cannot_be_cut_names_the_nearest_place(said: Said, id: str) -> None:
    assert "the nearest n that would do is 8" in said("fork", id, "99", code=3)
    assert "the nearest n that would do is 3" in said("fork", id, "1", code=3)


def test_a_fork_that_is_followed_needs_a_post(said: Said, id: str) -> None:
    assert "--post TEXT" in said("fork", id, "-f", code=2)
    assert "the message is empty" in said("fork", id, "--post", " ", code=2)


# end


def test_an_ended_session_can_be_read_and_copied_and_not_posted_to(said: Said, id: str) -> None:
    assert said("end", "--yes", id) == f"ended {id}\n"
    assert "first" in said("tail", id)
    assert "has ended; a copy of it can go on" in said("post", id, "x", code=3)
    assert "has ended" in said("end", "-y", id, code=3)
    copy = said("fork", id).strip()
    assert "answer\n  x\n" in said("post", "-f", copy, "x")


def test_end_takes_yes_where_nobody_can_be_asked(there: Place, id: str) -> None:
    refused = there.outrider("end", id)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert there.json("end", id, "--yes") == {"id": id, "status": "ended"}


@pytest.mark.parametrize(
    ("answer", "code", "status"), [("n", 1, "closed"), ("", 1, "closed"), ("y", 0, "ended")]
)
def test_end_asks_on_a_terminal(there: Place, id: str, answer: str, code: int, status: str) -> None:
    with terminal(there, "end", id) as shown:
        asked = shown.until("[y/N]: ")
        assert "closed, first" in asked
        shown.type(f"{answer}\r")
        assert shown.end() == code
    assert there.json("info", id)["status"] == status


# config


def test_config_shows_what_is_set(said: Said, id: str) -> None:
    shown = said("config", id)
    assert "model    rehearsal/echo\n" in shown
    assert "limits   50 steps\n" in shown
    assert json.loads(said("config", id, "--json"))["config"]["limits"] == {"steps": 50}


def test_config_changes_some_and_leaves_the_rest(said: Said, id: str) -> None:
    said("config", id, "--param", "temperature=0.5", "--context", "9000", "--limit", "tokens=100000")
    made = json.loads(
        said("config", id, "--set", "params.thinking.type=enabled", "--set", "limits.seconds=1.5", "--json")
    )
    assert made["n"] == 9
    config = made["config"]
    assert config["params"] == {"temperature": 0.5, "thinking": {"type": "enabled"}}
    assert config["limits"] == {"steps": 50, "tokens": 100000, "seconds": 1.5}
    assert config["context"] == 9000
    assert "50 steps, 100,000 tokens, 1.5 seconds" in said("config", id)
    assert "1.5 seconds, 600 seconds idle" in said("config", id, "--limit", "ttl=600")


def test_config_takes_out_what_is_set_to_null(said: Said, id: str) -> None:
    said("config", id, "--param", "temperature=0.5", "--context", "9000", "--limit", "tokens=5")
    said("config", id, "--set", "params.temperature=null", "--set", "context=null", "--limit", "steps=null")
    config = json.loads(said("config", id, "--json"))["config"]
    assert config["params"] == {"temperature": None}, "it is taken out of each request"
    assert config["limits"] == {"tokens": 5}
    assert "context" not in config
    assert json.loads(said("config", id, "--set", "limits=null", "--json"))["config"]["limits"] == {}
    assert "params" not in json.loads(said("config", id, "--set", "params=null", "--json"))["config"]


def test_another_model_answers_from_the_next_step_on(said: Said, id: str) -> None:
    assert "#8: it holds" in said("config", id, "--set", "model=rehearsal/tour")
    assert " tour · " in said("post", "-f", id, "go")


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["--set", "colour=red"], "there is no 'colour'; there are model, params", 2),
        (["--set", "limits.spes=1"], "there is no 'spes'; there are steps, tokens, seconds, cost, ttl\n", 2),
        (["--limit", "steps=many"], "steps: expected a whole number", 2),
        (["--limit", "steps=-1"], "steps: expected a whole number of at least 0", 2),
        (["--set", "context=big"], "context: expected", 2),
        (["--set", "limits=3"], "limits.steps=10", 2),
        (["--set", "params=3", "--param", "a=1"], "contradict", 2),
        (["--set", "x"], "KEY=VALUE", 2),
        (["--model", "nobody/x"], "there is no provider 'nobody'", 3),
        (["--limit", "cost=cheap"], "cost: expected a number", 2),
    ],
)
def test_a_config_that_cannot_be_is_refused_and_the_field_named(
    said: Said, id: str, arguments: list[str], words: str, code: int
) -> None:
    assert words in said("config", id, *arguments, code=code)
    assert json.loads(said("info", id, "--json"))["n"] == 7


def test_a_models_name_is_never_read_as_json() -> None:
    assert configure.changes(None, None, [], [], ["model=1/2"]) == api.ConfigPatch(model="1/2")
    assert configure.changes(None, None, [], [], ["model=null"]) == api.ConfigPatch(model=None)
    assert configure.changes(None, None, [], [], []) == api.ConfigPatch()
    with pytest.raises(VerbError, match="no object"):
        configure.changes(None, None, [], [], ["context=1", "context.x=2"])


# workers


def test_a_session_gets_other_workers_and_keeps_the_folders_it_had(said: Said, there: Place, id: str) -> None:
    said("workers", "set", id, "local:/tmp", "gpu:/srv/data")
    assert "workers are gpu:/srv/data, local:/tmp" in said("workers", "set", id, "gpu", "local")
    shown = said("workers", id).splitlines()
    assert [row.split() for row in shown[1:]] == [
        ["gpu", "not", "here", "/srv/data"],
        ["local", "connected", "/tmp"],
    ]
    assert json.loads(said("workers", "ls", id, "--json"))[1] == {
        "name": "local",
        "cwd": "/tmp",
        "state": "connected",
    }
    made = json.loads(said("workers", "set", id, "local:", "--json"))
    assert made["workers"] == [{"name": "local", "cwd": str(there.work)}]


def test_a_session_may_have_no_workers_when_that_is_said(said: Said, id: str) -> None:
    assert "--none" in said("workers", "set", id, code=2)
    assert "--none" in said("workers", "set", id, "local", "--none", code=2)
    assert "workers are none" in said("workers", "set", id, "--none")
    assert json.loads(said("workers", id, "--json")) == []
    assert said("workers", id) == ""


def test_a_workers_name_that_cannot_be_is_refused(said: Said, id: str) -> None:
    assert "NAME or NAME:FOLDER" in said("workers", "set", id, ":x", code=2)
    assert "name each worker once" in said("workers", "set", id, "a", "a", code=3)

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from daemon import cli
from daemon.protocol.records import WorkerRef
from daemon.verbs import given, reach, tables
from daemon.verbs.explain import explain
from daemon.verbs.reach import VerbError
from daemon.verbs.tree import GROUPS, outrider
from tests.daemon.cli.saying import CONTROL, Said, terminal
from tests.running import Place

HOSTILE = r"""
end = "The end."
[[steps]]
text = "\u001b]0;owned\u0007 Look."
[[steps.calls]]
tool = "run"
arguments = { worker = "local", code = "printf '\\033]0;own\\a\\033[2J\\033[31mred\\033[0m\\r\\nplain\\n\\302\\233J'" }
[[steps]]
text = "Done."
"""
REFUSED = """
[[steps]]
text = "Never."
faults = [{ kind = "status", status = 400, type = "invalid_request_error" }]
"""


SCRIPTS = {"hostile": HOSTILE, "refused": REFUSED}


# The verbs.


def test_without_a_verb_there_is_help_that_groups_the_verbs(said: Said) -> None:
    help = said()
    assert help.startswith("Usage: outrider")
    at = -1
    for title, names in GROUPS.items():
        for line in (f"\n{title}:\n", *(f"\n  {name} " for name in names)):
            assert (at := help.index(line, at + 1)) > 0
    assert "..." not in help
    assert max(map(len, help.splitlines())) <= 80


def every_verb(group: click.Group = outrider, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from every_verb(command, (*before, name))
        else:
            yield (*before, name)


def test_every_verb_has_help_and_json(said: Said) -> None:
    for verb in every_verb():
        help = said(*verb, "-h")
        assert "--json" in help or verb == ("completion",)
        assert "x>=" not in help
        assert max(map(len, help.splitlines())) <= 80


@pytest.mark.parametrize("verb", ["worker", "workers", "token", "providers", "key"])
def test_the_help_of_a_group_leaves_nothing_out(said: Said, verb: str) -> None:
    assert "..." not in said(verb, "-h")


def test_the_groups_of_the_help_name_every_verb() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(outrider.commands)


def test_a_session_made_here_starts_in_the_callers_folder(said: Said, there: Place) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    config = json.loads(said("info", id, "--json"))["config"]
    assert config["workers"] == [{"name": "local", "cwd": str(there.work)}]


def test_new_hands_on_all_that_it_is_given(said: Said, there: Place) -> None:
    (there.work / "rules").write_text("Be brief.")
    id = json.loads(
        said(
            *("new", "--model", "rehearsal/echo", "--worker", "local:/tmp", "--worker", "gpu", "--json"),
            *("--context", "5000", "--tools", "run,read", "--instructions", "@rules"),
        )
    )["id"]
    config = json.loads(said("info", id, "--json"))["config"]
    assert config["workers"] == [{"name": "local", "cwd": "/tmp"}, {"name": "gpu"}]
    assert (config["context"], config["tools"]) == (5000, ["run", "read"])
    assert "Be brief." in said("tail", "--full", id)
    assert "gpu" in said("info", id)


def test_a_post_is_answered_and_shown(said: Said) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    shown = said("post", "--follow", id, "hello there")
    assert "message via cli\n  hello there\n" in shown
    assert " answer\n  hello there\n" in shown
    assert re.fullmatch(r"#\d+\n", said("post", id, "again"))


def test_a_followed_post_shows_only_what_is_new(said: Said) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    said("post", "--follow", id, "first")
    shown = said("post", "--follow", id, "second")
    assert "first" not in shown
    assert "step 2" in shown


def test_run_shows_a_session_from_its_start_to_its_end(said: Said) -> None:
    shown = said("run", "--model", "rehearsal/tour", "go")
    assert shown.startswith("#1 session started\n#2 rehearsal/tour · workers: local:")
    assert " run · on local · bash\n  uname -a\n" in shown
    assert "exit 0 · on local" in shown
    assert "exit 1 · on local" in shown


def test_run_says_which_session_it_made(there: Place) -> None:
    found = re.fullmatch(
        r"the session is ([0-9a-f]{16})\n", there.outrider("run", "--model", "rehearsal/echo", "go").stderr
    )
    assert found
    assert there.records(found[1])[3]["body"] == "go"
    done = there.outrider("run", "--model", "rehearsal/echo", "--json", "go")
    assert done.stderr == ""
    assert {json.loads(row)["session"] for row in done.stdout.splitlines()} == {there.json("ls")[0]["id"]}


def test_a_worker_that_is_not_connected_is_told_of(there: Place) -> None:
    words = "worker gpu is not here: what is meant for it waits until it connects\n"
    made = there.outrider("new", "--model", "rehearsal/echo", "--worker", "gpu", "--worker", "local")
    assert made.stderr == words
    id = made.stdout.strip()
    assert there.outrider("workers", "set", id, "local", "gpu").stderr == words
    assert there.outrider("workers", "set", id, "local").stderr == ""
    assert words in there.outrider("run", "--model", "rehearsal/echo", "--worker", "gpu", "go").stderr


def test_run_reads_its_prompt_from_stdin(there: Place) -> None:
    assert "answer\n  piped in\n" in there.ok("run", "--model", "rehearsal/echo", "-", input="piped in")


def test_tail_shows_the_last_records_with_the_numbers_they_have(said: Said) -> None:
    id = json.loads(said("new", "--model", "rehearsal/tour", "--json"))["id"]
    said("post", "-f", id, "go")
    full = said("tail", id)
    last = said("tail", "-n", "3", id)
    assert full.endswith(last)
    assert len(re.findall(r"^#\d+ ", last, re.MULTILINE)) == 3
    assert said("tail", "-n", "0", id) == ""


def test_json_of_tail_has_every_record_as_one_line(said: Said) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    said("post", "-f", id, "line\nline")
    rows = [json.loads(row) for row in said("tail", "--json", id).splitlines()]
    assert [row["n"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["body"] for row in rows if row["kind"] == "message"] == ["line\nline"]
    followed = [json.loads(row) for row in said("post", "-f", "--json", id, "x").splitlines()]
    assert followed[0]["n"] == len(rows) + 1


def test_ls_lists_the_newest_first_and_filters(said: Said) -> None:
    first = said("new", "--model", "rehearsal/echo").strip()
    second = said("new", "--model", "rehearsal/echo").strip()
    said("post", "-f", first, "the title\nnot this")
    rows = json.loads(said("ls", "--json"))
    assert [row["id"] for row in rows][:2] == [first, second]
    table = said("ls", "--limit", "1").splitlines()
    assert len(table) == 2
    assert table[1].startswith(f"{first}  closed")
    assert table[1].endswith("the title")
    assert json.loads(said("ls", "--status", "stepping", "--json")) == []
    assert said("ls", "--status", "stepping") == ""


def test_workers_and_models_are_listed(said: Said) -> None:
    assert re.search(r"local +connected", said("workers"))
    assert json.loads(said("workers", "--json"))[0]["name"] == "local"
    assert re.search(r"^rehearsal/tour +200k +- +text, images +free +yes$", said("models"), re.MULTILINE)
    (hostile,) = [m for m in json.loads(said("models", "--json")) if m["name"] == "rehearsal/hostile"]
    assert (hostile["context"], hostile["default"]) == (200_000, False)


def test_up_again_says_that_it_was_up(said: Said, there: Place) -> None:
    assert "was up already" in said("up")
    assert "other verbs ask the daemon there" in there.outrider("up", OUTRIDER_URL="http://x").stderr
    up = json.loads(said("up", "--json"))
    assert up["socket"] == str(there.socket)
    assert not {"started", "listen"} & up.keys()


def test_a_failed_session_goes_on_with_retry(said: Said) -> None:
    id = said("new", "--model", "rehearsal/refused").strip()
    assert "stopped" not in said("post", "-f", id, "x", code=1)
    assert json.loads(said("info", id, "--json"))["status"] == "failed"
    assert json.loads(said("retry", id, "--json"))["status"] in ("stepping", "failed", "open", "closed")


def test_a_retry_of_a_session_that_is_done_says_so(said: Said) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    said("post", "-f", id, "go")
    assert said("retry", id) == f"{id} is closed: there is nothing to go on with\n"
    assert json.loads(said("retry", id, "--json"))["status"] == "closed"


# Ids.


def test_an_id_may_be_cut_short_as_long_as_it_is_unique(said: Said) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    others = [row["id"] for row in json.loads(said("ls", "--limit", "1000", "--json")) if row["id"] != id]
    length = next(n for n in range(1, 17) if not any(other.startswith(id[:n]) for other in others))
    assert json.loads(said("info", id[:length], "--json"))["id"] == id


def test_a_prefix_of_several_ids_lists_them(said: Said) -> None:
    made = [said("new", "--model", "rehearsal/echo").strip() for _ in range(20)]
    prefix = next(a[0] for a in made if sum(b[0] == a[0] for b in made) > 1)
    complaint = said("info", prefix, code=2)
    assert f"{prefix} begins " in complaint
    assert len(re.findall(rf"^  {prefix}[0-9a-f]{{15}}  open|closed", complaint, re.MULTILINE)) >= 2


# Codes.


def test_a_session_that_fails_gives_1_and_says_what_to_do(
    said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["run", "--model", "rehearsal/refused", "x"]) == 1
    out, err = capsys.readouterr()
    assert "error: invalid" in out
    assert "  What to do: change what it does not take" in out
    assert re.fullmatch("the session is [0-9a-f]{16}\n", err)  # and no complaint


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fly"], "No such command 'fly'"),
        (["post", "abc"], "there is nothing to post"),
        (["tail", "xyz"], "'xyz' is not a session's id"),
        (["post", "abc", " \n"], "the message is empty"),
        (["ls", "--limit", "0"], "'--limit': '0' is not a whole number from 1 on."),
        (["tail", "abc", "-n", "few"], "'-n': 'few' is not a whole number from 0 on."),
        (["ls", "--status", "lost"], "'lost' is not one of"),
        (["new", "--param", "temperature"], "KEY=VALUE"),
        (["new", "--worker", ":x"], "NAME or NAME:FOLDER"),
        (["new", "--instructions", "@nowhere"], "nowhere: No such file"),
        (["--socket", "a", "--url", "b", "ls"], "give one of them"),
        (["--url", "ftp://x", "ls"], "is not a URL"),
        (["--url", "http://127.0.0.1:1", "down"], "on this machine"),
        (["--socket", "/" + "x" * 120, "ls"], "121 bytes long"),
        (["daemon", "--listen", "localhost"], "HOST:PORT"),
    ],
)
def test_wrong_usage_gives_2_and_names_the_fix(said: Said, arguments: list[str], words: str) -> None:
    assert words in said(*arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["info", "0123456789abcdef"], "no session 0123456789abcdef"),
        (["new", "--model", "nobody/x"], "nobody"),
        (["new", "--model", "rehearsal/echo", "--tools", "fly"], "tools"),
    ],
)
def test_a_refusal_of_the_daemon_gives_3_and_its_words(said: Said, arguments: list[str], words: str) -> None:
    assert words in said(*arguments, code=3)


def test_a_stop_of_a_session_that_does_nothing_is_refused(said: Said) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    said("post", "-f", id, "x")
    assert "is not stepping" in said("stop", id, code=3)


def test_no_daemon_gives_4_and_names_the_verb_that_starts_it(said: Said, tmp_path: Path) -> None:
    for arguments in (["ls"], ["tail", "ab"], ["run", "x"], ["new"]):
        assert "`outrider --socket /nowhere/s up` starts it" in said(
            "--socket", "/nowhere/s", *arguments, code=4
        )
    complaint = said("--url", "http://127.0.0.1:1", "ls", code=4)
    assert "outrider up" not in complaint


def test_a_bad_config_gives_2_and_names_file_and_key(
    said: Said, there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = there.home / "bad.toml"
    file.write_text("[daemon]\nsokcet = 'x'\n")
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))
    assert "did you mean 'socket'?" in said("ls", code=2)
    assert str(file) in said("up", code=2)


def test_a_data_folder_that_cannot_be_made_gives_1_and_says_why(said: Said) -> None:
    assert "cannot make the folder /proc/nowhere/d" in said("up", "--data", "/proc/nowhere/d", code=1)


def test_a_key_that_others_can_read_is_told_by_up(there: Place) -> None:
    file = there.home / "keys.toml"
    file.write_text('[providers.anthropic]\nkey = "secret"\n')
    file.chmod(0o644)
    done = there.outrider("up", OUTRIDER_CONFIG=str(file))
    assert done.returncode == 0
    assert f"chmod 600 {file}" in done.stderr
    assert "secret" not in done.stderr


def test_a_fault_of_our_own_is_one_sentence_and_a_traceback_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = RuntimeError("odd\x1b[2J")
    message, code = explain(error)
    assert code == 1
    assert "RuntimeError: odd" in message
    assert not CONTROL.search(message)
    monkeypatch.setenv("OUTRIDER_DEBUG", "1")
    assert "RuntimeError" in explain(error)[0].splitlines()[-1]
    assert explain(PermissionError(13, "Permission denied", "/x")) == explain(
        PermissionError(13, "Permission denied", "/x")
    )


# What reaches the terminal.


def test_hostile_words_titles_and_output_reach_no_terminal_raw(said: Said, there: Place) -> None:
    title = "\x1b]0;owned\x07\x1b[2Jtitle"
    out = said("run", "--model", "rehearsal/hostile", title)
    id = json.loads(said("ls", "--limit", "1", "--json"))[0]["id"]
    out += said("tail", "--full", id) + said("ls") + said("info", id)
    assert not CONTROL.search(out)
    assert "  red\n  plain\n" in out
    assert "␛]0;owned␇ Look." in out


def test_json_on_a_terminal_is_the_same_value_and_nothing_acts_on_the_terminal(there: Place) -> None:
    title = "a\x9b2J\x7f\u202e\U000e0041b\x1b[2J"
    id = there.ok("new", "--model", "rehearsal/echo").strip()
    there.ok("post", "-f", id, title)
    with terminal(there, "info", id, "--json") as shown:
        assert shown.end() == 0
    assert not CONTROL.search(shown.text.strip())
    assert "\u202e" not in shown.text
    assert json.loads(shown.text)["title"] == title


def test_a_pipe_has_no_colours(there: Place) -> None:
    for arguments in (["ls"], ["run", "--model", "rehearsal/tour", "go"], ["workers"], ["--help"]):
        assert "\x1b" not in there.ok(*arguments)


# What the options say.


def test_params_are_json_where_they_can_be_and_text_elsewhere() -> None:
    assert given.params(["temperature=0.2", "thinking.type=enabled", "thinking.budget=9", "stop=[1]"]) == {
        "temperature": 0.2,
        "thinking": {"type": "enabled", "budget": 9},
        "stop": [1],
    }
    with pytest.raises(VerbError, match="no object"):
        given.params(["a=1", "a.b=2"])


def test_only_a_daemon_of_this_machine_gets_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert given.worker_refs([], here=True) == (WorkerRef("local", str(tmp_path)),)
    assert given.worker_refs([], here=False) == (WorkerRef("local"),)
    assert given.worker_refs(["gpu:rel", "local:sub"], here=True) == (
        WorkerRef("gpu", "rel"),
        WorkerRef("local", str(tmp_path / "sub")),
    )


@pytest.mark.parametrize(
    ("socket", "url", "environ", "place"),
    [
        ("/s", "", {"OUTRIDER_URL": "http://x"}, reach.Where(Path("/s"), command="outrider --socket /s")),
        ("", "unix:/s", {}, reach.Where(Path("/s"), command="outrider --socket /s")),
        ("", "", {"OUTRIDER_URL": "unix:///s"}, reach.Where(Path("/s"), command="outrider --socket /s")),
        ("", "", {"OUTRIDER_URL": "https://x", "OUTRIDER_KEY": "k"}, reach.Where(None, "https://x", "k")),
        (
            "",
            "http://y",
            {"OUTRIDER_URL": "https://x"},
            reach.Where(None, "http://y", command="outrider --url http://y"),
        ),
        ("", "", {"HOME": "/h", "XDG_RUNTIME_DIR": "/r"}, reach.Where(Path("/r/outrider/api.sock"))),
    ],
)
def test_the_daemon_is_found_by_option_then_environment_then_config(
    socket: str, url: str, environ: dict[str, str], place: reach.Where
) -> None:
    assert reach.where(socket, url, environ) == place


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        ("2026-01-02T03:04:05.000Z", "0 s ago"),
        ("2026-01-02T03:03:00.000Z", "1 min ago"),
        ("2026-01-01T03:04:05.000Z", "1 d ago"),
        ("not a time\x1b", "not a time␛"),
    ],
)
def test_a_time_shows_how_long_ago_it_was(time: str, shown: str) -> None:
    assert tables.ago(time, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == shown


def test_the_command_line_loads_no_heavy_library_before_a_verb_needs_it() -> None:
    heavy = ("aiohttp", "structlog", "textual", "PIL")
    code = f"import sys, daemon.verbs.tree; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_down_has_no_option_on_where_to_listen(there: Place) -> None:
    for option in ("--listen=none", "--insecure"):
        done = there.outrider("down", option)
        assert done.returncode == 2
        assert "No such option" in done.stderr

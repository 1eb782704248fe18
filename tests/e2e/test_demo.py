"""The whole product through its command line: the demo, a daemon that dies, one that is ended, a terminal."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.worker import keeper
from tests.running import OUTRIDER, Place, lines_until, place

ROOT = Path(__file__).resolve().parent.parent.parent

WAITS = """
end = "Over."
[[steps]]
text = "I wait."
[[steps.calls]]
tool = "run"
arguments = { worker = "local", code = "echo once >>ran; until [ -e go ]; do sleep 0.05; done; echo went" }
[[steps]]
text = "It went."
"""


@pytest.fixture
def here() -> Iterator[Place]:
    with place() as made:
        made.script("waits", WAITS)
        yield made


def result(records: list[dict[str, object]]) -> dict[str, object]:
    (found,) = [record for record in records if record["kind"] == "result"]
    return found


def test_a_daemon_killed_in_mid_session_goes_on_after_the_next_up_and_runs_nothing_twice(here: Place) -> None:
    first = here.up()
    with here.start("run", "--model", "rehearsal/waits", "--json", "go") as run:
        lines_until(run, ["step"])
        here.kill(first)
        second = here.up()
        assert second != first
        (here.work / "go").touch()
        out, err = run.communicate(timeout=30)
    assert run.returncode == 0, err
    assert "It went." in out
    (session,) = here.json("ls")
    assert session["status"] == "closed"
    records = here.records(session["id"])
    assert [record["n"] for record in records] == list(range(1, len(records) + 1))
    assert (result(records)["body"], result(records)["exit"]) == ("went", 0)
    assert (here.work / "ran").read_text() == "once\n"


def test_sigterm_ends_the_daemon_in_order_and_the_step_in_flight_leaves_no_error(here: Place) -> None:
    with here.start("daemon", "--listen", "none", "--json") as daemon:
        assert daemon.stdout is not None
        ready = json.loads(daemon.stdout.readline())
        assert (ready["pid"], ready["socket"], ready["listen"]) == (daemon.pid, str(here.socket), [])
        id = here.ok("new", "--model", "rehearsal/waits").strip()
        with here.start("post", "-f", "--json", id, "go") as post:
            lines_until(post, ["step"])
            daemon.terminate()
            assert daemon.wait(20) == 0
            post.send_signal(signal.SIGINT)
            assert post.wait(20) == 130
        assert not here.socket.exists()
    here.up()
    (here.work / "go").touch()
    with here.start("tail", "-f", "--json", id) as tail:
        lines_until(tail, ["result"])
        assert "It went." in lines_until(tail, ["text"])["body"]
    assert "error" not in [record["kind"] for record in here.records(id)]


def test_the_first_line_of_the_daemon_says_where_it_listens(here: Place) -> None:
    with here.start("daemon", "--listen", "127.0.0.1:0") as daemon:
        assert daemon.stdout is not None
        line = daemon.stdout.readline()
        said = re.fullmatch(r"ready pid=(\d+) socket=(\S+) listen=127\.0\.0\.1:(\d+) data=(\S+)\n", line)
        assert said is not None, line
        assert (int(said[1]), said[2], said[4]) == (daemon.pid, str(here.socket), str(here.data))
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(20) == 0


def test_a_second_daemon_on_the_same_folder_refuses_and_names_the_first(here: Place) -> None:
    pid = here.up()
    refused = here.outrider("daemon", "--socket", str(here.home / "other.sock"), "--listen", "none")
    assert refused.returncode == 1
    assert f"process {pid}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_address_that_is_taken_is_refused_when_it_was_asked_for(here: Place) -> None:
    up = here.json("up", "--listen", "127.0.0.1:0")
    taken = up["listen"][0]
    with place() as other:
        refused = other.outrider("up", "--listen", taken)
        assert refused.returncode == 1
        assert taken in refused.stderr
        assert "Traceback" not in refused.stderr


def test_down_ends_the_daemon_and_its_worker_and_again_is_fine(here: Place) -> None:
    here.up()
    assert re.search(r"local +connected", here.ok("workers"))
    down = here.json("down")
    for pid in (down["daemon"], down["worker"]):
        assert is_gone(pid)
    assert here.ok("down") == "outrider was not up\n"
    assert here.outrider("ls").returncode == 4


def test_down_ends_the_daemon_also_where_the_configuration_is_broken(here: Place) -> None:
    here.up()
    broken = here.data / "broken.toml"
    broken.write_text("[daemon\n")
    assert here.outrider("ls", OUTRIDER_CONFIG=str(broken)).returncode == 2
    assert "ended daemon" in here.outrider("down", OUTRIDER_CONFIG=str(broken)).stdout


def test_down_takes_no_daemon_for_one_that_listens_elsewhere(here: Place) -> None:
    here.up()
    refused = here.outrider("down", "--socket", str(here.data / "other.sock"))
    assert refused.returncode == 2
    assert "name its folder with --data" in refused.stderr
    assert "ended daemon" in here.ok("down", "--socket", str(here.data / "api.sock"))


def test_a_local_worker_that_dies_is_started_again(here: Place) -> None:
    here.up()
    here.ok("run", "--model", "rehearsal/tour", "go")
    worker = keeper.holder(here.data / "worker" / keeper.LOCK)
    here.kill(worker)
    assert "exit 0 · on local" in here.ok("run", "--model", "rehearsal/tour", "go")
    assert keeper.holder(here.data / "worker" / keeper.LOCK) not in (0, worker)


def test_a_damaged_session_shows_what_can_be_read_and_says_where_it_ends(here: Place) -> None:
    here.up()
    here.ok("run", "--model", "rehearsal/tour", "go")
    id = here.json("ls")[0]["id"]
    here.ok("down")
    file = here.data / "sessions" / f"{id}.state"
    file.write_bytes(file.read_bytes().replace(b"uname -a", b"uname -b", 1))
    here.up()
    assert here.json("ls")[0]["status"] == "damaged"
    assert "record 8 " in here.ok("info", id)
    shown = here.outrider("tail", id)
    assert shown.stdout.rstrip().splitlines()[-1].startswith("  ")
    assert "#7 answer" in shown.stdout
    assert "#8" not in shown.stdout
    assert here.outrider("post", id, "x").returncode == 3


def test_ctrl_c_leaves_the_session_running_and_says_how_to_follow_it(here: Place) -> None:
    here.up()
    with here.start("run", "--model", "rehearsal/waits", "--json", "go") as run:
        lines_until(run, ["step"])
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=20)
    assert run.returncode == 130
    (session,) = here.json("ls")
    assert session["status"] == "stepping"
    assert f"outrider tail -f {session['id']}" in err
    assert f"outrider stop {session['id']}" in err
    assert here.json("stop", session["id"]) == {"id": session["id"], "status": "failed"}
    assert here.records(session["id"])[-1]["via"] == "cli"


def test_a_run_that_is_stopped_from_elsewhere_ends_with_1(here: Place) -> None:
    here.up()
    with here.start("run", "--model", "rehearsal/waits", "--json", "go") as run:
        lines_until(run, ["step"])
        here.ok("stop", here.json("ls")[0]["id"])
        out, _ = run.communicate(timeout=20)
    assert run.returncode == 1
    assert json.loads(out.splitlines()[-1])["kind"] == "error"


def test_a_reader_that_goes_early_is_no_error(here: Place) -> None:
    here.up()
    line = f"{' '.join(OUTRIDER)} run --model rehearsal/tour --json go | head -n 1"
    done = subprocess.run(
        ["bash", "-c", line], env=here.environ, cwd=here.work, capture_output=True, text=True, timeout=50
    )
    assert json.loads(done.stdout)["kind"] == "start"
    assert done.stderr == ""


def test_a_terminal_shows_colours_and_what_streams_and_no_color_is_honoured(here: Place) -> None:
    here.up()
    shown = in_terminal(here, "run", "--model", "rehearsal/tour", "go")
    assert "\x1b[1;32manswer\x1b[0m" in shown
    assert re.search(r"\x1b\[\d+A\r\x1b\[J", shown)
    plain = in_terminal(here, "ls", NO_COLOR="1")
    assert "\x1b" not in plain


def is_gone(pid: int) -> bool:
    """Whether a process has ended, collected by its parent or not."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 0)[0])
    finally:
        os.close(handle)


def in_terminal(here: Place, *arguments: str, **environ: str) -> str:
    """What a verb writes to a terminal."""
    mine, its = pty.openpty()
    with subprocess.Popen(
        [*OUTRIDER, *arguments],
        env=here.environ | {"TERM": "xterm-256color"} | environ,
        cwd=here.work,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    ) as process:
        os.close(its)
        data = b""
        try:
            while select.select([mine], [], [], 30)[0] and (piece := os.read(mine, 4096)):
                data += piece
        except OSError:  # Linux says EIO when the other end has closed
            pass
        os.close(mine)
        assert process.wait(20) == 0
    return data.decode()


@pytest.fixture
def tree(here: Place) -> Path:
    """A copy of the scripts and the packages, with this environment in place of the one the demo would make."""
    made = here.home / "tree"
    made.mkdir()
    for name in ("scripts", "daemon", "mesh", "tui"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    (made / "scripts/venv.sh").write_text("venv() { :; }\n")
    program = made / ".venv/bin/outrider"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m daemon.cli "$@"\n')
    program.chmod(0o755)
    return made


def test_the_demo_prints_a_closed_session_and_the_line_that_opens_it_again(here: Place, tree: Path) -> None:
    done = subprocess.run(
        [str(tree / "scripts/demo")],
        env=here.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    id = re.search(r"^id +([0-9a-f]{16})\nstatus +closed$", done.stdout, re.MULTILINE)
    assert id is not None, done.stdout
    line = re.search(r"^export OUTRIDER_DATA=.*$", done.stdout, re.MULTILINE)
    assert line is not None
    assert "outrider is down" in done.stdout
    again = subprocess.run(
        ["bash", "-c", line[0]], env=here.environ, capture_output=True, text=True, timeout=50
    )
    assert again.returncode == 0, again.stderr
    assert "#1 session started" in again.stdout
    assert id[1] in line[0]
    kept = subprocess.run(
        [str(tree / "scripts/demo"), "--model", "rehearsal/echo", "hello you"],
        env=here.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert kept.returncode == 0, kept.stderr
    assert "answer\n  hello you\n" in kept.stdout
    assert "was up before and stays up" in kept.stdout
    assert len(here.json("ls")) == 2


def test_the_demo_tells_of_a_real_model_and_asks_for_none_where_nobody_can_answer(
    here: Place, tree: Path
) -> None:
    done = subprocess.run(
        [str(tree / "scripts/demo"), "hello you"],
        env=here.environ | {"ANTHROPIC_API_KEY": "not-a-key"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"for the model: scripts/demo --model anthropic/\S+\n", done.stdout)
    assert "A session with rehearsal/tour" in done.stdout


def test_the_demo_says_how_to_name_a_model_of_a_server_that_lists_none_and_ends_in_a_pipe_that_closes(
    here: Place, tree: Path
) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{tree}/scripts/demo | grep -m 1 openai-chat"],
        env=here.environ | {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout == "  scripts/demo --model openai-chat/NAME\n", done.stderr
    assert here.outrider("ls").returncode == 4


def test_the_demo_offers_the_model_of_a_server_of_ones_own(here: Place, tree: Path) -> None:
    done = subprocess.run(
        [str(tree / "scripts/demo"), "hello you"],
        env=here.environ | {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_MODEL": "small"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert "scripts/demo --model openai-chat/small\n" in done.stdout
    assert "A session with rehearsal/tour" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--fly"], "no option --fly"), (["a", "b"], "quotes"), (["--model"], "needs")]
)
def test_the_demo_refuses_what_it_does_not_know(tree: Path, arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [str(tree / "scripts/demo"), *arguments], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 2
    assert words in done.stderr

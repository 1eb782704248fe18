"""The terminal UI in a terminal, against a real daemon: made, watched, posted to, stopped, retried, copied; the daemon
ended and started in between; and left."""

import base64
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.tmuxing import PATIENCE, Tmux, tmux
from tests.running import OUTRIDER, Place, place

WAITING = """
per = "message"
[[steps]]
text = "I begin."
[[steps.calls]]
tool = "run"
arguments = { worker = "{worker}", code = "echo working; sleep 600" }
[[steps]]
text = "I was let go on."
"""


LOOKING = """
per = "message"
[[steps]]
text = "I look at it."
[[steps.calls]]
tool = "read"
arguments = { worker = "{worker}", path = "red.png" }
[[steps]]
text = "I saw it."
"""
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


@pytest.fixture
def here() -> Iterator[Place]:
    with place() as made:
        made.script("waits", WAITING)
        yield made


@pytest.fixture
def screen(here: Place) -> Iterator[Tmux]:
    here.up()
    with tmux(here.home, OUTRIDER, here.environ, here.work, (100, 30)) as made:
        yield made


def messages(here: Place, id: str) -> list[str]:
    return [record["body"] for record in here.records(id) if record["kind"] == "message"]


def test_a_session_is_opened_watched_and_posted_to(here: Place, screen: Tmux) -> None:
    screen.until("No session yet")
    here.ok("run", "--model", "rehearsal/echo", "first words")
    screen.until("first words", "✓ closed")
    screen.press("Enter")
    screen.until("message via cli", "● answer", "write a message")
    assert screen.title == "first words · outrider"
    screen.write("second words")
    screen.press("C-j")
    screen.write("on two lines")
    screen.press("Enter")
    screen.until("message via tui", "second words", "on two lines", "step 2")
    id = here.json("ls")[0]["id"]
    assert messages(here, id) == ["first words", "second words\non two lines"]
    screen.press("C-q")
    screen.ended()


def test_stop_retry_and_copy(here: Place, screen: Tmux) -> None:
    id = here.ok("new", "--model", "rehearsal/waits").strip()
    here.ok("post", id, "begin")
    screen.until("begin", "● stepping", "run · on local")
    screen.press("Enter")
    screen.until("I begin.", "working")
    screen.press("C-x")
    screen.until("✗ failed", "stopped via tui")
    screen.press("C-r")
    screen.until("I was let go on.", "✓ closed")
    screen.press("C-f")
    screen.until(f"copy of {id[:8]}")
    screen.press("C-s")
    screen.until("2 sessions")


def test_a_picture_that_a_call_brought_is_opened_by_the_systems_program(here: Place) -> None:
    here.script("looks", LOOKING)
    (here.work / "red.png").write_bytes(PNG)
    opener = here.home / "bin/xdg-open"
    opener.parent.mkdir()
    opener.write_text(f'#!/bin/sh\ncp "$1" {here.home}/given\n')
    opener.chmod(0o755)
    here.up()
    here.ok("run", "--model", "rehearsal/looks", "--worker", f"local:{here.work}", "look")
    environ = here.environ | {"PATH": f"{opener.parent}:{here.environ['PATH']}", "DISPLAY": ":0"}
    with tmux(here.home, OUTRIDER, environ, here.work, (100, 30)) as screen:
        screen.until("look", "✓ closed")
        screen.press("Enter")
        screen.until("▣ image/png", "enter opens it outside", "I saw it.")
        screen.press("Escape")
        screen.until("Follow")
        for _ in range(2):  # up from the last step to the answer, and to the result
            screen.press("k")
        screen.press("Enter")
        screen.until("xdg-open opens it")
        assert (here.home / "given").read_bytes() == PNG
        screen.press("C-q")
        screen.ended()


def test_a_daemon_that_is_ended_and_started_loses_and_doubles_nothing(here: Place, screen: Tmux) -> None:
    id = here.ok("new", "--model", "rehearsal/echo").strip()
    screen.until("no message yet")
    screen.press("Enter")
    screen.until("write a message")
    screen.write("before")
    screen.press("Enter")
    screen.until("step 1")
    here.ok("down")
    screen.until("▲", "read only until it is back", "before")
    screen.write("while it was away")
    screen.press("Enter")
    screen.until("↑ waits for the daemon: while it was away")
    here.up()
    screen.until("step 2", without="▲")
    screen.until("while it was away", without="↑")
    screen.write("after")
    screen.press("Enter")
    screen.until("step 3")
    assert messages(here, id) == ["before", "while it was away", "after"]


def test_without_a_daemon_one_is_started_and_it_is_left_running(here: Place) -> None:
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("no daemon listens", "s: start one on this machine")
        screen.press("s")
        screen.until("No session yet")
        screen.press("C-q")
        screen.ended()
    assert here.json("info", here.ok("new", "--model", "rehearsal/echo").strip())["status"] == "closed"


def test_keys_of_the_configuration_hold_and_a_wrong_one_is_told_before_anything_is_drawn(here: Place) -> None:
    here.up()
    config = here.home / ".config/outrider/outrider.toml"
    config.write_text('[tui]\ntheme = "ansi-dark"\n[tui.keys]\napp.quit = "f10"\n')
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("No session yet")
        screen.press("F10")
        screen.ended()
    config.write_text('[tui.keys]\napp.quite = "f10"\n')
    command = ["sh", "-c", f'{shlex.join(OUTRIDER)}; echo "code $?"; cat']
    with tmux(here.home, command, here.environ, here.work, (80, 24)) as screen:
        text = screen.until("code 2")
    assert "there is no 'app.quite' (did you mean 'app.quit'?)" in " ".join(text.split())


def test_bytes_that_are_no_text_end_nothing(here: Place, screen: Tmux) -> None:
    screen.until("No session yet")
    screen.run("send-keys", "-t", "it", "-H", "ff", "fe", "c3")
    screen.press("?")
    screen.until("Everywhere")


def test_on_a_pipe_help_is_printed(here: Place) -> None:
    assert "Usage: outrider" in here.ok()


def test_quitting_does_not_wait_for_an_address_that_does_not_answer(here: Place) -> None:
    environ = here.environ | {"OUTRIDER_KEY": "ork_x"}
    command = [*OUTRIDER, "--url", "http://192.0.2.1:4600"]  # an address for documentation: nothing is there
    with tmux(here.home, command, environ, here.work, (80, 24)) as screen:
        screen.until("outrider · http://192.0.2.1:4600")
        screen.press("C-q")
        screen.ended()


def test_a_post_outlives_a_killed_screen(here: Place) -> None:
    pid = here.up()
    id = here.ok("new", "--model", "rehearsal/echo").strip()
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("write a message")
        here.kill(pid)
        screen.until("▲")
        screen.write("kept")
        screen.press("Enter")
        screen.until("↑ waits for the daemon: kept")
        screen.press("C-q")
        screen.ended()
    here.up()
    assert messages(here, id) == []
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("kept", "✓ closed")
    assert messages(here, id) == ["kept"]


def test_a_draft_outlives_a_terminal_that_is_closed(here: Place) -> None:
    here.up()
    here.ok("new", "--model", "rehearsal/echo")
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("write a message")
        screen.write("half a thought")
        screen.until("half a thought")
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("half a thought")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_a_signal_gives_the_terminal_back_and_keeps_the_draft(here: Place, number: signal.Signals) -> None:
    here.up()
    here.ok("new", "--model", "rehearsal/echo")
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("write a message")
        screen.write("half a thought")
        screen.until("half a thought")
        assert screen.told("#{alternate_on}#{mouse_any_flag}") == "11"
        os.kill(int(screen.told("#{pane_pid}")), number)
        screen.ended()
        assert screen.told("#{alternate_on}#{mouse_any_flag}") == "00"
        assert "Traceback" not in screen.screen()
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("half a thought")


def test_an_editor_that_there_is_not_is_told_on_the_screen(here: Place) -> None:
    here.up()
    here.ok("new", "--model", "rehearsal/echo")
    with tmux(here.home, OUTRIDER, {**here.environ, "VISUAL": "/no/ed"}, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("write a message")
        screen.write("half a thought")
        screen.press("C-g")
        screen.until("half a thought", "/no/ed: No such file")


def test_ctrl_c_in_an_editor_comes_back_to_the_message_as_it_was(here: Place) -> None:
    here.up()
    here.ok("new", "--model", "rehearsal/echo")
    slow = here.home / "slow"
    slow.write_text("#!/bin/sh\necho I edit; read line\n")
    slow.chmod(0o700)
    with tmux(here.home, OUTRIDER, {**here.environ, "VISUAL": str(slow)}, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("write a message")
        screen.write("half a thought")
        screen.until("half a thought")
        screen.press("C-g")
        screen.until("I edit")
        screen.press("C-c")
        screen.until("half a thought", "slow ended with")


def test_a_signal_while_an_editor_is_open_ends_both_and_keeps_the_draft(here: Place) -> None:
    here.up()
    here.ok("new", "--model", "rehearsal/echo")
    slow = here.home / "slow"
    slow.write_text(f"#!/bin/sh\necho $$ >{here.home}/pid; echo I edit; exec sleep 600\n")
    slow.chmod(0o700)
    with tmux(here.home, OUTRIDER, {**here.environ, "VISUAL": str(slow)}, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("write a message")
        screen.write("half a thought")
        screen.until("half a thought")
        screen.press("C-g")
        screen.until("I edit")
        os.kill(int(screen.told("#{pane_pid}")), signal.SIGHUP)
        screen.ended()
    with pytest.raises(ProcessLookupError):
        os.kill(int((here.home / "pid").read_text()), 0)
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("half a thought")


def test_a_terminal_that_goes_away_without_a_signal_ends_it(here: Place) -> None:
    here.up()
    here.ok("new", "--model", "rehearsal/echo")
    terminal, its = os.openpty()  # of which it is no session: nobody sends it SIGHUP
    environ = {**here.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(
        OUTRIDER, stdin=its, stdout=its, stderr=its, env=environ, cwd=here.work, start_new_session=True
    ) as ui:
        os.close(its)
        seen = b""
        while b"session" not in seen:
            seen += os.read(terminal, 65536)
        os.close(terminal)
        assert ui.wait(PATIENCE) == 128 + signal.SIGHUP


def test_stopped_and_let_go_on_it_is_typed_into_as_before(here: Place) -> None:
    here.up()
    here.ok("new", "--model", "rehearsal/echo")
    with tmux(here.home, OUTRIDER, here.environ, here.work, (80, 24)) as screen:
        screen.until("no message yet")
        screen.press("Enter")
        screen.until("write a message")
        pid = int(screen.told("#{pane_pid}"))
        readers = threads(pid)
        for number in (signal.SIGSTOP, signal.SIGTSTP) * 5:
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGCONT)
        screen.write("half a thought")
        screen.until("half a thought")
        assert threads(pid) < readers + 5  # some write drafts; each stop is not to leave another reader
        screen.press("C-q")
        screen.ended()


def test_a_terminal_that_is_not_one_of_utf_8_gets_what_it_can_show(here: Place) -> None:
    here.up()
    here.ok("run", "--model", "rehearsal/echo", "Zäune")
    with tmux(
        here.home, OUTRIDER, {**here.environ, "PYTHONIOENCODING": "ascii"}, here.work, (80, 24)
    ) as screen:
        assert "\\" not in screen.until("Z?une", "? closed")
        screen.press("C-q")
        screen.ended()


def test_where_it_could_not_draw_help_is_printed(here: Place) -> None:
    command = [
        "sh",
        "-c",
        f"{shlex.join(OUTRIDER)} 2>/dev/null; {shlex.join(OUTRIDER)} 2>&-; echo ended; cat",
    ]
    with tmux(here.home, command, here.environ, here.work, (160, 200)) as screen:
        assert screen.until("ended").count("Usage: outrider") == 2


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))

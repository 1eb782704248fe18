"""What agents' code does to a persistent bash, and what comes back."""

import asyncio
import os
import random
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from daemon.protocol import frames
from daemon.worker import bash, interpreter, login, program
from daemon.worker.keeper import SOCKET, Keeper
from tests.daemon.worker.dialing import Dial, Ran, Refused
from tests.e2e.driving import becomes


async def test_output_and_status_come_back(dial: Dial) -> None:
    ran = await dial.run("echo out; echo err >&2; false")
    assert (ran.text, ran.end.exit) == ("out\nerr\n", 1)
    assert ran.end == frames.Result(id=ran.end.id, exit=1, seconds=ran.end.seconds, len=8)
    assert b"out\nerr\n".startswith(b"".join(ran.live))  # what comes last may be in the result alone


async def test_variables_functions_folder_and_options_carry_over(dial: Dial, tmp_path: Path) -> None:
    await dial.run(f"cd {tmp_path}; x=5; f() {{ echo f$1; }}; set -u; alias a=b")
    ran = await dial.run("pwd; echo $x; f 1; alias")
    assert ran.text.splitlines() == [str(tmp_path), "5", "f1", "alias a='b'"]


async def test_sessions_have_environments_of_their_own(dial: Dial) -> None:
    await dial.run("x=1", session="one")
    assert (await dial.run("echo ${x-none}", session="two")).text == "none\n"
    assert (await dial.run("echo ${x-none}", session="one")).text == "1\n"


async def test_runs_of_one_environment_queue_in_order(dial: Dial) -> None:
    ids = [dial.begin(f"sleep 0.0{9 - n}; echo {n}; n={n}; echo ${{before-}}; before={n}") for n in range(5)]
    texts = [(await dial.ended(id)).text for id in ids]
    assert texts == ["0\n\n", "1\n0\n", "2\n1\n", "3\n2\n", "4\n3\n"]


async def test_runs_of_two_sessions_go_side_by_side(dial: Dial, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reads = dial.begin(f"cat {tmp_path}/fifo", session="one")
    writes = dial.begin(f"echo through > {tmp_path}/fifo", session="two")
    assert (await dial.ended(writes)).end.exit == 0
    assert (await dial.ended(reads)).text == "through\n"


async def test_the_first_folder_is_the_home_or_cwd(dial: Dial, home: Path, tmp_path: Path) -> None:
    assert (await dial.run("pwd; echo $FROM_PROFILE", session="home")).text == f"{home}\nyes\n"
    assert (await dial.run("pwd", session="cwd", cwd=str(tmp_path))).text == f"{tmp_path}\n"
    with pytest.raises(Refused, match=r"not_found: `cwd` /no/where is not a folder on this worker"):
        await dial.run("pwd", session="no", cwd="/no/where")


async def test_the_operators_variables_are_there_and_the_daemons_are_not(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    (home / ".bash_profile").write_text("export PROFILE_API_KEY=secret PYTHONPATH=/mine EDITOR=vi\n")
    environ = os.environ | {
        "PLAIN": "yes",
        "SOME_API_KEY": "secret",
        "GH_TOKEN": "secret",
        "OUTRIDER_DATA": "x",
    }
    environ |= {"VIRTUAL_ENV": "/venv", "PYTHONHOME": "/x", "NOTIFY_SOCKET": "/n"}
    keeper = Keeper(scratch, "1", environ)
    async with keeper.listening(), await Dial.to(scratch / SOCKET) as dial:
        said = (await dial.run("env")).text
    assert "PLAIN=yes" in said
    assert "PYTHONPATH=/mine" in said, "what the operator's own profile sets for Python is the operator's"
    for gone in ("secret", "OUTRIDER_", "VIRTUAL_ENV", "PYTHONHOME", "NOTIFY_SOCKET", "EDITOR=vi"):
        assert gone not in said


async def test_code_sees_three_descriptors_and_no_terminal(dial: Dial) -> None:
    ran = await dial.run("ls /proc/self/fd | wc -l; readlink /proc/self/fd/0; : </dev/tty")
    assert ran.text.splitlines()[:2] == ["4", "/dev/null"], "0 to 2, and the folder ls reads"
    assert "/dev/tty" in ran.text
    assert ran.end.exit == 1


STDIN = {
    "cat": 0,
    "read x": 1,
    "read x </dev/tty": 1,
    "python3": 0,
    "ssh -o BatchMode=no nohost.invalid": 255,
    "vi /tmp/no-such-file-of-ours": None,
    "less /etc/passwd": 0,
    "sudo -k true": None,
    "bash": 0,
}


@pytest.mark.parametrize("code", STDIN)
async def test_what_reads_stdin_or_the_terminal_ends_at_once(dial: Dial, code: str) -> None:
    if shutil.which(code.split()[0]) is None and code.split()[0] != "read":
        pytest.skip(f"no {code.split()[0]} here")
    ran = await dial.run(code, timeout=20)
    assert not ran.end.stopped
    if STDIN[code] is not None:
        assert ran.end.exit == STDIN[code]


async def test_git_says_that_no_editor_opens_and_leaves_history_alone(dial: Dial, tmp_path: Path) -> None:
    await dial.run(
        f"cd {tmp_path} && git init -q . && git config user.email a@b.c && git config user.name a"
        " && for n in 1 2 3; do echo $n >f; git add f; git commit -qm $n; done"
    )
    before = (await dial.run("git log --format=%H")).text
    assert len(before.split()) == 3
    for code in ("git commit --amend", "git rebase -i HEAD~2", "git commit --allow-empty"):
        ran = await dial.run(code)
        assert ran.end.exit != 0
        assert "no editor can be opened here" in ran.text
    assert (await dial.run("git log --format=%H; git status --porcelain")).text == before
    assert (await dial.run("git log")).end.exit == 0


OPEN = {
    "echo 'abc": "looking for matching",
    'echo "abc': "looking for matching",
    "echo `date": "looking for matching",
    "cat <<'EOF'\nhello\n  EOF\n": "delimited by end-of-file",
    "cat <<EOF\nhello": "delimited by end-of-file",
    "if true; then echo a": "unexpected end of file",
    "echo first; )": "unexpected token",
}


@pytest.mark.parametrize("code", OPEN)
async def test_code_that_does_not_parse_is_refused_and_nothing_runs(
    dial: Dial, tmp_path: Path, code: str
) -> None:
    with pytest.raises(Refused) as refused:
        await dial.run(f"touch {tmp_path}/ran\n{code}", call="c")
    assert refused.value.code == "syntax"
    assert OPEN[code] in refused.value.message
    assert "/dev/fd" not in refused.value.message
    assert not (tmp_path / "ran").exists()
    assert isinstance((await dial.attach("c"))[1], frames.Unknown)
    assert (await dial.run("echo ok")).text == "ok\n"


async def test_nul_and_an_unknown_interpreter_are_refused(dial: Dial) -> None:
    with pytest.raises(Refused, match="bad_request: the code holds a NUL byte"):
        await dial.run(b"echo a\0b")
    with pytest.raises(Refused, match="bad_request: there is no interpreter `perl` here, there is: bash"):
        await dial.run("1", interpreter="perl")
    with pytest.raises(Refused, match="`timeout` must be over 0"):
        await dial.run("1", timeout=0)
    with pytest.raises(Refused, match="`session` must have 1 to"):
        await dial.run("1", session="")


WELL = {
    "cat <<EOF\nhello\nEOF": ("hello\n", 0),
    "cat <<'EOF'\n$x\nEOF\n": ("$x\n", 0),
    "echo s; echo 1 0; echo ready": ("s\n1 0\nready\n", 0),
    "trap '' EXIT; trap 'echo never' DEBUG; trap - DEBUG; echo a": ("never\na\n", 0),
    "echo a #": ("a\n", 0),
    "echo a \\": ("a \\\n", 0),
    "return 7": ("", 7),
    "(exit 3)": ("", 3),
    "shopt -s extglob\ncase ab in a@(b|c)) echo yes;; esac": ("yes\n", 0),
    "": ("", 0),
    "echo é ü; printf '%s' 'no newline'": ("é ü\nno newline", 0),
    "x=y; y=z; echo ${x?} ${!x}": ("y z\n", 0),
    "echo ${nothere?is not set}": ("", 1),
    "set -u; echo $nothere": ("", 1),
    "history; echo a!b": ("a!b\n", 0),
    "nosuchcommand": ("", 127),
}


@pytest.mark.parametrize("code", WELL)
async def test_code_of_every_shape_ends_as_it_should(dial: Dial, code: str) -> None:
    text, exit = WELL[code]
    ran = await dial.run(code)
    assert ran.end.exit == exit
    assert text in ran.text
    again = await dial.run("echo ok")
    assert (again.text, again.end.reset) == ("ok\n", "")


async def test_large_code_runs(dial: Dial) -> None:
    ran = await dial.run("\n".join(f"x={n} # {'-' * 80}" for n in range(2000)) + "\necho $x")
    assert ran.text == "1999\n"


async def test_redirecting_the_shells_own_output_works(dial: Dial, tmp_path: Path) -> None:
    ran = await dial.run(f"exec > >(tee {tmp_path}/f) 2>&1; echo one")
    assert ran.text == "one\n"
    for n in range(5):
        ran = await dial.run(f"echo two >&{1 + n % 2}")
        assert (ran.text, ran.end.notes) == ("two\n", ())
    assert (tmp_path / "f").read_text() == "one\n" + 5 * "two\n"


ENDS = {
    "exit 3": (3, "status 3"),
    "exec true": (0, "status 0"),
    "exec sh -c 'exit 4'": (4, "status 4"),
    "set -e; false; echo not": (1, "status 1"),
    "kill -9 $$": (137, "killed by SIGKILL"),
}


@pytest.mark.parametrize("code", ENDS)
async def test_a_shell_that_ends_is_replaced_and_the_model_is_told(dial: Dial, code: str) -> None:
    exit, why = ENDS[code]
    await dial.run("x=1")
    ran = await dial.run(f"echo before; {code}")
    assert ran.end.exit == exit
    assert ran.text.startswith("before\n")
    assert why in ran.notes
    assert "lost" in ran.notes
    again = await dial.run("echo ${x-lost}")
    assert again.text == "lost\n"
    assert why in again.end.reset
    assert (await dial.run("echo ok")).end.reset == "", "the model is told once"


BACKGROUND = [
    "sleep 300 & echo done",
    "setsid sleep 300 & echo done",
    "(while :; do echo x; sleep 1; done) & echo done",
    "sleep 300 3>&1 >/dev/null 2>&1 & echo done",
    "sleep 300 >/dev/null & echo done",
    "nohup sleep 300 & echo done",
    "(setsid sleep 300 & ) ; echo done",
]


@pytest.mark.parametrize("code", BACKGROUND)
async def test_a_background_process_does_not_keep_a_run_open(dial: Dial, code: str) -> None:
    ran = await dial.run(code, timeout=30)
    assert "done\n" in ran.text
    assert (ran.end.exit, ran.end.stopped) == (0, "")
    assert "still running in the background" in ran.notes
    assert "sleep 300" in ran.notes or "sleep 1" in ran.notes or "bash" in ran.notes
    assert (await dial.run("echo ok")).notes == "", "the model is told once"
    assert "ended 1 process" in await dial.kill() or "while" in code


async def test_what_runs_in_the_background_prints_into_a_file_between_runs(
    dial: Dial, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "went")
    ran = await dial.run(f"(read x <{tmp_path}/go; echo late; echo >{tmp_path}/went) & echo now")
    later = Path(ran.notes.rpartition(" ")[2])
    await asyncio.to_thread((tmp_path / "go").write_text, "\n")
    await asyncio.to_thread((tmp_path / "went").read_text)
    assert (await dial.run("echo next")).text == "next\n"
    assert later.read_text() == "late\n"


async def test_output_of_a_process_substitution_is_waited_for(dial: Dial) -> None:
    assert (await dial.run("echo abc > >(sleep 0.05; tr a-z A-Z)")).text == "ABC\n"


CLOSES = [
    "exec 1>&- 2>&-",
    "exec >&-",
    "exec 2>&-",
    "exec 0<&- 1>&- 2>&-; x=1",
    "exec >&-; f() { exec >&-; }; f",
]


@pytest.mark.parametrize("code", CLOSES)
async def test_output_that_code_closes_is_there_again_at_the_next_run(dial: Dial, code: str) -> None:
    await dial.run(f"x=0; set -u; {code}; y=kept")
    ran = await dial.run("echo out; echo err >&2; cat; echo $y; ls /proc/self/fd | wc -l | tr -d ' '")
    assert (ran.text, ran.end.exit, ran.end.reset) == ("out\nerr\nkept\n4\n", 0, "")


async def test_output_that_code_closes_is_there_again_when_the_next_run_comes_while_the_shell_tidies_up(
    dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dial.run("exec >&-")
    looked = []

    def tidying(path: str) -> str:
        """What an instant shows whose first look still finds the status being said, and whose next does not."""
        looked.append(path)
        if len(looked) == 1:
            return {"1": "pipe:[1]", "2": "/dev/null"}[path[-1]]
        return os.readlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(bash, "os", SimpleNamespace(readlink=tidying))
        ran = await dial.run("echo out")
    assert (ran.text, bool(looked)) == ("out\n", True)


async def test_output_that_code_sends_elsewhere_stays_there(dial: Dial, tmp_path: Path) -> None:
    await dial.run(f"exec >{tmp_path}/out; exec 2>&-")
    ran = await dial.run("echo one; echo err >&2")
    assert (ran.text, len(ran.end.notes)) == ("err\n", 1)
    assert "standard output of this bash goes where an earlier run sent it" in ran.end.notes[0]
    assert (tmp_path / "out").read_text() == "one\n"


async def test_output_that_code_has_sent_elsewhere_comes_back_as_the_note_says(dial: Dial) -> None:
    assert (await dial.run("set -x; exec >/dev/null 2>&1; echo lost")).end.notes == ()
    ran = await dial.run("echo lost; echo lost >&2")
    assert ran.text == ""
    undo = [note.split("`")[1] for note in ran.end.notes]
    assert undo == ["exec >&-", "exec 2>&-"]
    await dial.run("; ".join(undo))
    back = await dial.run("echo out")
    assert (back.text.splitlines()[1:], back.end.notes) == (["++ echo out", "out"], ())


@pytest.mark.parametrize(
    ("through", "comes"),
    [
        ("tee {log}", True),
        ('while read -r x; do echo "$x" >>{log}; echo "$x"; done', True),
        ("sed s/x/x/ | tee {log}", True),
        ("cat >{log}", False),
        ("sed s/x/x/ | cat >{log}", False),
        ('while read -r x; do echo "$x" >>{log}; done >/dev/null', False),
    ],
)
async def test_output_that_another_process_reads_is_told_where_it_does_not_come_back(
    dial: Dial, tmp_path: Path, through: str, comes: bool
) -> None:
    log = tmp_path / "log"
    assert (await dial.run(f"exec > >({through.format(log=log)})")).end.notes[1:] == ()
    for word in ("one", "two"):
        ran = await dial.run(f"echo {word}")
        said = [note for note in ran.end.notes if "standard output of this bash goes where" in note]
        assert len(said) == (not comes)
        if comes and through.startswith("tee"):
            assert ran.text == f"{word}\n"
    await dial.run("exec >&-")
    back = await dial.run("echo back")
    assert "back" in back.text.splitlines()
    assert "goes where" not in back.notes
    await becomes(lambda: log.exists() and "one\n" in log.read_text(), "what read it has written it")


async def test_output_into_a_pipe_that_nobody_reads_any_more_is_told(dial: Dial) -> None:
    await dial.run("exec 2> >(cat >&2); kill -9 $!; while kill -0 $! 2>/dev/null; do :; done")
    ran = await dial.run("echo on")
    assert (ran.text, len(ran.end.notes)) == ("on\n", 1)
    assert "standard error of this bash goes where an earlier run sent it" in ran.notes


async def test_the_time_limit_ends_a_run_and_keeps_its_output(dial: Dial) -> None:
    await dial.run("x=1")
    ran = await dial.run("echo before; sleep 300; echo after", timeout=0.3)
    assert ran.text == "before\n"
    assert (ran.end.exit, ran.end.stopped) == (None, "timeout")
    again = await dial.run("echo $x")
    assert (again.text, again.end.reset) == ("1\n", "")


# A loop over the children of its interpreter's parent, the reaper, and over theirs.
ITS_PROCESSES = (
    "for p in $(for c in $(cat /proc/$PPID/task/*/children); do "
    "echo $c; cat /proc/$c/task/*/children; done); do"
)
STUBBORN = [
    "bash -c 'sleep 1000 & sleep 1000'",
    "setsid sleep 1000 & sleep 1000",
    "setsid setsid sleep 1000 & disown; sleep 1000",
    "(trap '' TERM; while :; do sleep 1000; done) & sleep 1000",
    "timeout 1000 sleep 1000",
    "while :; do sleep 1000; done",
    "sleep 1000 | sleep 1000 | cat",
    "kill -STOP $$",
    "read x < <(sleep 1000)",
    "wait_for() { sleep 1000; }; wait_for",
]


@pytest.mark.parametrize("code", STUBBORN)
async def test_a_stopped_run_leaves_nothing_behind(dial: Dial, code: str) -> None:
    await dial.run("kept=1")
    ran = await dial.run(f"echo before; {code}", timeout=0.2)
    assert ran.end.stopped == "timeout"
    assert ran.text.startswith("before\n")
    again = await dial.run(
        f"echo $kept; {{ {ITS_PROCESSES} tr '\\0' ' ' </proc/$p/cmdline; done | grep '[s]leep 1000'; }} 2>/dev/null"
    )
    assert (again.text, again.end.reset) == ("1\n", "")


LOSES_SIGINT = (
    "python3 -c 'import signal, time; signal.signal(2, signal.SIG_IGN); print(1, flush=True); time.sleep(99)'"
)
HANDLES_SIGINT = (
    "python3 -c 'import signal, sys, time; signal.signal(2, lambda *_: sys.exit(0)); print(1, flush=True); "
    "time.sleep(99)'"
)
GOES_ON = [
    f"{HANDLES_SIGINT}; echo after",
    f"for i in 1 2 3; do {HANDLES_SIGINT}; echo after; done; echo after",
    f"f() {{ {HANDLES_SIGINT}; echo after; }}; g() {{ f; echo after; }}; g; echo after",
    f"{LOSES_SIGINT}; echo after",
    f"x=$({LOSES_SIGINT}); echo after",
    f"eval '{HANDLES_SIGINT.replace(chr(39), chr(34))}; echo after'; echo after",
    "trap '' INT TERM; sleep 99; echo after; sleep 99; echo after",
    "sleep 99 || echo after; echo after",
    "while :; do :; done; echo after",
    "f() { while :; do :; done; echo after; }; f || echo after",
    "while /bin/true; do /bin/true; done; echo after",
    "read y < <(sleep 99); echo after",
    "sleep 99 & wait; echo after",
    "(sleep 99; echo after); echo after",
    "set -eu; f() { sleep 99; echo after; }; f; echo after",
    "set -o pipefail; sleep 99 | cat; echo after",
    "shopt -s extdebug; trap 'true' DEBUG; sleep 99; echo after",
    "mkfifo ff; exec 5<ff; echo after",
    "cat <(sleep 99); echo after",
    "trap 'echo after' EXIT; sleep 99; echo after",
]


@pytest.mark.parametrize("code", GOES_ON)
async def test_of_a_stopped_run_no_further_command_begins_and_its_state_is_kept(
    dial: Dial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    monkeypatch.setattr(interpreter, "TERM_AFTER", 0.6)
    monkeypatch.setattr(interpreter, "KILL_AFTER", 0.8)
    await dial.run(f"kept=1; cd {tmp_path}")
    ran = await dial.run(f"echo before; {code}", timeout=0.2)
    assert ran.end.stopped == "timeout"
    assert "after" not in ran.text
    again = await dial.run("set +eu; trap - EXIT; echo $kept; g() { echo in; echo out; }; g; (echo sub)")
    assert (again.text, again.end.reset) == ("1\nin\nout\nsub\n", "")


async def test_of_a_run_that_is_stopped_before_its_shell_has_begun_it_no_second_command_begins(
    dial: Dial, tmp_path: Path
) -> None:
    shell = int((await dial.run("kept=1; echo $$")).text)
    for n in range(20):
        os.kill(shell, signal.SIGSTOP)  # as one that has no turn on a busy machine
        id = dial.begin(f"sleep 300; echo after >>{tmp_path}/after", call=f"c{n}")
        assert await dial.interrupt(f"c{n}") == ""
        ran = await dial.ended(id)
        assert (ran.end.stopped, ran.end.exit) == ("interrupt", None)
    again = await dial.run("echo $kept")
    assert (again.text, again.end.reset, os.listdir(tmp_path)) == ("1\n", "", [])


async def test_sigint_that_code_sends_to_its_own_shell_ends_the_code(dial: Dial) -> None:
    ran = await dial.run("x=1; echo before; kill -INT $$; echo after")
    assert (ran.text, ran.end.stopped, ran.end.reset) == ("before\n", "", "")
    assert (await dial.run("echo $x")).text == "1\n"


async def test_a_shell_that_sends_itself_sigint_runs_what_comes_next_also_where_it_traces_functions(
    dial: Dial,
) -> None:
    await dial.run("set -T; f() { kill -INT $$; echo after; }; x=1")
    assert (await dial.run("f; echo after")).text == ""
    for _ in range(2):
        assert (await dial.run("echo $x; g() { echo in; }; g")).text == "1\nin\n"


async def test_a_shell_that_threw_its_order_away_can_be_stopped_the_next_time(dial: Dial) -> None:
    ran = await dial.run("x=1; trap - INT URG; kill -INT $$; echo after", timeout=0.3)
    assert (ran.text.strip(), ran.end.stopped) == ("", "timeout")
    ran = await dial.run("echo before; while :; do :; done", timeout=0.3)
    assert (ran.text, ran.end.stopped) == ("before\n", "timeout")
    again = await dial.run("echo $x")
    assert (again.text, again.end.reset) == ("1\n", "")


async def test_a_shell_that_never_answers_is_killed_and_reset(
    dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "TERM_AFTER", 0.1)
    monkeypatch.setattr(interpreter, "KILL_AFTER", 0.2)
    monkeypatch.setattr(interpreter, "LAST_AFTER", 0.5)
    ran = await dial.run("builtin() { :; }", timeout=0.1)
    assert (ran.end.stopped, ran.end.exit) == ("timeout", None)
    assert "did not come back" in ran.notes
    assert "did not come back" in (await dial.run("echo ok")).end.reset


async def test_an_interrupt_ends_one_call_and_not_the_next(dial: Dial) -> None:
    first = dial.begin("echo began; sleep 300", call="first")
    second = dial.begin("echo second", call="second")
    await dial.prints(first, b"began\n")
    assert await dial.interrupt("first") == ""
    ran = await dial.ended(first)
    assert (ran.end.stopped, ran.end.exit, ran.text.strip()) == ("interrupt", None, "began")
    assert (await dial.ended(second)).text == "second\n"
    assert await dial.interrupt("first") == "this run is not going here"


async def test_a_run_that_waits_its_turn_can_be_interrupted(dial: Dial) -> None:
    first = dial.begin("echo began; sleep 300", call="first")
    await dial.prints(first, b"began\n")
    second = dial.begin("echo second", call="second")
    await dial.interrupt("second")
    ran = await dial.ended(second)
    assert (ran.end.stopped, ran.text) == ("interrupt", "")
    assert "nothing was run" in ran.notes
    await dial.interrupt("first")
    await dial.ended(first)
    _, frame, _ = await dial.attach("second")
    assert frame.stopped == "interrupt"


async def test_three_hundred_random_interrupts_are_all_answered(dial: Dial) -> None:
    await dial.run("x=1; f() { local i; for ((i = 0; i < 300; i++)); do :; done; }")
    codes = ["f; f; f; f; f", "true", "/bin/true", "echo a | cat", "(f)", "x=1", "for i in 1 2 3; do f; done"]
    dice = random.Random(7)
    stopped = resets = 0
    for n in range(300):
        id = dial.begin(dice.choice(codes), call=f"c{n}")
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        await asyncio.sleep(dice.random() * 0.012)
        await dial.interrupt(f"c{n}")
        ran = await dial.ended(id)
        stopped += ran.end.stopped == "interrupt"
        resets += bool(ran.end.reset)
    assert (stopped > 0, resets) == (True, 0)
    assert (await dial.run("echo $x")).text == "1\n"


async def test_kill_ends_every_process_of_a_session_and_says_which(dial: Dial) -> None:
    code = (
        "sleep 1001 & setsid sleep 1002 & (setsid nohup sleep 1003 >/dev/null 2>&1 &) ;"
        "bash -c '(trap \"\" TERM INT HUP; exec -a odd sleep 1004) & disown'; x=1; echo $$"
    )
    pid = int((await dial.run(code)).text.split()[-1])
    other = await dial.run("sleep 1005 & echo $!", session="other")
    said = await dial.kill()
    assert said.startswith("ended 4 processes")
    assert said.endswith("; none is left")
    for number in ("1001", "1002", "1003", "1004"):
        assert number in said
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    os.kill(int(other.text), 0)
    again = await dial.run("echo ${x-new}")
    assert (again.text, again.end.reset) == ("new\n", "its environments were ended by the harness")
    assert await dial.kill("nobody") == "ended 0 processes; none is left"


async def test_kill_ends_a_run_that_is_going_and_one_that_waits(dial: Dial) -> None:
    first = dial.begin("trap '' INT TERM; bash -c 'echo began; exec sleep 300'; sleep 300", call="first")
    await dial.prints(first, b"began")
    second = dial.begin("echo second")
    assert "sleep" in await dial.kill()
    assert (await dial.ended(first)).end.stopped == "interrupt"
    assert (await dial.ended(second)).end.stopped == "interrupt"
    assert (await dial.run("echo ok")).text == "ok\n"


async def test_processes_of_a_shell_that_ended_are_still_found_by_kill(dial: Dial) -> None:
    await dial.run("sleep 1001 & exit 0")
    await dial.run("sleep 1002 &")
    said = await dial.kill()
    assert "1001" in said
    assert "1002" in said


async def test_an_environment_whose_reaper_is_killed_is_reset(dial: Dial) -> None:
    ran = await dial.run("kill -9 $PPID; sleep 5")
    assert ran.end.exit is None
    assert "killed together with the process that held it" in ran.notes
    assert "killed together" in (await dial.run("echo ok")).end.reset


async def test_200_short_runs_leave_no_zombie_and_no_descriptor(dial: Dial) -> None:
    await dial.run("/bin/true & wait")
    before = len(os.listdir("/proc/self/fd"))
    for n in range(200):
        await dial.run("/bin/true; (sleep 0 &); exit 0" if n % 40 == 0 else "/bin/true; (/bin/true &)")
    states = (await dial.run(f"{{ {ITS_PROCESSES} grep ^State /proc/$p/status; done; }} 2>/dev/null")).text
    assert "State:" in states
    assert "zombie" not in states
    await dial.run("exit")
    await dial.run("true")
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("profile", ["sleep 1000", "exec cat", "trap '' INT TERM; while :; do :; done"])
async def test_a_profile_that_hangs_costs_its_time_and_not_the_environment(
    dial: Dial, home: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    monkeypatch.setattr(program, "START_WAIT", 2.0)
    monkeypatch.setattr(login, "PATH_WAIT", 0.2)
    (home / ".bash_profile").write_text(f"{profile}\n")
    ran = await dial.run("echo ok")
    assert ran.text == "ok\n"
    assert "the login profile, which did not come up: it was not ready after" in ran.notes


@pytest.mark.parametrize(
    ("profile", "why"),
    [("exec false", "status 1"), ("readonly TMOUT=300", "TMOUT read-only"), ("exit 3", "status 3")],
)
async def test_a_profile_that_spoils_the_shell_is_left_out(
    dial: Dial, home: Path, profile: str, why: str
) -> None:
    (home / ".bash_profile").write_text(f"{profile}\n")
    ran = await dial.run("echo ok; echo $PATH")
    assert ran.text.startswith("ok\n/")
    assert why in ran.notes


async def test_a_profile_with_aliases_prompts_and_traps_does_no_harm(dial: Dial, home: Path) -> None:
    (home / ".bash_profile").write_text(
        "alias rm='rm -i' ls='ls --color'; PROMPT_COMMAND='echo prompt'; PS1='$(echo ps1)'; PS0=zero\n"
        "trap 'echo debug' DEBUG; echo welcome; set -o vi; shopt -s expand_aliases; HISTFILE=~/.hist\n"
        "command_not_found_handle() { sleep 100; }\n"
    )
    ran = await dial.run("type rm; nosuchcommand; echo ok")
    assert ran.text.splitlines()[0].startswith("rm is /")
    assert ran.text.endswith("nosuchcommand: command not found\nok\n")
    await dial.kill()
    assert not (home / ".hist").exists()


async def test_bytes_that_are_not_utf8_are_replaced_and_the_file_keeps_them(
    dial: Dial, keeper: Keeper, tmp_path: Path
) -> None:
    assert (await dial.run("printf '\\xf0'", call="one")).text == "\ufffd"
    assert (keeper.scratch / "runs/s/one/output").read_bytes() == b"\xf0"
    assert (await dial.run("head -c 4000 /dev/urandom; exit 5")).end.exit == 5
    assert (await dial.run("printf 'h\\0e\\0y\\0'")).text == "hey"
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).write_text("x")
    assert (await dial.run(f"ls {tmp_path}")).text == "caf\ufffd\n"


async def test_line_editing_and_tracing_that_code_turns_on_do_not_get_in_the_way(dial: Dial) -> None:
    await dial.run("set -o vi; set -o emacs")
    assert (await dial.run("echo ok")).text == "ok\n"


async def ran_in(dial: Dial, session: str) -> Ran:
    return await dial.run("echo ok", session=session)


async def test_many_environments_start_at_once(dial: Dial) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ran_in(dial, f"s{n}")) for n in range(12)]
    assert {task.result().text for task in tasks} == {"ok\n"}

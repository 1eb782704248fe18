"""Code that waits, breaks, floods and outlives, as the model sees it: through a real daemon and its keeper."""

import asyncio
import fcntl
import os
import pty
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from daemon.protocol.records import Record
from tests.e2e.driving import VIA, Driver, Stage, becomes, driver, judge, processes, stage, token
from tests.e2e.rehearsing import lives, results, runs, script, uses

WORD: Final = token()
PROMPT: Final = 10.0  # seconds: nothing here has a reason to wait, a machine in trouble aside

ASKING: Final = {  # what asks somebody who is not there: the program that must be here, and what it says
    "ssh -p 1 127.0.0.1": ("ssh", "refused"),
    "sudo -k true </dev/null": ("sudo", ""),
    "su nobody -s /bin/sh -c 'read x'": ("su", ""),
    "vi f": ("vi", "no terminal"),
    "sh -c 'command vim f'": ("vim", "no terminal"),
    "less /etc/passwd": ("less", "root"),
    "more /etc/passwd": ("more", "root"),
    "man ls": ("man", ""),
    "top": ("top", ""),
    "passwd": ("passwd", ""),
    "python3 -c 'import getpass; getpass.getpass()'": ("python3", "EOF"),
    "select x in a b; do echo $x; done": ("bash", ""),
    "mapfile lines; read -p 'name? ' x; read x </dev/tty": ("bash", "/dev/tty"),
    "cat /dev/tty; exec 3<>/dev/tty": ("bash", "/dev/tty"),
}
GIT: Final = (  # a repository with three commits, then everything in git that opens an editor or asks
    """git init -q -b main repo && cd repo && git config user.email a@b.c && git config user.name a &&
    for n in 1 2 3; do echo $n >f; git add f; git commit -qm $n; done; git log --format=%H""",
    "git commit --amend",
    "git rebase -i HEAD~2",
    "git tag -a v1",
    "git merge --no-ff --edit main~1; git commit --allow-empty",
    "git config core.editor vi; git commit --allow-empty",
    "git -c credential.helper= ls-remote https://127.0.0.1:1/x",
    """git checkout -q -b other HEAD~1; echo other >f; git commit -qam other; git rebase main
    echo both >f; git add f; git rebase --continue""",
    "git rebase --abort; git checkout -q main; git log --format=%H; git status --porcelain",
)
BROKEN: Final = {  # code that breaks a shell which is told by its input: how it ends, and a word of what is said
    "cat <<'EOF'\nhello\nEOF": (0, "hello"),
    "cat <<'EOF'\nhello\n  EOF\n": (None, "delimited by end-of-file"),
    "cat <<-EOF\n\thello\n\tEOF": (0, "hello"),
    f"sleep {WORD} &": (0, "still running"),
    "echo `": (None, "unexpected EOF"),
    "echo $(": (None, "unexpected"),
    "if true; then": (None, "unexpected end of file"),
    "trap '' EXIT; echo on": (0, "on"),
    "trap 'echo bye' EXIT; exit 2": (2, "bye"),
    "exit 3": (3, "status 3"),
    "exec true": (0, "status 0"),
    "set -eu; false": (1, "status 1"),
    "set -u; echo $nothere": (1, "unbound"),
    "kill -9 $$": (137, "SIGKILL"),
    "kill -HUP $$; sleep 1": (129, "SIGHUP"),
    "echo s; echo 1 0; echo ready; echo probe 1": (0, "probe 1"),
    "PS1='% '; PROMPT_COMMAND='read x'; echo set": (0, "set"),
    'echo() { :; }; builtin() { command builtin "$@"; }; unset -f builtin': (0, ""),
    "unset -f echo; .() { :; }; source() { :; }": (0, ""),
    "IFS=0123456789": (0, ""),
    "exec 3>&1 4>&2 5</dev/null; echo kept >&3": (0, "kept"),
    'exec 250>&-; for fd in 10 11 63 255; do eval "exec $fd>&-"; done; echo on': (0, "on"),
    "trap 'echo debug >/dev/null' DEBUG; echo on": (0, "on"),
    "mkdir gone; cd gone; rmdir ../gone; pwd": (0, "gone"),
    "umask 777; ulimit -c 0; echo on": (0, "on"),
    "ulimit -v 200000; python3 -c 'bytearray(1 << 30)'; echo $?": (0, "1"),
    "set -o posix; set -f; set -C; set -k; echo on": (0, "on"),
    "unset PATH HOME IFS; echo on": (0, "on"),
    "echo on\r\necho off\r\n": (0, "off"),
    f": {'x' * 200_000}; echo on": (0, "on"),
}
SAYS: Final = {  # odd output: what the model gets of it
    "printf '\\xf0'": "\ufffd",
    "head -c 4000 /dev/urandom; (exit 5)": "",
    "printf 'h\\0\\351\\0\\n\\0'": "h\ufffd",
    "printf '\\xff\\xfeh\\0i\\0'": "\ufffd\ufffdhi",
    "printf 'caf\\351'": "caf\ufffd",
    "mkdir latin; touch latin/$'caf\\xe9'; ls latin": "caf\ufffd",
    "for i in 1 50 100; do printf '\\r%3d%%' $i; done; echo": "100%",
    "printf '\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07plain\\n'": "red plain",
    "printf 'a\\b\\bxy\\n'": "xy",
    "printf 'one\\r\\ntwo\\r\\n'": "one\ntwo",
    "printf 'kept\\r'": "kept",
}
FLOODS: Final = (
    "seq 1000000",
    "head -c 5000000 /dev/zero | tr '\\0' x; echo end",
    "head -c 3000000 /dev/zero | tr '\\0' x | sed 's/x/\u20ac/g'",
)
WRITES: Final = "seq 1 20000 | sed 's/^/out /'; echo last >&2"  # all of it is there, though something goes on
LEAVES: Final = (
    f"{WRITES}; setsid sleep {WORD} >/dev/null & echo done",
    f"{WRITES}; sleep {WORD} 2>&1 >/dev/null & echo done",
    f"{WRITES}; (exec 3>&1 >/dev/null 2>&1; sleep {WORD}) & echo done",
    f"{WRITES}; (trap '' HUP TERM; while :; do sleep 0.{WORD}; done) & disown; echo done",
)
STAYS: Final = (  # what a time limit has to end
    f"bash -c 'sleep {WORD} & sleep {WORD}'",
    f"trap '' TERM INT; sleep {WORD}",
    f"(trap '' TERM; while :; do sleep {WORD}; done) & sleep {WORD}",
    f"setsid sleep {WORD} & sleep {WORD}",
    f"""python3 -c "import signal, time; signal.signal(2, lambda *_: print('tidy') or exit(0))
print('on', flush=True); time.sleep({WORD})" """,
    "kill -STOP $$",
)


LIMIT: Final = 1  # second


def limited(*codes: str) -> list[dict[str, object]]:
    return [uses("run", {"code": f"echo before; {code}", "timeout": LIMIT}) for code in codes]


SCRIPTS: Final = {
    "asking": script(*(runs(code) for code in ASKING), {"text": "Done."}),
    "git": script(*(runs(code) for code in GIT), {"text": "Done."}),
    "broken": script(*(runs(code, "command printf '%s\\n' ok") for code in BROKEN), {"text": "Done."}),
    "says": script(runs(*SAYS), {"text": "Done."}),
    "floods": script(runs(*FLOODS), {"text": "Done."}),
    "leaves": script(runs(*LEAVES), {"text": "Done."}),
    "stays": script(runs("kept=1"), *limited(*STAYS), runs("echo $kept"), {"text": "Done."}),
    "terminal": script(
        runs(
            "echo spoilt >/dev/tty",
            "read x </dev/tty",
            "stty -F /dev/tty sane",
            "cut -d ' ' -f 7 /proc/$$/stat",
            "python3 -c 'import os; os.open(os.ctermid(), os.O_RDWR)'",
            "ls -l /proc/$$/fd/[012] | grep -c 'tty\\|pts'",
        ),
        {"text": "Done."},
    ),
}


@pytest.fixture(scope="module")
def here() -> Iterator[Stage]:
    """One daemon for all of them: no code spoils another session."""
    with stage() as made:
        for name, text in SCRIPTS.items():
            made.script(name, text)
        asyncio.run(made.daemon.start())
        yield made


@asynccontextmanager
async def played(on: Driver, name: str) -> AsyncIterator[list[Record]]:
    """The results of a rehearsal that was played to its end; then its session lives, is ended, and leaves nothing."""
    session = await on.session("Go.", model=f"rehearsal/{name}")
    try:
        found = await on.closes(session)
        judge(found)
        for record in found:
            record.body.decode()
        yield results(found)
        await lives(on, session)
    finally:
        status, _ = await on.raw("POST", f"/sessions/{session}/end", params={"via": VIA})
        assert status == 204
        await becomes(lambda: processes(WORD) == [], "the end of the session ended its processes")


async def test_what_asks_for_somebody_at_a_terminal_ends_at_once(here: Stage) -> None:
    async with driver(here) as on, played(on, "asking") as said:
        for (code, (program, word)), result in zip(ASKING.items(), said, strict=True):
            assert not result.header.failed, code
            assert result.header.seconds is not None
            assert result.header.seconds < PROMPT, code
            if shutil.which(program):
                assert word in result.text(), (code, result.text())
        assert not (here.folder / "f").exists()


async def test_git_asks_nobody_and_rewrites_nothing(here: Stage) -> None:
    async with driver(here) as on, played(on, "git") as said:
        before, *asked, after = said
        assert len(before.text().split()) == 3
        for code, result in zip(GIT[1:], asked, strict=False):
            assert result.header.exit not in (0, None), (code, result.text())
            assert "no editor can be opened here" in result.text() or "127.0.0.1" in code, result.text()
        assert after.text().split() == before.text().split()


async def test_code_of_every_broken_kind_ends_as_it_should_and_the_next_runs(here: Stage) -> None:
    async with driver(here) as on, played(on, "broken") as said:
        for (code, (exit, word)), odd, after in zip(BROKEN.items(), said[::2], said[1::2], strict=True):
            assert odd.header.exit == exit, (code[:80], odd.text()[-300:])
            assert odd.header.failed == (exit is None), code[:80]
            assert word in odd.text(), (code[:80], odd.text()[-300:])
            lost = "working directory are lost" in odd.text()
            assert after.text().endswith("ok"), (code[:80], after.text())
            assert after.header.exit == 0, code[:80]
            assert after.text().startswith("[environment was reset") == lost, (code[:80], after.text())


async def test_output_of_every_odd_kind_is_text_in_the_file_and_for_the_model(here: Stage) -> None:
    async with driver(here) as on, played(on, "says") as said:
        for (code, text), result in zip(SAYS.items(), said, strict=True):
            assert result.header.exit == (5 if "(exit 5)" in code else 0), code
            assert result.text() == text or not text, code
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", result.text()), code


async def test_a_flood_gives_its_end_and_the_file_that_has_the_whole(here: Stage) -> None:
    async with driver(here) as on, played(on, "floods") as (lines, one, wide):
        assert lines.text().splitlines()[-1] == "1000000"
        assert lines.header.truncated == 1_000_000 - len(lines.text().splitlines())
        assert one.text().endswith("xend")
        assert set(wide.text()) == {"\u20ac"}, "it is cut between two characters"
        sizes = [6_888_896, 5_000_004, 9_000_000]
        for result, size in zip((lines, one, wide), sizes, strict=True):
            assert result.header.exit == 0
            assert len(result.body) <= 51_200
            assert result.header.truncated
            assert result.header.full_output
            assert Path(result.header.full_output).stat().st_size == size


async def test_what_was_printed_before_the_end_is_there_though_something_goes_on(here: Stage) -> None:
    async with driver(here) as on, played(on, "leaves") as said:
        for code, result in zip(LEAVES, said, strict=True):
            assert result.header.exit == 0, code
            assert result.header.seconds is not None
            assert result.header.seconds < PROMPT, code
            assert "still running in the background" in result.text(), code
            lines = result.text().splitlines()
            assert "out 20000" in lines, code
            assert "last" in lines, code
            assert "done" in lines, code
            assert len(lines) + (result.header.truncated or 0) == 20_003, code


async def test_at_its_time_limit_a_run_ends_with_all_it_started_and_keeps_its_output(here: Stage) -> None:
    async with driver(here) as on, played(on, "stays") as said:
        first, *ended, last = said
        assert first.header.exit == 0
        for code, result in zip(STAYS, ended, strict=True):
            assert result.text().startswith("before"), code
            assert f"stopped at its time limit of {LIMIT} s" in result.text(), code
            assert result.header.exit is None, code
            assert result.header.seconds is not None
            assert result.header.seconds < LIMIT + PROMPT, code
        assert last.text() == "1", "the shell and its variables are kept"
        assert processes(WORD) == [], "nothing that was stopped goes on"


async def test_the_terminal_that_the_daemon_was_started_from_is_out_of_reach() -> None:
    ours, theirs = pty.openpty()
    takes_it = (
        "import fcntl, os, sys, termios; os.setsid(); "
        "fcntl.ioctl(os.open(sys.argv[1], os.O_RDWR), termios.TIOCSCTTY, 0); os.execvp(sys.argv[2], sys.argv[2:])"
    )
    try:
        with stage() as made:
            made.script("terminal", SCRIPTS["terminal"])
            made.daemon._before = [sys.executable, "-c", takes_it, os.ttyname(theirs)]
            async with driver(made) as on:
                terminal = Path(f"/proc/{made.daemon.pid}/stat").read_text().rpartition(")")[2].split()[4]
                assert terminal != "0", "the daemon has a terminal"
                async with played(on, "terminal") as said:
                    for result in said[:3]:
                        assert "/dev/tty" in result.text()
                        assert result.header.exit == 1
                    assert said[3].text().strip() == "0", "its controlling terminal"
                    assert said[4].header.exit == 1
                    assert said[5].text() == "0"
            fcntl.fcntl(ours, fcntl.F_SETFL, os.O_NONBLOCK)
            with pytest.raises(BlockingIOError):
                os.read(ours, 100)
    finally:
        os.close(ours)
        os.close(theirs)

"""Code that changes the shell it runs in: prompts, names, separators, tracing, editors; the next run goes on."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from daemon.worker.interpreter import Interpreter
from daemon.worker.keeper import Keeper
from daemon.worker.program import MAX_STATUS
from tests.daemon.worker.dialing import Dial
from tests.needed import missing


@pytest.mark.parametrize(
    "code",
    [
        "PS1='(venv) '; PS2='> '; PS0='zero'",
        "PROMPT_COMMAND='echo prompted'",
        "PROMPT_COMMAND='read order'",
        "PROMPT_COMMAND=('sleep 99' 'echo two')",
        "set -u; PS1='$nothere '",
        "PS1='$(sleep 99)'",
    ],
)
async def test_a_prompt_that_code_sets_is_neither_shown_nor_run(dial: Dial, code: str) -> None:
    first = await dial.run(f"{code}; echo one")
    assert (first.text, first.end.exit) == ("one\n", 0)
    again = await dial.run("echo two", timeout=20)
    assert (again.text, again.end.exit, again.end.reset) == ("two\n", 0, "")


async def test_an_activated_virtual_environment_stays_and_prints_no_prompt(
    dial: Dial, tmp_path: Path
) -> None:
    made = await dial.run(
        f"python3 -m venv --without-pip {tmp_path}/v && . {tmp_path}/v/bin/activate", timeout=50
    )
    assert (made.text, made.end.exit) == ("", 0)
    assert (await dial.run("command -v python")).text == f"{tmp_path}/v/bin/python\n"


@pytest.mark.parametrize("digit", "0137")
async def test_a_separator_that_is_a_digit_does_not_hide_a_status(dial: Dial, digit: str) -> None:
    ran = await dial.run(f"IFS={digit}; (exit 137)", timeout=20)
    assert (ran.end.exit, ran.end.stopped) == (137, "")
    assert (await dial.run("(exit 10)", timeout=20)).end.exit == 10


@pytest.mark.parametrize(
    "code",
    [
        "echo() { :; }",
        ".() { echo dot; }; source() { echo source; }",
        "function . { :; }",
        "alias .='echo no' echo='printf no'",
        "trap() { :; }; set() { :; }; unset() { :; }; eval() { :; }; return() { :; }",
        "enable -n . source; enable .",
    ],
)
async def test_a_function_named_like_a_builtin_keeps_no_later_code_from_running(
    dial: Dial, code: str
) -> None:
    assert (await dial.run(code)).end.exit == 0
    again = await dial.run("command printf '%s\\n' here; (exit 4)", timeout=20)
    assert (again.text, again.end.exit, again.end.reset) == ("here\n", 4, "")


async def test_tracing_shows_the_codes_own_commands(dial: Dial) -> None:
    assert (await dial.run("set -x; true one")).text == "++ true one\n"
    assert (await dial.run("true two")).text.splitlines()[1:] == ["++ true two"]
    assert (await dial.run("set +x")).text.splitlines()[1:] == ["++ set +x"]
    assert (await dial.run("true three")).text == ""


@pytest.mark.parametrize(
    "code",
    [
        "env vi f",
        "sh -c 'vim f'",
        "echo f | xargs view",
        'python3 -c \'import os; os.execlp("vi", "vi", "f")\'',
    ],
)
async def test_an_editor_that_something_else_starts_ends_and_says_why(
    dial: Dial, tmp_path: Path, code: str
) -> None:
    if not vim_has_expressions():
        missing("no vim with +eval here (Debian's package vim): such editors are NOT TESTED")
    ran = await dial.run(f"cd {tmp_path}; {code}", timeout=20)
    assert not ran.end.stopped
    assert ran.end.exit not in (0, None)
    assert "there is no terminal here, so no editor can be opened" in ran.text
    assert not (tmp_path / "f").exists()


async def test_an_editor_that_is_told_what_to_do_does_it_and_reads_the_operators_file(
    dial: Dial, home: Path, tmp_path: Path
) -> None:
    if not vim_has_expressions():
        missing("no vim with +eval here (Debian's package vim): such editors are NOT TESTED")
    (home / ".vimrc").write_text("let g:mine = 'of the operator'\n")
    file = tmp_path / "f"
    file.write_text("old\n")
    for number, code in enumerate(
        (
            f"sh -c \"vim -c 's/old/one/' -c wq {file}\"",
            f"sh -c \"vim -es -c 's/one/two/' -c wq {file}\"",
            f"printf ':s/two/three/\\n:wq\\n' >{tmp_path}/keys; sh -c 'vim -s {tmp_path}/keys {file}'",
            f"sh -c 'vim -c \"call setline(1, g:mine)\" -c wq {file}'",
        )
    ):
        ran = await dial.run(code, timeout=20)
        assert ran.end.exit == 0, ran.text
        assert file.read_text() == ("one\n", "two\n", "three\n", "of the operator\n")[number]


def vim_has_expressions() -> bool:
    """Whether the vim that is here can be told to end without a terminal."""
    vim = shutil.which("vim")
    if vim is None:
        return False
    said = subprocess.run([vim, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return "+eval" in said.stdout


async def test_a_python_without_a_free_descriptor_can_be_told_to_close_some(dial: Dial) -> None:
    kept = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))\nkept = []\n"
    full = await dial.run(f"{kept}while True: kept.append(open('/dev/null'))", interpreter="python")
    assert "Too many open files" in full.text
    again = await dial.run("for one in kept: one.close()\nprint('closed')", interpreter="python")
    assert (again.text, again.end.reset) == ("closed\n", "")


@pytest.mark.parametrize("code", ["builtins.compile = None", "del builtins.open"])
async def test_a_python_that_can_take_no_code_any_more_is_replaced(dial: Dial, code: str) -> None:
    await dial.run(f"import builtins; {code}", interpreter="python", timeout=20)
    ran = await dial.run("1", interpreter="python", timeout=20)
    assert ran.end.exit == 1
    assert "the code broke what the interpreter needs" in ran.text
    assert (await dial.run("print('ok')", interpreter="python")).text == "ok\n"


async def test_code_that_writes_into_the_status_pipe_harms_itself_only(
    dial: Dial, keeper: Keeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if "python" not in dial.hello.interpreters:
        pytest.skip("there is no python3 on the PATH: NOT TESTED")
    go = tmp_path / "go"
    os.mkfifo(go)
    code = f"""
import os
os.write(250, b"1 x\\nrefused zz\\n\\xff\\n")
for _ in range(100):
    os.write(250, bytes(50_000))
print("on", flush=True)
open({str(go)!r}).close()
os.write(250, b"\\n")
"""
    id = dial.begin(code, interpreter="python")
    await dial.prints(id, b"on")
    environment = keeper.runs.slots.at("s", "python").environment
    assert isinstance(environment, Interpreter)
    assert len(environment._rest) <= MAX_STATUS
    await asyncio.to_thread(go.write_bytes, b"")
    assert (await dial.ended(id)).end.exit == 0
    assert (await dial.run("echo other", session="other")).text == "other\n"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []

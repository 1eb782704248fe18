"""What agents' code does to a persistent node, and what comes back."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemon.protocol import frames
from daemon.worker import interpreter, interpreters, login
from daemon.worker import node as driven
from daemon.worker.keeper import SOCKET, Keeper
from tests.daemon.worker.dialing import Dial, Ran, Refused
from tests.needed import missing


@pytest.fixture(autouse=True)
def there(found: tuple[str, ...]) -> None:
    if interpreters.NODE not in found:
        missing("no node, of release 18 or newer, on the login shell's PATH: install the package nodejs")


class Node:
    """Runs of node on a connection."""

    def __init__(self, dial: Dial) -> None:
        self.dial = dial

    async def __call__(self, code: str | bytes, **more: Any) -> Ran:
        return await self.dial.run(code, interpreter="node", **more)

    def begin(self, code: str | bytes, **more: Any) -> int:
        return self.dial.begin(code, interpreter="node", **more)


@pytest.fixture
def node(dial: Dial) -> Node:
    return Node(dial)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rungs of the ladder stand close together."""
    monkeypatch.setattr(interpreter, "TERM_AFTER", 0.6)
    monkeypatch.setattr(interpreter, "KILL_AFTER", 1.2)
    monkeypatch.setattr(interpreter, "LAST_AFTER", 3.0)


async def test_output_and_the_last_value_come_back(node: Node) -> None:
    ran = await node("console.log('out')\nconsole.error('err')\nprocess.stdout.write('w\\n')\n;({ a: 'é' })")
    assert (ran.text, ran.end.exit, ran.notes) == ("out\nerr\nw\n{ a: 'é' }\n", 0, "")


SHOWN = {
    "1 + 1": "2\n",
    "undefined": "",
    "null": "null\n",
    "const x = 5": "",
    "'a'; 'b'": "'b'\n",
    "_": "41\n",
    "10n": "10n\n",
    "Symbol('s')": "Symbol(s)\n",
    "{ a: 1 }": "{ a: 1 }\n",
    "{ a: 1 };": "1\n",
    "{ let a = 1; a + 1 }": "2\n",
    "await 7": "7\n",
    "await Promise.all([1, Promise.resolve(2)])": "[ 1, 2 ]\n",
    "new Promise(() => {})": "Promise { <pending> }\n",
    "Promise.resolve(3)": "Promise { 3 }\n",
    "function f() {}": "",
    "(function f() {})": "[Function: f]\n",
    "class A {}; new A()": "A {}\n",
    "process.stdout.write('a'); undefined": "a",
    "": "",
    "// nothing": "",
    "for (const c of 'ab') console.log(c)": "a\nb\n",
    "#!/usr/bin/env node\n1": "1\n",
    "\ufeff2": "2\n",
    "'\U0001f600'": "'\U0001f600'\n",
    "'import(x) ' + `import(${1})` /* import(y) */ + /import(.)/.source": "'import(x) import(1)import(.)'\n",
    "({ import(x) { return x } }).import(5)": "5\n",
}


@pytest.mark.parametrize("code", SHOWN)
async def test_what_is_shown_is_what_the_prompt_shows(node: Node, code: str) -> None:
    await node("41")
    ran = await node(code)
    assert (ran.text, ran.end.exit) == (SHOWN[code], 0)


async def test_state_carries_over_and_what_was_declared_may_be_again(node: Node, tmp_path: Path) -> None:
    await node(
        f"process.chdir({str(tmp_path)!r})\nconst x = 5\nlet y = 1\nclass A {{}}\nfunction f(n) {{ return n * x }}"
    )
    assert (await node("console.log(process.cwd(), f(2))")).text == f"{tmp_path} 10\n"
    ran = await node("const x = await 6; let y = 2; class A { b = 1 }; const { sep } = require('path')\nf(y)")
    assert ran.text == "12\n"
    assert (await node("new A().b + sep")).text == "'1/'\n"
    ran = await node("x", session="other")
    assert (ran.text, ran.end.exit) == ("Uncaught ReferenceError: x is not defined\n    at run-1:1:1\n", 1)


async def test_require_and_import_look_from_the_sessions_folder(node: Node, tmp_path: Path) -> None:
    (tmp_path / "mine.js").write_text("exports.x = 'mine'")
    (tmp_path / "its.mjs").write_text("export const y = 'its'; export default import.meta.url")
    (tmp_path / "node_modules/pack").mkdir(parents=True)
    (tmp_path / "node_modules/pack/package.json").write_text(
        '{"exports": {"import": "./e.mjs", "require": "./r.js"}}'
    )
    (tmp_path / "node_modules/pack/e.mjs").write_text("export default 'as a module'")
    (tmp_path / "node_modules/pack/r.js").write_text("module.exports = 'as required'")
    code = "const { y, default: url } = await import('./its.mjs')\n"
    code += "console.log(require('./mine').x, y, require('pack'), (await import('pack')).default, url)\n"
    code += "await import\n(`node:${'os'}`).then((os) => os.EOL)"
    ran = await node(code, cwd=str(tmp_path))
    assert ran.text == f"mine its as required as a module file://{tmp_path}/its.mjs\n'\\n'\n"
    (tmp_path / "below").mkdir()
    (tmp_path / "below/mine.js").write_text("exports.x = 'below'")
    assert (await node("process.chdir('below'); require('./mine').x")).text == "'below'\n"
    ran = await node("await import('nope')")
    assert (ran.end.exit, "Cannot find package 'nope'" in ran.text, "driver" in ran.text) == (1, True, False)


async def test_the_prompts_own_names_are_there_and_may_be_declared(node: Node) -> None:
    assert (await node("path.join('a', 'b') + os.EOL + typeof fs.readFileSync")).text == "'a/b\\nfunction'\n"
    assert (
        await node("const fs = require('node:fs'); var os = 1; function url() {}; typeof fs.statSync + os")
    ).text == ("'function1'\n")
    assert (
        await node("if (require.main === module) console.log('main', process.argv.length)")
    ).text == "main 1\n"
    assert (await node("module.exports = { a: 1 }; exports === module.exports")).text == "false\n"


async def test_an_exception_shows_its_stack_also_through_earlier_runs_and_nothing_of_ours(node: Node) -> None:
    await node("function f(n) {\n  throw new RangeError('no ' + n)\n}")
    ran = await node("console.log('before')\nf(1)\nconsole.log('after')")
    assert ran.end.exit == 1
    assert ran.text == "before\nUncaught RangeError: no 1\n    at f (run-1:2:9)\n    at run-2:2:1\n"
    ran = await node("try { f(2) } catch (error) { console.log(error.stack) }")
    assert ran.text == "RangeError: no 2\n    at f (run-1:2:9)\n    at run-3:1:7\n"
    ran = await node("const later = async () => { await 1; f(3) }; await later()")
    assert (ran.end.exit, ran.text.splitlines()[:3]) == (
        1,
        ["Uncaught RangeError: no 3", "    at f (run-1:2:9)", "    at later (run-4:1:38)"],
    )
    ran = await node("const deep = (n) => (n ? deep(n - 1) : f(n)); deep(30)")
    assert (ran.end.exit, "inspector" in ran.text) == (1, False)
    ran = await node("fs.readFileSync('/there/is/no/such')")
    assert "code: 'ENOENT'" in ran.text
    ran = await node("Buffer.alloc('x')")
    assert ran.text.startswith("Uncaught TypeError [ERR_INVALID_ARG_TYPE]: ")


ENDS = {
    "throw null": (1, "Uncaught null\n"),
    "throw 'why'": (1, "Uncaught 'why'\n"),
    "throw undefined": (1, "Uncaught undefined\n"),
    "JSON.parse('x')": (1, "Uncaught SyntaxError: Unexpected token"),
    "await Promise.reject(new Error('rejected'))": (1, "Uncaught Error: rejected\n"),
    "setTimeout(() => null.x); await new Promise(() => {})": (1, "Uncaught TypeError: Cannot read prop"),
    "Promise.reject(new Error('no')); await new Promise(() => {})": (1, "Uncaught Error: no\n"),
    "Promise.reject('text'); await new Promise(() => {})": (1, 'reason "text"'),
    "process.exitCode = 7": (7, "7\n"),
    "function f() { f() }; f()": (1, "RangeError: Maximum call stack"),
    "({ [Symbol.for('nodejs.util.inspect.custom')]() { throw 1 } })": (1, "Uncaught 1\n"),
    "const e = new Error(); Object.defineProperty(e, 'stack', { get() { throw 1 } }); throw e": (
        1,
        "Uncaught",
    ),
    "Error.prepareStackTrace = () => { throw 1 }; throw new Error('x')": (1, "Uncaught"),
    "require('readline').createInterface(process.stdin).on('close', () => console.log('eof'))": (
        0,
        "Interface",
    ),
    "fs.readFileSync(0, 'utf8')": (0, "''\n"),
    "globalThis.process = globalThis.console = Promise = undefined": (0, ""),
    "var v = 1; (0, eval)('let w'); var w": (0, ""),
    "process.removeAllListeners(); process.stdout.end(); console.error('e')": (0, "e\n"),
}


@pytest.mark.parametrize("code", ENDS)
async def test_how_code_ends_is_its_status_and_the_state_stays(node: Node, code: str) -> None:
    await node("const kept = 1, log = console.log")
    ran = await node(code)
    exit, said = ENDS[code]
    assert (ran.end.exit, said in ran.text) == (exit, True), ran.text
    again = await node("log(kept); throw 2")
    assert (again.text.splitlines()[-2:], again.end.exit, again.end.reset) == (["1", "Uncaught 2"], 1, "")


BAD = {
    "x = (": "run-1:1:6\nx = (\n     ^\nSyntaxError: Unexpected end of input",
    "console.log('began')\nif (": "if (\n    ^\nSyntaxError",
    "console.log('began')\nreturn 3": "return 3\n^\nSyntaxError: Illegal return",
    "console.log('began'); await 1\n  return 3": "  return 3\n  ^\nSyntaxError",
    "console.log('began'); await f(": "SyntaxError",
    "'use strict'; with (a) {}": "SyntaxError: Strict mode",
    "'use strict'; await 1; with (a) {}": "SyntaxError: Strict mode",
    "console.log('began'); import fs from 'fs'": "await import('x')",
    "console.log('began')\nlet a; let a": "'a' has already been declared",
    "console.log('began')\nfunction f() { await 1 }": "SyntaxError: await is only valid",
    "x = `a": "SyntaxError: ",
    "x = 1 \udcff": "SyntaxError: the code is not UTF-8",
    "x = 1\0": "SyntaxError",
}


@pytest.mark.parametrize("code", BAD)
async def test_code_that_node_does_not_accept_is_refused_and_nothing_runs(
    node: Node, keeper: Keeper, code: str
) -> None:
    with pytest.raises(Refused) as refused:
        await node(code.encode("utf-8", "surrogateescape"), call="bad")
    assert refused.value.code == "syntax"
    assert refused.value.message.startswith("node does not accept this code, nothing was run: ")
    assert BAD[code] in refused.value.message
    assert isinstance((await node.dial.attach("bad"))[1], frames.Unknown)
    assert (await node("'ok'")).text == "'ok'\n"


DIES = {
    "process.exit(3)": (3, "node ended with status 3 (process.exit"),
    "await 1; process.exit(0)": (0, "node ended with status 0 (process.exit"),
    "process.exitCode = 4; process.exit()": (4, "status 4"),
    "process.on('exit', (code) => console.log('exit', code)); process.exit(5)": (5, "status 5"),
    "process.abort()": (134, "killed by SIGABRT"),
    "process.kill(process.pid, 'SIGKILL')": (137, "killed by SIGKILL"),
    "process.kill(process.pid); while (true) {}": (143, "killed by SIGTERM"),
    "process.kill(process.pid, 'SIGWINCH')": (1, "status 1"),  # node lets go of its inspector
    "await 1; process.kill(process.pid, 'SIGWINCH'); await 2": (1, "status 1"),
}


@pytest.mark.parametrize("code", DIES)
async def test_a_node_that_ends_is_replaced_and_the_model_is_told(node: Node, code: str) -> None:
    exit, why = DIES[code]
    await node("const x = 1")
    ran = await node(f"console.log('before')\n{code}")
    assert ran.end.exit == exit
    assert why in ran.notes
    assert "variables and working directory are lost" in ran.notes
    assert ran.text.startswith("before\n")
    assert "debugger" not in ran.text
    assert ("the code broke what the interpreter needs" in ran.text) == ("WINCH" in code)
    again = await node("x")
    assert why in again.end.reset
    assert "ReferenceError" in again.text
    assert (await node("'ok'")).end.reset == "", "the model is told once"


async def test_all_that_was_printed_before_an_exit_is_there(node: Node) -> None:
    ran = await node("process.stdout.write('x'.repeat(5_000_000)); console.error('end'); process.exit(0)")
    assert ran.text.endswith("xend\n")
    assert Path(ran.end.full_output).stat().st_size == 5_000_004


async def test_output_of_node_and_its_children_is_in_order_also_where_one_makes_the_pipe_non_blocking(
    node: Node,
) -> None:
    code = "const { spawnSync } = require('child_process')\nfor (let n = 0; n < 3; n++) {\n"
    code += "  process.stdout.write(n + ' ')\n  spawnSync('echo', ['child'], { stdio: 'inherit' })\n"
    code += "  console.error('e')\n}"
    assert (await node(code)).text == "0 child\ne\n1 child\ne\n2 child\ne\n"
    spoil = "import fcntl, os; fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_NONBLOCK)"
    code = f"spawnSync('python3', ['-c', {spoil!r}], {{ stdio: 'inherit' }})\n"
    ran = await node(code + "process.stdout.write('y'.repeat(20_000_000))\nundefined")
    assert Path(ran.end.full_output).stat().st_size == 20_000_000


async def test_children_get_standard_descriptors_only(node: Node) -> None:
    ran = await node(
        "require('child_process').execSync('ls /proc/self/fd', { encoding: 'utf8' }).split('\\n').length"
    )
    assert ran.text == "5\n", "0, 1, 2, and that of the folder"


async def test_streams_and_descriptors_that_code_closes_are_there_again(node: Node) -> None:
    for code in (
        "process.stdout.end()",
        "process.stderr.destroy(); process.stdin.destroy()",
        "fs.closeSync(1)",
        "fs.closeSync(0); fs.closeSync(2)",
        "Object.defineProperty(process, 'stdout', { value: null, configurable: true })",
    ):
        await node(code)
        ran = await node("console.log('out')\nconsole.error('err')\nfs.readFileSync(0).length")
        assert (ran.text, ran.end.exit) == ("out\nerr\n0\n", 0), code


async def test_the_time_limit_ends_a_run_and_keeps_its_output_and_the_state(node: Node) -> None:
    await node("const x = 1")
    for code in (
        "while (true) {}",
        "await 1; while (true) {}",
        "await new Promise(() => {})",
        "setInterval(() => { while (true) {} }, 1); await new Promise(() => {})",
        "(async () => { while (true) await 1 })(); await new Promise(() => {})",
        "while (true) { try { while (true) {} } catch {} finally { while (true) {} } }",
        "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
        "/(a*)*b/.test('a'.repeat(40))",
        "({ [Symbol.for('nodejs.util.inspect.custom')]() { while (true) {} } })",
    ):
        ran = await node(f"console.log('before');\n{code}", timeout=0.3)
        assert ran.text == "before\n", code
        assert (ran.end.exit, ran.end.stopped) == (None, "timeout"), code
        again = await node("x")
        assert (again.text, again.end.reset) == ("1\n", ""), code
    ticks = "process.nextTick(() => console.log('tick')); await new Promise((done) => setTimeout(done)); 'ok'"
    assert (await node(ticks)).text == "tick\n'ok'\n"


async def test_a_callback_that_never_ends_between_runs_is_ended_with_the_run_it_holds_up(
    node: Node, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    await node(f"const x = 1; setImmediate(() => {{ fs.writeFileSync('{began}', ''); while (true) {{}} }})")
    await node.dial.run(f"until [ -e '{began}' ]; do sleep 0.01; done")
    ran = await node("console.log('never')", timeout=0.3)
    assert (ran.text, ran.end.stopped) == ("", "timeout")
    again = await node("x")
    assert (again.text, again.end.reset) == ("1\n", "")


async def test_an_interrupt_ends_one_call_and_not_the_next(node: Node) -> None:
    first = node.begin("const x = 1\nconsole.log('began')\nwhile (true) {}", call="first")
    second = node.begin("x", call="second")
    await node.dial.prints(first, b"began\n")
    assert await node.dial.interrupt("first") == ""
    ran = await node.dial.ended(first)
    assert (ran.end.stopped, ran.end.exit) == ("interrupt", None)
    assert (await node.dial.ended(second)).text == "1\n"


@pytest.mark.usefixtures("quick")
async def test_a_node_that_halted_itself_is_ended(node: Node) -> None:
    ran = await node(
        "console.log('before'); process.kill(process.pid, 'SIGSTOP'); while (true) {}", timeout=0.2
    )
    assert ran.end.stopped == "timeout"
    assert ran.text.startswith("before\n")
    await node("1")
    assert (await node("'ok'")).text == "'ok'\n"


async def test_two_hundred_random_interrupts_are_all_answered(node: Node) -> None:
    await node(
        "const x = 1, f = () => { for (let i = 0; i < 1e5; i++); }\nconst { execSync } = require('child_process')"
    )
    codes = [
        "f(); f()",
        "undefined",
        "execSync('true')",
        "await 1",
        "try { f() } finally { f() }",
        "1",
        "console.log(1)",
    ]
    codes += ["await new Promise((done) => setTimeout(done, 3))", "setTimeout(f, 1); await 1"]
    dice = random.Random(7)
    stopped = 0
    for n in range(200):
        id = node.begin(dice.choice(codes), call=f"c{n}")
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        await asyncio.sleep(dice.random() * 0.006)
        await node.dial.interrupt(f"c{n}")
        ran = await node.dial.ended(id)
        stopped += ran.end.stopped == "interrupt"
        assert not ran.end.reset
    assert stopped
    assert (await node("x")).text == "1\n"


CHILDREN = (
    "children = (pid) => fs.readdirSync(`/proc/${pid}/task`).flatMap((thread) =>\n"
    "  fs.readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8').split(' ').filter(Boolean))\n"
)
STARTS = [
    "execSync('sleep 1000 & sleep 1000')",
    "spawn('setsid', ['sleep', '1000']); await new Promise(() => {})",
    "spawn('sleep', ['1000'], { detached: true }); while (true) {}",
    "spawn('bash', ['-c', \"trap '' TERM INT; while :; do sleep 1000; done\"]); await new Promise(() => {})",
    "execSync(\"trap '' TERM INT; while :; do sleep 1000; done\")",
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", STARTS)
async def test_a_stopped_run_leaves_no_process_behind(node: Node, code: str) -> None:
    await node("const { execSync, spawn, spawnSync } = require('child_process'); const kept = process.ppid")
    ran = await node(f"console.log('before')\n{code}", timeout=0.4)
    assert ran.end.stopped == "timeout"
    again = await node(
        f"{CHILDREN}for (const pid of [...children(kept), ...children(process.pid)])\n"
        "  console.log(fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\\0', ' '))"  # empty of a zombie
    )
    lines = [line for line in again.text.splitlines() if line]
    assert [line for line in lines if "driver.cjs" not in line] == []
    assert (len(lines), again.end.reset) == (1, "")


@pytest.mark.usefixtures("quick")
async def test_a_handler_that_starts_anew_what_was_ended_goes_with_its_interpreter(node: Node) -> None:
    await node("const { spawn } = require('child_process'); const kept = 1")
    ran = await node(
        "const start = () => spawn('sleep', ['1000']).on('exit', start)\nstart(); await new Promise(() => {})",
        timeout=0.4,
    )
    assert ran.end.stopped == "timeout"
    assert "node started anew what was ended with its run, and was killed" in "; ".join(ran.end.notes)
    assert "could not be ended" not in "; ".join(ran.end.notes)
    again = await node("typeof kept")
    assert (again.text, again.end.reset.startswith("node started anew")) == ("'undefined'\n", True)


async def test_what_goes_on_in_the_background_is_named_and_told_once(node: Node) -> None:
    ran = await node("const p = require('child_process').spawn('sleep', ['1001']); console.log('done')")
    assert ran.text == "done\n"
    assert "still running in the background" in ran.notes
    assert "sleep 1001" in ran.notes
    assert (await node("1")).notes == ""
    code = "const server = require('http').createServer().listen(0, '127.0.0.1')\n"
    ran = await node(
        code + "const timers = [setInterval(() => {}, 1e6), setTimeout(() => {}, 1e6)]; undefined"
    )
    assert "still running in the background: a server, 2 timers; what is printed until" in ran.notes
    assert (await node("server.close(); timers.map(clearTimeout); 1")).notes == ""
    said = await node.dial.kill()
    assert said.startswith("ended 1 process")
    assert "sleep 1001" in said


async def test_what_a_timer_prints_and_throws_between_runs_goes_to_a_file_and_node_lives(
    node: Node, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "went")
    code = (
        f"const x = 1\nfs.readFile('{tmp_path}/go', () => {{\n"
        "  console.log('late')\n  Promise.reject(new Error('unhandled'))\n"
        f"  setTimeout(() => {{ fs.writeFileSync('{tmp_path}/went', ''); throw new Error('thrown') }}, 1)\n"
        "})\n'now'"
    )
    ran = await node(code)
    assert ran.text == "'now'\n"
    assert "a file operation" in ran.notes
    later = Path(ran.notes.rpartition(" ")[2])
    await asyncio.to_thread((tmp_path / "go").write_text, "")
    await asyncio.to_thread((tmp_path / "went").read_text)
    again = await node("x")
    assert (again.text.endswith("1\n"), again.end.reset) == (True, "")
    said = later.read_text() + again.text
    for part in ("late\n", "Uncaught Error: unhandled\n", "Uncaught Error: thrown\n"):
        assert part in said
    assert "driver" not in said


async def test_handlers_of_the_codes_own_come_before_ours(node: Node) -> None:
    await node("process.on('uncaughtException', (error) => console.log('mine', error.message))")
    ran = await node(
        "setTimeout(() => { throw new Error('x') }); await new Promise((done) => setTimeout(done, 20)); 1"
    )
    assert (ran.text, ran.end.exit) == ("mine x\n1\n", 0)


async def test_kill_ends_node_and_every_process_and_says_which(node: Node) -> None:
    code = "const { spawn } = require('child_process')\nspawn('sleep', ['1001'])\n"
    pid = int(
        (await node(code + "spawn('setsid', ['nohup', 'sleep', '1002'])\nprocess.pid")).text.split()[-1]
    )
    said = await node.dial.kill()
    assert said.startswith("ended 2 processes")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (await node("1")).end.reset == "its environments were ended by the harness"


async def test_100_short_runs_leave_no_zombie_and_no_descriptor(node: Node) -> None:
    await node("const { execSync, spawnSync } = require('child_process'); execSync('true')")
    before = len(os.listdir("/proc/self/fd"))
    theirs = (await node("fs.readdirSync('/proc/self/fd').length")).text
    for n in range(100):
        await node(
            "while (true) {}" if n % 20 == 10 else "await import('os'); execSync('true & :')",
            timeout=0.05 if n % 20 == 10 else 60,
        )
    code = f"{CHILDREN}children(process.ppid).map((pid) => fs.readFileSync(`/proc/${{pid}}/status`, 'utf8')).join('')"
    states = (await node(code)).text
    assert "State:" in states
    assert "zombie" not in states
    assert (await node("fs.readdirSync('/proc/self/fd').length")).text == theirs
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_node_sees_the_operators_variables_and_not_the_daemons(scratch: Path, home: Path) -> None:
    (home / ".bash_profile").write_text(
        "export PROFILE_API_KEY=secret EDITOR=vi NAME='two\nlines'; echo noise\n"
    )
    environ = os.environ | {"SOME_API_KEY": "secret", "OUTRIDER_DATA": "x", "NODE_CHANNEL_FD": "3"}
    keeper = Keeper(scratch, "1", environ)
    async with keeper.listening(), await Dial.to(scratch / SOCKET) as dial:
        ran = await dial.run("console.log(process.env, process.cwd())", interpreter="node")
    assert "'two\\nlines'" in ran.text
    assert ran.text.endswith(f"{home}\n")
    for gone in ("secret", "OUTRIDER_", "VIRTUAL_ENV", "NODE_CHANNEL", "'vi'"):
        assert gone not in ran.text


def test_what_is_no_node_or_too_old_is_not_listed(tmp_path: Path) -> None:
    assert not login.runs_node({"PATH": str(tmp_path)}), "there is none"
    fake = tmp_path / "node"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    assert login.node({"PATH": str(tmp_path)}) == str(fake)
    assert not login.runs_node({"PATH": str(tmp_path)}), "it does not start"


async def test_a_node_behind_a_wrapper_is_stopped_and_ended_like_any_other(
    node: Node, home: Path, tmp_path: Path
) -> None:
    real = await asyncio.to_thread(lambda: login.node(login.environment(os.environ)))
    fake = tmp_path / "node"
    fake.write_text(f'#!/bin/sh\nexport WRAPPED=1\n{real} "$@"\nexit $?\n')
    fake.chmod(0o755)
    (home / ".bash_profile").write_text(f"PATH={tmp_path}:$PATH")
    assert (await node("const x = process.env.WRAPPED; x")).text == "'1'\n"
    assert (await node("while (true) {}", timeout=0.2)).end.stopped == "timeout"
    again = await node("x")
    assert (again.text, again.end.reset, again.notes) == ("'1'\n", "", "")
    pid = int((await node("process.pid")).text)
    assert await node.dial.kill() == "ended 0 processes; none is left"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_node_that_does_not_come_up_says_why(node: Node, home: Path, tmp_path: Path) -> None:
    fake = tmp_path / "node"
    fake.write_text("#!/bin/sh\necho no version is installed; exit 1\n")
    fake.chmod(0o755)
    (home / ".bash_profile").write_text(f"PATH={tmp_path}:$PATH")
    with pytest.raises(Refused) as refused:
        await node("1")
    assert "node did not start: node ended with status 1" in refused.value.message
    assert "no version is installed" in refused.value.message


def test_what_an_event_loop_waits_for_is_said_in_words() -> None:
    left = {"Timeout": 2, "TCPServerWrap": 1, "FSReqCallback": 1, "FSReqPromise": 1, "GetAddrInfoReqWrap": 3}
    assert driven.waits(left) == ["2 timers", "a server", "2 file operations"]
    assert driven.waits({}) == []


@pytest.fixture
async def plain(scratch: Path) -> AsyncIterator[Dial]:
    """A worker without node."""
    keeper = Keeper(scratch, "1", os.environ, lambda _: (interpreters.BASH,))
    async with keeper.listening(), await Dial.to(scratch / SOCKET) as dial:
        yield dial


async def test_a_worker_without_node_says_so(plain: Dial) -> None:
    with pytest.raises(Refused, match="there is no interpreter `node` here, there is: bash"):
        await plain.run("1", interpreter="node")

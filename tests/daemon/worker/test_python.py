"""What agents' code does to a persistent python, and what comes back."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from daemon.protocol import frames
from daemon.worker import interpreter, interpreters, login, program
from daemon.worker.keeper import SOCKET, Keeper
from tests.daemon.worker.dialing import Dial, Ran, Refused

BREAKS = "the code broke what the interpreter needs"


@pytest.fixture(autouse=True)
def there(found: tuple[str, ...]) -> None:
    if interpreters.PYTHON not in found:
        pytest.skip("no python3 on the PATH but this environment's own")


class Python:
    """Runs of python on a connection."""

    def __init__(self, dial: Dial) -> None:
        self.dial = dial

    async def __call__(self, code: str | bytes, **more: Any) -> Ran:
        return await self.dial.run(code, interpreter="python", **more)

    def begin(self, code: str | bytes, **more: Any) -> int:
        return self.dial.begin(code, interpreter="python", **more)


@pytest.fixture
def python(dial: Dial) -> Python:
    return Python(dial)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rungs of the ladder stand close together."""
    monkeypatch.setattr(interpreter, "TERM_AFTER", 0.4)
    monkeypatch.setattr(interpreter, "KILL_AFTER", 0.8)
    monkeypatch.setattr(interpreter, "LAST_AFTER", 2.0)


async def test_output_and_the_last_value_come_back(python: Python) -> None:
    ran = await python("import sys\nprint('out')\nprint('err', file=sys.stderr)\n{'a': 'é'}")
    assert (ran.text, ran.end.exit, ran.notes) == ("out\nerr\n{'a': 'é'}\n", 0, "")


SHOWN = {
    "1 + 1": "2\n",
    "None": "",
    "x = 5": "",
    "'a'; 'b'": "'b'\n",
    "'doc'": "'doc'\n",
    "1\nif True:\n    2": "",
    "_": "41\n",
    "print('a', end='')": "a",
    "": "",
    "# nothing": "",
    "for c in 'ab': print(c)": "a\nb\n",
    "print('\\ud83d\\ude00'.encode('utf-16', 'surrogatepass').decode('utf-16'))": "\U0001f600\n",
    "# -*- coding: latin-1 -*-\nprint('\xe9')": "é\n",
}


@pytest.mark.parametrize("code", SHOWN)
async def test_what_is_shown_is_what_the_prompt_shows(python: Python, code: str) -> None:
    await python("41")
    body = code.encode("latin-1" if "latin-1" in code else "utf-8")
    ran = await python(body)
    assert (ran.text, ran.end.exit) == (SHOWN[code], 0)


async def test_state_carries_over(python: Python, tmp_path: Path) -> None:
    await python(f"import os, collections\nos.chdir({str(tmp_path)!r})\nx = 5\ndef f(n): return n * x")
    await python("from __future__ import annotations\nclass A: b: Nothing = 1")
    ran = await python("print(os.getcwd(), f(2), collections.Counter('aa'))\nclass B: c: Nothing = 1\nB.c")
    assert ran.text == f"{tmp_path} 10 Counter({{'a': 2}})\n1\n"
    assert (await python("x", session="other")).end.exit == 1


async def test_main_is_the_codes_own_module(python: Python) -> None:
    code = "import pickle, sys\nclass A: pass\nprint(__name__, type(pickle.loads(pickle.dumps(A()))) is A)\n"
    code += (
        "print(sorted(n for n in dir(sys.modules['__main__']) if n[0] != '_'), sys.argv, repr(sys.path[0]))"
    )
    assert (await python(code)).text == "__main__ True\n['A', 'pickle', 'sys'] [''] ''\n"


async def test_an_exception_shows_its_lines_also_those_of_earlier_runs(python: Python) -> None:
    await python("def f(n):\n    return 1 / n  # here\n")
    ran = await python("x = 1\nf(0)  # there\ny = 1")
    assert ran.end.exit == 1
    assert ran.text.startswith('Traceback (most recent call last):\n  File "<run 2>", line 2, in <module>\n')
    for part in (
        "f(0)  # there",
        '"<run 1>", line 2, in f',
        "return 1 / n  # here",
        "ZeroDivisionError: div",
    ):
        assert part in ran.text
    assert "driver" not in ran.text
    assert (await python("import inspect\ninspect.getsource(f)")).text.startswith("'def f(n)")


ENDS = {
    "raise SystemExit": (0, ""),
    "import sys; sys.exit(7)": (7, ""),
    "import sys; sys.exit(-1)": (255, ""),
    "import sys; sys.exit('why')": (1, "why\n"),
    "exit(3)": (3, ""),
    "raise KeyboardInterrupt": (130, "KeyboardInterrupt"),
    "raise GeneratorExit": (1, "GeneratorExit"),
    "class E(Exception):\n def __str__(self): raise E\nraise E": (1, "E: <exception str() failed>"),
    "class R:\n def __repr__(self): 1 / 0\nR()": (1, "ZeroDivisionError"),
    "def f(): f()\nf()": (1, "RecursionError"),
    "import sys\nsys.excepthook = lambda *a: print('hook', a[1])\n1 / 0": (1, "hook division by zero\n"),
    "import sys\nsys.excepthook = None\n1 / 0": (1, "ZeroDivisionError"),
    "import sys\nclass S:\n write = flush = None\nsys.stderr = S()\n1 / 0": (1, "ZeroDivisionError"),
    "import asyncio\nasync def f(): return 3\nasyncio.run(f())": (0, "3\n"),
    "input()": (1, "EOFError"),
    "import sys\nsys.stdin.read()": (0, "''\n"),
}


@pytest.mark.parametrize("code", ENDS)
async def test_how_code_ends_is_its_status_and_the_state_stays(python: Python, code: str) -> None:
    await python("kept = 1")
    ran = await python(code)
    exit, said = ENDS[code]
    assert ran.end.exit == exit
    assert said in ran.text
    again = await python("print(kept); input()")
    assert again.text.startswith("1\n")
    assert again.end.reset == ""


BAD = {
    "x = (": "SyntaxError",
    "print('began')\nif True\n    pass": "if True\n",
    "print('began')\nreturn 3": "return 3\n",
    "  x = 1": "IndentationError: unexpected indent",
    "print('began'); await f()": "SyntaxError",
    "x = 1\0": "null bytes",
    "print('began')\n'\udcff'": "SyntaxError",
    "# coding: nothing\n1": "SyntaxError",
}


@pytest.mark.parametrize("code", BAD)
async def test_code_that_python_does_not_accept_is_refused_and_nothing_runs(
    python: Python, keeper: Keeper, code: str
) -> None:
    with pytest.raises(Refused) as refused:
        await python(code.encode("utf-8", "surrogateescape"), call="bad")
    assert refused.value.code == "syntax"
    assert refused.value.message.startswith("python does not accept this code, nothing was run: ")
    assert BAD[code] in refused.value.message + "\n"
    assert isinstance((await python.dial.attach("bad"))[1], frames.Unknown)
    assert not (keeper.scratch / "runs/s/bad").exists()
    assert (await python("'ok'")).text == "'ok'\n"


async def test_very_deep_code_is_refused(python: Python) -> None:
    with pytest.raises(Refused, match="syntax"):
        await python("(" * 5000 + ")" * 5000)
    assert (await python("'ok'")).end.reset == ""


async def test_a_reset_is_still_told_after_code_that_was_refused(python: Python) -> None:
    await python("import os; os._exit(3)")
    with pytest.raises(Refused):
        await python("x = (")
    assert "status 3" in (await python("1")).end.reset


DIES = {
    "import os; os._exit(3)": (3, "python ended with status 3 (os._exit"),
    "import os; os.execv('/bin/sh', ['sh', '-c', 'exit 4'])": (4, "status 4"),
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": (137, "killed by SIGKILL"),
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": (143, "killed by SIGTERM"),
    "import ctypes; ctypes.string_at(0)": (139, "killed by SIGSEGV"),
    "import os; os.closerange(3, 1000)": (1, "status 1"),
}


@pytest.mark.parametrize("code", DIES)
async def test_a_python_that_ends_is_replaced_and_the_model_is_told(python: Python, code: str) -> None:
    exit, why = DIES[code]
    await python("x = 1")
    ran = await python(f"print('before')\n{code}")
    assert ran.end.exit == exit
    assert ran.text.startswith("before\n")
    assert why in ran.notes
    assert "variables and working directory are lost" in ran.notes
    again = await python("x")
    assert why in again.end.reset
    assert "NameError" in again.text
    assert (await python("'ok'")).end.reset == "", "the model is told once"
    if "closerange" in code:
        assert BREAKS in ran.text
    if "ctypes" in code:
        assert "Segmentation fault" in ran.text


async def test_python_and_bash_of_a_session_keep_apart_and_go_side_by_side(
    python: Python, tmp_path: Path
) -> None:
    waits = python.dial.begin(f"until [ -e {tmp_path}/f ]; do sleep 0.01; done; cat {tmp_path}/f; x=sh")
    writes = python.begin(f"x = 'py'\nopen('{tmp_path}/.f', 'w').write('from python')\n")
    assert (await python.dial.ended(writes)).text == "11\n"
    renames = python.begin(f"import os\nos.rename('{tmp_path}/.f', '{tmp_path}/f')")
    assert (await python.dial.ended(waits)).text == "from python"
    assert (await python.dial.ended(renames)).end.exit == 0
    assert (await python("x")).text == "'py'\n"
    assert (await python.dial.run("echo $x", interpreter="bash")).text == "sh\n"


async def test_runs_of_one_python_queue_in_order(python: Python) -> None:
    ids = [
        python.begin(f"import time; time.sleep(0.0{5 - n}); l = globals().get('l', []) + [{n}]; l")
        for n in range(5)
    ]
    texts = [(await python.dial.ended(id)).text for id in ids]
    assert texts == ["[0]\n", "[0, 1]\n", "[0, 1, 2]\n", "[0, 1, 2, 3]\n", "[0, 1, 2, 3, 4]\n"]


async def test_a_child_of_fork_that_comes_back_ends(python: Python) -> None:
    ran = await python(
        "import os\npid = os.fork()\nif not pid: print('child')\nelse: os.waitpid(pid, 0)\n'end'"
    )
    assert sorted(ran.text.split()) == ["'end'", "'end'", "child"]
    ran = await python("pid = os.fork()\nif not pid: 1 / 0\nos.waitpid(pid, 0)[1]")
    assert ran.text.endswith("ZeroDivisionError: division by zero\n256\n")
    ran = await python("pid = os.fork()\nif not pid: raise SystemExit(5)\nos.waitpid(pid, 0)[1] >> 8")
    assert (ran.text, ran.end.exit) == ("5\n", 0)
    assert (await python("os.getpid() == os.getpid()")).text == "True\n"


async def test_streams_and_descriptors_that_code_closes_are_there_again(python: Python) -> None:
    for code in (
        "import sys, os\nsys.stdout.close()",
        "sys.stderr.close(); sys.stdin.close()",
        "sys.stdout.detach()",
        "sys.stdout = None",
        "os.close(0)",
        "os.closerange(0, 3)",
    ):
        await python(code)
        ran = await python("import sys, os\nprint('out')\nprint('err', file=sys.stderr)\nsys.stdin.read()")
        assert (ran.text, ran.end.exit) == ("out\nerr\n''\n", 0)


async def test_a_stream_that_code_puts_in_place_stays_and_is_flushed(python: Python, tmp_path: Path) -> None:
    await python(f"import io, sys\nold, sys.stdout = sys.stdout, open('{tmp_path}/out', 'w')")
    assert (await python("print('there')")).text == ""
    assert (tmp_path / "out").read_text() == "there\n"
    ran = await python("sys.stdout = io.TextIOWrapper(old.buffer, encoding='utf-8')\nprint('here', end='')")
    assert ran.text == "here"


async def test_output_of_python_and_its_children_is_in_order(python: Python) -> None:
    code = "import subprocess, sys\nfor n in range(3):\n"
    code += "    print(n, end=' ')\n    subprocess.run(['echo', 'child'])\n    print('e', file=sys.stderr)"
    assert (await python(code)).text == "0 child\ne\n1 child\ne\n2 child\ne\n"


async def test_big_output_is_kept_whole_and_shown_at_its_end(python: Python) -> None:
    ran = await python("for n in range(100_000): print(n)")
    assert ran.text.endswith("\n99998\n99999\n")
    assert ran.text.count("\n") + ran.end.truncated == 100_000
    whole = Path(ran.end.full_output).read_bytes()
    assert whole == b"".join(b"%d\n" % n for n in range(100_000))
    ran = await python("import sys\nsys.stdout.write('x' * 20_000_000)")
    assert Path(ran.end.full_output).stat().st_size == 20_000_009
    ran = await python("'y' * 5_000_000")
    assert Path(ran.end.full_output).stat().st_size == 5_000_003


async def test_bytes_that_are_not_utf8_and_odd_characters_come_through(
    python: Python, keeper: Keeper, tmp_path: Path
) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).touch()
    ran = await python("import sys, os\nsys.stdout.buffer.write(bytes(range(128, 256)))\nNone", call="one")
    assert "\ufffd" in ran.text
    assert (keeper.scratch / "runs/s/one/output").read_bytes() == bytes(range(128, 256))
    assert (await python(f"print(os.listdir({str(tmp_path)!r})[0])")).text == "caf\ufffd\n"
    assert (await python("print('ü€\U0001f600\\0')")).text == "ü€\U0001f600\n"
    ran = await python("print('\\ud800')")
    assert (ran.end.exit, "surrogates not allowed" in ran.text) == (1, True)


async def test_the_time_limit_ends_a_run_and_keeps_its_output_and_the_state(python: Python) -> None:
    await python("import subprocess, time\nx = 1")
    for code in ("while True: pass", "time.sleep(300)", "subprocess.run(['sleep', '300'])"):
        ran = await python(f"print('before')\n{code}", timeout=0.3)
        assert ran.text.startswith("before\nTraceback")
        assert ran.text.endswith("KeyboardInterrupt\n")
        assert (ran.end.exit, ran.end.stopped) == (None, "timeout")
    again = await python("x")
    assert (again.text, again.end.reset) == ("1\n", "")


async def test_an_interrupt_ends_one_call_and_not_the_next(python: Python) -> None:
    first = python.begin("x = 1\nprint('began')\nwhile True: pass", call="first")
    second = python.begin("x", call="second")
    await python.dial.prints(first, b"began\n")
    assert await python.dial.interrupt("first") == ""
    ran = await python.dial.ended(first)
    assert (ran.end.stopped, ran.end.exit) == ("interrupt", None)
    assert (await python.dial.ended(second)).text == "1\n"


HANDLES = [
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\nwhile True: time.sleep(1)",
    "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\nwhile True: pass",
    "try:\n    time.sleep(300)\nexcept BaseException:\n    time.sleep(300)",
    "import signal, os\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(300)",
    "def f():\n    try: time.sleep(300)\n    finally: f() if len(l) < 2 and not l.append(1) else 0\nl = []\nf()",
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", HANDLES)
async def test_code_that_handles_sigint_is_ended_and_its_state_kept(python: Python, code: str) -> None:
    await python("import time\nx = 1")
    ran = await python(f"print('before')\n{code}", timeout=0.1)
    assert ran.end.stopped == "timeout"
    again = await python("x")
    assert (again.text, again.end.reset) == ("1\n", "")
    ran = await python("time.sleep(300)", timeout=0.1)
    assert ran.text.endswith("KeyboardInterrupt\n"), "SIGINT has its meaning again"


SWALLOWS = [
    "while True:\n    try:\n        time.sleep(300)\n    except BaseException:\n        pass",
    "import re\nre.match('(a*)*b', 'a' * 40)",
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", SWALLOWS)
async def test_code_that_nothing_stops_is_killed_and_the_model_is_told(python: Python, code: str) -> None:
    await python("import time\nx = 1")
    ran = await python(f"print('before')\n{code}", timeout=0.1)
    assert (ran.end.stopped, ran.end.exit) == ("timeout", None)
    if "re.match" in code and "did not come back" not in ran.notes:
        return  # newer pythons look for signals while they match
    assert "python did not come back from a run that was stopped, and was killed" in ran.notes
    again = await python("x")
    assert "did not come back" in again.end.reset
    assert "NameError" in again.text


CHILDREN = (
    "import glob, os\ndef children(pid):\n"
    "    return [c for f in glob.glob(f'/proc/{pid}/task/*/children') for c in open(f).read().split()]\n"
)
STARTS = [
    "subprocess.run('sleep 1000 & sleep 1000', shell=True)",
    "subprocess.Popen(['setsid', 'sleep', '1000'])\ntime.sleep(1000)",
    "subprocess.Popen(['sleep', '1000'], start_new_session=True)\nwhile True: pass",
    "if not os.fork():\n    os.setsid()\n    os.fork() or os.execlp('sleep', 's', '1000')\n    os._exit(0)\nwhile 1: 1",
    "subprocess.Popen(['bash', '-c', \"trap '' TERM INT; while :; do sleep 1000; done\"])\ntime.sleep(1000)",
]


@pytest.mark.parametrize("code", STARTS)
async def test_a_stopped_run_leaves_no_process_behind(python: Python, code: str) -> None:
    await python("import os, subprocess, time\nkept = os.getppid()")
    ran = await python(f"print('before')\n{code}", timeout=0.4)
    assert ran.end.stopped == "timeout"
    again = await python(
        f"{CHILDREN}for pid in children(kept) + children(os.getpid()):\n"
        "    print(open(f'/proc/{pid}/cmdline').read().replace(chr(0), ' '))"  # empty of a zombie
    )
    lines = [line for line in again.text.splitlines() if line]
    assert [line for line in lines if "driver.py" not in line] == []
    assert (len(lines), again.end.reset) == (1, "")


@pytest.mark.parametrize("many", [2, 400])
async def test_a_pool_that_starts_anew_what_was_ended_goes_with_its_interpreter(
    python: Python, tmp_path: Path, many: int
) -> None:
    worked = tmp_path / "worked"
    await python("import multiprocessing, os, time\nkept = os.getpid()")
    ran = await python(
        f"def work(n):\n    open({str(worked)!r}, 'a').write('x')\n    time.sleep(1000 if {many} == 2 else 0.01)\n"
        f"print('before')\nmultiprocessing.get_context('fork').Pool(2).map(work, range({many}), chunksize=1)",
        timeout=0.4,
    )
    assert (ran.end.stopped, ran.text[:7]) == ("timeout", "before\n")
    assert "python started anew what was ended with its run, and was killed" in "; ".join(ran.end.notes)
    assert "could not be ended" not in "; ".join(ran.end.notes)
    done = worked.read_text()
    again = await python("'kept' in globals()")
    assert (again.text, again.end.reset.startswith("python started anew")) == ("False\n", True)
    assert worked.read_text() == done


async def test_what_goes_on_in_the_background_is_named_and_told_once(python: Python) -> None:
    ran = await python("import subprocess\np = subprocess.Popen(['sleep', '1001'])\nprint('done')")
    assert ran.text == "done\n"
    assert "still running in the background" in ran.notes
    assert "sleep 1001" in ran.notes
    assert (await python("1")).notes == ""
    ran = await python("import threading\ne = threading.Event()\nthreading.Thread(target=e.wait).start()")
    assert (
        "still running in the background: a thread; what is printed until the next run goes to" in ran.notes
    )
    assert (await python("e.set()")).notes == ""
    said = await python.dial.kill()
    assert said.startswith("ended 1 process")
    assert "sleep 1001" in said


async def test_what_a_thread_prints_between_runs_goes_to_a_file(python: Python, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "went")
    code = (
        "import threading\ndef f():\n"
        f"    open('{tmp_path}/go').read(); print('late'); open('{tmp_path}/went', 'w').close()\n"
        "t = threading.Thread(target=f); t.start(); print('now')"
    )
    ran = await python(code)
    assert ran.text == "now\n"
    later = Path(ran.notes.rpartition(" ")[2])
    await asyncio.to_thread((tmp_path / "go").write_text, "\n")
    await asyncio.to_thread((tmp_path / "went").read_text)
    with pytest.raises(Refused):
        await python("x = (")
    assert (await python("t.join()\nprint('next')")).text == "next\n"
    assert later.read_text() == "late\n"


async def test_an_exception_of_a_handler_between_runs_does_not_end_python(
    python: Python, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    code = (
        "import signal\ndef f(*_):\n"
        f"    open('{tmp_path}/fifo', 'w').close(); raise ValueError('between')\n"
        "x = 1\nsignal.signal(signal.SIGALRM, f)\nsignal.setitimer(signal.ITIMER_REAL, 0.05)"
    )
    await python(code)
    await asyncio.to_thread((tmp_path / "fifo").read_text)
    again = await python("x")
    assert again.text.endswith("1\n"), "the traceback may come before it"
    assert "driver" not in again.text
    assert again.end.reset == ""


async def test_three_hundred_random_interrupts_are_all_answered(python: Python) -> None:
    await python("import subprocess\nx = 1\ndef f():\n    for i in range(20000): pass")
    codes = ["f(); f()", "None", "subprocess.run(['true'])", "x = 1", "try:\n    f()\nfinally:\n    f()", "1"]
    dice = random.Random(7)
    stopped = 0
    for n in range(300):
        id = python.begin(dice.choice(codes), call=f"c{n}")
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        await asyncio.sleep(dice.random() * 0.006)
        await python.dial.interrupt(f"c{n}")
        ran = await python.dial.ended(id)
        stopped += ran.end.stopped == "interrupt"
        assert not ran.end.reset
    assert stopped
    assert (await python("x")).text == "1\n"


async def test_kill_ends_python_and_every_process_and_says_which(python: Python) -> None:
    code = (
        "import os, subprocess\nsubprocess.Popen(['sleep', '1001'])\n"
        "subprocess.Popen(['setsid', 'nohup', 'sleep', '1002'])\nprint(os.getpid())"
    )
    pid = int((await python(code)).text.split()[-1])
    said = await python.dial.kill()
    assert said.startswith("ended 2 processes")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    again = await python("1")
    assert again.end.reset == "its environments were ended by the harness"


async def test_kill_ends_a_process_whose_first_thread_has_ended(python: Python) -> None:
    child = (
        "import ctypes, os, threading, time; threading.Thread(target=time.sleep, args=(1003,)).start(); "
        "print('up', flush=True); exit_thread = 60 if os.uname().machine == 'x86_64' else 93; "
        "ctypes.CDLL(None).syscall(exit_thread, 0)"
    )
    code = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=-1)\n"
    code += "p.stdout.readline(); f = f'/proc/{p.pid}/stat'\nwhile ') Z ' not in open(f).read(): pass\np.pid"
    ran = await python(code)
    assert "still running in the background" in ran.notes
    assert (await python.dial.kill()).startswith("ended 1 process")
    with pytest.raises(ProcessLookupError):
        os.kill(int(ran.text), 0)


async def test_kill_ends_a_run_that_is_going_and_one_that_waits(python: Python) -> None:
    first = python.begin("print('began')\nwhile True:\n    try:\n        while True: pass\n    except: pass")
    await python.dial.prints(first, b"began")
    second = python.begin("2")
    await python.dial.kill()
    assert (await python.dial.ended(first)).end.stopped == "interrupt"
    assert (await python.dial.ended(second)).end.stopped == "interrupt"
    assert (await python("'ok'")).text == "'ok'\n"


async def test_200_short_runs_leave_no_zombie_and_no_descriptor(python: Python) -> None:
    await python("import os, subprocess\nsubprocess.run(['true'])")
    before, theirs = len(os.listdir("/proc/self/fd")), (await python("len(os.listdir('/proc/self/fd'))")).text
    for n in range(200):
        await python(
            "os._exit(0)" if n == 100 else "import os, subprocess; subprocess.run('true & :', shell=True)"
        )
    code = f"{CHILDREN}print(*[open(f'/proc/{{pid}}/status').read() for pid in children(os.getppid())])"
    states = (await python(code)).text
    assert "State:" in states
    assert "zombie" not in states
    assert (await python("len(os.listdir('/proc/self/fd'))")).text == theirs
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_python_sees_the_operators_variables_and_not_the_daemons(
    scratch: Path, home: Path, tmp_path: Path
) -> None:
    (home / ".bash_profile").write_text(
        "export PROFILE_API_KEY=secret PYTHONPATH=/mine EDITOR=vi NAME='two\nlines'; echo noise\n"
    )
    environ = os.environ | {"SOME_API_KEY": "secret", "OUTRIDER_DATA": "x", "PYTHONHOME": "/x"}
    keeper = Keeper(scratch, "1", environ)
    async with keeper.listening(), await Dial.to(scratch / SOCKET) as dial:
        ran = await dial.run("import os\nprint(dict(os.environ), os.getcwd())", interpreter="python")
    assert "'PYTHONPATH': '/mine'" in ran.text
    assert "'NAME': 'two\\nlines'" in ran.text
    assert ran.text.endswith(f"{home}\n")
    for gone in ("secret", "OUTRIDER_", "VIRTUAL_ENV", "PYTHONHOME", "'vi'"):
        assert gone not in ran.text


async def test_it_starts_in_the_sessions_folder_and_imports_from_there(
    python: Python, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("x = 'mine'")
    ran = await python("import os, mine\nprint(os.getcwd(), mine.x)", cwd=str(tmp_path))
    assert ran.text == f"{tmp_path} mine\n"
    for ours in ("runs", "journal", "keeper", "driver"):
        assert "ModuleNotFoundError" in (await python(f"import {ours}")).text


def test_this_environments_own_python_is_never_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sys.prefix != sys.base_prefix, "the tests run in an environment of their own"
    own = str(Path(sys.prefix) / "bin")
    assert login.python({"PATH": own}) is None
    assert login.python({"PATH": f"{own}/:{own}"}) is None
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    assert login.python({"PATH": f"{own}:{tmp_path}"}) == str(fake)
    assert not login.runs_python({"PATH": str(tmp_path)}), "it does not start"


def test_a_profile_that_hangs_or_leaves_something_running_does_not_hide_python(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "PATH_WAIT", 0.5)
    (home / ".bash_profile").write_text("sleep 1000")
    assert login.python(login.environment(os.environ)) is not None
    monkeypatch.setattr(login, "PATH_WAIT", 5.0)
    (home / ".bash_profile").write_text("sleep 3 & export FROM_PROFILE=yes")
    assert login.environment(os.environ)["FROM_PROFILE"] == "yes"


WRAPPERS = {
    "exec": '#!/bin/sh\nWRAPPED=1 exec {python} "$@"\n',
    "bash": '#!/bin/bash\nexport WRAPPED=1\n{python} "$@"\nexit $?\n',
    "sh": '#!/bin/sh\nexport WRAPPED=1\n{python} "$@"\nexit $?\n',
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", WRAPPERS)
async def test_a_python_behind_a_wrapper_is_stopped_and_ended_like_any_other(
    python: Python, home: Path, tmp_path: Path, kind: str
) -> None:
    real = await asyncio.to_thread(lambda: login.python(login.environment(os.environ)))
    assert real is not None
    fake = tmp_path / "python3"
    fake.write_text(WRAPPERS[kind].format(python=real))
    fake.chmod(0o755)
    (home / ".bash_profile").write_text(f"PATH={tmp_path}:$PATH")
    ran = await python("import os, time\nx = os.environ['WRAPPED']\nprint(x)")
    assert (ran.text, ran.notes) == ("1\n", "")
    ran = await python("time.sleep(1000)", timeout=0.2)
    assert ran.text.endswith("KeyboardInterrupt\n")
    again = await python("x")
    assert (again.text, again.end.reset, again.notes) == ("'1'\n", "", "")
    ran = await python("while True:\n    try: time.sleep(1000)\n    except: pass", timeout=0.2)
    assert "did not come back" in ran.notes
    pid = int((await python("import os\nos.getpid()")).text)
    assert await python.dial.kill() == "ended 0 processes; none is left"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_wrapper_that_outlives_its_python_is_ended_and_the_next_run_gets_a_new_one(
    python: Python, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "WRAPPER_WAIT", 0.1)
    real = await asyncio.to_thread(lambda: login.python(login.environment(os.environ)))
    fake = tmp_path / "python3"
    fake.write_text(f'#!/bin/sh\n{real} "$@"\nsleep 1000\n')
    fake.chmod(0o755)
    (home / ".bash_profile").write_text(f"PATH={tmp_path}:$PATH")
    ran = await python("import os\nprint('before')\nos._exit(3)")
    assert ran.text == "before\n"
    assert "python ended; what had started it did not, and was killed: its variables" in ran.notes
    again = await python("os.getpid()")
    assert "what had started it did not" in again.end.reset
    assert "NameError" in again.text
    pid = int((await python("import os; os.getpid()")).text)
    os.kill(pid, signal.SIGKILL)  # between two runs
    assert "what had started it did not" in (await python("1")).notes


async def test_a_python_that_does_not_come_up_says_why(python: Python, home: Path, tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\necho no version is installed; exit 1\n")
    fake.chmod(0o755)
    (home / ".bash_profile").write_text(f"PATH={tmp_path}:$PATH")
    with pytest.raises(Refused) as refused:
        await python("1")
    assert "python did not start: python ended with status 1" in refused.value.message
    assert "no version is installed" in refused.value.message
    (home / ".bash_profile").write_text("")
    assert (await python("1")).text == "1\n"


def pythons() -> list[str]:
    """Other pythons of this machine that a driver can meet."""
    there = (shutil.which(f"python3.{minor}") for minor in range(6, 20))
    kept = sorted(map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3")))
    return [one for one in (*filter(None, there), *kept) if not one.startswith(sys.prefix)]


@pytest.mark.parametrize("program", pythons())
async def test_any_python_from_3_6_on_will_do(
    python: Python, home: Path, tmp_path: Path, program: str
) -> None:
    if subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip("it does not run")
    (tmp_path / "python3").symlink_to(program)
    (home / ".bash_profile").write_text(f"PATH={tmp_path}:$PATH")
    assert (await python("import sys\nx = 1\nprint('é')\n'€'")).text == "é\n'€'\n"
    ran = await python("def f():\n    return 1 / 0\nf()")
    assert "return 1 / 0" in ran.text
    with pytest.raises(Refused, match="syntax"):
        await python("return 1")
    ran = await python("while True: pass", timeout=0.2)
    assert ran.text.endswith("KeyboardInterrupt\n")
    await python("import threading, time; t = threading.Thread(target=time.sleep, args=(0.01,)); t.start()")
    await python("sys.stdout.close(); sys.exit(3)")
    again = await python("t.join(); x")
    assert (again.text, again.end.reset) == ("1\n", "")


@pytest.fixture
async def plain(scratch: Path) -> AsyncIterator[Dial]:
    """A worker without python."""
    keeper = Keeper(scratch, "1", os.environ, lambda _: (interpreters.BASH,))
    async with keeper.listening(), await Dial.to(scratch / SOCKET) as dial:
        yield dial


async def test_a_worker_without_python_says_so(plain: Dial) -> None:
    assert plain.hello.interpreters == ("bash",)
    with pytest.raises(Refused, match="there is no interpreter `python` here, there is: bash"):
        await plain.run("1", interpreter="python")

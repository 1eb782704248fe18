"""What broke other harnesses, against a real daemon: answers, arguments and output of every bad kind; then it goes on.

After each fault the session is given to the mock, which refuses a request that the real service would.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.protocol import records
from daemon.protocol.records import Record
from tests.e2e.driving import VIA, Stage, becomes, driver, judge, pause, processes, stage, token
from tests.e2e.rehearsing import lives, results, runs, script

LINE: Final = "x" * 20_000
EMOJI: Final = "🚀"
WORD: Final = token()


def raw(*arguments: str) -> dict[str, Any]:
    """A step that calls `run` with arguments that are sent as they stand."""
    return {"text": "I run.", "calls": [{"tool": "run", "arguments": given} for given in arguments]}


BROKEN: Final = (
    '{"worker": "local", "code": "echo unfinish >> ran',
    '["local", "echo list >> ran"]',
    '"{\\"worker\\": \\"local\\", \\"code\\": \\"echo text >> ran\\"}"',
    "null",
    '{"worker": "local"}',
    '{"worker": "local", "code": 5}',
    '{"worker": "local", "code": "echo more >> ran", "speed": 9}',
    '{"worker": "elsewhere", "code": "echo elsewhere >> ran"}',
)
STRANGE: Final = (
    '{"worker": "local", "code": "printf \'<\\ud83d>\'"}',  # half a character
    '{"worker": "local", "code": "echo nul\\u0000 >> ran"}',
    '{"worker": "local", "code": "printf \'a\\\\0b\\\\xff\\\\xf0\\\\x9f\'"}',
    '{"worker": "local", "code": "head -c 300000 /dev/zero | tr \'\\\\0\' x | sed \'s/x/🚀/g\'"}',
    '{"worker": "local", "code": "head -c 4000 /dev/urandom"}',
    '{"worker": "local", "code": "printf \'\\\\x1b[31mred\\\\x1b[0m\\\\u2028\\\\u0085.\\\\r\\\\n\'"}',
)
QUIET: Final = (  # code that would wait for ever where it had a terminal, an input or an open pipe
    "cat; echo done",
    "read x; echo done",
    "python3; echo done",
    "read x </dev/tty; echo done",
    f"sleep {WORD} & echo done",
    f"setsid sleep {WORD} & echo done",
    f"(while :; do echo x; sleep 0.{WORD}; done) & echo done",
    f"sleep {WORD} 3>&1 >/dev/null 2>&1 & echo done",
)
ODD: Final = (  # code that breaks a shell which is told by its input; each may end the shell, none the session
    "echo 'abc",
    "cat <<'EOF'\nno end",
    "exit 3",
    "exec true",
    "set -e; false",
    "kill -9 $$",
    "echo `",
    "echo s; echo 1 0; echo ready",
    "trap 'echo bye' EXIT",
    "exec >/dev/null 2>&1",
)

SCRIPTS: Final = {
    "empty": script(runs("echo one >> ran"), {"stop": "end_turn"}),
    "thinking": script({"thinking": "I think and think.", "stop": "max_tokens"}),
    "broken": script(raw(*BROKEN), {"text": "I see."}),
    "blank": script(raw("", "{}"), {"text": "I see."}),
    "strange": script(raw(*STRANGE), {"text": "I see."}),
    "midway": script(
        runs(
            "echo whole >> ran",
            text="All of the words.",
            piece=4,
            faults=[
                {"kind": "error", "after": 6},
                {"kind": "cut", "after": 12},
                {"kind": "drop", "bytes": 900},
            ],
        ),
        {"text": "It ran."},
    ),
    "quiet": script(runs(*QUIET), {"text": "Done."}),
    "odd": script(*(runs(code, "echo ok") for code in ODD), {"text": "Done."}),
    "python": script(
        {
            "text": "I run.",
            "calls": [
                {"tool": "run", "arguments": {"worker": "local", "code": code, "interpreter": "python"}}
                for code in (
                    "x = 1; print('on', flush=True); import subprocess; subprocess.run(['sleep', '"
                    + WORD
                    + "'])",
                    "open('ran', 'a').write('later')",
                )
            ],
        },
        {"text": "Done."},
    ),
    "deaf-python": script(
        {
            "text": "I run.",
            "calls": [
                {
                    "tool": "run",
                    "arguments": {
                        "worker": "local",
                        "interpreter": "python",
                        "code": (
                            "import signal, time\n"
                            "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n"
                            "print('on', flush=True)\ntime.sleep(600)\nopen('ran', 'a').write('late')"
                        ),
                    },
                }
            ],
        },
        {"text": "Done."},
    ),
    "order": script(
        runs(*(f"echo {n} >> ran; : {LINE if n % 3 == 0 else ''}" for n in range(20))), {"text": "Done."}
    ),
    "slow-first": script(
        runs("\n".join(["if true; then :; fi"] * 30_000) + "\necho first >> ran", *["echo later >> ran"] * 3),
        {"text": "Done."},
    ),
}


@pytest.fixture(scope="module")
def here() -> Iterator[Stage]:
    """One daemon for all of them: no fault spoils another session."""
    with stage() as made:
        for name, text in SCRIPTS.items():
            made.script(name, text)
        asyncio.run(made.daemon.start())
        yield made


@pytest.fixture(autouse=True)
async def calm(request: pytest.FixtureRequest) -> None:
    if "here" in request.fixturenames:
        made: Stage = request.getfixturevalue("here")
        (made.folder / "ran").unlink(missing_ok=True)
        await made.mock.config(calls=0, parallel=1, trouble="", tries=-1)


# Answers


async def test_an_empty_answer_after_a_result_is_said_to_be_empty_and_is_not_asked_for_again(
    here: Stage,
) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/empty")
        info = await on.rests(session)
        assert info.status == "failed"
        found = here.daemon.file(session)
        assert found[-1].kind == "error"
        assert "nothing" in found[-1].text()
        assert len([record for record in found if record.kind == "step"]) == 2
        await lives(on, session)
        assert here.ran() == ["one"]


async def test_an_answer_of_nothing_but_thinking_names_the_limit_it_hit(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/thinking")
        assert (await on.rests(session)).status == "failed"
        assert "output limit" in here.daemon.file(session)[-1].text()
        await lives(on, session)


async def test_an_answer_that_breaks_off_three_ways_counts_once_and_its_half_calls_never_run(
    here: Stage,
) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/midway")
        found = await on.closes(session)
        chain = judge(found)
        said = [part for turn in chain.context().settled for part in turn.parts if turn.role == "assistant"]
        assert [getattr(part, "text", "") for part in said if hasattr(part, "text")] == [
            "All of the words.",
            "It ran.",
        ]
        assert here.ran() == ["whole"]
        await lives(on, session)


async def test_a_reader_is_told_that_what_streamed_before_a_break_is_void(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(calls=1, code="echo {conv} >> ran", trouble="cut", tries=1, after=7)
        session = await on.session()
        told: list[str] = []

        async def watch() -> None:
            async for event in on.client.follow(session, deltas=True):
                told.append(type(event).__name__ if not isinstance(event, Record) else event.kind)
                if told[-1] == "step":
                    return

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(watch(), name="watch")
            await on.post(session, f"[[conv:{session}]] Go.")
        await on.closes(session)
        assert told.index("RetryEvent") < told.index("Restart")
        assert told.count("call") == 1
        assert here.ran() == [session]
        assert await here.mock.get("bad") == []


# Arguments


async def test_arguments_that_are_no_valid_object_run_nothing_and_each_gets_a_word(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/broken")
        found = await on.closes(session)
        calls = [record for record in found if record.kind == "call"]
        assert [records.call_of(call).arguments for call in calls] == list(BROKEN), "the file keeps the truth"
        for given, said in zip(BROKEN, results(found), strict=True):
            assert said.header.failed, given
            assert said.header.worker in ("", None) or said.header.exit is None
        words = [said.text() for said in results(found)]
        assert "unfinish" in words[0]
        assert "elsewhere" in words[-1]
        assert "speed" in words[-2]
        await lives(on, session)
        assert here.ran() == []


async def test_empty_arguments_are_an_empty_object(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/blank")
        found = await on.closes(session)
        one, other = results(found)
        assert one.text() == other.text()
        assert "worker" in one.text()
        await lives(on, session)


async def test_half_characters_nul_and_bytes_that_are_no_text_stay_valid_everywhere(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/strange")
        found = await on.closes(session)
        half, nul, bytes_, emoji, noise, escapes = results(found)
        for record in found:
            record.body.decode()
        assert "half of a character, \\ud83d," in half.text()
        assert nul.header.failed
        assert "NUL" in nul.text()
        assert bytes_.text().startswith("a")
        assert bytes_.header.exit == 0
        assert set(re.sub(r"\[.*?\]", "", emoji.text()).strip()) <= {EMOJI, "…"}, (
            "no half character at the cut"
        )
        assert len(emoji.body) < 60_000
        assert noise.header.exit == 0
        assert "red" in escapes.text()
        assert "\x1b" not in escapes.text()
        await lives(on, session)
        assert here.ran() == []


# Code


async def test_code_that_waits_for_input_or_leaves_children_ends_at_once(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/quiet")
        try:
            found = await on.closes(session)
            for code, said in zip(QUIET, results(found), strict=True):
                assert "done" in said.text(), code
                assert said.header.exit == 0, code
                assert said.header.seconds is not None
                assert said.header.seconds < 5, code
                assert ("still running" in said.text()) == (WORD in code), code
            await lives(on, session)
        finally:
            status, _ = await on.raw("POST", f"/sessions/{session}/end", params={"via": VIA})
        assert status == 204
        await becomes(lambda: processes(WORD) == [], "the end of the session ended its processes")


async def test_code_that_breaks_or_ends_the_shell_costs_one_call_and_not_the_next(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/odd")
        found = await on.closes(session)
        said = results(found)
        for code, odd, after in zip(ODD, said[::2], said[1::2], strict=True):
            assert after.header.exit == 0, code
            assert after.text().endswith("ok") or code.startswith("exec >"), code
            lost = "working directory are lost" in odd.text()
            assert lost == after.text().startswith("[environment was reset"), code
        exits = {code: odd.header.exit for code, odd in zip(ODD, said[::2], strict=True)}
        assert exits["exit 3"] == 3
        assert exits["kill -9 $$"] == 137
        await lives(on, session)


@pytest.mark.parametrize("model", ["python", "deaf-python"])
async def test_python_that_is_stopped_ends_with_what_it_started(here: Stage, model: str) -> None:
    async with driver(here) as on:
        session = await on.session(model=f"rehearsal/{model}")
        async with on.outputs(session) as printed:
            await on.post(session, f"[[conv:{session}]] Go.")
            await printed
        async with asyncio.timeout(10):
            await on.client.stop(session, VIA)
        assert processes(WORD) == []
        await lives(on, session)
        assert here.ran() == []


async def test_twenty_calls_of_one_answer_to_one_interpreter_run_once_and_in_order(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/order")
        found = await on.closes(session)
        assert len(results(found)) == 20
        assert here.ran() == [str(n) for n in range(20)]
        await lives(on, session)


async def test_twenty_calls_that_an_earlier_daemon_did_not_begin_run_in_order() -> None:
    """As after a kill between the step's record and its calls: a file that ends there is found at the start."""
    with stage() as alone:
        alone.script("order", SCRIPTS["order"])
        async with driver(alone) as on:
            await on.closes(await on.session("Go."))  # the worker's journal is older than the calls
            session = await on.session("Go.", model="rehearsal/order")
            found = await on.closes(session)
            (alone.folder / "ran").unlink()
            step = next(record.n for record in found if record.kind == "step")
            begun = b"".join(record.raw + b"\n" + record.body + b"\n" for record in found[:step])
            assert alone.path(session).read_bytes().startswith(begun)
            alone.daemon.kill()
            alone.path("00000000000000aa").write_bytes(begun)
            await alone.daemon.start()
            judge(await on.closes("00000000000000aa"))
            assert alone.ran() == [str(n) for n in range(20)]


async def test_a_call_whose_code_takes_long_to_check_still_runs_before_those_behind_it(here: Stage) -> None:
    async with driver(here) as on:
        session = await on.session("Go.", model="rehearsal/slow-first")
        await on.closes(session)
        assert here.ran() == ["first", "later", "later", "later"]


@pytest.mark.campaign
@pytest.mark.timeout(600)
async def test_two_gigabytes_of_output_on_three_sessions_leave_memory_flat(here: Stage) -> None:
    async with driver(here) as on:
        await here.mock.config(calls=1, code="true")
        await on.closes(await on.session("Go."))
        before = {pid: peak(pid) for pid in (here.keeper(), here.daemon.pid)}
        await here.mock.config(
            calls=3, code="yes | head -c 2000000000; head -c 5000000 /dev/zero | tr '\\0' x"
        )
        sessions = [await on.session("Go.") for _ in range(3)]
        for session in sessions:
            async with asyncio.timeout(500):
                while (await on.client.info(session)).status == "stepping":
                    await pause(1)
            found = await on.closes(session)
            for said in results(found):
                assert len(said.body) < 60_000
                assert said.header.truncated
                assert said.header.full_output
        for pid, was in before.items():
            assert peak(pid) - was < 150 << 20
        assert await here.mock.get("bad") == []


def peak(pid: int) -> int:
    """The most memory that a process ever held, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10

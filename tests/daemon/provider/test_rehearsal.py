import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.chain import Chain, fold
from daemon.harness import prompt, tools
from daemon.protocol import frames
from daemon.protocol.records import CallBody, Record, WorkerRef, draft
from daemon.provider import playing, rules_messages, script
from daemon.provider.base import Block, Delta, Outcome, ProviderError, Query, Retry, Streamed, Wire
from daemon.provider.http import stream
from daemon.provider.models import find
from daemon.provider.rehearsal import Rehearsal
from daemon.provider.retry import RetryPolicy
from tests.daemon.book import Book

HELLO = frames.Hello(
    protocol=1,
    release="1",
    os="linux",
    arch="x86_64",
    hostname="h",
    interpreters=("bash",),
    scratch="/s",
    home="/home/me",
)
Does = Callable[[CallBody], Mapping[str, Any]]


class Waits:
    """A sleep that takes no time and remembers."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)


class Session:
    """A session stepped by a rehearsal, its calls carried out by `does`."""

    def __init__(
        self, model: str, provider: Rehearsal, *, workers: tuple[str, ...] = ("w1", "w2"), id: str = "s"
    ) -> None:
        self.model, self.provider, self.id = model, provider, id
        self.book = Book()
        refs = tuple(WorkerRef(name, "/data/x" if name == "w1" else "") for name in workers)
        shown = prompt.workers(refs, lambda _: HELLO)
        self.book.add("system", shown, source="workers")
        self.wire = Wire()
        self.serial = 0
        self.retries: list[Retry] = []
        self.policy = RetryPolicy(sleep=Waits(), random=lambda: 1.0)

    @property
    def chain(self) -> Chain:
        return fold(self.book.records, self.id)

    async def stream(self) -> AsyncIterator[Streamed]:
        query = Query(
            find(self.model, self.provider.models()), self.chain.context(), tools.offered(""), {}, self.id
        )
        request = self.provider.compile(query, self.wire)
        assert rules_messages.problems(request.body) == []
        async for event in stream(self.provider, request, policy=self.policy):
            yield event

    async def step(self, does: Does | None = None) -> list[Block]:
        """One answer recorded, its calls carried out; the blocks of the try that went well."""
        upto, blocks, outcome = self.book.n, list[Block](), None
        async for event in self.stream():
            match event:
                case Block():
                    blocks.append(event)
                case Retry():
                    self.retries.append(event)
                    blocks.clear()
                case Outcome():
                    outcome = event
                case Delta():
                    pass
        assert outcome is not None
        self.serial += 1
        step = f"step{self.serial}"
        kept: list[Record] = []
        for block in blocks:
            record = draft(block.kind, block.body, block.type, id=block.id, step=step, provider="rehearsal")
            kept.append(self.book.keep(record))
        fields = {"provider": "rehearsal", "model": self.model, "stop": outcome.stop}
        self.book.step(step, upto, outcome.usage, **fields)
        for record in kept:
            if record.kind == "call":
                call = msgspec.json.decode(record.body, type=CallBody)
                self.book.result(record.id, **{"text": "done", **(does(call) if does else {})})
        return blocks

    async def run(self, does: Does | None = None) -> list[list[Block]]:
        """Steps until one has no call."""
        steps: list[list[Block]] = []
        while self.chain.status == "open":
            steps.append(await self.step(does))
            assert len(steps) < 30
        return steps

    async def say(self, text: str) -> str:
        """A message, and the words of all that is answered."""
        self.book.message(text)
        return "".join(words(blocks) for blocks in await self.run())


def words(blocks: list[Block]) -> str:
    return "".join(block.body.decode() for block in blocks if block.kind == "text")


def calls(blocks: list[Block]) -> list[CallBody]:
    return [msgspec.json.decode(block.body, type=CallBody) for block in blocks if block.kind == "call"]


def play(tmp_path: Path, text: str, *, speed: float = 0.0, **options: Any) -> Rehearsal:
    (tmp_path / "mine.toml").write_text(text)
    return Rehearsal(["mine"], folder=tmp_path, speed=speed, **options)


# The shipped scripts.


async def test_the_tour_plays_to_its_end_with_calls_that_the_tools_take() -> None:
    session = Session("tour", Rehearsal(speed=0))
    session.book.message("show me")
    steps = await session.run(lambda call: {"text": "cat: no such file", "exit": 1})
    made = [call for blocks in steps for call in calls(blocks)]
    assert {call.name for call in made} == {"run", "write", "edit", "read"}
    for call in made:
        assert tools.parse(call, "default").worker == "w1"
    assert max(len(calls(blocks)) for blocks in steps) > 1, "calls side by side"
    assert "rehearsal" in words(steps[0])
    assert "`cat: no such file`" in words(steps[-1]), "the failure is explained"
    assert "no model was asked" in words(steps[-1])
    assert session.chain.status == "closed"
    assert "script" in await session.say("and now?"), "past its end it says so, and stops normally"


async def test_the_tour_takes_under_fifteen_seconds() -> None:
    waits = Waits()
    session = Session("tour", Rehearsal(sleep=waits))
    session.book.message("show me")
    await session.run()
    assert 2 < sum(waits.waited) < 13, "and its commands take two more"


async def test_the_tour_without_a_worker_says_what_is_missing() -> None:
    session = Session("tour", Rehearsal(speed=0), workers=())
    assert "no worker" in await session.say("show me")
    assert session.chain.status == "closed"


async def test_the_tour_begins_when_a_worker_comes() -> None:
    session = Session("tour", Rehearsal(speed=0), workers=())
    for text in ("show me", "really?"):
        session.book.message(text)
        (blocks,) = await session.run()
        (answer,) = blocks
        assert f"“{text}”" in answer.body.decode()
        assert "{" not in answer.body.decode()
    session.book.add("system", prompt.workers((WorkerRef("w1"),), lambda _: HELLO), source="workers")
    session.book.message("now then")
    steps = await session.run()
    assert [call.arguments for call in calls(steps[0])] == ['{"worker":"w1","code":"uname -a"}']
    assert "now then" in steps[0][0].body.decode()
    assert "no model was asked" in words(steps[-1])


@pytest.mark.parametrize("name", ["tour", "chaos"])
async def test_without_a_worker_no_later_step_is_played_as_if_there_were_one(name: str) -> None:
    session = Session(name, Rehearsal(speed=0), workers=())
    for count in range(12):
        assert "no worker" in await session.say(f"message {count}")
    assert session.chain.status == "closed"


async def test_echo_answers_each_message_with_what_it_said() -> None:
    session = Session("echo", Rehearsal(speed=0))
    assert await session.say("hello ü😀") == "hello ü😀"
    assert await session.say("{session}\nand more") == "{session}\nand more"
    session.book.add("system", prompt.workers((WorkerRef("w9"),), lambda _: None), source="workers")
    session.book.error("something broke")
    assert await session.say("third") == "third"


async def test_chaos_survives_every_fault_and_ends_well() -> None:
    session = Session("chaos", Rehearsal(speed=0))
    session.book.message("go")
    steps = await session.run()
    assert session.chain.status == "closed"
    assert "normal end" in words(steps[-1])
    kinds = " ".join(retry.why for retry in session.retries)
    for sign in ("status 429", "status 529", "status 500", "broke off", "connection broke"):
        assert sign in kinds
    assert {retry.restart for retry in session.retries} == {True, False}
    assert max(retry.attempt for retry in session.retries) < session.policy.tries
    assert [call.arguments for call in calls(steps[4])][1:] == ['["w1"]', "{}"]
    assert "你好, ☕" in words(steps[3])


# What is played.


async def test_the_step_is_read_off_the_request_so_another_daemon_goes_on(tmp_path: Path) -> None:
    text = '[[steps]]\ntext = "one"\n[[steps]]\ntext = "two"\n[[steps]]\ntext = "three"'
    session = Session("mine", play(tmp_path, text))
    assert await session.say("a") == "one"
    session.provider, session.wire = play(tmp_path, text), Wire()
    assert await session.say("b") == "two"
    assert await session.say("c") == "three"
    assert "over" in await session.say("d")


async def test_per_message_the_steps_begin_anew_with_each_message(tmp_path: Path) -> None:
    text = 'per = "message"\n[[steps]]\ncalls = [{ tool = "run" }]\n[[steps]]\ntext = "{messages}: {message}, {output}"'
    session = Session("mine", play(tmp_path, text))
    assert await session.say("a") == "1: a, done"
    assert await session.say("b") == "2: b, done"


async def test_a_message_that_comes_while_calls_run_does_not_begin_anew(tmp_path: Path) -> None:
    text = 'per = "message"\n[[steps]]\ncalls = [{ tool = "run" }]\n[[steps]]\ntext = "{message}"'
    session = Session("mine", play(tmp_path, text))
    session.book.message("a")
    await session.step()
    session.book.message("also b")
    assert words(await session.step()) == "also b"


async def test_texts_are_filled_in_once_and_other_braces_stay(tmp_path: Path) -> None:
    text = """
    [[steps]]
    text = "{worker} {cwd} {session} {model} {step} {messages} ${HOME} {a,b} {}"
    calls = [
      { tool = "run", arguments = { code = "echo {message}", deep = [{ "x" = "{worker}" }], n = 1 } },
      { tool = "x" },
    ]
    [[steps]]
    text = "{result.1}|{output.2}|{result.3}|{output}"
    """
    session = Session("mine", play(tmp_path, text))
    session.book.message("{worker}")
    first = await session.step(lambda call: {"text": f"of {call.name}", "exit": 0})
    assert words(first) == "w1 /data/x s mine 1 1 ${HOME} {a,b} {}"
    assert msgspec.json.decode(calls(first)[0].arguments) == {
        "code": "echo {worker}",
        "deep": [{"x": "w1"}],
        "n": 1,
    }
    second = words(await session.step())
    assert second.startswith("of run\n[exit 0, ")
    assert second.endswith("]|of x||of run\nof x")


async def test_the_newest_list_of_workers_counts(tmp_path: Path) -> None:
    session = Session("mine", play(tmp_path, 'per = "message"\n[[steps]]\ntext = "{worker}:{cwd}"'))
    assert await session.say("a") == "w1:/data/x"
    session.book.add("system", prompt.workers((WorkerRef("new"),), lambda _: None), source="workers")
    assert await session.say("b") == "new:the operator's home"
    session.book.add("system", prompt.workers((), lambda _: None), source="workers")
    assert await session.say("c") == ":"


async def test_usage_stop_and_ids_are_what_the_step_says(tmp_path: Path) -> None:
    text = """
    [[steps]]
    text = "x"
    stop = "max_tokens"
    usage = { input = 5, output = 6, cache_read = 7, cache_write = 8 }
    calls = [{ tool = "run", id = "mine", arguments = '{"half' }]
    """
    session = Session("mine", play(tmp_path, text))
    session.book.message("a")
    *_, call, outcome = [event async for event in session.stream() if not isinstance(event, Delta)]
    assert isinstance(call, Block)
    assert (call.id, calls([call])[0].arguments) == ("mine", '{"half')
    assert isinstance(outcome, Outcome)
    assert (outcome.end, outcome.usage.prompt, outcome.usage.output) == ("length", 20, 6)


async def test_usage_that_is_not_given_is_guessed_from_the_text(tmp_path: Path) -> None:
    session = Session("mine", play(tmp_path, f'[[steps]]\ntext = "{"x" * 400}"'))
    await session.say("a")
    assert session.chain.usage.output == 100
    assert session.chain.usage.input > 50


async def test_thinking_comes_back_in_the_next_request(tmp_path: Path) -> None:
    session = Session("mine", play(tmp_path, '[[steps]]\nthinking = "hm"\ntext = "x"'))
    await session.say("a")
    session.book.message("b")
    query = Query(find("mine", session.provider.models()), session.chain.context(), (), {}, "s")
    assert b'"thinking":"hm"' in session.provider.compile(query, Wire()).body


# Faults.


def faulty(faults: str, more: str = "") -> str:
    return f'[[steps]]\ntext = "It is ü, whole."\n{more}\nfaults = [{faults}]'


@pytest.mark.parametrize(
    "fault",
    [
        '{ kind = "status" }',
        '{ kind = "status", status = 503, headers = { "Retry-After" = "2" } }',
        '{ kind = "error", after = 3 }',
        '{ kind = "cut" }',
        '{ kind = "cut", after = 4 }',
        '{ kind = "cut", bytes = 300 }',
        '{ kind = "drop", after = 3 }',
        '{ kind = "drop", bytes = 1 }',
    ],
)
async def test_a_fault_is_played_as_often_as_it_says_and_then_the_step(tmp_path: Path, fault: str) -> None:
    session = Session(
        "mine",
        play(
            tmp_path,
            faulty(
                fault.replace(" }", ", times = 2 }", 1) if "headers" not in fault else fault + "," + fault
            ),
        ),
    )
    assert await session.say("a") == "It is ü, whole."
    assert len(session.retries) == 2


async def test_faults_of_a_step_come_in_order_and_count_by_session(tmp_path: Path) -> None:
    text = faulty('{ kind = "status", status = 500 }, { kind = "status", status = 529 }')
    provider = play(tmp_path, text)
    for id in ("one", "two"):
        session = Session("mine", provider, id=id)
        assert await session.say("a") == "It is ü, whole."
        assert [retry.why[-11:] for retry in session.retries] == ["status 500)", "status 529)"]


async def test_an_error_that_is_final_fails_the_step_and_a_retry_goes_well(tmp_path: Path) -> None:
    session = Session(
        "mine",
        play(
            tmp_path,
            faulty('{ kind = "status", status = 400, type = "invalid_request_error", message = "no" }'),
        ),
    )
    session.book.message("a")
    with pytest.raises(ProviderError, match="no"):
        await session.step()
    assert words(await session.step()) == "It is ü, whole."


@pytest.mark.parametrize("where", ["after = 4", "bytes = 500"])
async def test_a_stall_is_a_pause_that_the_stall_clock_sees(tmp_path: Path, where: str) -> None:
    text = faulty(f'{{ kind = "stall", {where}, seconds = 7.0 }}')
    waits = Waits()
    session = Session("mine", play(tmp_path, text, speed=1, sleep=waits))
    assert await session.say("a") == "It is ü, whole."
    assert (waits.waited, session.retries) == ([7.0], [])
    for_ever = asyncio.Event()

    async def never(_: float) -> None:
        await for_ever.wait()

    session = Session("mine", play(tmp_path, text, speed=1, sleep=never))
    session.policy = RetryPolicy(sleep=Waits(), stall=0.05)
    assert await session.say("a") == "It is ü, whole."
    assert "no event for" in session.retries[0].why


async def test_pauses_are_divided_by_the_speed(tmp_path: Path) -> None:
    text = '[[steps]]\ntext = "abcd"\ndelay = 1\npace = 0.5\npiece = 2\nfaults = [{ kind = "status" }]'
    for speed, expected in ((1.0, [1, 1, *[0.5] * 6]), (2.0, [0.5, 0.5, *[0.25] * 6]), (0.0, [])):
        waits = Waits()
        session = Session("mine", play(tmp_path, text, speed=speed, sleep=waits))
        await session.say("a")
        assert waits.waited == expected


@pytest.mark.parametrize("lines", ["lf", "crlf", "cr"])
@pytest.mark.parametrize("chunk", [0, 1, 7])
async def test_line_ends_noise_and_small_reads_change_nothing(tmp_path: Path, lines: str, chunk: int) -> None:
    more = f'thinking = "☕"\nnoise = true\nlines = "{lines}"\nchunk = {chunk}\npiece = 1'
    session = Session("mine", play(tmp_path, faulty("", more)))
    assert await session.say("a") == "It is ü, whole."


async def test_a_script_that_cannot_be_played_fails_with_its_file_and_field(tmp_path: Path) -> None:
    session = Session("mine", play(tmp_path, "[[steps]]\ntxt = 1"))
    session.book.message("a")
    with pytest.raises(ProviderError, match=r"mine\.toml: steps\[0\]: .*`txt`"):
        await session.step()
    (tmp_path / "mine.toml").write_text('[[steps]]\ntext = "mended"')
    assert words(await session.step()) == "mended"


async def test_tries_are_not_remembered_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = play(tmp_path, faulty('{ kind = "status", status = 400 }'))
    session = Session("mine", provider)
    session.book.message("a")
    for number in range(3):
        session.id = f"s{number}"
        with pytest.raises(ProviderError):
            await session.step()
    assert len(provider._tries) == 3
    await session.step()
    assert len(provider._tries) == 2


def test_params_may_not_touch_what_the_harness_sets() -> None:
    assert "params.model" in Rehearsal().check_params({"model": "x"})
    assert Rehearsal().check_params({"temperature": 1}) == ""


def test_a_scene_of_texts_that_are_plain_strings_reads_too() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":"plain"}]}]}'
    assert playing.scene(body, "s").results == ("plain",)


def test_a_step_past_the_end_is_the_scripts_last_word() -> None:
    seen = playing.Scene(5, 5, {"worker": ""}, ())
    assert playing.choose(script.Script((script.Step(text="x"),), end="the end"), seen)[1].text == "the end"

"""Rehearsals written for a test: steps with calls, the results they got, and whether the session lives afterwards."""

import json
from typing import Any

from daemon.protocol.records import Record
from tests.e2e.driving import Driver, judge


def toml(value: Any) -> str:
    """A value of a rehearsal's script."""
    match value:
        case dict():
            return "{ " + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def script(*steps: dict[str, Any]) -> str:
    return f"steps = {toml(list(steps))}\n"


def uses(tool: str, *arguments: dict[str, Any], **step: Any) -> dict[str, Any]:
    """A step that calls a tool of the local worker once with each of these arguments, in one answer."""
    calls = [{"tool": tool, "arguments": {"worker": "local"} | given} for given in arguments]
    return {"text": "I do.", "calls": calls} | step


def runs(*codes: str, **step: Any) -> dict[str, Any]:
    """A step that runs each code, in one answer."""
    return uses("run", *({"code": code} for code in codes), **step)


def results(found: list[Record]) -> list[Record]:
    """The results in the order of their calls."""
    by = {record.header.for_: record for record in found if record.kind == "result"}
    return [by[record.id] for record in found if record.kind == "call" and record.id in by]


async def lives(on: Driver, session: str) -> list[Record]:
    """The session is given to the mock and answers a message as ever; its records."""
    await on.switch(session, "mock/script")
    await on.post(session, "And now?")
    found = await on.closes(session)
    judge(found)
    assert found[-2].text() == "All done."
    assert await on.stage.mock.get("bad") == []
    return found

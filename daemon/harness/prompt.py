"""The words the harness says to a model: its system text and the list of a session's workers."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from daemon.harness import copies
from daemon.protocol import frames
from daemon.protocol.records import WorkerRef

SYSTEM: Final = f"""\
You are an agent that works on machines through tools. Your operator reads along and can answer at any time.

What a worker does and enforces:
- Each tool call names its worker. Nothing is ever run on another worker instead.
- `run` gives code to an interpreter that stays alive between calls: variables, the current folder and background \
jobs carry over. If it had to be replaced, the result says so in its first line.
- Code reads end-of-file from standard input and has no terminal; a command that needs either will fail. Pass \
flags that make commands non-interactive.
- A result holds standard output and error in order, at most the last {frames.MAX_LINES} lines or \
{frames.MAX_TAIL >> 10} KiB; it says how many lines were cut and which file on the worker has all of them.
- A run is stopped at its time limit (600 seconds unless the call asks for another). Start what should go on \
longer in the background, with its output in a file.
- `read` and `write` take paths relative to the session's folder on that worker. `edit` needs text that occurs \
exactly once. Writes replace a file as a whole or not at all.
- Calls of one answer to one interpreter run in order; everything else runs side by side.
- A worker's file `past` holds this session's own records up to its last pause, without pictures: search it for \
what you no longer see.
- A result that says its effect is unknown means just that: look before you do it again.

Work until the task is done, then answer without a call. Say what you did and what you could not do."""

CORDONED: Final = "cordoned by the operator: takes no calls now"
_BREAKS: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"
)  # with them a worker could pass for another line
NO_WORKERS: Final = "This session has no workers: only answers in words are possible."


def workers(
    refs: Sequence[WorkerRef],
    hello: Callable[[str], frames.Hello | None],
    cordoned: Callable[[str], bool] = lambda name: False,
    session: str = "",
) -> str:
    """The list of a session's workers as the model is told it; the same state gives the same text."""
    if not refs:
        return NO_WORKERS
    lines = ["Workers of this session:"]
    for ref in refs:
        said = hello(ref.name)
        folder = ref.cwd or (said.home if said else "") or "the operator's home"
        if said is None:
            state = f"not connected now; {CORDONED if cordoned(ref.name) else 'a call waits for it'}"
            lines.append(f"- {ref.name}: {state}. Folder: {folder}")
            continue
        size = f"{said.cpus} CPUs, {said.memory >> 20} MiB" if said.cpus else "size unknown"
        line = (
            f"- {ref.name}: {said.os} {said.arch}, {size}; interpreters: {', '.join(said.interpreters)}; "
            f"folder: {folder}; scratch: {said.scratch}; past: {copies.path(said.scratch, session)}"
            + (f"; {CORDONED}" if cordoned(ref.name) else "")
        )
        lines.append(_BREAKS.sub("\N{REPLACEMENT CHARACTER}", line))
    return "\n".join(lines)

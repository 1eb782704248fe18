"""Carry out one tool call on its worker and say how it went as a result record."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from typing import Any, Final, assert_never

from daemon.harness import edit, patch, pictures, reads, shown, tools
from daemon.harness.environments import DROPPED, Environments
from daemon.harness.tools import Arguments, BadCall, Edit, Patch, Read, Run, Write
from daemon.plain import count
from daemon.pool import Cordoned, Output, Pool, Refused, WorkerGone
from daemon.protocol import records
from daemon.protocol.records import Config, Record, WorkerRef, draft

MAX_FILE: Final = 32 << 20  # bytes of a file that `edit` takes whole
SAMPLE: Final = 64 << 10  # bytes of a file that tell its line ends
UNKNOWN: Final = "interrupted, effect unknown"
HALF: Final = "the patch was being written; some of its files are changed, look at them"


class Calls:
    """What the tools do, on a pool of workers. Every method answers with a result; none raises for a bad call."""

    def __init__(self, pool: Pool, environments: Environments) -> None:
        self._pool = pool
        self._environments = environments

    async def perform(
        self,
        session: str,
        config: Config,
        call: Record,
        *,
        age: float | None = None,
        had: Collection[str] = (),
        on_output: Callable[[bytes], None] | None = None,
        images: list[Record] | None = None,
    ) -> Record:
        """The result of `call`, a record not yet appended.

        `images` takes further records of it: what a run has shown, to be appended right after, in one write.

        `age`: seconds since the call was recorded, given when an earlier daemon may have begun it; then the worker
        is asked first and nothing is done twice. `had`: names of all workers that the session has or had.
        """
        images = [] if images is None else images
        try:
            body = records.call_of(call)
            if age is not None and body.name in tools.ALL and body.name not in tools.names(config.tools):
                return await self._withdrawn(session, call.id, tools.parse(body, tools.ALL), had, age, config)
            wanted = tools.parse(body, config.tools)
            here = {ref.name for ref in config.workers}
            if age is not None and wanted.worker in had and wanted.worker not in here:
                return await self._dropped(session, call.id, wanted.worker, age, config.input, images)
            ref = _worker(config, wanted.worker)
        except (BadCall, records.BadRecord) as error:
            return _failed(call.id, str(error))
        try:
            match wanted:
                case Run():
                    return await self._run(
                        session, call.id, wanted, ref, age, on_output, config.input, images
                    )
                case Read():
                    return await reads.carry_out(self._pool, call.id, wanted, ref, config.input)
                case Write():
                    return await self._write(session, call.id, wanted, ref, age)
                case Edit():
                    return await self._edit(session, call.id, wanted, ref, age)
                case Patch():
                    return await self._patch(session, call.id, wanted, ref, age)
                case _:
                    assert_never(wanted)
        except (BadCall, Refused, WorkerGone, Cordoned) as error:
            return _failed(call.id, str(error), worker=ref.name)

    async def _dropped(
        self, session: str, call: str, worker: str, age: float, takes: tuple[str, ...], images: list[Record]
    ) -> Record:
        """The result of a call that an earlier daemon may have begun on a worker that the session no longer has."""
        await self._pool.interrupt(worker, session, call)
        if self._pool.hello(worker) is None:
            return unknown(call, worker, DROPPED)
        try:
            done = await self._pool.attach(worker, session, call, age=age)
        except (Refused, WorkerGone) as error:
            return _failed(call, str(error), worker=worker)
        if done is None:
            return _failed(call, f"not begun: {DROPPED}")
        done, more = await pictures.fetch(self._pool, call, worker, done, takes)
        images.extend(more)
        return _ran(call, worker, done, 0)

    async def _withdrawn(
        self, session: str, call: str, wanted: Arguments, had: Collection[str], age: float, config: Config
    ) -> Record:
        """The result of a call that an earlier daemon may have begun by a tool that the session no longer has."""
        worker = wanted.worker
        try:
            for id in (call, _part(call, 0)) if worker in had else ():
                if (done := await self._pool.attach(worker, session, id, age=age)) is not None:
                    if id != call:
                        return unknown(call, worker, HALF)
                    return _ran(call, worker, done, 0)
        except (Refused, WorkerGone) as error:
            return _failed(call, str(error), worker=worker)
        return _failed(
            call, f"not begun: the session has other tools now: {', '.join(tools.names(config.tools))}"
        )

    async def _run(
        self,
        session: str,
        call: str,
        run: Run,
        ref: WorkerRef,
        age: float | None,
        on_output: Callable[[bytes], None] | None,
        takes: tuple[str, ...],
        images: list[Record],
    ) -> Record:
        with self._environments.using(ref.name, session):
            output = await self._pool.run(
                ref.name,
                session,
                call,
                run.code,
                interpreter=run.interpreter,
                cwd=ref.cwd,
                timeout=run.timeout,
                age=age,
                on_output=on_output,
            )
        output, more = await pictures.fetch(self._pool, call, ref.name, output, takes)
        images.extend(more)
        return _ran(call, ref.name, output, run.timeout)

    async def _write(
        self, session: str, call: str, write: Write, ref: WorkerRef, age: float | None
    ) -> Record:
        data = write.content.encode("utf-8", "replace")
        done = await self._before(session, call, ref, age)
        if done is not None:
            return _ran(call, ref.name, done, 0) if done.unknown else _wrote(call, write.path, ref, len(data))
        kept = shown.with_crlf(data) if await self._is_crlf(write.path, ref) else data
        await self._pool.write(ref.name, write.path, kept, cwd=ref.cwd, session=session, call=call)
        ends = ", with the line ends \\r\\n that it had" if kept != data else ""
        return _wrote(call, write.path, ref, len(kept), ends)

    async def _is_crlf(self, path: str, ref: WorkerRef) -> bool:
        """Whether there is a file at `path` whose lines end in `\\r\\n`."""
        try:
            return shown.is_crlf((await self._pool.read(ref.name, path, cwd=ref.cwd, limit=SAMPLE)).data)
        except Refused:  # it is not there, or may be written and not read
            return False

    async def _edit(self, session: str, call: str, wanted: Edit, ref: WorkerRef, age: float | None) -> Record:
        done = await self._before(session, call, ref, age)
        if done is not None and done.unknown:
            return _ran(call, ref.name, done, 0)
        if done is not None:
            return draft("result", f"Edited {wanted.path}.", for_=call, worker=ref.name)
        content = await self._pool.read(ref.name, wanted.path, cwd=ref.cwd, max_bytes=MAX_FILE)
        try:
            data, lines = await asyncio.to_thread(
                edit.apply, content.data, wanted.old, wanted.new, wanted.all
            )
        except edit.EditError as error:
            raise BadCall(f"{wanted.path}: {error}. Nothing was changed.") from error
        digest = sha256(content.data).hexdigest()
        await self._pool.write(
            ref.name, wanted.path, data, cwd=ref.cwd, session=session, call=call, expect=digest, begun=True
        )
        where = f"line {lines[0]}" if len(lines) == 1 else f"{len(lines)} places"
        return draft("result", f"Edited {wanted.path}, {where}.", for_=call, worker=ref.name)

    async def _patch(
        self, session: str, call: str, wanted: Patch, ref: WorkerRef, age: float | None
    ) -> Record:
        """Write the changes one after another, the last under the call's own id: it says that all are there."""
        done = await self._before(session, call, ref, age)
        if done is not None and done.unknown:
            return _ran(call, ref.name, done, 0)
        if done is not None:
            return draft("result", "Patched.", for_=call, worker=ref.name)
        if await self._before(session, _part(call, 0), ref, age) is not None:
            return unknown(call, ref.name, HALF)
        try:
            sections = await asyncio.to_thread(patch.parse, wanted.input)
            files = {path: await self._content(path, ref) for path in patch.paths(sections)}
            changes = await asyncio.to_thread(patch.plan, sections, files)
        except patch.PatchError as error:
            raise BadCall(f"{error}\nNothing was changed.") from error
        written: list[tuple[str, patch.Change]] = []
        for at, change in enumerate(changes):
            id = call if at == len(changes) - 1 else _part(call, at)
            try:
                await self._apply(session, id, change, ref)
            except Refused as error:
                back = await self._put_back(session, written, ref)
                raise BadCall(f"{change.path} could not be written: {error}. {back}") from error
            written.append((id, change))
        return draft("result", patch.summary(changes), for_=call, worker=ref.name)

    async def _content(self, path: str, ref: WorkerRef) -> bytes | None:
        try:
            return (await self._pool.read(ref.name, path, cwd=ref.cwd, max_bytes=MAX_FILE)).data
        except Refused as error:
            if error.code == "not_found":
                return None
            raise

    async def _apply(
        self,
        session: str,
        call: str,
        change: patch.Change,
        ref: WorkerRef,
        undoes: tuple[str, str] | None = None,
    ) -> None:
        await self._pool.write(
            ref.name,
            change.path,
            change.after or b"",
            cwd=ref.cwd,
            session=session,
            call=call,
            remove=change.after is None,
            undoes=undoes,
            like=change.source or "",
            expect=sha256(change.before).hexdigest() if change.before is not None else "",
            begun=True,
        )

    async def _put_back(
        self, session: str, written: Sequence[tuple[str, patch.Change]], ref: WorkerRef
    ) -> str:
        """Undo what was written, each under its id; says how that went. Folders made for a new file go with it."""
        changes = patch.undo([change for _, change in written])
        for change, (id, _) in zip(changes, reversed(written), strict=True):
            try:
                await self._apply("", "", change, ref, (session, id) if change.after is None else None)
            except (Refused, WorkerGone) as error:
                return (
                    f"{change.path} was changed before that and could not be put back ({error}): look at it."
                )
        return "Nothing was changed."

    async def _before(self, session: str, call: str, ref: WorkerRef, age: float | None) -> Output | None:
        """What an earlier daemon's try of this call came to; None when there was none."""
        return None if age is None else await self._pool.attach(ref.name, session, call, age=age)


def _part(call: str, at: int) -> str:
    """The id under which one of a patch's writes is journaled."""
    return f"{call}.{at}"


def unknown(call: str, worker: str, why: str) -> Record:
    """A result for a call of which nobody can say what it did."""
    return _failed(call, f"{UNKNOWN}: {why}", worker=worker)


def _wrote(call: str, path: str, ref: WorkerRef, size: int, also: str = "") -> Record:
    return draft("result", f"Wrote {count(size, 'byte')} to {path}{also}.", for_=call, worker=ref.name)


def worker_of(call: Record) -> str:
    """The worker that a call names, empty when its arguments do not say."""
    try:
        value = tools.parse(records.call_of(call), tools.ALL)
    except (BadCall, records.BadRecord):
        return ""
    return value.worker


def _worker(config: Config, name: str) -> WorkerRef:
    for ref in config.workers:
        if ref.name == name:
            return ref
    there = ", ".join(ref.name for ref in config.workers) or "none"
    raise BadCall(f"There is no worker {name!r} in this session. Its workers: {there}. Nothing was done.")


def _failed(call: str, message: str, **fields: Any) -> Record:
    return draft("result", message, for_=call, failed=True, **fields)


def _ran(call: str, worker: str, output: Output, timeout: float) -> Record:
    lines = []
    if output.reset:
        lines.append(f"[environment was reset: {output.reset}; its variables and current folder are lost]")
    text = output.text.decode("utf-8", "replace")
    notes = list(output.notes)
    if output.stopped == "timeout":
        notes.append(f"stopped at its time limit of {timeout:g} s")
    elif output.stopped:
        notes.append("stopped on request")
    if output.unknown:
        notes.append(f"{UNKNOWN}: {output.unknown}")
    if text:
        lines.append(text.removesuffix("\n"))
    lines += [f"[{note}]" for note in notes]
    return draft(
        "result",
        "\n".join(lines),
        for_=call,
        worker=worker,
        exit=output.exit,
        seconds=round(output.seconds, 3),
        truncated=output.truncated,
        full_output=output.full_output,
        failed=bool(output.unknown or output.stopped == "interrupt"),
    )

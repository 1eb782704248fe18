"""Runs from request to result: checked, queued on their environment, journaled, run once, told to whoever waits."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from daemon.allowance import Allowance
from daemon.protocol import frames
from daemon.worker import interpreters, journal, output, syntax
from daemon.worker.environment import Ending, Spawn, first_of
from daemon.worker.going import Peer, Run, result_frame
from daemon.worker.reaping import Ended
from daemon.worker.refusal import Refusal, own_rule
from daemon.worker.slots import FAULT, Slot, Slots

MAX_GOING: Final = 512  # runs at once, queued ones too: each may hold a thread, five descriptors and a shell
MAX_TIMEOUT: Final = 7 * 24 * 3600.0  # seconds
MAX_ID: Final = 1024  # characters of a session's or a call's id
MAX_NOTE: Final = 2000  # characters of one note, so that a result's header stays in its limits

log = logging.getLogger(__name__)


class NotBegun(Exception):
    """The worker ends before the run began: it stays unknown here, and the next keeper may run it."""


class Runs:
    """All runs and environments of a worker; `found` are the interpreters that are there, the default first."""

    def __init__(
        self, kept: journal.Journal, spawn: Spawn, environ: Mapping[str, str], found: tuple[str, ...]
    ) -> None:
        self.journal = kept
        self.allowed = Allowance()
        self._found = found
        self.going: dict[journal.Key, Run] = {}
        self._spawn = spawn
        self.slots = Slots(kept, spawn, lambda: self.allowed.variables(environ))
        self._tasks: dict[journal.Key, asyncio.Task[None]] = {}
        self._closing = ""
        self.on_end: Callable[[], None] = lambda: None

    @property
    def names(self) -> tuple[str, ...]:
        """The interpreters that are there and allowed, the default first."""
        if self.allowed.interpreters is None:
            return self._found
        return tuple(name for name in self.allowed.interpreters if name in self._found)

    @property
    def missing(self) -> tuple[str, ...]:
        """The interpreters that are allowed and not there."""
        return tuple(name for name in self.allowed.interpreters or () if name not in self._found)

    def run(self, peer: Peer, frame: frames.Run, code: bytes) -> None:
        """Answer a `run`: begin it, or attach to what has its name."""
        key = (frame.session, frame.call)
        if going := self.going.get(key):
            going.waiting.append((peer, frame.id))
        elif entry := self.journal.entries.get(key):
            if entry.kind != "run":
                raise Refusal("bad_request", f"call {frame.call} is a write: give the run a call of its own")
            self._answer_finished(peer, frame.id, key)
        else:
            self._admit(frame)
            if self.allowed.seconds:
                frame = msgspec.structs.replace(frame, timeout=min(frame.timeout, self.allowed.seconds))
            run = self.going[key] = Run(frame, code, frame.interpreter or self.names[0])
            run.waiting.append((peer, frame.id))
            slot = self.slots.at(frame.session, run.interpreter)
            with contextlib.suppress(Exception):  # tried again, and told, where it is carried out
                self._begin_now(run, slot)
            if not run.meta or peer.has_more or len(self.going) > 1 or not self._at_once(run, slot):
                self._tasks[key] = self._spawn(
                    self._carry_out(run, slot, slot.join()), f"run {key[0]} {key[1]}"
                )

    def _begin_now(self, run: Run, slot: Slot) -> None:
        """Begin a run that waits for nothing, so that it goes on while its task is made."""
        environment = slot.environment
        if environment is None or not slot.is_idle:
            return
        if run.interpreter == interpreters.BASH and not syntax.is_simple(run.code):
            return
        if environment.is_free():
            self._write_down(run, slot)
            assert run.sink is not None
            try:
                environment.begin(run.file, run.sink, run.printed)
            except Exception as fault:  # noqa: BLE001 - told where it is carried out
                run.fault = fault

    def _at_once(self, run: Run, slot: Slot) -> bool:
        """Carry a run that has begun to its end without a task, while no other goes; False where it takes longer."""
        meta, sink, environment = run.meta, run.sink, slot.environment
        assert meta is not None
        assert sink is not None
        assert environment is not None
        try:
            if run.fault or (ending := environment.at_once(sink)) is None:
                return False
            seconds = time.monotonic() - run.began
            result = self._finish(run.key, meta, sink, ending, seconds, ())
        except Exception as fault:  # noqa: BLE001 - told where it is carried out
            run.fault = fault
            return False
        run.quiet()
        self._answer(run, result)
        self.on_end()
        return True

    def _write_down(self, run: Run, slot: Slot) -> None:
        meta = self._meta(run, slot.reset)
        run.file = self.journal.begin(meta, run.code)
        run.meta = meta
        run.sink = output.Sink(self.journal.output(run.key), self.allowed.output or output.MAX_FILE)
        run.began = time.monotonic()
        slot.reset = ""

    def _admit(self, frame: frames.Run) -> None:
        for name, id in (("session", frame.session), ("call", frame.call)):
            if not 0 < len(id) <= MAX_ID:
                raise Refusal("bad_request", f"`{name}` must have 1 to {MAX_ID} characters")
        if not self.names or (frame.interpreter in self._found and frame.interpreter not in self.names):
            what = f"code may not be run with `{frame.interpreter}`" if self.names else "no code may be run"
            raise Refusal("denied", own_rule(what, ", ".join(self.names) or "none", "interpreters"))
        if frame.interpreter and frame.interpreter not in self.names:
            listed = ", ".join(self.names)
            raise Refusal(
                "bad_request", f"there is no interpreter `{frame.interpreter}` here, there is: {listed}"
            )
        if not 0 < frame.timeout <= MAX_TIMEOUT:
            raise Refusal("bad_request", f"`timeout` must be over 0 and at most {MAX_TIMEOUT:.0f} seconds")
        if self._closing:
            raise Refusal("busy", f"this worker is ending: {self._closing}")
        if len(self.going) >= MAX_GOING:
            raise Refusal(
                "limit", f"{MAX_GOING} runs are going or waiting here: try again when some have ended"
            )
        if 0 < self.allowed.runs <= len(self.going):
            what = f"{len(self.going)} runs are going or waiting here, so this one was not begun"
            raise Refusal("limit", own_rule(what, f"{self.allowed.runs} at once", "runs"))

    def attach(self, peer: Peer, frame: frames.Attach) -> None:
        """Answer an `attach` in its three forms."""
        key = (frame.session, frame.call)
        if going := self.going.get(key):
            peer.send(frames.Going(id=frame.id))
            going.waiting.append((peer, frame.id))
            if going.sink and (newest := going.sink.ring[-frames.LIVE_CHUNK :]):
                peer.send_live(frames.Output(id=frame.id), output.from_character(newest))
        elif key in self.journal.entries:
            self._answer_finished(peer, frame.id, key)
        else:
            peer.send(frames.Unknown(id=frame.id))

    def detach(self, peer: Peer) -> None:
        """A connection is closed: it waits for nothing any more. The runs go on."""
        for run in self.going.values():
            run.waiting = [(one, id) for one, id in run.waiting if one is not peer]

    def interrupt(self, key: journal.Key) -> bool:
        """End one run; False where it is not going."""
        run = self.going.get(key)
        if run:
            run.stop()
        return run is not None

    def ack(self, key: journal.Key) -> None:
        """The harness has the result of a run or write; of one that is not known here, or goes on, it means nothing."""
        self.journal.ack(key)

    def _answer_finished(self, peer: Peer, id: int, key: journal.Key) -> None:
        result = self.journal.result(key)
        peer.send(result_frame(id, result), result.text.encode())

    async def _carry_out(self, run: Run, slot: Slot, place: asyncio.Future[None]) -> None:
        try:
            result = await self._result(run, slot, place)
        except NotBegun:
            pass
        except Refusal as refusal:
            self._refuse(run, refusal)
        except Exception as error:  # the one around one run: whoever waits is answered, whatever it was
            if run.meta:
                log.exception("run %s %s failed", *run.key)
                self._answer(run, await self._lost(run, slot, run.meta))
            elif isinstance(error, OSError):
                said = f"the worker could not journal the run, so it was not begun: {error.strerror}"
                self._refuse(run, Refusal("failed", said))
            else:
                log.exception("run %s %s could not be begun", *run.key)
                said = f"the worker has a fault, so the run was not begun: its log keeper.log says more ({error})"
                self._refuse(run, Refusal("failed", said))
        else:
            self._answer(run, result)
        finally:
            slot.leave(place)
            run.quiet()
            self.going.pop(run.key, None)
            self._tasks.pop(run.key, None)
            self.on_end()

    def _refuse(self, run: Run, refusal: Refusal) -> None:
        del self.going[run.key]
        for peer, id in run.waiting:
            peer.send(frames.Error(id=id, code=refusal.code), refusal.message.encode("utf-8", "replace"))

    def _answer(self, run: Run, result: journal.Result) -> None:
        del self.going[run.key]
        for peer, id in run.waiting:
            peer.send(result_frame(id, result), result.text.encode())

    async def _lost(self, run: Run, slot: Slot, meta: journal.Meta) -> journal.Result:
        """The result of a run that was begun and that we could not follow to its end: with it goes its environment."""
        if slot.environment:
            self.slots.abandon(slot.environment, FAULT)
        result = journal.Result(
            ended=time.time(),
            seconds=round(time.monotonic() - run.began, 6),
            reset=meta.reset,
            unknown=f"{FAULT} while this was running: its log keeper.log says more",
        )
        self.journal.finish(run.key, result, run.sink.kept if run.sink else 0)
        return result

    async def _result(self, run: Run, slot: Slot, place: asyncio.Future[None]) -> journal.Result:
        if run.fault:
            raise run.fault
        if run.meta:
            return await self._run(run, slot, ())
        if run.interpreter == interpreters.BASH and not syntax.is_simple(run.code):
            await asyncio.to_thread(syntax.check, run.code)
        if not place.done():
            await first_of(place, run.stop.wanted)
        notes: tuple[str, ...] = ()
        if not run.stop.wanted.done():
            try:
                notes = await self.slots.bring_up(run, slot)
            except Refusal:
                if not run.stop.wanted.done():  # otherwise that is why
                    raise
        if run.stop.wanted.done():
            if self._closing:
                raise NotBegun
            return await self._never_begun(run)
        return await self._run(run, slot, notes)

    async def _never_begun(self, run: Run) -> journal.Result:
        """The result of a run that was stopped while it waited."""
        self.journal.begin(self._meta(run, ""), run.code)
        result = journal.Result(
            ended=time.time(), stopped="interrupt", notes=("it was stopped before it began: nothing was run",)
        )
        self.journal.finish(run.key, result)
        return result

    def _meta(self, run: Run, reset: str) -> journal.Meta:
        return journal.Meta(
            session=run.frame.session,
            call=run.frame.call,
            started=time.time(),
            interpreter=run.interpreter,
            timeout=run.frame.timeout,
            reset=reset,
            len=len(run.code),
        )

    async def _run(self, run: Run, slot: Slot, notes: tuple[str, ...]) -> journal.Result:
        environment = slot.environment
        assert environment is not None
        begun = run.meta is not None
        if not begun:
            self._write_down(run, slot)
        meta, sink = run.meta, run.sink
        assert meta is not None
        assert sink is not None
        try:
            ending = await environment.run(
                run.file,
                sink,
                limit=run.frame.timeout,
                stop=run.stop,
                on_output=run.printed,
                begun=begun,
            )
        except Refusal:
            await asyncio.to_thread(self.journal.forget, run.key)
            slot.reset = meta.reset
            raise
        seconds = time.monotonic() - run.began
        if ending.died:
            known = (run.frame.session, run.interpreter, ending.died)
            await asyncio.to_thread(self.journal.set_environment, *known)
        finish = partial(self._finish, run.key, meta, sink, ending, seconds, notes)
        return finish() if sink.size <= output.RING else await asyncio.to_thread(finish)

    def _finish(
        self,
        key: journal.Key,
        meta: journal.Meta,
        sink: output.Sink,
        ending: Ending,
        seconds: float,
        notes: tuple[str, ...],
    ) -> journal.Result:
        text, truncated = sink.tail()
        sink.close()
        notes = (*notes, *ending.notes, *([sink.trouble] if sink.trouble else []))
        if ending.stopped == "timeout" and meta.timeout == self.allowed.seconds:
            notes += (own_rule("it was ended", f"{self.allowed.seconds:g} seconds a run", "seconds"),)
        result = journal.Result(
            ended=time.time(),
            exit=ending.exit,
            seconds=round(seconds, 6),
            truncated=truncated,
            full_output=sink.path if truncated else "",
            reset=meta.reset,
            unknown=self._closing if ending.stopped else "",
            stopped="" if self._closing else ending.stopped,
            notes=tuple(note[:MAX_NOTE] for note in notes),
            images=ending.images,
            text=text,
        )
        self.journal.finish(key, result, sink.kept + sum(image.size for image in ending.images))
        return result

    async def kill(self, session: str | None, reason: str) -> Ended:
        """End every environment of a session (None: of all) with everything they started."""
        for run in self.going.values():
            if session in (None, run.frame.session):
                run.stop()
        return await self.slots.end(session, reason)

    async def close(self, reason: str) -> None:
        """End everything; what was going has that as the reason why nobody knows what it did."""
        self._closing = reason
        tasks = list(self._tasks.values())
        await self.kill(None, reason)
        if tasks:
            await asyncio.wait(tasks)

import contextlib
import re
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from daemon.protocol import frames, framing
from daemon.protocol.frames import Frame

TO_WORKER = typing.get_args(frames.ToWorker)
TO_HARNESS = typing.get_args(frames.ToHarness)
HELLO = frames.Hello(
    protocol=1, release="1", os="linux", arch="x", hostname="h", interpreters=("bash",), scratch="/s"
)
FULL: dict[str, Any] = {  # a value other than the default for every field, by name
    "id": 3,
    "session": "00000000000000aa",
    "call": "call_1",
    "interpreter": "bash",
    "cwd": "/srv",
    "timeout": 2.5,
    "path": "a/ü.txt",
    "offset": 7,
    "limit": 9,
    "unit": "lines",
    "mode": 0o600,
    "expect": "ab" * 32,
    "like": "/src/old",
    "remove": True,
    "undoes": ("s", "c"),
    "append": True,
    "last": True,
    "reason": "it was idle",
    "release": "0.1.0",
    "url": "https://[fd00::1]/w.whl",
    "sha256": "cd" * 32,
    "missing": "the disk is full",
    "refused": "it speaks protocol 2",
    "protocol": 1,
    "os": "linux",
    "arch": "x86_64",
    "hostname": "h",
    "interpreters": ("bash", "python"),
    "scratch": "/scratch",
    "home": "/home/me",
    "user": "me",
    "cpus": 2,
    "memory": 1 << 34,
    "started": "2026-01-01T00:00:00.000Z",
    "journal": "j1",
    "running": 3,
    "environments": 4,
    "journal_age": 1.5,
    "runs": (("s", "c"), ("s", "d")),
    "exit": -9,
    "seconds": 0.25,
    "truncated": 5,
    "full_output": "/scratch/runs/x/output",
    "reset": "it exited",
    "unknown": "the journal is gone",
    "stopped": "timeout",
    "notes": ("a", "b"),
    "images": (frames.Image("/scratch/runs/x/image-1.png", "image/png", 70),),
    "size": 11,
    "lines": 12,
    "end": True,
    "code": "denied",
    "bytes": 13,
}


def full(kind: type[Any]) -> Frame:
    """A frame of this kind in which no field but `len` has its default."""
    frame: Frame = kind(**{name: FULL[name] for name in kind.__struct_fields__ if name != "len"})
    for field in structs.fields(kind):
        if field.name != "len" and field.default is not msgspec.NODEFAULT:
            assert getattr(frame, field.name) != field.default
    return frame


def least(kind: type[Any]) -> Frame:
    """A frame of this kind with nothing but what it needs."""
    needed = [field.name for field in structs.fields(kind) if field.required]
    frame: Frame = kind(**{name: FULL[name] for name in needed})
    return frame


def through(frame: Frame, body: bytes, to_worker: bool) -> tuple[Frame, bytes]:
    cutter: framing.Decoder[Any] = frames.worker_decoder() if to_worker else frames.harness_decoder()
    cutter.feed(frames.encode(frame, body))
    got = cutter.next()
    assert got is not None
    assert cutter.pending == 0
    return got[0], got[2]


BOTH_WAYS = [(kind, True) for kind in TO_WORKER] + [(kind, False) for kind in TO_HARNESS]


@pytest.mark.parametrize(("kind", "to_worker"), BOTH_WAYS)
@pytest.mark.parametrize("body", [b"", b"\n", bytes(range(256))])
def test_every_frame_comes_back(kind: type[Any], to_worker: bool, body: bytes) -> None:
    for frame in (full(kind), least(kind)):
        assert through(frame, body, to_worker) == (structs.replace(frame, len=len(body)), body)


@given(st.lists(st.tuples(st.sampled_from(TO_HARNESS), st.binary(max_size=30)), max_size=6), st.data())
def test_frames_come_back_from_any_split(wanted: list[tuple[type[Any], bytes]], draw: st.DataObject) -> None:
    data = b"".join(frames.encode(full(kind), body) for kind, body in wanted)
    cutter, found, at = frames.harness_decoder(), [], 0
    while at < len(data):
        size = draw.draw(st.integers(1, len(data) - at))
        cutter.feed(data[at : at + size])
        at += size
        while (got := cutter.next()) is not None:
            found.append((got[0], got[2]))
    assert found == [(structs.replace(full(kind), len=len(body)), body) for kind, body in wanted]


def test_a_frame_that_was_read_can_be_sent_on_with_another_body() -> None:
    got, _ = through(frames.Output(1), b"some", False)
    assert through(got, b"", False) == (frames.Output(1), b"")


@pytest.mark.parametrize(("kind", "to_worker"), BOTH_WAYS)
def test_unknown_fields_of_a_frame_are_passed_over(kind: type[Any], to_worker: bool) -> None:
    header = frames.encode(least(kind)).split(b"\n")[0]
    cutter: framing.Decoder[Any] = frames.worker_decoder() if to_worker else frames.harness_decoder()
    cutter.feed(framing.encode(header[:-1] + b',"later":{"x":[1]}}', b""))
    got = cutter.next()
    assert got is not None
    assert got[0] == least(kind)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1",
        b"null",
        b"[]",
        b"{}",
        b'{"kind":"dance","id":1}',
        b'{"kind":"hello"}',
        b'{"kind":"run","id":1,"session":"s","call":"c","timeout":-1}',
        b'{"kind":"run","id":1,"session":"s","call":"c","timeout":1e400}',
        b'{"kind":"read","id":1,"path":"p","offset":-1}',
        b'{"kind":"read","id":1,"path":"p","unit":"words"}',
        b'{"kind":"write","id":1,"path":"p","mode":65536}',
        b'{"kind":"window","id":1,"bytes":-5}',
        b'{"kind":"ping","len":-1}',
        b'{"kind":"ping","len":1048577}',
        b'{"kind":"ping","len":99999999999999999999}',
        b'{"kind":"ping","later":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"kind":"ack","session":"\xff","call":"c"}',
    ],
)
def test_what_is_not_a_frame_is_a_framing_error(line: bytes) -> None:
    cutter = frames.worker_decoder()
    cutter.feed(line + b"\n\n")
    with pytest.raises(framing.FramingError):
        cutter.next()


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (frames.Result(id=1, exit=1 << 64), "exit"),
        (frames.Result(id=1, exit=-(10**4000)), "exit"),
        (frames.Result(id=1, truncated=10**30), "truncated"),
        (frames.Result(id=1, seconds=-1.0), "seconds"),
        (frames.Result(id=1, seconds=1e300), "seconds"),
        (frames.Result(id=1, notes=("n",) * 17), "notes"),
        (frames.Result(id=1, notes=("n" * 5000,)), "notes[0]"),
        (frames.Result(id=1, images=(frames.Image("/i", "image/png", 1),) * 65), "images"),
        (frames.Result(id=1, images=(frames.Image("/i", "image/png", -1),)), "images[0].size"),
        (frames.Bytes(id=1, size=10**30), "size"),
        (structs.replace(HELLO, hostname="h" * 257), "hostname"),
        (structs.replace(HELLO, scratch="/" * 4097), "scratch"),
        (structs.replace(HELLO, cpus=-1), "cpus"),
        (structs.replace(HELLO, memory=10**30), "memory"),
        (structs.replace(HELLO, journal_age=-1.0), "journal_age"),
        (structs.replace(HELLO, interpreters=("i",) * 257), "interpreters"),
    ],
)
def test_what_a_worker_says_has_bounds_and_the_field_is_named(frame: frames.ToHarness, field: str) -> None:
    cutter = frames.harness_decoder()
    cutter.feed(frames.encode(frame))
    with pytest.raises(framing.FramingError, match=re.escape(f"`$.{field}`")):
        cutter.next()


@given(st.binary(max_size=300))
def test_garbage_on_a_connection_raises_only_framing_errors(data: bytes) -> None:
    for cutter in (frames.worker_decoder(), frames.harness_decoder()):
        cutter.feed(data)
        with contextlib.suppress(framing.FramingError):
            assert cutter.next() is None


@pytest.mark.parametrize("kind", [kind for kind in TO_HARNESS if kind not in TO_WORKER])
def test_a_worker_refuses_the_frames_that_only_a_worker_sends(kind: type[Any]) -> None:
    with pytest.raises(framing.FramingError, match="Invalid value"):
        through(full(kind), b"", to_worker=True)


def test_a_frame_that_the_peer_would_refuse_is_not_sent() -> None:
    with pytest.raises(framing.FramingError, match=r"a body of 1048577, where at most 65536 and 1048576 fit"):
        frames.encode(frames.Output(1), bytes(frames.MAX_BODY + 1))
    with pytest.raises(framing.FramingError, match="a frame with a header of"):
        frames.encode(frames.Read(1, "x" * frames.MAX_HEADER))
    assert through(frames.Output(1), bytes(frames.MAX_BODY), False)[1] == bytes(frames.MAX_BODY)


def test_a_header_without_end_is_refused_at_the_limit() -> None:
    cutter = frames.harness_decoder()
    cutter.feed(bytes(frames.MAX_HEADER))
    assert cutter.next() is None
    cutter.feed(b"x")
    with pytest.raises(framing.FramingError, match="header line over 65536 bytes"):
        cutter.next()

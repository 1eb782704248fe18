"""What root starts for another user's worker, and what it does not."""

import asyncio
import os
import socket
from ipaddress import IPv6Interface
from pathlib import Path

import msgspec
import pytest

from mesh import starter, verbs
from mesh.handle import Handle, HelperError
from mesh.picking import Backend
from mesh.starter import Starter
from tests.mesh.lab import Lab
from tests.mesh.star import BACKEND, pair, programs


def test_what_is_no_request_starts_nothing_and_keeps_no_descriptor() -> None:
    ours, theirs = starter.pair()
    made = Starter(ours)
    before = len(os.listdir("/proc/self/fd"))
    with theirs:
        reading, writing = os.pipe()
        start = msgspec.json.encode(verbs.Start(backend="auto", port=0, log="/etc/passwd"))
        for data, fds in (
            (b"hello", [writing] * 3),
            (b'{"backend":"sh","port":0,"log":""}', [writing] * 3),
            (start, []),
            (start, [writing]),
        ):
            socket.send_fds(theirs, [data], fds)
            assert made.take()
        assert made._started == []
        os.close(writing)
        assert os.read(reading, 1) == b"", "nobody else holds it"
        os.close(reading)
        assert len(os.listdir("/proc/self/fd")) == before
    assert not made.take(), "nobody asks any more"
    made.close()


def test_a_helper_that_cannot_be_started_is_told_in_its_log_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.helper.BEGIN", (str(tmp_path / "gone"),))
    ours, theirs = starter.pair()
    made = Starter(ours)
    with theirs, (tmp_path / "helper.log").open("wb") as log, open(os.devnull, "rb") as other:
        start = msgspec.json.encode(verbs.Start(backend="auto", port=0, log=""))
        socket.send_fds(theirs, [start], [other.fileno(), log.fileno(), other.fileno()])
        assert made.take()
    assert made._started == []
    assert (
        tmp_path / "helper.log"
    ).read_text() == "root cannot start the helper: No such file or directory\n"
    made.close()


async def test_a_helper_makes_no_interface_where_it_was_started(tmp_path: Path) -> None:
    programs()
    with Lab() as lab:
        full = await asyncio.to_thread(lab.namespace, "w")
        start = verbs.Start(
            backend=msgspec.convert(BACKEND, Backend), port=0, log=str(tmp_path / "wireguard.log")
        )
        handle = await Handle.start(start, tmp_path, lab.launcher("w"), [])
        running = asyncio.ensure_future(handle.run())  # noqa: TID251 - awaited below
        theirs = os.open(f"/run/netns/{full}", os.O_RDONLY)
        try:
            up = verbs.Up(
                id=handle.id(),
                name="orstarter0",
                private=pair()[0],
                address=IPv6Interface("fd00::2/48"),
                port=0,
                mtu=1420,
            )
            with pytest.raises(HelperError, match="the namespace to go on in is not the mesh's own"):
                await handle.ask(up, [theirs])
            links = await asyncio.to_thread(lab.sh, "w", "ip -o link")
            assert "orstarter0" not in links
        finally:
            os.close(theirs)
            await handle.close()
            await running

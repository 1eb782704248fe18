"""A daemon on another machine by ssh: every verb, and a client whose ssh is killed. The other machine is this one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.client import Client
from daemon.protocol import api
from daemon.protocol.records import TEXT
from tests.e2e.sshing import Sshd, sshd
from tests.running import Place, place


@pytest.fixture(scope="module")
def far() -> Iterator[Place]:
    with place() as here:
        here.up()
        yield here


@pytest.fixture
def door(far: Place, tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path, OUTRIDER_DATA=str(far.data), XDG_RUNTIME_DIR=str(tmp_path)) as made:
        yield made


def test_verbs_find_the_daemon_there(far: Place, door: Sshd, tmp_path: Path) -> None:
    with_ssh = {"PATH": door.path, "OUTRIDER_URL": door.url, "OUTRIDER_DATA": str(tmp_path / "none")}
    made = far.outrider("new", "--model", "rehearsal/echo", "--worker", "local:/tmp", **with_ssh)
    assert made.returncode == 0, made.stderr
    id = made.stdout.strip()
    done = far.outrider("post", "-f", id, "hello there", **with_ssh)
    assert done.returncode == 0, done.stderr
    assert "hello there" in done.stdout
    listed = far.outrider("--url", f"{door.url}{far.socket}", "ls", PATH=door.path)
    assert id in listed.stdout, listed.stderr


def test_a_machine_where_no_daemon_is_found_is_told(far: Place, door: Sshd) -> None:
    done = far.outrider("--url", f"{door.url}/nowhere/api.sock", "ls", PATH=door.path)
    assert done.returncode == 4
    assert "no daemon answers at ssh://" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_machine_that_does_not_let_us_in_is_told(far: Place, door: Sshd, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text("")
    done = far.outrider("--url", door.url, "ls", PATH=door.path)
    assert done.returncode == 4
    assert "Permission denied" in done.stderr


async def test_a_request_whose_ssh_takes_no_connection_any_more_opens_another(
    far: Place, door: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", door.path)
    async with Client(door.url) as client:
        await client.sign_in()
        tunnel = client._asker._tunnel
        assert tunnel is not None
        Path(tunnel.socket).unlink()  # as just after ssh was killed: it is not gone yet
        assert tunnel.is_open
        id = await client.create(api.Create(model="rehearsal/echo"))
        await client.post(id, [api.Part(TEXT, b"one")], "test")
        assert (await client.info(id)).id == id


async def test_who_follows_goes_on_by_number_when_its_ssh_is_killed(
    far: Place, door: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", door.path)
    async with Client(door.url, first_wait=0.01) as client:
        await client.sign_in()
        id = await client.create(api.Create(model="rehearsal/echo"))
        await client.post(id, [api.Part(TEXT, b"one")], "test")
        numbers: list[int] = []
        killed = False
        async for event in client.follow(id):
            n = getattr(event, "n", None)
            if n is None:
                continue
            numbers.append(n)
            if event.kind == "step" and not killed:  # type: ignore[union-attr]
                killed = True
                tunnel = client._asker._tunnel
                assert tunnel is not None
                assert tunnel._process is not None
                os.kill(tunnel._process.pid, signal.SIGKILL)
                await client.post(id, [api.Part(TEXT, b"two")], "test", key="k")
            elif event.kind == "step":  # type: ignore[union-attr]
                break
        assert numbers == list(range(1, len(numbers) + 1))
        found = await client.records(id)
        assert [record.body for record in found if record.kind == "message"] == [b"one", b"two"]

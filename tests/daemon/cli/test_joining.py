"""The verbs on tokens and on workers of the mesh, against a served fake; one against a daemon whose mesh is off."""

import asyncio
import json
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemon import cli
from daemon.harness.errors import Conflict
from daemon.protocol import api
from daemon.verbs import doctor, joining
from daemon.verbs.reach import VerbError
from tests.daemon.api.fakes import TIME, FakeHarness, FakeMesh, serve
from tests.daemon.cli.saying import terminal
from tests.running import place

Said = Callable[..., tuple[str, str]]


class Served:
    """A fake harness and mesh that an API serves in another thread."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.harness = FakeHarness()
        self.mesh = FakeMesh()
        self._there = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with serve(self.harness, mesh=self.mesh, socket=self.socket, finish=1):
            self._there.set()
            await self._end.wait()

    @contextmanager
    def up(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        assert self._there.wait(20)
        try:
            yield
        finally:
            assert self._loop is not None
            assert self._end is not None
            self._loop.call_soon_threadsafe(self._end.set)
            thread.join(20)


@pytest.fixture
def served() -> Iterator[Served]:
    folder = Path(tempfile.mkdtemp(prefix="or-"))
    one = Served(folder / "api.sock")
    with one.up():
        yield one
    shutil.rmtree(folder)


@pytest.fixture
def said(served: Served, capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a verb in this process; what it printed on stdout and on stderr."""

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        got = cli.invoke(["--socket", str(served.socket), *arguments])
        out, err = capsys.readouterr()
        assert got == code, (got, out, err)
        assert "Traceback" not in err
        return out, err

    return run


def test_a_new_token_is_alone_on_stdout_and_its_line_is_beside_it(said: Said, served: Served) -> None:
    out, err = said("token", "new", "rack-7", "--uses", "3", "--expires", "7d", "--ephemeral")
    assert out == "orj_x\n"
    assert "token 1 (rack-7) lets 3 machines join until" in err
    assert "leaves by itself" in err
    assert err.endswith("echo orj_x | sh\n")
    assert served.mesh.made == [api.NewToken("rack-7", 3, 7 * 86400.0, True)]
    out, err = said("token", "new", "--line")
    assert out == "echo orj_x | sh\n"
    assert "token 2 lets 1 machine join" in err
    assert served.mesh.made[1] == api.NewToken("", 1, 86400.0, False)
    assert json.loads(said("token", "new", "--json")[0])["token"] == "orj_x"


def test_a_new_token_comes_with_a_word_where_machines_cannot_install_from_here(
    said: Said, served: Served
) -> None:
    why = "machines that join cannot install Outrider from here: the disk is full"
    served.mesh.info = api.MeshInfo("up", "hub", why=why)
    for more in ((), ("--line",), ("--json",)):
        out, err = said("token", "new", *more)
        assert err.startswith(f"warning: {why}\n")
        assert "warning" not in out


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("5min", 300), ("12h", 43200), ("2w", 1209600)],
)
def test_a_tokens_time_is_written_as_people_write_it(text: str, seconds: int) -> None:
    assert joining.lifetime(text) == seconds


@pytest.mark.parametrize("text", ["5", " 86400 ", "0"])
def test_a_time_without_a_unit_is_asked_for_one(text: str) -> None:
    with pytest.raises(VerbError, match="say of what, as in") as told:
        joining.lifetime(text)
    assert told.value.code == 2


@pytest.mark.parametrize("text", ["", "0h", "-1h", "1.5h", "3x", "h", "9999w", "1h30m"])
def test_what_is_no_time_is_wrong_usage(text: str) -> None:
    with pytest.raises(VerbError, match="write a time such as 30m, 24h or 7d"):
        joining.lifetime(text)


def test_tokens_are_listed_and_revoked(said: Said, served: Served) -> None:
    assert said("token")[0] == ""  # no terminal: nothing is said of nothing
    said("token", "new", "a")
    said("token", "new", "b", "--ephemeral")
    assert said("token", "revoke", "1")[0] == "token 1 lets no machine join any more\n"
    for arguments in ((), ("ls",), ("list",)):
        rows = said("token", *arguments)[0].splitlines()
        assert rows[0].split() == ["ID", "NAME", "STATE", "LEFT", "UNTIL", "EPHEMERAL", "MADE", "WORKERS"]
        assert re.match(r"1 +a +revoked +1 +2026-01-02 ", rows[1])
        assert re.match(r"2 +b +good +1 .* yes ", rows[2])
    assert [token["state"] for token in json.loads(said("token", "--json")[0])] == ["revoked", "good"]
    assert json.loads(said("token", "revoke", "1", "--json")[0]) == {"id": 1, "joined": []}
    assert "there is no token 9" in said("token", "revoke", "9", code=3)[1]
    assert "whole number from 1" in said("token", "revoke", "x", code=2)[1]


def test_a_token_that_cannot_be_made_says_why(said: Said, served: Served) -> None:
    served.mesh.failure = Conflict("the mesh is not up: wireguard-go is not on the PATH")
    assert "wireguard-go is not on the PATH" in said("token", "new", code=3)[1]


def test_a_worker_is_removed_when_that_is_confirmed(said: Said, served: Served) -> None:
    served.mesh.joined = {"gpu-1", "gpu-2"}
    assert "give --yes" in said("worker", "remove", "gpu-1", code=2)[1]
    assert said("worker", "remove", "gpu-1", "-y")[0] == (
        "gpu-1 is out for good: its key is refused from now on\n"
    )
    assert "there is no worker gpu-1" in said("worker", "remove", "gpu-1", "--yes", code=3)[1]
    assert json.loads(said("worker", "remove", "gpu-2", "-y", "--json")[0]) == {"name": "gpu-2"}


def test_on_a_terminal_the_removal_of_a_worker_is_asked_for(served: Served) -> None:
    served.mesh.joined = {"gpu-1"}
    served.harness.known_workers = [api.WorkerInfo("gpu-1", "connected", running=2)]
    with place() as here:
        arguments = ("--socket", str(served.socket), "worker", "remove", "gpu-1")
        with terminal(here, *arguments) as shown:
            shown.until("Remove worker gpu-1 (connected, 2 calls going) for good?")
            shown.type("n\r")
            assert shown.end() == 1
        assert served.mesh.joined == {"gpu-1"}
        with terminal(here, *arguments) as shown:
            shown.until("for good?")
            shown.type("y\r")
            assert shown.end() == 0
    assert served.mesh.joined == set()


def test_workers_of_the_mesh_have_columns_of_their_own(said: Said, served: Served) -> None:
    at = api.Membership("fd00::2", TIME, 1, path="relay", handshake=TIME, rx=1_500_000, tx=12)
    served.harness.known_workers = [
        api.WorkerInfo("gpu-1", "connected", os="linux", arch="x86_64", hostname="gpu1", mesh=at),
        api.WorkerInfo("gpu-2", "gone", mesh=api.Membership("fd00::3", TIME, 1)),
        api.WorkerInfo("local", "connected"),
    ]
    head, one, two, local = said("workers")[0].splitlines()
    assert head.split()[-6:] == ["PATH", "HANDSHAKE", "IN", "OUT", "ADDRESS", "HOST"]
    assert re.search(r" relay +\d+ d ago +1\.5 MB +12 B +fd00::2 +gpu1$", one)
    assert re.search(r" - +never +0 B +0 B +fd00::3 +-$", two)
    assert re.search(r" 0 +- +- +- +- +- +-$", local)
    served.harness.known_workers = served.harness.known_workers[2:]
    assert "PATH" not in said("workers")[0]


@pytest.mark.parametrize(
    ("info", "state", "words"),
    [
        (api.MeshInfo("off", "hub"), "ok", "harness hub: off, by `backend`"),
        (
            api.MeshInfo("idle", "hub", how="the kernel's WireGuard"),
            "ok",
            "it would be the kernel's WireGuard",
        ),
        (
            api.MeshInfo("idle", "hub", why="no wireguard-go"),
            "warning",
            "no other machine can join: no wireguard-go",
        ),
        (api.MeshInfo("starting", "hub"), "warning", "it is coming up"),
        (
            api.MeshInfo("failing", "hub", why="UDP port 51820 is another program's"),
            "failing",
            "UDP port 51820",
        ),
        (
            api.MeshInfo("up", "hub", how="kernel", port=1, control=2, join=("[::]:3",), workers=4),
            "ok",
            "up, kernel; UDP 1, joining at [::]:3, control TCP 2 inside; 4 workers joined",
        ),
        (
            api.MeshInfo("up", "hub", why="machines cannot install"),
            "warning",
            "up, and machines cannot install",
        ),
    ],
)
def test_the_doctor_judges_the_mesh(info: api.MeshInfo, state: str, words: str) -> None:
    check = doctor._mesh(info)
    assert check.state == state
    assert words in check.what


def test_with_the_mesh_off_a_token_is_refused_and_the_rest_works() -> None:
    with place() as here:
        (here.home / ".config/outrider/outrider.toml").write_text('[mesh]\nbackend = "off"\n')
        here.up()
        refused = here.outrider("token", "new")
        assert (refused.returncode, refused.stdout) == (3, "")
        assert 'mesh.backend is off in outrider.toml: set it to "auto"' in refused.stderr
        assert here.json("token") == []
        assert here.json("workers")[0]["name"] == "local"
        removed = here.outrider("worker", "remove", "local", "-y")
        assert (removed.returncode, "cannot be removed" in removed.stderr) == (3, True)
        mesh = next(
            check
            for check in json.loads(here.outrider("doctor", "--json").stdout)["checks"]
            if check["name"] == "mesh"
        )
        assert mesh["state"] == "ok"
        assert not (here.data / "mesh.db").exists()

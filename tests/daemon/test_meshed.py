"""The mesh as the API and the pool have it, on an interface that the test plays."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daemon import meshed
from daemon.admission import Admission, Door, Offer
from daemon.config import ConfigError
from daemon.cordons import Cordons
from daemon.harness.errors import Conflict, Invalid, NoSpace, NotFound
from daemon.meshed import Meshed
from daemon.meshtable import MeshTable
from daemon.pool import Pool
from daemon.protocol import api
from daemon.release import Wheel, WheelError
from mesh.join import Joined
from mesh.parts import Fault, Interface
from mesh.plan import Wanted
from tests.mesh.joining import Clock, worker_keys
from tests.mesh.tunnels import FakeInterface, join, state

TABLE = MeshTable(name="hub", join_listen="127.0.0.1:0", endpoints=("127.0.0.1",), relay=False)


def no_wheel(_: Path) -> Wheel:
    raise WheelError("the installation was changed")


class Made:
    """A pool with a mesh. `failing`: why no interface comes up."""

    def __init__(
        self, data: Path, group: asyncio.TaskGroup, table: MeshTable, make: Callable[[Path], Wheel]
    ) -> None:
        self.clock = Clock()
        self.changes = 0
        self.failing = ""
        self.examined = 0
        self.up: FakeInterface | None = None
        self.pool = Pool(
            release="1", cordons=Cordons(data / "cordons.toml"), joined=lambda: self.meshed.joined()
        )
        offer = Offer("1", data / "release", make)

        def door(who: Admission) -> Door:
            return Door(who, self.pool, offer, group)

        self.meshed = Meshed(
            data,
            table,
            self.pool,
            offer,
            door,
            self._changed,
            group,
            opening=self._opening,
            examine=self._examine,
            now=self.clock,
        )

    def _changed(self) -> None:
        self.changes += 1

    async def _examine(self) -> tuple[bool, str]:
        self.examined += 1
        return not self.failing, self.failing or "the kernel's WireGuard"

    @asynccontextmanager
    async def _opening(self, wanted: Wanted) -> AsyncIterator[Interface]:
        if self.failing:
            raise Fault(self.failing)
        self.up = FakeInterface(wanted)
        yield self.up

    async def joined(self, number: int = 2, *, ephemeral: bool = False) -> str:
        """A machine that has joined; its name."""
        made = await self.meshed.make_token(api.NewToken("t", ephemeral=ephemeral))
        done = await join(made.token, number, self.clock)
        assert isinstance(done, Joined), done
        return done.answer.name


@asynccontextmanager
async def making(
    data: Path, table: MeshTable = TABLE, make: Callable[[Path], Wheel] = no_wheel
) -> AsyncIterator[Made]:
    async with asyncio.TaskGroup() as group:
        made = Made(data, group, table, make)
        async with made.meshed.kept():
            yield made


async def test_a_machine_that_joined_is_a_worker_before_it_has_dialed(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        assert made.pool.list() == []
        before = made.changes
        name = await made.joined()
        assert made.changes > before
        (info,) = made.pool.list()
        assert (info.name, info.state, info.reason) == (name, "gone", "it has not dialed")
        assert (info.hostname, info.os, info.arch, info.release) == ("gpu-2", "linux", "x86_64", "1")
        assert info.mesh is not None
        assert (info.mesh.token, info.mesh.ephemeral, info.mesh.handshake) == (1, False, "")
        assert info.mesh.joined == "2027-01-15T08:00:00.000Z"
        assert made.pool.knows(name)
        assert made.up is not None
        made.up.heard[worker_keys(2).public] = state(worker_keys(2).public, made.clock.at, rx=9)
        await made.meshed.mesh.look()
        (info,) = made.pool.list()
        assert info.mesh is not None
        assert (info.mesh.path, info.mesh.endpoint) == ("direct", "198.51.100.7:9")
        assert (info.mesh.handshake, info.mesh.rx, info.mesh.tx) == ("2027-01-15T08:00:00.000Z", 9, 7)


async def test_tokens_say_whether_they_let_anybody_join_and_who_did(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        await made.joined(2)
        for new in (api.NewToken("good", uses=2), api.NewToken("short", expires=10), api.NewToken("no")):
            await made.meshed.make_token(new)
        await made.meshed.revoke_token(4)
        made.clock.at += 10
        found = await made.meshed.tokens()
        assert [(token.name, token.state, token.uses, token.joined) for token in found] == [
            ("t", "used", 0, ("gpu-2",)),
            ("good", "good", 2, ()),
            ("short", "expired", 1, ()),
            ("no", "revoked", 1, ()),
        ]
        await made.meshed.revoke_token(4)  # again is well
        with pytest.raises(NotFound, match="there is no token 9"):
            await made.meshed.revoke_token(9)


async def test_what_the_mesh_refuses_has_the_status_that_says_so(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        made.failing = "no back end"
        with pytest.raises(Conflict, match="the mesh is not up: no back end"):
            await made.meshed.make_token(api.NewToken())
        made.failing = ""
        with pytest.raises(Invalid, match="name: at most"):
            await made.meshed.make_token(api.NewToken("a\nb"))
        await made.meshed.mesh.close()
        for asked in (
            made.meshed.tokens(),
            made.meshed.make_token(api.NewToken()),
            made.meshed.revoke_token(1),
            made.meshed.remove_worker("gpu-2"),
        ):
            with pytest.raises(NoSpace, match=r"nothing was changed: .*mesh\.db"):
                await asked


async def test_only_workers_of_the_mesh_are_removed_and_the_message_says_what_does_it_for_others(
    tmp_path: Path,
) -> None:
    async with making(tmp_path) as made:
        await made.pool.cordon("socket", True)
        for name, error, words in [
            ("local", Conflict, "cannot be removed; `outrider worker cordon local`"),
            ("socket", Conflict, "has not joined the mesh, it dials at this machine's socket"),
            ("nobody", NotFound, "there is no worker nobody"),
        ]:
            with pytest.raises(error, match=words):
                await made.meshed.remove_worker(name)


async def test_a_removed_worker_is_listed_no_more_and_its_name_is_not_cordoned(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        name = await made.joined()
        await made.pool.cordon(name, True)
        await made.meshed.remove_worker(name)
        assert name not in {worker.name for worker in made.pool.list() if not worker.cordoned}
    assert made.pool.list() == []
    assert not made.pool.cordoned(name)


async def test_while_a_call_waits_for_it_an_ephemeral_worker_stays(tmp_path: Path) -> None:
    async with making(tmp_path) as made, asyncio.TaskGroup() as group:
        name = await made.joined(ephemeral=True)
        call = group.create_task(made.pool.run(name, "s", "c", "true"))
        await asyncio.sleep(0)  # it has begun
        assert made.meshed.awaited() == {name}
        for _ in range(3):
            made.clock.at += 200
            await made.meshed.mesh.look()
        assert made.pool.knows(name)
        call.cancel()
        await asyncio.wait({call})
        await made.meshed.mesh.look()
        assert not made.pool.knows(name)


async def test_without_a_wheel_of_its_own_machines_still_join_and_it_is_not_tried_each_time(
    tmp_path: Path,
) -> None:
    tried = 0

    def failing(folder: Path) -> Wheel:
        nonlocal tried
        tried += 1
        return no_wheel(folder)

    async with making(tmp_path, make=failing) as made:
        await made.joined(2)
        await made.joined(3)
        assert tried == 1
        said = made.meshed.describe()
        assert (said.state, said.why) == (
            "up",
            "machines that join cannot install Outrider from here: the installation was changed",
        )
        made.clock.at += meshed.NO_WHEEL
        await made.meshed.goods()
        assert tried == 2


async def test_what_is_offered_has_the_daemons_own_wheel(tmp_path: Path) -> None:
    def make(folder: Path) -> Wheel:
        return Wheel(release="1", name="outrider-1-py3-none-any.whl", sha256="0" * 64, size=3, path=tmp_path)

    async with making(tmp_path, make=make) as made:
        goods = await made.meshed.goods()
        assert goods.wheel is not None
        assert (goods.wheel.name, goods.wheel.sha256, goods.wheel.size) == (
            "outrider-1-py3-none-any.whl",
            "0" * 64,
            3,
        )
        assert goods.wheelhouse is None


async def test_of_a_mesh_that_nobody_has_needed_it_is_said_what_it_would_be(tmp_path: Path) -> None:
    async with making(tmp_path) as made:
        assert made.meshed.describe() == api.MeshInfo("idle", "hub")
        assert (await made.meshed.examined()).how == "the kernel's WireGuard"
        assert (await made.meshed.examined()).how == "the kernel's WireGuard"
        assert made.examined == 1
        made.failing = "wireguard-go is not on the PATH"
        made.clock.at += meshed.EXAMINED
        assert (await made.meshed.examined()).why == made.failing
        made.failing = ""
        await made.joined()
        found = await made.meshed.examined()
        assert (found.state, found.how, found.port, found.workers) == ("up", "a test's own", 51820, 1)
        assert found.endpoints == ("127.0.0.1:51820",)
        assert made.examined == 2


def test_an_endpoint_that_no_token_could_have_is_named_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"mesh\.join_endpoints: 'a-:4601'"):
        meshed.options(MeshTable(join_endpoints=("a-:4601",)))
    assert meshed.options(MeshTable()).name
    assert not meshed.options(MeshTable(backend="off")).enabled

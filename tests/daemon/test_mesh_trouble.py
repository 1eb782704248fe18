"""What an operator is told where there can be no mesh, by the doctor and by `token new`; and all else goes on."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from daemon.harness.errors import Conflict, NoSpace
from daemon.protocol import api
from daemon.verbs import doctor
from mesh import picking, registry
from mesh.picking import Facts, Off
from mesh.wireguard.kernel import port_taken
from tests.daemon.test_meshed import TABLE, making
from tests.running import Place, place

ALL = Facts(
    root=True,
    namespace="",
    user_namespace="",
    kernel="this kernel has no WireGuard",
    wireguard_go="/usr/bin/wireguard-go",
    tun="",
    pasta="/usr/bin/pasta",
    slirp4netns="",
)
MAY_NOT = "this process may not"


def off(**facts: object) -> str:
    """What is said of a machine that has all but these."""
    found = picking.pick("auto", msgspec.structs.replace(ALL, **facts), listens=True)
    assert isinstance(found, Off)
    return found.said


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        (off(wireguard_go=""), "install the package wireguard-go"),
        (off(tun="there is none (modprobe tun)"), "modprobe tun"),
        (off(ipv6="this system has no IPv6"), "boot without ipv6.disable=1"),
        (off(namespace=MAY_NOT, user_namespace="not permitted", root=False), "Run as root, or allow user"),
        (off(namespace=MAY_NOT, user_namespace="not permitted"), "the capabilities NET_ADMIN and SYS_ADMIN"),
        (off(namespace=MAY_NOT, root=False, pasta=""), "install the package passt"),
        (str(port_taken(51820)), "set another `port` under [mesh]"),
    ],
    ids=["no wireguard-go", "no tun", "no IPv6", "a user", "a container", "no pasta", "UDP port taken"],
)
async def test_where_there_can_be_no_mesh_the_token_and_the_doctor_say_what_would_help(
    tmp_path: Path, why: str, fix: str
) -> None:
    async with making(tmp_path) as made:
        made.failing = why
        found = doctor._mesh(await made.meshed.examined())
        assert found.state == "warning"
        assert fix in found.what
        with pytest.raises(Conflict, match="the mesh is not up: ") as refused:
            await made.meshed.make_token(api.NewToken())
        assert fix in str(refused.value)
        assert await made.meshed.tokens() == []
        made.failing = ""
        assert (await made.meshed.make_token(api.NewToken())).token


async def test_a_join_port_that_another_program_has_is_said_with_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        async with making(tmp_path, msgspec.structs.replace(TABLE, join_listen=taken)) as made:
            with pytest.raises(
                Conflict, match=r"end what has the port, or set another in `join_listen`"
            ) as one:
                await made.meshed.make_token(api.NewToken())
            assert taken in str(one.value)
            assert await made.meshed.tokens() == []
            other.close()
            assert (await made.meshed.make_token(api.NewToken())).token


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _overwritten(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"\xa5" * 4096 + content[4096:])


def _inside(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))


def _foreign(path: Path) -> None:
    path.write_bytes(b"no database at all")


def _open_to_others(path: Path) -> None:
    path.chmod(0o644)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _other_key(path: Path) -> None:
    (path.parent / "mesh" / "wireguard.key").unlink()


def _damaged_key(path: Path) -> None:
    (path.parent / "mesh" / "join.key").write_text("x\n")


DAMAGE = [_cut, _overwritten, _inside, _foreign, _open_to_others, _folder, _other_key, _damaged_key]


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_registry_keeps_the_mesh_down_and_is_said_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / registry.FILE
    async with making(tmp_path) as made:
        await made.joined()
    await asyncio.to_thread(damage, path)
    before = _content(path)
    async with making(tmp_path) as made:
        while (found := made.meshed.describe()).state not in ("failing", "up"):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
        assert found.state == "failing"
        assert str(tmp_path) in found.why
        shown = doctor._mesh(found)
        assert shown.state == "failing"
        assert made.pool.list() == []
        for asked in (
            made.meshed.make_token(api.NewToken()),
            made.meshed.tokens(),
            made.meshed.remove_worker("gpu-2"),
        ):
            with pytest.raises(NoSpace, match="nothing was changed: "):
                await asked
    assert _content(path) == before


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@pytest.fixture
def here() -> Iterator[Place]:
    with place() as made:
        yield made


def test_a_daemon_with_a_damaged_registry_starts_without_the_mesh_and_says_so(here: Place) -> None:
    here.data.mkdir(mode=0o700)
    path = here.data / registry.FILE
    path.write_bytes(b"SQLite format 3\0" + b"\xa5" * 9000)
    path.chmod(0o600)
    here.up()
    checks = json.loads(here.outrider("doctor", "--json").stdout)["checks"]
    (mesh,) = [check for check in checks if check["name"] == "mesh"]
    assert mesh["state"] == "failing"
    assert str(path) in mesh["what"]
    assert "move it away" in mesh["what"]
    failing = {check["name"] for check in checks if check["state"] == "failing"}
    assert failing - {"local worker"} == {"mesh"}  # a slow machine's worker is not there yet
    made = here.outrider("token", "new")
    assert made.returncode != 0
    assert str(path) in made.stderr
    assert "Traceback" not in made.stderr
    assert here.json("workers")[0]["name"] == "local"
    path.unlink()
    assert here.json("token") == []

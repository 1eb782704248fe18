"""`outrider worker` as one that joins a mesh, up to its interface, which these machines are told not to make."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh import keys
from mesh.address import Place
from mesh.join import Reply
from tests.mesh.joining import Harness, harness, hub_keys
from tests.mesh.test_asking import nodes, open_hub, text_for
from tests.running import OUTRIDER, RELEASE

ROOT = Path(__file__).parents[3]
away = asyncio.to_thread


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Harness]:
    with harness(tmp_path) as made:
        made.clock.at = time.time()
        yield made


class Home:
    """A user's home, in which worker's verbs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".config/outrider").mkdir(parents=True)
        (folder / ".config/outrider/outrider.toml").write_text('[mesh]\nbackend = "off"\n')
        self.workers = folder / ".local/state/outrider/workers"
        self.environ = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "OUTRIDER_RELEASE": RELEASE,
        }
        self.as_root = ("--as-root",) if os.geteuid() == 0 else ()

    def start(self, *arguments: str, **environ: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*OUTRIDER, "worker", *arguments],
            env=self.environ | environ,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def verb(self, *arguments: str, input: str = "", **environ: str) -> tuple[int, str, str]:
        """`outrider worker …`: its code, what it prints, what it complains of."""
        with await away(self.start, *arguments, **environ) as process:
            out, err = await away(process.communicate, input, 50)
            assert "Traceback" not in err
            return process.returncode, out, err

    async def joins(self, text: str, *more: str) -> str:
        """Join; what it says when it comes to the interface that it may not make."""
        code, _, err = await self.verb("--join", "-", *more, *self.as_root, input=text)
        assert code == 1, err
        assert "mesh.backend is off" in err
        return err


@pytest.fixture
def home() -> Iterator[Home]:
    folder = Path(tempfile.mkdtemp(prefix="or-"))  # short, for sockets
    yield Home(folder / "h")
    shutil.rmtree(folder)


@pytest.mark.parametrize("way", ["--join=", "--join", "OUTRIDER_JOIN", "OUTRIDER_TOKEN"])
async def test_a_token_is_in_no_list_of_processes(hub: Harness, home: Home, way: str) -> None:
    asked, go = threading.Event(), threading.Event()

    def hold(_: bytes) -> Reply | None:
        asked.set()
        go.wait(40)
        return None

    async with open_hub(hub) as (joins, place):
        joins.before = hold
        text = await text_for(hub, place)
        arguments = {"--join=": [f"--join={text}"], "--join": ["--join", text]}.get(way, [])
        environ = {} if arguments else {way: text}
        with await away(lambda: home.start(*arguments, *home.as_root, **environ)) as process:
            try:
                assert await away(asked.wait, 40)
                for what in ("cmdline", "environ"):
                    shown = await away(Path(f"/proc/{process.pid}/{what}").read_bytes)
                    assert shown
                    assert text.encode() not in shown
            finally:
                go.set()
            _, err = await away(process.communicate)
        assert "joined the mesh of hub as" in err
        assert text not in err


async def test_what_joined_is_kept_and_goes_on_without_a_token(hub: Harness, home: Home) -> None:
    async with open_hub(hub) as (_, place):
        err = await home.joins(await text_for(hub, place), "--name", "gpu-1")
        assert "joined the mesh of hub as gpu-1" in err
    (scratch,) = home.workers.iterdir()
    assert scratch.name == "gpu-1"
    assert (scratch / "mesh").stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in (scratch / "mesh").glob("*.*")} == {
        "membership.json": 0o600,
        "wireguard.key": 0o600,
        **{path.name: path.stat().st_mode & 0o777 for path in (scratch / "mesh").glob("*.log")},
    }
    code, _, err = await home.verb(*home.as_root)
    assert (code, "mesh.backend is off" in err) == (1, True)
    code, out, _ = await home.verb("status")
    assert code == 1
    assert "hub, fd" in out


async def test_without_a_name_the_folder_is_the_harness_own_and_the_same_for_its_next_token(
    hub: Harness, home: Home
) -> None:
    async with open_hub(hub) as (_, place):
        await home.joins(await text_for(hub, place))
        await home.joins(await text_for(hub, place))
        assert await nodes(hub) == 1
        uses = [grant.uses for grant in await away(hub.registry.grants)]
    assert uses == [0, 1], "the second token is not spent"
    (scratch,) = home.workers.iterdir()
    assert scratch.name == f"harness-{keys.fingerprint(hub.keys.join.public).hex()[:8]}"


async def test_refusals_say_why_and_have_their_codes(hub: Harness, home: Home) -> None:
    async with open_hub(hub) as (_, place):
        text = await text_for(hub, place)
        scratch = ("--scratch", str(home.folder / "s"))
        await home.joins(text, *scratch)

        code, _, err = await home.verb("--join", "-", *home.as_root, "--name=b", input=text)
        assert (code, "this token joins no more machines" in err) == (3, True)

        moved = Harness(hub.registry, hub_keys(2), hub.clock)
        elsewhere = await text_for(moved, Place("127.0.0.1", 1))
        code, _, err = await home.verb("--join", "-", *scratch, *home.as_root, input=elsewhere)
        assert (code, "is the folder of a worker of another harness, hub" in err) == (2, True)

        for wrong, words in (
            ("", "the token is empty"),
            ("hello", "this is not a join token"),
            ("orj_A", "cut off"),
        ):
            code, _, err = await home.verb("--join", "-", *home.as_root, input=wrong)
            assert (code, words in err) == (2, True), err

        await away(hub.registry.remove, 2)
        code, _, err = await home.verb("leave", *scratch, "--json")
        assert code == 0, err
    code, _, err = await home.verb("leave", *scratch)
    assert (code, "is in no mesh" in err) == (2, True)
    code, _, err = await home.verb(*home.as_root)
    assert (code, "--join TOKEN (`outrider token new` on the harness prints one)" in err) == (2, True)


async def test_one_that_was_removed_joins_by_another_token_with_another_key(hub: Harness, home: Home) -> None:
    async with open_hub(hub) as (_, place):
        await home.joins(await text_for(hub, place), "--name=gpu-1")
        key = (home.workers / "gpu-1/mesh/wireguard.key").read_text()
        await away(hub.registry.remove, 2)
        await home.joins(await text_for(hub, place), "--name=gpu-1")
        assert (home.workers / "gpu-1/mesh/wireguard.key").read_text() != key
        assert [node.number for node in await away(hub.registry.nodes)] == [3]


async def test_several_workers_are_all_shown(hub: Harness, home: Home) -> None:
    async with open_hub(hub) as (_, place):
        for name in ("a", "b"):
            await home.joins(await text_for(hub, place), f"--name={name}")
    code, out, _ = await home.verb("status", "--json")
    assert code == 1
    assert [one["name"] for one in json.loads(out)] == ["a", "b"]
    code, _, err = await home.verb(*home.as_root)
    assert (code, "this machine is in several meshes: name one with --name: a, b" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--join=x", "status"], "do not go with `status`"),
        (["--join=x", "--connect=/s", "--name=a"], "and neither --join nor --user"),
        (["--connect=/s"], "takes --name NAME"),
        (["--join=-", "--name=../a"], "cannot be a worker's name"),
        (["--join=x"], "this is not a join token"),
    ],
)
async def test_what_cannot_be_meant_is_told(home: Home, arguments: list[str], words: str) -> None:
    more = home.as_root if "status" not in arguments else ()
    code, _, err = await home.verb(*more, *arguments, input="orj_x")
    assert (code, words in " ".join(err.split())) == (2, True), err

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from daemon import tunnel as tunnels
from daemon.client import Client, Unreachable
from daemon.tunnel import Far, Tunnel, TunnelError, parse


@pytest.mark.parametrize(
    ("url", "far"),
    [
        ("ssh://far", Far("far")),
        ("ssh://far/", Far("far")),
        ("ssh://ada@far.example:2222", Far("far.example", "ada", 2222)),
        ("ssh://ada@[::1]/run/outrider/api.sock", Far("::1", "ada", 0, "/run/outrider/api.sock")),
        ("ssh://far/with%20space/api.sock", Far("far", socket="/with space/api.sock")),
    ],
)
def test_a_url_says_where_ssh_goes(url: str, far: Far) -> None:
    assert parse(url) == far


@pytest.mark.parametrize(
    "url",
    [
        "ssh://",
        "ssh://-oProxyCommand=x",
        "ssh://-x@far",
        "ssh://a:secret@far",
        "ssh://far:port",
        "ssh://far?x",
        "https://far",
    ],
)
def test_what_is_no_such_url_or_would_be_an_option_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"ssh://"):
        parse(url)


def ssh(folder: Path, script: str) -> tuple[str]:
    """A program in the place of ssh."""
    path = folder / "ssh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return (str(path),)


async def opening(tunnel: Tunnel) -> str:
    """What is said when it does not open."""
    with pytest.raises(TunnelError) as refused:
        await tunnel.open()
    assert not tunnel.is_open
    return str(refused.value)


async def test_what_ssh_complains_of_is_told(tmp_path: Path) -> None:
    tunnel = Tunnel(
        "ssh://far",
        ssh(tmp_path, "echo 'debug' >&2; echo 'far: Permission denied (publickey).' >&2; exit 255"),
    )
    assert await opening(tunnel) == "ssh to far: far: Permission denied (publickey)."


async def test_an_ssh_that_ends_without_a_word_is_told(tmp_path: Path) -> None:
    assert await opening(Tunnel("ssh://far", ssh(tmp_path, "exit 1"))) == "ssh to far ended without a word"


async def test_a_machine_without_a_daemon_is_told_with_what_to_do_there(tmp_path: Path) -> None:
    tunnel = Tunnel("ssh://far", ssh(tmp_path, "echo welcome; echo 'outrider-socket:'; exec cat"))
    assert await opening(tunnel) == "no daemon listens on far: `outrider up` there starts one"


async def test_a_forwarding_that_is_refused_is_told(tmp_path: Path) -> None:
    script = 'case "$*" in *-O*) echo "refused there" >&2; exit 1;; esac; echo "outrider-socket:/x"; exec cat'
    assert await opening(Tunnel("ssh://far", ssh(tmp_path, script))) == "ssh to far: refused there"


async def test_a_machine_without_ssh_is_told(tmp_path: Path) -> None:
    assert "install openssh-client" in await opening(Tunnel("ssh://far", (str(tmp_path / "ssh"),)))


async def test_who_has_taken_the_terminal_lets_ssh_ask_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tunnel = Tunnel("ssh://ada@far:22", ssh(tmp_path, f'echo "$@" >>{log}; exit 1'))
    await opening(tunnel)
    tunnel.quiet = True
    await opening(tunnel)
    first, second = log.read_text().splitlines()
    assert "BatchMode" not in first
    assert "BatchMode=yes -p 22 -- ada@far sh -c" in second


async def test_a_client_says_it_as_everything_that_it_cannot_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh(tmp_path, "echo 'no route' >&2; exit 255")
    monkeypatch.setenv("PATH", str(tmp_path))
    async with Client("ssh://far") as client:
        with pytest.raises(Unreachable, match=r"^ssh to far: no route$"):
            await client.list()
        with pytest.raises(Unreachable, match=r"^ssh to far: no route$"):
            await client.sign_in()


HOLDS = """
import os, sys, tempfile
from daemon import tunnel
tempfile.tempdir = sys.argv[1]
folder, lock = tunnel._made()
(folder / "s").touch()
print(folder, flush=True)
sys.stdin.read()
"""


def test_a_process_that_was_killed_leaves_no_folder_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = tmp_path / "or-ssh-without-a-lock"
    other.mkdir()
    folders = []
    with (
        subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdin=-1, stdout=-1) as lives,
        subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdin=-1, stdout=-1) as dies,
    ):
        for process in (lives, dies):
            assert process.stdout is not None
            folders.append(Path(process.stdout.readline().decode().strip()))
        dies.send_signal(signal.SIGKILL)
        dies.wait()
        mine, lock = tunnels._made()
        os.close(lock)
        assert sorted(tmp_path.glob("or-ssh-*")) == sorted([folders[0], other, mine])
        assert sorted(path.name for path in folders[0].iterdir()) == ["lock", "s"]


def test_a_folder_that_is_only_pointed_to_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for folder in ("tmp", "mine"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mine" / "lock").touch()
    (tmp_path / "tmp" / "or-ssh-x").symlink_to(tmp_path / "mine")
    _, lock = tunnels._made()
    try:
        assert (tmp_path / "mine" / "lock").exists()
    finally:
        os.close(lock)

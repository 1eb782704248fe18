import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.mesh.lab import Lab, needs
from tests.mesh.relayed import OUTSIDE

ROOT = Path(__file__).parents[2]
BLOCK = "type filter hook input priority 0; iifname v1a meta l4proto udp drop"


class End:
    """A wireguard-go in a namespace and the program that uses it."""

    def __init__(self, lab: Lab, name: str, own: X25519PrivateKey, peer: X25519PrivateKey) -> None:
        self.interface = f"wr{os.getpid() % 100000}{name[0]}"
        self._go = subprocess.Popen(
            [*lab.launcher(name), "wireguard-go", "-f", self.interface],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "WG_PROCESS_FOREGROUND": "1"},
        )
        self._socket = Path(f"/var/run/wireguard/{self.interface}.sock")
        while not self._listens():
            time.sleep(0.02)
        private, public = own.private_bytes_raw().hex(), peer.public_key().public_bytes_raw().hex()
        self.program = subprocess.Popen(
            [
                *lab.launcher(name),
                *(sys.executable, "-m", "tests.mesh.relayed", name, self.interface, private, public),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket)) == 0

    def next(self, **wanted: Any) -> dict[str, Any]:
        """The next line that says this."""
        assert self.program.stdout is not None
        for line in self.program.stdout:
            sys.stdout.write(line)
            if not line.startswith("{"):  # the log
                continue
            said: dict[str, Any] = json.loads(line)
            if wanted.items() <= said.items():
                return said
        raise AssertionError(f"it ended before it said {wanted}")

    def ask_to_end(self) -> None:
        assert self.program.stdin is not None
        self.program.stdin.close()

    def close(self) -> None:
        for process in (self.program, self._go):
            process.kill()
            process.wait()
        for pipe in (self.program.stdin, self.program.stdout):
            assert pipe is not None
            pipe.close()
        self._socket.unlink(missing_ok=True)


@contextmanager
def ends(lab: Lab) -> Iterator[tuple[End, End]]:
    keys = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    with ExitStack() as stack:
        hub = End(lab, "hub", keys[0], keys[1])
        stack.callback(hub.close)
        hub.next(up=True)
        worker = End(lab, "worker", keys[1], keys[0])
        stack.callback(worker.close)
        yield hub, worker


@pytest.mark.campaign  # WireGuard makes a handshake in two minutes, and waits for it take their time
@pytest.mark.timeout(400)
def test_between_real_wireguards_the_way_changes_both_ways_with_the_network() -> None:
    needs("ip", "nft", "wireguard-go")
    with Lab() as lab:
        lab.namespace("hub")
        lab.namespace("worker")
        lab.veth("hub", "worker", (f"{OUTSIDE}/24", "10.66.0.2/24"))
        lab.rules("hub", "block", BLOCK)
        with ends(lab) as (hub, worker):
            worker.next(state="RELAYED")
            lab.sh("hub", "nft delete table inet block")
            changed = worker.next(state="DIRECT")
            assert changed["lost"] <= 10  # those under way at the change, of twenty a second for two minutes
            assert changed["sent"] > 1000
            lab.rules("hub", "block", BLOCK)
            worker.next(state="TRYING")
            worker.next(state="RELAYED")
            lab.sh("worker", "sleep 3")
            worker.ask_to_end()
            assert worker.next()["lost"] <= 10
            hub.ask_to_end()
            said = hub.next()
            assert (said["opened"], said["hostile"]) == (2, 0)

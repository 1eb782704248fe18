"""Netlink and the text of a userspace WireGuard, where no WireGuard is needed."""

import contextlib
import subprocess
import sys
from ipaddress import IPv6Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.plan import (
    AddPeer,
    Change,
    Endpoint,
    Peer,
    RemovePeer,
    SetAllowed,
    SetEndpoint,
    SetKeepalive,
    SetPreshared,
)
from mesh.wireguard import uapi
from tests.mesh.lab import needs
from tests.mesh.star import pair

ROOT = Path(__file__).parents[2]
ONE = b"\x01" * 32
A = IPv6Network("fd00::a/128")


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            AddPeer(
                Peer(
                    key=ONE,
                    allowed=(A,),
                    preshared=b"\x02" * 32,
                    endpoint=Endpoint("2001:db8::1", 7),
                    keepalive=25,
                )
            ),
            "preshared_key=" + "02" * 32 + "\nendpoint=[2001:db8::1]:7\npersistent_keepalive_interval=25\n"
            "replace_allowed_ips=true\nallowed_ip=fd00::a/128",
        ),
        (AddPeer(Peer(key=ONE, allowed=())), "replace_allowed_ips=true"),
        (RemovePeer(ONE), "update_only=true\nremove=true"),
        (SetAllowed(ONE, (A,), True), "update_only=true\nreplace_allowed_ips=true\nallowed_ip=fd00::a/128"),
        (SetAllowed(ONE, (A,), False), "update_only=true\nallowed_ip=fd00::a/128"),
        (SetPreshared(ONE, b""), "update_only=true\npreshared_key=" + "00" * 32),
        (SetEndpoint(ONE, Endpoint("192.0.2.1", 7)), "update_only=true\nendpoint=192.0.2.1:7"),
        (SetKeepalive(ONE, 0), "update_only=true\npersistent_keepalive_interval=0"),
    ],
)
def test_a_change_is_written_as_wireguard_reads_it(change: Change, lines: str) -> None:
    assert uapi.changing([change]).decode() == f"set=1\npublic_key={'01' * 32}\n{lines}\n\n"


def test_the_own_key_and_port_are_written() -> None:
    assert uapi.own(ONE, 0).decode() == f"set=1\nprivate_key={'01' * 32}\nlisten_port=0\n\n"
    assert uapi.own(port=7) == b"set=1\nlisten_port=7\n\n"


PRIVATE, PUBLIC = pair()
ANSWER = f"""private_key={PRIVATE.hex()}
listen_port=51820
public_key={"01" * 32}
preshared_key={"00" * 32}
protocol_version=1
endpoint=[fe80::1%eth0]:7
last_handshake_time_sec=100
last_handshake_time_nsec=500000000
tx_bytes=1
rx_bytes=2
persistent_keepalive_interval=25
allowed_ip=fd00::a/128
allowed_ip=10.0.0.0/8
public_key={"02" * 32}
preshared_key={"03" * 32}
endpoint=192.0.2.1:9
something_new=1
errno=0

""".encode()


def test_an_answer_is_read_and_the_private_key_goes_no_further() -> None:
    actual = uapi.parse(ANSWER)
    assert (actual.public, actual.port, len(actual.peers)) == (PUBLIC, 51820, 2)
    first, second = actual.peers.values()
    assert (first.key, first.allowed, first.preshared) == (ONE, frozenset({A}), b"")
    assert (first.endpoint, first.handshake) == (Endpoint("fe80::1", 7), 100.5)
    assert (first.tx, first.rx, first.keepalive) == (1, 2, 25)
    assert (second.preshared, second.endpoint) == (b"\x03" * 32, Endpoint("192.0.2.1", 9))
    assert PRIVATE.hex() not in repr(actual)


def test_an_empty_interface_is_read() -> None:
    actual = uapi.parse(b"errno=0\n\n")
    assert (actual.public, actual.port, actual.peers) == (b"", 0, {})


def test_a_refused_change_says_which_error_it_was() -> None:
    with pytest.raises(uapi.Refused, match="Address already in use") as refused:
        uapi.answered(b"errno=-98\n\n")
    assert uapi.in_use(refused.value.number)


@given(st.binary() | st.binary().map(lambda more: ANSWER[:-10] + more))
def test_no_other_answer_raises_anything_but_its_own_errors(answer: bytes) -> None:
    with contextlib.suppress(uapi.UapiError, uapi.Refused):
        uapi.parse(answer)


def test_what_cannot_be_read_is_not_shown() -> None:
    with pytest.raises(uapi.UapiError) as error:
        uapi.parse(ANSWER.replace(b"tx_bytes=1", b"tx_bytes=" + PRIVATE.hex().encode()))
    assert PRIVATE.hex() not in str(error.value)


@given(st.integers(0, len(ANSWER) - 3))
def test_an_answer_that_is_cut_is_no_answer(length: int) -> None:
    with pytest.raises((uapi.UapiError, uapi.Refused)):
        uapi.parse(ANSWER[:length])


LINKS = """
import asyncio
from ipaddress import IPv6Interface
from mesh import privilege
from mesh.wireguard.base import Absent, WireGuardError
from mesh.wireguard.links import Links

async def main():
    async with Links() as before:
        there = await before.index("lo")
        privilege.unshare(privilege.NEWNET)
        async with Links() as links:
            assert there and await before.kind("lo") == ""
            try:
                await links.add_wireguard("or0", 1420, None)
                print("made")
                assert await links.kind("or0") == "wireguard" and not await before.index("or0")
            except Absent as error:
                print(error)
            await links.up("lo")
            for _ in range(2):
                await links.address("lo", IPv6Interface("fd00::1/128"))
            assert not await links.routed()
            await links.remove("or0")
            await links.remove("or0")
            for work in (links.up("or0"), links.address("or0", IPv6Interface("fd00::1/128"))):
                try:
                    await work
                except WireGuardError as error:
                    print(error)

asyncio.run(main())
"""


def test_netlink_stays_in_the_namespace_it_was_opened_in_and_names_what_it_cannot() -> None:
    needs()
    done = subprocess.run(
        [sys.executable, "-c", LINKS], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first in ("made", "this kernel has no WireGuard")
    assert rest == [
        "the interface or0 cannot be brought up: No such device",
        "or0 cannot have the address fd00::1/128: No such device",
    ]

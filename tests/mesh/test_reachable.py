import socket
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from mesh import reachable
from mesh.address import BadPlaceError, Place
from mesh.reachable import Found, hosts, own_hosts, places

V4 = IPv4Address("198.51.100.7")
V6 = IPv6Address("2001:db8::7")
LOOPBACK = [Found("lo", IPv4Address("127.0.0.1")), Found("lo", IPv6Address("::1"))]


def test_the_address_that_packets_leave_by_comes_first_and_the_name_last() -> None:
    found = [*LOOPBACK, Found("eth1", IPv4Address("10.0.0.7")), Found("eth0", V6), Found("eth0", V4)]
    assert hosts(found, [V4, V6], "hub.example") == ["198.51.100.7", "2001:db8::7", "10.0.0.7", "hub.example"]


def test_link_local_addresses_and_bridges_of_containers_are_left_out() -> None:
    found = [
        Found("eth0", V4),
        Found("eth0", IPv6Address("fe80::1")),
        Found("eth0", IPv4Address("169.254.1.2")),
        Found("docker0", IPv4Address("172.17.0.1"), True),
    ]
    assert hosts(found, [V4], "localhost") == ["198.51.100.7"]


def test_a_bridge_that_packets_leave_by_is_an_interface_like_another() -> None:
    found = [Found("br0", V4, True), Found("br0", V6, True)]
    assert hosts(found, [V4], "") == ["198.51.100.7", "2001:db8::7"]


def test_a_machine_with_nothing_but_a_bridge_is_reached_by_that() -> None:
    assert hosts([*LOOPBACK, Found("br0", V4, True)], [], "hub") == ["198.51.100.7", "hub"]


def test_there_are_never_more_than_a_token_holds_and_the_name_stays_among_them() -> None:
    found = [Found(f"eth{n}", IPv4Address(f"10.0.0.{n}")) for n in range(20)]
    assert hosts(found, [IPv4Address("10.0.0.9")], "hub")[0] == "10.0.0.9"
    assert hosts(found, [], "hub")[-1] == "hub"
    assert len(hosts(found, [], "hub")) == reachable.MOST


def test_a_machine_without_a_network_is_reached_by_itself() -> None:
    assert hosts(LOOPBACK, [], "localhost.localdomain") == ["127.0.0.1"]


@pytest.mark.parametrize("hostname", ["", "localhost", "näs", "a_b c", "10.1.1.1", "7"])
def test_a_hostname_that_is_no_name_is_left_out(hostname: str) -> None:
    assert hosts([Found("eth0", V4)], [V4], hostname) == ["198.51.100.7"]


def test_this_machines_own_are_addresses_that_a_token_can_have() -> None:
    found = own_hosts()
    assert found
    for host, where in zip(found, places(found, 4601), strict=True):
        assert where == Place(host.lower(), 4601)


def test_ipv6_addresses_that_do_not_last_are_left_out(tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    lasting = V6.exploded.replace(":", "")
    table.write_text(
        f"{lasting} 04 40 00 80     eth0\n"
        "20010db8000000000000000000000008 04 40 00 01     eth0\n"
        "20010db8000000000000000000000009 04 40 00 60     eth0\n"
    )
    assert [one.address for one in reachable._v6(table)] == [V6]
    assert list(reachable._v6(tmp_path / "none")) == []


def test_an_endpoint_is_a_host_with_the_usual_port_or_its_own() -> None:
    assert places(["hub.example", "hub.example:7", "192.0.2.1", "2001:db8::1", "[2001:db8::1]:9"], 51820) == (
        Place("hub.example", 51820),
        Place("hub.example", 7),
        Place("192.0.2.1", 51820),
        Place("2001:db8::1", 51820),
        Place("2001:db8::1", 9),
    )
    assert places(["[2001:db8::1]"], 5) == (Place("2001:db8::1", 5),)


@pytest.mark.parametrize("text", ["hub:0", "hub:x", "a b", "", "[::1", "hub:70000", "fe80::1%eth0"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(BadPlaceError):
        places([text], 1)


def test_the_kernels_table_of_ipv4_addresses_is_read_as_it_is_written() -> None:
    assert IPv4Address("127.0.0.1") in {one.address for one in reachable._v4()}
    assert {name for _, name in socket.if_nameindex()} >= {one.interface for one in reachable._v4()}

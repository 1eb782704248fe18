from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import address
from mesh.address import BadPlaceError, Place

KEYS = st.binary(min_size=32, max_size=32)
NUMBERS = st.integers(1, 2**63)


def test_the_prefix_is_the_head_of_the_keys_hash() -> None:
    assert address.prefix(bytes(32)) == IPv6Network("fd66:687a:adf8::/48")  # SHA-256 begins 66687aadf862


@given(KEYS)
def test_a_prefix_is_one_of_the_local_addresses(key: bytes) -> None:
    assert address.prefix(key).subnet_of(IPv6Network("fd00::/8"))
    assert address.prefix(key).prefixlen == 48


@given(KEYS, NUMBERS)
def test_a_number_comes_back_from_its_address(key: bytes, number: int) -> None:
    network = address.prefix(key)
    assert address.number_of(network, address.address(network, number)) == number


def test_the_harness_is_1_and_worker_n_is_n() -> None:
    network = IPv6Network("fd66:687a:adf8::/48")
    assert str(address.address(network, address.HARNESS)) == "fd66:687a:adf8::1"
    assert str(address.interface(network, 31)) == "fd66:687a:adf8::1f/48"


@given(KEYS, st.integers(0, 2**128 - 1).map(IPv6Address))
def test_an_address_outside_the_mesh_has_no_number(key: bytes, peer: IPv6Address) -> None:
    network = address.prefix(key)
    assert (address.number_of(network, peer) is None) == (peer not in network)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("192.0.2.1:4601", Place("192.0.2.1", 4601)),
        ("[2001:DB8:0::1]:1", Place("2001:db8::1", 1)),
        ("Hub.Example.:65535", Place("hub.example", 65535)),
        ("my_host:80", Place("my_host", 80)),
        ("xn--bro-hoa.example:80", Place("xn--bro-hoa.example", 80)),
        ("10.example:80", Place("10.example", 80)),
    ],
)
def test_places_are_read(text: str, place: Place) -> None:
    assert address.place(text) == place
    assert address.place(str(place)) == place


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "write HOST:PORT"),
        ("host", "write HOST:PORT"),
        ("host:", "write HOST:PORT"),
        ("host:0", "from 1 to 65535"),
        ("host:65536", "from 1 to 65535"),
        ("host:80x", "write HOST:PORT"),
        ("host:٣", "write HOST:PORT"),
        ("::1:80", "in brackets"),
        ("[::1:80", "in brackets"),
        ("[1.2.3.4]:80", "no such IPv6"),
        ("[]:80", "no such IPv6"),
        ("[fe80::1%eth0]:80", "zone"),
        ("1.2.3:80", "no such IPv4"),
        ("256.1.1.1:80", "no such IPv4"),
        ("0x7f000001:80", "no such IPv4"),
        (":80", "IP address or a DNS name"),
        ("a..b:80", "IP address or a DNS name"),
        ("-a:80", "IP address or a DNS name"),
        ("a b:80", "IP address or a DNS name"),
        ("http://a:80", "in brackets"),
        ("a/b:80", "IP address or a DNS name"),
        ("büro.example:80", "xn--"),
        ("a" * 64 + ":80", "IP address or a DNS name"),
        (".".join(["a" * 60] * 5) + ":80", "IP address or a DNS name"),
    ],
)
def test_what_is_no_place_is_refused_with_what_is(text: str, why: str) -> None:
    with pytest.raises(BadPlaceError, match=why) as raised:
        address.place(text)
    assert len(str(raised.value)) < 500


@given(st.text(max_size=30) | st.from_regex(r"\[?[0-9a-f:.%]{0,20}\]?:[0-9]{1,6}", fullmatch=True))
def test_any_text_is_a_place_or_refused_and_is_written_as_it_is_read(text: str) -> None:
    with suppress(BadPlaceError):
        place = address.place(text)
        assert address.place(str(place)) == place

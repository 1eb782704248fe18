import base64
import hashlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import token
from mesh.address import Place
from mesh.token import Token, TokenError

PLACES = st.sampled_from(
    [
        Place("192.0.2.1", 4601),
        Place("2001:db8::1", 4601),
        Place("hub.example", 65535),
        Place(".".join(["a" * 60] * 4), 1),
    ]
)
TOKENS = st.builds(
    Token,
    places=st.lists(PLACES, min_size=1, max_size=token.MOST_PLACES).map(tuple),
    fingerprint=st.binary(min_size=32, max_size=32),
    secret=st.binary(min_size=16, max_size=16),
)
ONE = Token(places=(Place("192.0.2.1", 4601),), fingerprint=bytes(32), secret=bytes(16))
TEXT = token.encode(ONE)


@given(TOKENS)
def test_a_token_comes_back_from_its_text(made: Token) -> None:
    assert token.decode(token.encode(made)) == made


def test_a_token_with_one_endpoint_is_one_line_of_a_terminal() -> None:
    assert TEXT.startswith("orj_")
    assert len(TEXT) <= 105


def test_white_space_is_no_matter() -> None:
    assert token.decode(f"  {TEXT[:10]}\n  {TEXT[10:50]}\r\n{TEXT[50:]}\t") == ONE


def test_the_secret_is_not_printed() -> None:
    assert repr(ONE) == "Token(places=(Place(host='192.0.2.1', port=4601),))"


@pytest.mark.parametrize("end", range(5, len(TEXT)))
def test_a_token_that_is_cut_off_says_so(end: int) -> None:
    with pytest.raises(TokenError, match=r"cut off.*copy it again"):
        token.decode(TEXT[:end])


def test_a_cut_token_says_how_much_is_there() -> None:
    with pytest.raises(TokenError, match=f"it has 60 of {len(TEXT)} characters"):
        token.decode(TEXT[:60])


@pytest.mark.parametrize("more", ["A", "AAAA", "A" * 100])
def test_a_token_with_more_behind_it_says_so(more: str) -> None:
    with pytest.raises(TokenError, match="too long"):
        token.decode(TEXT + more)


@given(st.integers(4, len(TEXT) - 1), st.sampled_from("Az09-_"))
def test_a_token_with_another_character_is_never_taken(at: int, other: str) -> None:
    changed = TEXT[:at] + other + TEXT[at + 1 :]
    if changed != TEXT:
        with pytest.raises(TokenError):
            token.decode(changed)


@given(st.integers(8, len(TEXT) - 1))
def test_a_token_without_one_of_its_characters_is_cut_off(at: int) -> None:
    with pytest.raises(TokenError, match="cut off"):
        token.decode(TEXT[:at] + TEXT[at + 1 :])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("hello", "not a join token"),
        (TEXT.upper(), "not a join token"),
        (TEXT.removeprefix("orj_"), "not a join token"),
        ("orj_", "cut off"),
        ("orj_A", "cut off"),
        (TEXT[:50] + "…" + TEXT[51:], "characters that none has"),
        (TEXT + "=", "characters that none has"),
    ],
)
def test_what_is_no_token_is_told_so(text: str, why: str) -> None:
    with pytest.raises(TokenError, match=why):
        token.decode(text)


def test_a_token_of_another_version_says_what_to_install() -> None:
    data = bytearray(base64.urlsafe_b64decode(TEXT[4:] + "=" * (-len(TEXT[4:]) % 4)))
    data[0] = 2
    with pytest.raises(TokenError, match="has version 2, this Outrider reads 1: install the version"):
        token.decode("orj_" + base64.urlsafe_b64encode(data).decode().rstrip("="))


@given(st.text(max_size=200) | st.text("Aa0-_", max_size=200))
def test_garbage_gives_only_the_one_error(text: str) -> None:
    for candidate in (text, f"orj_{text}", f"orj_AQ{text}"):
        with suppress(TokenError):
            assert token.encode(token.decode(candidate)) == "".join(candidate.split())


@pytest.mark.parametrize(
    "places",
    [b"", b"\0\1x", b"\0\xffa:9", b"\0\5a:999\0", b"\0\4\xff:99", b"\0\4a:99" * 9],
    ids=["none", "no place", "cut", "rest", "not ASCII", "too many"],
)
def test_a_token_whose_endpoints_are_wrong_is_refused_though_its_checksum_is_right(places: bytes) -> None:
    assert token.decode(written(b"\0\4a:99")).places == (Place("a", 99),)
    with pytest.raises(TokenError, match="names no place to join at"):
        token.decode(written(places))


def written(places: bytes) -> str:
    data = b"\1" + (16 + 32 + len(places) + 4).to_bytes(2, "big") + bytes(48) + places
    data += hashlib.sha256(data).digest()[:4]
    return "orj_" + base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize("count", [0, 9])
def test_a_token_is_made_of_1_to_8_endpoints(count: int) -> None:
    with pytest.raises(TokenError, match=f"1 to 8 endpoints, not {count}"):
        token.encode(Token(places=(Place("a", 1),) * count, fingerprint=bytes(32), secret=bytes(16)))


def test_a_secret_is_known_by_its_hash() -> None:
    assert token.hash_of(b"a" * 16) == hashlib.sha256(b"a" * 16).digest()

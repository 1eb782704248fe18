from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.protocol import dialing, frames

NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True).filter(lambda n: n not in dialing.RESERVED)


GREETINGS = st.builds(
    dialing.Greeting,
    name=NAMES,
    protocol=st.integers(0, 9),
    release=st.text(max_size=100),
    purpose=st.sampled_from([dialing.WORK, dialing.WHEEL, dialing.NOTE]),
    update=st.text(max_size=2 * dialing.MAX_UPDATE),
)


@given(GREETINGS)
def test_a_greeting_that_is_said_is_heard_and_its_sentence_is_cut_where_it_is_long(
    said: dialing.Greeting,
) -> None:
    line = dialing.greeting(said)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert len(line) <= dialing.MAX_LINE
    assert dialing.greeted(line) == replace(said, update=said.update[: dialing.MAX_UPDATE])


def test_what_a_later_release_says_more_is_passed_over() -> None:
    assert dialing.greeted(b'{"name":"gpu","later":[1]}\n') == dialing.Greeting("gpu")


@pytest.mark.parametrize("name", ["", "-a", "A", "a.b", "a b", "ü", "a" * 64, "a\n", "a/../b"])
def test_what_cannot_be_a_name_is_refused_with_what_can(name: str) -> None:
    with pytest.raises(dialing.BadNameError, match="1 to 63 of a-z, 0-9 and -"):
        dialing.check_name(name)


@pytest.mark.parametrize("name", ["local", "harness"])
def test_the_daemons_own_names_are_reserved(name: str) -> None:
    with pytest.raises(dialing.BadNameError, match="reserved"):
        dialing.greeting(dialing.Greeting(name))


def test_a_long_line_is_shown_cut() -> None:
    for line in (b"x" * 5000 + b"\n", b'{"name":"' + b"x" * 3000 + b'"}\n'):
        with pytest.raises(dialing.BadNameError) as raised:
            dialing.greeted(line)
        assert len(str(raised.value)) < 200


@given(st.binary(max_size=100))
def test_any_line_is_a_greeting_or_refused(line: bytes) -> None:
    with suppress(dialing.BadNameError):
        assert dialing.check_name(dialing.greeted(line).name)


@given(st.text(max_size=10_000))
def test_a_refusal_is_one_line_that_is_no_frame(reason: str) -> None:
    line = dialing.refusal(reason)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) <= dialing.MAX_LINE
    assert not dialing.is_frame(line)


def test_a_refusal_says_why() -> None:
    assert dialing.reason_of(dialing.refusal("not\nhere")) == "not here"
    assert dialing.reason_of(b"220 mail\r\n") == "220 mail\r"


def test_a_frame_is_no_refusal() -> None:
    assert dialing.is_frame(frames.encode(frames.Ping()))

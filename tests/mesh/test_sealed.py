import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import keys, sealed
from mesh.sealed import SealError

KEY = keys.join_pair(bytes(range(96)))
OTHER = keys.join_pair(bytes(96))
REPLY = bytes(range(32))
PLAIN = b"a question"
BOX = sealed.seal(KEY.public, PLAIN, b"context")
ANSWER = sealed.seal_reply(REPLY, PLAIN, b"context")


@given(st.binary(max_size=2000), st.binary(max_size=100))
def test_what_is_sealed_is_opened(plain: bytes, context: bytes) -> None:
    box = sealed.seal(KEY.public, plain, context)
    assert sealed.unseal(KEY, box, context) == plain
    assert len(box) == len(plain) + sealed.OVERHEAD
    assert sealed.unseal_reply(REPLY, sealed.seal_reply(REPLY, plain, context), context) == plain


def test_no_box_is_like_another() -> None:
    assert sealed.seal(KEY.public, PLAIN, b"context") != BOX
    assert sealed.seal_reply(REPLY, PLAIN, b"context") != ANSWER


def test_a_box_opens_only_with_its_key_and_in_its_context() -> None:
    for key, context in [(OTHER, b"context"), (KEY, b"contex"), (KEY, b"context "), (KEY, b"")]:
        with pytest.raises(SealError):
            sealed.unseal(key, BOX, context)
    for reply, context in [(bytes(32), b"context"), (REPLY, b"contex")]:
        with pytest.raises(SealError):
            sealed.unseal_reply(reply, ANSWER, context)


def test_a_box_cut_at_any_byte_is_not_opened() -> None:
    for end in range(len(BOX)):
        with pytest.raises(SealError):
            sealed.unseal(KEY, BOX[:end], b"context")
    for end in range(len(ANSWER)):
        with pytest.raises(SealError):
            sealed.unseal_reply(REPLY, ANSWER[:end], b"context")


def test_a_box_with_any_byte_changed_is_not_opened() -> None:
    for at in range(len(BOX)):
        with pytest.raises(SealError):
            sealed.unseal(KEY, flipped(BOX, at), b"context")
    for at in range(len(ANSWER)):
        with pytest.raises(SealError):
            sealed.unseal_reply(REPLY, flipped(ANSWER, at), b"context")


@given(st.binary(max_size=1500))
def test_garbage_is_not_opened(box: bytes) -> None:
    with pytest.raises(SealError):
        sealed.unseal(KEY, box, b"")
    with pytest.raises(SealError):
        sealed.unseal_reply(REPLY, box, b"")


@pytest.mark.parametrize(
    "public",
    [b"", KEY.public[:-1], KEY.public + b"\0", b"\xff" * keys.JOIN_PUBLIC, KEY.public[:-32] + bytes(32)],
    ids=["empty", "short", "long", "not of the ring", "of low order"],
)
def test_nothing_is_sealed_to_what_is_no_key(public: bytes) -> None:
    with pytest.raises(SealError):
        sealed.seal(public, PLAIN, b"")


def test_both_sides_prove_the_same_and_others_something_else() -> None:
    one, two = keys.pair(bytes([1]) * 32), keys.pair(bytes([2]) * 32)
    three = keys.pair(bytes([3]) * 32)
    proof = sealed.proof(one.private, two.public, b"so it is")
    assert sealed.same(proof, sealed.proof(two.private, one.public, b"so it is"))
    assert not sealed.same(proof, sealed.proof(two.private, one.public, b"so is it"))
    assert not sealed.same(proof, sealed.proof(three.private, one.public, b"so it is"))
    with pytest.raises(SealError):
        sealed.proof(one.private, bytes(32), b"so it is")


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

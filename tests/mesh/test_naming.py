import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.protocol import dialing
from mesh import naming


@pytest.mark.parametrize(
    ("hostname", "name"),
    [
        ("gpu1", "gpu1"),
        ("GPU1.example.org", "gpu1"),
        ("my_big box", "my-big-box"),
        ("  padded\n", "padded"),
        ("Büro", "buro"),
        ("-a-", "a"),
        ("a--b", "a-b"),
        ("10.0.0.5", "10"),
        ("", "worker"),
        (".example", "worker"),
        ("機械", "worker"),
        ("x" * 100, "x" * 63),
        ("x" * 62 + "-y", "x" * 62),
    ],
)
def test_a_name_is_the_hostnames_first_label(hostname: str, name: str) -> None:
    assert naming.name_of(hostname) == name


def test_names_are_counted_from_2() -> None:
    taken: set[str] = set()
    for _ in range(4):
        taken.add(naming.unique("gpu", taken))
    assert taken == {"gpu", "gpu-2", "gpu-3", "gpu-4"}


@pytest.mark.parametrize("name", naming.RESERVED)
def test_a_reserved_name_is_nobodys(name: str) -> None:
    assert naming.unique(naming.name_of(name.upper()), ()) == f"{name}-2"


def test_a_long_name_is_cut_for_its_number() -> None:
    name = "x" * 60 + "-yz"
    assert naming.unique(name, {name}) == "x" * 60 + "-2"
    assert naming.unique("x" * 63, {"x" * 63}) == "x" * 61 + "-2"


@given(
    st.lists(st.text(max_size=80) | st.sampled_from(["harness", "local", "a", "a-2", "x" * 63]), max_size=20)
)
def test_any_hostnames_give_names_that_a_worker_can_dial_with_and_no_two_alike(hostnames: list[str]) -> None:
    taken: list[str] = []
    for hostname in hostnames:
        taken.append(dialing.check_name(naming.unique(naming.name_of(hostname), taken)))
    assert len(set(taken)) == len(hostnames)


def test_the_reserved_names_are_the_dialing_protocols() -> None:
    assert set(naming.RESERVED) == set(dialing.RESERVED)
    assert dialing.check_name("x" * naming.LONGEST)
    with pytest.raises(dialing.BadNameError):
        dialing.check_name("x" * (naming.LONGEST + 1))

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mesh.nodes import Facts, Node, Refusal
from mesh.registry import FILE, MOST_USES, Registry, RegistryError
from tests.mesh.joining import Clock

ROOT = Path(__file__).resolve().parent.parent.parent
HUB = bytes(range(32))
FACTS = Facts("gpu1", "linux", "x86_64", "0.1.0")
HASH = b"h" * 32


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def opened(folder: Path, clock: Clock | None = None, hub: bytes = HUB) -> Registry:
    return Registry(folder / FILE, hub, clock or Clock())


def joins(registry: Registry, number: int, hashed: bytes = HASH, facts: Facts = FACTS) -> Node | Refusal:
    return registry.join(hashed, key(number), facts, os.urandom(32), 1200.0)


def joined(registry: Registry, number: int, hashed: bytes = HASH, facts: Facts = FACTS) -> Node:
    node = joins(registry, number, hashed, facts)
    assert isinstance(node, Node)
    return node


def uses(registry: Registry) -> list[int]:
    return [grant.uses for grant in registry.grants()]


def test_nodes_and_tokens_are_there_when_it_is_opened_again(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    with opened(tmp_path, clock) as registry:
        grant = registry.grant(HASH, label="for the lab", uses=2, lifetime=60.0, ephemeral=True)
        node = joined(registry, 1)
    assert (grant.id, grant.label, grant.uses, grant.created, grant.expires) == (
        1,
        "for the lab",
        2,
        1000.0,
        1060.0,
    )
    assert (node.number, node.name, node.token, node.ephemeral, node.facts) == (2, "gpu1", 1, True, FACTS)
    assert (node.joined, node.quiet, node.removed, len(node.preshared)) == (1000.0, None, None, 32)
    with opened(tmp_path) as registry:
        assert registry.nodes() == (node,)
        assert registry.node(2) == registry.named("gpu1") == node
        assert uses(registry) == [1]
    assert repr(node) == "Node(number=2, name='gpu1')"  # no key in a log


def test_the_file_is_one_and_its_owners_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        registry.grant(HASH)
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_each_key_has_a_number_a_name_and_a_preshared_key_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        registry.grant(HASH, uses=3)
        nodes = [joined(registry, number) for number in range(3)]
    assert [(node.number, node.name) for node in nodes] == [(2, "gpu1"), (3, "gpu1-2"), (4, "gpu1-3")]
    assert len({node.preshared for node in nodes}) == 3


def test_a_removed_node_frees_its_name_and_neither_its_number_nor_its_key(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock) as registry:
        registry.grant(HASH, uses=3)
        joined(registry, 1)
        assert registry.remove(2)
        assert not registry.remove(2)
        assert not registry.remove(9)
        assert registry.node(2) is registry.named("gpu1") is None
        assert registry.nodes() == ()
        (gone,) = registry.nodes(removed=True)
        assert (gone.removed, gone.preshared) == (clock(), b"")
        assert joins(registry, 1) is Refusal.REMOVED
        assert uses(registry) == [2]
    with opened(tmp_path) as registry:
        other = joined(registry, 2)
        assert (other.number, other.name) == (3, "gpu1")
        assert joins(registry, 1) is Refusal.REMOVED
        registry.remove(3)
    with opened(tmp_path) as registry:
        assert joined(registry, 3).number == 4


def test_a_token_lets_so_many_machines_join_and_no_more(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        registry.grant(HASH, uses=2)
        assert isinstance(joins(registry, 1), Node)
        assert isinstance(joins(registry, 2), Node)
        assert joins(registry, 3) is Refusal.TOKEN
        assert uses(registry) == [0]


def test_the_same_machine_with_the_same_token_is_answered_again_and_takes_no_use(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        registry.grant(HASH)
        first = joined(registry, 1)
        renamed = Facts("other", "linux", "x86_64", "0.2.0")
        again = joined(registry, 1, facts=renamed)
        assert (again.number, again.name, again.preshared) == (first.number, first.name, first.preshared)
        assert again.facts == renamed
        assert uses(registry) == [0]


def test_a_machine_that_joins_with_another_token_takes_a_use_and_follows_that_token(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        registry.grant(HASH, ephemeral=True)
        registry.grant(b"i" * 32)
        first = joined(registry, 1)
        registry.note({first.number: 5.0})
        second = joined(registry, 1, b"i" * 32)
        assert (second.number, second.name, second.preshared) == (2, "gpu1", first.preshared)
        assert (first.ephemeral, second.ephemeral, second.token, second.quiet) == (True, False, 2, None)
        assert uses(registry) == [0, 0]
        assert joins(registry, 1) is Refusal.TOKEN  # the first one's use is another's now: gone


def test_an_unknown_an_expired_and_a_revoked_token_are_refused_alike(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock) as registry:
        registry.grant(HASH, uses=5, lifetime=60.0)
        registry.grant(b"i" * 32, uses=5)
        joined(registry, 1)
        joined(registry, 2, b"i" * 32)
        assert joins(registry, 3, b"x" * 32) is Refusal.TOKEN
        clock.at += 59.9
        joined(registry, 4)
        clock.at += 0.1
        assert registry.revoke(2)
        assert not registry.revoke(2)
        assert not registry.revoke(3)
        for number, hashed in [(1, HASH), (3, HASH), (2, b"i" * 32), (3, b"i" * 32)]:
            assert joins(registry, number, hashed) is Refusal.TOKEN
        assert uses(registry) == [3, 4]
        assert len(registry.nodes()) == 3  # who is in stays in


def test_one_request_is_answered_once_also_across_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock) as registry:
        registry.grant(HASH, uses=5)
        assert isinstance(registry.join(HASH, key(1), FACTS, b"r", 1200.0), Node)
        assert registry.join(HASH, key(1), FACTS, b"r", 1200.0) is Refusal.REPLAYED
    with opened(tmp_path, clock) as registry:
        assert registry.join(HASH, key(1), FACTS, b"r", 1200.0) is Refusal.REPLAYED
        clock.at += 1200.0
        assert registry.join(HASH, key(1), FACTS, b"r", 1200.0) is Refusal.REPLAYED
        clock.at += 0.1  # by now the time in it is refused
        assert isinstance(registry.join(HASH, key(1), FACTS, b"r", 1200.0), Node)
        assert uses(registry) == [4]


def test_who_is_quiet_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        registry.grant(HASH, uses=2)
        joined(registry, 1)
        joined(registry, 2)
        registry.note({2: 1000.5, 3: 7.0})
        registry.note({3: None})
        registry.note({})
    with opened(tmp_path) as registry:
        assert [node.quiet for node in registry.nodes()] == [1000.5, None]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"uses": 0}, "uses: from 1 to"),
        ({"uses": MOST_USES + 1}, "uses: from 1 to"),
        ({"lifetime": 0.0}, "expires: more than 0"),
        ({"lifetime": float("inf")}, "expires: more than 0"),
        ({"lifetime": float("nan")}, "expires: more than 0"),
        ({"label": "a\x1b[2J"}, "name: at most"),
        ({"label": "a" * 201}, "name: at most"),
    ],
)
def test_a_token_that_cannot_be_is_refused_with_what_can(
    tmp_path: Path, bad: dict[str, float], why: str
) -> None:
    with opened(tmp_path) as registry:
        with pytest.raises(ValueError, match=why):
            registry.grant(HASH, **bad)  # type: ignore[arg-type]
        assert registry.grants() == ()


def test_one_use_among_many_that_join_at_once_is_one_machines(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        registry.grant(HASH, uses=5)
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda number: joins(registry, number), range(40)))
        nodes = [result for result in results if isinstance(result, Node)]
        assert len(nodes) == 5
        assert [result for result in results if not isinstance(result, Node)] == [Refusal.TOKEN] * 35
        assert {node.number for node in nodes} == {2, 3, 4, 5, 6}
        assert len({node.name for node in nodes}) == 5
        assert uses(registry) == [0]


def test_one_machine_that_joins_many_times_at_once_is_one_node(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        registry.grant(HASH, uses=5)
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: joins(registry, 1), range(20)))
        assert len({result.number for result in results if isinstance(result, Node)}) == 1
        assert len(registry.nodes()) == 1
        assert uses(registry) == [4]


JOINER = f"""
import sys
import tempfile
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from mesh.nodes import Facts, Node
from mesh.registry import Registry
with Registry(Path(sys.argv[1]), bytes(range(32)), lambda: 1e9) as registry:
    first = int(sys.argv[2])
    for number in range(first, first + 100_000):
        node = registry.join(b"h" * 32, number.to_bytes(4, "big") * 8, Facts("a", "", "", ""), b"%d" % number, 9.0)
        assert isinstance(node, Node), node
        print(number, node.number, node.name, flush=True)
"""


def test_a_kill_at_any_moment_loses_no_use_and_no_node(tmp_path: Path) -> None:
    with opened(tmp_path, Clock(1e9)) as registry:
        registry.grant(HASH, uses=MOST_USES)
    said: list[list[str]] = []
    for turn in range(6):
        command = [sys.executable, "-c", JOINER, str(tmp_path / FILE), str(turn * 1_000_000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said += [process.stdout.readline().split() for _ in range(3 + 5 * turn)]
            process.send_signal(signal.SIGKILL)  # it is in the midst of the next
            said += [line.split() for line in process.stdout if line.endswith("\n")]
        with opened(tmp_path, Clock(1e9)) as registry:
            nodes = {node.key: node for node in registry.nodes()}
            assert uses(registry) == [MOST_USES - len(nodes)]
            assert len({node.number for node in nodes.values()}) == len(nodes)
            for number, place, name in said:
                node = nodes[key(int(number))]
                assert (str(node.number), node.name) == (place, name)


def test_only_one_process_has_it_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", JOINER, str(tmp_path / FILE), "1"]
    with opened(tmp_path) as registry:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert f"RegistryError: {tmp_path / FILE} is open in another process" in ended.stderr
        with pytest.raises(RegistryError, match="is open in another process"):
            opened(tmp_path)
        assert registry.grant(HASH).id == 1
    with opened(tmp_path) as registry:
        assert uses(registry) == [1]


def test_a_closed_registry_says_so(tmp_path: Path) -> None:
    registry = opened(tmp_path)
    registry.close()
    registry.close()
    with pytest.raises(RegistryError, match=r"cannot be used: .*closed"):
        registry.nodes()
    with pytest.raises(RegistryError, match=r"cannot be used: .*closed"):
        registry.remove(2)


def test_a_registry_that_others_can_read_is_refused_with_the_fix(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / FILE).chmod(0o644)
    with pytest.raises(RegistryError, match=f"has mode 0644 .*: chmod 600 {tmp_path / FILE}"):
        opened(tmp_path)


def test_a_registry_of_another_key_is_refused_once_a_machine_has_joined(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with opened(tmp_path, hub=bytes(32)) as registry:
        registry.grant(HASH)
        joined(registry, 1)
    with pytest.raises(RegistryError, match="is of another WireGuard key: put the key back"):
        opened(tmp_path)
    with opened(tmp_path, hub=bytes(32)) as registry:
        assert len(registry.nodes()) == 1


def test_what_is_no_registry_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for content in (b"", b"not a database" * 100, b"SQLite format 3\0" + bytes(100)):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(RegistryError, match=r"mesh.db (is damaged|is not the registry of a mesh)"):
            opened(tmp_path)
        assert path.read_bytes() == content
        path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE other (a)")
    db.close()
    path.chmod(0o600)
    with pytest.raises(RegistryError, match="is not the registry of a mesh; move it away"):
        opened(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(RegistryError, match="is not a file; move it away"):
        opened(tmp_path)
    with pytest.raises(RegistryError, match=r"missing/mesh.db cannot be written: No such file"):
        opened(tmp_path / "missing")


def test_a_registry_of_a_later_schema_is_refused_with_the_fix(tmp_path: Path) -> None:
    opened(tmp_path).close()
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(
        RegistryError, match="has schema 9, this Outrider reads 1: install the version that wrote it"
    ):
        opened(tmp_path)


def test_a_registry_cut_or_overwritten_anywhere_gives_the_one_error_or_what_was_in_it(tmp_path: Path) -> None:
    with opened(tmp_path) as registry:
        registry.grant(HASH, uses=200)
        for number in range(200):
            joined(registry, number)
        whole = registry.nodes()
    path = tmp_path / FILE
    content = path.read_bytes()
    errors: list[str] = []
    for at in range(0, len(content), 1021):
        for damaged in (content[:at], content[:at] + b"\xa5" * 64 + content[at + 64 :]):
            path.write_bytes(damaged)
            try:
                with opened(tmp_path) as registry:
                    assert [node.number for node in registry.nodes()] == [node.number for node in whole]
            except RegistryError as error:
                errors.append(str(error))
    assert all(str(path) in error for error in errors)
    assert len(errors) >= len(content) // 1021  # each that was cut, at the least


def test_a_full_disk_is_told_and_changes_nothing(tmp_path: Path) -> None:
    unshare, mount = shutil.which("unshare"), shutil.which("mount")
    if unshare is None or mount is None:
        pytest.skip("unshare and mount are not installed: install util-linux to fill a disk")
    script = f"""
import sys
import tempfile
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from mesh.nodes import Facts
from mesh.registry import Registry, RegistryError
folder = Path(sys.argv[1])
with Registry(folder / "mesh.db", bytes(32), lambda: 1e9) as registry:
    registry.grant(b"h" * 32, uses=1000)
    (folder / "ballast").write_bytes(bytes(16 << 10))
    try:
        for number in range(1000):
            facts = Facts("a" * 200, "b" * 200, "c" * 200, "d" * 200)
            registry.join(b"h" * 32, number.to_bytes(4, "big") * 8, facts, b"%d" % number, 9.0)
    except RegistryError as error:
        print(error)
    nodes = registry.nodes()
    (grant,) = registry.grants()
    print(grant.uses == 1000 - len(nodes), len(nodes) > 0)
    (folder / "ballast").unlink()
    print(registry.grant(b"i" * 32).id)
"""
    inside = 'mount -t tmpfs -o size=160k none "$1" && exec "$2" -c "$3" "$1"'
    command = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh"]
    ended = subprocess.run(
        [*command, str(tmp_path), sys.executable, script], capture_output=True, text=True, check=False
    )
    if "unshare failed" in ended.stderr or "mount: " in ended.stderr:
        pytest.skip(f"no user namespace here to mount a small disk in: {ended.stderr.strip()}")
    assert ended.stdout.splitlines() == [
        f"{tmp_path / FILE} cannot be written: the disk is full; make room",
        "True True",
        "2",
    ], ended.stderr


class Model(RuleBasedStateMachine):
    """Any order of grants, joins, removals, revocations and restarts, beside what should come of it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.folder = Path(tempfile.mkdtemp(prefix="registry-"))
        self.registry = opened(self.folder, self.clock)
        self.left: dict[int, int] = {}
        self.revoked: set[int] = set()
        self.living: dict[int, tuple[int, int]] = {}  # machine: number, token
        self.removed: set[int] = set()
        self.numbers: list[int] = []

    def teardown(self) -> None:
        self.registry.close()
        shutil.rmtree(self.folder)

    @rule(uses=st.integers(1, 3))
    def grant(self, uses: int) -> None:
        if len(self.left) < 4:
            token = len(self.left) + 1
            assert self.registry.grant(bytes([token]) * 32, uses=uses).id == token
            self.left[token] = uses

    @rule(machine=st.integers(1, 5), token=st.integers(1, 5))
    def join(self, machine: int, token: int) -> None:
        result = joins(self.registry, machine, bytes([token]) * 32)
        again = machine in self.living and self.living[machine][1] == token
        if token not in self.left or token in self.revoked or (not again and not self.left[token]):
            assert result is Refusal.TOKEN
        elif machine in self.removed:
            assert result is Refusal.REMOVED
        else:
            assert isinstance(result, Node)
            if machine in self.living:
                assert result.number == self.living[machine][0]
            else:
                assert result.number > max(self.numbers, default=1)
                self.numbers.append(result.number)
            self.left[token] -= not again
            self.living[machine] = (result.number, token)

    @rule(machine=st.integers(1, 5))
    def remove(self, machine: int) -> None:
        number, _ = self.living.pop(machine, (99, 0))
        assert self.registry.remove(number) == (number != 99)
        if number != 99:
            self.removed.add(machine)

    @rule(token=st.integers(1, 5))
    def revoke(self, token: int) -> None:
        assert self.registry.revoke(token) == (token in self.left and token not in self.revoked)
        if token in self.left:
            self.revoked.add(token)

    @rule()
    def restart(self) -> None:
        self.registry.close()
        self.registry = opened(self.folder, self.clock)

    @invariant()
    def agree(self) -> None:
        assert uses(self.registry) == list(self.left.values())
        nodes = self.registry.nodes()
        assert {node.number for node in nodes} == {number for number, _ in self.living.values()}
        assert len({node.name for node in nodes}) == len(nodes)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)

from datetime import UTC, datetime

import pytest

from daemon.protocol import api
from tui import workertext
from tui.workertext import Fact

NOW = datetime(2026, 11, 30, 7, 0, 0, tzinfo=UTC)
MESH = api.Membership(
    "fdc9::2",
    "2026-11-30T06:50:02.100Z",
    1,
    path="direct",
    endpoint="198.51.100.7:51820",
    handshake="2026-11-30T06:59:18.000Z",
    rx=1284,
    tx=780,
)
GPU = api.WorkerInfo(
    "gpu-1",
    "connected",
    release="0.1.0",
    os="linux",
    arch="x86_64",
    hostname="gpu-1",
    interpreters=("bash", "python"),
    cpus=16,
    memory=64 * 10**9,
    running=2,
    mesh=MESH,
)
LOCAL = api.WorkerInfo("local", "connected", os="linux", arch="x86_64", cordoned=True)
GONE = api.WorkerInfo("attic", "gone", seen="2026-11-28T07:00:00Z")
REFUSED = api.WorkerInfo("old", "refused", reason="it speaks protocol 9, this daemon 1")


def test_workers_that_are_here_come_first_and_local_before_its_equals() -> None:
    found = workertext.ordered([GONE, REFUSED, GPU, LOCAL])
    assert [one.name for one in found] == ["local", "gpu-1", "old", "attic"]


def test_a_row_has_a_cell_for_each_head_and_a_dash_for_what_is_not_known() -> None:
    rows = [workertext.cells(one, NOW) for one in (GPU, LOCAL, GONE, REFUSED)]
    assert rows[0] == (
        "gpu-1",
        "connected",
        "linux x86_64",
        "2",
        "direct",
        "42 s ago",
        "1.3 kB",
        "780 B",
        "fdc9::2",
    )
    assert rows[1][:6] == ("local", "connected, cordoned", "linux x86_64", "0", "-", "-")
    assert {len(row) for row in rows} == {len(workertext.HEAD)}


def test_the_reason_of_a_refusal_is_among_the_first_facts() -> None:
    assert workertext.facts(REFUSED, NOW) == [
        Fact("state", "refused", "bad"),
        Fact("reason", "it speaks protocol 9, this daemon 1", "bad"),
    ]


def test_a_joined_worker_says_path_handshake_and_traffic() -> None:
    found = {fact.name: fact.text for fact in workertext.facts(GPU, NOW)}
    assert found["address"] == "fdc9::2, by direct, from 198.51.100.7:51820"
    assert found["handshake"] == "42 s ago"
    assert found["traffic"] == "1.3 kB in, 780 B out"
    assert found["machine"] == "gpu-1, linux x86_64, 16 CPUs, 64.0 GB"
    assert found["runs"] == "2 calls going"


def test_one_that_is_gone_says_when_it_was_seen() -> None:
    assert workertext.facts(GONE, NOW) == [Fact("state", "gone, last seen 2 d ago", "dim")]


def test_control_codes_of_a_far_machine_are_shown_as_signs() -> None:
    evil = api.WorkerInfo("w", "refused", reason="\x1b]0;x\x07", hostname="\x1b[2J", os="\x9bm")
    said = " ".join([*workertext.cells(evil, NOW), *(fact.text for fact in workertext.facts(evil, NOW))])
    assert said.isprintable()


def test_local_and_a_worker_of_the_socket_cannot_be_removed_and_it_says_why() -> None:
    assert "`outrider down`" in workertext.removable(LOCAL)
    assert "`outrider worker down`" in workertext.removable(GONE)
    assert workertext.removable(GPU) == ""


@pytest.mark.parametrize(
    ("mesh", "said", "tone"),
    [
        (api.MeshInfo("off", "hub"), "mesh off", "dim"),
        (api.MeshInfo("idle", "hub", how="the kernel's"), "brings it up", "dim"),
        (api.MeshInfo("idle", "hub", why="no /dev/net/tun"), "no /dev/net/tun", "warn"),
        (api.MeshInfo("starting", "hub"), "starting", "dim"),
        (api.MeshInfo("failing", "hub", why="port 51820 is another's"), "port 51820 is another's", "bad"),
        (api.MeshInfo("up", "hub", how="wireguard-go", port=51820, join=("[::]:4601",)), "UDP 51820", "good"),
    ],
)
def test_the_mesh_says_how_it_stands_in_a_line(mesh: api.MeshInfo, said: str, tone: str) -> None:
    text, found = workertext.mesh_line(mesh)
    assert said in text
    assert found == tone


def test_a_token_has_a_cell_for_each_head() -> None:
    token = api.TokenInfo(7, "", "good", 3, "2026-11-30T06:00:00Z", "2026-12-01T06:00:00Z", True, ("a", "b"))
    cells = workertext.token_cells(token)
    assert len(cells) == len(workertext.TOKEN_HEAD)
    assert (cells[1], cells[5], cells[6]) == ("-", "yes", "a, b")

from collections.abc import AsyncIterator

import pytest

from daemon.client import ApiFailure
from daemon.harness.errors import Conflict
from daemon.protocol import api
from tests.tui.served import Daemon, daemon, screen
from tests.tui.snapshots import SIZES, SMALL, check
from tui.screens.tokens import lifetime, uses

MESH = api.Membership(
    "fdc9::2",
    "2026-01-01T06:50:02.100Z",
    1,
    path="relay",
    endpoint="198.51.100.7:51820",
    handshake="2026-01-02T03:04:18.000Z",
    rx=1284,
    tx=780,
)
LOCAL = api.WorkerInfo(
    "local", "connected", release="0.1.0", os="linux", arch="x86_64", hostname="hub", interpreters=("bash",)
)
GPU = api.WorkerInfo(
    "gpu-1", "connected", os="linux", arch="aarch64", running=2, interpreters=("bash", "node"), mesh=MESH
)
OLD = api.WorkerInfo("old", "refused", reason="it speaks protocol 9, this daemon 1")
GONE = api.WorkerInfo("attic", "gone", seen="2026-01-01T03:05:00Z")


@pytest.fixture
async def served() -> AsyncIterator[Daemon]:
    async with daemon() as made:
        made.workers(LOCAL, GPU, OLD, GONE)
        made.mesh.joined.add("gpu-1")
        yield made


@pytest.mark.parametrize("size", SIZES)
async def test_every_worker_has_a_row_and_the_one_below_the_cursor_its_facts(
    served: Daemon, size: tuple[int, int]
) -> None:
    async with screen(served, size) as at:
        await at.shows("No session yet")
        await at.press("w")
        await at.shows("4 workers, 2 connected", "mesh idle", "gpu-1", "refused", "gone", "relay")
        await at.shows("machine", "hub, linux x86_64")
        check(__file__, f"workers-{size[0]}x{size[1]}", at.text)
        await at.press("j")
        await at.shows("fdc9::2, by relay, from 198.51.100.7:51820", "1.3 kB in, 780 B out", "42 s ago")
        await at.press("down")
        await at.shows("it speaks protocol 9, this daemon 1")
        await at.press("G")
        await at.shows("gone, last seen 1 d ago")
        await at.press("g")
        await at.shows("hub, linux x86_64")
        await at.press("escape")
        await at.shows("No session yet")


async def test_workers_that_come_and_go_are_told_at_once_and_the_cursor_stays_on_its_own(
    served: Daemon,
) -> None:
    async with screen(served) as at:
        await at.press("w")
        await at.shows("attic")
        await at.press("j")
        await at.shows("198.51.100.7")
        served.workers(api.WorkerInfo("aaa", "connected"), LOCAL, GPU, OLD)
        await at.shows("aaa", "198.51.100.7")
        await at.loses("attic")
        served.workers(LOCAL)
        await at.loses("198.51.100.7")
        await at.shows("hub, linux x86_64")
        served.workers()
        await at.shows("0 workers, 0 connected")


async def test_c_cordons_and_uncordons(served: Daemon) -> None:
    async with screen(served) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("j", "c")
        await at.tells("gpu-1 takes no new calls; 2 calls that run there go on")
        assert served.harness.cordoned == {"gpu-1"}
        served.workers(LOCAL, api.WorkerInfo("gpu-1", "connected", cordoned=True, mesh=MESH))
        await at.shows("connected, cordoned")
        await at.press("c")
        await at.tells("gpu-1 takes calls again")
        assert served.harness.cordoned == set()


async def test_removing_takes_the_typed_name(served: Daemon) -> None:
    async with screen(served) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("j", "x")
        await at.shows("Remove gpu-1 (connected, with 2 calls going) for good?")
        await at.write("gpu")
        await at.press("enter")
        assert served.mesh.joined == {"gpu-1"}
        await at.press("escape")
        await at.loses("for good?")
        assert served.mesh.joined == {"gpu-1"}
        await at.press("delete")
        await at.shows("for good?")
        await at.write("gpu-1")
        await at.press("enter")
        await at.tells("gpu-1 is out for good")
        assert served.mesh.joined == set()


async def test_local_cannot_be_removed_and_it_says_why(served: Daemon) -> None:
    async with screen(served) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("x")
        await at.tells("not removed: local is the daemon's own worker")


async def test_the_name_is_copied(served: Daemon) -> None:
    async with screen(served) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("j", "y")
        await at.tells("copied gpu-1")
        assert at.app.clipboard == "gpu-1"


async def test_a_viewer_looks_on_and_reads_why() -> None:
    async with daemon("viewer") as served:
        served.workers(LOCAL, GPU)
        async with screen(served) as at:
            await at.press("w")
            await at.shows("gpu-1", "Read only: the key laptop is viewer's; this takes operator's")
            await at.press("j", "c", "x", "a", "t")
            await at.pilot.pause()
            assert served.harness.cordoned == set()
            assert "2 workers, 2 connected" in at.text
            await at.press("y")
            await at.tells("copied gpu-1")


async def test_an_operator_is_not_read_only() -> None:
    async with daemon("operator") as served:
        served.workers(LOCAL)
        async with screen(served) as at:
            await at.press("w")
            await at.shows("mesh idle")
            assert "Read only" not in at.text
            await at.press("c")
            await at.tells("local takes no new calls")


@pytest.mark.parametrize("size", SIZES)
async def test_a_token_is_shown_once_with_its_line_and_both_can_be_copied(
    served: Daemon, size: tuple[int, int]
) -> None:
    async with screen(served, size) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("a")
        await at.shows("A token lets machines join")
        await at.write("rack 7")
        await at.press("tab", "backspace")
        await at.write("3")
        await at.press("tab", "tab", "space", "enter")
        await at.shows("Token 1 (rack 7) lets 3 machines join", "echo orj_x | sh", "shown this once")
        assert served.mesh.made == [api.NewToken("rack 7", 3, 86400.0, True)]
        await at.press("y")
        await at.tells("copied the line, where")
        assert at.app.clipboard == "echo orj_x | sh"
        await at.press("Y")
        await at.tells("copied the token, where")
        assert at.app.clipboard == "orj_x"
        await at.press("escape")
        await at.loses("orj_x")
        await at.press("t")
        await at.shows("1 join token, 1 good", "rack 7")
        assert "orj_x" not in at.text


@pytest.mark.parametrize("answers", [True, False])
async def test_what_is_in_the_way_of_who_joins_is_shown_with_the_token_where_it_is_told(
    served: Daemon, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.mesh.info = api.MeshInfo("up", "hub", why="machines that join get no wheel from here")
    async with screen(served, SMALL) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("a")
        await at.shows("A token lets machines join")
        if not answers:

            async def ending() -> api.MeshInfo:
                raise ApiFailure(503, "the daemon is ending")

            monkeypatch.setattr(at.app.client, "mesh", ending)
        await at.press("enter")
        await at.shows("echo orj_x | sh")
        assert ("get no wheel from here" in at.text) == answers


async def test_what_cannot_be_is_told_at_its_field_and_nothing_is_made(served: Daemon) -> None:
    async with screen(served) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("a")
        await at.shows("A token lets machines join")
        await at.press("tab")
        await at.write("0x")
        await at.press("enter")
        await at.shows("machines: write a number of machines")
        await at.press("backspace", "backspace", "1", "tab")
        await at.write("x")
        await at.press("enter")
        await at.shows("good for: write a time such as 30m, 24h or 7d")
        await at.press("escape")
        await at.loses("A token lets")
        assert served.mesh.made == []


async def test_where_the_mesh_cannot_come_up_the_dialog_says_why(served: Daemon) -> None:
    served.mesh.failure = Conflict("the mesh is not up: UDP port 51820 is another program's")
    async with screen(served) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("a")
        await at.shows("A token lets machines join")
        await at.press("enter")
        await at.shows("UDP port 51820 is another program's")
        served.mesh.failure = None
        await at.press("enter")
        await at.shows("lets 1 machine join")


async def test_a_token_is_revoked_after_a_question(served: Daemon) -> None:
    await served.mesh.make_token(api.NewToken("first"))
    await served.mesh.make_token(api.NewToken("second"))
    async with screen(served) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("t")
        await at.shows("2 join tokens, 2 good")
        await at.press("j", "x")
        await at.shows("Revoke token 2 (second)?")
        await at.press("n")
        await at.loses("Revoke token 2")
        assert served.mesh.revoked == set()
        await at.press("x", "y")
        await at.tells("token 2 lets no machine join any more")
        await at.shows("2 join tokens, 1 good")
        await at.press("x")
        await at.tells("token 2 is revoked")
        await at.press("q")
        await at.shows("4 workers")


async def test_without_a_token_it_says_how_to_make_one(served: Daemon) -> None:
    async with screen(served) as at:
        await at.press("w")
        await at.shows("gpu-1")
        await at.press("t")
        await at.shows("No token yet")
        await at.press("x", "n")
        await at.shows("A token lets machines join")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("24h", 86400), ("2w", 1209600)])
def test_a_lifetime_is_written_as_people_do(text: str, seconds: float) -> None:
    assert lifetime(text) == seconds


def test_a_lifetime_without_a_unit_is_asked_for_one() -> None:
    with pytest.raises(ValueError, match="say of what, as in 5m, 5h or 5d"):
        lifetime("5")


@pytest.mark.parametrize("text", ["", "0m", "-1", "1y", "99999d", "1.5h"])
def test_what_is_no_lifetime_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="30m, 24h or 7d"):
        lifetime(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1000001", "x", "\u0663", "9" * 30])
def test_what_is_no_number_of_machines_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="a number of machines"):
        uses(text)

import errno
import json
import os
import re
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from daemon import config
from daemon.protocol import api
from daemon.verbs import doctor, examine, interpreting
from daemon.verbs.examine import Check
from daemon.worker import login
from daemon.worker.station import Standing
from daemon.worker.tunnel import Tunnel
from tests.daemon.api import certificates
from tests.daemon.cli.saying import CONTROL, Said
from tests.running import Place, place

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def by_name(found: str) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(found)["checks"]}


def test_a_daemon_that_is_well_passes_every_check(said: Said, there: Place) -> None:
    said("run", "--model", "rehearsal/tour", "x")  # it runs commands, so the worker is there
    checks = by_name(said("doctor", "--json"))
    assert [name for name, check in checks.items() if check["state"] == "failing"] == []
    assert set(checks) >= {
        *("Python", "installation", "configuration", "data folder", "sockets", "interpreters"),
        *("clock", "daemon", "local worker", "providers", "times"),
    }
    assert "free" in checks["data folder"]["what"]
    to_look_at = [name for name, check in checks.items() if check["state"] == "warning"]
    assert {"providers"} <= set(to_look_at) <= {"providers", "interpreters", "mesh"}, (
        "it may lack node, WireGuard"
    )
    shown = said("doctor")
    assert re.search(r"^ok +local worker +connected, runs bash", shown, re.MULTILINE)
    assert shown.endswith(f"\nall is well, {len(to_look_at)} to look at\n")


def test_what_is_failing_gives_1_and_the_line_that_helps(there: Place) -> None:
    with place() as here:
        done = here.outrider("doctor")
        assert done.returncode == 1
        assert "→ `outrider up` starts it" in done.stdout
        assert "which `outrider up` will make" in done.stdout
        assert not here.data.exists()


def test_the_interpreters_are_those_that_the_worker_takes_and_never_outriders_own() -> None:
    with place() as here:
        own = str(Path(sys.executable).parent)
        here.environ["PATH"] = f"{own}:{here.environ['PATH']}"
        found = by_name(here.outrider("doctor", "--json").stdout)["interpreters"]["what"]
    assert own not in found
    env = login.environment(here.environ)
    for where in (login.python(env), login.node(env)):
        assert where is None or where in found


BASH, PYTHON, NODE = (
    interpreting.Interpreter(name, f"/bin/{name}", runs=True) for name in ("bash", "python", "node")
)
GONE = {name: interpreting.Interpreter(name, "", runs=False) for name in ("bash", "python", "node")}
OLD = interpreting.Interpreter("node", "/bin/node", runs=False)


@pytest.mark.parametrize(
    ("found", "allowed", "state", "words"),
    [
        ((BASH, PYTHON, NODE), None, "ok", "/bin/bash, /bin/python, /bin/node"),
        (
            (BASH, PYTHON, GONE["node"]),
            None,
            "ok",
            "/bin/bash, /bin/python; no node → `apt-get install nodejs`",
        ),
        ((BASH, PYTHON, OLD), None, "ok", "/bin/node does not start or is older than node 18 → "),
        (
            (BASH, GONE["python"], GONE["node"]),
            None,
            "warning",
            "no python, no node → `apt-get install python3 nodejs`",
        ),
        ((BASH, PYTHON, GONE["node"]), ("bash", "node"), "warning", "/bin/bash; no node → "),
        ((BASH, PYTHON, GONE["node"]), ("bash", "python"), "ok", "/bin/bash, /bin/python"),
        ((GONE["bash"], PYTHON, NODE), None, "failing", "no bash on the PATH → install bash"),
        ((GONE["bash"], PYTHON, NODE), ("python",), "ok", "/bin/python"),
        ((BASH, PYTHON, NODE), ("jupyter:ir",), "ok", "jupyter:ir"),
        ((BASH, PYTHON, NODE), (), "ok", "none is allowed"),
    ],
)
def test_an_interpreter_that_is_missing_is_named_with_what_brings_it(
    found: tuple[interpreting.Interpreter, ...], allowed: tuple[str, ...] | None, state: str, words: str
) -> None:
    check = interpreting.runs_code(found, allowed)
    assert check.state == state
    assert words in f"{check.what} → {check.fix}"


def test_a_bad_config_is_failing_and_the_rest_is_looked_at_all_the_same(
    said: Said, there: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = there.home / "bad.toml"
    file.write_text("[daemon]\nsokcet = '\x1b'\n".replace("\x1b", "x"))
    monkeypatch.setenv("OUTRIDER_CONFIG", str(file))
    done = there.outrider("doctor", "--json", OUTRIDER_CONFIG=str(file))
    assert done.returncode == 1
    checks = by_name(done.stdout)
    assert "did you mean 'socket'?" in checks["configuration"]["what"]
    with_socket = there.outrider("--socket", str(there.socket), "doctor", "--json", OUTRIDER_CONFIG=str(file))
    assert by_name(with_socket.stdout)["daemon"]["state"] == "ok"


def test_a_daemon_on_another_socket_is_named(there: Place) -> None:
    done = there.outrider(
        "doctor", "--json", XDG_RUNTIME_DIR="/tmp", OUTRIDER_DATA="", XDG_DATA_HOME="/nowhere"
    )
    assert by_name(done.stdout)["daemon"]["state"] == "failing"
    with place() as here:
        here.ok("up", "--listen", "none", "--socket", str(here.home / "other"))
        try:
            checks = by_name(here.outrider("doctor", "--json").stdout)
            assert re.match(r"process \d+ works on ", checks["daemon"]["what"])
        finally:
            here.ok("down")


def test_a_key_that_only_this_shell_has_is_told_of(there: Place) -> None:
    done = there.outrider("doctor", ANTHROPIC_API_KEY="sk-x")
    assert "ANTHROPIC_API_KEY is set here, and not where the daemon was started" in done.stdout
    assert "sk-x" not in done.stdout


def test_a_daemon_that_says_nothing_is_failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place() as here, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(here.home / "s"))
        deaf.listen()
        monkeypatch.setattr(doctor, "PATIENCE", 0.05)
        found = list(doctor.checks(str(here.home / "s"), "", here.environ))
    (daemon,) = [check for check in found if check.name == "daemon"]
    assert daemon.state == "failing"
    assert "does not answer" in daemon.what


def test_a_daemon_of_another_release_is_a_warning() -> None:
    found = doctor._release("99.0.0\x1b", "1.0.0", "/s")
    assert found.state == "warning"
    assert "it is release 99.0.0␛" in found.what


@pytest.mark.parametrize(
    ("worker", "state", "words"),
    [
        (None, "failing", "it is not connected"),
        (api.WorkerInfo("local", "gone", "it was lost"), "failing", "not connected (it was lost)"),
        (api.WorkerInfo("local", "refused", "another release"), "failing", "refuses it: another release"),
        (api.WorkerInfo("local", "connected", interpreters=("bash", "python3")), "ok", "runs bash, python3"),
        (api.WorkerInfo("gpu", "gone", seen="2020-01-01T00:00:00Z"), "warning", " d ago"),
        (api.WorkerInfo("gpu", "refused", "no"), "warning", "refuses it: no"),
        (api.WorkerInfo("gpu", "connected"), "ok", "runs nothing"),
        (api.WorkerInfo("gpu", "connected", "disk full", "0.9"), "warning", "of release 0.9; disk full"),
    ],
)
def test_workers_are_judged(worker: api.WorkerInfo | None, state: str, words: str) -> None:
    found = list(doctor._workers([worker] if worker else []))[-1]
    assert found.state == state
    assert words in found.what


def test_providers_are_judged() -> None:
    def provider(name: str, kind: str, url: str, key: bool, served: bool, *models: str) -> api.ProviderInfo:
        return api.ProviderInfo(name, kind, url, key, served, tuple(map(api.ModelInfo, models)))

    said = api.Providers(
        "mine/unlisted",
        (
            provider("anthropic", "anthropic", "", True, True),
            provider("other", "anthropic", "", False, True),
            provider("mine", "openai-chat", "http://h", False, True, "mine/m"),
            provider("down", "openai-chat", "http://i", False, True),
            provider("google", "google", "", True, False),
            provider("aws", "bedrock", "", False, True, "aws/m"),
            provider("rehearsal", "rehearsal", "", False, True),
        ),
    )
    found = list(doctor._providers(said, {}, True))
    assert [(check.name, check.state) for check in found] == [
        ("provider anthropic", "ok"),
        ("provider other", "warning"),
        ("provider mine", "ok"),
        ("provider down", "warning"),
        ("provider google", "warning"),
        ("provider aws", "ok"),
    ]
    assert "signed with AWS credentials" in found[-1].what
    rehearsal = api.ProviderInfo(
        "rehearsal", "rehearsal", "", False, True, (api.ModelInfo("rehearsal/tour"),)
    )
    (none,) = doctor._providers(api.Providers("rehearsal/tour", (rehearsal,)), {}, False)
    assert none.state == "warning"
    for default in ("rehearsal/tuor", "google/x", "nobody/x", "x"):
        (bad,) = (
            check
            for check in doctor._providers(
                api.Providers(default, (rehearsal, *said.providers[:-1])), {}, False
            )
            if check.name == "default model"
        )
        assert (bad.state, "[defaults]" in bad.fix) == ("failing", True)


# This machine.


def test_a_file_system_is_found_by_the_longest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    deep = tmp_path / "a b" / "c"
    deep.mkdir(parents=True)
    point = str(tmp_path / "a b").replace(" ", r"\040")
    mounts.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/x rw\nnonsense\n2 1 0:5 / {point} rw - nfs4 h:/x rw\n"
        f"3 1 0:6 / {tmp_path}/a rw - tmpfs t rw\n"
    )
    assert examine.file_system(deep, mounts) == "nfs4"
    assert examine.file_system(tmp_path, mounts) == "ext4"
    assert examine.file_system(tmp_path, tmp_path / "none") == ""


def test_a_data_folder_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def state(kind: str) -> Check:
        monkeypatch.setattr(examine, "file_system", lambda path: kind)
        return examine.folder(tmp_path)

    tmp_path.chmod(0o700)
    assert state("ext4").state == "ok"
    assert state("nfs4").state == "warning"
    assert "over a network" in state("fuse.sshfs").fix
    assert "gone after a restart" in state("tmpfs").fix
    tmp_path.chmod(0o755)
    assert state("ext4").fix == f"chmod 700 {tmp_path}"
    (tmp_path / "file").touch()
    assert examine.folder(tmp_path / "file" / "x").state == "failing"
    assert examine.folder(Path("/proc/nowhere")).state == "failing"
    monkeypatch.setattr(examine, "NONE", 1 << 62)
    assert "make room" in examine.folder(tmp_path).fix
    (tmp_path / "sessions").touch()
    assert examine.folder(tmp_path).what == f"{tmp_path}/sessions cannot be written: Not a directory"


def test_a_full_disk_is_no_matter_of_owner_and_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "fsync", full)
    said = examine.folder(tmp_path)
    assert (said.state, said.fix) == ("failing", "make room")
    assert said.what == f"{tmp_path} cannot be written: No space left on device"


def test_a_socket_that_is_too_long_is_failing(tmp_path: Path) -> None:
    settings = config.load({"HOME": "/h", "OUTRIDER_DATA": "/" + "x" * 100})
    assert examine.sockets(settings).state == "failing"
    assert examine.sockets(config.load({"HOME": "/h"})).state == "ok"


def test_a_clock_before_the_installation_or_records_from_the_future_are_told() -> None:
    assert examine.clock(datetime(2001, 1, 1, tzinfo=UTC)).state == "failing"
    assert examine.clock().state == "ok"
    assert examine.newest("2026-06-01T00:00:10Z", NOW).state == "ok"
    assert examine.newest("2026-06-01T01:00:00Z", NOW).state == "warning"
    assert examine.newest("never\x1b", NOW).state == "warning"


def test_a_certificate_is_judged_by_its_end(tmp_path: Path) -> None:
    files = certificates.make(tmp_path)
    assert examine.certificate(files.cert, datetime(2099, 1, 1, tzinfo=UTC)).state == "failing"
    assert examine.certificate(files.key).state == "failing"
    assert examine.certificate(tmp_path / "none").state == "failing"


def test_packages_that_are_missing_or_too_old_are_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "thing-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: thing\nVersion: 1\nRequires-Dist: click>=1000\nRequires-Dist: click<9000\n"
        "Requires-Dist: no-such-package-at-all\nRequires-Dist: other-one; extra == 'x'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = examine.packages("thing")
    assert found.state == "failing"
    assert re.fullmatch(r"click is \S+, >=1000 is needed; no-such-package-at-all is missing", found.what)
    assert examine.packages("no-such-package-at-all").state == "failing"
    assert examine.packages().state == "ok"


def test_a_key_that_crosses_a_network_in_the_clear_is_told_of() -> None:
    from daemon.verbs.reach import Where

    assert [check.state for check in examine.key_in_the_clear(Where(None, "http://far:1"))] == ["warning"]
    for url in ("https://far", "http://127.0.0.1:1", "http://localhost", "http://[::1]:5"):
        assert list(examine.key_in_the_clear(Where(None, url))) == []


def test_hostile_names_reach_no_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._print([Check("a\x1b[2J", "failing", "b\x1b", "c\x07"), Check("a\nb\r", "ok", "fine")])
    assert not CONTROL.search(capsys.readouterr().out)


HERE = Standing(scratch="/s", name="gpu-1", harness="hub at [fd00::1]:4602", link=7)
MESH = Tunnel(name="gpu-1", harness="hub", address="fd00::2", path="relay")


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (replace(HERE, state="connected", mesh=MESH), "ok", "connected to hub at [fd00::1]:4602, relay"),
        (replace(HERE, state="connected"), "ok", "connected to hub at [fd00::1]:4602"),
        (
            replace(HERE, state="dialing", reason="no answer\x1b"),
            "failing",
            "is not connected to hub at [fd00::1]",
        ),
        (replace(HERE, state="down", mesh=MESH), "failing", "it is not up; its harness is hub at"),
        (replace(HERE, state="down"), "warning", "it is not up"),
        (replace(HERE, state="down", mesh=replace(MESH, removed=True)), "warning", "has removed it"),
        (Standing(scratch="/s", mesh=MESH), "failing", "it is not up; its harness is hub"),
    ],
)
def test_a_worker_of_this_machine_is_looked_at(found: Standing, state: str, words: str) -> None:
    check = doctor._own_worker(found)
    assert (check.state, words in check.what) == (state, True), check
    assert check.what.isprintable()
    assert check.name == ("worker gpu-1" if found.name else "a worker")

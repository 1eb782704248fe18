import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.verbs import complete
from daemon.verbs.tree import outrider
from tests.daemon.cli.saying import CONTROL, Said
from tests.running import Place

SHELLS = ("bash", "zsh", "fish")


def completed(there: Place, *words: str, **environ: str) -> list[str]:
    """What bash offers for the last of `words`."""
    asked = {"_OUTRIDER_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["outrider", *words])}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "daemon.cli"],
        env=there.environ | asked | {"COMP_CWORD": str(len(words))} | environ,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not CONTROL.search(done.stdout.replace("\n", ""))
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed_for_each_shell(said: Said, shell: str) -> None:
    assert f"_OUTRIDER_COMPLETE={shell}_complete" in said("completion", shell)


def test_another_shell_is_wrong_usage(said: Said) -> None:
    assert "'tcsh' is not one of" in said("completion", "tcsh", code=2)


def test_bash_completes_ids_with_the_script(said: Said, there: Place, tmp_path: Path) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    said("post", "-f", id, "\x1b]0;title\x07,\n second line")
    (tmp_path / "script").write_text(said("completion", "bash"))
    program = tmp_path / "outrider"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m daemon.cli "$@"\n')
    program.chmod(0o755)
    code = (
        f". {tmp_path}/script; COMP_WORDS=(outrider info {id[:6]}) COMP_CWORD=2; "
        f'_outrider_completion {program}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", code], env=there.environ, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == f"{id}\n"


def test_verbs_models_workers_and_providers_are_completed(there: Place) -> None:
    id = there.ok("new", "--model", "rehearsal/echo").strip()
    assert completed(there, "re") == ["retry"]
    assert completed(there, "new", "--model", "rehearsal/e") == ["rehearsal/echo"]
    assert completed(there, "workers", "set", id, "") == ["local"]
    assert completed(there, "workers", id[:8]) == [id]
    assert completed(there, "providers", "set", "r") == ["rehearsal"]
    assert completed(there, "providers", "set", "goo") == ["google"], "it can be set up"


def test_no_daemon_completes_nothing_and_says_nothing(there: Place, tmp_path: Path) -> None:
    assert completed(there, "--socket", "/nowhere", "info", "") == []
    assert completed(there, "--url", "nonsense", "info", "") == []
    bad = tmp_path / "bad.toml"
    bad.write_text("[nonsense]\n")
    assert completed(there, "info", "", OUTRIDER_CONFIG=str(bad)) == []


def test_a_daemon_that_says_nothing_is_not_waited_for(there: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "QUICK", 0.05)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(there.home / "deaf"))
        deaf.listen()
        with outrider.make_context("outrider", ["--socket", str(there.home / "deaf"), "ls"]) as context:
            assert complete.ids(context, outrider.params[0], "") == []


def test_help_beside_an_id_is_one_safe_line(said: Said, there: Place) -> None:
    id = said("new", "--model", "rehearsal/echo").strip()
    said("post", "-f", id, "\x1b[2Jtitle\nmore")
    with outrider.make_context("outrider", ["ls"]) as context:
        (item,) = complete.ids(context, outrider.params[0], id)
    assert item.help == "closed  ␛[2Jtitle"
    assert json.loads(said("info", id, "--json"))["status"] == "closed"

import os
import signal
from pathlib import Path

import pytest

from tui import editor


def program(folder: Path, script: str) -> str:
    """A program that is the editor."""
    path = folder / "ed"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


def ran(folder: Path, text: str) -> str:
    """What the editor makes of a file with `text`."""
    file = folder / "text.md"
    file.write_text(text)
    editor.run(file)
    return file.read_text()


def test_a_text_comes_back_as_the_editor_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", " ")
    monkeypatch.setenv("EDITOR", program(tmp_path, 'echo "more é" >>"$1"'))
    assert ran(tmp_path, "half\n") == "half\nmore é\n"


def test_an_editor_that_fails_is_named_with_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", program(tmp_path, "exit 3"))
    with pytest.raises(editor.Failed, match=r"ed ended with exit 3: the message is as it was"):
        ran(tmp_path, "x")
    monkeypatch.setenv("VISUAL", program(tmp_path, "kill -9 $$"))
    with pytest.raises(editor.Failed, match="ed ended with signal 9"):
        ran(tmp_path, "x")
    monkeypatch.setenv("VISUAL", '"vim')
    with pytest.raises(editor.Failed, match='VISUAL="vim: No closing quotation'):
        ran(tmp_path, "x")


def test_what_ctrl_c_sends_ends_the_editor_and_not_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    signals = f"kill -INT {os.getpid()}; kill -QUIT {os.getpid()}; kill -INT $$"
    monkeypatch.setenv("VISUAL", program(tmp_path, signals))
    with pytest.raises(editor.Failed, match="signal 2"):
        ran(tmp_path, "x")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_what_is_to_end_us_ends_the_editor_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setenv("VISUAL", program(tmp_path, f"kill -{int(number)} {os.getpid()}; exec sleep 600"))
    with pytest.raises(editor.Failed, match=f"signal {int(number)}"):
        ran(tmp_path, "x")
    assert signal.getsignal(number) is before

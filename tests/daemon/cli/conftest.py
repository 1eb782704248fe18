"""A daemon for a module's tests, and command lines run in this process that talk to it."""

import os
import re
from collections.abc import Iterator

import pytest

from daemon import cli
from tests.daemon.cli.saying import Said
from tests.running import Place, place


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place with a daemon, for all tests of a module; it has the module's rehearsals, SCRIPTS by their names."""
    with place() as here:
        for name, text in getattr(request.module, "SCRIPTS", {}).items():
            here.script(name, text)
        here.up()
        yield here


@pytest.fixture
def there(running: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The running place as this process's own environment."""
    for name in [name for name in os.environ if re.match("OUTRIDER|XDG|.*_API_KEY|.*_BASE_URL", name)]:
        monkeypatch.delenv(name)
    for name, value in running.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(running.work)
    return running


@pytest.fixture
def said(there: Place, capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command line in this process; returns what it printed, or with another code what it complained of."""

    def run(*arguments: str, code: int = 0) -> str:
        got = cli.invoke(arguments)
        out, err = capsys.readouterr()
        assert got == code, (got, out, err)
        assert "Traceback" not in err
        return out if code == 0 else err

    return run

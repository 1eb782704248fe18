import subprocess
import sys
from pathlib import Path

import pytest

from daemon.verbs.lean import without

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "rich",
    "pygments",
    "textual",
    "PIL",
    "cryptography",
    "prometheus_client",
    "pyroute2",
    "watchfiles",
    "botocore",
)

STARTED = f"""
import sys
from daemon.verbs import service
from daemon.verbs.lean import without
with without("rich"):
    from daemon import compose
compose.log_to(sys.stderr)
print([name for name in {HEAVY!r} if name in sys.modules])
import rich
"""


def test_a_daemon_loads_no_library_that_it_does_not_need_to_start() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_netlink_library_is_the_helpers_alone() -> None:
    """Neither a daemon whose mesh is up nor a worker's link has it."""
    code = "import sys; from mesh import node; from daemon.worker import member; print('pyroute2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_what_is_hidden_cannot_be_imported_and_is_there_again_afterwards() -> None:
    assert "this" not in sys.modules
    with without("this", "json"):
        with pytest.raises(ImportError):
            import this  # noqa: F401
        import json  # loaded before: not hidden

        assert json.loads("1") == 1
    assert "this" not in sys.modules

"""The same joins with the kernel's WireGuard, inside of User-Mode Linux where this machine's own kernel has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mesh.lab import kernel_machine

HERE = Path(__file__).parent
# Each in a machine of its own, as one has one processor.
RUNS = (("test_mesh.py", "test_mesh_users.py"), ("test_mesh_faults.py",), ("test_mesh_fleet.py",))
# What a command says beside a tunnel, and which ways are tried, is the same with every WireGuard; these are not run
# there, where each command takes seconds.
ALIKE = (
    "clock_is_wrong",
    "expired_and_a_revoked",
    "without_a_word",
    "doctor",
    "registry_is_lost",
    "leaves_is_forgotten",
    "no_relay",
)


@pytest.mark.campaign
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("files", RUNS, ids=["joins", "faults", "fleet"])
def test_machines_join_and_stay_by_the_kernels_wireguard(files: tuple[str, ...]) -> None:
    machine = kernel_machine()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n0",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=900",
        "-m",
        "",
        "-k",
        f"not ({' or '.join(ALIKE)})",
    ]
    done = subprocess.run(
        [
            machine,
            "-t",
            "2200",
            "-e",
            "MESH_TEST_BACKEND",
            "--",
            *command,
            *(str(HERE / name) for name in files),
        ],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        env={**os.environ, "MESH_TEST_BACKEND": "kernel"},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout

import sys
from pathlib import Path

import pytest

from mesh import interface
from mesh.parts import Fault
from mesh.wanted import hub_wanted
from tests.mesh.joining import hub_keys

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")


async def test_where_there_can_be_no_mesh_it_is_said_why_and_that_no_try_does_better(tmp_path: Path) -> None:
    assert await interface.examine("off", 51820) == (False, "the mesh is off: mesh.backend is off")
    wanted = hub_wanted((), hub_keys().wireguard, 51820)
    with pytest.raises(Fault, match=r"mesh\.backend is off") as caught:
        async with interface.opening(wanted, tmp_path / "mesh", "off"):
            pass
    assert caught.value.off


async def test_a_folder_that_cannot_be_had_is_a_fault_that_may_pass(tmp_path: Path) -> None:
    (tmp_path / "mesh").write_text("")
    with pytest.raises(Fault, match="cannot be used for the mesh") as caught:
        async with interface.opening(hub_wanted((), hub_keys().wireguard, 51820), tmp_path / "mesh", "auto"):
            pass
    assert not caught.value.off

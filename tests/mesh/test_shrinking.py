"""A way that takes smaller packets than before, without a word: what goes through the tunnel heals by itself."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.lab import Lab
from tests.mesh.star import Star, programs, talking

PIECE = bytes(range(256)) * 1200  # 300 kB: more than any buffer between
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")


@pytest.fixture
def star(tmp_path: Path) -> Iterator[Star]:
    programs()
    with Lab() as lab:
        yield Star(lab, tmp_path)


def shrink(star: Star, name: str, *hooks: str) -> None:
    """Have a machine's network drop large packets of UDP, and say nothing; `hooks`: which way."""
    for hook in hooks:
        star.lab.rules(
            name,
            f"small-{hook}",
            f"type filter hook {hook} priority 0; meta l4proto udp meta length > 1400 drop",
        )


@pytest.mark.parametrize("hook", ["input", "output"])
async def test_a_connection_goes_on_where_its_way_shrinks(star: Star, hook: str) -> None:
    async with talking(star, star.worker("w")) as (_, far, line):
        await line.say(PIECE)
        shrink(star, "w", hook)
        await line.say(PIECE)
        await line.say(PIECE)
        assert far.mtu == 1420

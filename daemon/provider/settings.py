"""Settings that every vendor has under a name of its own, as the params that set them."""

from collections.abc import Mapping
from typing import Any

from daemon.provider.base import Provider
from daemon.provider.rehearsal import Rehearsal


def temperature(provider: Provider, value: float) -> Mapping[str, Any]:
    """The params that set the temperature; none for a provider that has no such thing."""
    if isinstance(provider, Rehearsal):
        return {}
    return {"temperature": value}

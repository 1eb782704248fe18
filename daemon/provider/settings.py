"""Settings that every vendor has under a name of its own, as the params that set them."""

from collections.abc import Mapping
from typing import Any

from daemon.provider.base import Provider
from daemon.provider.bedrock import Bedrock
from daemon.provider.google import Google
from daemon.provider.rehearsal import Rehearsal


def temperature(provider: Provider, value: float) -> Mapping[str, Any]:
    """The params that set the temperature; none for a provider that has no such thing."""
    if isinstance(provider, Rehearsal):
        return {}
    if isinstance(provider, Google):
        return {"generationConfig": {"temperature": value}}
    if isinstance(provider, Bedrock):
        return {"inferenceConfig": {"temperature": value}}
    return {"temperature": value}

"""Merge a session's `params`, an RFC 7396 merge patch, over a request's own fields; and what it may not touch."""

from collections.abc import Collection, Mapping
from typing import Any


def merge(target: Any, patch: Any) -> Any:
    """`target` patched; neither is changed. A null in the patch takes its field out."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def joined(first: Any, then: Any) -> Any:
    """`then` put into the patch `first`, for requests that are to have both; a null stays, and takes its field out."""
    if not isinstance(first, Mapping) or not isinstance(then, Mapping):
        return then
    return {**first, **{name: joined(first.get(name), value) for name, value in then.items()}}


def refused(params: Mapping[str, Any], owned: Collection[str]) -> str:
    """Why `params` cannot be used with a request whose `owned` fields the harness sets, empty when they can."""
    taken = ", ".join(f"params.{name}" for name in sorted(set(params) & set(owned)))
    return f"{taken}: the harness sets this itself; leave it out of params" if taken else ""

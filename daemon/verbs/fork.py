"""The verb that copies a session, and posts to the copy."""

from collections.abc import Sequence

from daemon.client import ApiFailure, Client, Unreachable
from daemon.protocol import api
from daemon.verbs import follow
from daemon.verbs.follow import Look, Shown
from daemon.verbs.reach import OK, VIA, Where, connect, note, say, say_json, session_id


async def fork(place: Where, prefix: str, n: int | None, parts: Sequence[api.Part] | None, json: bool) -> int:
    """Copy a session (with `n` the records before that number), post `parts` to the copy and print its id."""
    async with connect(place) as client:
        source, id = await _copied(client, prefix, n)
        posted = 0
        if parts is not None:
            posted = await _post(client, id, parts)
        begun = (await client.info(id)).from_
    if json:
        at = {"from": source} | ({"n": begun.n} if begun else {})
        say_json({"id": id, **at} | ({"posted": posted} if posted else {}))
    else:
        say(id)
    return OK


async def followed(
    place: Where, prefix: str, n: int | None, parts: Sequence[api.Part], look: Look, shown: Shown
) -> int:
    """The same, and show what comes of the post, to the end of the answer."""
    async with connect(place) as client:
        _, id = await _copied(client, prefix, n)
    note(f"the copy is {id}")
    return await follow.post(place, id, parts, look, shown)


async def _copied(client: Client, prefix: str, n: int | None) -> tuple[str, str]:
    """(source's id, copy's id)."""
    source = await session_id(client, prefix)
    return source, await client.create(api.Create(from_=source, n=n or 0))


async def _post(client: Client, id: str, parts: Sequence[api.Part]) -> int:
    try:
        return await client.post(id, parts, VIA)
    except (ApiFailure, Unreachable):
        note(f"the copy {id} is made, but nothing is posted to it")
        raise

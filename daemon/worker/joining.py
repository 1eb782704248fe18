"""Make this machine a worker of a harness's mesh, and take it out again; what is kept is in the scratch folder."""

import asyncio
import logging
import os
import platform
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from daemon.worker import keeper, smallfiles, station, tunnel
from daemon.worker.tunnel import Tunnel
from mesh import asking, handle, identity, keys, picking, token
from mesh.asking import NotReached, Refused
from mesh.handle import HelperError
from mesh.identity import Membership as Membership
from mesh.identity import PrivateFileError
from mesh.keys import Pair
from mesh.nodes import Facts
from mesh.token import Token as Token
from mesh.token import TokenError

FOLDER: Final = station.MESH

log = logging.getLogger(__name__)
Kind = Literal["wrong", "refused", "unreachable", "failed"]


class JoinError(Exception):
    """This machine is not what it was to become; the message says why, and what to do. `kind`: whose doing it is."""

    def __init__(self, message: str, kind: Kind = "failed") -> None:
        super().__init__(message)
        self.kind = kind


def read(text: str) -> Token:
    """The token of this text. Raises JoinError."""
    try:
        return token.decode(text)
    except TokenError as error:
        raise JoinError(str(error), "wrong") from None


def stored(scratch: Path) -> Membership | None:
    """The mesh that a scratch folder is in, or was removed from. Blocks. Raises JoinError."""
    try:
        return identity.load(scratch / FOLDER)
    except PrivateFileError as error:
        raise JoinError(str(error)) from None


def joined(workers: Path) -> Iterator[tuple[Path, Membership]]:
    """The scratch folders in this one that are in a mesh. Blocks; those that do not read are left out."""
    for path in sorted(workers.iterdir()) if workers.is_dir() else []:
        try:
            if (found := stored(path)) is not None:
                yield path, found
        except JoinError as error:
            log.warning("%s", error)


def folder(workers: Path, asked: Token) -> Path:
    """The scratch folder for the harness of a token, where none is named: the one that is in its mesh, or a new one.

    Blocks.
    """
    for path, membership in joined(workers):
        if membership.fingerprint == asked.fingerprint:
            return path
    return workers / f"harness-{asked.fingerprint.hex()[:8]}"


async def check_machine(backend: str) -> None:
    """Nothing where this machine has what its end of a mesh takes. Raises JoinError."""
    try:
        found = await handle.examine(msgspec.convert(backend, picking.Backend), 0)
    except HelperError as error:
        log.warning("%s", error)  # the interface itself shows it
        return
    if isinstance(found, picking.Off):
        raise JoinError(f"this machine cannot be a worker yet: {found.said}. The token was not used")


async def join(scratch: Path, asked: Token, name: str, release: str, backend: str = "") -> Membership:
    """Be a member of the token's mesh; one that is already is left as it is, and takes no use of the token.

    `name`: the one to ask for, empty for one made of the hostname. `backend`: the machine is checked for it before a
    token is used; empty: it was. Raises JoinError and station.LinkBusy.
    """
    if pid := await asyncio.to_thread(keeper.holder, scratch / station.LOCK):
        raise station.LinkBusy(f"process {pid} is the worker of {scratch} already")
    kept = await asyncio.to_thread(stored, scratch)
    if kept is None:
        await asyncio.to_thread(_check_new, scratch)
    elif kept.fingerprint != asked.fingerprint and not kept.removed:
        raise JoinError(
            f"{scratch} is the folder of a worker of another harness, {kept.answer.harness or 'unnamed'}, where it is "
            f"{kept.answer.name}: give this one a folder of its own with --scratch FOLDER, or leave that mesh first "
            f"with `outrider worker leave --scratch {scratch}`",
            "wrong",
        )
    elif not kept.removed and (found := await _as_it_stands(scratch, kept)) is not None:
        log.info("this machine is in the mesh of %s already, as %s", _harness(found), found.answer.name)
        return found
    if backend not in ("", "off"):  # what its operator turned off by hand is no lack
        await check_machine(backend)
    try:
        if kept is not None and (kept.removed or kept.fingerprint != asked.fingerprint):
            await asyncio.to_thread(_forget, scratch)
        pair = await asyncio.to_thread(_own_key, scratch)
        facts = Facts(socket.gethostname(), platform.system().lower(), platform.machine(), release, name)
        made = await asking.join(asked, facts, pair, os.environ, tell=_tell_again)
        await asyncio.to_thread(identity.save, scratch / FOLDER, made)
    except PrivateFileError as error:
        raise JoinError(str(error)) from None
    except Refused as error:
        raise JoinError(str(error), "refused") from None
    except NotReached as error:
        raise JoinError(
            f"{error}. Is the harness up, and is its join port open to this machine?", "unreachable"
        ) from None
    log.info("joined the mesh of %s as %s, at %s", _harness(made), made.answer.name, made.answer.address)
    return made


def _own_key(scratch: Path) -> Pair:
    try:
        smallfiles.make_folder(scratch)
    except OSError as error:
        raise JoinError(f"{scratch} cannot be made: {error.strerror}: name another with --scratch") from error
    return identity.pair(scratch / FOLDER)


def _forget(scratch: Path) -> None:
    """Be nobody there, and nobody's: what the link said of itself would be taken for a `--connect` worker's.

    Raises PrivateFileError.
    """
    with suppress(OSError):
        (scratch / station.STATE).unlink()
    identity.forget(scratch / FOLDER)


def _check_new(scratch: Path) -> None:
    said = smallfiles.read(scratch / station.STATE, station.State)
    if (
        said is not None and not (scratch / FOLDER / keys.WIREGUARD).exists()
    ):  # else its membership was moved away
        raise JoinError(
            f"{scratch} is the folder of the worker {said.name}, which dials {said.harness}: give this one a folder "
            "of its own with --scratch FOLDER",
            "wrong",
        )


async def _as_it_stands(scratch: Path, kept: Membership) -> Membership | None:
    """The membership as the harness has it now, or as it was where nobody says; None where there is none any more."""
    try:
        pair = await asyncio.to_thread(identity.pair, scratch / FOLDER)
        told, answer, place = await asking.stand(kept, pair, os.environ)
        if answer is None:
            if told.state == "removed":
                await asyncio.to_thread(_forget, scratch)
            return None
        renewed = asking.renewed(kept, answer, place)
        if renewed != kept:
            await asyncio.to_thread(identity.save, scratch / FOLDER, renewed)
        return renewed
    except (Refused, NotReached) as error:
        log.info("going on by what is kept: %s", error)
        return kept


def _tell_again(why: str) -> None:
    log.warning("not joined yet, trying again: %s", why)


def _harness(membership: Membership) -> str:
    return membership.answer.harness or "a harness without a name"


async def leave(scratch: Path, force: bool) -> tuple[Membership, str]:
    """Take this machine out of its mesh: out of the harness's registry, then what is kept here; what ran has ended.

    With `force` also where the harness cannot be told. What it has left, and why that was not told, or empty. Raises
    JoinError.
    """
    kept = await asyncio.to_thread(stored, scratch)
    if kept is None:
        raise JoinError(f"the worker of {scratch} is in no mesh", "wrong")
    untold = ""
    if not kept.removed:
        try:
            pair = await asyncio.to_thread(identity.pair, scratch / FOLDER)
            await asking.stand(kept, pair, os.environ, leave=True)
        except (Refused, NotReached) as error:
            untold = str(error)
            if not force:
                raise JoinError(
                    f"the harness cannot be told, and nothing was changed: {untold}. `outrider worker remove "
                    f"{kept.answer.name}` on the harness puts this machine out; --force leaves without it",
                    "refused" if isinstance(error, Refused) else "unreachable",
                ) from None
        except PrivateFileError as error:
            if not force:
                raise JoinError(f"{error}; --force leaves without telling the harness") from None
            untold = str(error)
    await station.end(scratch)
    try:
        await asyncio.to_thread(_forget, scratch)
    except PrivateFileError as error:
        raise JoinError(str(error)) from None
    return kept, untold


async def look(scratch: Path) -> Tunnel | None:
    """A worker's end of the mesh as it is now; without a link, as far as it is kept; None where it is in no mesh.

    Raises JoinError.
    """
    if (said := await tunnel.ask(scratch)) is not None:
        return said
    kept = await asyncio.to_thread(stored, scratch)
    if kept is None:
        return None
    answer = kept.answer
    return Tunnel(name=answer.name, harness=answer.harness, address=str(answer.address), removed=kept.removed)

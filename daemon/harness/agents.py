"""Find the AGENTS.md files that apply to a session on its workers."""

import asyncio
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

import structlog

from daemon.pool import Cordoned, Pool, Refused, WorkerGone
from daemon.protocol.records import Record, WorkerRef, draft

SCAN_TIME: Final = 10.0  # seconds a worker may take; the first step waits for no more
MAX_SIZE: Final = 64 << 10  # bytes of one file; the rest is left out with a note
MAX_DEPTH: Final = 40  # folders upward
MAX_PLACE: Final = 40  # characters of a folder that a record names: its header has room for hundreds of them
FILE: Final = "AGENTS.md"

log = structlog.get_logger()


def place(ref: WorkerRef) -> str:
    """A worker and the session's folder there as NAME or NAME:FOLDER, a long one by digits of its SHA-256."""
    if len(ref.cwd) > MAX_PLACE:
        return f"{ref.name}:{sha256(ref.cwd.encode('utf-8', 'replace')).hexdigest()[:16]}"
    return f"{ref.name}:{ref.cwd}" if ref.cwd else ref.name


async def scan(
    pool: Pool, refs: Sequence[WorkerRef], given: Collection[bytes] = ()
) -> tuple[list[Record], list[str]]:
    """System records of the files found, outermost folder first, worker by worker; the places that were looked at.

    `given`: SHA-256 of such records' bodies, which are not made again.
    """
    found: dict[str, list[Record]] = {}
    async with asyncio.TaskGroup() as group:
        for ref in refs:
            group.create_task(_bounded(pool, ref, found), name=f"agents.md {ref.name}")
    done = [ref for ref in refs if ref.name in found]
    new = [record for ref in done for record in found[ref.name] if sha256(record.body).digest() not in given]
    return new, [place(ref) for ref in done]


async def _bounded(pool: Pool, ref: WorkerRef, found: dict[str, list[Record]]) -> None:
    try:
        async with asyncio.timeout(SCAN_TIME):
            found[ref.name] = await _worker(pool, ref)
    except (TimeoutError, WorkerGone, Cordoned) as error:
        log.warning("agents.md not read", worker=ref.name, why=str(error) or "it did not answer in time")


async def _worker(pool: Pool, ref: WorkerRef) -> list[Record]:
    """Raises WorkerGone, Cordoned."""
    hello = pool.hello(ref.name)
    if hello is None:
        raise WorkerGone(ref.name, "it has just gone", started=False)
    here, above = await _folder(pool, ref.name, ref.cwd or hello.home or "/")
    folders = [here]
    for parent in (here, *above)[:MAX_DEPTH]:
        if parent != here:
            folders.append(parent)
        if await _exists(pool, ref.name, parent / ".git"):
            break
    else:
        folders = [here]  # in no repository: what lies above is not this work's
    found: list[Record] = []
    for folder in (PurePosixPath(hello.scratch), *reversed(folders)):
        record = await _file(pool, ref.name, folder / FILE)
        if record is not None:
            found.append(record)
    return found


async def _folder(pool: Pool, worker: str, path: str) -> tuple[PurePosixPath, Sequence[PurePosixPath]]:
    """Where a session's folder really is, which its worker knows, and the folders above it, the nearest first."""
    try:
        await pool.read(worker, path, limit=1)
    except Refused as error:
        if error.path:
            real = PurePosixPath(error.path)
            return real, real.parents
    here = PurePosixPath(path)
    if ".." in here.parts:
        return here, ()  # what is above a link and two dots cannot be said here
    return here, here.parents


async def _exists(pool: Pool, worker: str, path: PurePosixPath) -> bool:
    try:
        await pool.read(worker, str(path), limit=1)
    except Refused as error:
        return error.code == "is_directory"
    return True


async def _file(pool: Pool, worker: str, path: PurePosixPath) -> Record | None:
    try:
        content = await pool.read(worker, str(path), limit=MAX_SIZE)
    except Refused:
        return None
    text = content.data.decode("utf-8", "replace").strip()
    if not text:
        return None
    cut = f"\n[cut: {content.size} bytes in all]" if content.size > MAX_SIZE else ""
    return draft(
        "system", f"From {path} on worker {worker}:\n\n{text}{cut}", source="agents.md", worker=worker
    )

"""Find the AGENTS.md files that apply to a session on its workers."""

import asyncio
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

import structlog

from daemon.pool import Cordoned, Pool, Refused, WorkerGone
from daemon.protocol.records import Record, WorkerRef, draft

SCAN_TIME: Final = 10.0  # seconds a worker may take; the first step waits for no more
MAX_SIZE: Final = 64 << 10  # bytes of one file; the rest is left out with a note
MAX_DEPTH: Final = 40  # folders upward
FILE: Final = "AGENTS.md"

log = structlog.get_logger()


async def scan(pool: Pool, refs: Sequence[WorkerRef]) -> tuple[list[Record], list[str]]:
    """System records of the files found, outermost folder first, worker by worker; the workers that were looked at."""
    found: dict[str, list[Record]] = {}
    async with asyncio.TaskGroup() as group:
        for ref in refs:
            group.create_task(_bounded(pool, ref, found), name=f"agents.md {ref.name}")
    looked = [ref.name for ref in refs if ref.name in found]
    return [record for name in looked for record in found[name]], looked


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
    folders = [PurePosixPath(ref.cwd or hello.home or "/")]
    here = folders[0]
    for parent in (here, *here.parents)[:MAX_DEPTH]:
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

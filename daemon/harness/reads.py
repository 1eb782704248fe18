"""Carry out the tool `read`: text by lines, images as images, made smaller where providers take no such large ones."""

import asyncio
from typing import Final

from daemon.harness import shown, sniffing
from daemon.harness.tools import BadCall, Read
from daemon.pool import Content, Pool, Refused
from daemon.protocol import frames
from daemon.protocol.records import Record, WorkerRef, draft
from daemon.provider import fitting
from daemon.provider.images import BadImage

MAX_IMAGE: Final = 20 << 20  # bytes of an image that is brought back
MAX_LINES_READ: Final = 1 << 20  # bytes of lines that are taken, to show those of them that fit a result
SMALLER: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")  # those that can be made smaller


async def carry_out(
    pool: Pool, call: str, read: Read, ref: WorkerRef, takes: tuple[str, ...], *, begun: bool = False
) -> Record:
    """The result of a call. `takes`: media types that the session takes. Raises BadCall, and what the pool raises."""
    head = await pool.read(ref.name, read.path, cwd=ref.cwd, limit=sniffing.HEAD, begun=begun)
    if type := sniffing.image(head.data):
        return await _image(pool, call, read, ref, type, head.size, takes)
    if type := sniffing.other(head.data):
        raise BadCall(_refusal(read.path, f"binary ({type})", head.size))
    content = await _lines(pool, read, ref)
    if b"\0" in content.data:
        kind = "text in UTF-16" if head.data.startswith(shown.UTF16) else "binary (application/octet-stream)"
        raise BadCall(_refusal(read.path, kind, content.size))
    if content.lines == 0 and read.offset > 1:
        text = f"[the file has fewer than {read.offset} lines]"
    elif content.size == 0:
        text = "[the file is empty]"
    else:
        text = shown.lines(content.data, read.offset, content.end)
    return draft("result", text, for_=call, worker=ref.name)


def _refusal(path: str, kind: str, size: int) -> str:
    return (
        f"{path} is {kind}, {size} bytes; `read` shows text in UTF-8, and images. Use `run` to look into it."
    )


async def _lines(pool: Pool, read: Read, ref: WorkerRef) -> Content:
    """The lines that are asked for; fewer where they are so long that a read of them all would be too big."""
    limit = min(read.limit or frames.MAX_LINES, frames.MAX_LINES)
    while True:
        try:
            return await pool.read(
                ref.name,
                read.path,
                cwd=ref.cwd,
                offset=read.offset,
                limit=limit,
                unit="lines",
                max_bytes=MAX_LINES_READ,
                begun=True,
            )
        except Refused as error:
            if error.code != "limit":
                raise
            if limit == 1:
                break
            limit = max(1, limit // 8)
    if read.offset > 1:
        raise BadCall(
            f"Line {read.offset} of {read.path} is over {MAX_LINES_READ} bytes long; use `run`, with `cut -c` for "
            "example, to see a part of it."
        )
    return await pool.read(ref.name, read.path, cwd=ref.cwd, limit=frames.MAX_TAIL + 1, begun=True)


async def _image(
    pool: Pool, call: str, read: Read, ref: WorkerRef, type: str, size: int, takes: tuple[str, ...]
) -> Record:
    what = f"{read.path} is an image ({type}, {size} bytes)"
    if type not in takes:
        images = ", ".join(one for one in takes if one.startswith("image/")) or "no images"
        raise BadCall(f"{what} and this session takes {images}.")
    if size > MAX_IMAGE:
        raise BadCall(f"{what}, over {MAX_IMAGE} bytes. Make a smaller copy of it with `run`.")
    data = (await pool.read(ref.name, read.path, cwd=ref.cwd, max_bytes=MAX_IMAGE, begun=True)).data
    if type in SMALLER:
        try:
            made = await asyncio.to_thread(fitting.fitted, data)
        except BadImage as error:
            raise BadCall(f"{what} that cannot be shown: {error}.") from error
        if made.image.type not in takes:
            raise BadCall(f"{what}, too large to be shown as it is. Make a smaller copy of it with `run`.")
        data, type = made.data, made.image.type
    return draft("result", data, type, for_=call, worker=ref.name)

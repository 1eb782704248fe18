"""Fetch the images that a run has shown, as further records of its result; what does not come is said in a note."""

from typing import Final

from msgspec.structs import replace

from daemon.harness import reads
from daemon.harness.tools import BadCall, Read
from daemon.pool import Cordoned, Output, Pool, Refused, WorkerGone
from daemon.protocol.records import Record, WorkerRef

MAX_SHOWN: Final = 8  # images of one run that come with its result: more would fill a model's context
MAX_BYTES: Final = 20 << 20  # of them together


async def fetch(
    pool: Pool, call: str, worker: str, output: Output, takes: tuple[str, ...]
) -> tuple[Output, list[Record]]:
    """`output` with the notes, and the records. `takes`: media types that the session takes."""
    found: list[Record] = []
    notes = list(output.notes)
    room = MAX_BYTES
    for image in output.images:
        if len(found) == MAX_SHOWN or image.size > room:
            why = f"at most {MAX_SHOWN} images, of {MAX_BYTES} bytes together, come with a result"
        else:
            try:
                read = Read(worker=worker, path=image.path)
                record = await reads.carry_out(pool, call, read, WorkerRef(worker), takes, begun=True)
            except (BadCall, Refused, WorkerGone, Cordoned) as error:
                why = str(error)
            else:
                why = "" if record.header.type.startswith("image/") else "it is no image"
                if not why:
                    room -= len(record.body)
                    found.append(record)
        if why:
            notes.append(f"shown, but not to you: {image.type}, {image.size} bytes, in {image.path} ({why})")
    return replace(output, notes=tuple(notes)), found

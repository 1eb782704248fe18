"""Keep a hub's mesh for as long as a context is open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mesh.hub import Mesh


@asynccontextmanager
async def kept(mesh: Mesh, group: asyncio.TaskGroup) -> AsyncIterator[None]:
    """Keep the mesh in a task of `group` while the context is open; all of it is down afterwards."""
    task = group.create_task(mesh.run(), name="mesh")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        await mesh.close()

"""The routes of the mesh: how it stands, the tokens that let machines join, and workers put out of it."""

from aiohttp import web

from daemon.api import parameters, reading
from daemon.api.gate import Caller
from daemon.api.inflight import InFlight
from daemon.api.needs import Mesh
from daemon.api.routes import Answer, Content, Route, json, reply
from daemon.protocol import api


class Joining:
    """The handlers, over one mesh."""

    def __init__(self, mesh: Mesh, inflight: InFlight) -> None:
        self._mesh = mesh
        self._inflight = inflight

    def routes(self) -> list[Route]:
        """Every route of the mesh; each path stands in the protocol."""
        return [
            Route(
                method="GET",
                path=api.MESH,
                handler=self.mesh,
                what="How the mesh stands: up, and where; or not, and why; or how it would be made.",
                answer=json(api.MeshInfo),
            ),
            Route(
                method="GET",
                path=api.TOKENS,
                handler=self.tokens,
                what="List the join tokens.",
                role="operator",
                answer=json(
                    tuple[api.TokenInfo, ...], what="The tokens, by id, without the tokens themselves."
                ),
                refusals=(507,),
            ),
            Route(
                method="POST",
                path=api.TOKENS,
                handler=self.make_token,
                what="Make a join token. The first one brings the mesh up.",
                role="operator",
                body=Content(api.NewToken),
                answer=json(
                    api.TokenMade, 201, "It is made; the token is shown here alone.", Location="Where it is."
                ),
                refusals=(409, 422, 507),
            ),
            Route(
                method="DELETE",
                path=api.TOKEN,
                handler=self.revoke_token,
                what="Revoke a join token. Machines that have joined by it stay.",
                role="operator",
                parameters=(parameters.TOKEN_ID,),
                answer=Answer(204, what="It lets none join any more."),
                refusals=(507,),
            ),
            Route(
                method="DELETE",
                path=api.WORKER,
                handler=self.remove_worker,
                what="Put a worker out of the mesh for good, at once; its key is refused from now on.",
                role="operator",
                parameters=(parameters.WORKER_NAME,),
                answer=Answer(204, what="It is out."),
                refusals=(409, 507),
            ),
        ]

    async def mesh(self, request: web.Request, caller: Caller) -> web.Response:
        return reply(await self._mesh.examined())

    async def tokens(self, request: web.Request, caller: Caller) -> web.Response:
        return reply(await self._mesh.tokens())

    async def make_token(self, request: web.Request, caller: Caller) -> web.Response:
        new = await reading.decoded(request, api.NewToken)
        made = await self._inflight.run(self._mesh.make_token(new), "join token")
        answer = reply(made, 201)
        answer.headers["Location"] = api.TOKEN.format(id=made.id)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    async def revoke_token(self, request: web.Request, caller: Caller) -> web.Response:
        id = parameters.TOKEN_ID.of(request)
        await self._inflight.run(self._mesh.revoke_token(id), f"revoke token {id}")
        return web.Response(status=204)

    async def remove_worker(self, request: web.Request, caller: Caller) -> web.Response:
        name = parameters.WORKER_NAME.of(request)
        await self._inflight.run(self._mesh.remove_worker(name), f"removal of {name}")
        return web.Response(status=204)

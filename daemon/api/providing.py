"""The routes that try what models are served by: one request to a provider, a look for servers on this machine."""

from aiohttp import web

from daemon.api import parameters, reading
from daemon.api.gate import Caller
from daemon.api.needs import Providers
from daemon.api.routes import Content, Route, json, reply
from daemon.harness.errors import NotFound
from daemon.protocol import api
from daemon.provider.base import ProviderError


class Providing:
    """The handlers, over the providers of one daemon."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers

    def routes(self) -> list[Route]:
        """Every route; each path stands in the protocol."""
        return [
            Route(
                method="POST",
                path=api.PROVIDER_TEST,
                handler=self.test,
                what="Send a provider one small request, as a step would, and say what came of it.",
                role="operator",
                parameters=(parameters.PROVIDER_NAME,),
                body=Content(api.ProviderTest),
                answer=json(api.Tested, what="What it answered, or why it did not and what to do."),
            ),
            Route(
                method="POST",
                path=api.SCAN,
                handler=self.scan,
                what="Look for servers of models at the usual ports of the daemon's machine.",
                role="admin",
                body=Content(api.Scan),
                answer=json(tuple[api.Found, ...], what="Those that answered, by port; nothing is set up."),
            ),
        ]

    async def test(self, request: web.Request, caller: Caller) -> web.Response:
        name = parameters.PROVIDER_NAME.of(request)
        asked = await reading.decoded(request, api.ProviderTest)
        try:
            return reply(await self._providers.test(name, asked.model))
        except ProviderError as error:
            raise NotFound(error.message) from error

    async def scan(self, request: web.Request, caller: Caller) -> web.Response:
        asked = await reading.decoded(request, api.Scan)
        return reply(await self._providers.scan(asked.ports))

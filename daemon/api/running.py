"""The routes of the daemon itself: its release and health, workers, providers, keys, events, metrics and schema."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from daemon.api import parameters, reading
from daemon.api.drain import Drain
from daemon.api.gate import Caller, Gate
from daemon.api.inflight import InFlight
from daemon.api.keys import Keys
from daemon.api.needs import Harness, Mesh, Providers
from daemon.api.routes import Answer, Content, Route, json, reply
from daemon.api.watching import DaemonEvents
from daemon.harness.counts import Counts
from daemon.harness.errors import Conflict, Invalid, NoSpace, Unready
from daemon.ownfile import OwnFileError
from daemon.protocol import api, events
from daemon.protocol.records import Status
from daemon.provider.service import BadSetting, FixedSetting


class Running:
    """The handlers. `schema`: the OpenAPI document, given once all routes are known."""

    def __init__(
        self,
        harness: Harness,
        providers: Providers,
        mesh: Mesh,
        keys: Keys,
        gate: Gate,
        counts: Counts,
        events: DaemonEvents,
        inflight: InFlight,
        drain: Drain,
        version: str,
    ) -> None:
        self._harness = harness
        self._providers = providers
        self._mesh = mesh
        self._keys = keys
        self._gate = gate
        self._counts = counts
        self._events = events
        self._inflight = inflight
        self._drain = drain
        self._version = api.Version(version, api.VERSION)
        self.schema: dict[str, Any] = {}

    def routes(self) -> list[Route]:
        """Every route of the daemon's own; each path stands in the protocol."""
        return [
            Route(
                method="GET",
                path="/",
                handler=self.version,
                what="The daemon's release and the API's version.",
                answer=json(api.Version),
            ),
            Route(
                method="GET",
                path=api.HEALTHZ,
                handler=self.healthz,
                what="Whether the process lives.",
                role=None,
                answer=json(api.Health, what="It lives."),
            ),
            Route(
                method="GET",
                path=api.READYZ,
                handler=self.readyz,
                what="Whether it takes requests that change something.",
                role=None,
                answer=json(api.Health, what="It is ready."),
                refusals=(503,),
            ),
            Route(
                method="GET",
                path=api.ALL_EVENTS,
                handler=self._events.serve,
                what="Follow the daemon: every session as it changes, the workers as they come and go.",
                parameters=(parameters.FIRST_LIMIT,),
                answer=Answer(
                    200,
                    Content(media=(events.MEDIA_TYPE,), what="Events `state`, `session`, `workers`."),
                    "Events, for as long as they are read.",
                ),
                head=False,
            ),
            Route(
                method="GET",
                path=api.WORKERS,
                handler=self.workers,
                what="Every worker: connected, refused (and why) or gone.",
                answer=json(tuple[api.WorkerInfo, ...], what="The workers, by name."),
            ),
            Route(
                method="POST",
                path=api.CORDON,
                handler=self.cordon,
                what="Have a worker take no new calls; what runs there goes on.",
                role="operator",
                parameters=(parameters.WORKER_NAME,),
                answer=Answer(204, what="It takes none."),
                refusals=(507,),
            ),
            Route(
                method="POST",
                path=api.UNCORDON,
                handler=self.uncordon,
                what="Let a worker take calls again.",
                role="operator",
                parameters=(parameters.WORKER_NAME,),
                answer=Answer(204, what="It takes them."),
                refusals=(507,),
            ),
            Route(
                method="GET",
                path=api.PROVIDERS,
                handler=self.providers,
                what="The providers, and the models that sessions can have, as far as they are known.",
                parameters=(parameters.LISTS_WAIT,),
                answer=json(api.Providers),
            ),
            Route(
                method="PUT",
                path=api.PROVIDER,
                handler=self.set_provider,
                what="Set a provider's key, address or kind; it holds for requests that begin from now on.",
                role="admin",
                parameters=(parameters.PROVIDER_NAME,),
                body=Content(api.ProviderSetting),
                answer=json(api.ProviderInfo, what="The provider as it is now."),
                refusals=(409, 422, 507),
            ),
            Route(
                method="GET",
                path=api.KEYS,
                handler=self.keys,
                what="List the API keys.",
                role="admin",
                answer=json(tuple[api.KeyInfo, ...], what="The keys, by name, without the keys themselves."),
            ),
            Route(
                method="POST",
                path=api.KEYS,
                handler=self.make_key,
                what="Make an API key.",
                role="admin",
                body=Content(api.NewKey),
                answer=json(
                    api.KeyMade, 201, "It is made; the key is shown here alone.", Location="Where it is."
                ),
                refusals=(409, 422, 507),
            ),
            Route(
                method="DELETE",
                path=api.KEY,
                handler=self.revoke_key,
                what="Revoke an API key, at once: its open event streams end.",
                role="admin",
                parameters=(parameters.KEY_NAME,),
                answer=Answer(204, what="It is revoked."),
                refusals=(507,),
            ),
            Route(
                method="GET",
                path=api.METRICS,
                handler=self.metrics,
                what="Counts for Prometheus.",
                answer=Answer(200, Content(media=("text/plain",), what="Prometheus text."), "The counts."),
                refusals=(409, 503, 507),
            ),
            Route(
                method="GET",
                path=api.OPENAPI,
                handler=self.openapi,
                what="This description.",
                answer=json(dict[str, Any], what="An OpenAPI 3.1 document."),
            ),
        ]

    async def version(self, request: web.Request, caller: Caller) -> web.Response:
        return reply(self._version)

    async def healthz(self, request: web.Request, caller: Caller) -> web.Response:
        return reply(api.Health("alive"))

    async def readyz(self, request: web.Request, caller: Caller) -> web.Response:
        if self._drain.leaving or not self._harness.ready:
            raise Unready("the daemon is starting or draining")
        return reply(api.Health("ready"))

    async def workers(self, request: web.Request, caller: Caller) -> web.Response:
        return reply(self._harness.workers())

    async def cordon(self, request: web.Request, caller: Caller) -> web.Response:
        return await self._cordon(parameters.WORKER_NAME.of(request), True)

    async def uncordon(self, request: web.Request, caller: Caller) -> web.Response:
        return await self._cordon(parameters.WORKER_NAME.of(request), False)

    async def _cordon(self, name: str, cordoned: bool) -> web.Response:
        await self._inflight.run(self._harness.cordon(name, cordoned), f"cordon of {name}")
        return web.Response(status=204)

    async def providers(self, request: web.Request, caller: Caller) -> web.Response:
        await self._providers.refresh(parameters.LISTS_WAIT.of(request))
        return reply(self._providers.describe())

    async def set_provider(self, request: web.Request, caller: Caller) -> web.Response:
        name = parameters.PROVIDER_NAME.of(request)
        setting = await reading.decoded(request, api.ProviderSetting)
        try:
            return reply(await self._inflight.run(self._providers.set(name, setting), f"provider {name}"))
        except BadSetting as error:
            raise Invalid(str(error)) from error
        except FixedSetting as error:
            raise Conflict(str(error)) from error
        except OwnFileError as error:
            raise NoSpace(f"nothing was changed: {error}") from error

    async def keys(self, request: web.Request, caller: Caller) -> web.Response:
        return reply(self._keys.list())

    async def make_key(self, request: web.Request, caller: Caller) -> web.Response:
        new = await reading.decoded(request, api.NewKey)
        made = await self._inflight.run(self._keys.add(new), f"key {new.name}")
        answer = reply(made, 201)
        answer.headers["Location"] = api.KEY.format(name=made.name)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    async def revoke_key(self, request: web.Request, caller: Caller) -> web.Response:
        name = parameters.KEY_NAME.of(request)
        await self._inflight.run(self._revoke(name), f"revoke key {name}")
        return web.Response(status=204)

    async def _revoke(self, name: str) -> None:
        self._gate.revoke(await self._keys.remove(name))

    async def metrics(self, request: web.Request, caller: Caller) -> web.Response:
        sessions = await self._harness.tally()
        text, media_type = await asyncio.to_thread(_exposition)
        mesh = self._mesh.describe()
        body = text(self._counts, self._version.version, sessions, self._harness.workers(), mesh)
        return web.Response(body=body, headers={"Content-Type": media_type})

    async def openapi(self, request: web.Request, caller: Caller) -> web.Response:
        return reply(self.schema)


def _exposition() -> tuple[
    Callable[[Counts, str, Mapping[Status, int], Iterable[api.WorkerInfo], api.MeshInfo], bytes], str
]:
    """What writes the metrics, and their media type. Its library is loaded by the first who asks for them. Blocks."""
    from daemon.api import metrics

    return metrics.text, metrics.MEDIA_TYPE

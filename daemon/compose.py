"""Build everything and own the root: one daemon on one data folder, from its lock to its last close."""

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TextIO

import structlog
from msgspec import Struct

from daemon import admission, config, cordons, meshed
from daemon import release as own_release
from daemon.admission import Admission, Door, OwnWord
from daemon.agentstable import Agents
from daemon.api import keys, listening, server
from daemon.api.agentserver import Caps
from daemon.api.crowd import Complaints
from daemon.api.keys import Keys
from daemon.api.server import ListenError, Served
from daemon.config import Settings
from daemon.cordons import Cordons
from daemon.definition import folder
from daemon.definition.agent import Agent
from daemon.harness.counts import Counts
from daemon.harness.harness import Harness
from daemon.meshed import Meshed
from daemon.notify import READY, STOPPING, Notifier
from daemon.ownfile import OwnFileError
from daemon.pool import Pool
from daemon.protocol.dialing import LOCAL
from daemon.provider.base import ProviderError
from daemon.provider.http import open_session
from daemon.provider.service import Providers
from daemon.statefile.errors import StateFileError
from daemon.statefile.interface import SessionStore
from daemon.statefile.memory import MemoryStore
from daemon.statefile.store import Store
from daemon.worker import launch

FIRST_WAIT: Final = 0.2  # seconds before the local worker is dialled again; doubled each time
LONGEST_WAIT: Final = 5.0
SWEEP: Final = 10.0  # seconds between two looks for sessions that were idle for too long
LISTING_WAIT: Final = 2.0  # seconds that servers have at the start to say which models they serve

log = structlog.get_logger()


class StartError(Exception):
    """The daemon cannot start here; the message says why and what would do."""


class Ready(Struct, frozen=True):
    """A daemon that is ready: its socket, and each TCP address as HOST:PORT with the port that was picked."""

    socket: Path
    listen: tuple[str, ...]


class Parts(Struct, frozen=True, kw_only=True):
    """What is made before the loop runs, since making it reads files. `tls`: what TCP is served with."""

    settings: Settings
    store: SessionStore
    providers: Providers
    keys: Keys
    tls: ssl.SSLContext | None
    counts: Counts
    cordons: Cordons
    agents: Mapping[str, Agent]
    notifier: Notifier


class _Ending(Exception):
    """A signal asked for the end."""


def release() -> str:
    """This installation's release."""
    return own_release.own()


def make_folder(path: Path) -> None:
    """A folder only its owner can enter, with what is missing above it. Raises StartError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"cannot make the folder {path}: {error.strerror}") from error


def run(
    settings: Settings,
    environ: Mapping[str, str],
    announce: Callable[[Ready], None],
    lent: str = "",
    in_memory: bool = False,
) -> None:
    """Be the daemon until SIGTERM or SIGINT; `announce` is called once, when it is ready. `lent`: a key of operator's
    role for as long as it runs; `in_memory`: no session is on disk.

    Raises StartError, and ConfigError for a provider or a mesh that cannot be used."""
    make_folder(settings.data)
    for warning in settings.warnings:
        log.warning("configuration", what=warning)
    agents = _agents(settings)
    meshed.options(settings.mesh)  # what is wrong there is said before anything is begun
    store: SessionStore = MemoryStore(settings.data) if in_memory else Store(settings.data)
    notifier = Notifier(os.environ)
    try:
        with store.lock():
            parts = Parts(
                settings=settings,
                store=store,
                providers=Providers(
                    settings.data / config.STORED,
                    settings.stored,
                    settings.written,
                    environ,
                    settings.rehearsal,
                    settings.model,
                ),
                keys=Keys(settings.data / keys.FILE, lent=lent),
                tls=None if settings.tls is None else listening.tls(settings.tls.cert, settings.tls.key),
                counts=Counts(),
                cordons=Cordons(settings.data / cordons.FILE),
                agents=agents,
                notifier=notifier,
            )
            asyncio.run(_serve(parts, announce))
    except (StateFileError, OwnFileError, ListenError) as error:
        raise StartError(str(error)) from error
    except ExceptionGroup:
        log.exception("the daemon failed")
        raise


def _agents(settings: Settings) -> Mapping[str, Agent]:
    """The agents' definitions. Of those that were asked for each has to be right; of the usual folder's, one that is
    not is left out. Raises StartError.
    """
    if not settings.agents_given and not all(path.is_dir() for path in settings.agents.files):
        return {}
    found, bad = folder.load_all(settings.agents.files)
    if bad and settings.agents_given:
        raise StartError("\n".join(bad))
    for why in bad:
        log.error("an agent's definition is left out", why=why)
    for agent in found.values():
        for warning in agent.warnings:
            log.warning("agent definition", agent=agent.name, what=warning)
    return found


def _check_models(parts: Parts) -> None:
    """Warn of agents that nothing can be made from for now: their providers may yet be set up."""
    for agent in parts.agents.values():
        try:
            parts.providers.resolve(agent.model or parts.providers.default())
        except ProviderError as error:
            log.warning("agent definition", agent=agent.name, what=f"spec.model: {error}")


async def _serve(parts: Parts, announce: Callable[[Ready], None]) -> None:
    settings, store = parts.settings, parts.store
    version = release()
    ending = asyncio.Event()
    _on_signals(ending)
    asyncio.get_running_loop().set_exception_handler(Complaints())
    pool = Pool(
        release=version,
        grace=settings.grace,
        on_change=lambda: harness.workers_changed(),
        cordons=parts.cordons,
        joined=lambda: mesh.joined(),
    )
    async with AsyncExitStack() as owned:
        owned.push_async_callback(store.close)
        http = await owned.enter_async_context(open_session())
        await owned.enter_async_context(parts.providers.using(http))
        ended: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as root:
                harness = Harness(
                    store=store,
                    pool=pool,
                    models=parts.providers,
                    http=http,
                    release=version,
                    clock=lambda: datetime.now(UTC),
                    group=root,
                    counts=parts.counts,
                    data=settings.data,
                    agents=parts.agents,
                    max_steps=settings.max_steps,
                )
                owned.push_async_callback(harness.close)
                offer = admission.Offer(version, settings.data / admission.FOLDER)

                def door(who: Admission) -> Door:
                    return Door(who, pool, offer, root)

                mesh = Meshed(
                    settings.data, settings.mesh, pool, offer, door, lambda: harness.workers_changed(), root
                )
                async with AsyncExitStack() as listeners:
                    served = await _listen(listeners, parts, harness, mesh, version)
                    await _admit_workers(
                        listeners, settings.data / config.WORKERS, door(OwnWord(mesh.mesh.named))
                    )
                    await listeners.enter_async_context(mesh.kept())
                    root.create_task(_keep_local(pool, settings, version), name="local worker")
                    await parts.providers.begin(LISTING_WAIT)
                    _check_models(parts)
                    await harness.resume()
                    root.create_task(_sweep(harness), name="sweep")
                    await parts.providers.refresh()
                    log.info("ready", socket=str(settings.socket), listen=list(served.tcp), pid=os.getpid())
                    announce(Ready(settings.socket, served.tcp))
                    parts.notifier.say(READY)
                    await ending.wait()
                    parts.notifier.say(STOPPING)
                    await served.drain.leave(settings.agents.drain_delay, settings.agents.shutdown_grace)
                    log.info("ending")
                raise _Ending  # cancels what runs: a step in flight is cut, and goes on at the next start
        except* (_Ending, StartError) as ends:
            ended = ends.exceptions[0]
    if isinstance(ended, StartError):
        raise ended
    log.info("ended")


async def _listen(
    listeners: AsyncExitStack, parts: Parts, harness: Harness, mesh: Meshed, version: str
) -> Served:
    """The API on its socket and addresses. The default address is left out when another daemon has it."""
    settings = parts.settings
    tcp = [str(address) for address in settings.listen]
    serve = partial(
        server.serve,
        harness,
        mesh=mesh,
        providers=parts.providers,
        keys=parts.keys,
        counts=parts.counts,
        version=version,
        socket=settings.socket,
        tls=parts.tls,
        insecure=settings.insecure,
        caps=_caps(settings.agents),
    )
    try:
        return await listeners.enter_async_context(serve(tcp=tcp))
    except ListenError as error:
        if settings.listen_given:
            raise StartError(str(error)) from error
        why = str(error)
    try:
        served = await listeners.enter_async_context(serve())
    except ListenError as error:
        raise StartError(str(error)) from error
    log.warning("going on with the Unix socket alone", why=why)
    return served


def _caps(agents: Agents) -> Caps:
    return Caps(agents.max_concurrent_turns, agents.max_sessions, agents.session_ttl)


async def _sweep(harness: Harness) -> None:
    """Expire what is idle for too long, for ever."""
    while True:
        await harness.sweep()
        await asyncio.sleep(SWEEP)


async def _admit_workers(listeners: AsyncExitStack, path: Path, door: Door) -> None:
    """Let workers of this machine dial. Where they cannot, the daemon goes on without them."""
    try:
        await listeners.enter_async_context(admission.on_unix(path, door))
    except ListenError as error:
        log.warning("no worker but the local one can dial", why=str(error))


async def _keep_local(pool: Pool, settings: Settings, version: str) -> None:
    """Keep the local worker there: started where none runs, dialled again for ever when it is lost."""
    if os.geteuid() == 0:
        log.warning("the local worker runs agents' code as root, since root runs this daemon")
    wait = FIRST_WAIT
    while True:
        try:
            socket = await launch.ensure(settings.scratch, version, settings.worker)
            reader, writer = await asyncio.open_unix_connection(socket)
        except (OSError, launch.LaunchError) as error:
            log.warning("the local worker is not there", why=str(error), again_in=wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
            continue
        await pool.serve(LOCAL, reader, writer)
        log.warning("the local worker's connection ended")
        await asyncio.sleep(FIRST_WAIT)
        wait = FIRST_WAIT


def _on_signals(ending: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT asks for the end, a second one ends us at once."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        ending.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)


def log_to(stream: TextIO) -> None:
    """Log to `stream`, our own lines and the libraries': for eyes on a terminal, as key=value elsewhere."""
    renderer: structlog.typing.Processor
    if stream.isatty():
        renderer = structlog.dev.ConsoleRenderer(
            colors=not os.environ.get("NO_COLOR"), exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper("iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if not stream.isatty():
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)

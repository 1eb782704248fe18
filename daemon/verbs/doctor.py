"""Look at everything that a working Outrider needs, and say of each whether it is well and what to do."""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from daemon import config, release
from daemon.client import ApiFailure, Client
from daemon.config import Settings
from daemon.plain import count, line
from daemon.protocol import api
from daemon.verbs import examine, interpreting
from daemon.verbs.examine import Check, failing, ok, warning
from daemon.verbs.paint import ink
from daemon.verbs.reach import FAILED, OK, VerbError, Where, connect, say, say_json, where
from daemon.verbs.tables import ago, wrapped
from daemon.verbs.worker import standings
from daemon.worker.station import Standing

PATIENCE: Final = 10.0  # seconds that a daemon has to answer each question
LOCAL: Final = "local"  # the daemon's own worker
NAME: Final = 100  # characters of what a check is of
START: Final = "`{} up` starts it"
_STYLES: Final = {"ok": "good", "warning": "note", "failing": "failed"}


def doctor(socket: str, url: str, environ: Mapping[str, str], json: bool) -> int:
    """Run every check and print what each found; 1 when one is failing."""
    found = list(checks(socket, url, environ))
    bad = [check for check in found if check.state == "failing"]
    if json:
        say_json({"ok": not bad, "checks": found})
    else:
        _print(found)
    return FAILED if bad else OK


def checks(socket: str, url: str, environ: Mapping[str, str]) -> Iterator[Check]:
    """Every check, those on this machine first. The daemon's own folder is looked at where it is on this machine."""
    yield examine.python()
    yield examine.packages()
    settings: Settings | None = None
    has_workers = False
    try:
        settings = config.load(environ)
        yield from examine.configuration(settings, environ)
    except config.ConfigError as error:
        yield failing("configuration", str(error), "correct the file; nothing starts before")
    try:
        place = where(socket, url, environ)
    except (config.ConfigError, VerbError) as error:
        if settings is not None:
            yield failing("socket", str(error))
        return
    if place.here and settings is not None:
        yield examine.folder(settings.data)
        yield examine.sockets(settings)
        yield interpreting.interpreters(settings.worker, environ)
        for standing in standings(environ):
            has_workers = True
            yield _own_worker(standing)
    elif not place.here:
        yield from examine.key_in_the_clear(place)
    yield examine.clock()
    ours = release.own()
    for check in asyncio.run(_asked(place, settings, environ, ours)):
        if (
            has_workers
            and check.fix == START.format(place.command)
            and settings
            and not settings.data.exists()
        ):
            yield ok("daemon", "none on this machine, which has workers of others'")
        else:
            yield check


async def _asked(
    place: Where, settings: Settings | None, environ: Mapping[str, str], ours: str
) -> list[Check]:
    """What the daemon says."""
    found: list[Check] = []
    target = str(place.socket) if place.here else place.url
    try:
        async with asyncio.timeout(PATIENCE), connect(place) as client:
            found.append(_release((await client.version()).version, ours, target))
            found += _workers(await client.workers())
            found += await _mesh_of(client)
            found += _providers((await client.providers()), environ, place.here)
            found += _future(await client.list(limit=1))
    except VerbError as error:
        found.append(await asyncio.to_thread(_unreachable, str(error), place, settings))
    except ApiFailure as error:
        fix = (
            "set OUTRIDER_KEY to one that `outrider key new` made there" if error.status in (401, 403) else ""
        )
        found.append(failing("daemon", f"{target} refuses: {line(error.message, 500)}", fix))
    except TimeoutError:
        fix = "its log says more: daemon.log in the data folder" if place.here else ""
        found.append(failing("daemon", f"{target} does not answer within {PATIENCE:.0f} s", fix))
    return found


def _unreachable(why: str, place: Where, settings: Settings | None) -> Check:
    if place.here and settings is not None and place.socket == settings.socket:
        pid = examine.holder(settings.data)
        if pid:
            return failing(
                "daemon",
                f"process {pid} works on {settings.data} and does not listen on {place.socket}",
                "it is just starting, or listens elsewhere (`--socket`); else `outrider down` ends it",
            )
        return failing("daemon", f"none runs on {settings.data}", START.format(place.command))
    fix = "" if place.here else "see there whether it runs and listens, and that no firewall is in between"
    return failing("daemon", why, fix)


def _release(theirs: str, ours: str, target: str) -> Check:
    if theirs != ours:
        return warning(
            "daemon",
            f"{target} answers; it is release {line(theirs)}, this command line is {ours}",
            "`outrider down`, then `outrider up`, starts the one that is installed here",
        )
    return ok("daemon", f"{target} answers, release {ours}")


def _own_worker(found: Standing) -> Check:
    """A worker that this user has here, of whatever daemon."""
    name = f"worker {line(found.name)}" if found.name else "a worker"
    where = line(found.harness or (found.mesh.harness if found.mesh else "") or "its daemon")
    start = f"`outrider worker --scratch {line(found.scratch)}` starts it"
    if found.mesh is not None and found.mesh.removed:
        return warning(
            name, f"{where} has removed it", "`outrider worker --join TOKEN`, or `leave --purge` for good"
        )
    if found.state == "down":
        say = failing if found.mesh is not None else warning
        return say(name, f"it is not up; its harness is {where}", start)
    if found.state == "dialing":
        return failing(name, f"it is not connected to {where}: {line(found.reason, 500)}")
    path = f", {line(found.mesh.path)}" if found.mesh is not None and found.mesh.path else ""
    return ok(name, f"connected to {where}{path}")


def _workers(workers: Sequence[api.WorkerInfo]) -> Iterator[Check]:
    local = next((worker for worker in workers if worker.name == LOCAL), None)
    if local is None or local.state == "gone":
        why = f" ({line(local.reason)})" if local is not None and local.reason else ""
        yield failing(
            "local worker",
            f"it is not connected{why}",
            "the daemon starts it anew by itself; where it does not, daemon.log in the data folder and keeper.log "
            "in the worker's scratch say why",
        )
    elif local.state == "refused":
        yield failing(
            "local worker",
            f"the daemon refuses it: {line(local.reason)}",
            "`outrider down`, then `outrider up`",
        )
    elif local.cordoned:
        yield warning(
            "local worker",
            "connected, and cordoned: it takes no new calls",
            "`outrider worker uncordon local`",
        )
    else:
        yield ok("local worker", f"connected, runs {', '.join(local.interpreters) or 'nothing'}")
    for worker in workers:
        if worker.name == LOCAL:
            continue
        if worker.state == "refused":
            yield warning(f"worker {worker.name}", f"the daemon refuses it: {line(worker.reason)}")
        elif worker.state == "gone":
            yield warning(
                f"worker {worker.name}",
                f"it is gone; last seen {ago(worker.seen) if worker.seen else 'never'}",
            )
        elif worker.cordoned:
            yield warning(f"worker {worker.name}", "connected, and cordoned: it takes no new calls")
        elif worker.reason:
            yield warning(
                f"worker {worker.name}",
                f"connected, of release {line(worker.release)}; {line(worker.reason)}",
            )
        else:
            yield ok(
                f"worker {worker.name}", f"connected, runs {', '.join(worker.interpreters) or 'nothing'}"
            )


async def _mesh_of(client: Client) -> list[Check]:
    try:
        return [_mesh(await client.mesh())]
    except ApiFailure as error:
        if error.status == 404:  # a daemon of an earlier release, which is said above
            return []
        raise


def _mesh(mesh: api.MeshInfo) -> Check:
    who = f"harness {line(mesh.name)}"
    if mesh.state == "off":
        return ok("mesh", f"{who}: off, by `backend` in [mesh] of outrider.toml")
    if mesh.state == "idle" and mesh.why:
        return warning("mesh", f"{who}: no other machine can join: {line(mesh.why, 500)}")
    if mesh.state == "idle":
        how = f"; it would be {line(mesh.how, 500)}" if mesh.how else ""
        return ok("mesh", f"{who}: not in use, and no port of it is open; `outrider token new` opens it{how}")
    if mesh.state == "starting":
        return warning("mesh", f"{who}: it is coming up")
    if mesh.state == "failing":
        return failing(
            "mesh",
            f"{who}: {line(mesh.why, 500)}",
            "correct that: the daemon tries again by itself, each minute",
        )
    if mesh.why:
        return warning("mesh", f"{who}: up, and {line(mesh.why, 500)}")
    ports = f"UDP {mesh.port}, joining at {', '.join(mesh.join)}, control TCP {mesh.control} inside"
    return ok("mesh", f"{who}: up, {line(mesh.how, 500)}; {ports}; {count(mesh.workers, 'worker')} joined")


def _providers(said: api.Providers, environ: Mapping[str, str], here: bool) -> Iterator[Check]:
    real = [provider for provider in said.providers if provider.kind != "rehearsal"]
    usable = [
        provider
        for provider in real
        if provider.served and (provider.has_key or provider.url or provider.kind in api.SIGNED)
    ]
    for provider in real:
        if provider.served or f"{provider.name}-chat" not in {other.name for other in usable}:
            yield _provider(provider)
    if not usable:
        yield warning(
            "providers",
            "none that can answer: only rehearsals play",
            "`outrider providers set anthropic` sets a key",
        )
    if said.default and not _answers(said):
        yield failing(
            "default model",
            f"{line(said.default)} is not there: a session that names no model is refused",
            "correct `model` in [defaults] of outrider.toml, then `outrider down` and `outrider up`",
        )
    if here:
        yield from examine.keys_of_the_environment(
            {provider.name: provider.has_key for provider in real}, environ
        )


def _answers(said: api.Providers) -> bool:
    """Whether there can be a model such as the default; of a server of one's own any name may be right."""
    name = said.default.partition("/")[0]
    return any(
        provider.name == name
        and provider.served
        and (provider.kind != "rehearsal" or said.default in {model.name for model in provider.models})
        for provider in said.providers
    )


def _provider(provider: api.ProviderInfo) -> Check:
    name = f"provider {provider.name}"
    if not provider.served:
        return warning(name, f"this release does not speak {line(provider.kind)}")
    if provider.problem:
        return warning(name, line(provider.problem, 500))
    if provider.has_key:
        return ok(name, f"has a key, {count(len(provider.models), 'model')} known")
    if provider.kind in api.SIGNED:
        how = f"`outrider providers test {provider.name}` tries it"
        return ok(name, f"has no key: its requests are signed with AWS credentials; {how}")
    if not provider.url:
        return warning(name, "has no key", f"`outrider providers set {provider.name}` sets one")
    if not provider.models:
        fix = "start it, or name its models in outrider.toml"
        return warning(name, f"{line(provider.url)} lists no models; it may not be there", fix)
    return ok(name, f"has no key and may need none: {line(provider.url)}")


def _future(newest: Sequence[api.Info]) -> Iterable[Check]:
    return [examine.newest(info.updated) for info in newest]


def _print(found: Sequence[Check]) -> None:
    pen = ink(sys.stdout)
    names = [line(check.name, NAME) for check in found]
    widest = max(map(len, names))
    for name, check in zip(names, found, strict=True):
        before = f"{check.state:<7}  {name:<{widest}}  "
        rows = wrapped(line(check.what, 1000), len(before))
        say(f"{pen(f'{check.state:<7}', _STYLES[check.state])}  {name:<{widest}}  {rows[0]}")
        for row in rows[1:]:
            say(" " * len(before) + row)
        for row in wrapped(f"→ {line(check.fix, 1000)}", len(before)) if check.fix else ():
            say(" " * len(before) + pen(row, "note"))
    bad, odd = (sum(check.state == state for check in found) for state in ("failing", "warning"))
    if bad:
        say(f"\n{bad} failing, {odd} to look at")
    else:
        say(f"\nall is well{f', {odd} to look at' if odd else ''}")

"""Read outrider.toml and the environment into one frozen value."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from daemon import agentstable, allowance, meshtable, providertable, strict, tuitable
from daemon.agentstable import Agents, AgentsTable
from daemon.allowance import Allowance
from daemon.meshtable import MeshTable
from daemon.providertable import KEY_FIELDS as KEY_FIELDS
from daemon.providertable import KEYS as KEYS
from daemon.providertable import KINDS as KINDS
from daemon.providertable import ModelEntry as ModelEntry
from daemon.providertable import PriceEntry as PriceEntry
from daemon.providertable import ProviderEntry as ProviderEntry
from daemon.providertable import providers as providers
from daemon.strict import ConfigError as ConfigError
from daemon.tuitable import TuiTable

SYSTEM_FILE: Final = Path("/etc/outrider/outrider.toml")
STORED: Final = "providers.toml"  # in the data folder: providers that were set while a daemon ran
AGENTS: Final = "agents"  # beside the user's outrider.toml: the folder of agents' definitions
WORKERS: Final = "workers.sock"  # in the data folder: where workers of this machine dial
LISTEN: Final = ("127.0.0.1:4600",)
GRACE: Final = 600.0  # seconds that a call waits for its worker to dial again
SOCKET_LIMIT: Final = 107  # bytes of a Unix socket's path that the kernel takes


class Address(Struct, frozen=True):
    """A TCP address to listen on; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Tls(Struct, frozen=True):
    """`[tls]`: PEM files, the certificate with its chain and its key."""

    cert: Path
    key: Path


class Settings(Struct, frozen=True, kw_only=True):
    """All that is configured. `listen_given` is False where `listen` is only the default.

    `model` is the default of new sessions, empty when none is named. `stored` and `written` are what `providers` is
    made of: the data folder's own tables and those of outrider.toml, which go first. `insecure`: addresses that are
    not loopback may go without TLS. `grace`: seconds that a call waits for a worker that is gone. `worker`: what the
    local worker allows. `mesh`: how other machines join. `tui`: the terminal UI's theme and keys. `agents`: the
    declared ones and the surface that serves them; `agents_given`: where they are was said. `max_steps`: of native
    sessions at once, 0 for any number. `warnings`: lines for the operator.
    """

    data: Path
    scratch: Path
    socket: Path
    listen: tuple[Address, ...]
    listen_given: bool
    model: str
    tls: Tls | None
    insecure: bool
    grace: float
    worker: Allowance
    mesh: MeshTable
    tui: TuiTable
    agents: Agents
    agents_given: bool
    max_steps: int
    providers: Mapping[str, ProviderEntry]
    stored: Mapping[str, Any]
    written: Mapping[str, Any]
    rehearsal: Path
    files: tuple[Path, ...]
    warnings: tuple[str, ...]


class _Defaults(Struct, frozen=True, forbid_unknown_fields=True):
    model: str = ""


class _Daemon(Struct, frozen=True, forbid_unknown_fields=True):
    listen: tuple[str, ...] | UnsetType = UNSET
    socket: str = ""
    grace: Annotated[float, Meta(ge=0)] = GRACE
    max_steps: Annotated[int, Meta(ge=0)] = 0


class _Tls(Struct, frozen=True, forbid_unknown_fields=True):
    cert: str = ""
    key: str = ""


class _Rehearsal(Struct, frozen=True, forbid_unknown_fields=True):
    folder: str = ""


_SECTIONS: Final[Mapping[str, type[Struct]]] = {
    "defaults": _Defaults,
    "daemon": _Daemon,
    "tls": _Tls,
    "rehearsal": _Rehearsal,
    "worker": Allowance,
    "mesh": MeshTable,
    "tui": TuiTable,
    "agents": AgentsTable,
}


def folders(environ: Mapping[str, str], data: str = "") -> tuple[Path, Path, bool]:
    """The data folder, its worker's scratch, and whether it is the user's usual one; no file is read for it."""
    home = Path(environ.get("HOME") or Path.home())
    named = data or environ.get("OUTRIDER_DATA", "")
    usual = _xdg(environ, "XDG_DATA_HOME", home / ".local/share") / "outrider"
    folder = Path(os.path.abspath((Path(named) if named else usual).expanduser()))
    if folder != usual:
        return folder, folder / "worker", False
    return folder, _xdg(environ, "XDG_STATE_HOME", home / ".local/state") / "outrider/worker", True


def load(
    environ: Mapping[str, str],
    *,
    data: str = "",
    socket: str = "",
    listen: tuple[str, ...] | None = None,
    insecure: bool = False,
    system_file: Path = SYSTEM_FILE,
) -> Settings:
    """What the files and `environ` say, under what the command line gave. Raises ConfigError."""
    folder, scratch, own = folders(environ, data)
    warnings: list[str] = []
    user_file = _user_file(environ)
    tables, files = _tables_of((system_file, user_file), warnings)
    defaults = msgspec.convert(tables.get("defaults", {}), _Defaults)
    daemon = msgspec.convert(tables.get("daemon", {}), _Daemon)
    rehearsal = msgspec.convert(tables.get("rehearsal", {}), _Rehearsal).folder
    in_file = None if daemon.listen is UNSET else daemon.listen
    chosen = in_file if listen is None else listen
    stored, written = _stored(folder / STORED, warnings), tables.get("providers", {})
    return Settings(
        data=folder,
        scratch=scratch,
        socket=_socket(environ, socket or daemon.socket, folder, own),
        listen=tuple(address(text) for text in (LISTEN if chosen is None else chosen)),
        listen_given=chosen is not None,
        model=defaults.model,
        tls=_tls(msgspec.convert(tables.get("tls", {}), _Tls)),
        insecure=insecure,
        grace=daemon.grace,
        worker=_allowance(tables),
        mesh=_mesh(tables),
        tui=_tui(tables),
        agents=_agents(tables, user_file.parent / AGENTS),
        agents_given=bool(tables.get("agents", {}).get("files")),
        max_steps=daemon.max_steps,
        providers=providers(stored, written, environ, warnings),
        stored=stored,
        written=written,
        rehearsal=Path(rehearsal).expanduser() if rehearsal else user_file.parent / "rehearsal",
        files=files,
        warnings=tuple(warnings),
    )


def worker(environ: Mapping[str, str], file: str = "", *, system_file: Path = SYSTEM_FILE) -> Allowance:
    """What a worker allows that is no daemon's own: `[worker]` of `file`, else of the files that a daemon reads.

    Raises ConfigError.
    """
    return _allowance(_worker_tables(environ, file, system_file))


def worker_mesh(
    environ: Mapping[str, str], file: str = "", *, system_file: Path = SYSTEM_FILE
) -> tuple[str, int]:
    """What a worker's own machine says of its end of a mesh: the `backend` and `mtu` of `[mesh]` in the same files.

    0 bytes: nothing. Raises ConfigError.
    """
    tables = _worker_tables(environ, file, system_file)
    mesh = _mesh(tables)
    return mesh.backend, mesh.mtu if "mtu" in tables.get("mesh", {}) else 0


def _worker_tables(environ: Mapping[str, str], file: str, system_file: Path) -> Mapping[str, Any]:
    if file and not Path(file).expanduser().exists():
        raise ConfigError(f"--config names {file}, which is not there")
    files = (Path(file).expanduser(),) if file else (system_file, _user_file(environ))
    return _tables_of(files, [])[0]


def workers_folder(environ: Mapping[str, str]) -> Path:
    """Where the workers that are started by hand have their scratch folders, one a name."""
    home = Path(environ.get("HOME") or Path.home())
    return _xdg(environ, "XDG_STATE_HOME", home / ".local/state") / "outrider/workers"


def tui_folder(environ: Mapping[str, str]) -> Path:
    """Where the terminal UI keeps drafts and what was not sent."""
    home = Path(environ.get("HOME") or Path.home())
    return _xdg(environ, "XDG_STATE_HOME", home / ".local/state") / "outrider/tui"


def themes_folder(environ: Mapping[str, str]) -> Path:
    """Where a person's own themes of the terminal UI are: beside outrider.toml."""
    return _user_file(environ).parent / "themes"


def address(text: str) -> Address:
    """`HOST:PORT`, with an IPv6 host in brackets. Raises ConfigError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/\s]+)):(\d{1,5})", text.strip())
    if match is None or int(match[3]) > 65535:
        raise ConfigError(
            f"listen: {text!r} is not an address; write HOST:PORT, as in 127.0.0.1:4600 or [::1]:0"
        )
    return Address(match[1] or match[2], int(match[3]))


def check_socket(path: Path) -> Path:
    """`path`, when a Unix socket can be there. Raises ConfigError."""
    if (length := len(os.fsencode(path))) > SOCKET_LIMIT:
        raise ConfigError(
            f"the path of the Unix socket is {length} bytes long, the system takes {SOCKET_LIMIT}: {path}; "
            "name a shorter one with --socket, or with socket in [daemon] of outrider.toml"
        )
    return path


def _socket(environ: Mapping[str, str], given: str, data: Path, own: bool) -> Path:
    if given:
        return Path(os.path.abspath(Path(given).expanduser()))
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if own and os.path.isabs(runtime):  # another data folder has its own socket: two daemons, two sockets
        return Path(runtime) / "outrider/api.sock"
    return data / "api.sock"


def _xdg(environ: Mapping[str, str], name: str, default: Path) -> Path:
    value = environ.get(name, "")
    return Path(value) if os.path.isabs(value) else default  # the specification: a relative one is ignored


def _user_file(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HOME") or Path.home())
    file = _xdg(environ, "XDG_CONFIG_HOME", home / ".config") / "outrider/outrider.toml"
    if given := environ.get("OUTRIDER_CONFIG", ""):
        file = Path(given).expanduser()
        if not file.exists():
            raise ConfigError(f"OUTRIDER_CONFIG names {file}, which is not there")
    return file


def _tables_of(candidates: tuple[Path, ...], warnings: list[str]) -> tuple[dict[str, Any], tuple[Path, ...]]:
    """The tables of those files that are there, a later one's over an earlier one's; and which are there."""
    tables: dict[str, Any] = {}
    files = []
    for file in candidates:
        if (table := strict.read(file, warnings)) is not None:
            _check(table, file)
            tables = strict.merge(tables, table)
            files.append(file)
    return tables, tuple(files)


def _allowance(tables: Mapping[str, Any]) -> Allowance:
    try:
        return allowance.checked(msgspec.convert(tables.get("worker", {}), Allowance))
    except allowance.AllowanceError as error:
        raise ConfigError(str(error)) from error


def _mesh(tables: Mapping[str, Any]) -> MeshTable:
    try:
        return meshtable.checked(msgspec.convert(tables.get("mesh", {}), MeshTable))
    except meshtable.MeshTableError as error:
        raise ConfigError(str(error)) from error


def _tui(tables: Mapping[str, Any]) -> TuiTable:
    try:
        return tuitable.checked(msgspec.convert(tables.get("tui", {}), TuiTable))
    except tuitable.TuiTableError as error:
        raise ConfigError(str(error)) from error


def _agents(tables: Mapping[str, Any], folder: Path) -> Agents:
    try:
        return agentstable.checked(msgspec.convert(tables.get("agents", {}), AgentsTable), folder)
    except agentstable.AgentsTableError as error:
        raise ConfigError(str(error)) from error


def _check(table: Mapping[str, Any], file: Path) -> None:
    """Every key of the file is one we know and its value of the right type; ConfigError names what is not."""
    for name, value in table.items():
        if name == "providers":
            providertable.check(value, file)
        elif section := _SECTIONS.get(name):
            strict.convert(strict.table(value, name, file), section, name, file)
        else:
            known = [*_SECTIONS, "providers"]
            raise ConfigError(
                f"{file}: there is no {name!r}{strict.nearest(name, known)}; there are {', '.join(known)}"
            )


def _stored(file: Path, warnings: list[str]) -> Mapping[str, Any]:
    """The tables of the data folder's own file. Raises ConfigError."""
    table = strict.read(file, warnings) or {}
    for name in table:
        if name != "providers":
            raise ConfigError(f"{file}: it holds [providers.NAME] alone; {name!r} belongs into outrider.toml")
    _check(table, file)
    found: Mapping[str, Any] = table.get("providers", {})
    return found


def _tls(given: _Tls) -> Tls | None:
    if not given.cert and not given.key:
        return None
    files = {"cert": Path(given.cert).expanduser(), "key": Path(given.key).expanduser()}
    for name, path in files.items():
        if not path.is_absolute():
            raise ConfigError(f"tls.{name}: write a path from the root on; cert and key belong together")
    return Tls(**files)

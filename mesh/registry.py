"""The nodes of a mesh and the tokens that let machines join it, in one SQLite file. One process opens it."""

import math
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from mesh import private, tables
from mesh.nodes import Facts, Grant, Node, Refusal
from mesh.private import PrivateFileError

FILE: Final = "mesh.db"  # in the data folder
LIFETIME: Final = 24 * 3600.0  # seconds that a token is good for: time to start a machine, not to forget it
MOST_USES: Final = 1_000_000  # of one token: a fleet's, and far from what SQLite counts to
LONGEST_LABEL: Final = 200  # characters of a token's name


class RegistryError(Exception):
    """The registry cannot be read or written; the message names the file and the fix. Nothing was changed."""


class Registry:
    """One file. Each change is one transaction, on disk when the call returns. May be used from any thread; blocks.

    All methods raise RegistryError.
    """

    def __init__(
        self,
        path: Path,
        hub: bytes,
        now: Callable[[], float],
        taken: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Open the registry of the harness with this WireGuard public key, made where there is none.

        `now`: seconds since the epoch. `taken`: names that no node gets, beside those of other nodes.
        """
        self._path = path
        self._taken = taken
        self._now = now
        self._lock = threading.Lock()
        try:
            self._check(hub)
        except PrivateFileError as error:
            raise RegistryError(str(error)) from error
        except sqlite3.Error as error:
            raise self._told(error) from error
        try:
            self._db = tables.connect(path)
            self._begin(hub)
        except sqlite3.Error as error:
            self.close()
            raise self._told(error) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another process open it. What is called afterwards raises RegistryError."""
        with self._lock:
            if hasattr(self, "_db"):
                self._db.close()

    # Nodes

    def nodes(self, *, removed: bool = False) -> tuple[Node, ...]:
        """All nodes by number; with `removed`, those as well that were removed."""
        rows = self._read("SELECT * FROM nodes WHERE removed IS NULL OR ? ORDER BY number", removed)
        return tuple(map(tables.node, rows))

    def node(self, number: int) -> Node | None:
        """The node with this number; None where there is none, or none any more."""
        rows = self._read("SELECT * FROM nodes WHERE number = ? AND removed IS NULL", number)
        return tables.node(rows[0]) if rows else None

    def named(self, name: str) -> Node | None:
        """The node with this name now."""
        rows = self._read("SELECT * FROM nodes WHERE name = ? AND removed IS NULL", name)
        return tables.node(rows[0]) if rows else None

    def keyed(self, key: bytes) -> Node | None:
        """The node with this WireGuard key, also one that was removed."""
        rows = self._read("SELECT * FROM nodes WHERE key = ?", key)
        return tables.node(rows[0]) if rows else None

    def remove(self, number: int) -> bool:
        """Free the node's name and refuse its key from now on; False where it is no node."""
        with self._change() as db:
            return bool(
                db.execute(
                    "UPDATE nodes SET removed = ?, preshared = x'' WHERE number = ? AND removed IS NULL",
                    (self._now(), number),
                ).rowcount
            )

    def note(self, quiet: Mapping[int, float | None]) -> None:
        """Keep since when nodes are quiet, None for those that are heard of."""
        if quiet:
            with self._change() as db:
                db.executemany(
                    "UPDATE nodes SET quiet = ? WHERE number = ?", [(at, n) for n, at in quiet.items()]
                )

    # Tokens

    def grants(self) -> tuple[Grant, ...]:
        """All tokens by id, also those that are of no use any more."""
        return tuple(map(tables.grant, self._read("SELECT * FROM tokens ORDER BY id")))

    def grant(
        self,
        hashed: bytes,
        *,
        label: str = "",
        uses: int = 1,
        lifetime: float = LIFETIME,
        ephemeral: bool = False,
    ) -> Grant:
        """Let `uses` machines join with the secret that is hashed so, for `lifetime` seconds.

        Raises ValueError, whose message names what cannot be.
        """
        if not 1 <= uses <= MOST_USES:
            raise ValueError(f"uses: from 1 to {MOST_USES}, not {uses}")
        if not (lifetime > 0 and math.isfinite(lifetime)):
            raise ValueError(f"expires: more than 0 seconds from now, not {lifetime:g}")
        if len(label) > LONGEST_LABEL or not label.isprintable():
            raise ValueError(f"name: at most {LONGEST_LABEL} printable characters")
        now = self._now()
        with self._change() as db:
            made = db.execute(
                "INSERT INTO tokens (hash, label, uses, created, expires, ephemeral) VALUES (?, ?, ?, ?, ?, ?)",
                (hashed, label, uses, now, now + lifetime, ephemeral),
            ).lastrowid
            rows = db.execute("SELECT * FROM tokens WHERE id = ?", (made,)).fetchall()
            return tables.grant(rows[0])

    def revoke(self, number: int) -> bool:
        """Refuse later joins with this token; the nodes that joined with it stay. False where it is none, or was."""
        with self._change() as db:
            return bool(
                db.execute(
                    "UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL", (self._now(), number)
                ).rowcount
            )

    # Joining

    def join(self, hashed: bytes, key: bytes, facts: Facts, reply: bytes, keep: float) -> Node | Refusal:
        """Take a use of the token and add the node, both or neither; `key` is the one that the machine has shown.

        A node that joins again keeps number, name and preshared key, and follows the token in being ephemeral. With
        the token that it joined with last it takes no use, since its answer may have been lost. `reply` stands for
        this very request, which is not answered again for `keep` seconds.
        """
        now = self._now()
        with self._change() as db:
            db.execute("DELETE FROM answered WHERE until < ?", (now,))
            if db.execute("SELECT 1 FROM answered WHERE reply = ?", (reply,)).fetchone():
                return Refusal.REPLAYED
            found = db.execute("SELECT * FROM tokens WHERE hash = ?", (hashed,)).fetchone()
            if found is None or not (grant := tables.grant(found)).good(now):
                return Refusal.TOKEN
            row = db.execute("SELECT * FROM nodes WHERE key = ?", (key,)).fetchone()
            known = tables.node(row) if row else None
            again = known is not None and known.removed is None and known.token == grant.id
            if not again and grant.uses < 1:
                return Refusal.TOKEN
            if known is not None and known.removed is not None:
                return Refusal.REMOVED
            if not again:
                db.execute("UPDATE tokens SET uses = uses - 1 WHERE id = ?", (grant.id,))
            if known is None:
                tables.add(db, key, grant, facts, now, self._taken())
            else:
                tables.follow(db, known.number, grant, facts)
            db.execute("INSERT INTO answered VALUES (?, ?)", (reply, now + keep))
            return tables.node(db.execute("SELECT * FROM nodes WHERE key = ?", (key,)).fetchone())

    # The file

    def _check(self, hub: bytes) -> None:
        """Make the file where there is none; refuse one that is no file or not ours alone."""
        if not private.there(self._path):
            with suppress(FileExistsError), private.making(self._path) as fresh:
                tables.make(fresh, hub)

    def _begin(self, hub: bytes) -> None:
        """Lock the file for this process and see that it is whole, ours, and this harness's."""
        db = self._db
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # from the transaction below until it is closed
        db.execute("PRAGMA journal_mode = DELETE")  # one file at rest, which can be copied
        db.execute("PRAGMA synchronous = EXTRA")  # the folder too: a commit outlives a power cut
        db.execute("PRAGMA foreign_keys = ON")
        with self._change():
            application = db.execute("PRAGMA application_id").fetchone()[0]
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if application != tables.APPLICATION:
                raise RegistryError(f"{self._path} is not the registry of a mesh; move it away")
            if version != tables.SCHEMA:
                raise RegistryError(
                    f"{self._path} has schema {version}, this Outrider reads {tables.SCHEMA}: install the version "
                    "that wrote it"
                )
            faults = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if faults != "ok":
                raise RegistryError(_damaged(self._path, faults))
            whose = db.execute("SELECT hub FROM mesh").fetchall()
            if whose != [(hub,)] and db.execute("SELECT 1 FROM nodes").fetchone():
                raise RegistryError(
                    f"{self._path} is of another WireGuard key: put the key back that it was made with, or move "
                    f"{self._path.name} away and let every worker join again"
                )
            if whose != [(hub,)]:  # nobody has joined: nobody knows the old key
                db.execute("DELETE FROM mesh")
                db.execute("INSERT INTO mesh VALUES (?)", (hub,))

    def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self._told(error) from error

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction: committed at the end of the context, and rolled back where it ends with an error."""
        with self._lock:
            try:
                self._db.execute("BEGIN EXCLUSIVE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):  # SQLite has rolled back where the disk failed
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._told(error) from error

    def _told(self, error: sqlite3.Error) -> RegistryError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says where in SQLite
        match code:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                why = "is open in another process; only one may have it open: end that one"
            case sqlite3.SQLITE_FULL:
                why = "cannot be written: the disk is full; make room"
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
                why = f"cannot be opened and written ({error}): see who owns it and its folder"
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return RegistryError(_damaged(self._path, str(error)))
            case _:
                why = f"cannot be used: {error}"
        return RegistryError(f"{self._path} {why}")


def _damaged(path: Path, how: str) -> str:
    return f"{path} is damaged ({how}): put a copy of it back, or move it away; every worker must join again then"

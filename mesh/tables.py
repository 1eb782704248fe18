"""The registry's tables, and what their rows are. Whoever calls locks, and tells what SQLite says."""

import secrets
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from mesh import naming
from mesh.address import HARNESS
from mesh.nodes import Facts, Grant, Node
from mesh.plan import KEY

SCHEMA: Final = 1
APPLICATION: Final = 0x4F724D65  # "OrMe", in the file's header: nobody else's database is taken for ours
_TABLES: Final = f"""
-- Rows are read whole: `node` and `grant` go by this order.
CREATE TABLE mesh (hub BLOB NOT NULL);
CREATE TABLE tokens (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  hash BLOB NOT NULL UNIQUE,
  label TEXT NOT NULL,
  uses INTEGER NOT NULL CHECK (uses >= 0),
  created REAL NOT NULL,
  expires REAL NOT NULL,
  ephemeral INTEGER NOT NULL,
  revoked REAL
);
CREATE TABLE nodes (
  number INTEGER PRIMARY KEY AUTOINCREMENT CHECK (number > {HARNESS}),
  name TEXT NOT NULL,
  key BLOB NOT NULL UNIQUE CHECK (length(key) = {KEY}),
  preshared BLOB NOT NULL CHECK (length(preshared) = {KEY} OR removed IS NOT NULL),
  token INTEGER NOT NULL REFERENCES tokens (id),
  ephemeral INTEGER NOT NULL,
  hostname TEXT NOT NULL,
  os TEXT NOT NULL,
  arch TEXT NOT NULL,
  release TEXT NOT NULL,
  joined REAL NOT NULL,
  quiet REAL,
  removed REAL
);
CREATE UNIQUE INDEX names ON nodes (name) WHERE removed IS NULL;
CREATE TABLE answered (reply BLOB PRIMARY KEY, until REAL NOT NULL);
INSERT INTO sqlite_sequence (name, seq) VALUES ('nodes', {HARNESS});
"""  # noqa: S608 - made of our own constants


def connect(path: Path) -> sqlite3.Connection:
    """Used by any thread, one at a time; each change begins and ends its transaction itself, and waits for nobody."""
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def make(path: Path, hub: bytes) -> None:
    """An empty registry in this empty file."""
    db = connect(path)
    try:
        db.executescript(
            f"BEGIN; {_TABLES} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA}; COMMIT;"
        )
        db.execute("INSERT INTO mesh VALUES (?)", (hub,))
    finally:
        db.close()


def add(
    db: sqlite3.Connection, key: bytes, grant: Grant, facts: Facts, now: float, others: Iterable[str]
) -> None:
    """A node more, with a preshared key of its own and a name that is neither another node's nor among `others`."""
    taken = {name for (name,) in db.execute("SELECT name FROM nodes WHERE removed IS NULL")} | set(others)
    name = naming.unique(naming.name_of(facts.name or facts.hostname), taken)
    db.execute(
        "INSERT INTO nodes (name, key, preshared, token, ephemeral, hostname, os, arch, release, joined) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (name, key, secrets.token_bytes(KEY), grant.id, grant.ephemeral, *_texts(facts), now),
    )


def follow(db: sqlite3.Connection, number: int, grant: Grant, facts: Facts) -> None:
    """A node that joins again, by this token now."""
    db.execute(
        "UPDATE nodes SET token = ?, ephemeral = ?, hostname = ?, os = ?, arch = ?, release = ?, quiet = NULL "
        "WHERE number = ?",
        (grant.id, grant.ephemeral, *_texts(facts), number),
    )


def _texts(facts: Facts) -> tuple[str, ...]:
    return facts.hostname, facts.os, facts.arch, facts.release


def node(row: tuple[Any, ...]) -> Node:
    """A whole row of `nodes`."""
    (
        number,
        name,
        key,
        preshared,
        token,
        ephemeral,
        hostname,
        system,
        arch,
        release,
        joined,
        quiet,
        removed,
    ) = row
    return Node(
        number=number,
        name=name,
        key=key,
        preshared=preshared,
        token=token,
        ephemeral=bool(ephemeral),
        facts=Facts(hostname, system, arch, release),
        joined=joined,
        quiet=quiet,
        removed=removed,
    )


def grant(row: tuple[Any, ...]) -> Grant:
    """A whole row of `tokens`."""
    number, _, label, uses, created, expires, ephemeral, revoked = row
    return Grant(
        id=number,
        label=label,
        uses=uses,
        created=created,
        expires=expires,
        ephemeral=bool(ephemeral),
        revoked=revoked,
    )

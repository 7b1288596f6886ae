"""The store of all that survives a restart of the controller, in SQLite.

    jobs      a document (`job_codec`) for each that is not over, with the entries that its switches hold
    tenants   names, quotas; tokens as SHA-256
    events    the latest IN_STORE of the log
    switches  those that are being drained
    meta      the latest job id and number given out

The order is always: the store, then the switch, then the members. After a kill -9 at any point
`SwitchDriver.reconcile` makes the switches agree with the store:

    killed before a job is stored as running     its members were never answered; the switch may hold it,
                                                 and removes it as unknown
    after that, before its members are answered  it is on the switch; no member attaches, and it ends when
                                                 their time to do so is over
    after a loss is stored, before the fence     reconcile fences the worker before it admits anything
    after a job's end is stored, before removal  the switch removes it as unknown

The one exception is the opening: a job is on the switch, with all its slots initialised, before it is stored
as running. Its members are told only afterwards.

Steps of the controller are written whole, one or several in a transaction. The database is in WAL mode with
synchronous=NORMAL: a killed process loses nothing; a machine that loses its power may lose the last moments,
which has the effect of a kill before they were stored.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final

from switchagg.control.jobs.records import Event, EventKind, Quota, Tenant
from switchagg.control.state_folder import claim_folder, open_own
from switchagg.errors import SwitchError, UsageError

SCHEMA: Final = 1
IN_MEMORY: Final = 2000  # events
IN_STORE: Final = 10_000
_FILE: Final = "controller.db"
_LOCK: Final = "controller.lock"
_WRITE_PATIENCE: Final = 5.0  # seconds for other processes to end what they write
_CLOSE_PATIENCE: Final = 1.0  # seconds for what is being written
_READ_PATIENCE: Final = 0.5  # seconds; in WAL mode a reader waits for no writer

_TABLES: Final = """
CREATE TABLE jobs (number INTEGER PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE tenants (
    name TEXT PRIMARY KEY, admin INTEGER NOT NULL, jobs INTEGER, slots INTEGER, memory INTEGER
);
CREATE TABLE tokens (
    hash TEXT PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants (name) ON DELETE CASCADE
);
CREATE TABLE events (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
    tenant TEXT, job TEXT, switch TEXT, rank INTEGER
);
CREATE TABLE switches (name TEXT PRIMARY KEY, draining INTEGER NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one step of the controller, or of all the steps of an earlier one."""

    jobs: Mapping[int, dict[str, Any] | None] = field(default_factory=dict)  # by number; None deletes
    events: Sequence[Event] = ()
    switches: Mapping[str, bool] = field(default_factory=dict)  # True for those that are being drained
    last_id: int = 0
    last_number: int = 0


class Store:
    """Keeps what must survive the controller. Methods may be called from any thread.

    Methods that write or read a file raise `SwitchError` if that fails; nothing is half-written then. Those
    that read do not wait for those that write.

    Args:
        directory: created if missing, readable by its owner only. None keeps tenants in memory, and no jobs.
        serving: for the controller itself, one a directory; other processes may read and add tenants.

    Attributes:
        persistent: True if jobs outlive the controller.
        where: the store in words, for messages.

    Raises:
        UsageError: the directory cannot be created or opened, or is not this user's alone.
        SwitchError: another controller uses it, or a newer version wrote it, or it holds no database.
    """

    def __init__(self, directory: Path | None = None, *, serving: bool = True) -> None:
        self.where = "memory" if directory is None else f"state directory {directory}"
        self._held: int | None = None
        self.persistent = directory is not None
        path = Path(":memory:")
        try:
            if directory is not None:
                path = directory / _FILE
                claim_folder(directory, (_FILE, f"{_FILE}-wal", f"{_FILE}-shm", f"{_FILE}-journal", _LOCK))
                if serving:
                    self._held = _claim(directory / _LOCK)
                os.close(open_own(path))
            self._writing = _Database(path, _WRITE_PATIENCE)
            self._prepare()
            self._reading = self._writing if directory is None else _Database(path, _READ_PATIENCE)
        except OSError as error:
            self._release()
            raise UsageError(f"{self.where}: {error.strerror or error}") from None
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a message with a damaged name in it
            self._release()
            raise SwitchError(f"{self.where}: {error}") from error
        except BaseException:
            self._release()
            raise

    def _prepare(self) -> None:
        with self._transaction(self._writing) as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA:
                raise SwitchError(
                    f"{self.where}: written by a newer switchagg (schema {version}; this one knows {SCHEMA})"
                )
            if version == 0:
                for statement in _TABLES.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {SCHEMA}")

    def load(self) -> Changes:
        """Returns the state that an earlier controller left, with its latest IN_MEMORY events."""
        with self._transaction(self._reading) as database:
            meta = dict(_rows(database, "meta", (str, int)))
            events = [
                Event(number, time, EventKind(kind), *rest)
                for number, time, kind, *rest in _rows(
                    database,
                    "events",
                    (int, float | int, str, str, str | None, str | None, str | None, int | None),
                    f"ORDER BY number DESC LIMIT {IN_MEMORY}",
                )
            ]
            documents = _rows(database, "jobs", (int, str), "ORDER BY number")
            return Changes(
                {number: _document(number, document) for number, document in documents},
                events[::-1],
                {name: bool(draining) for name, draining in _rows(database, "switches", (str, int))},
                meta.get("last_id", 0),
                meta.get("last_number", 0),
            )

    def write(self, changes: Changes) -> None:
        """Makes changes, all or none; without a directory none."""
        if not self.persistent:
            return
        with self._transaction(self._writing) as database:
            for number, document in changes.jobs.items():
                if document is None:
                    database.execute("DELETE FROM jobs WHERE number = ?", (number,))
                else:
                    row = (number, json.dumps(document))
                    database.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", row)
            database.executemany(
                "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", map(astuple, changes.events)
            )
            if changes.events:
                oldest = changes.events[-1].number - IN_STORE
                database.execute("DELETE FROM events WHERE number <= ?", (oldest,))
            database.executemany("INSERT OR REPLACE INTO switches VALUES (?, ?)", changes.switches.items())
            last = (("last_id", changes.last_id), ("last_number", changes.last_number))
            database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", last)

    def tenants(self) -> list[Tenant]:
        """Returns the tenants, by name."""
        with self._transaction(self._reading) as database:
            return [_tenant(row) for row in database.execute("SELECT * FROM tenants ORDER BY name")]

    def put_tenant(self, tenant: Tenant) -> None:
        """Adds or changes a tenant."""
        with self._transaction(self._writing) as database:
            database.execute(
                "INSERT INTO tenants VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
                "admin = excluded.admin, jobs = excluded.jobs, slots = excluded.slots, "
                "memory = excluded.memory",
                (tenant.name, tenant.admin, *astuple(tenant.quota)),
            )

    def drop_tenant(self, name: str) -> bool:
        """Deletes a tenant and its tokens. Returns False if there was none."""
        with self._transaction(self._writing) as database:
            return bool(database.execute("DELETE FROM tenants WHERE name = ?", (name,)).rowcount)

    def put_token(self, tenant: str, hashed: str) -> None:
        """Adds a token of a tenant, as its hash."""
        with self._transaction(self._writing) as database:
            database.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (hashed, tenant))

    def drop_tokens(self, tenant: str) -> int:
        """Deletes all tokens of a tenant. Returns their number."""
        with self._transaction(self._writing) as database:
            return int(database.execute("DELETE FROM tokens WHERE tenant = ?", (tenant,)).rowcount)

    def tenant_of(self, hashed: str) -> Tenant | None:
        """Returns the tenant with this token; None if there is none."""
        with self._transaction(self._reading) as database:
            row = database.execute(
                "SELECT tenants.* FROM tokens JOIN tenants ON tenants.name = tokens.tenant WHERE hash = ?",
                (hashed,),
            ).fetchone()
            return None if row is None else _tenant(row)

    def close(self) -> None:
        """Closes the database, unless a thread is stuck in it. Safe to call twice."""
        for database in (self._reading, self._writing):
            if database.lock.acquire(timeout=_CLOSE_PATIENCE):
                database.connection.close()
                database.lock.release()
        self._release()

    @contextlib.contextmanager
    def _transaction(self, database: _Database) -> Iterator[sqlite3.Connection]:
        connection = database.connection
        with database.lock:
            try:
                connection.execute("BEGIN IMMEDIATE" if database is self._writing else "BEGIN")
                try:
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
            except (sqlite3.Error, ValueError) as error:
                raise SwitchError(f"{self.where}: {error}") from error

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


class _Database:
    """A connection, for one thread at a time."""

    def __init__(self, path: Path, patience: float) -> None:
        self.lock = threading.Lock()
        self.connection = sqlite3.connect(
            path, timeout=patience, isolation_level=None, check_same_thread=False
        )
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
            self.connection.execute(f"PRAGMA {pragma}")


def _claim(path: Path) -> int:
    descriptor = open_own(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise SwitchError(f"another controller has the state directory {path.parent}") from None
    return descriptor


def _rows(database: sqlite3.Connection, table: str, kinds: Sequence[Any], more: str = "") -> list[Any]:
    """Returns the rows of a table. Raises `ValueError` if a column has a value of none of its types."""
    return [_typed(table, row, kinds) for row in database.execute(f"SELECT * FROM {table} {more}")]


def _typed(table: str, row: Sequence[Any], kinds: Sequence[Any]) -> Sequence[Any]:
    if len(row) != len(kinds) or not all(map(isinstance, row, kinds)):
        raise ValueError(f"table {table} has a row that no controller wrote: {row!r:.80}")
    return row


def _document(number: int, text: str) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"job {number} is {text:.60}; accepted: a JSON object")
    return document


def _tenant(row: Sequence[Any]) -> Tenant:
    name, admin, *quota = _typed("tenants", row, (str, int, *[int | None] * 3))
    return Tenant(name, bool(admin), Quota(*quota))

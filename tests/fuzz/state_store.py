"""Damaged state directories: a controller starts with what is right, or refuses and names the directory.

Each execution changes a copy of the database that a controller with running jobs, ordered jobs, tenants and
events left: bits, pages, rows, documents, the schema. Then a controller starts with it. If it does, no two
jobs have the same slots, it answers every query, and it takes a new job.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from switchagg.control.controller import Controller
from switchagg.control.jobs.records import OPEN, JobSpec, OnLoss, Quota
from switchagg.control.store import Store
from switchagg.errors import AdmissionError, SwitchError, UsageError
from tests.fuzz.mutations import any_value, bytes_changed, value_changed
from tests.switchagg.control.fake_driver import FakeDriver
from tests.switchagg.control.recorded_streams import join_all, up

FILE: Final = "controller.db"
_COLUMNS: Final = {
    "jobs": ("number", "document"),
    "tenants": ("name", "admin", "jobs", "slots", "memory"),
    "tokens": ("hash", "tenant"),
    "events": ("number", "time", "kind", "text", "tenant", "job", "switch", "rank"),
    "switches": ("name", "draining"),
    "meta": ("name", "value"),
}
_SCHEMA: Final = (
    "DROP TABLE jobs",
    "DROP TABLE meta",
    "DROP TABLE events",
    "DROP TABLE tokens",
    "DELETE FROM meta",
    "ALTER TABLE jobs ADD COLUMN more",
    "ALTER TABLE events RENAME COLUMN kind TO sort",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 2",
    "PRAGMA user_version = -1",
    "PRAGMA user_version = 2147483647",
    "PRAGMA journal_mode = DELETE",
    "INSERT INTO switches VALUES ('gone', 1)",
    "CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM meta; END",
    "UPDATE meta SET value = value - 1",
    "DELETE FROM events",
    "PRAGMA application_id = 7",
    "CREATE TABLE more (x)",
    "INSERT INTO jobs SELECT number + 100, document FROM jobs",
)


def prepared(folder: Path) -> FakeDriver:
    """Leaves a state directory, and returns the switch with its job."""
    driver = FakeDriver()
    store = Store(folder)
    controller = Controller([driver], store=store, slots=16)
    controller.start()
    up(controller)
    controller.tenants.add("one", admin=True, quota=Quota(3, 4, 5))
    join_all(controller, "runs", on_loss=OnLoss.shrink)
    join_all(controller, "other", world_size=1)
    controller.create(OPEN, JobSpec("ordered", 2, slots=32, words=64, priority=7, deadline=3.0))
    controller.create(OPEN, JobSpec("ordered too", 3))
    controller.drain_switch(OPEN, "fake")
    controller.undrain_switch(OPEN, "fake")
    controller.close()
    store.close()
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return driver


@contextlib.contextmanager
def target(folder: Path) -> Iterator[Callable[[Random], None]]:
    """Yields a function that damages a state directory and starts a controller with it."""
    original = folder / "original"
    switch = prepared(original)
    numbers = itertools.count()

    def execute(random: Random) -> None:
        damaged = folder / f"damaged{next(numbers)}"
        shutil.copytree(original, damaged)
        try:
            damage(damaged / FILE, random)
            driver = FakeDriver()
            driver.jobs = dict(switch.jobs)
            start(damaged, driver)
        finally:
            shutil.rmtree(damaged)

    yield execute


def damage(path: Path, random: Random) -> None:
    """Changes a database."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        kind = random.randrange(10)
        if kind == 0:
            data = path.read_bytes()
            path.write_bytes(bytes_changed(data, random, random.choice((1, 8, 64))))
        elif kind == 1:
            data = bytearray(path.read_bytes())
            at = random.randrange(max(1, len(data)))
            data[at : at + 1] = bytes([random.randrange(256)])
            path.write_bytes(data)
        elif kind == 2 and random.randrange(3) == 0:
            (path.parent / f"{FILE}-wal").write_bytes(random.randbytes(random.choice((0, 32, 5000))))
        else:
            with (
                contextlib.suppress(
                    sqlite3.Error, OverflowError, ValueError, LookupError, TypeError, AttributeError
                ),
                contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database,
            ):
                _change_rows(database, random)


def _change_rows(database: sqlite3.Connection, random: Random) -> None:
    match random.randrange(6):
        case 0:
            database.execute(random.choice(_SCHEMA))
        case 1:
            table = random.choice(list(_COLUMNS))
            column = random.choice(_COLUMNS[table])
            value: Any = any_value(random)
            if isinstance(value, list | dict):
                value = json.dumps(value).encode()
            where = f"rowid IN (SELECT rowid FROM {table} ORDER BY random() LIMIT 1)"
            database.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,))
        case _:
            rows = database.execute("SELECT number, document FROM jobs").fetchall()
            number, text = random.choice(rows)
            others = [json.loads(other) for _, other in rows]
            document = json.loads(text)
            if random.randrange(4) == 0:  # what another job has
                name = random.choice(list(document))
                document[name] = random.choice(others).get(name)
            else:
                document = value_changed(document, random)
            database.execute("UPDATE jobs SET document = ? WHERE number = ?", (json.dumps(document), number))


def start(folder: Path, driver: FakeDriver) -> None:
    """Starts a controller there, unless it refuses, and looks at what it has."""
    try:
        store = Store(folder)
    except (SwitchError, UsageError) as error:
        _check(error, folder)
        return
    try:
        controller = Controller([driver], store=store, slots=16)
        try:
            try:
                controller.start()
            except SwitchError as error:
                _check(error, folder)
                return
            _look(controller, driver)
        finally:
            controller.close()
    finally:
        store.close()


def _check(error: Exception, folder: Path) -> None:
    assert str(folder) in str(error), str(error)


def _look(controller: Controller, driver: FakeDriver) -> None:
    deadline = time.monotonic() + 10
    while controller.queries.switches(OPEN)[0]["state"] == "down":
        assert time.monotonic() < deadline, controller.queries.switches(OPEN)[0]
        time.sleep(0.002)
    ranges = sorted((each["base"], each["slots"]) for each in controller.queries.slots(OPEN)["ranges"])
    for (base, slots), (after, _) in itertools.pairwise(ranges):
        assert base + slots <= after, ranges
    controller.queries.jobs(OPEN)
    controller.queries.snapshot(OPEN, 0)
    controller.queries.health()
    controller.queries.stats(OPEN)
    controller.queries.events(OPEN)
    for name in ("runs", "other", "ordered"):
        with contextlib.suppress(AdmissionError):
            controller.queries.job(OPEN, name, None)
            controller.queries.history(OPEN, name, None)
    with contextlib.suppress(SwitchError):  # of the store, or a drained switch
        view = controller.create(OPEN, JobSpec("new", 1, slots=16))
        assert view["state"] in ("created", "queued"), view
    with contextlib.suppress(SwitchError):
        controller.tenants.list()
    ends = sorted((entry.base, entry.base + entry.slots) for entry in driver.jobs.values())
    assert all(end <= after for (_, end), (after, _) in itertools.pairwise(ends)), ends

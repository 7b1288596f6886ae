"""State directories that somebody, or a disk, has changed: a controller refuses them and names them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from switchagg.control.controller import Controller
from switchagg.control.jobs.records import OPEN, JobSpec
from switchagg.control.store import Store
from switchagg.errors import SwitchError
from tests.fuzz.state_store import FILE, prepared
from tests.switchagg.control.fake_driver import FakeDriver


def change(folder: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / FILE, isolation_level=None)) as database:
        assert database.execute(statement).rowcount


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE jobs SET document = json_set(document, '$.created', '[]')", "job 1 in it cannot be read"),
        ("UPDATE jobs SET document = json_set(document, '$.world_size', 0)", "world_size is 0"),
        ("UPDATE jobs SET document = json_set(document, '$.world_size', 'x')", "'x' is no int"),
        ("UPDATE jobs SET document = json_set(document, '$.draining', 3)", "3 is no bool"),
        ("UPDATE jobs SET document = json_set(document, '$.members', 3)", "job 1 in it cannot be read"),
        (
            "UPDATE jobs SET document = json_set(document, '$.generation.entry.workers', json('[]'))",
            "0 workers; accepted: 1..32",
        ),
        ("UPDATE jobs SET document = json_set(document, '$.generation.entry.base', 32)", "of other slots"),
        ("UPDATE jobs SET document = json_set(document, '$.generation', null)", "has no generation"),
        ("UPDATE jobs SET document = json_set(document, '$.tree', 7)", "job 1 in it cannot be read"),
        ("UPDATE jobs SET document = '7'", "job 1 is 7; accepted: a JSON object"),
        ("UPDATE jobs SET document = x'C1'", "table jobs has a row that no controller wrote"),
        ("UPDATE jobs SET number = number + 10", "it calls itself job 1"),
        ("INSERT INTO jobs SELECT 9, json_set(document, '$.number', 9) FROM jobs LIMIT 1", "another job's"),
        ("UPDATE events SET time = x'00'", "table events has a row"),
        ("UPDATE meta SET value = 'x'", "table meta has a row"),
        ("UPDATE switches SET draining = 'x'", "table switches has a row"),
    ],
)
def test_what_no_controller_wrote_is_refused(tmp_path: Path, statement: str, reason: str) -> None:
    driver = prepared(tmp_path)
    change(tmp_path, statement)
    store = Store(tmp_path)
    controller = Controller([driver], store=store, slots=16)
    try:
        with pytest.raises(SwitchError) as error:
            controller.start()
    finally:
        controller.close()
        store.close()
    assert reason in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_tenant_that_nobody_added_is_refused(tmp_path: Path) -> None:
    prepared(tmp_path)
    change(tmp_path, "UPDATE tenants SET slots = 'many'")
    with contextlib.closing(Store(tmp_path)) as store, pytest.raises(SwitchError, match="table tenants"):
        store.tenants()


def test_a_new_job_takes_no_number_of_one_that_is_there(tmp_path: Path) -> None:
    driver = prepared(tmp_path)
    change(tmp_path, "DELETE FROM meta")
    store = Store(tmp_path)
    controller = Controller([FakeDriver()], store=store, slots=16)
    del driver
    controller.start()
    before = set(store.load().jobs)
    controller.create(OPEN, JobSpec("new", 2))
    after = set(store.load().jobs)
    controller.close()
    store.close()
    assert len(before) >= 3
    assert max(after) > max(before)

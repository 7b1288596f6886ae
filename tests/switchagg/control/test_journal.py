"""Stores that stall: nobody waits for them but who asks for something that must be kept."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from switchagg.control import journal
from switchagg.control.controller import Controller
from switchagg.control.jobs.records import OPEN, JobSpec
from switchagg.control.store import Changes, Store
from switchagg.control.tenants import Tenants
from switchagg.errors import SwitchError
from tests.switchagg.control.fake_driver import FakeDriver
from tests.switchagg.control.recorded_streams import Recorder, asked, token, up
from tests.switchagg.control.served_controller import ServedController, serving
from tests.waiting import eventually


class Disk:
    """The way to a store, which can be stalled."""

    def __init__(self, store: Store) -> None:
        self._write = store.write
        self._runs = threading.Event()
        self._runs.set()
        self.asked = threading.Event()  # to write, while it was stalled

    def write(self, changes: Changes) -> None:
        if not self._runs.is_set():
            self.asked.set()
        self._runs.wait()
        self._write(changes)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        self._runs.clear()
        try:
            yield
        finally:
            self._runs.set()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(store)
    monkeypatch.setattr(store, "write", disk.write)
    return disk


def works(served: ServedController, credential: str) -> None:
    """Ranks of a job join and leave, and health is told to those who may know it and to others."""
    line = served.join("a", 0, 1, token=credential)
    assert served.call("GET", "/healthz")[0] == 200
    status, health = served.call("GET", "/healthz", token=credential)
    assert (status, health["status"]) == (200, "ok")
    assert served.members("a", credential) == {0: "joined"}
    path = "/v1/jobs/a/members/0/leave"
    assert served.call("POST", path, {"token": line.place["token"]}, credential)[0] == 200
    line.close()


def test_a_stalled_disk_holds_nobody_up(store: Store, disk: Disk) -> None:
    credential = Tenants(store).add("boss", admin=True)
    with serving(store) as served:
        up(served.server.controller)
        with disk.stalled():
            works(served, credential)
            _, health = served.call("GET", "/healthz", token=credential)
            assert "has not taken a change within 3 seconds" in health["warnings"][-1]
        eventually(lambda: served.call("GET", "/healthz", token=credential)[1]["warnings"] == [])
        kinds = ["switch_up", "job_created", "opened", "left", "ended"]
        eventually(lambda: [event.kind.value for event in store.load().events] == kinds)
        works(served, credential)


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_held_lock_of_the_database_holds_nobody_up(store: Store, tmp_path: Path, mode: str) -> None:
    store._writing.connection.execute("PRAGMA busy_timeout = 600000")
    credential = Tenants(store).add("boss", admin=True)
    with serving(store) as served:
        up(served.server.controller)
        eventually(lambda: store.load().events)
        other = sqlite3.connect(tmp_path / "controller.db", isolation_level=None)
        other.execute(f"BEGIN {mode}")
        works(served, credential)
        other.execute("ROLLBACK")
        other.close()
        eventually(lambda: len(store.load().events) == 5)


def test_an_order_that_is_not_kept_is_refused_and_not_there(store: Store, disk: Disk) -> None:
    credential = Tenants(store).add("boss", admin=True)
    order = {"name": "a", "world_size": 1}
    with serving(store) as served:
        up(served.server.controller)
        with disk.stalled():
            status, answer = served.call("POST", "/v1/jobs", order, credential)
            assert (status, answer["error"]["code"]) == (503, "switch")
            assert "has not taken a change within 3 seconds" in answer["error"]["message"]
            assert served.members("a", credential) is None
        eventually(lambda: [event.kind.value for event in store.load().events][-2:] == ["evicted", "ended"])
        assert store.load().jobs == {}
        assert served.call("POST", "/v1/jobs", order, credential)[0] == 201
        assert len(store.load().jobs) == 1
        assert served.call("DELETE", "/v1/jobs/a", token=credential)[0] == 200
        assert store.load().jobs == {}


def test_what_switches_and_members_are_told_is_kept_before(
    store: Store, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 600.0)
    driver = FakeDriver()
    controller = Controller([driver], store=store, slots=16)
    controller.start()
    try:
        up(controller)
        line = Recorder()
        with disk.stalled():
            controller.join(OPEN, "a", asked(0, 1), line)
            assert disk.asked.wait(60)
            assert (driver.jobs, line.events) == ({}, [])
        line.wait()
        assert [document["state"] for document in store.load().jobs.values() if document] == ["running"]
        disk.asked.clear()
        with disk.stalled():
            controller.leave(OPEN, "a", 0, token(line))
            assert disk.asked.wait(60)
            assert len(driver.jobs) == 1
        eventually(lambda: driver.jobs == {})
    finally:
        controller.close()


def test_a_job_that_fails_before_its_opening_is_kept_takes_nothing_of_the_same_step_with_it(
    store: Store, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 600.0)
    driver, echoes = FakeDriver(), threading.Event()
    at_once = driver.packets_out

    def packets_out(packets: Sequence[bytes]) -> list[bytes]:
        assert echoes.wait(60)
        return at_once(packets)

    monkeypatch.setattr(driver, "packets_out", packets_out)
    controller = Controller([driver], store=store, slots=16)
    controller.start()
    try:
        up(controller)
        lines = [Recorder(), Recorder()]
        for rank, line in enumerate(lines):
            controller.join(OPEN, "a", asked(rank), line)
        eventually(lambda: len(driver.jobs) == 1)
        with disk.stalled():
            echoes.set()
            assert disk.asked.wait(60)
            eventually(lambda: [job["state"] for job in controller.queries.jobs(OPEN)] == ["running"])
            controller.stream_closed(lines[1])
            assert [job["state"] for job in controller.queries.jobs(OPEN)] == ["failed"]
            assert lines[0].events == []
        eventually(lambda: driver.jobs == {})
        eventually(lambda: len(lines[0].events) == 2)
        assert [event["event"] for event in lines[0].events] == ["admitted", "lost"]
    finally:
        controller.close()


def test_a_controller_ends_although_its_disk_stalls(store: Store, disk: Disk) -> None:
    driver = FakeDriver()
    controller = Controller([driver], store=store, slots=16)
    controller.start()
    up(controller)
    line = Recorder()
    controller.join(OPEN, "a", asked(0, 1), line)
    line.wait()
    with disk.stalled():
        controller.close()
        assert line.of("stopping") == [{"event": "stopping", "jobs": "stay"}]
    with pytest.raises(SwitchError):
        controller.join(OPEN, "b", asked(0, 1), Recorder())


def test_what_changes_while_a_controller_ends_is_kept(store: Store) -> None:
    """It answers calls until its server is closed."""
    controller = Controller([FakeDriver()], store=store, slots=16)
    controller.start()
    up(controller)
    line = Recorder()
    controller.join(OPEN, "a", asked(0, 1), line)
    line.wait()
    controller.close()
    controller.leave(OPEN, "a", 0, token(line))
    assert store.load().jobs == {}
    assert [event.kind.value for event in store.load().events][-2:] == ["left", "ended"]


def test_an_error_of_any_kind_is_said_and_written_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = Controller([FakeDriver()], store=store, slots=16)
    controller.start()
    try:
        up(controller)
        eventually(lambda: store.load().events)  # and nothing else is left to write
        write, calls = store.write, 0

        def fails_twice(changes: Changes) -> None:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise OverflowError("a number too large")
            write(changes)

        monkeypatch.setattr(store, "write", fails_twice)
        with pytest.raises(SwitchError, match="a number too large"):
            controller.create(OPEN, JobSpec("a", 1))
        eventually(lambda: controller.queries.health()["warnings"] == [])
        controller.create(OPEN, JobSpec("b", 1))
        assert [job["name"] for job in store.load().jobs.values() if job] == ["b"]
    finally:
        controller.close()


def test_an_order_waits_for_the_store_alone(
    store: Store, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are answered while it waits."""
    monkeypatch.setattr(journal, "PATIENCE", 600.0)
    controller = Controller([FakeDriver()], store=store, slots=16)
    controller.start()
    try:
        up(controller)
        with disk.stalled():
            orders = [
                threading.Thread(target=controller.create, args=(OPEN, JobSpec(f"j{number}", 1)))
                for number in range(4)
            ]
            for order in orders:
                order.start()
            assert disk.asked.wait(60)
            eventually(lambda: len(controller.queries.jobs(OPEN)) == 4)
        for order in orders:
            order.join()
        assert len(store.load().jobs) == 4
        assert len(controller.queries.jobs(OPEN)) == 4
    finally:
        controller.close()

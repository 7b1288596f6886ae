"""Controllers that are restarted or killed, and stores that fail."""

from __future__ import annotations

import gc
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from switchagg.control.controller import Controller
from switchagg.control.jobs.records import OPEN, JobSpec, OnLoss
from switchagg.control.store import Changes, Store
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.slots import JobEntry
from tests.switchagg.control.fake_driver import FakeDriver
from tests.switchagg.control.recorded_streams import Recorder, asked, join_all, token, up
from tests.waiting import eventually

FIELDS = {"collectives": 1, "bytes_reduced": 4096, "packets_sent": 10, "blocks_total": 4, "blocks_own": 1}


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


def test_a_controller_takes_up_what_the_last_one_left(tmp_path: Path, driver: FakeDriver) -> None:
    first = Controller([driver], store=Store(tmp_path), slots=16)
    first.start()
    up(first)
    lines = join_all(first, "runs", on_loss=OnLoss.shrink)
    first.create(OPEN, JobSpec("ordered", 2, slots=32, words=64, priority=7, deadline=3.0))
    waiting = Recorder()
    first.join(OPEN, "waits", asked(0), waiting)
    slots = first.queries.slots(OPEN)["ranges"]
    with pytest.raises(SwitchError, match="another controller has the state directory"):
        Store(tmp_path)
    first.close()
    first.store.close()
    assert lines[0].of("stopping") == [{"event": "stopping", "jobs": "stay"}]
    assert waiting.error is not None
    assert waiting.error.code == "stopping"
    (job_id,) = driver.jobs
    installed = driver.installed

    second = Controller([driver], store=Store(tmp_path), slots=16)
    second.start()
    try:
        up(second)
        assert (list(driver.jobs), driver.installed) == ([job_id], installed)  # not touched
        assert second.queries.slots(OPEN)["ranges"] == slots
        assert {job["name"]: job["state"] for job in second.queries.jobs(OPEN)} == {
            "ordered": "created",
            "runs": "running",
        }
        (ordered,) = (job for job in second.queries.jobs(OPEN) if job["name"] == "ordered")
        assert (ordered["priority"], ordered["deadline"], ordered["slots"]) == (7, 3.0, 32)
        fresh = Recorder()
        second.attach(OPEN, "runs", 0, token(lines[0]), fresh)
        assert fresh.wait() == lines[0].wait()
        cookie = bytes.fromhex(lines[1].wait()["heartbeat"]["cookie"])
        assert second.heartbeat(cookie, 10**6, FIELDS)
        numbers = [event["n"] for event in second.queries.events(OPEN)]
        assert numbers == list(range(1, len(numbers) + 1))
        second.leave(OPEN, "runs", 0, token(lines[0]))
        second.leave(OPEN, "runs", 1, token(lines[1]))
        eventually(lambda: driver.jobs == {})
        second.evict(OPEN, "ordered")
        assert second.queries.slots(OPEN)["ranges"] == []
        (new,) = join_all(second, "new", 1)
        assert new.wait()["job"] > job_id
    finally:
        second.close()
        second.store.close()


def test_members_that_do_not_come_back_are_lost(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchagg.control.jobs.book.GRACE", 3.0)
    monkeypatch.setattr("switchagg.control.jobs.book.ATTACH_PATIENCE", 0.0)
    first = Controller([driver], store=Store(tmp_path), slots=16)
    first.start()
    up(first)
    lines = join_all(first, deadline=3.0)  # long enough for a heartbeat of the other, beside load
    first.close()
    first.store.close()
    second = Controller([driver], store=Store(tmp_path), slots=16)
    second.start()
    try:
        up(second)
        fresh = Recorder()
        second.attach(OPEN, "a", 0, token(lines[0]), fresh)

        def heard() -> bool:
            second.beat(OPEN, "a", 0, token(lines[0]))
            return bool(fresh.of("lost"))

        eventually(heard)
        assert fresh.of("lost")[0]["ranks"] == [1]
        eventually(lambda: driver.jobs == {})
        second.stream_closed(fresh)
        assert second.queries.jobs(OPEN) == []
    finally:
        second.close()
        second.store.close()


@contextmanager
def restarted(first: Controller, tmp_path: Path, driver: FakeDriver) -> Iterator[Controller]:
    """The controller that comes after `first`."""
    first.close()
    first.store.close()
    second = Controller([driver], store=Store(tmp_path), slots=16)
    second.start()
    try:
        up(second)
        yield second
    finally:
        second.close()
        second.store.close()


def test_who_attaches_hears_that_its_job_has_failed(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchagg.control.jobs.book.ATTACH_PATIENCE", 0.0)
    first = Controller([driver], store=Store(tmp_path), slots=16)
    first.start()
    up(first)
    lines = join_all(first)
    with restarted(first, tmp_path, driver) as second:
        fresh = Recorder()
        second.attach(OPEN, "a", 0, token(lines[0]), fresh)
        second.stream_closed(fresh)
        with pytest.raises(AdmissionError, match="has failed: rank 0 is lost: its process ended") as error:
            second.attach(OPEN, "a", 1, token(lines[1]), Recorder())
        assert error.value.code == "failed"


def test_who_attaches_hears_whom_it_has_lost_meanwhile(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchagg.control.jobs.book.ATTACH_PATIENCE", 0.0)
    first = Controller([driver], store=Store(tmp_path), slots=16)
    first.start()
    up(first)
    lines = join_all(first, world_size=4, on_loss=OnLoss.shrink)
    first.leave(OPEN, "a", 3, token(lines[3]), begun=2, completed=1)
    with restarted(first, tmp_path, driver) as second:
        fresh = Recorder()
        second.attach(OPEN, "a", 0, token(lines[0]), fresh)
        second.stream_closed(fresh)
        with restarted(second, tmp_path, driver) as third:  # killed before it could tell
            late = Recorder()
            third.attach(OPEN, "a", 1, token(lines[1]), late)
            eventually(lambda: late.of("lost"))
            (lost,) = late.of("lost")
            assert (lost["ranks"], lost["why"], lost["on_loss"]) == ([0], "its process ended", "shrink")
            eventually(lambda: late.of("left"))
            (left,) = late.of("left")
            assert (left["ranks"], left["begun"], left["completed"]) == ([3], [2], [1])
            third.attach(OPEN, "a", 2, token(lines[2]), Recorder())
            waiting = [third.progress(OPEN, "a", rank, token(lines[rank]), 5) for rank in (1, 2)]
            assert [future.result(60) for future in waiting] == [5, 5]
            news = [
                third.proceed(OPEN, "a", rank, token(lines[rank]), "10.0.0.1", [5000 + rank])
                for rank in (1, 2)
            ]
            assert news[0].result(60)["lost"] == [
                {"rank": 0, "why": "its process ended"},
                {"rank": 3, "why": "it left the job in order"},  # and is needed: others are further
            ]
            again = Recorder()
            third.attach(OPEN, "a", 1, int(news[0].result()["token"]), again)
            again.wait()
            assert [event["event"] for event in again.events] == ["admitted"]


def test_a_drained_switch_stays_drained(tmp_path: Path, driver: FakeDriver) -> None:
    first = Controller([driver], store=Store(tmp_path), slots=16)
    first.start()
    up(first)
    assert first.create(OPEN, JobSpec("a", 2))["state"] == "created"
    assert first.drain_switch(OPEN, "fake")["free"] == 4096
    first.close()
    first.store.close()
    second = Controller([driver], store=Store(tmp_path), slots=16)
    second.start()
    try:
        eventually(lambda: second.queries.switches(OPEN)[0]["state"] == "draining")
        assert [job["state"] for job in second.queries.jobs(OPEN)] == ["queued"]
        second.undrain_switch(OPEN, "fake")
        assert [job["state"] for job in second.queries.jobs(OPEN)] == ["created"]
    finally:
        second.close()
        second.store.close()


def test_a_job_that_the_switches_have_no_place_for_any_more_is_forgotten(
    tmp_path: Path, driver: FakeDriver
) -> None:
    first = Controller([driver], store=Store(tmp_path), slots=16)
    first.start()
    up(first)
    join_all(first)
    first.close()
    first.store.close()
    second = Controller([FakeDriver(name="other")], store=Store(tmp_path), slots=16)
    second.start()
    try:
        assert second.queries.jobs(OPEN) == []
        assert any("no switch 'fake' any more" in event["text"] for event in second.queries.events(OPEN))
        eventually(lambda: not second.store.load().jobs)
    finally:
        second.close()
        second.store.close()


def test_slots_lost_meanwhile_where_a_member_has_left(tmp_path: Path, driver: FakeDriver) -> None:
    first = Controller([driver], store=Store(tmp_path), slots=16)
    first.start()
    up(first)
    lines = join_all(first)
    first.leave(OPEN, "a", 1, token(lines[1]))
    first.close()
    first.store.close()
    driver.jobs.clear()
    second = Controller([driver], store=Store(tmp_path), slots=16)
    second.start()
    try:
        eventually(lambda: [job["state"] for job in second.queries.jobs(OPEN)] == ["failed"])
        with pytest.raises(AdmissionError, match=r"what its slots held is lost") as error:
            second.progress(OPEN, "a", 0, token(lines[0]), 1)
        assert error.value.code == "failed"
        eventually(lambda: driver.jobs == {})
        assert second.queries.slots(OPEN)["free"] == 4096
    finally:
        second.close()
        second.store.close()


class Killed(BaseException):
    """The point at which the process ends."""


class Mortal:
    """Counts what a controller does to the world, and ends it at one of these steps.

    What it does is whole or not at all, and none of its threads does anything after its end.
    """

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.dead = False
        self.lock = threading.RLock()

    def step(self) -> None:
        with self.lock:
            self.left -= 1
            self.dead = self.dead or self.left < 0
            if self.dead:
                raise Killed

    def end(self) -> None:
        with self.lock:
            self.dead = True


class MortalStore(Store):
    def __init__(self, directory: Path, mortal: Mortal) -> None:
        super().__init__(directory)
        self._mortal = mortal

    def write(self, changes: Any) -> None:
        with self._mortal.lock:
            self._mortal.step()
            super().write(changes)


class MortalDriver(FakeDriver):
    """Does what a call asks for before, or without, its caller's being there to know."""

    def __init__(self, mortal: Mortal) -> None:
        super().__init__()
        self.mortal = mortal

    def install_job(self, entry: JobEntry) -> None:
        with self.mortal.lock:
            self.mortal.step()
            super().install_job(entry)
            self.mortal.step()

    def packets_out(self, packets: Sequence[bytes]) -> list[bytes]:
        with self.mortal.lock:
            self.mortal.step()
            return super().packets_out(packets)

    def remove_job(self, job_id: int) -> None:
        with self.mortal.lock:
            self.mortal.step()
            super().remove_job(job_id)
            self.mortal.step()

    def fence(self, job_id: int, bits: int) -> None:
        with self.mortal.lock:
            self.mortal.step()
            super().fence(job_id, bits)

    def survivor(self) -> FakeDriver:
        """Returns the switch as the next controller finds it."""
        found = FakeDriver()
        found.jobs, found.fenced, found.inits = self.jobs, self.fenced, self.inits
        return found


class MortalLine(Recorder):
    def __init__(self, mortal: Mortal) -> None:
        super().__init__()
        self._mortal = mortal

    def send(self, event: Any) -> None:
        self._mortal.step()
        super().send(event)


def live(controller: Controller, mortal: Mortal, lines: dict[int, MortalLine], told: dict[str, int]) -> None:
    """Four ranks join, one is lost, the others go on, one leaves, and another job comes and goes."""

    def wait(condition: Any) -> None:
        end = time.monotonic() + 60
        while not condition():
            if mortal.dead:
                raise Killed
            assert time.monotonic() < end
            time.sleep(0.001)

    def join(name: str, world_size: int) -> list[MortalLine]:
        made = [MortalLine(mortal) for _ in range(world_size)]
        for rank, line in enumerate(made):
            controller.join(OPEN, name, asked(rank, world_size, on_loss=OnLoss.shrink), line)
        wait(lambda: all(line.events for line in made))
        return made

    lines |= dict(enumerate(join("a", 4)))
    controller.stream_closed(lines[2])
    told["gone"] = 2
    for rank in (0, 1, 3):
        told["waits"] = 1
        controller.progress(OPEN, "a", rank, token(lines[rank]), 3)
    futures = {
        rank: controller.proceed(OPEN, "a", rank, token(lines[rank]), "10.0.0.1", [4000 + rank])
        for rank in (0, 1, 3)
    }
    wait(lambda: all(future.done() for future in futures.values()))
    for rank, future in futures.items():
        lines[rank].events.append(future.result())
    told["waits"] = 0
    controller.leave(OPEN, "a", 3, token(lines[3]))
    told["left"] = 3
    other = join("b", 2)
    controller.stream_closed(other[0])
    controller.stream_closed(other[1])


def finish(controller: Controller, lines: dict[int, MortalLine]) -> None:
    """A change of membership that the restart fell into goes on, if all that it needs have come back."""
    job = controller.queries.job(OPEN, "a")
    if job is None or job["state"] != "moving":
        return
    ranks = [member["rank"] for member in job["members"] if member["state"] == "joined"]
    said = [controller.progress(OPEN, "a", rank, token(lines[rank]), 3) for rank in ranks]
    assert [future.result(60) for future in said] == [3] * len(ranks)
    gone_on = [
        controller.proceed(OPEN, "a", rank, token(lines[rank]), "10.0.0.1", [4000 + rank]) for rank in ranks
    ]
    assert [future.result(60)["places"] for future in gone_on] == [ranks] * len(ranks)
    job = controller.queries.job(OPEN, "a")
    assert job is not None
    assert job["state"] == "running"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_killed_at_every_step(tmp_path: Path) -> None:
    """Whatever the moment: the next controller and the switch agree, and nothing leaks."""
    threading.excepthook = lambda _: None
    steps = 0
    while True:
        mortal = Mortal(steps)
        doomed = MortalDriver(mortal)
        directory = tmp_path / str(steps)
        store = MortalStore(directory, mortal)
        first = Controller([doomed], store=store, slots=16)
        lines: dict[int, MortalLine] = {}
        told: dict[str, int] = {}
        try:
            first.start()
            while not doomed.inits and not mortal.dead and first.queries.switches(OPEN)[0]["state"] != "up":
                time.sleep(0.001)
            live(first, mortal, lines, told)
        except Killed:
            pass
        finished = not mortal.dead
        mortal.end()
        first._core._stop.set()
        for agent in first._core.agents.values():
            agent._stopping = True
            agent._put(lambda: None)
        store.close()

        driver = doomed.survivor()
        second = Controller([driver], store=Store(directory), slots=16)
        second.start()
        up(second)
        known = {job["id"]: job for job in second.queries.jobs(OPEN) if job["base"] is not None}
        assert set(driver.jobs) <= set(known), (steps, driver.jobs.keys(), known.keys())
        for job_id, entry in driver.jobs.items():
            assert (known[job_id]["base"], known[job_id]["slots"]) == (entry.base, entry.slots)
        fences = {job_id: bits for job_id, bits in driver.fenced.items() if bits}
        for job in second.queries.jobs(OPEN):
            if job["lost"] and job["id"] in driver.jobs and 2 in job["places"]:
                assert fences[job["id"]] >> job["places"].index(2) & 1, steps
        back, refusals = 0, set[str]()
        for rank, line in lines.items():
            if not line.of("admitted") or rank in (told.get("gone"), told.get("left")):
                continue
            try:
                second.attach(OPEN, "a", rank, token(line), Recorder())
                back += 1
            except AdmissionError as error:
                refusals.add(error.code)
        assert refusals <= {"lost", "not_found"}, steps
        finish(second, lines)
        if known.get(next(iter(driver.jobs), -1), {}).get("state") == "running" and told.get("left") is None:
            assert back or not lines, steps
        for job in second.queries.jobs(OPEN):
            second.evict(OPEN, job["name"], job["id"])
        second.close()  # its last words to the switch are waited for
        assert driver.jobs == {}, steps
        assert second.queries.slots(OPEN)["free"] == 4096
        second.store.close()
        if finished:
            break
        steps += 1
    assert steps > 25


def test_a_store_that_fails_for_a_while(tmp_path: Path, driver: FakeDriver) -> None:
    store = Store(tmp_path)
    controller = Controller([driver], store=store, slots=16)
    controller.start()
    try:
        up(controller)
        blocker = sqlite3.connect(tmp_path / "controller.db")
        blocker.execute("ALTER TABLE jobs RENAME TO away")
        blocker.commit()
        lines = join_all(controller)
        assert "no such table" in controller.queries.health()["warnings"][-1]
        blocker.execute("ALTER TABLE away RENAME TO jobs")
        blocker.commit()
        eventually(lambda: controller.queries.health()["warnings"] == [])
        assert blocker.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
        assert blocker.execute("SELECT count(*) FROM events WHERE kind = 'opened'").fetchone() == (1,)
        blocker.close()
        for rank, line in enumerate(lines):
            controller.leave(OPEN, "a", rank, token(line))
    finally:
        controller.close()
        store.close()


@pytest.mark.long
def test_1000_jobs_leave_nothing_behind(tmp_path: Path, driver: FakeDriver) -> None:
    process = psutil.Process()
    store = Store(tmp_path)
    controller = Controller([driver], store=store, slots=16)
    controller.start()
    try:
        up(controller)

        def one(number: int) -> None:
            lines = join_all(controller, f"job{number % 7}", 4)
            for rank, line in enumerate(lines):
                if number % 3:
                    controller.leave(OPEN, f"job{number % 7}", rank, token(line))
                controller.stream_closed(line)

        for number in range(500):  # until the event log has its full length
            one(number)
        driver.inits.clear()
        gc.collect()
        memory = process.memory_info().rss
        for number in range(1000):
            one(number)
            driver.inits.clear()
        eventually(lambda: driver.jobs == {})
        gc.collect()
        assert process.memory_info().rss - memory < 4 << 20
        assert controller.queries.slots(OPEN)["free"] == 4096
        assert len(controller._core.streams) == 0
        assert controller._core.telemetry._histories == {}
        database = sqlite3.connect(tmp_path / "controller.db")
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM events").fetchone()[0] <= 10_000
        database.close()
    finally:
        controller.close()
        store.close()


def test_a_store_that_fails_for_long_fills_no_memory(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchagg.control.journal.IN_STORE", 20)
    store = Store(tmp_path)
    controller = Controller([driver], store=store, slots=16)
    controller.start()
    try:
        up(controller)
        write = store.write
        written: list[Changes] = []

        def fails(_: object) -> None:
            raise SwitchError("disk full")

        monkeypatch.setattr(store, "write", fails)
        for number in range(30):
            with pytest.raises(SwitchError, match="disk full"):
                controller.create(OPEN, JobSpec(f"j{number}", 1))
            assert controller.queries.jobs(OPEN) == []
        monkeypatch.setattr(store, "write", written.append)
        eventually(lambda: written)
        assert len(written[0].events) == 20
        monkeypatch.setattr(store, "write", write)
        controller.create(OPEN, JobSpec("a", 1))
        assert [job["name"] for job in store.load().jobs.values()] == ["a"]
        assert controller.queries.health()["warnings"] == []
    finally:
        controller.close()
        store.close()

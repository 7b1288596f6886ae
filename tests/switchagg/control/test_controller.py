"""The controller with its threads and its store, in front of switches that only pretend."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from switchagg.control.controller import Controller
from switchagg.control.jobs import book
from switchagg.control.jobs.records import OPEN, JobSpec, JoinRequest, OnLoss, Quota, Tenant
from switchagg.control.telemetry import History
from switchagg.errors import AdmissionError, UsageError
from switchagg.rules.slots import JobEntry
from switchagg.rules.switch import ChangeKind, SwitchChange
from tests.seeds import seed_of_this_run
from tests.switchagg.control.fake_driver import FakeDriver
from tests.switchagg.control.recorded_streams import Recorder, asked, join_all, token, up
from tests.switchagg.control.switch_trees import address, wired
from tests.waiting import eventually

FIELDS = {"collectives": 1, "bytes_reduced": 4096, "packets_sent": 10, "blocks_total": 4, "blocks_own": 1}


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def controller(driver: FakeDriver) -> Iterator[Controller]:
    others = set(threading.enumerate())
    made = Controller([driver], slots=16)
    made.start()
    up(made)
    yield made
    made.close()
    made.close()
    assert driver.jobs == {}
    left = set(threading.enumerate()) - others
    assert not [thread for thread in left if thread.name.startswith("switchagg-")]


@contextmanager
def frozen(controller: Controller) -> Iterator[Callable[[], None]]:
    """Nothing is carried out at the switch until the end of the block, or what it gives is called."""
    reached, gate = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert gate.wait(60)

    controller._core.agents["fake"]._put(hold)
    assert reached.wait(60)
    try:
        yield gate.set
    finally:
        gate.set()


def test_a_job_from_its_joins_to_its_end(controller: Controller, driver: FakeDriver) -> None:
    zero, one = join_all(controller, words=100)
    (entry,) = driver.jobs.values()
    place = zero.wait()
    assert (place["token"], place["result_token"]) == (entry.workers[0].token, entry.result_token)
    assert (place["places"], place["deadline"], place["on_loss"]) == ([0, 1], 10.0, "fail")
    assert len(bytes.fromhex(place["heartbeat"]["cookie"])) == 16
    assert place["heartbeat"]["interval"] == 1.0
    (job,) = controller.queries.jobs(OPEN)
    assert (job["state"], job["switch"], job["tenant"], job["priority"]) == ("running", "fake", "default", 5)
    assert [member["packets"] for member in job["members"]] == [1, None]
    assert (job["policy"]["block"], job["policy"]["why"]) == (64, "set at admission")
    controller.leave(OPEN, "a", 0, token(zero), begun=3)
    left = {"event": "left", "job": place["job"], "ranks": [0], "begun": [3], "completed": [None]}
    assert one.of("left") == [left]
    assert zero.closed
    controller.stream_closed(zero)
    controller.leave(OPEN, "a", 1, token(one))
    eventually(lambda: driver.jobs == {})
    assert controller.queries.jobs(OPEN) == []
    kinds = [event["kind"] for event in controller.queries.events(OPEN)]
    assert kinds == ["switch_up", "job_created", "opened", "left", "left", "ended"]
    assert controller.queries.events(OPEN, since=4)[0]["n"] == 5
    assert controller.outcomes == {"admitted": 2}


def test_a_process_that_ends_is_told_at_once(controller: Controller, driver: FakeDriver) -> None:
    lines = join_all(controller, world_size=3)
    controller.stream_closed(lines[1])
    (event,) = lines[0].of("lost")
    assert (event["ranks"], event["why"]) == ([1], "its process ended")
    eventually(lambda: driver.jobs == {})
    with pytest.raises(AdmissionError, match="rank 1 of job 'a' is lost: its process ended") as error:
        controller.attach(OPEN, "a", 1, token(lines[1]), Recorder())
    assert error.value.code == "lost"


def test_a_silent_member_is_lost_after_its_deadline(controller: Controller, driver: FakeDriver) -> None:
    # Long enough for a heartbeat of the other, beside load.
    lines = join_all(controller, deadline=4.0, on_loss=OnLoss.shrink)
    cookies = [bytes.fromhex(line.wait()["heartbeat"]["cookie"]) for line in lines]
    stop = time.monotonic() + 60
    assert not controller.heartbeat(b"x" * 16, 1, FIELDS)
    assert controller.heartbeat(cookies[1], 1, FIELDS)
    sequence = 0
    while not lines[0].of("lost"):
        sequence += 1
        assert controller.heartbeat(cookies[0], sequence, FIELDS)
        assert time.monotonic() < stop
        time.sleep(0.05)
    (event,) = lines[0].of("lost")
    assert (event["ranks"], event["why"], event["on_loss"]) == ([1], "silent for 4 s", "shrink")
    eventually(lambda: list(driver.fenced.values()) == [0b10])  # its late packets change nothing
    eventually(lambda: lines[1].closed)
    assert lines[1].of("lost")[0]["ranks"] == [1]
    (job,) = controller.queries.jobs(OPEN)
    assert [(member["state"], member["why"]) for member in job["members"]] == [
        ("joined", ""),
        ("lost", "silent for 4 s"),
    ]
    future = controller.progress(OPEN, "a", 0, token(lines[0]), 4)
    assert future.result(60) == 4
    admitted = controller.proceed(OPEN, "a", 0, token(lines[0]), "10.0.0.1", [5000]).result(60)
    assert (admitted["world_size"], admitted["places"]) == (1, [0])
    assert controller.queries.jobs(OPEN)[0]["state"] == "running"


def test_heartbeats_without_datagrams_and_what_they_show(controller: Controller) -> None:
    lines = join_all(controller)
    for step in range(1, 400):
        counts = {name: step * value for name, value in FIELDS.items()}
        for rank, line in enumerate(lines):
            controller.beat(OPEN, "a", rank, token(line), counts)
        history = controller.queries.history(OPEN, "a")
        assert history is not None
        if len(history["points"]) > 1 and history["points"][-1]["collectives"]:
            break
        time.sleep(0.1)
    (job,) = controller.queries.jobs(OPEN)
    rates, silent = job["rates"], job["members"][0]["silent"]
    assert rates is not None
    assert rates["density"] == 0.25
    assert silent is not None
    assert silent < 60
    assert controller.queries.history(OPEN, "b") is None
    with pytest.raises(AdmissionError, match="not the token"):
        controller.beat(OPEN, "a", 0, token(lines[1]))


def test_a_new_line_takes_the_place_of_the_old(controller: Controller) -> None:
    zero, one = join_all(controller)
    fresh = Recorder()
    controller.attach(OPEN, "a", 0, token(zero), fresh)
    assert (zero.closed, fresh.wait()) == (True, zero.wait())
    controller.stream_closed(zero)  # the old connection's end means nothing now
    assert one.of("lost") == []
    for given in (0, token(one)):
        with pytest.raises(AdmissionError, match="not the token"):
            controller.attach(OPEN, "a", 0, given, Recorder())


def test_a_connection_that_ends_just_after_its_attach_is_no_loss_while_the_member_is_heard(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "ATTACH_PATIENCE", 2.0)
    zero, one, two = join_all(controller, world_size=3, deadline=60.0, on_loss=OnLoss.shrink)
    given_up = [Recorder(), Recorder()]
    for rank, stream in enumerate(given_up):
        controller.attach(OPEN, "a", rank, token((zero, one)[rank]), stream)
        controller.stream_closed(stream)  # its client's time is over; it tries again, or is dead
    fresh = Recorder()
    controller.attach(OPEN, "a", 0, token(zero), fresh)
    assert fresh.wait()["rank"] == 0
    eventually(lambda: two.of("lost") != [])
    assert [event["ranks"] for event in two.of("lost")] == [[1]]
    assert two.of("lost")[0]["why"].startswith("silent for ")
    time.sleep(2.2)
    controller.stream_closed(fresh)  # long after its attach
    assert [event["ranks"] for event in two.of("lost")] == [[1], [0]]


def test_questions_are_answered_or_refused(controller: Controller) -> None:
    lines = join_all(controller, world_size=3, on_loss=OnLoss.shrink)
    controller.stream_closed(lines[2])
    first = controller.progress(OPEN, "a", 0, token(lines[0]), 1)
    again = controller.progress(OPEN, "a", 0, token(lines[0]), 1)  # its first request's connection broke
    with pytest.raises(AdmissionError, match="rank 0 of job 'a' has asked for its progress again"):
        first.result(60)
    controller.stream_closed(lines[1])
    assert again.result(60) == 1
    waits = controller.proceed(OPEN, "a", 0, token(lines[0]), "10.0.0.1", [4000])
    assert waits.result(60)["world_size"] == 1
    other = join_all(controller, "b", on_loss=OnLoss.shrink)
    question = controller.progress(OPEN, "b", 0, token(other[0]), 1)
    controller.stream_closed(other[0])
    with pytest.raises(AdmissionError, match="rank 0 of job 'b' is lost: its process ended"):
        question.result(60)
    question = controller.progress(OPEN, "b", 1, token(other[1]), 1)
    assert question.result(60) == 1
    join_all(controller, "c", on_loss=OnLoss.shrink)
    joined = join_all(controller, "d")
    question = controller.progress(OPEN, "d", 1, token(joined[1]), 1)
    controller.evict(OPEN, "d")
    with pytest.raises(AdmissionError, match="evicted by default") as error:
        question.result(60)
    assert error.value.code == "failed"
    assert joined[0].of("evicted")[0]["why"] == "evicted by default"


def test_members_are_told_of_the_threads_of_their_tree() -> None:
    drivers = [FakeDriver(name="root"), FakeDriver(name="leaf1"), FakeDriver(name="leaf2")]
    for number, (driver, threads) in enumerate(zip(drivers, (2, 3, 1), strict=True)):
        driver.threads, driver.address = threads, (f"127.2.0.{number + 1}", 48879)
    controller = Controller(drivers, slots=16, wiring=wired(2))
    controller.start()
    try:
        up(controller)
        for name, leaves, threads in (("both", (1, 2), 6), ("rack", (1, 1), 3)):
            lines = [Recorder() for _ in leaves]
            for rank, leaf in enumerate(leaves):
                request = JoinRequest(rank, 2, address(leaf, rank), 4000)
                controller.join(OPEN, name, request, lines[rank])
            told = [line.wait()["switch"] for line in lines]
            assert [each["name"] for each in told] == [f"leaf{leaf}" for leaf in leaves]
            assert [each["threads"] for each in told] == [threads] * 2
    finally:
        controller.close()


def test_a_dead_switch_holds_up_nobody_else() -> None:
    class Stuck(FakeDriver):
        gate = threading.Event()

        def install_job(self, entry: JobEntry) -> None:
            self.gate.wait(60)
            super().install_job(entry)

    stuck, good = Stuck(name="a"), FakeDriver(name="b")
    controller = Controller([stuck, good], slots=16)
    controller.start()
    try:
        up(controller)
        controller.create(OPEN, JobSpec("slow", 1, switch="a"))
        controller.create(OPEN, JobSpec("quick", 1, switch="b"))
        slow, quick = Recorder(), Recorder()
        controller.join(OPEN, "slow", asked(0, 1), slow)
        controller.join(OPEN, "quick", asked(0, 1), quick)
        assert quick.wait()["switch"]["name"] == "b"
        assert slow.events == []
        stats = [job["name"] for job in controller.queries.snapshot(OPEN)["jobs"]]
        assert stats == ["quick", "slow"]
        stuck.gate.set()
        assert slow.wait()["switch"]["name"] == "a"
    finally:
        stuck.gate.set()
        controller.close()


def test_what_a_switch_did_not_do_is_mended(controller: Controller, driver: FakeDriver) -> None:
    lines = join_all(controller, on_loss=OnLoss.shrink)
    (job_id,) = driver.jobs
    driver.fence_fails = 1
    controller.stream_closed(lines[1])
    eventually(lambda: driver.fenced == {job_id: 0b10})  # by the next reconcile
    driver.remove_fails = 1
    controller.leave(OPEN, "a", 0, token(lines[0]))
    eventually(lambda: driver.jobs == {})


def test_slots_are_nobody_elses_while_the_switch_may_have_them(
    controller: Controller, driver: FakeDriver
) -> None:
    # The fake asserts that no two jobs on it share a slot.
    (line,) = join_all(controller, "old", 1)
    with frozen(controller) as release:
        driver.remove_fails = 1
        controller.leave(OPEN, "old", 0, token(line))
        line = Recorder()
        controller.join(OPEN, "new", asked(0, 1), line)
        release()
    assert line.wait()["base"] == 0
    assert list(driver.jobs) == [line.wait()["job"]]
    controller.evict(OPEN, "new")

    driver.refuse, driver.half = "no answer", True
    line = Recorder()
    controller.join(OPEN, "half", asked(0, 1), line)
    with pytest.raises(AdmissionError, match="no answer"):
        line.wait()
    driver.refuse = None
    (line,) = join_all(controller, "whole", 1)
    assert list(driver.jobs) == [line.wait()["job"]]
    kinds = [event["kind"] for event in controller.queries.events(OPEN)]
    assert kinds.count("switch_up") == 1


def test_a_driver_that_fails_otherwise_leaves_nobody_waiting(
    controller: Controller, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(entry: JobEntry) -> None:
        raise KeyError(entry.base)

    monkeypatch.setattr(driver, "install_job", fails)
    line = Recorder()
    controller.join(OPEN, "a", asked(0, 1), line)
    with pytest.raises(AdmissionError, match=r"its driver failed: KeyError\(0\)") as error:
        line.wait()
    assert error.value.code == "switch"
    monkeypatch.undo()
    join_all(controller, "a", 1)


def test_secrets_are_in_no_repr(controller: Controller, driver: FakeDriver) -> None:
    lines = join_all(controller)
    (entry,) = driver.jobs.values()
    (job,) = controller._core.book.table.jobs()
    shown = repr((entry, job, job.members[0], job.members[0].admission, job.generation))
    for secret in (entry.result_token, *(worker.token for worker in entry.workers)):
        assert str(secret) not in shown
    for line in lines:
        assert repr(bytes.fromhex(line.wait()["heartbeat"]["cookie"])) not in shown


def test_questions_wait_behind_changes(controller: Controller, driver: FakeDriver) -> None:
    lines = join_all(controller, on_loss=OnLoss.shrink)
    order: list[str] = []
    fence = driver.fence

    def fenced(job_id: int, bits: int) -> None:
        order.append("fenced")
        fence(job_id, bits)

    driver.fence = fenced  # type: ignore[method-assign]
    read = driver.counters

    def counters() -> dict[str, int]:
        order.append("asked")
        return read()

    with ThreadPoolExecutor(8) as pool, frozen(controller) as release:
        driver.counters = counters  # type: ignore[method-assign]
        asking = [pool.submit(controller.queries.stats, OPEN) for _ in range(8)]
        time.sleep(0.3)  # until they are in the queue
        controller.stream_closed(lines[1])
        release()
        for each in asking:
            each.result(60)
    assert order[0] == "fenced"
    assert len(order) >= 9


def test_a_switch_that_goes_and_comes_back(controller: Controller, driver: FakeDriver) -> None:
    kept = join_all(controller, "kept")
    gone = join_all(controller, "gone")
    assert driver.callback is not None
    driver.callback(SwitchChange(ChangeKind.lost, "connection refused"))
    eventually(lambda: controller.queries.switches(OPEN)[0]["state"] == "down")
    waiting = [Recorder() for _ in range(2)]
    for rank, line in enumerate(waiting):
        controller.join(OPEN, "later", asked(rank), line)
    assert controller.queries.job(OPEN, "later")["state"] == "queued"  # type: ignore[index]
    del driver.jobs[gone[0].wait()["job"]]
    driver.callback(SwitchChange(ChangeKind.connected))
    for line in waiting:
        assert line.wait()["world_size"] == 2
    eventually(lambda: gone[0].of("failover") and gone[1].of("failover"))
    assert "restarted" in gone[1].of("failover")[0]["why"]
    assert kept[0].of("failover") == []
    assert controller.queries.job(OPEN, "kept")["state"] == "running"  # type: ignore[index]
    assert {event["kind"] for event in controller.queries.events(OPEN)} >= {
        "switch_down",
        "switch_up",
        "reconciled",
    }


def test_tenants_see_and_touch_their_own(controller: Controller) -> None:
    a, b = Tenant("a", quota=Quota(jobs=1)), Tenant("b")
    (mine,) = join_all(controller, "x", 1, tenant=a)
    join_all(controller, "x", 1, tenant=b)
    assert [job["tenant"] for job in controller.queries.jobs(a)] == ["a"]
    assert [job["tenant"] for job in controller.queries.jobs(OPEN)] == ["a", "b"]
    ranges = controller.queries.slots(a)["ranges"]
    assert [(each["name"], each["tenant"]) for each in ranges] == [("x", "a"), (None, None)]
    assert [job["tenant"] for job in controller.queries.stats(b)["jobs"]] == ["b"]
    assert {event["tenant"] for event in controller.queries.events(a)} == {"a", None}
    with pytest.raises(AdmissionError, match="its quota is 1"):
        controller.create(a, JobSpec("y", 1))
    for call in (
        lambda: controller.evict(Tenant("c"), "x"),
        lambda: controller.drain(Tenant("c"), "x"),
        lambda: controller.leave(Tenant("c"), "x", 0, token(mine)),
        lambda: controller.attach(b, "x", 0, token(mine), Recorder()),
        lambda: controller.drain_switch(a, "fake"),
        lambda: controller.drain_switch(OPEN, "none"),
    ):
        with pytest.raises(AdmissionError):
            call()
    with pytest.raises(AdmissionError, match=r"tenants a, b each have a job 'x'"):
        controller.evict(OPEN, "x")
    admin = Tenant("b", by="chief")
    assert controller.evict(admin, "x")["why"] == "evicted by chief"
    assert controller.drain_switch(OPEN, "fake")["state"] == "draining"
    assert controller.undrain_switch(OPEN, "fake")["state"] == "up"
    assert controller.queries.census() == {("a", "running"): 1, ("b", "failed"): 1}


def test_two_switches_of_one_name() -> None:
    with pytest.raises(UsageError, match="two switches are called 'fake'"):
        Controller([FakeDriver(), FakeDriver()])


def test_no_view_holds_a_secret(controller: Controller, driver: FakeDriver) -> None:
    lines = join_all(controller)
    (entry,) = driver.jobs.values()
    shown = str(
        [
            controller.queries.jobs(OPEN),
            controller.queries.slots(OPEN),
            controller.queries.stats(OPEN),
            controller.queries.snapshot(OPEN),
            controller.queries.waiting_slots(OPEN, "a"),
            controller.queries.health(),
            controller.queries.events(OPEN),
        ]
    )
    for secret in (entry.result_token, *(worker.token for worker in entry.workers)):
        assert str(secret) not in shown
    for line in lines:
        assert line.wait()["heartbeat"]["cookie"] not in shown


# ------------------------------------------------------------------ restarts


def test_many_jobs_from_many_threads(controller: Controller, driver: FakeDriver) -> None:
    seed = seed_of_this_run()

    def one(number: int) -> None:
        draw = random.Random(seed + number)
        for _ in range(6):
            lines = join_all(controller, f"job{number}", draw.randint(1, 4), deadline=600.0)
            for rank, line in enumerate(lines):
                if draw.random() < 0.7:
                    controller.leave(OPEN, f"job{number}", rank, token(line))
                controller.stream_closed(line)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(16)))
    eventually(lambda: driver.jobs == {})
    assert driver.installed == 96
    assert controller.queries.slots(OPEN)["free"] == 4096


def test_an_error_in_one_job_does_not_stop_deadlines(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = join_all(controller, deadline=1.0)
    calls = []

    def fails(*_: Any) -> None:
        calls.append(1)
        raise ZeroDivisionError

    controller.beat(OPEN, "a", 0, token(lines[0]), FIELDS)
    monkeypatch.setattr(History, "sample", fails)
    eventually(lambda: bool(calls))
    eventually(lambda: bool(lines[0].of("lost")))

"""The P4Runtime driver in front of a native switch in a process of its own, with workers on real sockets."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

import worker_lib
from switchagg.control.controller import Controller
from switchagg.control.drivers.p4runtime import P4RuntimeDriver
from switchagg.control.jobs.job import init_packets
from switchagg.control.jobs.records import OPEN
from switchagg.control.service import ControlServer
from switchagg.control.switch_specs import parse_switch
from switchagg.errors import CollectiveTimeout, SwitchError
from switchagg.p4runtime.client import spec as p4rt_spec
from switchagg.rules.switch import Reconciled
from tests.seeds import seed_of_this_run
from tests.switchagg.emulator.plain_workers import PlainWorkers, reduce_rounds
from tests.waiting import eventually
from tests.worker_lib.harness import in_threads


class NativeSwitch:
    """A `switchagg switch --p4runtime` that can be killed and started again at the same addresses."""

    def __init__(self) -> None:
        self.server, self.udp = "127.0.0.1:0", "0"
        self.start()

    def start(self) -> None:
        line = [sys.executable, "-m", "switchagg.cli.main", "switch", "--json"]
        line += ["--port", self.udp, "--p4runtime", self.server]
        self._process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        ready = json.loads(self._process.stdout.readline())
        self.server, self.udp = ready["p4runtime"], str(ready["port"])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def driver(self) -> P4RuntimeDriver:
        return P4RuntimeDriver(p4rt_spec.from_table("native", {"url": f"p4runtime://{self.server}"}))


@pytest.fixture
def switch() -> Iterator[NativeSwitch]:
    made = NativeSwitch()
    yield made
    made.kill()


def _initialise(driver: P4RuntimeDriver, workers: PlainWorkers) -> None:
    packets = list(init_packets(workers.entry, 0).values())
    assert sorted(driver.packets_out(packets)) == sorted(packets)


def test_jobs_of_any_k_a_fence_and_a_new_driver_that_writes_nothing(switch: NativeSwitch) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    driver = switch.driver()
    assert driver.target == "native"
    assert driver.capacity.exact_words is None
    with (
        PlainWorkers(3, words=2000, slots=8, job=5).at(driver.address) as large,
        PlainWorkers(2, words=16, slots=8, job=6, base=64).at(driver.address) as small,
    ):
        for workers in (large, small):
            driver.install_job(workers.entry)
            _initialise(driver, workers)
            reduce_rounds(workers, 20, rng)
        counters = driver.job_counters(5)
        assert (counters["results"], counters["inits"], counters["worker_2_packets"]) == (20, 8, 20)
        driver.fence(5, 0b100)
        large.send(2, 20, np.zeros(2000, np.uint32))
        eventually(lambda: driver.job_counters(5)["source"] == 1)
        driver.close()

        again = switch.driver()
        found = again.reconcile([large.entry, small.entry], {5: 0b100})
        assert found == Reconciled(kept=(5, 6))
        assert again.writes.total() == 0
        small.first_seq = 20
        reduce_rounds(small, 8, rng)
        again.remove_job(5)
        again.remove_job(6)
        assert again.reconcile([], {}) == Reconciled()
        again.close()


def test_a_switch_that_was_restarted_lacks_its_jobs(switch: NativeSwitch) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    driver = switch.driver()
    kinds: list[str] = []
    driver.watch(lambda change: kinds.append(change.kind))
    with PlainWorkers(3, words=100, slots=8, job=5).at(driver.address) as workers:
        driver.install_job(workers.entry)
        _initialise(driver, workers)
        switch.kill()
        with pytest.raises(SwitchError):
            driver.install_job(workers.entry)
        switch.start()
        eventually(lambda: kinds[-1:] == ["restarted"])
        found = driver.reconcile([workers.entry], {5: 0b010})
        assert found == Reconciled(missing=(5,))
        found = driver.reconcile(
            [workers.entry], {}
        )  # another controller must not take empty slots for its own
        assert found == Reconciled(missing=(5,))
        driver.install_job(workers.entry)
        _initialise(driver, workers)
        reduce_rounds(workers, 16, rng)
    driver.close()


def test_a_controller_that_was_there_first(switch: NativeSwitch) -> None:
    switch.kill()
    driver = switch.driver()
    controller = Controller([driver])
    controller.start()
    try:
        eventually(lambda: "Connection refused" in (controller.queries.switches(OPEN)[0]["why"] or ""))
        assert controller.queries.switches(OPEN)[0]["state"] == "down"
        switch.start()
        eventually(lambda: controller.queries.switches(OPEN)[0]["state"] == "up")
        (seen,) = controller.queries.switches(OPEN)
        assert (seen["capacity"]["slots"], seen["capacity"]["exact_words"]) == (65536, None)
    finally:
        controller.close()
        driver.close()


def test_a_time_out_after_a_failover_names_who_is_late(
    switch: NativeSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets that the switch before has refused say nothing of the present one."""
    with contextlib.ExitStack() as stack:
        switches = {"a": switch, "b": NativeSwitch()}
        stack.callback(switches["b"].kill)
        specs = [parse_switch(f"{name}=p4runtime://{each.server}") for name, each in switches.items()]
        drivers = [P4RuntimeDriver(spec) for spec in specs]  # type: ignore[arg-type]
        killed, refused, over = threading.Event(), threading.Event(), threading.Barrier(2)

        def watch(driver: P4RuntimeDriver, tell: Callable[[Any], None]) -> None:
            """Has the controller hear of the end of a switch when a rank has."""

            def heard(change: Any) -> None:
                assert not killed.is_set() or refused.wait(60)
                tell(change)

            P4RuntimeDriver.watch(driver, heard)

        for driver in drivers:
            stack.callback(driver.close)
            monkeypatch.setattr(driver, "watch", functools.partial(watch, driver))
        server = ControlServer(Controller(drivers))
        stack.callback(server.close)
        server.start()
        queries = server.controller.queries
        eventually(lambda: set(queries.health()["switches"].values()) == {"up"})

        def rank(r: int) -> str:
            given = {"transport": "udp", "deadline": 60, "slots": 16}
            with worker_lib.connect(server.url, "j", r, 2, **given) as session:
                session.barrier()
                if r == 0:
                    killed.set()
                    switches[queries.jobs(OPEN)[0]["switch"]].kill()
                work = session.allreduce_async(np.full(1000, 1 + r, np.int32))
                if r == 0:
                    eventually(lambda: work.done() or session.stats()["refused"] > 0)
                    refused.set()
                assert (work.wait(60) == 3).all()
                if r == 0:
                    assert session.stats()["refused"] > 0
                    with pytest.raises(CollectiveTimeout) as caught:
                        session.allreduce(np.ones(1000, np.int32), timeout=2)
                over.wait(60)
            return "" if r else str(caught.value)

        said = in_threads([lambda: rank(0), lambda: rank(1)])[0].get()
        assert "other ranks are late" in said
        assert "refuses" not in said

"""A tree of native switches in processes of their own, over P4Runtime, that are killed and come back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

import worker_lib
from switchagg.control.controller import Controller
from switchagg.control.drivers.p4runtime import P4RuntimeDriver
from switchagg.control.jobs.records import OPEN
from switchagg.control.service import ControlServer
from switchagg.control.switch_specs import parse_switch, wiring
from switchagg.errors import SwitchAggError
from tests.waiting import eventually
from tests.worker_lib.harness import Outcome, in_threads

from .test_native_switch import NativeSwitch

RANKS = 4
DATA = np.arange(RANKS * 5000, dtype=np.int32).reshape(RANKS, 5000)


@dataclass
class Forest:
    switches: dict[str, NativeSwitch]
    server: ControlServer

    def up(self) -> None:
        eventually(lambda: set(self.server.controller.queries.health()["switches"].values()) == {"up"})

    def run(self, function: Callable[[worker_lib.Session], Any], **settings: Any) -> list[Outcome]:
        """Runs a function at ranks 0 to 3, of which the even ones are at leaf1."""

        def rank(r: int) -> Any:
            address = f"127.1.{1 + r % 2}.{1 + r}"
            given = {"slots": 16, "timeout": 120.0, **settings}
            with worker_lib.connect(self.server.url, "j", r, RANKS, address=address, **given) as session:
                return function(session)

        return in_threads([functools.partial(rank, r) for r in range(RANKS)])

    def free(self) -> None:
        slots = self.server.controller.queries.slots
        eventually(lambda: slots(OPEN)["free"] == slots(OPEN)["capacity"])


@pytest.fixture
def forest() -> Iterator[Forest]:
    with contextlib.ExitStack() as stack:
        switches = {name: NativeSwitch() for name in ("root", "leaf1", "leaf2")}
        specs = {}
        for number, (name, switch) in enumerate(switches.items()):
            stack.callback(switch.kill)
            below = f"?parent=root&host=127.1.{number}.0/24" if number else ""
            specs[name] = parse_switch(f"{name}=p4runtime://{switch.server}{below}")
        drivers = [P4RuntimeDriver(spec) for spec in specs.values()]  # type: ignore[arg-type]
        for driver in drivers:
            stack.callback(driver.close)
        server = ControlServer(Controller(drivers, wiring=wiring(specs)))
        stack.callback(server.close)
        server.start()
        made = Forest(switches, server)
        made.up()
        yield made


def _exact(forest: Forest) -> None:
    for outcome in forest.run(lambda session: session.allreduce(DATA[session.rank].copy())):
        assert (outcome.get() == DATA.sum(0)).all()
    forest.free()


def _on_and_on(session: worker_lib.Session) -> None:
    while True:
        session.allreduce(DATA[session.rank].copy())


def test_a_leaf_is_killed_and_comes_back(forest: Forest) -> None:
    _exact(forest)

    def work(session: worker_lib.Session) -> None:
        session.barrier()
        if session.rank == 0:
            forest.switches["leaf2"].kill()
            eventually(lambda: forest.server.controller.queries.health()["switches"]["leaf2"] == "down")
        _on_and_on(session)

    errors = [outcome.error for outcome in forest.run(work, transport="udp")]
    # The other leaf's workers hear that these have gone.
    assert all(isinstance(error, SwitchAggError) for error in errors), [repr(error) for error in errors]
    assert any("is gone: its port refuses packets" in str(error) for error in errors), errors
    forest.free()
    forest.switches["leaf2"].start()
    forest.up()
    _exact(forest)


def test_a_root_that_restarts(forest: Forest) -> None:
    def work(session: worker_lib.Session) -> int:
        session.barrier()
        if session.rank == 0:
            forest.switches["root"].kill()
            forest.switches["root"].start()
        for _ in range(500):
            assert (session.allreduce(DATA[session.rank].copy()) == DATA.sum(0)).all()
        return session.stats()["collectives"]

    for outcome in forest.run(work, transport="udp", deadline=60):
        assert outcome.get() >= 500
    kinds = [each["kind"] for each in forest.server.controller.queries.events(OPEN, job="j")]
    assert (kinds.count("moving"), kinds.count("moved")) == (1, 1)
    forest.free()
    forest.up()
    _exact(forest)

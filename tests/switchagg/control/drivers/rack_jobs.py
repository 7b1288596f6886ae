"""Scenarios in a rack with real workers, each on its own host. Run by `rack.in_namespace`.

    python -m tests.switchagg.control.drivers.rack_jobs p4|bmv2 FOLDER

Prints one JSON object: for each act, what was seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from switchagg.control.controller import Controller
from switchagg.control.drivers.p4runtime import P4RuntimeDriver
from switchagg.control.jobs.records import OPEN
from switchagg.control.service import ControlServer
from switchagg.control.store import Store
from tests.switchagg.control.drivers.model_switch import counted, until
from tests.switchagg.control.drivers.rack import MGMT_IP, Rack

# Sums until it is told to stop, and says after each whether it was exact.
WORKER = """
import json, os, sys, threading
import numpy as np
import worker_lib
from switchagg.errors import SwitchAggError

def say(**said):
    print(json.dumps(said), flush=True)

stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
session = worker_lib.connect(address=os.environ["WORKER_ADDRESS"], job=sys.argv[1], timeout=120, slots=16)
turn = 0
try:
    while True:
        n = 200 + 37 * (turn % 5)
        draw = lambda rank: np.random.default_rng([rank, turn]).integers(-2**29, 2**29, n, dtype=np.int32)
        given = [draw(rank) for rank in range(session.world_size)]
        mine = given[session.rank].copy()
        session.allreduce(mine)
        last = np.array([int(stop.is_set())], np.int32)
        session.allreduce(last)
        turn += 1
        say(turn=turn, exact=bool((mine == sum(given)).all()))
        if last[0]:
            break
    session.close()
except SwitchAggError as error:
    say(error=type(error).__name__, text=str(error), ranks=list(getattr(error, "ranks", ())))
"""


class Play:
    """A rack, its driver, and a controller whose state is in a file."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.rack = Rack(engine, 4, folder)
        self._folder = folder
        self.open()

    def open(self) -> None:
        """Starts a controller."""
        self.driver = P4RuntimeDriver(self.rack.spec())
        self.store = Store(self._folder / "state.db")
        self.controller = Controller([self.driver], store=self.store)
        self.server = ControlServer(self.controller, MGMT_IP, 0)
        self.server.start()

    def close(self) -> None:
        """Ends it."""
        self.server.close()
        self.controller.close()
        self.driver.close()
        self.store.close()

    def job(self, name: str, act: Callable[[list[Talk]], None]) -> list[list[dict[str, Any]]]:
        """Runs a job, something that happens to it, and returns what each worker said."""
        with self.rack.workers(self.server.url, WORKER, name) as processes:
            return heard(processes, act)


class Talk:
    """The messages of a worker, read as they come, so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, turns: int) -> None:
        """Waits until it has done as many turns, or ended."""
        with self._more:
            while self._reader.is_alive() and not (self.said and self.said[-1].get("turn", turns) >= turns):
                self._more.wait(1)

    def stop(self) -> None:
        """Tells it to stop after its next turn."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except OSError:
            pass

    def rest(self) -> list[dict[str, Any]]:
        """Everything that it has said, to the end."""
        self._reader.join()
        return self.said

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.said.append(json.loads(line))
                self._more.notify()


def heard(
    processes: Sequence[subprocess.Popen[str]], act: Callable[[list[Talk]], None]
) -> list[list[dict[str, Any]]]:
    """Returns all that each worker has said after something that happens to them; ends them."""
    talks = [Talk(each) for each in processes]
    try:
        act(talks)
        for each in talks:
            each.stop()
        return [each.rest() for each in talks]
    finally:
        for each in talks:
            each.process.kill()
            each.rest()


def play(engine: str, folder: Path) -> dict[str, Any]:
    """All acts, one after the other."""
    found: dict[str, Any] = {}
    stage = Play(engine, folder)
    with stage.rack:
        found["capacity"] = stage.driver.capacity.exact_words

        def all_go_on(talks: list[Talk]) -> None:
            for each in talks:
                each.until(5)

        def one_dies(talks: list[Talk]) -> None:
            all_go_on(talks)
            talks[2].process.kill()

        found["killed"] = stage.job("killed", one_dies)
        found["counters"] = counted(stage.driver.counters())

        def the_switch_dies(talks: list[Talk]) -> None:
            for each in talks:
                each.until(2)
            stage.rack.kill_switch()
            stage.rack.start_switch()
            for each in talks:
                each.until(each.said[-1]["turn"] + 20)

        found["restarted"] = stage.job("restarted", the_switch_dies)
        found["after"] = stage.job("after", all_go_on)
        until(lambda: not stage.controller.queries.slots(OPEN)["ranges"])
        found["left"] = list(stage.driver.reconcile([], {}).removed)
        stage.close()
    return found


if __name__ == "__main__":
    print(json.dumps(play(sys.argv[1], Path(sys.argv[2]))))

"""A session's controller is killed and started again, in front of a switch that runs on."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

import worker_lib
from tests.switchagg.control.drivers.test_two_switches import Site
from tests.waiting import eventually
from worker_lib import WorkerLostError

from .harness import in_threads
from .test_changes import places, sum_of, vanish


def test_a_rank_that_dies_while_the_controller_is_away(tmp_path: Path) -> None:
    """Collectives go on without a controller until the death; the others hear of it when it is back."""
    site = Site(tmp_path / "state")
    dead, up = threading.Event(), threading.Event()
    reached: dict[int, int] = {}

    def member(rank: int) -> Any:
        session = worker_lib.connect(
            f"http://127.0.0.1:{site.port}", "j", rank, 3, on_loss="shrink", deadline=1.0, timeout=30.0
        )
        total, lost = sum_of(session), ()
        while not lost:
            assert places(total) == (0, 1, 2)
            reached[rank] = reached.get(rank, 0) + 1
            if rank == 1 and dead.is_set():
                return vanish(session)
            try:
                total = sum_of(session)
            except WorkerLostError as error:
                lost = error.ranks
        with session:
            return lost, [places(sum_of(session)) for _ in range(20)], up.is_set()

    def strikes() -> None:
        eventually(lambda: len(reached) == 3)
        site.kill_controller()
        before = dict(reached)
        eventually(lambda: all(reached[r] >= before[r] + 100 for r in range(3)))  # without the controller
        dead.set()
        time.sleep(0.3)
        up.set()
        site.start_controller()

    try:
        first, second, last, struck = in_threads([*(lambda r=r: member(r) for r in range(3)), strikes], 200)
        struck.get()
        assert second.get() is None
        for outcome in (first, last):
            assert outcome.get() == ((1,), [(0, 2)] * 20, True)
        eventually(lambda: not any(each["ranges"] for each in site.get("/v1/switches")))
    finally:
        site.close()

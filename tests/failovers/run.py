"""Runs a list of all-reduces and reduce-scatters twice: undisturbed, and with a switch killed in each."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.switchagg.control.drivers.test_two_switches import Site
from tests.waiting import eventually

CALLS: Final[tuple[dict[str, Any], ...]] = (
    {"blocks": "dense"},
    {"blocks": "sparse"},
    {"blocks": "dense", "bits": 32},
    {"blocks": "dense", "bits": 8},
    {"blocks": "dense", "accuracy": "exact"},
    {"blocks": "dense", "scattered": True},
    {"blocks": "dense", "accuracy": "exact", "scattered": True},
)


@dataclass(frozen=True)
class Kill:
    """One all-reduce in which a switch was killed.

    Attributes:
        call: the arguments of the all-reduce.
        switch: the one that was killed.
        after: seconds from the call to the kill.
        seconds: that the call took. undisturbed: that it took in the undisturbed job.
        same: True if every rank has the bits of the undisturbed job.
    """

    call: dict[str, Any]
    switch: str
    after: float
    seconds: float
    undisturbed: float
    same: bool


class Workers:
    """The workers of one job."""

    def __init__(self, site: Site, job: str, count: int, elements: int, transport: str) -> None:
        where = f"http://127.0.0.1:{site.port}"
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.failovers.worker",
                 where, job, str(rank), str(count), str(elements), transport],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(count)
        ]  # fmt: skip
        self._read()

    def begin(self, call: dict[str, Any]) -> None:
        """Has every rank begin an all-reduce."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(call) + "\n")
            process.stdin.flush()

    def end(self) -> tuple[set[str], float]:
        """Waits for it; returns the hashes of all results, and the longest time."""
        said = self._read()
        return {each["sha256"] for each in said}, max(each["seconds"] for each in said)

    def _read(self) -> list[dict[str, Any]]:
        lines = []
        for process in self._processes:
            assert process.stdout is not None
            lines.append(process.stdout.readline())
        if not all(lines):
            raise RuntimeError(f"ranks ended: {[rank for rank, line in enumerate(lines) if not line]}")
        return [json.loads(line) for line in lines]

    def close(self) -> list[int]:
        """Has all leave; returns their exit statuses."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        try:
            return [process.wait(60) for process in self._processes]
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends those that are left."""
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def _job(site: Site, name: str, count: int, elements: int, transport: str) -> Iterator[Workers]:
    workers = Workers(site, name, count, elements, transport)
    try:
        yield workers
        statuses = workers.close()
        if any(statuses):
            raise RuntimeError(f"ranks ended with {statuses}")
    finally:
        workers.kill()


def kills(
    folder: Path,
    rng: random.Random,
    count: int,
    *,
    workers: int,
    elements: int,
    transport: str,
    controller: bool,
) -> Iterator[Kill]:
    """Yields `count` kills, after each of which the switch is started again, for the next one.

    Args:
        elements: of the tensor, float32.
        controller: kill it too, at the same time, and start another.

    Raises:
        RuntimeError: a rank has ended, or the job is not on a switch.
    """
    calls = [rng.choice(CALLS) for _ in range(count)]
    site = Site(folder / "state")
    try:
        with _job(site, "undisturbed", workers, elements, transport) as job:
            right = [_call(job, call) for call in calls]
        typical = median(seconds for _, seconds in right)
        with _job(site, "disturbed", workers, elements, transport) as job:
            for call, (sums, undisturbed) in zip(calls, right, strict=True):
                yield _one(site, job, call, sums, undisturbed, rng.random() * typical, controller)
    finally:
        site.close()


def _call(job: Workers, call: dict[str, Any]) -> tuple[set[str], float]:
    job.begin(call)
    return job.end()


def _one(
    site: Site,
    job: Workers,
    call: dict[str, Any],
    right: set[str],
    undisturbed: float,
    after: float,
    controller: bool,
) -> Kill:
    (switch,) = (each["switch"] for each in site.get("/v1/jobs") if each["name"] == "disturbed")
    job.begin(call)
    time.sleep(after)
    site.kill_switch(switch)
    if controller:
        site.kill_controller()
        site.start_controller_only()
    sums, seconds = job.end()
    site.start_switch(switch)
    eventually(lambda: all(each["state"] == "up" for each in site.get("/v1/switches")), 60)
    same = sums == right and (call.get("scattered", False) or len(right) == 1)
    return Kill(call, switch, after, seconds, undisturbed, same)


def table(done: Sequence[Kill]) -> str:
    """Returns the figures of some kills, for people."""
    pauses = [(each.seconds - each.undisturbed) * 1e3 for each in done]
    wrong = sum(not each.same for each in done)
    return (
        f"{len(done)} kills, {len(done) - wrong} with the bits of the undisturbed job; an all-reduce took "
        f"{median(pauses):.0f} ms longer (median), {max(pauses):.0f} ms at most"
    )

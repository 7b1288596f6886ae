"""Runs all-reduces and reduce-scatters twice: undisturbed, and with a switch killed or drained in each."""

from __future__ import annotations

import json
import os
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
    {"scattered": True},
    {"accuracy": "exact", "scattered": True},
    {"blocks": "dense", "pieces": 8},
)
# Two trees: the left half of the ranks has two leaves under the first root.
TREES: Final = {
    "root": "host=127.9.0.0/24",
    "left": "parent=root&host=127.0.1.0/24",
    "other_left": "parent=root&host=127.0.1.0/24",
    "right": "parent=root&host=127.0.2.0/24",
    "second_root": "host=127.9.0.0/24",
    "second_left": "parent=second_root&host=127.0.1.0/24",
    "second_right": "parent=second_root&host=127.0.2.0/24",
}
VICTIMS: Final = ("switch", "leaf", "root", "drained")


@dataclass(frozen=True)
class Kill:
    """One all-reduce in which a switch was killed.

    Attributes:
        call: the arguments of the all-reduce.
        switch: the one that was killed.
        after: seconds from the call to the kill.
        seconds: that the call took. undisturbed: that it took in the undisturbed job.
        restart: until a controller that was killed too had been started again; 0 where it was not.
        same: True if every rank has the bits of the undisturbed job.
    """

    call: dict[str, Any]
    switch: str
    after: float
    seconds: float
    undisturbed: float
    restart: float
    same: bool

    @property
    def late(self) -> bool:
        """True if the call had ended before the kill."""
        return self.seconds <= self.after

    @property
    def pause(self) -> float:
        """Seconds that the call took longer, without the controller's restart."""
        return self.seconds - self.undisturbed - (0 if self.late else self.restart)


def _row(stripes: int) -> dict[str, str]:
    """Returns switches for a job in stripes, and one more, with different weights."""
    return {name: f"bandwidth={1 + at}Gbit" for at, name in enumerate("abcdefgh"[: stripes + 1])}


class Workers:
    """The workers of one job."""

    def __init__(
        self, site: Site, job: str, count: int, elements: int, transport: str, victim: str, stripes: int
    ) -> None:
        where = f"http://127.0.0.1:{site.port}"
        halves = [1 + 2 * rank // count for rank in range(count)]
        addresses = [
            f"127.0.{half}.{1 + rank}" if victim in ("leaf", "root") else "127.0.0.1"
            for rank, half in enumerate(halves)
        ]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.failovers.worker",
                 where, job, str(rank), str(count), str(elements), transport, addresses[rank]],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "SWITCHAGG_STRIPES": str(stripes)},
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
def _job(
    site: Site, name: str, count: int, elements: int, transport: str, victim: str, stripes: int
) -> Iterator[Workers]:
    workers = Workers(site, name, count, elements, transport, victim, stripes)
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
    controller: bool = False,
    victim: str = "switch",
    stripes: int = 1,
) -> Iterator[Kill]:
    """Yields `count` kills, after each of which the switch is started again, for the next one.

    Args:
        victim: one of `VICTIMS`. Of a leaf or a root the job runs on a tree, and there is another. "drained":
            the switch is not killed, but drained, until the call has ended.
        elements: of the tensor, float32.
        controller: kill it too, at the same time, and start another.
        stripes: switches that the job is dealt to; there is one more.

    Raises:
        RuntimeError: a rank has ended, or the job is not on a switch.
    """
    calls = [CALLS[-1], *(rng.choice(CALLS) for _ in range(count - 1))]  # asynchronous ones at least once
    tree = victim in ("leaf", "root")
    site = Site(folder / "state", TREES if tree else _row(stripes))
    try:
        with _job(site, "undisturbed", workers, elements, transport, victim, stripes) as job:
            right = [_call(job, call) for call in calls]
        with _job(site, "disturbed", workers, elements, transport, victim, stripes) as job:
            for call, (sums, undisturbed) in zip(calls, right, strict=True):
                (found,) = (each for each in site.get("/v1/jobs") if each["name"] == "disturbed")
                leaves = [leaf["switch"] for leaf in found["leaves"]]
                dealt = [stripe["switch"] for stripe in found["stripes"]]
                switch = rng.choice(leaves if victim == "leaf" else dealt or [found["switch"]])
                assert bool(leaves) == tree, found
                assert len(dealt) == (stripes if stripes > 1 else 0), found
                after = rng.random() * undisturbed
                if victim == "drained":
                    yield _drained(site, job, switch, call, sums, undisturbed, after)
                else:
                    yield _one(site, job, switch, call, sums, undisturbed, after, controller)
    finally:
        site.close()


def _call(job: Workers, call: dict[str, Any]) -> tuple[set[str], float]:
    job.begin(call)
    return job.end()


def _one(
    site: Site,
    job: Workers,
    switch: str,
    call: dict[str, Any],
    right: set[str],
    undisturbed: float,
    after: float,
    controller: bool,
) -> Kill:
    job.begin(call)
    time.sleep(after)
    site.kill_switch(switch)
    restart = 0.0
    if controller:
        begun = time.monotonic()
        site.kill_controller()
        site.start_controller_only()
        site.get("/healthz")  # its first answer
        restart = time.monotonic() - begun
    sums, seconds = job.end()
    site.start_switch(switch)
    eventually(lambda: all(each["state"] == "up" for each in site.get("/v1/switches")), 60)
    return Kill(call, switch, after, seconds, undisturbed, restart, _same(call, sums, right))


def _same(call: dict[str, Any], sums: set[str], right: set[str]) -> bool:
    return sums == right and (call.get("scattered", False) or len(right) == 1)


def _drained(
    site: Site,
    job: Workers,
    switch: str,
    call: dict[str, Any],
    right: set[str],
    undisturbed: float,
    after: float,
) -> Kill:
    job.begin(call)
    time.sleep(after)
    site.post(f"/v1/switches/{switch}/drain")
    sums, seconds = job.end()
    eventually(lambda: switch not in _switches(site), 60)
    site.post(f"/v1/switches/{switch}/undrain")
    return Kill(call, switch, after, seconds, undisturbed, 0.0, _same(call, sums, right))


def _switches(site: Site) -> set[str]:
    found = site.get("/v1/jobs/disturbed")
    return {found["switch"], *(stripe["switch"] for stripe in found["stripes"])}


def table(done: Sequence[Kill]) -> str:
    """Returns the figures of some kills, for people."""
    pauses = [each.pause * 1e3 for each in done]
    wrong = sum(not each.same for each in done)
    restarts = [each.restart * 1e3 for each in done]
    without = (
        f", without the controller's restart of {median(restarts):.0f} ms (median)" if any(restarts) else ""
    )
    return (
        f"{len(done)} kills, {sum(not each.late for each in done)} of them in the middle of an all-reduce; "
        f"{len(done) - wrong} with the bits of the undisturbed job; it took "
        f"{median(pauses):.0f} ms longer (median), {max(pauses):.0f} ms at most{without}"
    )

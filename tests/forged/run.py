"""Has a job add tensors over UDP, while another process forges packets, kind after kind."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

import numpy as np

import worker_lib
from tests.forged.sender import KINDS, Job
from tests.waiting import eventually
from worker_lib.embedded import Embedded, start_embedded


@dataclass(frozen=True)
class Forged:
    """The fate of the packets of one kind.

    Attributes:
        counted: by how much the counter of that kind has grown. lost: by the kernel, in front of the switch
            or of the ranks.
        ratios: of the job's collectives a second with them, to those without just before.
        unread: the same, where they go to a port that nobody reads.
        beside_unread: of those with them, to those where they go to that port.
    """

    kind: str
    sent: int
    counted: int
    lost: int
    ratios: tuple[float, ...]
    unread: tuple[float, ...]

    @property
    def beside_unread(self) -> tuple[float, ...]:
        """The job's pace, without the processor time that the sender takes."""
        return tuple(one / other for one, other in zip(self.ratios, self.unread, strict=True))


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median of ratios and a 95 % interval of it, by resampling."""
    draw = random.Random(1)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(1000))
    return median(ratios), medians[25], medians[974]


class _Ranks:
    """Two ranks of this process, which add until told to end; every sum is checked."""

    def __init__(self, host: Embedded, elements: int) -> None:
        self.done, self.wrong, self.packets = 0, 0, [0, 0]
        self.sessions: list[Any] = [None, None]
        self.going = threading.Event()
        self.going.set()
        self._end = False
        self._joined = threading.Barrier(3)
        self._threads = [
            threading.Thread(target=self._rank, args=(host.controller, rank, elements)) for rank in range(2)
        ]
        for each in self._threads:
            each.start()
        self._joined.wait(60)

    def _rank(self, url: str, rank: int, elements: int) -> None:
        with worker_lib.connect(url, "honest", rank, 2, transport="udp", timeout=60.0) as session:
            self.sessions[rank] = session
            self._joined.wait(60)
            for turn in range(sys.maxsize):
                self.going.wait()
                x = np.full(elements, rank + turn, np.int32)
                x[0] = self._end  # ranks see the same sum, and so stop together
                session.allreduce(x)
                self.wrong += not bool((x[1:] == 2 * turn + 1).all())
                self.done += rank == 0
                if x[0]:
                    break
            assert session._state.engine is not None
            self.packets[rank] = session._state.engine.stats()["positions"]

    def close(self) -> None:
        self._end = True
        self.going.set()
        for each in self._threads:
            each.join(60)


def run(
    counts: int, kinds: Sequence[str], seed: int, *, windows: int, share: float, elements: int
) -> Iterator[Forged]:
    """Yields the fate of `counts` packets of each kind.

    Args:
        windows: the number of times with such packets, by turns with times without.
        share: of the packets that the switch gets from the job, how many are forged.

    Raises:
        AssertionError: a sum was wrong, a slot has taken something else, or a packet was not counted.
        PermissionError: this process may not send from any address.
    """
    draw = random.Random(seed)
    with _site(elements) as (host, ranks, forger, job, sink):
        before, begun = _switch(host), time.monotonic()
        time.sleep(1.0)
        rate = share * (_switch(host)["received"] - before["received"]) / (time.monotonic() - begun)
        for kind in kinds:
            yield _one(host, ranks, forger, job, sink, kind, counts, rate, windows, draw.getrandbits(32))


@contextmanager
def _site(elements: int) -> Iterator[tuple[Embedded, _Ranks, subprocess.Popen[str], Job, int]]:
    """Yields a switch, ranks, the forger, the job as it knows it, and a port that nobody reads."""
    with start_embedded(quiet=True) as host, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unread:
        ranks = _Ranks(host, elements)
        forger = subprocess.Popen(
            [sys.executable, "-m", "tests.forged.sender"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            if _line(forger) != "ready":
                raise PermissionError("no raw sockets here")
            job = _job(host, ranks)
            unread.bind((job.switch[0], 0))
            yield host, ranks, forger, job, unread.getsockname()[1]
        finally:
            forger.kill()
            forger.communicate()
            ranks.close()
        assert ranks.wrong == 0, f"{ranks.wrong} wrong sums"
        own = sum(ranks.packets)
        eventually(lambda: _switch(host)["accepted"] >= own)  # counted after it was answered
        accepted = _switch(host)["accepted"]
        assert accepted == own, f"the slots took {accepted} packets; the ranks had {own}"


def _one(
    host: Embedded,
    ranks: _Ranks,
    forger: subprocess.Popen[str],
    job: Job,
    unread: int,
    kind: str,
    count: int,
    rate: float,
    windows: int,
    seed: int,
) -> Forged:
    counter = KINDS[kind][0]

    def counted() -> int:
        if counter == "results_ignored":
            return int(ranks.sessions[0].stats()[counter])
        return _switch(host)[counter]

    before, lost = counted(), _lost(job)
    ratios: list[tuple[float, float]] = []
    for window in range(windows):
        size = count // windows + (window < count % windows)
        without = _pace(ranks, partial(time.sleep, size / rate))
        nowhere, there = (
            _pace(ranks, partial(_strike, forger, job, kind, size, rate, seed + window, to))
            for to in (unread, 0)
        )
        ratios.append((there / without, nowhere / without))
    found, missing, until = 0, 0, time.monotonic() + 60
    while found + missing < count and time.monotonic() < until:  # for the last ones
        time.sleep(0.05)
        found, missing = counted() - before, _lost(job) - lost
    assert found + missing >= count, f"{kind}: {found} of {count} were counted, and the kernel lost {missing}"
    return Forged(
        kind,
        count,
        found,
        missing,
        tuple(there for there, _ in ratios),
        tuple(nowhere for _, nowhere in ratios),
    )


def _strike(
    forger: subprocess.Popen[str], job: Job, kind: str, count: int, rate: float, seed: int, sink: int
) -> None:
    order = {"job": asdict(job), "kind": kind, "count": count, "rate": rate, "seed": seed, "sink": sink}
    assert forger.stdin is not None
    forger.stdin.write(json.dumps(order) + "\n")
    forger.stdin.flush()
    assert _line(forger) == "sent"


def _pace(ranks: _Ranks, wait: Any) -> float:
    """Returns the collectives a second while something goes on."""
    done, begun = ranks.done, time.monotonic()
    wait()
    return max(1, ranks.done - done) / (time.monotonic() - begun)


def costs(count: int, kinds: Sequence[str], seed: int, rate: float) -> Iterator[tuple[str, list[float]]]:
    """Yields microseconds of processor time a packet, while the job stands still.

    Of the sender and the switch's process, where the packets go to a port that nobody reads; then where they
    go to the switch. Before the kinds, of the ranks and the switch's process, a packet of the job.
    """
    with _site(200_000) as (host, ranks, forger, job, sink):
        own = (os.getpid(), host.pid)
        before, begun = _switch(host)["received"], [_spent(pid) for pid in own]
        time.sleep(5.0)
        packets = _switch(host)["received"] - before
        yield "of the job", [(_spent(pid) - at) / packets for pid, at in zip(own, begun, strict=True)]
        ranks.going.clear()
        time.sleep(0.5)
        for kind in kinds:
            took = []
            for to in sink, 0:
                begun = [_spent(pid) for pid in (forger.pid, host.pid)]
                _strike(forger, job, kind, count, rate, seed, to)
                took += [
                    (_spent(pid) - at) / count for pid, at in zip((forger.pid, host.pid), begun, strict=True)
                ]
            yield kind, took


def _spent(pid: int) -> float:
    """Microseconds of processor time of a process's threads."""
    return (
        sum(int((each / "schedstat").read_text().split()[0]) for each in Path(f"/proc/{pid}/task").iterdir())
        / 1e3
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _get(host: Embedded, path: str) -> Any:
    with urlopen(host.controller + path, timeout=60) as answer:
        return json.load(answer)


def _switch(host: Embedded) -> dict[str, int]:
    return dict(_get(host, "/v1/stats")["switch"])


def _job(host: Embedded, ranks: _Ranks) -> Job:
    (found,) = _get(host, "/v1/jobs")["jobs"]
    address = found["members"][0]
    member = ranks.sessions[0]._state.monitor.member
    return Job(
        (member.switch_address, member.switch_port), (address["address"], address["port"]), member.job,
        member.token, member.result_token, member.base, member.slots, member.words, member.first_seq,
    )  # fmt: skip


def _lost(job: Job) -> int:
    """Packets that the kernel has lost at the sockets of the switch and of the worker."""
    ports = {f"{port:04X}" for _, port in (job.switch, job.worker)}
    lines = Path("/proc/net/udp").read_text().splitlines()[1:]
    return sum(int(line.split()[-1]) for line in lines if line.split()[1].split(":")[1] in ports)

"""Has a job add tensors over UDP, while another process forges packets, kind after kind."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

import numpy as np

import worker_lib
from tests.forged.sender import KINDS, Job
from worker_lib.embedded import Embedded, start_embedded


@dataclass(frozen=True)
class Forged:
    """The fate of the packets of one kind.

    Attributes:
        counted: by how much the counter of that kind has grown. lost: by the kernel, in front of the switch
            or of the ranks.
        ratios: of the job's collectives a second with them, to those without just before.
    """

    kind: str
    sent: int
    counted: int
    lost: int
    ratios: tuple[float, ...]

    def interval(self) -> tuple[float, float, float]:
        """Returns the median of the ratios and a 95 % interval of it, by resampling."""
        draw = random.Random(1)
        medians = sorted(median(draw.choices(self.ratios, k=len(self.ratios))) for _ in range(1000))
        return median(self.ratios), medians[25], medians[974]


class _Ranks:
    """Two ranks of this process, which add until told to end; every sum is checked."""

    def __init__(self, host: Embedded, elements: int) -> None:
        self.done, self.wrong, self.packets = 0, 0, [0, 0]
        self.sessions: list[Any] = [None, None]
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
    with start_embedded(quiet=True) as host:
        ranks = _Ranks(host, elements)
        forger = subprocess.Popen(
            [sys.executable, "-m", "tests.forged.sender"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            if _line(forger) != "ready":
                raise PermissionError("no raw sockets here")
            job = _job(host, ranks)
            before, begun = _switch(host), time.monotonic()
            time.sleep(1.0)
            rate = share * (_switch(host)["received"] - before["received"]) / (time.monotonic() - begun)
            for kind in kinds:
                yield _one(host, ranks, forger, job, kind, counts, rate, windows, draw.getrandbits(32))
        finally:
            forger.kill()
            forger.communicate()
            ranks.close()
        assert ranks.wrong == 0, f"{ranks.wrong} wrong sums"
        accepted, own = _switch(host)["accepted"], sum(ranks.packets)
        assert accepted == own, f"the slots took {accepted} packets; the ranks had {own}"


def _one(
    host: Embedded,
    ranks: _Ranks,
    forger: subprocess.Popen[str],
    job: Job,
    kind: str,
    count: int,
    rate: float,
    windows: int,
    seed: int,
) -> Forged:
    counter = KINDS[kind][0]
    assert forger.stdin is not None

    def counted() -> int:
        if counter == "results_ignored":
            return int(ranks.sessions[0].stats()[counter])
        return _switch(host)[counter]

    before, lost, ratios = counted(), _lost(job), []
    for window in range(windows):
        size = count // windows + (window < count % windows)
        without = _pace(ranks, lambda size=size: time.sleep(size / rate))  # type: ignore[misc]
        order = {"job": asdict(job), "kind": kind, "count": size, "rate": rate, "seed": seed + window}

        def strike(order: dict[str, Any] = order) -> None:
            assert forger.stdin is not None
            forger.stdin.write(json.dumps(order) + "\n")
            forger.stdin.flush()
            assert _line(forger) == "sent"

        ratios.append(_pace(ranks, strike) / without)
    time.sleep(0.2)  # for the last ones
    found, missing = counted() - before, _lost(job) - lost
    assert found + missing >= count, f"{kind}: {found} of {count} were counted, and the kernel lost {missing}"
    return Forged(kind, count, found, missing, tuple(ratios))


def _pace(ranks: _Ranks, wait: Any) -> float:
    """Returns the collectives a second while something goes on."""
    done, begun = ranks.done, time.monotonic()
    wait()
    return max(1, ranks.done - done) / (time.monotonic() - begun)


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

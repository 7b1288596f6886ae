"""The native switch's counts of a job by outcome, finer than the counters of `switchagg.wire.header`.

It is what the P4 programs count: packets by what became of them (`p4_program.Outcome`), and by worker. So a
client that reads a P4 program's counters can read the native switch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerOutcomes:
    """Packets from a worker's address and port, since the job came.

    Attributes:
        packets: admitted, whatever became of them.
        retransmissions: of these, flagged as retransmissions.
        misplaced: dropped: a slot of the job, but not base + (seq mod P).
        outside: dropped: a slot that is not the job's.
        token: dropped: not this worker's token.
        delivered: RESULTs of the switch above for this worker alone.
    """

    packets: int
    retransmissions: int
    misplaced: int
    outside: int
    token: int
    delivered: int = 0


@dataclass(frozen=True, slots=True)
class JobOutcomes:
    """Packets of a job, since it came.

    Attributes:
        outcomes: by `Outcome`, an accepted packet that filled its slot under it + `COMPLETING`.
        source: dropped: from nobody in the job, or from a worker that is fenced.
        length: dropped: not K words.
        outside: INITs dropped: a slot that is not the job's.
        workers: by bit.
        delivered: RESULTs of the switch above for all workers.
    """

    outcomes: tuple[int, ...]
    source: int
    length: int
    outside: int
    workers: Mapping[int, WorkerOutcomes]
    delivered: int = 0

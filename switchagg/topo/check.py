"""`switchagg topo check`, run on every worker host: checks that sums are exact, and times them.

Every rank draws the inputs of all ranks from one seed, so each knows the right sum.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from switchagg.errors import SwitchAggError, UsageError

if TYPE_CHECKING:
    from worker_lib.session import Session

RESULT_VARIABLE: Final = "SWITCHAGG_TOPO_RESULT"
_SIZES: Final = (1, 15, 16, 700, 5_003)


@dataclass(slots=True)
class CheckResult:
    """The result of one rank.

    Attributes:
        sums, exact: all-reduces that were checked, and those of them that were exact.
        crc: of all results together; equal on every rank.
        seconds: of each timed all-reduce.
        elements: int32, of each of these.
        sent, again: packets of this rank, and those of them that were retransmissions.
        timed_packets: sent during the timed all-reduces and the barriers before them.
    """

    job: str
    rank: int
    world_size: int
    elements: int
    sums: int = 0
    exact: int = 0
    crc: int = 0
    seconds: list[float] | None = None
    sent: int = 0
    timed_packets: int = 0
    again: int = 0
    error: str = ""


def check(elements: int, rounds: int, seed: int) -> CheckResult:
    """Runs the check as the rank of the environment. Raises as `worker_lib.connect` does."""
    import worker_lib

    if elements < 1 or rounds < 0:
        raise UsageError(f"elements is {elements}, rounds {rounds}; accepted: 1 or more, 0 or more")
    with worker_lib.connect() as session:
        found = CheckResult(
            os.environ.get("SWITCHAGG_JOB", "default"), session.rank, session.world_size, elements
        )
        for turn, size in enumerate((*_SIZES, elements)):
            for kind in (np.int32, np.int64, np.float32):
                _sum(session, found, (seed, turn), size, kind)
        before = session.stats()["packets_sent"]
        found.seconds = [
            _sum(session, found, (seed, 100 + turn), elements, np.int32, timed=True) for turn in range(rounds)
        ]
        stats = session.stats()
        found.timed_packets = stats["packets_sent"] - before
        found.sent, found.again = stats["packets_sent"], stats["retransmissions"]
    return found


def _inputs(world_size: int, key: tuple[int, int], size: int, kind: Any) -> list[Any]:
    """Returns every rank's input. Floats are small integers: their sums are exact in any order."""
    drawn = [np.random.default_rng([*key, rank]) for rank in range(world_size)]
    if kind is np.float32:
        return [each.integers(-500, 500, size).astype(np.float32) for each in drawn]
    most = 2**31 if kind is np.int32 else 2**55
    return [each.integers(-most, most - 1, size, dtype=kind) for each in drawn]


def _sum(
    session: Session, found: CheckResult, key: tuple[int, int], size: int, kind: Any, *, timed: bool = False
) -> float:
    """Checks an all-reduce, and returns its seconds; a timed one starts at all ranks at once."""
    inputs = _inputs(session.world_size, key, size, kind)
    mine = inputs[session.rank].copy()
    if timed:
        session.barrier()
    begin = time.monotonic()
    session.allreduce(mine)
    seconds = time.monotonic() - begin
    expected = np.sum(inputs, axis=0, dtype=kind)
    # Floats go as 32-bit fixed point: within a step of each rank's, and the same everywhere.
    good = np.allclose(mine, expected, rtol=0, atol=1e-3) if kind is np.float32 else (mine == expected).all()
    found.sums += 1
    found.exact += bool(good)
    found.crc = zlib.crc32(mine.tobytes(), found.crc)
    return seconds


def run(elements: int, rounds: int, seed: int) -> int:
    """Runs the check and returns the exit status.

    Writes the result to the folder that SWITCHAGG_TOPO_RESULT names, or prints a line.
    """
    try:
        found = check(elements, rounds, seed)
    except SwitchAggError as error:
        rank, job = int(os.environ.get("RANK", "0")), os.environ.get("SWITCHAGG_JOB", "default")
        found = CheckResult(job, rank, int(os.environ.get("WORLD_SIZE", "1")), elements, error=str(error))
    folder = os.environ.get(RESULT_VARIABLE)
    if folder:
        path = Path(folder, f"{found.job}-{found.rank}.json")
        path.write_text(json.dumps(asdict(found)))
    else:
        print(found.error or f"rank {found.rank}: {found.exact} of {found.sums} sums exact", flush=True)
    return 0 if not found.error and found.exact == found.sums else 1

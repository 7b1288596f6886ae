"""One rank that checks sums of random numbers, in the job and in a group, and says how its packets went.

python -m tests.switchagg.devices.device_worker        with RANK, SWITCHAGG_TRANSPORT, ... set
"""

from __future__ import annotations

import json
import os
import warnings

import numpy as np

import worker_lib

SIZE = 120_000


def main() -> None:
    affinity = os.sched_getaffinity(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = worker_lib.connect(timeout=200)
    with session:
        exact = True
        for turn in range(6):
            draws = [np.random.default_rng([rank, turn]) for rank in range(session.world_size)]
            given = [draw.integers(-(2**28), 2**28, SIZE, dtype=np.int32) for draw in draws]
            mine = given[session.rank].copy()
            session.allreduce(mine)
            exact &= bool((mine == sum(given)).all())
        half = list(range(session.world_size // 2))
        if session.rank in half and len(half) > 1:
            with session.group(half) as group:
                mine = np.full(5000, session.rank + 1, np.int32)
                group.allreduce(mine)
                exact &= bool((mine == sum(rank + 1 for rank in half)).all())
        session.barrier()
        stats = session.stats()
        print(json.dumps({
            "rank": session.rank, "transport": session.transport, "exact": exact,
            "warnings": [str(each.message) for each in caught],
            "retransmissions": stats["retransmissions"], "sent": stats["packets_sent"],
            "affinity_kept": os.sched_getaffinity(0) == affinity,
        }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

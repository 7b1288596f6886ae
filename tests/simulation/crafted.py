"""A schedule that chance takes long to draw: a rank leaves before it has sent again what another lacks.

python -m tests.simulation.crafted LIBRARY      prints, of each way to deal with losses, what came of it
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.simulation.library import library
from tests.simulation.schedule import Fault, draw
from tests.simulation.system import System, run

_MOMENTS: Final = 10


def left_before_it_sent_again(*, shrink: bool) -> Counter[str]:
    """Counts what came of it: "needed" where the other rank heard that it needs the one that has left.

    Rank 1 does not get the last RESULT, which rank 0 has. Then the switch dies, and rank 0 does not reach the
    other one until it has left.
    """
    plan = replace(
        draw(1).undisturbed(), workers=2, steps=3, switches=(("s0", None), ("s1", None)), slots=8, words=16,
        depth=1, think=0.0, shrink=shrink, uniform=True, deadline=1.0, timeout=20.0, early=False, stripes=1,
        lingers=1.0,
    )  # fmt: skip
    still = {"delay": 100_000, "jitter": 0, "latency": 1000, "inbox": 1024, "ns_per_byte": 0.1}
    plan = replace(plan, network={**plan.network, **still})
    took = run(plan).seconds - plan.lingers
    found: Counter[str] = Counter()
    for moment in range(_MOMENTS):
        at = took * (0.35 + 0.1 * moment / _MOMENTS)
        gone = at + 0.0002
        faults = (
            Fault(at, "worker cut from its switch", 1, 0.3),
            Fault(gone, "worker cut from its switch", 0, 4.0),
            Fault(gone, "switch killed", 0),
        )
        system = System(replace(plan, faults=faults), faults, None, None, None, None)
        failure = system.run().failure
        one = next(worker for worker in system.workers if worker.place == 1)
        found[failure or ("needed" if one.losses or one.error else "not needed")] += 1
    return found


if __name__ == "__main__":
    library.load(Path(sys.argv[1]))
    logging.disable(logging.CRITICAL)
    for each in (False, True):
        print(json.dumps(left_before_it_sent_again(shrink=each)))
    sys.stdout.flush()
    os._exit(0)

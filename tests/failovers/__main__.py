"""Kills the switch of a job, or one of its tree, in the middle of each of many all-reduces; `make failovers`.

Every result has to have the bits of an undisturbed job. Status 1: one has not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.failovers.run import VICTIMS, kills, table
from tests.seeds import seed_of_this_run


def main() -> int:
    """Returns 1 if a result was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.failovers", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--mib", type=int, default=64, metavar="N", help="size of the tensor; default: 64")
    parser.add_argument("--transport", choices=("shm", "udp"), default="udp", help="default: udp")
    parser.add_argument("--victim", choices=VICTIMS, default="switch", help="default: switch")
    parser.add_argument("--controller", action="store_true", help="kill the controller at the same time")
    args = parser.parse_args()
    seed = seed_of_this_run()
    print(f"seed {seed} (SWITCHAGG_TEST_SEED repeats it)", flush=True)
    done = []
    with tempfile.TemporaryDirectory() as folder:
        for kill in kills(
            Path(folder), random.Random(seed), args.kills, workers=args.workers, elements=args.mib << 18,
            transport=args.transport, controller=args.controller, victim=args.victim,
        ):  # fmt: skip
            done.append(kill)
            print(
                f"{len(done)}: {kill.call}, {kill.switch} after {kill.after * 1e3:.0f} ms: "
                f"{kill.seconds * 1e3:.0f} ms, undisturbed {kill.undisturbed * 1e3:.0f} ms"
                f"{f', restart {kill.restart * 1e3:.0f} ms' if kill.restart else ''}"
                f"{'' if kill.same else ': OTHER BITS'}",
                flush=True,
            )
    print(table(done))
    return 0 if all(kill.same for kill in done) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Kills ranks in the middle of training, one after another, and starts others in their place.

python -m tests.torch_kills --kills 100                  PyTorch's reconfigure; make torch-kills does the same
python -m tests.torch_kills --kills 100 --way torchft    torchft's Manager
python -m tests.torch_kills --backend gloo               beside it

Every kill has to leave the others training, with equal weights, and the new rank has to catch up with them.
With every step a one is summed, which must give the number of ranks. Status 1: one of these was not so.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.seeds import seed_of_this_run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torch_kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--ranks", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--way", choices=("reconfigure", "torchft"), default="reconfigure")
    parser.add_argument("--backend", choices=("switchagg", "gloo"), default="switchagg")
    args = parser.parse_args()
    from torch.distributed import ProcessGroup

    if not hasattr(ProcessGroup, "reconfigure"):
        print("this PyTorch has no reconfigure: it takes 2.14 or newer", file=sys.stderr)
        return 2
    from tests.torch_kills.training import Wrong

    if args.way == "torchft":
        from tests.torch_kills.replicas import Replicas as Ranks
    else:
        from tests.torch_kills.members import Members as Ranks
    seed = seed_of_this_run()
    print(f"seed {seed} (SWITCHAGG_TEST_SEED repeats it)", flush=True)
    start, done = time.monotonic(), 0
    try:
        with Ranks(args.ranks, args.backend, seed) as ranks:
            while done < args.kills:
                line = ranks.kill_one()
                done += 1
                print(f"{done}: {line}", flush=True)
            print(ranks.finish())
    except Wrong as error:
        seconds, load = time.monotonic() - start, os.getloadavg()[0]
        print(f"stopped after {done} kills and {seconds:.0f} s, load average {load:.0f}: {error}", flush=True)
        return 1
    print(f"{args.kills} kills in {time.monotonic() - start:.0f} s: the others went on each time")
    return 0


if __name__ == "__main__":
    sys.exit(main())

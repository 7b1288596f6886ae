"""Kills and stops ranks whose jobs have shared slots, at random moments; also `make shared-slots`.

Every sum has to be right, and nothing may hang. Status 1: something was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

from tests.seeds import seed_of_this_run
from tests.shared_slots.run import episodes


def main() -> int:
    """Returns 1 if a sum was wrong, or a rank hung."""
    parser = argparse.ArgumentParser(prog="python -m tests.shared_slots", description=__doc__)
    parser.add_argument("--moments", type=int, default=1000, metavar="N", help="default: 1000")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    wrong = 0
    for episode in episodes(random.Random(seed_of_this_run()), args.moments):
        counts.update({"moments": episode.moments, episode.end: 1, "calls": episode.calls})
        if episode.complaint:
            wrong += 1
            print(f"{episode}", flush=True)
    print(f"{dict(counts)}; {wrong} episodes in which something was wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())

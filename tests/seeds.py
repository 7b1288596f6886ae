"""The seed of random tests, printed so that a run can be repeated."""

from __future__ import annotations

import os
import secrets


def seed_of_this_run() -> int:
    """Returns a seed and prints it; SWITCHAGG_TEST_SEED sets it."""
    seed = int(os.environ.get("SWITCHAGG_TEST_SEED", secrets.randbelow(2**32)))
    print(f"SWITCHAGG_TEST_SEED={seed}")
    return seed

"""Where random tests get their seed."""

from __future__ import annotations

import os
import secrets


def seed_of_this_run() -> int:
    """A seed, printed; SWITCHAGG_TEST_SEED repeats a run."""
    seed = int(os.environ.get("SWITCHAGG_TEST_SEED", secrets.randbelow(2**32)))
    print(f"SWITCHAGG_TEST_SEED={seed}")
    return seed

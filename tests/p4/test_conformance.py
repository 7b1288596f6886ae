"""The conformance suite on the devices that run the P4 programs."""

from __future__ import annotations

from tests.switchagg.conformance import test_slots
from tests.switchagg.conformance.test_slots import *  # noqa: F403

# These make their engines themselves, or none.
del test_the_smallest_and_the_largest_job  # noqa: F821
del test_capacity_is_checked  # noqa: F821
del test_what_a_job_entry_refuses  # noqa: F821
del test_what_a_worker_entry_refuses  # noqa: F821

# A P4 switch's registers keep what an earlier job left until the INITs of the next come.
del test_the_slots_of_a_new_job_hold_zeros  # noqa: F821


def test_the_suite_is_here() -> None:
    ours = {name for name in globals() if name.startswith("test_")}
    theirs = {name for name in vars(test_slots) if name.startswith("test_")}
    assert len(theirs - ours) == 5

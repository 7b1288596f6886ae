"""The suite of a switch below another on the devices that run the P4 programs."""

from __future__ import annotations

from tests.switchagg.conformance.test_leaf import *  # noqa: F403

# These look at records alone.
del test_what_a_parent_entry_refuses  # noqa: F821
del test_what_a_job_entry_refuses_of_its_parent  # noqa: F821

"""The soak, for some seconds; `python -m tests.soak` runs it for as long as one likes."""

from __future__ import annotations

import pytest

from switchagg.control.client import ControllerClient
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run

from .__main__ import leftovers
from .plan import LANES
from .run import soak


@pytest.mark.timeout(240)
@pytest.mark.long
def test_jobs_at_once_with_ranks_that_come_leave_and_die() -> None:
    seed = str(seed_of_this_run())
    with EmbeddedController(faults=Faults(loss=0.002, seed=1)) as host:
        client = ControllerClient(host.url, timeout=60.0)
        before = client.slots()
        report = soak(host.url, LANES, 15, seed)
        assert report.errors == []
        assert leftovers(client, before) == []
    assert report.collectives > 100
    assert {what.partition(":")[0] for what in report.episodes} == {lane.job for lane in LANES}

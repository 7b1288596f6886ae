"""The conformance suite on the native engine, its jobs made and its counters read over P4Runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchagg.p4program import program as p4_program
from switchagg.p4runtime.server.native.device import NativeDevice
from switchagg.p4runtime.server.server import P4RuntimeServer
from tests.p4.engine import install_switch
from tests.switchagg.conformance import test_slots
from tests.switchagg.conformance.test_slots import *  # noqa: F403
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.native_slot_table import (
    NativeEngine,
    NativeSlotTableDevice,
    TableSwitch,
)

# These make their engines themselves, or none.
del test_the_smallest_and_the_largest_job  # noqa: F821
del test_capacity_is_checked  # noqa: F821
del test_what_a_job_entry_refuses  # noqa: F821
del test_what_a_worker_entry_refuses  # noqa: F821


@pytest.fixture(scope="module")
def dut() -> Iterator[NativeSlotTableDevice]:
    switch = TableSwitch(64)
    device = NativeDevice(switch, 64)
    with P4RuntimeServer(device, "127.0.0.1:0") as server, harness.connected(server) as client:
        yield NativeSlotTableDevice(server, client, switch)


@pytest.fixture(scope="module")
def common(dut: NativeSlotTableDevice) -> p4_program.Entries:
    return install_switch(dut)


@pytest.fixture
def engine(dut: NativeSlotTableDevice, common: p4_program.Entries) -> Iterator[NativeEngine]:
    """An engine of 64 slots without jobs."""
    made = NativeEngine(dut, common, 64)
    yield made
    made.close()


def test_the_suite_is_here() -> None:
    ours = {name for name in globals() if name.startswith("test_")}
    theirs = {name for name in vars(test_slots) if name.startswith("test_")}
    assert len(theirs - ours) == 4

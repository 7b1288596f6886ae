"""The conformance suite on our v1model program, its tables filled and its counters read over P4Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from switchagg.p4program import program as p4_program
from switchagg.p4runtime.program_source import source_of
from switchagg.p4runtime.server.model_device import ModelDevice
from switchagg.p4runtime.server.server import P4RuntimeServer
from tests.p4.device_under_test import DeviceUnderTest
from tests.p4.engine import P4Engine, install_switch
from tests.switchagg.conformance import test_slots
from tests.switchagg.conformance.test_slots import *  # noqa: F403
from tests.switchagg.p4runtime.plain_client import PlainClient
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.harness import (
    DELETE,
    INSERT,
    MODIFY,
    V1MODEL,
    Names,
    read,
    update,
)

# These make their engines themselves, or none.
del test_the_smallest_and_the_largest_job  # noqa: F821
del test_capacity_is_checked  # noqa: F821
del test_what_a_job_entry_refuses  # noqa: F821
del test_what_a_worker_entry_refuses  # noqa: F821

# A P4 switch's registers keep what an earlier job left until the INITs of the next come.
del test_the_slots_of_a_new_job_hold_zeros  # noqa: F821

_WORDS, _SLOTS = 16, 1024


class RuntimeDevice:
    """A device that a client fills. Packets go into the switch itself."""

    def __init__(self, server: P4RuntimeServer, client: PlainClient) -> None:
        self.target = p4_program.v1model(words=_WORDS, slots=_SLOTS)
        self._device, self._client = server.device, client
        self._names = Names(client.p4info())

    def _entry(self, entry: p4_program.TableEntry) -> Any:
        return self._names.entry(entry.table, entry.matches, entry.action, entry.params, entry.priority)

    def insert(self, entry: p4_program.TableEntry) -> None:
        self._client.write(update(INSERT, table_entry=self._entry(entry)))

    def delete(self, entry: p4_program.TableEntry) -> None:
        self._client.write(update(DELETE, table_entry=self._entry(entry)))

    def set_default(self, table: str, action: str, params: dict[str, int]) -> None:
        entry = self._names.entry(table, {}, action, params)
        entry.is_default_action = True
        self._client.write(update(MODIFY, table_entry=entry))

    def insert_group(self, group: p4_program.MulticastGroup) -> None:
        self._client.write(*harness.entry_updates(self._names, p4_program.Entries((), (group,))))

    def delete_group(self, group: p4_program.MulticastGroup) -> None:
        self._client.write(*harness.entry_updates(self._names, p4_program.Entries((), (group,)), DELETE))

    def send(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Frames to and from the controller's port go through the stream."""
        device, before = self._device, self._device.counters.copy()
        controller = self.target.controller_port
        if port == controller and len(frame) >= 2:
            head = int.from_bytes(frame[:2], "big")
            harness.packet_out(self._client, frame[2:], {1: head >> 9, 2: head & 0x1FF})
            harness.until(lambda: device.counters["packet_outs"] > before["packet_outs"])
            outs = []
        else:
            outs = device.process(port, frame, 0.0)
        with device.lock:
            count = device.counters["packet_ins"] - before["packet_ins"]
        for _ in range(count):
            packet = self._client.drained("packet").packet
            padding, came = (int.from_bytes(each.value, "big") for each in packet.metadata)
            outs.append((controller, (padding << 9 | came).to_bytes(2, "big") + packet.payload))
        return outs

    def entry_packets(self, entry: p4_program.TableEntry) -> int:
        asked = self._names.entry(entry.table, entry.matches, None, None, entry.priority)
        (found,) = read(self._client, direct_counter_entry={"table_entry": asked})
        return int(found.data.packet_count)

    def cell(self, counter: str, index: int) -> int:
        asked = {"counter_id": self._names.id("counters", counter), "index": {"index": index}}
        (found,) = read(self._client, counter_entry=asked)
        return int(found.data.packet_count)

    def slot(self, index: int) -> tuple[int, int, int, list[int]]:
        """From the model's registers, which P4Runtime does not serve."""
        assert self._device.running is not None
        switch = self._device.running.switch
        names = ["seq", "missing", "filled", *(f"words.word_{place}" for place in range(_WORDS))]
        seq, missing, filled, *words = (int(switch.register(name).cell(index)) for name in names)
        return seq, missing, filled, words


@pytest.fixture(scope="module")
def dut() -> Iterator[RuntimeDevice]:
    source = source_of(V1MODEL, (), [f"AGG_WORDS={_WORDS}", f"AGG_SLOTS={_SLOTS}"])
    with P4RuntimeServer(ModelDevice(source), "127.0.0.1:0") as server, harness.connected(server) as client:
        yield RuntimeDevice(server, client)


@pytest.fixture(scope="module")
def common(dut: DeviceUnderTest) -> p4_program.Entries:
    return install_switch(dut)


@pytest.fixture
def engine(dut: DeviceUnderTest, common: p4_program.Entries) -> Iterator[P4Engine]:
    """An engine of 64 slots without jobs."""
    made = P4Engine(dut, common, 64)
    yield made
    made.close()


def test_the_suite_is_here() -> None:
    ours = {name for name in globals() if name.startswith("test_")}
    theirs = {name for name in vars(test_slots) if name.startswith("test_")}
    assert len(theirs - ours) == 5

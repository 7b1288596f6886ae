"""The native slot table behind a P4Runtime server, without its workers' sockets: a device and an engine.

A client writes; what is read many times for each test goes to the same handlers without the way there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from switchagg.emulator import _native
from switchagg.emulator.outcomes import JobOutcomes
from switchagg.p4program import frames as p4_frames
from switchagg.p4program import program as p4_program
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.native.device import NativeDevice
from switchagg.p4runtime.server.server import P4RuntimeServer
from switchagg.rules.slots import JobEntry, SlotState
from tests.p4.engine import ADDRESS, P4Engine, mac_of
from tests.switchagg.p4runtime.plain_client import PlainClient
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.harness import DELETE, INSERT, MODIFY, Names, update


class TableSwitch:
    """The native slot table as what `NativeDevice` has behind it."""

    address = ("127.0.0.1", 48879)
    receive_buffer = 1 << 20
    link = ""
    threads = 1
    failure = None

    def __init__(self, capacity: int) -> None:
        self.table = _native.SlotTable(capacity)
        self.calls: list[tuple[str, int]] = []

    def add_job(self, job: JobEntry, place: p4_program.JobPlace | None = None) -> None:
        assert place is None
        self.table.add_job(job)
        self.calls.append(("add", job.job))

    def remove_job(self, job_id: int) -> None:
        self.table.remove_job(job_id)
        self.calls.append(("remove", job_id))

    def fence(self, job_id: int, bits: int) -> None:
        self.table.fence(job_id, bits)
        self.calls.append(("fence", bits))

    def admit(self, job_id: int, bits: int) -> None:
        self.table.admit(job_id, bits)
        self.calls.append(("admit", bits))

    def outcome_counters(self, job_id: int) -> JobOutcomes:
        return self.table.outcome_counters(job_id)

    def unknown_job_counters(self) -> dict[str, int]:
        return self.table.unknown_job_counters()

    def packet_out(self, packet: bytes) -> list[bytes]:
        return [payload for _, payload in self.table.receive(packet, None)]


class NativeSlotTableDevice:
    """Filled and read by a client; workers' frames go into the slot table as their UDP payloads."""

    def __init__(
        self, server: P4RuntimeServer[NativeDevice], client: PlainClient, switch: TableSwitch
    ) -> None:
        self.target = p4_program.v1model(words=16, slots=64)
        self.client, self.switch = client, switch
        self._device = server.device
        self._names = Names(client.p4info())

    def message(self, entry: p4_program.TableEntry) -> Any:
        """The entry, with K where it belongs."""
        made = self._names.entry(entry.table, entry.matches, entry.action, entry.params, entry.priority)
        if entry.action == "initialise":
            made.metadata = f"words={self.target.words}".encode()
        return made

    def insert(self, entry: p4_program.TableEntry) -> None:
        self.client.write(update(INSERT, table_entry=self.message(entry)))

    def delete(self, entry: p4_program.TableEntry) -> None:
        self.client.write(update(DELETE, table_entry=self.message(entry)))

    def set_default(self, table: str, action: str, params: dict[str, int]) -> None:
        entry = self._names.entry(table, {}, action, params)
        entry.is_default_action = True
        self.client.write(update(MODIFY, table_entry=entry))

    def insert_group(self, group: p4_program.MulticastGroup) -> None:
        self.client.write(*harness.entry_updates(self._names, p4_program.Entries((), (group,))))

    def delete_group(self, group: p4_program.MulticastGroup) -> None:
        self.client.write(*harness.entry_updates(self._names, p4_program.Entries((), (group,)), DELETE))

    def send(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        if port == self.target.controller_port:
            return self._packet_out(frame)
        source = ".".join(map(str, frame[26:30])), int.from_bytes(frame[34:36], "big")
        payload = p4_frames.packet_in(b"\0\0" + frame)
        outs = []
        for address, out in self.switch.table.receive(payload, source):
            assert address is not None
            made = p4_frames.frame(
                out, (ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port), (mac_of(address[0]), *address)
            )
            outs.append((self.ports[address[0]], made))
        return outs

    ports: dict[str, int]

    def _packet_out(self, frame: bytes) -> list[tuple[int, bytes]]:
        device, before = self._device, self._device.counters.copy()
        head = int.from_bytes(frame[:2], "big")
        harness.packet_out(self.client, frame[2:], {1: head >> 9, 2: head & 0x1FF})
        harness.until(lambda: device.counters["packet_outs"] > before["packet_outs"])
        with device.lock:
            count = device.counters["packet_ins"] - before["packet_ins"]
        outs = []
        for _ in range(count):
            packet = self.client.drained("packet").packet
            padding, came = (int.from_bytes(each.value, "big") for each in packet.metadata)
            outs.append(
                (self.target.controller_port, (padding << 9 | came).to_bytes(2, "big") + packet.payload)
            )
        return outs

    def _read(self, **asked: Any) -> Any:
        assert self._device.running is not None
        with self._device.lock:
            (found,) = self._device.running.entities.read(p4runtime_pb2.Entity(**asked))
        return found

    def entry_packets(self, entry: p4_program.TableEntry) -> int:
        asked = self._names.entry(entry.table, entry.matches, None, None, entry.priority)
        found = self._read(direct_counter_entry={"table_entry": asked})
        return int(found.direct_counter_entry.data.packet_count)

    def cell(self, counter: str, index: int) -> int:
        asked = {"counter_id": self._names.id("counters", counter), "index": {"index": index}}
        return int(self._read(counter_entry=asked).counter_entry.data.packet_count)

    def slot(self, index: int) -> tuple[int, int, int, list[int]]:
        raise AssertionError(f"slot {index} is read from the table itself")


class NativeEngine(P4Engine):
    """An engine of the conformance suite whose jobs a P4Runtime client makes."""

    def __init__(self, dut: NativeSlotTableDevice, common: p4_program.Entries, capacity: int) -> None:
        super().__init__(dut, common, capacity)
        self._native = dut

    def add_job(self, job: JobEntry, place: p4_program.JobPlace | None = None) -> None:
        if not job.touch:
            pytest.skip("P4Runtime knows no jobs that leave words untouched")
        before = self._native.target
        self._native.target = replace(before, words=job.words)
        try:
            super().add_job(job, place)
        except BaseException:
            self._native.target = before
            raise

    def receive(self, payload: bytes, source: Any, port: int | None = None) -> Any:
        self._native.ports = {ip: port for port, ip in self._ports().items()}
        return super().receive(payload, source, port)

    def slot(self, index: int) -> SlotState:
        return self._native.switch.table.slot(index)

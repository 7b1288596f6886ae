"""The native switch on Ethernet as a device: a P4Runtime client's writes, and frames from queues in place of
interfaces."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from switchagg.p4program.program import MulticastGroup, TableEntry, Target

from .device_under_test import Frame

with suppress(ModuleNotFoundError):  # without the extra p4runtime nobody makes such a device
    from switchagg.emulator.ether_switch import EtherSwitch
    from switchagg.p4runtime.client.rows import Schema
    from switchagg.p4runtime.client.tables import (
        DELETE,
        INSERT,
        default_update,
        group_update,
        message,
        row_update,
    )
    from switchagg.p4runtime.protos import p4runtime_pb2
    from switchagg.p4runtime.server.native.device import NativeDevice

UNTOLD = frozenset({"refuse op, priority 95", "refuse job, priority 44", "refuse length, priority 31"})
"""Entries of `admission` whose packets the native switch counts on another entry of the same reason."""


class EtherSwitchDevice:
    """A native switch with so many ports, and nothing in its tables."""

    def __init__(self, target: Target, ports: tuple[int, ...]) -> None:
        self.target = target
        self.switch = EtherSwitch(None, ports=ports, capacity=target.slots)
        self.switch.start()
        self._device = NativeDevice(self.switch, target.slots)
        self._returned: list[Frame] = []
        self._device.on_packet_in = self._packet_in
        running = self._device.running
        assert running is not None
        self._entities = running.entities
        self._schema = Schema(running.p4info)

    def close(self) -> None:
        """Ends the switch."""
        self.switch.close()

    def _write(self, update: Any) -> None:
        with self._device.lock:
            self._entities.write(update)

    def _row(self, entry: TableEntry) -> Any:
        words = b"words=%d" % self.target.words if entry.action == "initialise" else b""
        return self._schema.row(entry, words)

    def insert(self, entry: TableEntry) -> None:
        self._write(row_update(INSERT, self._row(entry)))

    def delete(self, entry: TableEntry) -> None:
        self._write(row_update(DELETE, self._row(entry)))

    def set_default(self, table: str, action: str, params: dict[str, int]) -> None:
        self._write(default_update(self._schema, TableEntry(table, {}, action, params)))

    def insert_group(self, group: MulticastGroup) -> None:
        self._write(group_update(INSERT, group))

    def delete_group(self, group: MulticastGroup) -> None:
        self._write(group_update(DELETE, group))

    def send(self, port: int, frame: bytes) -> list[Frame]:
        if port != self.target.controller_port:
            return self.switch.frames.feed(port, frame)
        head = int.from_bytes(frame[:2], "big")
        packet = p4runtime_pb2.PacketOut(payload=frame[2:])
        for name, value in (("padding", head >> 9), ("port", head & 0x1FF)):
            number = self._schema.packet_field("packet_out", name)
            packet.metadata.add(metadata_id=number, value=value.to_bytes(2, "big"))
        self._returned.clear()
        assert self._device.packet_out(packet) == []
        return [*self._returned, *self.switch.frames.feed(None, b"")]

    def _packet_in(self, answer: Any) -> None:
        values = [int.from_bytes(each.value, "big") for each in answer.metadata]
        head = (values[0] << 9 | values[1]).to_bytes(2, "big")
        self._returned.append((self.target.controller_port, head + answer.payload))

    def _read(self, **asked: Any) -> Any:
        with self._device.lock:
            (found,) = self._entities.read(p4runtime_pb2.Entity(**asked))
        return found

    def entry_packets(self, entry: TableEntry) -> int:
        asked = {"table_entry": message(self._row(entry), named=True)}
        return int(self._read(direct_counter_entry=asked).direct_counter_entry.data.packet_count)

    def cell(self, counter: str, index: int) -> int:
        asked = {"counter_id": self._schema.counter(counter), "index": {"index": index}}
        return int(self._read(counter_entry=asked).counter_entry.data.packet_count)

    def slot(self, index: int) -> tuple[int, int, int, list[int]]:
        state = self.switch.slot(index)
        words = [] if state.words is None else state.words.tolist()
        return state.seq, ~state.seen & 0xFFFFFFFF, int(state.filled), words

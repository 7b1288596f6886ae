"""Wrappers of a device: one varies the fields that the protocol ignores, one counts admissions."""

from __future__ import annotations

import zlib
from collections import Counter

from switchagg.p4program.program import ADMISSION, MulticastGroup, TableEntry, Target
from tests.p4.device_under_test import DeviceUnderTest, Frame

_IPV4_UDP_HEAD = 42


class Wrapped:
    """Passes everything on."""

    def __init__(self, dut: DeviceUnderTest) -> None:
        self.dut = dut

    @property
    def target(self) -> Target:
        return self.dut.target

    def insert(self, entry: TableEntry) -> None:
        self.dut.insert(entry)

    def delete(self, entry: TableEntry) -> None:
        self.dut.delete(entry)

    def set_default(self, table: str, action: str, params: dict[str, int]) -> None:
        self.dut.set_default(table, action, params)

    def insert_group(self, group: MulticastGroup) -> None:
        self.dut.insert_group(group)

    def delete_group(self, group: MulticastGroup) -> None:
        self.dut.delete_group(group)

    def send(self, port: int, frame: bytes) -> list[Frame]:
        return self.dut.send(port, frame)

    def entry_packets(self, entry: TableEntry) -> int:
        return self.dut.entry_packets(entry)

    def cell(self, counter: str, index: int) -> int:
        return self.dut.cell(counter, index)

    def slot(self, index: int) -> tuple[int, int, int, list[int]]:
        return self.dut.slot(index)


class Varied(Wrapped):
    """Changes what a sender's host and the links decide: service class, ECT, identification, fragment flags
    other than "more follow", hops, source MAC, UDP checksum, zeros behind the datagram.

    What it makes of a frame depends on the frame alone, so that a sequence of steps can be repeated.
    """

    def send(self, port: int, frame: bytes) -> list[Frame]:
        if port == self.target.controller_port or len(frame) < _IPV4_UDP_HEAD:
            return self.dut.send(port, frame)
        drawn = zlib.crc32(frame)
        changed = bytearray(frame)
        changed[10:12] = (drawn & 0xFFFF).to_bytes(2, "big")  # of the source MAC
        changed[15] = drawn >> 4 & 0xFE
        changed[18:20] = (drawn >> 8 & 0xFFFF).to_bytes(2, "big")
        changed[20] = drawn >> 2 & 0xC0
        changed[22] = (drawn >> 16 & 0xFF) or 1
        changed[24:26] = bytes(2)
        total = sum(int.from_bytes(changed[i : i + 2], "big") for i in range(14, 34, 2))
        changed[24:26] = ((-total) % 0xFFFF).to_bytes(2, "big")
        changed[40:42] = (drawn >> 12 & 0xFFFF).to_bytes(2, "big")
        return self.dut.send(port, bytes(changed) + bytes(drawn >> 28 & 3))


class Counted(Wrapped):
    """Adds up the packets of admission's entries by what they do and why, over entries that come and go."""

    def __init__(self, dut: DeviceUnderTest) -> None:
        super().__init__(dut)
        self._gone: Counter[str] = Counter()
        self._here: dict[int, TableEntry] = {}

    def insert(self, entry: TableEntry) -> None:
        self.dut.insert(entry)
        if entry.table == ADMISSION:
            self._here[id(entry)] = entry

    def delete(self, entry: TableEntry) -> None:
        if entry.table == ADMISSION:
            self._gone[kind_of(entry)] += self.dut.entry_packets(entry)
            del self._here[id(entry)]
        self.dut.delete(entry)

    def admissions(self) -> Counter[str]:
        """Packets by `kind_of` the entry that they met."""
        counts = Counter(self._gone)
        for entry in self._here.values():
            counts[kind_of(entry)] += self.dut.entry_packets(entry)
        return counts


def kind_of(entry: TableEntry) -> str:
    """Returns what an entry has in common with its like in other jobs."""
    reason = "" if entry.reason is None else f" {entry.reason}"
    return f"{entry.action}{reason}, priority {entry.priority}"

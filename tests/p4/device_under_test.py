"""The device under test (`dut`): a switch that runs one of the P4 programs, with ports and tables.

The tests drive every device through this interface, and `P4Engine` turns one into an engine of the
conformance suite.
"""

from __future__ import annotations

from typing import Protocol

from switchagg.p4program.program import MulticastGroup, TableEntry, Target

Frame = tuple[int, bytes]
"""A frame and the port that it comes in at or goes out by."""


class DeviceUnderTest(Protocol):
    """One switch, running one program."""

    @property
    def target(self) -> Target: ...
    def insert(self, entry: TableEntry) -> None: ...
    def delete(self, entry: TableEntry) -> None: ...
    def set_default(self, table: str, action: str, params: dict[str, int]) -> None: ...
    def insert_group(self, group: MulticastGroup) -> None: ...
    def delete_group(self, group: MulticastGroup) -> None: ...
    def send(self, port: int, frame: bytes) -> list[Frame]:
        """Sends a frame and returns all that comes of it."""
        ...

    def entry_packets(self, entry: TableEntry) -> int: ...
    def cell(self, counter: str, index: int) -> int: ...
    def slot(self, index: int) -> tuple[int, int, int, list[int]]:
        """Returns seq, missing, filled and the words of a slot, from the registers."""
        ...

"""State behind externs that both architectures have: counters, meters, registers.

An index outside an array counts, marks or writes nothing and reads zero, as in bmv2; a Tofino's program
cannot get there, since its arrays are as large as its index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from switchagg.p4model.runtime.matches import TableError

GREEN: Final = 0
YELLOW: Final = 1
RED: Final = 2


@dataclass(slots=True)
class CounterArray:
    """An indirect counter: packets and bytes of each index."""

    name: str
    packets: list[int]
    bytes: list[int]

    @classmethod
    def sized(cls, name: str, size: int) -> CounterArray:
        """One of `size` zeros."""
        return cls(name, [0] * size, [0] * size)

    def count(self, index: int, length: int) -> None:
        """Counts a packet of `length` bytes."""
        if index < len(self.packets):
            self.packets[index] += 1
            self.bytes[index] += length

    def read(self, index: int) -> tuple[int, int]:
        """(packets, bytes). Raises TableError if there is no such index."""
        self._check(index)
        return self.packets[index], self.bytes[index]

    def write(self, index: int, packets: int, length: int) -> None:
        """Sets both. Raises TableError if there is no such index."""
        self._check(index)
        self.packets[index], self.bytes[index] = packets, length

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self.packets):
            raise TableError(f"counter {self.name} has {len(self.packets)} indices: {index} is none")


@dataclass(slots=True)
class Rate:
    """Tokens a second and how many a bucket holds; bytes or packets, as the meter counts."""

    rate: float
    burst: int


class Meter:
    """A two-rate three-colour meter with two token buckets, as bmv2 has it.

    The peak bucket is looked at first: without a token there the packet is red and takes none; without one
    in the committed bucket it is yellow, and took one from the peak bucket. A meter without rates is green.
    """

    __slots__ = ("_began", "_committed", "_given", "_peak", "_tokens", "by_bytes")

    def __init__(self, by_bytes: bool) -> None:
        self.by_bytes = by_bytes
        self._committed: Rate | None = None
        self._peak: Rate | None = None
        self._began = 0.0
        self._tokens = [0, 0]
        self._given = [0, 0]

    def set_rates(self, committed: Rate | None, peak: Rate | None, now: float) -> None:
        """Sets both rates, with full buckets; None for both makes the meter green."""
        if (committed is None) != (peak is None):
            raise TableError("a meter takes a committed and a peak rate, or neither")
        self._committed, self._peak = committed, peak
        self._began = now
        self._given = [0, 0]
        self._tokens = [peak.burst, committed.burst] if peak and committed else [0, 0]

    @property
    def rates(self) -> tuple[Rate, Rate] | None:
        """Committed and peak rate, if they were set."""
        return (self._committed, self._peak) if self._committed and self._peak else None

    def execute(self, length: int, now: float, before: int = GREEN) -> int:
        """The colour of a packet; never better than `before`."""
        if self._committed is None or self._peak is None:
            return before
        wanted = length if self.by_bytes else 1
        for place, (rate, colour) in enumerate(((self._peak, RED), (self._committed, YELLOW))):
            given = max(int((now - self._began) * rate.rate), self._given[place])
            self._tokens[place] = min(self._tokens[place] + given - self._given[place], rate.burst)
            self._given[place] = given
            if self._tokens[place] < wanted:
                return max(colour, before)
            self._tokens[place] -= wanted
        return max(GREEN, before)


@dataclass(slots=True)
class MeterArray:
    """An indirect meter."""

    name: str
    cells: list[Meter]

    @classmethod
    def sized(cls, name: str, size: int, by_bytes: bool) -> MeterArray:
        """One of `size` meters without rates."""
        return cls(name, [Meter(by_bytes) for _ in range(size)])

    def cell(self, index: int) -> Meter:
        """The meter at an index. Raises TableError if there is none."""
        if not 0 <= index < len(self.cells):
            raise TableError(f"meter {self.name} has {len(self.cells)} indices: {index} is none")
        return self.cells[index]

    def execute(self, index: int, length: int, now: float, before: int = GREEN) -> int:
        """The colour of a packet; as it was before where there is no such index."""
        if index >= len(self.cells):
            return before
        return self.cells[index].execute(length, now, before)


@dataclass(slots=True)
class DirectCounter:
    """Marks a table whose entries count; the counts are in the entries. `table` is set with the table."""

    name: str
    table: Any = None

    def count(self, length: int) -> None:
        """Counts a packet at the entry whose action runs."""
        entry = self.table.current
        entry.packets += 1
        entry.bytes += length


@dataclass(slots=True)
class DirectMeter:
    """Marks a table whose entries have a meter each. `colour` is of the last packet that hit, else None."""

    name: str
    by_bytes: bool
    table: Any = None
    colour: int | None = None

    def of(self, entry: Any) -> Meter:
        """The meter of an entry, made when it is first asked for."""
        if entry.meter is None:
            entry.meter = Meter(self.by_bytes)
        meter: Meter = entry.meter
        return meter


@dataclass(slots=True)
class Register:
    """A register array. Cells hold values as translated code has them; of structs, objects."""

    name: str
    cells: list[Any]
    width: int | None
    make: Callable[[], Any]
    initial: Any = 0

    def read(self, index: int) -> Any:
        """The cell; zero where there is none."""
        return self.cells[index] if index < len(self.cells) else self.make()

    def write(self, index: int, value: Any) -> None:
        """Sets the cell, if there is one."""
        if index < len(self.cells):
            self.cells[index] = value

    def reset(self) -> None:
        """All cells as they were at the start."""
        self.cells[:] = [self.make() for _ in self.cells]

    def cell(self, index: int) -> Any:
        """The cell, for the control plane: a number, or a copy of a struct with its fields by name.

        Raises TableError if there is no such index.
        """
        self._check(index)
        value = self.cells[index]
        slots = getattr(value, "__slots__", None)
        if slots is None:
            return value
        return SimpleNamespace(**{slot.removeprefix("f_"): getattr(value, slot) for slot in slots})

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self.cells):
            raise TableError(f"register {self.name} has {len(self.cells)} cells: {index} is none")

    def set_cell(self, index: int, value: int) -> None:
        """Sets a scalar cell. Raises TableError if the index or the value does not fit."""
        self._check(index)
        if self.width is not None and not 0 <= value < 1 << self.width:
            raise TableError(f"register {self.name}: {value:#x} does not fit {self.width} bits")
        self.cells[index] = value

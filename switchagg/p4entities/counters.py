"""Counters, meters and registers, indirect ones as arrays, direct ones with the entries of a table.

An index outside an array counts, marks or writes nothing and reads zero, as in bmv2; a Tofino's program
cannot get there, since its arrays are as large as its index.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sized
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

from switchagg.p4entities.matches import TableError

GREEN: Final = 0
YELLOW: Final = 1
RED: Final = 2


def _check_index(what: str, cells: Sized, index: int, unit: str = "indices") -> None:
    if not 0 <= index < len(cells):
        raise TableError(f"{what} has {len(cells)} {unit}: {index} is none")


@dataclass(slots=True)
class CounterArray:
    """An indirect counter: packets and bytes of each index."""

    name: str
    packets: list[int]
    bytes: list[int]

    @classmethod
    def sized(cls, name: str, size: int) -> CounterArray:
        """Returns a counter with `size` zeros."""
        return cls(name, [0] * size, [0] * size)

    def count(self, index: int, length: int) -> None:
        """Counts a packet of `length` bytes."""
        if index < len(self.packets):
            self.packets[index] += 1
            self.bytes[index] += length

    def read(self, index: int) -> tuple[int, int]:
        """Returns (packets, bytes). Raises TableError if there is no such index."""
        _check_index(f"counter {self.name}", self.packets, index)
        return self.packets[index], self.bytes[index]

    def write(self, index: int, packets: int, length: int) -> None:
        """Sets both counts. Raises TableError if there is no such index."""
        _check_index(f"counter {self.name}", self.packets, index)
        self.packets[index], self.bytes[index] = packets, length


@dataclass(slots=True)
class Rate:
    """Tokens a second and the size of the bucket; in bytes or packets, as the meter counts."""

    rate: float
    burst: int


class Meter:
    """A two-rate three-colour meter with two token buckets, as in bmv2.

    The peak bucket comes first: a packet without a token there is red and takes none. A packet without a
    token in the committed bucket is yellow, and has taken one from the peak bucket. A meter without rates
    is green. Each pipe of a Tofino has buckets of its own.
    """

    __slots__ = ("_began", "_buckets", "_committed", "_peak", "by_bytes")

    def __init__(self, by_bytes: bool) -> None:
        self.by_bytes = by_bytes
        self._committed: Rate | None = None
        self._peak: Rate | None = None
        self._began = 0.0
        self._buckets: dict[int, tuple[list[int], list[int]]] = {}

    def set_rates(self, committed: Rate | None, peak: Rate | None, now: float) -> None:
        """Sets both rates and fills the buckets; without rates the meter is green."""
        if (committed is None) != (peak is None):
            raise TableError("a meter takes a committed and a peak rate, or neither")
        self._committed, self._peak = committed, peak
        self._began = now
        self._buckets = {}

    @property
    def rates(self) -> tuple[Rate, Rate] | None:
        """Committed and peak rate, if they are set."""
        return (self._committed, self._peak) if self._committed and self._peak else None

    def execute(self, length: int, now: float, before: int = GREEN, pipe: int = 0) -> int:
        """Returns the colour of a packet; never better than `before`."""
        if self._committed is None or self._peak is None:
            return before
        if pipe not in self._buckets:
            self._buckets[pipe] = [self._peak.burst, self._committed.burst], [0, 0]
        tokens, given_before = self._buckets[pipe]
        wanted = length if self.by_bytes else 1
        for place, (rate, colour) in enumerate(((self._peak, RED), (self._committed, YELLOW))):
            given = max(int((now - self._began) * rate.rate), given_before[place])
            tokens[place] = min(tokens[place] + given - given_before[place], rate.burst)
            given_before[place] = given
            if tokens[place] < wanted:
                return max(colour, before)
            tokens[place] -= wanted
        return max(GREEN, before)


@dataclass(slots=True)
class MeterArray:
    """An indirect meter. `execute` returns 0 to 2; `codes` are a TNA program's green, yellow and red."""

    name: str
    cells: list[Meter]
    codes: tuple[int, int, int] = (GREEN, YELLOW, RED)

    @classmethod
    def sized(
        cls, name: str, size: int, by_bytes: bool, codes: tuple[int, int, int] = (GREEN, YELLOW, RED)
    ) -> MeterArray:
        """Returns an array of `size` meters without rates."""
        return cls(name, [Meter(by_bytes) for _ in range(size)], codes)

    def cell(self, index: int) -> Meter:
        """Returns the meter at an index. Raises TableError if there is none."""
        _check_index(f"meter {self.name}", self.cells, index)
        return self.cells[index]

    def execute(self, index: int, length: int, now: float, before: int = GREEN, pipe: int = 0) -> int:
        """Returns the colour of a packet; `before` if there is no such index."""
        if index >= len(self.cells):
            return before
        return self.cells[index].execute(length, now, before, pipe)


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
    """Marks a table whose entries have a meter each.

    Attributes:
        codes: the numbers of green, yellow and red.
        colour: that of the last packet that hit, else None.
    """

    name: str
    by_bytes: bool
    codes: tuple[int, int, int] = (GREEN, YELLOW, RED)
    table: Any = None
    colour: int | None = None

    def of(self, entry: Any) -> Meter:
        """Returns the meter of an entry; makes it at first use."""
        if entry.meter is None:
            entry.meter = Meter(self.by_bytes)
        meter: Meter = entry.meter
        return meter


class _LateCells(MutableSequence[Any]):
    """Cells that are made when they are first touched: most of a pipe's registers never are."""

    __slots__ = ("_make", "_size", "_there")

    def __init__(self, make: Callable[[], Any], size: int) -> None:
        self._make = make
        self._size = size
        self._there: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        if index not in self._there:
            self._there[range(self._size)[index]] = self._make()
        return self._there[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._there[range(self._size)[index]] = value

    def clear(self) -> None:
        """Forgets all values."""
        self._there.clear()

    def __delitem__(self, index: Any) -> None:
        raise TypeError("a register has a fixed size")

    def insert(self, index: int, value: Any) -> None:
        """Raises TypeError."""
        raise TypeError(f"a register has a fixed size; {value!r} at {index} does not fit")


@dataclass(slots=True)
class Register:
    """A register array. Cells hold values as translated code has them; of structs, objects."""

    name: str
    cells: MutableSequence[Any]
    width: int | None
    make: Callable[[], Any]

    def read(self, index: int) -> Any:
        """Returns the cell; zero if there is none."""
        return self.cells[index] if index < len(self.cells) else self.make()

    def write(self, index: int, value: Any) -> None:
        """Sets the cell, if there is one."""
        if index < len(self.cells):
            self.cells[index] = value

    def reset(self) -> None:
        """Gives all cells their initial value."""
        if isinstance(self.cells, _LateCells):
            self.cells.clear()
        else:
            self.cells[:] = [self.make() for _ in self.cells]

    def fresh(self) -> Register:
        """Returns a register like this one with cells of its own, all at their initial value."""
        return replace(self, cells=_LateCells(self.make, len(self.cells)))

    def cell(self, index: int) -> Any:
        """Returns a cell for the control plane: a number, or a copy of a struct with its fields by name.

        Raises TableError if there is no such index.
        """
        _check_index(f"register {self.name}", self.cells, index, "cells")
        value = self.cells[index]
        slots = getattr(value, "__slots__", None)
        if slots is None:
            return value
        return SimpleNamespace(**{slot.removeprefix("f_"): getattr(value, slot) for slot in slots})

    def set_cell(self, index: int, value: int) -> None:
        """Sets a scalar cell. Raises TableError if the index or the value does not fit."""
        _check_index(f"register {self.name}", self.cells, index, "cells")
        if self.width is not None and not 0 <= value < 1 << self.width:
            raise TableError(f"register {self.name}: {value:#x} does not fit {self.width} bits")
        self.cells[index] = value

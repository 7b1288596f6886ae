"""The fault device of the P4 engine: `Faults` for packets that pass through Python.

    FaultDevice ─┬─ inward: FaultLine    lost? ─► one bit flipped? ─► twice? ─► overtaken by 1..8 later ones?
                 └─ outward: FaultLine                                              ─► delayed

It treats packets as the native device (`native/switch/fault_port.h`) does, with the same counters. A seed
gives another sequence of faults than there.
"""

from __future__ import annotations

import heapq
import math
import random
import secrets
from collections import Counter
from dataclasses import replace
from typing import Final, Generic, TypeVar

from switchagg.emulator.faults import Faults

HELD_BYTES: Final = 32 << 20
"""At most, in each direction; packets that would be held beyond it are dropped and counted as overflowed."""
LONGEST_REORDER: Final = 300e-6  # seconds that a packet is held for later ones
_HELD_OVERHEAD: Final = 128  # bytes that a held packet costs besides its own
_COUNTERS: Final = ("lost", "corrupted", "duplicated", "reordered", "delayed", "overflowed")

_Where = TypeVar("_Where")


class FaultLine(Generic[_Where]):
    """One direction. A packet is (bytes, source or destination); `now` is in seconds of any steady clock."""

    def __init__(self, faults: Faults, direction: str) -> None:
        self._faults, self._active = faults, faults.any
        self._fates = random.Random(f"{faults.seed} {direction} fates")
        # Separate: the clock decides how often it draws.
        self._jitter = random.Random(f"{faults.seed} {direction} jitter")
        self._overtaken: list[tuple[float, int, tuple[bytes, _Where]]] = []  # due, passes left, packet
        self._delayed: list[tuple[float, int, tuple[bytes, _Where]]] = []  # a heap of due, order, packet
        self._order = 0
        self._held = 0
        self.counters: Counter[str] = Counter()

    def enter(self, data: bytes, where: _Where, now: float) -> list[tuple[bytes, _Where]]:
        """Returns the packets that leave as this one enters, in order."""
        if not self._active:
            return [(data, where)]
        faults, left = self._faults, list[tuple[bytes, _Where]]()
        # As many draws for each packet, so that one seed gives one sequence of fates.
        lost, duplicated, reordered, corrupted = (
            self._fates.random() < chance
            for chance in (faults.loss, faults.duplicate, faults.reorder, faults.corrupt)
        )
        which = self._fates.getrandbits(64)
        if lost:
            self.counters["lost"] += 1
            return left
        if corrupted and data:
            self.counters["corrupted"] += 1
            flipped = bytearray(data)
            bit = (which >> 3) % (8 * len(data))
            flipped[bit >> 3] ^= 1 << (bit & 7)
            data = bytes(flipped)
        packet = data, where
        if duplicated:
            self.counters["duplicated"] += 1
            self._delay(packet, now, left)
        earlier, self._overtaken = self._overtaken, []
        if not reordered:
            self._delay(packet, now, left)
        for due, passes, each in earlier:
            if passes == 1:
                self._unhold(each, now, left)
            else:
                self._overtaken.append((due, passes - 1, each))
        if reordered and self._hold(packet):
            self.counters["reordered"] += 1
            self._overtaken.append((now + LONGEST_REORDER, 1 + which % 8, packet))
        return left

    def release(self, now: float) -> list[tuple[bytes, _Where]]:
        """Returns the held packets that are due, in order."""
        left: list[tuple[bytes, _Where]] = []
        waiting, self._overtaken = self._overtaken, []
        for due, passes, each in waiting:
            if due <= now:
                self._unhold(each, now, left)
            else:
                self._overtaken.append((due, passes, each))
        while self._delayed and self._delayed[0][0] <= now:
            _, _, each = heapq.heappop(self._delayed)
            self._held -= len(each[0]) + _HELD_OVERHEAD
            left.append(each)
        return left

    def next_due(self) -> float:
        """Returns the time of the next release; infinity where nothing is held."""
        return min([due for due, _, _ in [*self._overtaken, *self._delayed[:1]]], default=math.inf)

    def _hold(self, packet: tuple[bytes, _Where]) -> bool:
        size = len(packet[0]) + _HELD_OVERHEAD
        if self._held + size > HELD_BYTES:
            self.counters["overflowed"] += 1
            return False
        self._held += size
        return True

    def _unhold(self, packet: tuple[bytes, _Where], now: float, left: list[tuple[bytes, _Where]]) -> None:
        self._held -= len(packet[0]) + _HELD_OVERHEAD
        self._delay(packet, now, left)

    def _delay(self, packet: tuple[bytes, _Where], now: float, left: list[tuple[bytes, _Where]]) -> None:
        """Holds a packet for the delay of the line; without one it leaves."""
        faults = self._faults
        if not (faults.delay or faults.jitter):
            left.append(packet)
        elif self._hold(packet):
            self.counters["delayed"] += 1
            due = now + faults.delay + self._jitter.random() * faults.jitter
            self._order += 1
            heapq.heappush(self._delayed, (due, self._order, packet))


class FaultDevice(Generic[_Where]):
    """Both directions of a switch. Without faults packets pass at once.

    Attributes:
        faults: with the seed in use; None for none.
    """

    def __init__(self, faults: Faults | None) -> None:
        self.faults: Faults | None = None
        if faults is not None and faults.any:
            self.faults = faults if faults.seed is not None else replace(faults, seed=secrets.randbits(63))
        lines = [FaultLine[_Where](self.faults or Faults(), direction) for direction in ("in", "out")]
        self.inward, self.outward = lines

    def timeout(self, now: float) -> float | None:
        """Returns the seconds until a held packet is due; None where nothing is held."""
        due = min(self.inward.next_due(), self.outward.next_due())
        return None if due == math.inf else max(due - now, 0.0)

    def counters(self) -> dict[str, int]:
        """Returns lost, corrupted, duplicated, reordered, delayed, overflowed, each with _in and _out.

        Empty without faults.
        """
        if self.faults is None:
            return {}
        lines = (("in", self.inward), ("out", self.outward))
        return {f"{name}_{end}": line.counters[name] for name in _COUNTERS for end, line in lines}

"""Counters of interfaces, now and over a run, from the kernel's table."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class InterfaceCounts(NamedTuple):
    """Frames and bytes of an interface, in and out, without preamble and frame check sequence."""

    packets_in: int = 0
    bytes_in: int = 0
    packets_out: int = 0
    bytes_out: int = 0

    def since(self, before: InterfaceCounts) -> InterfaceCounts:
        """Returns the growth since earlier counts."""
        return InterfaceCounts(*(now - then for now, then in zip(self, before, strict=True)))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of an interface between two moments.

    Attributes:
        total: growth of the counters.
        seconds: between the moments.
        busiest_in, busiest_out: bytes a second in the busiest window.
    """

    total: InterfaceCounts
    seconds: float
    busiest_in: float
    busiest_out: float


def parse_counts(text: str) -> dict[str, InterfaceCounts]:
    """Returns the counts of each interface, from the text of /proc/net/dev."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        column = [int(each) for each in numbers.split()]
        found[name.strip()] = InterfaceCounts(column[1], column[0], column[9], column[8])
    return found


def read_counts() -> dict[str, InterfaceCounts]:
    """Returns the counts of each interface of this network namespace."""
    return parse_counts(Path("/proc/thread-self/net/dev").read_text())


class TrafficMeter:
    """Reads the counters of interfaces regularly, from construction to `stop`.

    Args:
        names: the interfaces.
        window: seconds between two readings.
    """

    def __init__(self, names: Iterable[str], window: float = 0.2) -> None:
        self._names = list(names)
        self._window = window
        self._first = self._last = read_counts()
        self._begin = self._then = time.monotonic()
        self._busiest = dict.fromkeys(self._names, (0.0, 0.0))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def stop(self) -> Mapping[str, Traffic]:
        """Ends it and returns the traffic of each interface."""
        self._done.set()
        self._thread.join()
        self._take()
        seconds = self._then - self._begin
        found = {}
        for name in self._names:
            total = self._last.get(name, InterfaceCounts()).since(self._first.get(name, InterfaceCounts()))
            # A run shorter than a window has no other value.
            mean = total.bytes_in / seconds, total.bytes_out / seconds
            busiest = self._busiest[name]
            found[name] = Traffic(total, seconds, max(busiest[0], mean[0]), max(busiest[1], mean[1]))
        return found

    def _run(self) -> None:
        while not self._done.wait(self._window):
            self._take()

    def _take(self) -> None:
        counted, now = read_counts(), time.monotonic()
        passed = now - self._then
        if passed <= 0:
            return
        # A short last window would say more about the clock than about the link.
        for name in self._names if passed >= self._window / 2 else ():
            more = counted.get(name, InterfaceCounts()).since(self._last.get(name, InterfaceCounts()))
            before = self._busiest[name]
            rates = more.bytes_in / passed, more.bytes_out / passed
            self._busiest[name] = max(before[0], rates[0]), max(before[1], rates[1])
        self._last, self._then = counted, now

"""`switchagg bench loops`: GB/s of each loop that touches every element, beside memcpy of as many bytes.

Every loop runs at each instruction set that the processor has, in turns, and right after each of its runs
comes the memcpy. A share is the median of these pairs, so that a busy computer slows down both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from switchagg.bench.grid import format_list, format_size
from switchagg.errors import require
from switchagg.report.machine import machine
from switchagg.report.table import Table
from worker_lib._native import LoopBench

GRANULE: Final = 4 * 4096
"""Bytes of a tensor are a multiple of this."""
_SAMPLE_BYTES: Final = 2 << 20  # moved by a timed sample, at least


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of `switchagg bench loops`.

    Attributes:
        size: bytes of a tensor of float32; other types have as many elements.
        loops: names, or beginnings of names; empty for all.
        levels: instruction sets: base, v3 (AVX2), v4 (AVX-512); empty for all of this processor.
        repeat: timed samples of each.
        seed: of the data.
    """

    size: int = 256 << 10
    loops: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    repeat: int = 21
    seed: int = 1

    def __post_init__(self) -> None:
        right = GRANULE <= self.size <= 1 << 30 and self.size % GRANULE == 0
        require(right, "size", self.size, f"multiples of {GRANULE} bytes, up to 1G")
        names = [name for name, _ in LoopBench.loops]
        for asked in self.loops:
            require(any(name.startswith(asked) for name in names), "loop", asked, format_list(names))
        for level in self.levels:
            require(level in LoopBench.levels, "level", level, format_list(LoopBench.levels))
        require(1 <= self.repeat <= 10_000, "repeat", self.repeat, "1 to 10000")
        require(0 <= self.seed < 1 << 64, "seed", self.seed, "0 up to, but not including, 2^64")


@dataclass(frozen=True, slots=True)
class Figure:
    """One loop at one instruction set.

    Attributes:
        bytes: an element, read and written; where a loop also reads what it writes, that counts twice.
        samples: seconds for a tensor, of the loop and of the memcpy after it.
    """

    loop: str
    level: str
    bytes: float
    elements: int
    samples: tuple[tuple[float, float], ...]

    @property
    def gigabytes(self) -> float:
        """GB/s read and written, the median."""
        return self.bytes * self.elements / statistics.median(loop for loop, _ in self.samples) / 1e9

    @property
    def memcpy_gigabytes(self) -> float:
        """GB/s that memcpy reads and writes, the median."""
        return self.bytes * self.elements / statistics.median(copy for _, copy in self.samples) / 1e9

    @property
    def share(self) -> float:
        """The loop's speed by that of memcpy: the median of the pairs."""
        return statistics.median(copy / loop for loop, copy in self.samples)

    @property
    def picoseconds(self) -> float:
        """Time of an element, the median."""
        return 1e12 * statistics.median(loop for loop, _ in self.samples) / self.elements


def measure(settings: Settings, say: Callable[[str], None]) -> list[Figure]:
    """Returns figures in the order of the loops, the least instruction set first."""
    elements = settings.size // 4
    bench = LoopBench(settings.seed, elements)
    asked = [
        (index, level)
        for index, (name, _) in enumerate(LoopBench.loops)
        if not settings.loops or name.startswith(settings.loops)
        for level, its_name in enumerate(LoopBench.levels)
        if not settings.levels or its_name in settings.levels
    ]
    samples: dict[tuple[int, int], list[tuple[float, float]]] = {each: [] for each in asked}
    for turn in range(1 + settings.repeat):  # the first one warms up
        say(f"round {turn} of {settings.repeat}")
        for each in asked:
            runs = max(1, int(_SAMPLE_BYTES / (LoopBench.loops[each[0]][1] * elements)))
            times = bench.measure(*each, runs)
            if turn:
                samples[each].append((times[0] / runs / 1e9, times[1] / runs / 1e9))
    return [
        Figure(
            LoopBench.loops[index][0], LoopBench.levels[level], LoopBench.loops[index][1], elements, tuple(of)
        )
        for (index, level), of in samples.items()
    ]


def table(settings: Settings, figures: Iterable[Figure]) -> Table:
    """A row a loop: GB/s and share of memcpy at each instruction set."""
    by_loop: dict[str, dict[str, Figure]] = {}
    for each in figures:
        by_loop.setdefault(each.loop, {})[each.level] = each
    levels = [level for level in LoopBench.levels if any(level in of for of in by_loop.values())]
    headings = ["loop", "bytes an element"]
    for level in levels:
        headings += [f"{level} GB/s", "of memcpy"]
    rows = []
    for loop, of in by_loop.items():
        row: list[str | float] = [loop, next(iter(of.values())).bytes]
        for level in levels:
            row += [round(of[level].gigabytes, 1), round(of[level].share, 2)]
        rows.append(row)
    note = (
        "Read and written; of memcpy: the loop's speed by that of a memcpy that reads and writes as many "
        "bytes, right after it. base: any x86-64, or another processor; v3: AVX2; v4: AVX-512."
    )
    return Table(f"Loops over {format_size(settings.size)} of float32", tuple(headings), rows, note)


def as_json(settings: Settings, figures: Iterable[Figure]) -> dict[str, Any]:
    """Returns the machine, and of each loop its medians and all samples."""
    return {
        "machine": machine(),
        "settings": {"size": settings.size, "repeat": settings.repeat, "seed": settings.seed},
        "loops": [
            {
                "loop": each.loop,
                "level": each.level,
                "bytes_an_element": each.bytes,
                "GBps": each.gigabytes,
                "memcpy_GBps": each.memcpy_gigabytes,
                "share_of_memcpy": each.share,
                "picoseconds_an_element": each.picoseconds,
                "samples": each.samples,
            }
            for each in figures
        ],
    }

"""The grid of a benchmark: parameters, their limits, and the cells that they span. No I/O.

A *cell* is one workload (workers, size, dtype, density, overlap); a *variant* is one way to reduce it (a
system, and for switchagg also its lanes and the loss that its switch injects). All variants of a cell are
measured in turn, round by round, on the same data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any, TypeVar, cast

import numpy as np

from switchagg.emulator.rates import Rate
from switchagg.errors import UsageError, require
from switchagg.rules.planner import MAX_BLOCK
from switchagg.wire.header import MAX_WORKERS, MIN_WORDS

SMALL_SAMPLE_BYTES = 4 << 20
"""Calls smaller than this are timed several to a sample, back to back, each on its own tensor."""
MAX_CALLS_PER_SAMPLE = 64

EXACT, DEFAULT = 0, 1
"""In place of a lane's width: exact sums, and sums of which a caller asks nothing."""
LANES: dict[str, tuple[int, ...]] = {
    "float32": (DEFAULT, 32, 16, 8, EXACT),
    "float64": (DEFAULT, 64, 32, 16, 8, EXACT),
    "float16": (DEFAULT, 32, 16, 8, EXACT),
    "bfloat16": (DEFAULT, 32, 16, 8, EXACT),
    "int32": (32,),
    "int64": (64,),
}
"""Ways of each element type on the wire: lane widths, and `EXACT` and `DEFAULT` of floats."""
_NAMES = {EXACT: "exact", DEFAULT: "default"}


def parse_bits(text: str) -> int:
    """A lane's width, or `EXACT` or `DEFAULT` by their names."""
    names = {name: bits for bits, name in _NAMES.items()}
    return names[text] if text in names else int(text)


def name_of_bits(bits: int) -> str:
    """A lane's width as text, or the name of `EXACT` or `DEFAULT`."""
    return _NAMES.get(bits, str(bits))


class Overlap(StrEnum):
    """Relation of the non-zero blocks of different workers: the same, independent, disjoint."""

    ALL = "all"
    RANDOM = "random"
    NONE = "none"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of an element type's name.

    Raises:
        UsageError: `bfloat16` without the ml_dtypes package.
    """
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise UsageError("dtype bfloat16 needs the ml_dtypes package: pip install ml_dtypes") from None
        return cast("np.dtype[Any]", np.dtype(ml_dtypes.bfloat16))
    return np.dtype(name)


def is_float(name: str) -> bool:
    """True for the name of a floating-point element type."""
    return "float" in name


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload. `size`: bytes of a tensor; `density`: the share of its blocks that is non-zero."""

    workers: int
    size: int
    dtype: str
    density: float
    overlap: Overlap
    block_size: int

    @property
    def elements(self) -> int:
        """Elements of one worker's tensor."""
        return self.size // numpy_dtype(self.dtype).itemsize

    @property
    def blocks(self) -> int:
        """Blocks of one worker's tensor, the last of which may be short."""
        return -(-self.elements // self.block_size)

    @property
    def calls(self) -> int:
        """Calls to a timed sample: one, or several back to back where one is too short to time alone."""
        return max(1, min(MAX_CALLS_PER_SAMPLE, SMALL_SAMPLE_BYTES // self.size))

    def describe(self) -> str:
        """One line for people."""
        text = f"{self.workers} workers, {format_size(self.size)} {self.dtype}, density {self.density:g}"
        return text if self.density == 1 else f"{text}, overlap {self.overlap}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to reduce a cell's tensors.

    Attributes:
        bits: width of an element on the wire; of switchagg, a way of `LANES`.
        loss: share of packets that the switch loses.
        transport: of switchagg: "slots", "shm" or "udp"; empty for other systems.
    """

    system: str
    bits: int
    loss: float = 0.0
    transport: str = ""

    @property
    def group(self) -> str:
        """The ranks that measure it: gloo's serve two systems; each transport and loss has a switch."""
        if self.system == "switchagg":
            return f"switchagg {self.transport} {self.loss}"
        return "gloo" if self.system.startswith("gloo") else self.system

    def describe(self) -> str:
        """One line for people."""
        lossy = f", {self.loss:.3g} loss" if self.loss else ""
        way = f" over {self.transport}" if self.transport else ""
        bits = name_of_bits(self.bits)
        return f"{self.system}{way} {bits}{'-bit' if bits.isdigit() else ''}{lossy}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of `switchagg bench allreduce`. Lists span the grid; the rest holds for all of it.

    Attributes:
        sizes: bytes of one worker's tensor.
        bits: ways of `LANES`; those that a dtype does not have are left out for it. None: all but exact.
        transports: of switchagg: "slots", "shm", "udp". None: slots that the ranks share and UDP; where
            packets are lost or links have a rate, shared memory and UDP.
        compare: the other systems, by name; None for every one that is installed.
        mask: pass each worker's block mask to switchagg, where it would scan the tensor for zero blocks.
        block_size: elements to a block, of the data and of the job.
        words, slots: the job's words a packet and slots; None leaves them to the controller.
        duplicate, reorder: shares of packets that the switch duplicates or reorders, beside each `loss`.
        rate: of each worker's link to the switch, each way, such as ``1Gbit``; None for no limit.
            Other systems have no such links.
        timeout: seconds that one call may take.
        measure_switchagg: False to measure the other systems alone.
    """

    workers: tuple[int, ...] = (4,)
    sizes: tuple[int, ...] = (4 << 10, 64 << 20)
    densities: tuple[float, ...] = (1.0, 0.01)
    overlaps: tuple[Overlap, ...] = (Overlap.RANDOM,)
    bits: tuple[int, ...] | None = None
    losses: tuple[float, ...] = (0.0,)
    transports: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] = ("float32",)
    compare: tuple[str, ...] | None = None
    repeat: int = 7
    warmup: int = 2
    mask: bool = False
    block_size: int = 64
    words: int | None = None
    slots: int | None = None
    duplicate: float = 0.0
    reorder: float = 0.0
    rate: str | None = None
    seed: int = 1
    timeout: float = 60.0
    measure_switchagg: bool = True

    def __post_init__(self) -> None:
        for workers in self.workers:
            require(2 <= workers <= MAX_WORKERS, "workers", workers, f"2 to {MAX_WORKERS}")
        for dtype in self.dtypes:
            require(dtype in LANES, "dtype", dtype, ", ".join(LANES))
            itemsize = numpy_dtype(dtype).itemsize
            for size in self.sizes:
                require(size > 0, "size", size, "1 byte or more, such as 4K or 64M")
                accepted = f"multiples of {itemsize} bytes, the size of a {dtype}"
                require(size % itemsize == 0, "size", size, accepted)
            if self.bits is not None and not set(self.bits) & set(LANES[dtype]):
                asked = format_list([name_of_bits(bits) for bits in self.bits])
                there = format_list([name_of_bits(bits) for bits in LANES[dtype]])
                require(False, f"bits for {dtype}", asked, there)
        for bits in self.bits or ():
            require(bits in (EXACT, DEFAULT, 8, 16, 32, 64), "bits", bits, "8, 16, 32, 64, default, exact")
        for density in self.densities:
            require(0 < density <= 1, "density", density, "more than 0, up to 1")
        for loss in self.losses:
            require(0 <= loss < 1, "loss", loss, "0 up to, but not including, 1")
        for transport in self.transports or ():
            require(transport in ("slots", "shm", "udp"), "transport", transport, "slots, shm, udp")
            if transport == "slots" and not all(map(self._undisturbed, self.losses)):
                raise UsageError(
                    "transport is slots, by which no packet goes; loss, duplicate, reorder and rate: shm, udp"
                )
        require(0 <= self.duplicate < 1, "duplicate", self.duplicate, "0 up to, but not including, 1")
        require(0 <= self.reorder < 1, "reorder", self.reorder, "0 up to, but not including, 1")
        if self.rate is not None:
            Rate.parse(self.rate)
        require(self.repeat >= 1, "repeat", self.repeat, "1 or more")
        require(self.warmup >= 0, "warmup", self.warmup, "0 or more")
        require(
            1 <= self.block_size <= MAX_BLOCK, "block-size", self.block_size, f"1 to {MAX_BLOCK} elements"
        )
        require(self.words is None or self.words >= MIN_WORDS, "words", self.words, f"{MIN_WORDS} or more")
        power = self.slots is None or (self.slots >= 2 and self.slots & (self.slots - 1) == 0)
        require(power, "slots", self.slots, "powers of two from 2")
        require(self.seed >= 0, "seed", self.seed, "0 or more")
        require(
            self.timeout > 0 and math.isfinite(self.timeout), "timeout", self.timeout, "more than 0 seconds"
        )

    def ways(self) -> Iterator[tuple[str, float]]:
        """Transports of switchagg and the losses that they meet."""
        for loss in self.losses:
            for transport in self.transports or ("slots" if self._undisturbed(loss) else "shm", "udp"):
                yield transport, loss

    def _undisturbed(self, loss: float) -> bool:
        return not (loss or self.duplicate or self.reorder or self.rate)

    def lanes(self, dtype: str) -> tuple[int, ...]:
        """The ways to measure for an element type: those asked for that it has."""
        if self.bits is None:
            return tuple(bits for bits in LANES[dtype] if bits != EXACT)
        return tuple(bits for bits in self.bits if bits in LANES[dtype])

    def cells(self) -> Iterator[Cell]:
        """The grid, workers outermost. At density 1 overlap means nothing: one cell there, as `all`."""
        done: set[Cell] = set()
        grid = product(self.workers, self.dtypes, self.sizes, self.densities, self.overlaps)
        for workers, dtype, size, density, overlap in grid:
            cell = Cell(
                workers, size, dtype, density, Overlap.ALL if density == 1 else overlap, self.block_size
            )
            if cell not in done:
                done.add(cell)
                yield cell


T = TypeVar("T")


def parse_list(text: str, name: str, convert: Callable[[str], T]) -> tuple[T, ...]:
    """`"2,4,8"` to a tuple, duplicates dropped, order kept.

    Raises:
        UsageError: an empty list, or an item that `convert` refuses with a ValueError.
    """
    items = [item.strip() for item in text.split(",")]
    values: list[T] = []
    for item in items:
        try:
            value = convert(item)
        except UsageError:
            raise
        except ValueError:
            raise UsageError(f"{name}: cannot read {item!r} in {text!r}") from None
        if value not in values:
            values.append(value)
    return tuple(values)


def parse_size(text: str) -> int:
    """Bytes from `4096`, `4K`, `64M` or `1G` (powers of 1024).

    Raises:
        UsageError: anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " ") if match else 0.5
    require(
        math.isfinite(size) and size == int(size), "size", repr(text), "whole bytes, such as 4096, 4K or 64M"
    )
    return int(size)


def format_size(size: int) -> str:
    """`67108864` to `64M`."""
    for exponent, suffix in ((30, "G"), (20, "M"), (10, "K")):
        if size >= 1 << exponent and size % (1 << (exponent - 3)) == 0:
            return f"{size / (1 << exponent):g}{suffix}"
    return f"{size}B"


def format_list(values: Sequence[object]) -> str:
    """`(32, 16)` to `32, 16`."""
    return ", ".join(str(value) for value in values)

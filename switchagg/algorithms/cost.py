"""The cost of sending blocks of a vector in lanes of some width: the denominators of `adaptive`.

    PayloadBits   lanes, and an index for each block where the receiver does not know it
    Packets       a price for every packet that is begun, and one for the message
    SwitchCost    ours: plan and stream in packets of K words, both ways; in bytes or in seconds

Khirirat, Magnusson, Aytekin, Johansson, "A flexible framework for communication-efficient machine learning"
(arXiv 2003.06377) has the first two. A model has to give the same numbers at every worker.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from switchagg.algorithms.base import ETHERNET_BYTES, Array
from switchagg.errors import UsageError, require
from switchagg.rules.planner import elements_per_packet
from switchagg.wire.header import HEADER_BYTES, IP_UDP_BYTES
from worker_lib.plan import HEADER_WORDS, NARROW_CHUNK, WIDE_CHUNK, DType

if TYPE_CHECKING:
    from worker_lib.session import Session

_FRAME: Final = HEADER_BYTES + IP_UDP_BYTES + ETHERNET_BYTES
_PROBES: Final = 8
_LARGE_PACKETS: Final = 32


def _checked(**values: float) -> None:
    for name, value in values.items():
        require(0 <= value < np.inf, name, repr(value), "0 and up")


class CostModel(Protocol):
    """The cost of one all-reduce of float32 blocks that all workers send alike."""

    def cost(self, elements: ArrayLike, blocks: ArrayLike, bits: int) -> Array:
        """Cost, in the model's unit.

        Args:
            elements: how many are sent; any shape.
            blocks: in how many blocks; the same shape.
            bits: width of the lanes.
        """


@dataclass(frozen=True, slots=True)
class PayloadBits:
    """elements * bits + blocks * index + once.

    Attributes:
        index: bits for the place of a block; 0 where all workers know it, as in `adaptive`.
        once: bits a message, such as a norm.
    """

    index: float = 0.0
    once: float = 0.0

    def __post_init__(self) -> None:
        _checked(index=self.index, once=self.once)

    def cost(self, elements: ArrayLike, blocks: ArrayLike, bits: int) -> Array:
        """Bits."""
        return np.asarray(elements, np.float64) * bits + np.asarray(blocks) * self.index + self.once


@dataclass(frozen=True, slots=True)
class Packets:
    """start + each * ceil(payload / size), with the payload of `PayloadBits`.

    Attributes:
        size: bits of payload that a packet takes.
        each: cost of a packet, however full.
        start: cost of a message.
    """

    size: float
    each: float = 1.0
    start: float = 0.0
    payload: PayloadBits = PayloadBits()

    def __post_init__(self) -> None:
        require(0 < self.size < np.inf, "size", repr(self.size), "bits of a packet, greater than 0")
        _checked(each=self.each, start=self.start)

    def cost(self, elements: ArrayLike, blocks: ArrayLike, bits: int) -> Array:
        """In units of `each`."""
        payload = self.payload.cost(elements, blocks, bits)
        return np.asarray(self.start + self.each * np.ceil(payload / self.size))


@dataclass(frozen=True, slots=True)
class SwitchCost:
    """An all-reduce through the switch, of blocks that all workers know without a bitmap.

        packets = plan (header, exponents of each chunk) + ceil(elements / E),   E = K * 32 / bits
        bytes   = packets * (4 K + headers), up and down
        seconds = latency + packets * packet_seconds

    Attributes:
        words: K.
        latency, packet_seconds: as `measured` finds them, or as they are known.
        unit: what `cost` gives: ``"packets"``, ``"bytes"`` or ``"seconds"``.
    """

    words: int
    latency: float = 0.0
    packet_seconds: float = 0.0
    unit: str = "bytes"

    def __post_init__(self) -> None:
        elements_per_packet(self.words, 32)
        _checked(latency=self.latency, packet_seconds=self.packet_seconds)
        units = ("packets", "bytes", "seconds")
        require(self.unit in units, "unit", repr(self.unit), ", ".join(map(repr, units)))
        if self.unit == "seconds" and not self.packet_seconds + self.latency > 0:
            raise UsageError(
                "unit is 'seconds' with latency and packet_seconds 0; give one, or use `measured`"
            )

    def packets(self, elements: ArrayLike, bits: int) -> NDArray[np.int64]:
        """Packets that each worker sends, and receives, with the plan's."""
        count = np.asarray(elements, np.int64)
        each = DType.F32.exponent_bits // 32
        exponents = each * -(-count // (WIDE_CHUNK if bits >= 32 else NARROW_CHUNK))
        together = HEADER_WORDS + exponents <= self.words
        plan = np.where(together, 1, 1 + -(-exponents // self.words))
        return np.asarray(plan + -(-count // elements_per_packet(self.words, bits)), np.int64)

    def cost(self, elements: ArrayLike, blocks: ArrayLike, bits: int) -> Array:  # noqa: ARG002
        """In the model's unit; `blocks` do not matter."""
        packets = self.packets(elements, bits).astype(np.float64)
        if self.unit == "seconds":
            return np.asarray(self.latency + packets * self.packet_seconds)
        return packets * (2 * (4 * self.words + _FRAME)) if self.unit == "bytes" else packets

    @classmethod
    def measured(cls, session: Session, *, unit: str = "seconds") -> SwitchCost:
        """From the session's own counters and times. Every worker calls it.

        A few sums of two sizes are timed; K follows from bytes and packets. The times are averaged over the
        workers through the switch, so that all reckon with the same.

        Raises:
            UsageError: a group of one has no switch; or the unit is unknown.
        """
        if session.world_size == 1:
            raise UsageError("a session of one worker sends nothing, so there is no cost to measure")
        before = session.stats()
        small = _timed(session, 1)
        after = session.stats()
        # Nothing here is zero, so every packet has its K words.
        sent, packets = (after[name] - before[name] for name in ("bytes_sent", "packets_sent"))
        words = round((sent / packets - HEADER_BYTES) / 4)
        large = _timed(session, _LARGE_PACKETS * words)
        few, many = cls(words).packets([1, _LARGE_PACKETS * words], 32).tolist()
        each = max((large - small) / (many - few), 1e-9)
        found = np.array([max(0.0, small - few * each), each])
        session.allreduce(found, op="avg")
        return cls(words, float(found[0]), float(found[1]), unit)


def _timed(session: Session, elements: int) -> float:
    """Seconds of the quickest of a few sums."""
    x, best = np.ones(elements, np.int32), np.inf  # which go in packets everywhere; floats may not
    for _ in range(_PROBES):
        began = time.perf_counter()
        session.allreduce(x, blocks="dense", bits=32)
        best = min(best, time.perf_counter() - began)
    return float(best)

"""Faults of a link: when a frame arrives, if it does. No I/O and no clock.

    frame, now --> lost? --> room in the queue? --> serialised at `rate` --> + `delay` + `jitter` --> arrival

The queue has a limit, as a router's, and drops frames when it is full.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, fields
from typing import Any, Final

from switchagg.errors import UsageError, require

# Preamble, frame check sequence and the gap to the next frame; with them a rate is that of the wire.
FRAMING: Final = 24
MIN_FRAME: Final = 60
MAX_SECONDS: Final = 10.0
MAX_QUEUE: Final = 1_000_000
_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """Faults of each way of a link, independent of the other way.

    Attributes:
        loss: probability that a frame is lost.
        delay: seconds added to the way of each frame.
        jitter: seconds; up to so many are added at random, which may reorder frames.
        rate: Mbit/s of the wire, framing counted; 0: no limit.
        queue: frames that wait for the wire, with a rate.
        seed: of the random decisions.

    Raises `UsageError` for a value out of range.
    """

    loss: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    rate: float = 0.0
    queue: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.loss <= 1, "loss", self.loss, "a probability, 0..1")
        for name in ("delay", "jitter"):
            if not 0 <= getattr(self, name) <= MAX_SECONDS:
                raise UsageError(f"{name} is {getattr(self, name)}; accepted: 0 to {MAX_SECONDS:g} seconds")
        if not (self.rate == 0 or 0.001 <= self.rate <= 1e6):
            raise UsageError(f"rate is {self.rate}; accepted: 0.001 to 1000000 Mbit/s, or 0 for no limit")
        require(1 <= self.queue <= MAX_QUEUE, "queue", self.queue, f"1 to {MAX_QUEUE} frames")
        require(0 <= self.seed < 1 << 64, "seed", self.seed, "0 to 2**64 - 1")

    @property
    def any(self) -> bool:
        """True if a frame can be lost, delayed or held back."""
        return bool(self.loss or self.delay or self.jitter or self.rate)


def link_faults(**given: Any) -> LinkFaults:
    """Returns the faults of texts and numbers: `delay="5ms"`, `rate="100"`, `loss=0.01`.

    Raises `UsageError` for an unknown name and for a value that is no number.
    """
    known = {each.name for each in fields(LinkFaults)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"a link has no {name!r}; accepted: {', '.join(sorted(known))}")
        if name in ("delay", "jitter"):
            values[name] = seconds(value, name)
        else:
            kind = int if name in ("queue", "seed") else float
            try:
                values[name] = kind(value)
            except (TypeError, ValueError):
                raise UsageError(f"{name} is {value!r}; accepted: a number") from None
    return LinkFaults(**values)


def seconds(value: float | str, name: str = "delay") -> float:
    """Returns seconds of a number, or of a text such as 5ms, 200us, 0.1s. Raises `UsageError`."""
    if isinstance(value, int | float):
        return float(value)
    unit = next((each for each in ("us", "ms", "s") if value.endswith(each)), "")
    try:
        return float(value.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    except ValueError:
        raise UsageError(f"{name} is {value!r}; accepted: seconds such as 5ms, 200us or 0.1s") from None


@dataclass(slots=True)
class LinkCounts:
    """Counters of one direction: frames and bytes that passed, frames lost, frames the full queue dropped."""

    frames: int = 0
    bytes: int = 0
    lost: int = 0
    overflowed: int = 0


class LinkDirection:
    """One way of a link.

    Args:
        stream: name of the link and direction; each has its own random decisions from the seed.
    """

    def __init__(self, faults: LinkFaults, stream: str) -> None:
        self.counts = LinkCounts()
        self._random = random.Random(f"{faults.seed} {stream}")
        self.change(faults)

    def change(self, faults: LinkFaults) -> None:
        """Has these faults from now on; frames on their way keep their times."""
        self._faults = faults
        self._free = 0.0
        self._waiting: deque[float] = deque()

    def offer(self, size: int, now: float) -> float | None:
        """Takes a frame of `size` bytes. Returns the time of its arrival, or None if it is lost."""
        faults, counts = self._faults, self.counts
        if faults.loss and self._random.random() < faults.loss:
            counts.lost += 1
            return None
        at = now
        if faults.rate:
            waiting = self._waiting
            while waiting and waiting[0] <= now:
                waiting.popleft()
            if len(waiting) >= faults.queue:
                counts.overflowed += 1
                return None
            bits = 8 * (max(size, MIN_FRAME) + FRAMING)
            at = self._free = max(self._free, now) + bits / (faults.rate * 1e6)
            waiting.append(at)
        counts.frames += 1
        counts.bytes += size
        if faults.jitter:
            at += faults.jitter * self._random.random()
        return at + faults.delay

"""`Faults`: the settings of the fault device, which treats a switch's packets as a bad network does.

The device itself is in C++ (`native/switch/fault_port.h`), between the packet loop and the socket.
"""

from __future__ import annotations

from dataclasses import dataclass

from switchagg.errors import UsageError

MAX_DELAY = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of a network, for each datagram and in each direction, independently.

    Attributes:
        loss: probability that a datagram is lost.
        duplicate: probability that it arrives twice.
        reorder: probability that it is held back until 1 to 8 later ones have passed, or 0.3 ms.
        delay: seconds by which every datagram is late.
        corrupt: probability that one of its bits is flipped. That is above the kernel, whose checksums do
            not see it: sums come out wrong.
        seed: of the random decisions; the same datagrams in the same order then meet the same
            fate. None: any.
        jitter: seconds, up to which each datagram is later still, at random; neighbours may change places.

    Raises `UsageError` for a probability outside 0..1, a negative time, or one above 10 s.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    corrupt: float = 0.0
    seed: int | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder", "corrupt"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise UsageError(f"{name} is {value}; accepted: a probability, 0..1")
        for name in ("delay", "jitter"):
            value = getattr(self, name)
            if not 0.0 <= value <= MAX_DELAY:
                raise UsageError(f"{name} is {value}; accepted: seconds, 0..{MAX_DELAY:g}")
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed is {self.seed}; accepted: 0..2^64 - 1")

    @property
    def any(self) -> bool:
        """True if there is any fault to inject."""
        return any((self.loss, self.duplicate, self.reorder, self.delay, self.corrupt, self.jitter))

    def options(self) -> list[str]:
        """The options of `switchagg host` that ask for these faults."""
        names = ("loss", "duplicate", "reorder", "corrupt", "delay", "jitter")
        line = [part for name in names if (v := getattr(self, name)) for part in (f"--{name}", repr(v))]
        return line if self.seed is None else [*line, "--seed", str(self.seed)]

"""`Rate`: the speed of a switch's links, as the settings of the rate device.

The device itself is in C++ (`native/switch/rate_port.h`), round the socket and the links through shared
memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from switchagg.errors import UsageError

DEFAULT_QUEUE: Final = 1 << 20
MIN_RATE, MAX_RATE = 1e4, 1e12  # bits a second
MIN_QUEUE, MAX_QUEUE = 1 << 14, 1 << 28  # bytes; a packet of the largest size fits

_FACTORS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)bit(?:/s)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rate:
    """The speed of every worker's link, each way by itself.

    Attributes:
        bits_per_second: of the wire: what a packet takes of an Ethernet link, preamble and gap included.
        queue: bytes, as they count on the wire, that wait at one end of a link; what finds it full is
            dropped.
        mark: bytes in the queue; packets that find more are marked with ECN's CE, if their senders answer
            that. None marks none.

    Raises `UsageError` for a rate outside 10 kbit/s .. 1 Tbit/s, a queue outside 16 KiB .. 256 MiB, or a mark
    outside the queue.
    """

    bits_per_second: float
    queue: int = DEFAULT_QUEUE
    mark: int | None = None

    def __post_init__(self) -> None:
        if not MIN_RATE <= self.bits_per_second <= MAX_RATE:
            raise UsageError(f"rate is {self.bits_per_second:g} bit/s; accepted: 10kbit to 1Tbit")
        if not MIN_QUEUE <= self.queue <= MAX_QUEUE:
            raise UsageError(f"queue is {self.queue} bytes; accepted: {MIN_QUEUE}..{MAX_QUEUE}")
        if self.mark is not None and not 1 <= self.mark <= self.queue:
            raise UsageError(f"mark is {self.mark} bytes; accepted: 1..{self.queue}, the queue")

    @classmethod
    def parse(cls, text: str, queue: int | None = None, mark: int | None = None) -> Rate:
        """Reads a rate such as ``1Gbit``, ``100 Mbit/s`` or ``2.5Gbit``.

        Raises `UsageError` for other words, or a rate, queue or mark out of range.
        """
        return cls(bits_per_second(text), DEFAULT_QUEUE if queue is None else queue, mark)

    def options(self) -> list[str]:
        """The options of `switchagg host` that ask for it."""
        line = ["--rate", f"{self.bits_per_second!r}bit"]
        if self.queue != DEFAULT_QUEUE:
            line += ["--queue", str(self.queue)]
        return line if self.mark is None else [*line, "--mark", str(self.mark)]

    def __str__(self) -> str:
        for prefix in ("", "k", "M", "G", "T"):
            value = self.bits_per_second / _FACTORS[prefix.lower()]
            if value < 1000:
                break
        return f"{value:g} {prefix}bit/s"


def bits_per_second(text: str, name: str = "rate") -> float:
    """Returns the number of ``2.5Gbit`` and the like. Raises `UsageError` for other words."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{name} is {text!r}; accepted: a number and bit, kbit, Mbit or Gbit (a second), such as 1Gbit"
        )
    return float(found[1]) * _FACTORS[found[2].lower()]


def wire_bytes(payload: int) -> int:
    """Returns the bytes of an Ethernet link that a UDP payload of `payload` bytes takes.

    Headers of UDP, IPv4 and Ethernet (8, 20, 14), checksum (4), at least 64 in all, preamble (8), gap (12).
    With IPv6 it is 20 more.
    """
    return max(64, payload + 46) + 20

"""State behind externs that only a Tofino has: hash and checksum units, the parser's counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from switchagg.p4model.runtime import hashes
from switchagg.p4model.runtime.packet import ParserReject

# The colours as a Tofino encodes them; red is 3.
COLOURS: Final = (0, 1, 3)


@dataclass(slots=True)
class HashUnit:
    """A hash of bit strings. What is not whole bytes is filled up with zeros in front."""

    name: str
    width: int
    function: Callable[[bytes], int] | None

    def get(self, bits: int, value: int) -> int:
        """The hash, cut to the unit's width; for the identity, the last bits themselves."""
        if self.function is None:
            return value & ((1 << self.width) - 1)
        return self.function(value.to_bytes((bits + 7) // 8, "big")) & ((1 << self.width) - 1)


@dataclass(slots=True)
class Polynomial:
    """CRCPolynomial: a check of one's own."""

    crc: hashes.Crc


class ChecksumUnit:
    """A parser's or deparser's 16-bit ones' complement unit. Starts at zero with each packet."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def start(self) -> None:
        """Begins anew."""
        self.total = 0

    def add(self, bits: int, value: int) -> None:
        """Adds a bit string of 16-bit words."""
        self.total = _plus(self.total, hashes.ones_complement_sum(hashes.to_bytes(value, bits)))

    def subtract(self, bits: int, value: int) -> None:
        """Takes a bit string of 16-bit words off."""
        self.total = _plus(self.total, hashes.ones_complement_sum(hashes.to_bytes(value, bits)) ^ 0xFFFF)

    def verify(self) -> bool:
        """Whether what was added is wrong: true for an error, as Tofino programs use it."""
        return self.total != 0xFFFF

    def get(self) -> int:
        """The complement of the sum."""
        return self.total ^ 0xFFFF


def _plus(first: int, second: int) -> int:
    total = first + second
    return (total & 0xFFFF) + (total >> 16)


def update(bits: int, value: int, zeros_as_ones: bool) -> int:
    """A deparser's checksum over a bit string."""
    found = hashes.internet_checksum(hashes.to_bytes(value, bits))
    return 0xFFFF if zeros_as_ones and found == 0 else found


def residual(subtracted: int, extracted: bytes) -> int:
    """subtract_all_and_deposit: `subtracted` less the headers extracted since, as a sum."""
    return _plus(subtracted, hashes.ones_complement_sum(extracted) ^ 0xFFFF)


class ParserCounter:
    """The parser's signed 8-bit counter."""

    __slots__ = ("range_error", "value")

    def __init__(self, range_error: int) -> None:
        self.value = 0
        self.range_error = range_error

    def set(self, value: int) -> None:
        """Sets it to a constant or to the low 8 bits of a field."""
        self.value = _signed8(value)

    def set_field(self, field: int, most: int, rotate: int, mask: int, add: int) -> None:
        """Sets it to a field, rotated right within 8 bits, masked to `mask` + 1 bits, plus `add`.

        Raises ParserReject(CounterRange) for more than `most`.
        """
        field &= 0xFF
        rotated = (field >> (rotate & 7) | field << (8 - (rotate & 7))) & 0xFF
        value = (rotated & ((2 << mask) - 1)) + _signed8(add)
        if value > most:
            raise ParserReject(self.range_error)
        self.value = _signed8(value)

    def is_zero(self) -> bool:
        """Whether it is 0."""
        return self.value == 0

    def is_negative(self) -> bool:
        """Whether it is below 0."""
        return self.value < 0

    def add(self, value: int) -> None:
        """Adds a number, positive or negative."""
        self.value = _signed8(self.value + value)


def _signed8(value: int) -> int:
    return (value + 128 & 0xFF) - 128


@dataclass(slots=True)
class Mirror:
    """Mirror: sends a copy of the packet, with a header before it, to a session."""

    name: str
    type: int | None


@dataclass(slots=True)
class Constant:
    """RegisterParam: a number that the control plane may change."""

    name: str
    value: Any


# By name; IDENTITY and CUSTOM are treated where they are used.
ALGORITHMS: Final[dict[str, Callable[[bytes], int]]] = {
    "XOR8": lambda data: hashes.xor_words(data, 8),
    "XOR16": lambda data: hashes.xor_words(data, 16),
    "XOR32": lambda data: hashes.xor_words(data, 32),
    "CRC8": hashes.CRC8,
    "CRC16": hashes.CRC16,
    "CRC32": hashes.CRC32,
    "CRC64": hashes.CRC64,
    # The driver draws a random matrix; any fixed function of the bits is as good.
    "RANDOM": hashes.Crc(64, 0xAD93D23594C935A9, 0x9E3779B97F4A7C15),
}

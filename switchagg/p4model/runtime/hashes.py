"""Hashes over bit strings: cyclic redundancy checks, the Internet checksum, exclusive or, identity.

Both architectures name their hashes in P4 enums; this module knows nothing of these names. All functions take
bytes, most significant bit first, and give an integer. A bit string that is not whole bytes is filled up with
zeros at its end (`to_bytes`), which is how bmv2 lays fields into the buffer that it hashes.
"""

from __future__ import annotations

import functools
import sys
import zlib
from dataclasses import dataclass


def reflect(value: int, width: int) -> int:
    """The low `width` bits of `value`, in reverse order."""
    out = 0
    for _ in range(width):
        out = out << 1 | value & 1
        value >>= 1
    return out


def to_bytes(value: int, width: int) -> bytes:
    """A bit string of `width` bits as bytes, filled up with zeros at its end."""
    padding = -width % 8
    return (value << padding).to_bytes((width + padding) // 8, "big")


@dataclass(frozen=True, slots=True)
class Crc:
    """A cyclic redundancy check in the usual parameters (Williams, 1993).

    `polynomial` is without its highest bit and not reflected. `initial` is the register before the first
    bit, in the unreflected algorithm.
    """

    width: int
    polynomial: int
    initial: int = 0
    final: int = 0
    reflect_in: bool = False
    reflect_out: bool = False

    def __call__(self, data: bytes) -> int:
        """The check of `data`."""
        if self == CRC32:
            return zlib.crc32(data)
        # The table is of bytes: a narrower register is kept in the high bits of a byte.
        spare = max(8 - self.width, 0)
        shift, mask = self.width + spare - 8, (1 << self.width + spare) - 1
        table = _table(self.width + spare, self.polynomial << spare)
        register = self.initial << spare
        for byte in data.translate(_REFLECTED) if self.reflect_in else data:
            register = register << 8 & mask ^ table[register >> shift ^ byte]
        register >>= spare
        if self.reflect_out:
            register = reflect(register, self.width)
        return register ^ self.final


_REFLECTED = bytes(reflect(byte, 8) for byte in range(256))


@functools.lru_cache(maxsize=64)
def _table(width: int, polynomial: int) -> tuple[int, ...]:
    top, mask, table = 1 << (width - 1), (1 << width) - 1, []
    for byte in range(256):
        register = byte << (width - 8)
        for _ in range(8):
            register = (register << 1 ^ polynomial if register & top else register << 1) & mask
        table.append(register)
    return tuple(table)


CRC8 = Crc(8, 0x07)
CRC16 = Crc(16, 0x8005, reflect_in=True, reflect_out=True)
CRC32 = Crc(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, reflect_in=True, reflect_out=True)
CRC64 = Crc(64, 0x42F0E1EBA9EA3693)


def ones_complement_sum(data: bytes) -> int:
    """The ones' complement sum of 16-bit words (RFC 1071); an odd last byte is the high half of a word."""
    if len(data) % 2:
        data += b"\0"
    total = sum(memoryview(data).cast("H")) if data else 0
    # The sum is independent of byte order (RFC 1071, 2.B): add in the machine's, swap once.
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int.from_bytes(total.to_bytes(2, sys.byteorder), "big")


def internet_checksum(data: bytes) -> int:
    """The complement of `ones_complement_sum`: what an IPv4 header carries."""
    return ones_complement_sum(data) ^ 0xFFFF


def xor_words(data: bytes, width: int) -> int:
    """The exclusive or of all `width`-bit words; a short last word is filled up with zeros at its end."""
    size, result = width // 8, 0
    for start in range(0, len(data), size):
        result ^= int.from_bytes(data[start : start + size].ljust(size, b"\0"), "big")
    return result


def identity(data: bytes) -> int:
    """The first eight bytes as a number: what bmv2's identity hash gives."""
    return int.from_bytes(data[:8], "big")

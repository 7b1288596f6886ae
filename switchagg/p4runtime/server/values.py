"""Numbers as P4Runtime writes them: byte strings, most significant byte first.

Any number of leading zeros is taken in; what goes out has none (the canonical form). A field of a signed type
is a two's complement number, its sign in the first bit of the string.
"""

from __future__ import annotations

from switchagg.p4runtime.server.errors import Code, Refused


def decode(data: bytes, width: int, where: str, *, signed: bool = False) -> int:
    """The bits of a byte string, as a number of `width` bits that is never negative.

    Args:
        where: what the value belongs to, for messages.

    Raises `Refused` for an empty string, or a value that does not fit.
    """
    if not data:
        raise Refused(Code.OUT_OF_RANGE, f"{where}: the value is empty; zero is one byte of zero")
    if signed:
        number = int.from_bytes(data, "big", signed=True)
        half = 1 << (width - 1)
        if not -half <= number < half:
            raise Refused(
                Code.OUT_OF_RANGE, f"{where}: {number} does not fit {width} bits of two's complement"
            )
        return number & ((1 << width) - 1)
    number = int.from_bytes(data, "big")
    if number >> width:
        raise Refused(Code.OUT_OF_RANGE, f"{where}: {number:#x} does not fit {width} bits")
    return number


def encode(number: int, width: int, *, signed: bool = False) -> bytes:
    """The canonical byte string of a number: as short as can be, at least one byte."""
    number &= (1 << width) - 1
    if not signed:
        return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")
    if number >> (width - 1):
        number -= 1 << width
    # One bit more than the number itself needs, for its sign.
    bits = (number if number >= 0 else ~number).bit_length() + 1
    return number.to_bytes((bits + 7) // 8, "big", signed=True)

"""`packet_in` and `packet_out`: bits off the front of a packet, headers onto the front of another.

Translated parsers and deparsers work on these. Where a header is whole bytes at a whole byte, as it nearly
always is, translated code unpacks it from `PacketIn.data` itself; what is here serves all other cases.
"""

from __future__ import annotations

# The members of P4's `error` that the language itself raises, in core.p4's order.
NO_ERROR, PACKET_TOO_SHORT, NO_MATCH, STACK_OUT_OF_BOUNDS, HEADER_TOO_SHORT = range(5)
PARSER_TIMEOUT, PARSER_INVALID_ARGUMENT = 5, 6


class ParserReject(Exception):
    """A parser ended in `reject`.

    Attributes:
        code: position of the error in the program's `error` declarations.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class PacketIn:
    """A packet being parsed. `position` and `end` count bits."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.end = len(data) * 8

    def peek(self, width: int) -> int:
        """The next `width` bits, which stay. Raises ParserReject if there are not as many."""
        start = self.position
        end = start + width
        if end > self.end:
            raise ParserReject(PACKET_TOO_SHORT)
        chunk = int.from_bytes(self.data[start >> 3 : (end + 7) >> 3], "big")
        return chunk >> (-end & 7) & ((1 << width) - 1)

    def take(self, width: int) -> int:
        """The next `width` bits. Raises ParserReject if there are not as many."""
        value = self.peek(width)
        self.position += width
        return value

    def advance(self, width: int) -> None:
        """Skips `width` bits. Raises ParserReject if there are not as many."""
        if self.position + width > self.end:
            raise ParserReject(PACKET_TOO_SHORT)
        self.position += width

    def length(self) -> int:
        """Bytes of the whole packet."""
        return len(self.data)

    def rest(self) -> bytes:
        """What has not been parsed, from the next whole byte on."""
        return self.data[(self.position + 7) >> 3 :]


class PacketOut:
    """A packet being deparsed."""

    __slots__ = ("_bits", "_value", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._value = 0
        self._bits = 0

    @property
    def aligned(self) -> bool:
        """Whether what was emitted so far is whole bytes."""
        return self._bits == 0

    def put_bytes(self, data: bytes) -> None:
        """Appends whole bytes."""
        if self._bits:
            self.put(int.from_bytes(data, "big"), len(data) * 8)
        else:
            self.parts.append(data)

    def put(self, value: int, width: int) -> None:
        """Appends `width` bits."""
        value |= self._value << width
        width += self._bits
        self._bits = width & 7
        self._value = value & ((1 << self._bits) - 1)
        if width >= 8:
            self.parts.append((value >> self._bits).to_bytes(width >> 3, "big"))

    def finish(self, payload: bytes = b"") -> bytes:
        """What was emitted, filled up to a whole byte with zeros, and then `payload`."""
        if self._bits:
            self.put(0, 8 - self._bits)
        self.parts.append(payload)
        return b"".join(self.parts)

"""Values in translated code: packets, header stacks, `exit`, numbers.

Values of P4 types in translated code:

    bit<N>, int<N>, int    int, always in the type's range
    bool                   bool
    enum, error            int: the member's position; of a serializable enum, its number
    varbit                 (bits, value)
    tuple                  tuple
    header, struct, union  an object of a generated class (see header_classes.py), assigned by copy
    stack                  Stack
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

# No loop of parser states that consumes nothing may hang the switch.
MAX_PARSER_ROUNDS: Final = 65536


class Exit(Exception):
    """`exit` ran. `values` is what the left block's out parameters hold, for its caller to copy back."""

    def __init__(self, values: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self.values = values


class Stack:
    """A header stack. `next` is P4's nextIndex.

    An index outside the stack, which P4 leaves undefined, reads an invalid header, and what is written there
    is lost.
    """

    __slots__ = ("items", "make", "next")

    def __init__(self, make: Callable[[], Any], size: int) -> None:
        self.make = make
        self.items = [make() for _ in range(size)]
        self.next = 0

    def reset(self) -> None:
        """Makes all elements invalid."""
        for item in self.items:
            item.reset()
        self.next = 0

    def assign(self, other: Stack) -> None:
        """Copies the elements of a stack of the same type."""
        for mine, theirs in zip(self.items, other.items, strict=True):
            mine.assign(theirs)
        self.next = other.next

    def copy(self) -> Stack:
        """A stack with the same elements."""
        new = Stack(self.make, len(self.items))
        new.assign(self)
        return new

    def fill(self, *items: Any) -> Stack:
        """Assigns all elements. Returns itself."""
        for mine, theirs in zip(self.items, items, strict=True):
            mine.assign(theirs)
        return self

    def at(self, index: int) -> Any:
        """The element at a computed index."""
        return self.items[index] if 0 <= index < len(self.items) else self.make()

    def vacant(self) -> Any:
        """`next`. Raises ParserReject if the stack is full."""
        if self.next >= len(self.items):
            raise ParserReject(STACK_OUT_OF_BOUNDS)
        return self.items[self.next]

    def last(self) -> Any:
        """`last`. Raises ParserReject if nothing was extracted."""
        if not 0 < self.next <= len(self.items):
            raise ParserReject(STACK_OUT_OF_BOUNDS)
        return self.items[self.next - 1]

    def push_front(self, count: int) -> None:
        """Moves elements up by `count`; the first ones become invalid, the last ones are lost."""
        size = len(self.items)
        kept = self.items[: max(size - count, 0)]
        self.items[:] = [self.make() for _ in range(size - len(kept))] + kept
        self.next = min(self.next + count, size)

    def pop_front(self, count: int) -> None:
        """Moves elements down by `count`; the last ones become invalid, the first ones are lost."""
        size = len(self.items)
        kept = self.items[count:]
        self.items[:] = kept + [self.make() for _ in range(size - len(kept))]
        self.next = max(self.next - count, 0)

    def emit(self, out: PacketOut) -> None:
        """Emits the valid elements."""
        for item in self.items:
            item.emit(out)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stack) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]


def shift_left(value: int, count: int, width: int) -> int:
    """`value << count` in `width` bits."""
    return value << count & ((1 << width) - 1) if count < width else 0


def shift_left_signed(value: int, count: int, width: int) -> int:
    """`value << count` in a two's complement number of `width` bits."""
    return signed(value << count, width) if count < width else 0


def shift_right(value: int, count: int) -> int:
    """`value >> count`; arithmetic, if `value` is signed."""
    return value >> min(count, 1 << 20)


def signed(value: int, width: int) -> int:
    """The low `width` bits of `value` as a two's complement number."""
    half = 1 << (width - 1) if width else 0
    return (value & ((1 << width) - 1) ^ half) - half


def join(*pieces: tuple[int, int]) -> tuple[int, int]:
    """(bits, value) of bit strings one after the other, each as (bits, value)."""
    width = value = 0
    for bits, piece in pieces:
        width += bits
        value = value << bits | piece
    return width, value


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
        """Returns the next `width` bits without taking them. Raises ParserReject if there are fewer."""
        start = self.position
        end = start + width
        if end > self.end:
            raise ParserReject(PACKET_TOO_SHORT)
        chunk = int.from_bytes(self.data[start >> 3 : (end + 7) >> 3], "big")
        return chunk >> (-end & 7) & ((1 << width) - 1)

    def take(self, width: int) -> int:
        """Takes the next `width` bits. Raises ParserReject if there are fewer."""
        value = self.peek(width)
        self.position += width
        return value

    def advance(self, width: int) -> None:
        """Skips `width` bits. Raises ParserReject if there are fewer."""
        if self.position + width > self.end:
            raise ParserReject(PACKET_TOO_SHORT)
        self.position += width

    def length(self) -> int:
        """Bytes of the whole packet."""
        return len(self.data)

    def rest(self) -> bytes:
        """Returns the rest of the packet, from the next whole byte on."""
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
        """True while whole bytes were emitted."""
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
        """Returns the emitted bits, filled up to a whole byte with zeros, and `payload`."""
        if self._bits:
            self.put(0, 8 - self._bits)
        self.parts.append(payload)
        return b"".join(self.parts)

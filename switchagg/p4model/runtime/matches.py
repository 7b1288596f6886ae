"""What a table entry says of one key field, and what a field accepts: kinds, widths, canonical form."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from switchagg.errors import UsageError


class TableError(UsageError):
    """A table, profile, register or counter was asked for something that it cannot do."""


class MatchKind(enum.Enum):
    """How a key field is compared."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Exact:
    """The field has this value."""

    value: int


@dataclass(frozen=True, slots=True)
class Lpm:
    """The first `prefix` bits of the field are those of `value`."""

    value: int
    prefix: int


@dataclass(frozen=True, slots=True)
class Ternary:
    """The field's bits in `mask` are those of `value`."""

    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Range:
    """The field is at least `low` and at most `high`."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Wildcard:
    """Any value."""


Match = Exact | Lpm | Ternary | Range | Wildcard


@dataclass(frozen=True, slots=True)
class KeyField:
    """One field of a table's key. `signed` fields are compared as two's complement numbers."""

    name: str
    width: int
    kind: MatchKind
    signed: bool = False

    @property
    def full(self) -> int:
        """All bits of the field."""
        return (1 << self.width) - 1

    def canonical(self, match: Match | int, table: str) -> tuple[int, int]:
        """The match as (value, mask), or (low, high) for a range field.

        A plain number is an exact value. Raises TableError if it does not suit the field.
        """
        if isinstance(match, int):
            match = Exact(int(match))
        where = f"table {table}: key field {self.name}"
        kind, full = self.kind, self.full
        if isinstance(match, Exact):
            value = self._checked(match.value, where)
            return (value, value) if kind is MatchKind.RANGE else (value, full)
        if kind is MatchKind.RANGE:
            if isinstance(match, Wildcard):
                return (-(full + 1) // 2, full // 2) if self.signed else (0, full)
            if isinstance(match, Range):
                low = self._number(match.low, where)
                high = self._number(match.high, where)
                if low > high:
                    raise TableError(f"{where}: the range {low}..{high} is empty")
                return low, high
        elif kind is MatchKind.LPM and isinstance(match, Lpm):
            if not 0 <= match.prefix <= self.width:
                raise TableError(f"{where}: prefix length {match.prefix} is not within 0..{self.width}")
            mask = full ^ (full >> match.prefix)
            return self._checked(match.value, where) & mask, mask
        elif kind is MatchKind.TERNARY and isinstance(match, Ternary | Lpm):
            if isinstance(match, Lpm):
                if not 0 <= match.prefix <= self.width:
                    raise TableError(f"{where}: prefix length {match.prefix} is not within 0..{self.width}")
                mask = full ^ (full >> match.prefix)
            else:
                mask = self._checked(match.mask, where)
            return self._checked(match.value, where) & mask, mask
        if isinstance(match, Wildcard) and kind is not MatchKind.EXACT:
            return 0, 0
        if isinstance(match, Ternary) and match.mask == full:
            return self._checked(match.value, where), full
        if isinstance(match, Ternary) and match.mask == 0 and kind is MatchKind.OPTIONAL:
            return 0, 0
        raise TableError(
            f"{where} is matched {kind.value}; {type(match).__name__.lower()} values do not suit it"
        )

    def _number(self, value: int, where: str) -> int:
        low, high = (-(self.full + 1) // 2, self.full // 2) if self.signed else (0, self.full)
        if not low <= value <= high:
            raise TableError(f"{where}: {value:#x} does not fit {self.width} bits")
        return value

    def _checked(self, value: int, where: str) -> int:
        low = -(self.full + 1) // 2 if self.signed else 0
        if not low <= value <= self.full:
            raise TableError(f"{where}: {value:#x} does not fit {self.width} bits")
        return value & self.full


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that the control plane gives to an action."""

    name: str
    width: int
    signed: bool = False
    boolean: bool = False

    def checked(self, value: int, action: str) -> int:
        """The value as translated code wants it. Raises TableError if it does not fit."""
        low, high = 0, (1 << self.width) - 1
        if self.signed and value < 0:
            low, high = -(1 << (self.width - 1)), -1
        if not low <= value <= high:
            raise TableError(
                f"action {action}: parameter {self.name}: {value:#x} does not fit {self.width} bits"
            )
        if self.boolean:
            return bool(value)
        if self.signed and value >> (self.width - 1) > 0:
            return value - (1 << self.width)
        return value

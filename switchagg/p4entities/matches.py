"""Key fields and the matches of table entries: kinds, widths, the canonical form that look-ups compare."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from switchagg.errors import UsageError


class TableError(UsageError):
    """A table, profile, register or counter cannot do what was asked."""


class MatchKind(enum.Enum):
    """The comparison of a key field."""

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

Canonical = tuple[int, int]
"""(value, mask) of a match; (low, high) for a range field."""


@dataclass(frozen=True, slots=True)
class KeyField:
    """A field of a table's key, `width` bits. `signed` fields are two's complement numbers."""

    name: str
    width: int
    kind: MatchKind
    signed: bool = False

    @property
    def full(self) -> int:
        """All bits of the field."""
        return (1 << self.width) - 1

    def number(self, bits: int) -> int:
        """Returns the number that a bit pattern of the field stands for."""
        return bits - (1 << self.width) if self.signed and bits >> (self.width - 1) else bits

    def canonical(self, match: Match | int, table: str) -> Canonical:
        """Returns the canonical form of a match; a plain number is an exact value.

        Raises TableError if the match does not suit the field.
        """
        where = f"table {table}: key field {self.name}"
        kind, full = self.kind, self.full
        if isinstance(match, int):
            match = Exact(int(match))
        elif isinstance(match, Ternary) and match.mask == full:
            match = Exact(match.value)
        match match:
            case Exact(value):
                bits = self._bits(value, where)
                return (self.number(bits), self.number(bits)) if kind is MatchKind.RANGE else (bits, full)
            case Wildcard() if kind is MatchKind.RANGE:
                return self._limits
            case Range(low, high) if kind is MatchKind.RANGE:
                for each in (low, high):
                    if not self._limits[0] <= each <= self._limits[1]:
                        raise TableError(f"{where}: {each:#x} does not fit {self.width} bits")
                if low > high:
                    raise TableError(f"{where}: the range {low}..{high} is empty")
                return low, high
            case Lpm(value, prefix) if kind in (MatchKind.LPM, MatchKind.TERNARY):
                if not 0 <= prefix <= self.width:
                    raise TableError(f"{where}: prefix length {prefix} is not within 0..{self.width}")
                mask = full ^ (full >> prefix)
                return self._bits(value, where) & mask, mask
            case Ternary(value, mask) if kind is MatchKind.TERNARY:
                mask = self._bits(mask, where)
                return self._bits(value, where) & mask, mask
            case Wildcard() if kind is not MatchKind.EXACT:
                return 0, 0
            case Ternary(mask=0) if kind is MatchKind.OPTIONAL:
                return 0, 0
        name = type(match).__name__.lower()
        raise TableError(f"{where} is matched {kind.value}; {name} values do not suit it")

    @property
    def _limits(self) -> tuple[int, int]:
        return (-(self.full + 1) // 2, self.full // 2) if self.signed else (0, self.full)

    def _bits(self, value: int, where: str) -> int:
        if not self._limits[0] <= value <= self.full:
            raise TableError(f"{where}: {value:#x} does not fit {self.width} bits")
        return value & self.full


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an action whose value the control plane gives, `width` bits."""

    name: str
    width: int
    signed: bool = False
    boolean: bool = False

    def checked(self, value: int, action: str) -> int:
        """Returns the value as translated code wants it. Raises TableError if it does not fit."""
        low, high = 0, (1 << self.width) - 1
        if self.signed and value < 0:
            low, high = -(1 << (self.width - 1)), -1
        if not low <= value <= high:
            where = f"action {action}: parameter {self.name}"
            raise TableError(f"{where}: {value:#x} does not fit {self.width} bits")
        if self.boolean:
            return bool(value)
        return value - (1 << self.width) if self.signed and value >> (self.width - 1) > 0 else value


@dataclass(slots=True)
class ValueSet:
    """A value set of a parser. Each member has a match for each field; an empty set matches nothing."""

    name: str
    fields: tuple[KeyField, ...]
    size: int
    members: list[tuple[Canonical, ...]] = field(default_factory=list)

    def has(self, key: tuple[int, ...]) -> bool:
        """Returns True if a key, one number a field, matches a member."""
        return any(
            all(value & mask == wanted for value, (wanted, mask) in zip(key, member, strict=True))
            for member in self.members
        )

    def add(self, matches: Sequence[Match | int]) -> None:
        """Adds a member. Raises TableError if the set is full or the member does not fit."""
        if len(self.members) >= self.size:
            raise TableError(f"value set {self.name} is full: it holds {self.size} members")
        if len(matches) != len(self.fields):
            raise TableError(f"value set {self.name} has {len(self.fields)} fields, not {len(matches)}")
        self.members.append(
            tuple(spec.canonical(each, self.name) for spec, each in zip(self.fields, matches, strict=True))
        )

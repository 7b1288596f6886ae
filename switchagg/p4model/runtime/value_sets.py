"""Parser value sets: what the control plane says a select should take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.matches import KeyField, Match, MatchKind, TableError
from switchagg.p4model.types import FieldsType, IntType, SetType, TupleType, Type, underlying, width_of


@dataclass(slots=True)
class ValueSet:
    """A value set. Each member has a match for each field; an empty set matches nothing."""

    name: str
    fields: tuple[KeyField, ...]
    size: int
    _members: list[tuple[tuple[int, int], ...]] = field(default_factory=list)

    def has(self, key: tuple[int, ...]) -> bool:
        """Whether a key, one number a field, matches a member."""
        return any(
            all(value & mask == wanted for value, (wanted, mask) in zip(key, member, strict=True))
            for member in self._members
        )

    def add(self, matches: Sequence[Match | int]) -> None:
        """Adds a member. Raises TableError if the set is full or the member does not fit."""
        if len(self._members) >= self.size:
            raise TableError(f"value set {self.name} is full: it holds {self.size} members")
        if len(matches) != len(self.fields):
            raise TableError(f"value set {self.name} has {len(self.fields)} fields, not {len(matches)}")
        self._members.append(
            tuple(spec.canonical(each, self.name) for spec, each in zip(self.fields, matches, strict=True))
        )

    @property
    def members(self) -> list[tuple[tuple[int, int], ...]]:
        """All members: a (value, mask) for each field."""
        return list(self._members)

    def clear(self) -> None:
        """Removes all members."""
        self._members.clear()


def build_value_set(declared: ir.ValueSet) -> ValueSet:
    """The runtime object of a value set. A @match annotation on a field says how it is matched."""
    element: Type = declared.element
    if isinstance(element, SetType):
        element = element.element
    base = underlying(element)
    parts: list[tuple[str, Type, MatchKind]]
    if isinstance(base, FieldsType):
        parts = [(each.name, each.type, MatchKind.TERNARY) for each in base.fields]
    elif isinstance(base, TupleType):
        parts = [(f"f{number}", each, MatchKind.TERNARY) for number, each in enumerate(base.elements)]
    else:
        parts = [("f", base, MatchKind.TERNARY)]
    fields = []
    for name, type_, kind in parts:
        width = width_of(type_)
        if width is None:
            raise unsupported(f"a value set of {type_}", declared.location)
        fields.append(KeyField(name, width, kind, isinstance(underlying(type_), IntType)))
    return ValueSet(declared.control_name, tuple(fields), declared.size)

"""Parser value sets: what the control plane says a select should take."""

from __future__ import annotations

from switchagg.p4entities.matches import KeyField, MatchKind, ValueSet
from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.types import FieldsType, IntType, SetType, TupleType, Type, underlying, width_of


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

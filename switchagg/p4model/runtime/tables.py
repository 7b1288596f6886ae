"""Runtime objects of a program's tables and value sets, with the entries of the source."""

from __future__ import annotations

from collections.abc import Mapping

from switchagg.p4entities.matches import (
    Exact,
    KeyField,
    Lpm,
    Match,
    MatchKind,
    Parameter,
    Range,
    TableError,
    Ternary,
    ValueSet,
    Wildcard,
)
from switchagg.p4entities.tables import DEFAULT_SIZE, Action, ActionProfile, Table
from switchagg.p4model import ir
from switchagg.p4model.errors import P4Error, declared_twice, unsupported
from switchagg.p4model.types import (
    BoolType,
    Direction,
    FieldsType,
    IntType,
    SetType,
    TupleType,
    Type,
    VarbitType,
    underlying,
    width_of,
)

# The width of enums and errors in keys and action parameters, where no architecture gives one.
_SYMBOL_WIDTH = 32


def _width(type_: Type) -> int:
    width = width_of(underlying(type_))
    return _SYMBOL_WIDTH if width is None else width


def _key_field(key: ir.Key, kinds: Mapping[str, MatchKind]) -> KeyField:
    base = underlying(key.expr.type)
    if key.match_kind not in kinds:
        raise unsupported(f"the match kind {key.match_kind}", key.location)
    if isinstance(base, VarbitType):
        raise unsupported("a varbit in a key", key.location)
    return KeyField(key.control_name, _width(base), kinds[key.match_kind], isinstance(base, IntType))


def _parameters(action: ir.Action) -> tuple[Parameter, ...]:
    """Returns the parameters whose values the control plane gives: those without a direction."""
    free = [(each, underlying(each.type)) for each in action.params if each.direction is Direction.NONE]
    return tuple(
        Parameter(each.name, _width(base), isinstance(base, IntType), isinstance(base, BoolType))
        for each, base in free
    )


def build_table(
    table: ir.Table, kinds: Mapping[str, MatchKind], profile: ActionProfile | None, errors: Mapping[str, int]
) -> Table:
    """Returns the runtime object of a table, with the source's entries.

    Args:
        kinds: the match kinds that the target has.
        errors: the codes of the program's errors.

    Raises P4Error.
    """
    keys = [_key_field(each, kinds) for each in table.keys if each.match_kind != "selector"]
    actions: list[Action] = []
    listed: dict[str, ir.ActionRef] = {}
    for position, each in enumerate(table.actions):
        first = listed.setdefault(each.action.control_name, each)
        if first is not each:
            twice = f"table `{table.name}` lists two actions with the name `{each.action.control_name}`"
            raise declared_twice(twice, each.location, first.location)
        marks = {mark.name for mark in (*each.annotations, *each.action.annotations)}
        actions.append(
            Action(
                each.action.control_name,
                _parameters(each.action),
                position,
                in_entries="defaultonly" not in marks,
                in_default="tableonly" not in marks,
            )
        )
    if table.default is not None and not any(a.action is table.default.action for a in table.actions):
        action = table.default.action
        actions.append(Action(action.control_name, _parameters(action), -1, in_entries=False))
    default = "NoAction" if table.default is None else table.default.action.control_name
    if table.default is None and not any(each.name == default for each in actions):
        actions.append(Action(default, index=-1, in_entries=False))
    made = Table(
        table.control_name,
        keys,
        actions,
        (default, _arguments(errors, table.default) if table.default is not None else ()),
        size=max(DEFAULT_SIZE if table.size is None else table.size, len(table.entries)),
        const_default=table.const_default,
        profile=profile,
    )
    if profile is not None:
        profile.actions.update({each.name: each for each in actions if each.in_entries})
    _fill(errors, table, made)
    made.const_entries = table.const_entries
    return made


def _constant(errors: Mapping[str, int], expr: ir.Expr | None) -> int:
    match expr:
        case ir.Literal(value=int() as value) | ir.EnumLiteral(value=value):
            return value
        case ir.ErrorLiteral(name=name):
            return errors[name]
        case ir.Cast(operand=operand):
            return _constant(errors, operand)
        case None:
            raise AssertionError("an entry without a value")
        case _:
            raise unsupported("an entry whose value is not a constant", expr.location)


def _arguments(errors: Mapping[str, int], call: ir.ActionCall) -> tuple[int, ...]:
    return tuple(
        _constant(errors, each.value)
        for each, variable in zip(call.args, call.action.params, strict=True)
        if variable.direction is Direction.NONE
    )


def _fill(errors: Mapping[str, int], table: ir.Table, made: Table) -> None:
    for entry, priority in zip(table.entries, _priorities(table), strict=True):
        chosen = made.actions[entry.call.action.control_name]
        matched = [
            keyset for keyset, key in zip(entry.keys, table.keys, strict=True) if key.match_kind != "selector"
        ]
        matches = [_match(errors, keyset, spec) for keyset, spec in zip(matched, made.keys, strict=True)]
        try:
            made.insert(matches, chosen, _arguments(errors, entry.call), priority)
        except TableError as error:
            raise P4Error(str(error), entry.location) from None


def _priorities(table: ir.Table) -> list[int]:
    """Returns the priorities of the entries: one without a priority follows the one before it.

    Steps are `priority_delta`, as in P4_16. p4c's bmv2 backend also knows @priority(n): the smaller number
    wins, and an entry without the annotation has its position.
    """
    marks = [
        next((mark.values[0] for mark in entry.annotations if mark.name == "priority" and mark.values), None)
        for entry in table.entries
    ]
    if any(mark is not None for mark in marks):
        return [-(place if mark is None else int(mark)) for place, mark in enumerate(marks, 1)]
    sign = 1 if table.largest_priority_wins else -1
    step = -sign * table.priority_delta
    written = [entry.priority for entry in table.entries]
    falling = sign > 0 and all(each is None for each in written)
    following = 1 + table.priority_delta * (len(written) - 1) if falling else 1
    priorities = []
    for each in written:
        present = following if each is None else each
        priorities.append(sign * present)
        following = present + step
    return priorities


def _match(errors: Mapping[str, int], keyset: ir.Keyset, spec: KeyField) -> Match:
    full = spec.full
    match keyset:
        case ir.AnySet():
            return Ternary(0, 0) if spec.kind is MatchKind.TERNARY else Wildcard()
        case ir.ExactSet(value=value):
            return Exact(_constant(errors, value))
        case ir.RangeSet(low=low, high=high):
            return Range(_constant(errors, low), _constant(errors, high))
        case ir.MaskSet(value=value, mask=mask):
            number, bits = _constant(errors, value) & full, _constant(errors, mask) & full
            if spec.kind is MatchKind.LPM:
                prefix = bits.bit_count()
                if bits != full ^ (full >> prefix):
                    raise P4Error(f"{bits:#x} is no prefix mask", keyset.location)
                return Lpm(number, prefix)
            return Ternary(number, bits)
        case ir.ValueSetRef():
            raise unsupported("a value set in a table entry", keyset.location)


def build_value_set(declared: ir.ValueSet) -> ValueSet:
    """Returns the runtime object of a value set."""
    element: Type = declared.element
    base = underlying(element.element if isinstance(element, SetType) else element)
    parts: list[tuple[str, Type]]
    if isinstance(base, FieldsType):
        parts = [(each.name, each.type) for each in base.fields]
    elif isinstance(base, TupleType):
        parts = [(f"f{number}", each) for number, each in enumerate(base.elements)]
    else:
        parts = [("f", base)]
    fields = []
    for name, type_ in parts:
        width = width_of(type_)
        if width is None:
            raise unsupported(f"a value set of {type_}", declared.location)
        fields.append(KeyField(name, width, MatchKind.TERNARY, isinstance(underlying(type_), IntType)))
    return ValueSet(declared.control_name, tuple(fields), declared.size)

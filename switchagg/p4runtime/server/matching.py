"""Match fields and actions of table entries, between P4Runtime's messages and the model's values.

What P4Runtime asks of a client is checked: a field that matches anything is left out, a value has no bit
outside of its mask, an exact field is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from switchagg.p4entities.matches import Exact, KeyField, Lpm, Match, MatchKind, Range, Ternary, Wildcard
from switchagg.p4entities.tables import Action
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.errors import invalid, unimplemented
from switchagg.p4runtime.server.schema import ActionView, Schema, TableView
from switchagg.p4runtime.server.values import decode, encode


def decode_matches(table: TableView, messages: Iterable[Any]) -> list[Match]:
    """The matches of an entry, in the order of the table's key. Raises `Refused`."""
    given: dict[int, Any] = {}
    known = {number: field.name for number, field in table.fields}
    for each in messages:
        if each.field_id not in known:
            listed = ", ".join(f"{name} {number}" for number, name in known.items()) or "none"
            raise invalid(f"table {table.name} has no match field {each.field_id}; it has {listed}")
        if each.field_id in given:
            raise invalid(f"table {table.name}: match field {known[each.field_id]} is given twice")
        given[each.field_id] = each
    matches: list[Match] = []
    for number, field in table.fields:
        where = f"table {table.name}: match field {field.name}"
        if number in given:
            matches.append(decode_match(field, given[number], where))
        elif field.kind is MatchKind.EXACT:
            raise invalid(f"{where} is exact and cannot be left out")
        else:
            matches.append(Wildcard())
    return matches


def decode_match(field: KeyField, message: Any, where: str) -> Match:
    """One field's match. Raises `Refused`."""
    kind = message.WhichOneof("field_match_type")
    if kind != field.kind.value:
        raise invalid(f"{where} is {field.kind.value}, not {kind or 'left empty'}")

    def number(data: bytes) -> int:
        return decode(data, field.width, where, signed=field.signed)

    if kind == "exact":
        return Exact(number(message.exact.value))
    if kind == "optional":
        return Exact(number(message.optional.value))
    if kind == "lpm":
        prefix = message.lpm.prefix_len
        value = number(message.lpm.value)
        if not 0 < prefix <= field.width:
            raise invalid(
                f"{where}: prefix length {prefix}; accepted: 1..{field.width}, "
                "and what matches anything is left out"
            )
        if value & (field.full >> prefix):
            raise invalid(f"{where}: {value:#x} has bits after its prefix of {prefix}")
        return Lpm(value, prefix)
    if kind == "ternary":
        value = number(message.ternary.value)
        mask = decode(message.ternary.mask, field.width, f"{where}, mask")
        if not mask:
            raise invalid(f"{where}: a mask of zero matches anything, which is left out")
        if value & ~mask:
            raise invalid(f"{where}: {value:#x} has bits outside of its mask {mask:#x}")
        return Ternary(value, mask)
    low, high = (_signed(field, number(each)) for each in (message.range.low, message.range.high))
    if low > high:
        raise invalid(f"{where}: the range {low}..{high} is empty")
    if high - low == field.full:
        raise invalid(f"{where}: the whole range matches anything, which is left out")
    return Range(low, high)


def encode_matches(
    fields: Iterable[tuple[int, KeyField]], matches: Iterable[tuple[int, int]]
) -> Iterator[Any]:
    """P4Runtime's match of each field that does not match anything."""
    for (number, field), (first, second) in zip(fields, matches, strict=True):
        message = p4runtime_pb2.FieldMatch(field_id=number)
        value = encode(first, field.width, signed=field.signed)
        match field.kind:
            case MatchKind.RANGE:
                if second - first == field.full:
                    continue
                message.range.low = value
                message.range.high = encode(second, field.width, signed=field.signed)
            case MatchKind.EXACT:
                message.exact.value = value
            case _ if not second:
                continue
            case MatchKind.OPTIONAL:
                message.optional.value = value
            case MatchKind.LPM:
                message.lpm.value = value
                message.lpm.prefix_len = second.bit_count()
            case MatchKind.TERNARY:
                message.ternary.value = value
                message.ternary.mask = encode(second, field.width)
        yield message


def decode_action(view: ActionView, action: Action, message: Any, where: str) -> tuple[int, ...]:
    """The arguments of an action, in the order of the source. Raises `Refused`."""
    names = {number: name for number, name, _ in view.params}
    given: dict[int, bytes] = {}
    for each in message.params:
        if each.param_id not in names:
            listed = ", ".join(f"{name} {number}" for number, name in names.items()) or "none"
            raise invalid(f"{where}: action {view.name} has no parameter {each.param_id}; it has {listed}")
        if each.param_id in given:
            raise invalid(f"{where}: parameter {names[each.param_id]} of action {view.name} is given twice")
        given[each.param_id] = each.value
    arguments = []
    for (number, name, width), parameter in zip(view.params, action.parameters, strict=True):
        place = f"{where}: action {view.name}, parameter {name}"
        if number not in given:
            raise invalid(f"{place} is missing")
        if not width:
            raise unimplemented(f"{place} has no width: strings and enums are not supported")
        bits = decode(given[number], min(width, parameter.width), place, signed=parameter.signed)
        arguments.append(bits)
    return action.bind(arguments)


def encode_action(schema: Schema, action: Action, arguments: tuple[int, ...]) -> Any | None:
    """P4Runtime's message of an action with its arguments; None for one that P4Info leaves out."""
    view = schema.action_called(action.name)
    if view is None:
        return None
    message = p4runtime_pb2.Action(action_id=view.id)
    # An action that no table lists shows no parameters.
    if view.params:
        for (number, _, _), parameter, value in zip(view.params, action.parameters, arguments, strict=True):
            data = encode(int(value), parameter.width, signed=parameter.signed)
            message.params.add(param_id=number, value=data)
    return message


def _signed(field: KeyField, bits: int) -> int:
    return bits - (1 << field.width) if field.signed and bits >> (field.width - 1) else bits

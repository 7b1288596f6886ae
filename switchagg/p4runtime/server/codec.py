"""Messages of P4Runtime to values and back: numbers, matches, actions, headers of packet-in and packet-out.

Numbers are byte strings, most significant byte first. Any number of leading zeros is accepted; answers have
none (the canonical form). A field of a signed type is a two's complement number, its sign in the first bit
of the string.

P4Runtime's demands on a client are checked: a field that matches anything is left out, a value has no bit
outside of its mask, an exact field is present.

    packet-out: metadata + payload ─► [header][payload] at the CPU port
    at the CPU port: [header][payload] ─► packet-in: metadata + payload

A program without a @controller_header gets, and gives, the payload alone.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from switchagg.p4entities.matches import (
    Canonical,
    Exact,
    KeyField,
    Lpm,
    Match,
    MatchKind,
    Range,
    Ternary,
    Wildcard,
)
from switchagg.p4entities.tables import Action
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.errors import already_exists, invalid, not_found, out_of_range, unimplemented
from switchagg.p4runtime.server.schema import ActionView, Fields, Schema


class Change(enum.IntEnum):
    """p4.v1.Update.Type."""

    INSERT = 1
    MODIFY = 2
    DELETE = 3


def only_modify(change: Change, what: str) -> None:
    """Raises `StatusError` for an insertion or deletion of an entity that always exists."""
    if change is not Change.MODIFY:
        raise invalid(f"{what} is there always: MODIFY it, not {change.name}")


def check_presence(change: Change, there: bool, what: str) -> None:
    """Raises `StatusError` for inserting an entity that exists, or changing one that does not."""
    if change is Change.INSERT and there:
        raise already_exists(f"{what} is there already")
    if change is not Change.INSERT and not there:
        raise not_found(f"there is no {what}")


# ---- numbers ----


def decode(data: bytes, width: int, where: str, *, signed: bool = False) -> int:
    """Returns the bits of a byte string, as a number of `width` bits that is never negative.

    Args:
        where: the owner of the value, for messages.

    Raises `StatusError` for an empty string, or a value that does not fit.
    """
    if not data:
        raise out_of_range(f"{where}: the value is empty; zero is one byte of zero")
    number = int.from_bytes(data, "big", signed=signed)
    if signed and not -(1 << (width - 1)) <= number < 1 << (width - 1):
        raise out_of_range(f"{where}: {number} does not fit {width} bits of two's complement")
    if not signed and number >> width:
        raise out_of_range(f"{where}: {number:#x} does not fit {width} bits")
    return number & ((1 << width) - 1)


def encode(number: int, width: int, *, signed: bool = False) -> bytes:
    """Returns the canonical byte string of a number: as short as possible, at least one byte."""
    number &= (1 << width) - 1
    if not signed:
        return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")
    if number >> (width - 1):
        number -= 1 << width
    # One bit more than the number itself needs, for its sign.
    bits = (number if number >= 0 else ~number).bit_length() + 1
    return number.to_bytes((bits + 7) // 8, "big", signed=True)


def _by_id(
    messages: Iterable[Any], id_: str, names: Mapping[int, str], what: str, kind: str
) -> dict[int, Any]:
    """Returns messages by the id in their field `id_`.

    Raises `StatusError` for one that is unknown or double.
    """
    given: dict[int, Any] = {}
    for each in messages:
        number = getattr(each, id_)
        if number not in names:
            listed = ", ".join(f"{name} {known}" for known, name in names.items()) or "none"
            raise invalid(f"{what} has no {kind} {number}; it has {listed}")
        if number in given:
            raise invalid(f"{what}: {kind} {names[number]} is given twice")
        given[number] = each
    return given


# ---- matches ----


def decode_matches(what: str, fields: Fields, messages: Iterable[Any]) -> list[Match]:
    """Returns the matches of an entry or member, in the order of `fields`. Raises `StatusError`."""
    given = _by_id(messages, "field_id", {number: each.name for number, each in fields}, what, "match field")
    matches: list[Match] = []
    for number, field in fields:
        where = f"{what}: match field {field.name}"
        if number in given:
            matches.append(_decode_match(field, given[number], where))
        elif field.kind is MatchKind.EXACT:
            raise invalid(f"{where} is exact and cannot be left out")
        else:
            matches.append(Wildcard())
    return matches


def _decode_match(field: KeyField, message: Any, where: str) -> Match:
    kind = message.WhichOneof("field_match_type")
    if kind != field.kind.value:
        raise invalid(f"{where} is {field.kind.value}, not {kind or 'left empty'}")

    def number(data: bytes) -> int:
        return decode(data, field.width, where, signed=field.signed)

    if kind in ("exact", "optional"):
        return Exact(number(getattr(message, kind).value))
    if kind == "lpm":
        prefix, value = message.lpm.prefix_len, number(message.lpm.value)
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
    low, high = (field.number(number(each)) for each in (message.range.low, message.range.high))
    if low > high:
        raise invalid(f"{where}: the range {low}..{high} is empty")
    if high - low == field.full:
        raise invalid(f"{where}: the whole range matches anything, which is left out")
    return Range(low, high)


def encode_matches(fields: Fields, matches: Iterable[Canonical]) -> Iterator[Any]:
    """Yields the message of each match that does not match anything."""
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
                message.lpm.value, message.lpm.prefix_len = value, second.bit_count()
            case MatchKind.TERNARY:
                message.ternary.value, message.ternary.mask = value, encode(second, field.width)
        yield message


# ---- actions ----


def decode_action(view: ActionView, action: Action, message: Any, where: str) -> tuple[int, ...]:
    """Returns the arguments of an action, in the order of the source. Raises `StatusError`."""
    names = {number: name for number, name, _ in view.params}
    what = f"{where}: action {view.name}"
    given = _by_id(message.params, "param_id", names, what, "parameter")
    arguments = []
    for (number, name, width), parameter in zip(view.params, action.parameters, strict=True):
        place = f"{what}, parameter {name}"
        if number not in given:
            raise invalid(f"{place} is missing")
        if not width:
            raise unimplemented(f"{place} has no width: strings and enums are not supported")
        value = given[number].value
        arguments.append(decode(value, min(width, parameter.width), place, signed=parameter.signed))
    return action.bind(arguments)


def encode_action(schema: Schema, action: Action, arguments: tuple[int, ...]) -> Any | None:
    """Returns the message of an action with its arguments; None for one that P4Info leaves out."""
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


# ---- packets ----


class PacketIo:
    """The headers of packet-in and packet-out in a P4Info message."""

    def __init__(self, p4info: Any) -> None:
        headers = {each.preamble.name: list(each.metadata) for each in p4info.controller_packet_metadata}
        self._out = headers.get("packet_out", [])
        self._in = headers.get("packet_in", [])
        self._in_bits = sum(each.bitwidth for each in self._in)

    def frame(self, message: Any) -> bytes:
        """Returns the frame of a `PacketOut`.

        Raises `StatusError` unless it has each field of the header once.
        """
        names = {each.id: each.name for each in self._out}
        given = _by_id(message.metadata, "metadata_id", names, "packet_out", "metadata")
        bits = width = 0
        for field in self._out:
            where = f"packet_out: metadata {field.name}"
            if field.id not in given:
                raise invalid(f"{where} is missing")
            bits = bits << field.bitwidth | decode(given[field.id].value, field.bitwidth, where)
            width += field.bitwidth
        header = (bits << (-width % 8)).to_bytes((width + 7) // 8, "big")
        return header + bytes(message.payload)

    def packet_in(self, frame: bytes) -> Any | None:
        """Returns the `PacketIn` of a frame; None if it is shorter than the header."""
        size = (self._in_bits + 7) // 8
        if len(frame) < size:
            return None
        bits = int.from_bytes(frame[:size], "big") >> (-self._in_bits % 8)
        message = p4runtime_pb2.PacketIn(payload=frame[size:])
        left = self._in_bits
        for field in self._in:
            left -= field.bitwidth
            value = bits >> left & ((1 << field.bitwidth) - 1)
            message.metadata.add(metadata_id=field.id, value=encode(value, field.bitwidth))
        return message

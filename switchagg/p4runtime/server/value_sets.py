"""Parser value sets: `ValueSetEntry`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from switchagg.p4entities.matches import KeyField, Match, MatchKind, TableError, ValueSet, Wildcard
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.errors import Code, Refused, invalid, unimplemented
from switchagg.p4runtime.server.handlers import Change, only_modify
from switchagg.p4runtime.server.matching import decode_match, encode_matches
from switchagg.p4runtime.server.schema import Schema

_KINDS = {2: MatchKind.EXACT, 3: MatchKind.LPM, 4: MatchKind.TERNARY, 6: MatchKind.OPTIONAL}


class ValueSets:
    """The value sets of a switch's parsers."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def write(self, change: Change, message: Any) -> None:
        """Gives a value set its members, all at once. Raises `Refused`."""
        name, value_set, fields = self._opened(message.value_set_id)
        only_modify(change, f"value set {name}")
        if len(message.members) > value_set.size:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"value set {name} holds {value_set.size} members, not {len(message.members)}",
            )
        members = [self._member(name, fields, each.match) for each in message.members]
        value_set.members.clear()
        for each in members:
            value_set.add(each)

    def _member(self, name: str, fields: list[tuple[int, KeyField]], matches: Any) -> list[Match | int]:
        given = {each.field_id: each for each in matches}
        known = {number for number, _ in fields}
        for number in given:
            if number not in known:
                raise invalid(f"value set {name} has no field {number}")
        if len(given) != len(matches):
            raise invalid(f"value set {name}: a field is given twice")
        member: list[Match | int] = []
        for number, field in fields:
            where = f"value set {name}: field {field.name}"
            if number in given:
                member.append(decode_match(field, given[number], where))
            elif field.kind is MatchKind.EXACT:
                raise invalid(f"{where} is exact and cannot be left out")
            else:
                member.append(Wildcard())
        return member

    def read(self, message: Any) -> Iterator[Any]:
        """The value sets that are asked for. Raises `Refused`."""
        numbers = [message.value_set_id] if message.value_set_id else self._schema.value_set_ids()
        for number in numbers:
            _, value_set, fields = self._opened(number)
            answer = p4runtime_pb2.Entity()
            answer.value_set_entry.value_set_id = number
            for member in value_set.members:
                answer.value_set_entry.members.add().match.extend(encode_matches(fields, member))
            yield answer

    def _opened(self, number: int) -> tuple[str, ValueSet, list[tuple[int, KeyField]]]:
        info = self._schema.value_set(number)
        name = info.preamble.name
        try:
            value_set = self._schema.switch.value_set(name)
        except TableError as error:
            raise unimplemented(str(error)) from None
        kinds = [_KINDS.get(each.match_type) for each in info.match]
        if len(kinds) != len(value_set.fields) or None in kinds:
            raise unimplemented(f"value set {name}: its P4Info has fields that the switch cannot match")
        fields = [
            (each.id, replace(field, kind=kind, name=each.name or field.name))
            for each, field, kind in zip(info.match, value_set.fields, kinds, strict=True)
            if kind is not None
        ]
        return name, value_set, fields

"""Parser value sets: `ValueSetEntry`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from switchagg.p4entities.matches import MatchKind, ValueSet
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.codec import Change, decode_matches, encode_matches, only_modify
from switchagg.p4runtime.server.errors import resource_exhausted, unimplemented
from switchagg.p4runtime.server.schema import MATCH_KINDS, Fields, Schema


class ValueSets:
    """Reads and writes the value sets of a switch's parsers."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def write(self, change: Change, message: Any) -> None:
        """Gives a value set its members, all at once. Raises `StatusError`."""
        what, value_set, fields = self._opened(message.value_set_id)
        only_modify(change, what)
        if len(message.members) > value_set.size:
            raise resource_exhausted(f"{what} holds {value_set.size} members, not {len(message.members)}")
        members = [decode_matches(what, fields, each.match) for each in message.members]
        value_set.members.clear()
        for each in members:
            value_set.add(each)

    def read(self, message: Any) -> Iterator[Any]:
        """Yields the value sets that are asked for. Raises `StatusError`."""
        for number in self._schema.asked("value_sets", message.value_set_id):
            _, value_set, fields = self._opened(number)
            members = [{"match": encode_matches(fields, member)} for member in value_set.members]
            yield p4runtime_pb2.Entity(value_set_entry={"value_set_id": number, "members": members})

    def _opened(self, number: int) -> tuple[str, ValueSet, Fields]:
        what, value_set = self._schema.opened("value_sets", number, self._schema.switch.value_set)
        info = self._schema.info("value_sets", number)
        kinds = [MATCH_KINDS.get(each.match_type) for each in info.match]
        if len(kinds) != len(value_set.fields) or None in kinds or MatchKind.RANGE in kinds:
            raise unimplemented(f"{what}: its P4Info has fields that the switch cannot match")
        fields = tuple(
            (each.id, replace(field, kind=kind, name=each.name or field.name))
            for each, field, kind in zip(info.match, value_set.fields, kinds, strict=True)
            if kind is not None
        )
        return what, value_set, fields

"""The tables, counters and groups of our program as a client of the native engine sees them.

They have the shapes that the P4Info gives and hold the client's entries. No packet is looked up here;
`updates` carries entries over to the native engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from google.protobuf import text_format

from switchagg.p4entities.counters import CounterArray, MeterArray
from switchagg.p4entities.matches import Exact, KeyField, Match, Parameter, TableError, Ternary, ValueSet
from switchagg.p4entities.replication import Replication
from switchagg.p4entities.tables import Action, Table
from switchagg.p4runtime.protos import p4info_pb2, p4runtime_pb2
from switchagg.p4runtime.server.native.files import ENTRIES, P4INFO
from switchagg.p4runtime.server.schema import DEFAULT_ONLY, MATCH_KINDS, TABLE_ONLY

_Thing = TypeVar("_Thing")


def own_p4info() -> Any:
    """Returns a new copy of the P4Info that the package ships."""
    return text_format.Parse(P4INFO.read_text(encoding="utf-8"), p4info_pb2.P4Info())


class NativeTables:
    """The objects that the P4Info names, with the constant entries of the program; a `schema.Switch`."""

    def __init__(self, p4info: Any) -> None:
        self.replication = Replication()
        actions = {each.preamble.id: each for each in p4info.actions}
        self._tables = {each.preamble.name: _table(each, actions) for each in p4info.tables}
        self._counters = {
            each.preamble.name: CounterArray.sized(each.preamble.name, each.size) for each in p4info.counters
        }
        names = {each.preamble.id: each.preamble.name for each in p4info.tables}
        fields = {each.preamble.id: each.match_fields for each in p4info.tables}
        constant = text_format.Parse(ENTRIES.read_text(encoding="utf-8"), p4runtime_pb2.ReadResponse())
        for entity in constant.entities:
            entry = entity.table_entry
            table = self._tables[names[entry.table_id]]
            given = {each.field_id: each for each in entry.match}
            matches: dict[str, Match | int] = {
                field.name: _match(given[field.id]) for field in fields[entry.table_id] if field.id in given
            }
            info = actions[entry.action.action.action_id]
            values = {each.param_id: int.from_bytes(each.value, "big") for each in entry.action.action.params}
            action = table.actions[info.preamble.name]
            arguments = action.bind([values[each.id] for each in info.params])
            table.insert(matches, action, arguments, entry.priority)

    def table(self, name: str) -> Table:
        """Returns the table of this name. Raises TableError."""
        return _named(self._tables, name, "table")

    def counter(self, name: str) -> CounterArray:
        """Returns the counter of this name. Raises TableError."""
        return _named(self._counters, name, "counter")

    def meter(self, name: str) -> MeterArray:
        """Raises TableError: there is none."""
        _none("meter", name)

    def value_set(self, name: str) -> ValueSet:
        """Raises TableError: there is none."""
        _none("value set", name)


def _named(things: Mapping[str, _Thing], name: str, what: str) -> _Thing:
    if name not in things:
        _none(what, name)
    return things[name]


def _none(what: str, name: str) -> NoReturn:
    raise TableError(f"there is no {what} {name}")


def _table(info: Any, actions: Mapping[int, Any]) -> Table:
    keys = [KeyField(each.name, each.bitwidth, MATCH_KINDS[each.match_type]) for each in info.match_fields]
    made = []
    for number, reference in enumerate(info.action_refs):
        each = actions[reference.id]
        params = tuple(Parameter(param.name, param.bitwidth) for param in each.params)
        in_entries, in_default = reference.scope != DEFAULT_ONLY, reference.scope != TABLE_ONLY
        made.append(Action(each.preamble.name, params, number, in_entries, in_default))
    default = info.initial_default_action
    arguments = [int.from_bytes(each.value, "big") for each in default.arguments]
    return Table(
        info.preamble.name,
        keys,
        made,
        (actions[default.action_id].preamble.name, arguments),
        size=info.size,
        const_entries=info.is_const_table,
        const_default=bool(info.const_default_action_id),
    )


def _match(message: Any) -> Match:
    if message.WhichOneof("field_match_type") == "exact":
        return Exact(int.from_bytes(message.exact.value, "big"))
    value, mask = message.ternary.value, message.ternary.mask
    return Ternary(int.from_bytes(value, "big"), int.from_bytes(mask, "big"))

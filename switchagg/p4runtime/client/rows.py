"""Table entries and multicast groups in the numbers of one P4Info, to and from P4Runtime's messages.

    TableEntry --Schema.row--> Row <--Schema.row_of / message--> p4.v1.TableEntry

Two rows are the same entry where their keys are, and need no write where they are equal. A P4Info may have
the names of our programs behind the name of a pipeline (`pipe.SwitchIngress...`), as p4c's Tofino backend
writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from switchagg.errors import SwitchError
from switchagg.p4entities.matches import Exact, Range, Ternary
from switchagg.p4program.program import Match, MulticastGroup, TableEntry
from switchagg.p4runtime.protos import p4runtime_pb2

INSERT: Final = p4runtime_pb2.Update.INSERT
MODIFY: Final = p4runtime_pb2.Update.MODIFY
DELETE: Final = p4runtime_pb2.Update.DELETE

T = TypeVar("T")
Key = tuple[int, tuple[tuple[int, Match], ...], int]
"""An entry's key: table, matches by field, priority."""


@dataclass(frozen=True, slots=True)
class Row:
    """An entry of a table. Fields that match anything are left out; fields and params are ordered by id."""

    table: int
    matches: tuple[tuple[int, Match], ...]
    priority: int
    action: int
    params: tuple[tuple[int, int], ...]
    metadata: bytes = b""

    @property
    def key(self) -> Key:
        """The entry's key in its switch."""
        return self.table, self.matches, self.priority

    def field(self, number: int) -> Match | None:
        """The entry's match of a field; None for a wildcard."""
        return next((match for each, match in self.matches if each == number), None)

    def param(self, number: int) -> int | None:
        """The value of a param of the entry's action; None where it has no such param."""
        return next((value for each, value in self.params if each == number), None)


class Schema:
    """Names of our programs in the numbers of a P4Info."""

    def __init__(self, p4info: Any) -> None:
        self.p4info = p4info
        self._tables = _by_name(p4info.tables)
        self._actions = {each.preamble.id: each for each in p4info.actions}
        self._counters = _by_name(p4info.counters)
        self._packets = _by_name(p4info.controller_packet_metadata)

    def has_table(self, name: str) -> bool:
        """Returns True if the program has this table."""
        return _found(self._tables, name) is not None

    def table(self, name: str) -> int:
        """The id of a table. Raises `SwitchError` where the program has none of this name."""
        return int(self._table(name).preamble.id)

    def field(self, table: str, name: str) -> int:
        """The id of a key of a table."""
        return next(int(each.id) for each in self._table(table).match_fields if each.name == name)

    def action(self, table: str, name: str) -> int:
        """The id of an action of a table."""
        return int(self._action(self._table(table), name).preamble.id)

    def param(self, table: str, action: str, name: str) -> int:
        """The id of a param of an action."""
        info = self._action(self._table(table), action)
        return next(int(each.id) for each in info.params if each.name == name)

    def counter(self, name: str) -> int:
        """The id of a counter with an index. Raises `SwitchError` where there is none."""
        info = _found(self._counters, name)
        if info is None:
            raise SwitchError(f"the switch's program has no counter {name}; it is none of ours")
        return int(info.preamble.id)

    def packet_field(self, header: str, name: str) -> int:
        """The id of a field in front of the controller's packets. Raises `SwitchError` without one."""
        info = _found(self._packets, header)
        found = [each.id for each in info.metadata if each.name == name] if info is not None else []
        if not found:
            raise SwitchError(
                f"the P4Info has no {header} header with a field {name}; compile the program with "
                "AGG_P4RUNTIME"
            )
        return int(found[0])

    def row(self, entry: TableEntry, metadata: bytes = b"") -> Row:
        """An entry in numbers. Raises `SwitchError` where the program lacks its table, a key, its action."""
        info = self._table(entry.table)
        matches = []
        for field in info.match_fields:
            match = entry.matches.get(field.name)
            if match is not None and not (isinstance(match, Ternary) and not match.mask):
                matches.append((int(field.id), match))
        known = {field.name for field in info.match_fields}
        if not entry.matches.keys() <= known:
            missing = ", ".join(sorted(entry.matches.keys() - known))
            raise SwitchError(f"table {entry.table} of the switch's program has no key {missing}")
        action = self._action(info, entry.action)
        params = [
            (int(param.id), entry.params[param.name] & ((1 << param.bitwidth) - 1)) for param in action.params
        ]
        key = info.preamble.id, _in_order(matches), entry.priority
        return Row(*key, action.preamble.id, _in_order(params), metadata)

    def rows(self, entries: Iterable[TableEntry]) -> Iterator[Row]:
        """The entries of tables that the program has."""
        for entry in entries:
            if self.has_table(entry.table):
                yield self.row(entry)

    def _table(self, name: str) -> Any:
        info = _found(self._tables, name)
        if info is None:
            raise SwitchError(f"the switch's program has no table {name}; it is none of ours")
        return info

    def _action(self, table: Any, name: str) -> Any:
        for ref in table.action_refs:
            info = self._actions[ref.id]
            if info.preamble.name.rpartition(".")[2] == name:
                return info
        raise SwitchError(f"table {table.preamble.name} of the switch's program has no action {name}")


def _by_name(infos: Iterable[Any]) -> dict[str, Any]:
    return {each.preamble.name: each for each in infos}


def _found(infos: dict[str, Any], name: str) -> Any:
    """The object of this name, or behind a pipeline's."""
    if name in infos:
        return infos[name]
    return next((each for known, each in infos.items() if known.partition(".")[2] == name), None)


def row_of(message: Any) -> Row:
    """A `p4.v1.TableEntry` as a row."""
    matches = _in_order((int(each.field_id), _match(each)) for each in message.match)
    action = message.action.action
    params = _in_order((int(each.param_id), int.from_bytes(each.value, "big")) for each in action.params)
    return Row(message.table_id, matches, message.priority, action.action_id, params, bytes(message.metadata))


def _in_order(numbered: Iterable[tuple[int, T]]) -> tuple[tuple[int, T], ...]:
    return tuple(sorted(numbered, key=lambda each: each[0]))


def _match(message: Any) -> Match:
    def number(value: bytes) -> int:
        return int.from_bytes(value, "big")

    kind = message.WhichOneof("field_match_type")
    if kind == "ternary":
        return Ternary(number(message.ternary.value), number(message.ternary.mask))
    if kind == "range":
        return Range(number(message.range.low), number(message.range.high))
    return Exact(number(getattr(message, kind or "exact").value))


def message(row: Row, *, named: bool = False) -> Any:
    """A row as a `p4.v1.TableEntry`; `named` leaves out what does not name the entry."""
    made = p4runtime_pb2.TableEntry(table_id=row.table, priority=row.priority)
    for number, match in row.matches:
        field = made.match.add(field_id=number)
        match match:
            case Exact(value):
                field.exact.value = octets(value)
            case Ternary(value, mask):
                field.ternary.value, field.ternary.mask = octets(value), octets(mask)
            case Range(low, high):
                field.range.low, field.range.high = octets(low), octets(high)
    if not named:
        made.metadata = row.metadata
        action = made.action.action
        action.action_id = row.action
        for number, value in row.params:
            action.params.add(param_id=number, value=octets(value))
    return made


def octets(number: int) -> bytes:
    """A number as P4Runtime wants it: the fewest bytes, and one for zero."""
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")


def row_update(change: int, row: Row) -> Any:
    """The update that writes a row, or deletes it."""
    return p4runtime_pb2.Update(type=change, entity={"table_entry": message(row, named=change == DELETE)})


def group_of_message(engine: Any) -> MulticastGroup:
    """A multicast group from a `p4.v1.PacketReplicationEngineEntry`, its copies in order of port and id."""
    entry = engine.multicast_group_entry
    replicas = []
    for each in entry.replicas:
        named = each.WhichOneof("port_kind") == "port"
        port = int.from_bytes(each.port, "big") if named else int(each.egress_port)
        replicas.append((port, int(each.instance)))
    return MulticastGroup(int(entry.multicast_group_id), tuple(sorted(replicas)))


def group_update(change: int, group: MulticastGroup) -> Any:
    """The update that writes a multicast group, or deletes it."""
    update = p4runtime_pb2.Update(type=change)
    entry = update.entity.packet_replication_engine_entry.multicast_group_entry
    entry.multicast_group_id = group.group
    if change != DELETE:
        for port, replication_id in group.replicas:
            entry.replicas.add(egress_port=port, instance=replication_id)
    return update


def cell_update(counter: int, index: int) -> Any:
    """The update that sets a cell of a counter to zero."""
    cell = {"counter_id": counter, "index": {"index": index}, "data": {}}
    return p4runtime_pb2.Update(type=MODIFY, entity={"counter_entry": cell})


def default_update(schema: Schema, entry: TableEntry) -> Any:
    """The update that sets a table's default action."""
    update = row_update(MODIFY, schema.row(entry))
    update.entity.table_entry.is_default_action = True
    return update

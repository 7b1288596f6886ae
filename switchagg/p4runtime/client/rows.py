"""Table entries in the numbers of one P4Info.

    TableEntry --Schema.row--> Row <--tables.row_of / message--> p4.v1.TableEntry

Two rows are the same entry where their keys are, and need no write where they are equal. A P4Info may have
the names of our programs behind the name of a pipeline (`pipe.SwitchIngress...`), as p4c's Tofino backend
writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from switchagg.errors import SwitchError
from switchagg.p4entities.matches import Ternary
from switchagg.p4program.program import Match, TableEntry

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
        key = info.preamble.id, in_order(matches), entry.priority
        return Row(*key, action.preamble.id, in_order(params), metadata)

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


def in_order(numbered: Iterable[tuple[int, T]]) -> tuple[tuple[int, T], ...]:
    """Returns (id, value) pairs in the order of the ids."""
    return tuple(sorted(numbered, key=lambda each: each[0]))


def octets(number: int) -> bytes:
    """A number as P4Runtime wants it: the fewest bytes, and one for zero."""
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")

"""A program's objects by the ids of its P4Info, each with what the P4 model has for it.

    id ─► P4Info's message ─ full name ─► the model's table, action, counter, ...

Ids of match fields, of parameters and of metadata are resolved here too, so that others see widths and names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from switchagg.p4entities.counters import CounterArray, MeterArray
from switchagg.p4entities.matches import KeyField, MatchKind, TableError, ValueSet
from switchagg.p4entities.replication import Replication
from switchagg.p4entities.tables import Action, ActionProfile, Entry, Table
from switchagg.p4runtime.server.errors import Code, Refused, invalid, not_found, unimplemented

_NEEDS_PRIORITY = (MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL)
_TABLE_ONLY, _DEFAULT_ONLY = 1, 2
_UNITS = {1: (False, True), 2: (True, False), 3: (True, True)}


class Switch(Protocol):
    """What a client reaches of a switch, by full names. Each raises TableError for what is not there."""

    @property
    def replication(self) -> Replication: ...
    def table(self, name: str) -> Table: ...
    def counter(self, name: str) -> CounterArray: ...
    def meter(self, name: str) -> MeterArray: ...
    def profile(self, name: str) -> ActionProfile: ...
    def value_set(self, name: str) -> ValueSet: ...


@dataclass(frozen=True, slots=True)
class ActionView:
    """An action: its id, and the id, name and width of each parameter in the order of the source."""

    id: int
    name: str
    params: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True, slots=True)
class TableView:
    """A table.

    Attributes:
        fields: (id, key field) in the order of the source.
        scopes: what P4Info says of each action's scope, by the action's id.
        counts: (packets, bytes) that its direct counter counts; None without one.
        meters: it has a direct meter.
        profile: the id of its action profile, 0 without one.
        constants: entries of the source that are constant.
        shift: what a priority of the model lacks to that of P4Runtime, which begins at 1.
    """

    id: int
    name: str
    runtime: Table
    fields: tuple[tuple[int, KeyField], ...]
    scopes: dict[int, int]
    counts: tuple[bool, bool] | None
    meters: bool
    profile: int
    constant_default: bool
    shift: int
    constants: frozenset[Entry]

    @property
    def needs_priority(self) -> bool:
        """Whether entries have a priority."""
        return any(field.kind in _NEEDS_PRIORITY for _, field in self.fields)


class Schema:
    """The objects of a P4Info (a p4.config.v1.P4Info message) on a switch.

    Args:
        constants: by table, entries that cannot be changed in tables whose other entries can.
    """

    def __init__(self, p4info: Any, switch: Switch, constants: Mapping[str, frozenset[Entry]]) -> None:
        self.p4info = p4info
        self.switch = switch
        self._tables = {each.preamble.id: each for each in p4info.tables}
        self._actions = {each.preamble.id: _action(each) for each in p4info.actions}
        self._action_ids = {view.name: view.id for view in self._actions.values()}
        self._counters = {each.preamble.id: each for each in p4info.counters}
        self._meters = {each.preamble.id: each for each in p4info.meters}
        self._profiles = {each.preamble.id: each for each in p4info.action_profiles}
        self._value_sets = {each.preamble.id: each for each in p4info.value_sets}
        self._digests = {each.preamble.id: each for each in p4info.digests}
        self._constants = constants
        # At once, while the tables hold nothing but the entries of the source.
        self._views = {number: self._view(each) for number, each in self._tables.items()}

    def table(self, number: int) -> TableView:
        """The table of this id. Raises `Refused`."""
        _of(self._tables, number, "table")
        return self._views[number]

    def tables(self) -> list[TableView]:
        """All tables that are applied."""
        return list(self._views.values())

    def action(self, number: int) -> ActionView:
        """The action of this id. Raises `Refused`."""
        if number not in self._actions:
            raise invalid(f"there is no action with id {number:#x}")
        return self._actions[number]

    def action_called(self, name: str) -> ActionView | None:
        """The action of this full name; None for one that P4Info leaves out."""
        number = self._action_ids.get(name)
        return None if number is None else self._actions[number]

    def listed_action(self, table: TableView, number: int, *, default: bool) -> tuple[ActionView, Action]:
        """An action that entries of a table, or its default, may have. Raises `Refused`."""
        view = self.action(number)
        if number not in table.scopes or view.name not in table.runtime.actions:
            raise invalid(f"table {table.name} does not list action {view.name}")
        scope = table.scopes[number]
        if scope == (_TABLE_ONLY if default else _DEFAULT_ONLY):
            use = "entries" if default else "the default"
            raise Refused(Code.PERMISSION_DENIED, f"table {table.name}: action {view.name} is for {use} only")
        return view, table.runtime.actions[view.name]

    def counter(self, number: int) -> Any:
        """P4Info's message of an indirect counter. Raises `Refused`."""
        return _of(self._counters, number, "counter")

    def counter_ids(self) -> list[int]:
        """The ids of all indirect counters."""
        return list(self._counters)

    def meter(self, number: int) -> Any:
        """P4Info's message of an indirect meter. Raises `Refused`."""
        return _of(self._meters, number, "meter")

    def meter_ids(self) -> list[int]:
        """The ids of all indirect meters."""
        return list(self._meters)

    def profile(self, number: int) -> Any:
        """P4Info's message of an action profile. Raises `Refused`."""
        return _of(self._profiles, number, "action profile")

    def profile_ids(self) -> list[int]:
        """The ids of all action profiles."""
        return list(self._profiles)

    def value_set(self, number: int) -> Any:
        """P4Info's message of a value set. Raises `Refused`."""
        return _of(self._value_sets, number, "value set")

    def value_set_ids(self) -> list[int]:
        """The ids of all value sets."""
        return list(self._value_sets)

    def digest(self, number: int) -> Any:
        """P4Info's message of a digest. Raises `Refused`."""
        return _of(self._digests, number, "digest")

    def digest_called(self, name: str) -> Any | None:
        """P4Info's message of the digest of this name. The model gives tuples no name."""
        if not name:
            tuples = [each for each in self._digests.values() if each.type_spec.HasField("tuple")]
            return tuples[0] if len(tuples) == 1 else None
        return next((each for each in self._digests.values() if each.preamble.name == name), None)

    def _view(self, info: Any) -> TableView:
        name = info.preamble.name
        try:
            runtime = self.switch.table(name)
        except TableError as error:
            raise unimplemented(f"table {name}: {error}") from None
        if len(info.match_fields) != len(runtime.keys):
            raise unimplemented(f"table {name} has key fields that P4Info has not")
        fields = []
        for each, key in zip(info.match_fields, runtime.keys, strict=True):
            if not each.bitwidth:
                raise unimplemented(f"table {name}: match field {each.name} is a string or an enum")
            fields.append((each.id, key))
        initial = [entry.priority for entry in runtime.entries]
        needed = any(key.kind in _NEEDS_PRIORITY for key in runtime.keys)
        direct = set(info.direct_resource_ids)
        units = [each.spec.unit for each in self.p4info.direct_counters if each.preamble.id in direct]
        return TableView(
            info.preamble.id,
            name,
            runtime,
            tuple(fields),
            {each.id: each.scope for each in info.action_refs},
            _UNITS[units[0]] if units else None,
            any(each.preamble.id in direct for each in self.p4info.direct_meters),
            info.implementation_id,
            runtime.const_default or bool(info.const_default_action_id),
            max(0, 1 - min(initial)) if needed and initial else 0,
            frozenset(runtime.entries) if runtime.const_entries else self._constants.get(name, frozenset()),
        )


def counted(info: Any) -> tuple[bool, bool]:
    """(packets, bytes) that a counter counts."""
    return _UNITS.get(info.spec.unit, (True, True))


def _action(info: Any) -> ActionView:
    params = tuple((each.id, each.name, each.bitwidth) for each in info.params)
    return ActionView(info.preamble.id, info.preamble.name, params)


def _of(things: dict[int, Any], number: int, what: str) -> Any:
    if number not in things:
        names = ", ".join(sorted(f"{each.preamble.name} {key:#x}" for key, each in things.items())) or "none"
        if len(names) > 400:
            names = f"{len(things)} others"
        raise not_found(f"there is no {what} with id {number:#x}; there is {names}")
    return things[number]

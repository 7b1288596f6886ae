"""A program's objects by the ids of its P4Info, each with the switch's object of that name.

    id ─► P4Info's message ─ full name ─► the switch's table, action, counter, ...

Ids of match fields and parameters are resolved here too, so that others see widths and names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from switchagg.p4entities.counters import CounterArray, MeterArray
from switchagg.p4entities.matches import Canonical, KeyField, MatchKind, TableError, ValueSet
from switchagg.p4entities.replication import Replication
from switchagg.p4entities.tables import Action, Entry, Table
from switchagg.p4runtime.server.errors import invalid, not_found, permission_denied, unimplemented

MATCH_KINDS: Final = {
    2: MatchKind.EXACT,
    3: MatchKind.LPM,
    4: MatchKind.TERNARY,
    5: MatchKind.RANGE,
    6: MatchKind.OPTIONAL,
}
"""By p4.config.v1.MatchField.MatchType."""
TABLE_ONLY: Final = 1
DEFAULT_ONLY: Final = 2
_NEEDS_PRIORITY: Final = (MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL)
_UNITS: Final = {1: (False, True), 2: (True, False), 3: (True, True)}
_KINDS: Final = ("tables", "counters", "meters", "action_profiles", "value_sets", "digests")

_Thing = TypeVar("_Thing")
Fields = tuple[tuple[int, KeyField], ...]
"""(id, key field) in the order of the source."""


class Switch(Protocol):
    """The objects of a switch that a client reaches, by full names.

    Each raises TableError for an unknown name.
    """

    @property
    def replication(self) -> Replication: ...
    def table(self, name: str) -> Table: ...
    def counter(self, name: str) -> CounterArray: ...
    def meter(self, name: str) -> MeterArray: ...
    def value_set(self, name: str) -> ValueSet: ...


class EntityListener:
    """Follows table entries and multicast groups, for a switch that does more with them than to keep them.

    This one does nothing. A `StatusError` of `changed` or `group_changed` undoes the update.
    """

    def before_read(self) -> None:
        """Entries or counters are about to be read, or counters to be set."""

    def before_change(self, table: Table, matches: Sequence[Canonical], *, new: bool) -> None:
        """An entry with these matches is about to be inserted (`new`), modified or deleted."""

    def changed(self, table: Table, entry: Entry, metadata: bytes, *, new: bool) -> None:
        """An entry was inserted (`new`) or modified; `metadata` is the client's. May raise `StatusError`."""

    def removed(self, table: Table, entry: Entry) -> None:
        """An entry was deleted."""

    def default_changed(self, table: Table) -> None:
        """The default action of a table was set."""

    def group_changed(self, group: int, entry: Any | None) -> None:
        """A multicast group was written (`MulticastGroupEntry`), or deleted (None). Raises `StatusError`."""


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
        scopes: P4Info's scope of each action, by the action's id.
        counts: (packets, bytes), each True if its direct counter counts it; None without one.
        meters: it has a direct meter.
        profile: the id of its action profile, 0 without one.
        shift: added to a model priority to get the P4Runtime one, which starts at 1.
        constants: entries of the source that are constant.
    """

    id: int
    name: str
    runtime: Table
    fields: Fields
    scopes: dict[int, int]
    counts: tuple[bool, bool] | None
    meters: bool
    profile: int
    constant_default: bool
    shift: int
    constants: frozenset[Entry]

    @property
    def needs_priority(self) -> bool:
        """True if entries have a priority."""
        return any(field.kind in _NEEDS_PRIORITY for _, field in self.fields)


class Schema:
    """The objects of a P4Info (a p4.config.v1.P4Info message) on a switch.

    Args:
        constants: by table, entries that cannot be changed in tables whose other entries can.
    """

    def __init__(self, p4info: Any, switch: Switch, constants: Mapping[str, frozenset[Entry]]) -> None:
        self.p4info = p4info
        self.switch = switch
        self._infos = {kind: {each.preamble.id: each for each in getattr(p4info, kind)} for kind in _KINDS}
        self._actions = {each.preamble.id: _action(each) for each in p4info.actions}
        self._by_name = {view.name: view for view in self._actions.values()}
        self._constants = constants
        # Built now: the tables still hold the entries of the source alone.
        self._views = {number: self._view(each) for number, each in self._infos["tables"].items()}

    def info(self, kind: str, number: int) -> Any:
        """Returns the message of an object; `kind` is a field of P4Info. Raises `StatusError`."""
        infos = self._infos[kind]
        if number not in infos:
            names = (
                ", ".join(sorted(f"{each.preamble.name} {key:#x}" for key, each in infos.items())) or "none"
            )
            if len(names) > 400:
                names = f"{len(infos)} others"
            raise not_found(f"there is no {_singular(kind)} with id {number:#x}; there is {names}")
        return infos[number]

    def asked(self, kind: str, number: int) -> list[int]:
        """Returns the ids that a read names: this one, or all of the kind for 0."""
        return [number] if number else list(self._infos[kind])

    def opened(self, kind: str, number: int, find: Callable[[str], _Thing]) -> tuple[str, _Thing]:
        """Returns the name for messages and the switch's object of this id. Raises `StatusError`."""
        name = self.info(kind, number).preamble.name
        try:
            return f"{_singular(kind)} {name}", find(name)
        except TableError as error:
            raise unimplemented(str(error)) from None

    def table(self, number: int) -> TableView:
        """Returns the table of this id. Raises `StatusError`."""
        self.info("tables", number)
        return self._views[number]

    def tables(self) -> list[TableView]:
        """Returns all tables that are applied."""
        return list(self._views.values())

    def action_called(self, name: str) -> ActionView | None:
        """Returns the action of this full name; None for one that P4Info leaves out."""
        return self._by_name.get(name)

    def listed_action(self, table: TableView, number: int, *, default: bool) -> tuple[ActionView, Action]:
        """Returns an action that entries of a table, or its default, may have. Raises `StatusError`."""
        if number not in self._actions:
            raise invalid(f"there is no action with id {number:#x}")
        view = self._actions[number]
        if number not in table.scopes or view.name not in table.runtime.actions:
            raise invalid(f"table {table.name} does not list action {view.name}")
        if table.scopes[number] == (TABLE_ONLY if default else DEFAULT_ONLY):
            use = "entries" if default else "the default"
            raise permission_denied(f"table {table.name}: action {view.name} is for {use} only")
        return view, table.runtime.actions[view.name]

    def digest_called(self, name: str) -> Any | None:
        """Returns the digest of this name; of a tuple, which has none, the only one, or None if there are
        several.
        """
        digests = self.p4info.digests
        if not name:
            tuples = [each for each in digests if each.type_spec.HasField("tuple")]
            return tuples[0] if len(tuples) == 1 else None
        return next((each for each in digests if each.preamble.name == name), None)

    def _view(self, info: Any) -> TableView:
        name = info.preamble.name
        try:
            runtime = self.switch.table(name)
        except TableError as error:
            raise unimplemented(f"table {name}: {error}") from None
        if len(info.match_fields) != len(runtime.keys):
            raise unimplemented(f"table {name} has key fields that P4Info has not")
        for each in info.match_fields:
            if not each.bitwidth:
                raise unimplemented(f"table {name}: match field {each.name} is a string or an enum")
        initial = [entry.priority for entry in runtime.entries]
        needed = any(key.kind in _NEEDS_PRIORITY for key in runtime.keys)
        direct = set(info.direct_resource_ids)
        counters = [each for each in self.p4info.direct_counters if each.preamble.id in direct]
        return TableView(
            info.preamble.id,
            name,
            runtime,
            tuple((each.id, key) for each, key in zip(info.match_fields, runtime.keys, strict=True)),
            {each.id: each.scope for each in info.action_refs},
            counted(counters[0]) if counters else None,
            any(each.preamble.id in direct for each in self.p4info.direct_meters),
            info.implementation_id,
            runtime.const_default or bool(info.const_default_action_id),
            max(0, 1 - min(initial)) if needed and initial else 0,
            frozenset(runtime.entries) if runtime.const_entries else self._constants.get(name, frozenset()),
        )


def _singular(kind: str) -> str:
    return kind.removesuffix("s").replace("_", " ")


def counted(info: Any) -> tuple[bool, bool]:
    """Returns (packets, bytes), each True if a counter counts it."""
    return _UNITS.get(info.spec.unit, (True, True))


def _action(info: Any) -> ActionView:
    params = tuple((each.id, each.name, each.bitwidth) for each in info.params)
    return ActionView(info.preamble.id, info.preamble.name, params)

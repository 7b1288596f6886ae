"""Table entries, and their direct counters and meters.

`TableEntry`, `DirectCounterEntry`, `DirectMeterEntry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from switchagg.p4entities.counters import Meter, Rate
from switchagg.p4entities.matches import Match
from switchagg.p4entities.tables import Action, BoundAction, Entry, MemberChoice
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.errors import Code, Refused, invalid, not_found, unimplemented
from switchagg.p4runtime.server.handlers import Change, only_modify
from switchagg.p4runtime.server.matching import (
    decode_action,
    decode_matches,
    encode_action,
    encode_matches,
)
from switchagg.p4runtime.server.meters import decode_config, encode_config
from switchagg.p4runtime.server.profiles import weighted
from switchagg.p4runtime.server.schema import Schema, TableView

Bound = tuple[Action, tuple[int, ...]]


@dataclass(slots=True)
class Notes:
    """What a client says of an entry that is of no use to the switch, and is given back."""

    controller_metadata: int = 0
    metadata: bytes = b""
    action_set: Any = None


class TableEntries:
    """The entries of a switch's tables.

    Args:
        now: the switch's time, for meters.

    Attributes:
        notes: what clients said of entries besides.
    """

    def __init__(self, schema: Schema, now: Callable[[], float]) -> None:
        self.schema = schema
        self._now = now
        self.notes: dict[Entry, Notes] = {}

    # ---- writing ----

    def write(self, change: Change, message: Any) -> None:
        """Does one update of a `TableEntry`. Raises `Refused`."""
        table = self.schema.table(message.table_id)
        if message.is_const:
            raise invalid(f"table {table.name}: is_const is for reading; entries that are written have not")
        if message.is_default_action:
            self._write_default(change, table, message)
            return
        if change is not Change.DELETE and message.idle_timeout_ns:
            raise unimplemented(f"table {table.name}: entries do not time out (idle_timeout_ns)")
        if not table.fields:
            raise invalid(f"table {table.name} has no key: it has a default action only")
        if table.runtime.const_entries and change is not Change.MODIFY:
            raise Refused(Code.PERMISSION_DENIED, f"table {table.name} has constant entries")
        matches, priority = self._key(table, message)
        there = table.runtime.lookup(matches, priority - table.shift)
        if change is Change.INSERT:
            if there is not None:
                raise Refused(
                    Code.ALREADY_EXISTS,
                    f"table {table.name} has this entry already: {table.runtime.show(there.matches)}",
                )
            self._insert(table, matches, priority, message)
            return
        if there is None:
            raise not_found(f"table {table.name} has no such entry, of priority {priority}")
        constant = there in table.constants
        if constant and (change is Change.DELETE or message.HasField("action")):
            raise Refused(Code.PERMISSION_DENIED, f"table {table.name}: this entry is constant")
        if change is Change.DELETE:
            self._remove(table, there)
            return
        self._modify(table, there, message, constant=constant)

    def _key(self, table: TableView, message: Any) -> tuple[list[Match], int]:
        if table.needs_priority and message.priority <= 0:
            raise invalid(
                f"table {table.name} has ternary, range or optional fields: priority {message.priority} is "
                "not at least 1"
            )
        if not table.needs_priority and message.priority:
            raise invalid(f"table {table.name} takes no priorities: {message.priority} is not 0")
        return decode_matches(table, message.match), message.priority

    def _remove(self, table: TableView, entry: Entry) -> None:
        table.runtime.remove(entry)
        self.notes.pop(entry, None)

    def _insert(self, table: TableView, matches: list[Match], priority: int, message: Any) -> Entry:
        runtime = table.runtime
        if not message.HasField("action"):
            raise invalid(f"table {table.name}: an entry without an action")
        bound, choice = self._decoded(table, message.action)
        meter = self._checked_extras(table, message)
        if len(runtime.entries) >= runtime.size:
            raise Refused(
                Code.RESOURCE_EXHAUSTED, f"table {table.name} is full: it holds {runtime.size} entries"
            )
        action, arguments = bound or (next(iter(runtime.actions.values())), ())
        entry = runtime.insert(matches, action, arguments, priority - table.shift, choice)
        self._extras(table, entry, message, meter)
        return entry

    def _modify(self, table: TableView, entry: Entry, message: Any, *, constant: bool) -> None:
        if message.HasField("action"):
            bound, choice = self._decoded(table, message.action)
            meter = self._checked_extras(table, message)
            if bound is not None:
                entry.set_action(*bound)
            entry.choice = choice
        else:
            meter = self._checked_extras(table, message)
        self._extras(table, entry, message, meter, notes=not constant)

    def _write_default(self, change: Change, table: TableView, message: Any) -> None:
        only_modify(change, f"the default entry of table {table.name}")
        if message.match or message.priority:
            raise invalid(f"table {table.name}: the default entry has neither matches nor a priority")
        if table.constant_default:
            raise Refused(Code.PERMISSION_DENIED, f"table {table.name} has a constant default action")
        if table.profile and message.HasField("action"):
            raise Refused(
                Code.PERMISSION_DENIED,
                f"table {table.name} has an action profile: P4Runtime leaves its default action as it is",
            )
        runtime = table.runtime
        meter = self._checked_extras(table, message)
        if message.HasField("action"):
            bound = self._bound(table, message.action, default=True)
            before = runtime.miss
            runtime.set_default(bound[0].name, bound[1])
            runtime.miss.packets, runtime.miss.bytes = before.packets, before.bytes
            self.notes.pop(before, None)
        else:
            self.notes.pop(runtime.miss, None)
            runtime.reset_default()
        self._extras(table, runtime.miss, message, meter)

    def _decoded(self, table: TableView, message: Any) -> tuple[Bound | None, MemberChoice | None]:
        """What an entry does: an action, or a choice from an action profile."""
        kind = message.WhichOneof("type")
        if not table.profile:
            return self._bound(table, message, default=False), None
        if kind not in ("action_profile_member_id", "action_profile_group_id", "action_profile_action_set"):
            raise invalid(f"table {table.name} takes members or groups of its action profile, not actions")
        info = self.schema.profile(table.profile)
        profile = table.runtime.profile
        assert profile is not None
        if kind != "action_profile_member_id" and not info.with_selector:
            raise invalid(f"table {table.name}: {info.preamble.name} is no selector: it has members only")
        if kind == "action_profile_member_id":
            member = message.action_profile_member_id
            if member not in profile.members:
                raise not_found(f"action profile {info.preamble.name} has no member {member}")
            return None, profile.choice(member, None)
        if kind == "action_profile_group_id":
            group = message.action_profile_group_id
            if group not in profile.groups:
                raise not_found(f"action profile {info.preamble.name} has no group {group}")
            return None, profile.choice(None, group)
        return None, self._action_set(table, message.action_profile_action_set)

    def _action_set(self, table: TableView, message: Any) -> MemberChoice:
        members: dict[int, BoundAction] = {}
        order: list[int] = []
        for number, each in enumerate(message.action_profile_actions):
            if each.WhichOneof("watch_kind") is not None:
                raise unimplemented(f"table {table.name}: watch ports are not supported")
            if each.weight < 1:
                raise invalid(f"table {table.name}: an action of weight {each.weight}; accepted: 1 or more")
            view, action = self.schema.listed_action(table, each.action.action_id, default=False)
            members[number] = BoundAction(
                action, decode_action(view, action, each.action, f"table {table.name}")
            )
            order.append(number)
        limit = self.schema.profile(table.profile).max_group_size
        order = weighted(order, message.action_profile_actions, f"table {table.name}", limit)
        return MemberChoice(members, order)

    def _bound(self, table: TableView, message: Any, *, default: bool) -> Bound:
        kind = message.WhichOneof("type")
        if kind != "action":
            raise invalid(f"table {table.name} takes an action, not {kind or 'an empty one'}")
        view, action = self.schema.listed_action(table, message.action.action_id, default=default)
        return action, decode_action(view, action, message.action, f"table {table.name}")

    def _checked_extras(self, table: TableView, message: Any) -> tuple[Rate, Rate] | None:
        """The meter's rates, after the look at what belongs to direct counters and meters."""
        if message.HasField("counter_data") and table.counts is None:
            raise invalid(f"table {table.name} has no direct counter")
        if message.HasField("meter_counter_data"):
            raise unimplemented(f"table {table.name}: meters do not count by colour")
        if not message.HasField("meter_config"):
            return None
        if not table.meters:
            raise invalid(f"table {table.name} has no direct meter")
        return decode_config(message.meter_config, f"table {table.name}")

    def _extras(
        self,
        table: TableView,
        entry: Entry,
        message: Any,
        meter: tuple[Rate, Rate] | None,
        *,
        notes: bool = True,
    ) -> None:
        if message.HasField("counter_data"):
            entry.packets = message.counter_data.packet_count
            entry.bytes = message.counter_data.byte_count
        if table.meters:
            self._set_meter(table, entry, meter)
        if notes:
            action_set = None
            if message.action.WhichOneof("type") == "action_profile_action_set":
                action_set = p4runtime_pb2.ActionProfileActionSet()
                action_set.CopyFrom(message.action.action_profile_action_set)
            elif not message.HasField("action") and entry in self.notes:
                action_set = self.notes[entry].action_set
            self.notes[entry] = Notes(message.controller_metadata, message.metadata, action_set)

    def _set_meter(self, table: TableView, entry: Entry, rates: tuple[Rate, Rate] | None) -> None:
        if entry.meter is None:
            info = next(each for each in self.schema.p4info.direct_meters if each.direct_table_id == table.id)
            entry.meter = Meter(info.spec.unit == info.spec.BYTES)
        committed, peak = rates or (None, None)
        entry.meter.set_rates(committed, peak, self._now())

    # ---- reading ----

    def read(self, message: Any) -> Iterator[Any]:
        """The entries that a `TableEntry` asks for. Raises `Refused`."""
        for table, entry in self._selected(message):
            yield p4runtime_pb2.Entity(table_entry=self._encoded(table, entry, message))

    def _selected(self, message: Any) -> Iterator[tuple[TableView, Entry]]:
        if not message.table_id:
            if message.match or message.priority or message.HasField("action"):
                raise invalid("a read from all tables takes no matches, priority or action")
            for table in self.schema.tables():
                yield from self._filtered(table, message)
            return
        table = self.schema.table(message.table_id)
        if message.match and not message.is_default_action:
            matches = decode_matches(table, message.match)
            wanted = [key.canonical(m, table.name) for (_, key), m in zip(table.fields, matches, strict=True)]
            for found, entry in self._filtered(table, message):
                if list(entry.matches) == wanted:
                    yield found, entry
            return
        yield from self._filtered(table, message)

    def _filtered(self, table: TableView, message: Any) -> Iterator[tuple[TableView, Entry]]:
        entries = [table.runtime.miss] if message.is_default_action else table.runtime.entries
        action = message.action.action.action_id
        for entry in entries:
            notes = self.notes.get(entry, Notes())
            view = self.schema.action_called(entry.action.name)
            if message.priority and entry.priority + table.shift != message.priority:
                continue
            if message.controller_metadata and notes.controller_metadata != message.controller_metadata:
                continue
            if message.metadata and notes.metadata != message.metadata:
                continue
            if action and (view is None or view.id != action):
                continue
            yield table, entry

    def _encoded(self, table: TableView, entry: Entry, asked: Any) -> Any:
        message = self._named(table, entry)
        notes = self.notes.get(entry, Notes())
        message.controller_metadata, message.metadata = notes.controller_metadata, notes.metadata
        message.is_const = entry in table.constants
        if notes.action_set is not None:
            message.action.action_profile_action_set.CopyFrom(notes.action_set)
        elif entry.choice is not None and entry.choice.group is not None:
            message.action.action_profile_group_id = entry.choice.group
        elif entry.choice is not None:
            message.action.action_profile_member_id = entry.choice.order[0]
        else:
            action = encode_action(self.schema, entry.action, entry.args)
            if action is not None:
                message.action.action.CopyFrom(action)
        if asked.HasField("counter_data") and table.counts is not None:
            message.counter_data.CopyFrom(_counts(table, entry))
        if asked.HasField("meter_config") and table.meters:
            config = encode_config(entry.meter)
            if config is not None:
                message.meter_config.CopyFrom(config)
        return message

    def _named(self, table: TableView, entry: Entry) -> Any:
        """What names an entry: its table, matches and priority."""
        message = p4runtime_pb2.TableEntry(table_id=table.id)
        if entry is table.runtime.miss:
            message.is_default_action = True
        else:
            message.match.extend(encode_matches(table.fields, entry.matches))
            if table.needs_priority:
                message.priority = entry.priority + table.shift
        return message

    # ---- direct counters and meters ----

    def write_counter(self, change: Change, message: Any) -> None:
        """Does one update of a `DirectCounterEntry`. Raises `Refused`."""
        table, entry = self._direct(change, message, "counter")
        if table.counts is None:
            raise invalid(f"table {table.name} has no direct counter")
        entry.packets, entry.bytes = message.data.packet_count, message.data.byte_count

    def read_counter(self, message: Any) -> Iterator[Any]:
        """The counts that a `DirectCounterEntry` asks for. Raises `Refused`."""
        asked = message.table_entry
        if asked.table_id and self.schema.table(asked.table_id).counts is None:
            raise invalid(f"table {self.schema.table(asked.table_id).name} has no direct counter")
        for table, entry in self._selected(asked):
            if table.counts is not None:
                answer = p4runtime_pb2.Entity()
                answer.direct_counter_entry.table_entry.CopyFrom(self._named(table, entry))
                answer.direct_counter_entry.data.CopyFrom(_counts(table, entry))
                yield answer

    def write_meter(self, change: Change, message: Any) -> None:
        """Does one update of a `DirectMeterEntry`. Raises `Refused`."""
        table, entry = self._direct(change, message, "meter")
        if not table.meters:
            raise invalid(f"table {table.name} has no direct meter")
        rates = None
        if message.HasField("config"):
            rates = decode_config(message.config, f"table {table.name}")
        self._set_meter(table, entry, rates)

    def read_meter(self, message: Any) -> Iterator[Any]:
        """The meters that a `DirectMeterEntry` asks for. Raises `Refused`."""
        asked = message.table_entry
        if asked.table_id and not self.schema.table(asked.table_id).meters:
            raise invalid(f"table {self.schema.table(asked.table_id).name} has no direct meter")
        for table, entry in self._selected(asked):
            if table.meters:
                answer = p4runtime_pb2.Entity()
                answer.direct_meter_entry.table_entry.CopyFrom(self._named(table, entry))
                config = encode_config(entry.meter)
                if config is not None:
                    answer.direct_meter_entry.config.CopyFrom(config)
                yield answer

    def _direct(self, change: Change, message: Any, what: str) -> tuple[TableView, Entry]:
        only_modify(change, f"a direct {what}")
        asked = message.table_entry
        table = self.schema.table(asked.table_id)
        if asked.is_default_action:
            return table, table.runtime.miss
        matches, priority = self._key(table, asked)
        entry = table.runtime.lookup(matches, priority - table.shift)
        if entry is None:
            raise not_found(f"table {table.name} has no such entry, of priority {priority}")
        return table, entry


def _counts(table: TableView, entry: Entry) -> Any:
    packets, length = table.counts or (False, False)
    return p4runtime_pb2.CounterData(
        packet_count=entry.packets if packets else 0, byte_count=entry.bytes if length else 0
    )


class DirectCounters:
    """`TableEntries` as a handler of `DirectCounterEntry`."""

    def __init__(self, tables: TableEntries) -> None:
        self.write, self.read = tables.write_counter, tables.read_counter


class DirectMeters:
    """`TableEntries` as a handler of `DirectMeterEntry`."""

    def __init__(self, tables: TableEntries) -> None:
        self.write, self.read = tables.write_meter, tables.read_meter

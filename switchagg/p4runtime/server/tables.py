"""Table entries, direct counters and meters: `TableEntry`, `DirectCounterEntry`, `DirectMeterEntry`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from switchagg.p4entities.counters import Meter, Rate
from switchagg.p4entities.matches import Match
from switchagg.p4entities.tables import Action, BoundAction, Entry, MemberChoice
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server import codec, errors
from switchagg.p4runtime.server.codec import Change, only_modify
from switchagg.p4runtime.server.counters import copy_config, decode_config, encode_counts
from switchagg.p4runtime.server.errors import StatusError
from switchagg.p4runtime.server.profiles import weighted
from switchagg.p4runtime.server.schema import EntityListener, Schema, TableView

Bound = tuple[Action, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EntryMetadata:
    """Fields of an entry that the switch has no use for and gives back."""

    controller_metadata: int = 0
    metadata: bytes = b""
    action_set: Any = None


class TableEntries:
    """Reads and writes the entries of a switch's tables. `now` is its time, for meters."""

    def __init__(self, schema: Schema, now: Callable[[], float], listener: EntityListener) -> None:
        self._schema = schema
        self._now = now
        self._listener = listener
        self._metadata: dict[Entry, EntryMetadata] = {}

    # ---- writing ----

    def write(self, change: Change, message: Any) -> None:
        """Does one update of a `TableEntry`. Raises `StatusError`."""
        table = self._schema.table(message.table_id)
        if message.is_const:
            raise errors.invalid(
                f"table {table.name}: is_const is for reading; entries that are written have not"
            )
        if message.is_default_action:
            self._write_default(change, table, message)
            return
        if change is not Change.DELETE and message.idle_timeout_ns:
            raise errors.unimplemented(f"table {table.name}: entries do not time out (idle_timeout_ns)")
        if not table.fields:
            raise errors.invalid(f"table {table.name} has no key: it has a default action only")
        if table.runtime.const_entries and change is not Change.MODIFY:
            raise errors.permission_denied(f"table {table.name} has constant entries")
        matches, priority = self._key(table, message)
        there = table.runtime.lookup(matches, priority - table.shift)
        if change is Change.INSERT:
            if there is not None:
                shown = table.runtime.show(there.matches)
                raise errors.already_exists(f"table {table.name} has this entry already: {shown}")
            self._insert(table, matches, priority, message)
            return
        if there is None:
            raise errors.not_found(f"table {table.name} has no such entry, of priority {priority}")
        constant = there in table.constants
        if constant and (change is Change.DELETE or message.HasField("action")):
            raise errors.permission_denied(f"table {table.name}: this entry is constant")
        self._listener.before_change(table.runtime, there.matches, new=False)
        if change is Change.DELETE:
            self._remove(table, there)
            self._listener.removed(table.runtime, there)
        else:
            self._modify(table, there, message, constant=constant)

    def _key(self, table: TableView, message: Any) -> tuple[list[Match], int]:
        if table.needs_priority and message.priority <= 0:
            raise errors.invalid(
                f"table {table.name} has ternary, range or optional fields: priority {message.priority} is "
                "not at least 1"
            )
        if not table.needs_priority and message.priority:
            raise errors.invalid(f"table {table.name} takes no priorities: {message.priority} is not 0")
        return codec.decode_matches(f"table {table.name}", table.fields, message.match), message.priority

    def _remove(self, table: TableView, entry: Entry) -> None:
        table.runtime.remove(entry)
        self._metadata.pop(entry, None)

    def _insert(self, table: TableView, matches: list[Match], priority: int, message: Any) -> None:
        runtime = table.runtime
        self._listener.before_change(runtime, runtime.canonical(matches), new=True)
        if not message.HasField("action"):
            raise errors.invalid(f"table {table.name}: an entry without an action")
        bound, choice = self._decoded(table, message.action)
        meter = self._checked_extras(table, message)
        if len(runtime.entries) >= runtime.size:
            raise errors.resource_exhausted(f"table {table.name} is full: it holds {runtime.size} entries")
        action, arguments = bound or (next(iter(runtime.actions.values())), ())
        entry = runtime.insert(matches, action, arguments, priority - table.shift, choice)
        self._set_extras(table, entry, message, meter)
        try:
            self._listener.changed(runtime, entry, message.metadata, new=True)
        except StatusError:
            self._remove(table, entry)
            raise

    def _modify(self, table: TableView, entry: Entry, message: Any, *, constant: bool) -> None:
        before = entry.action, entry.args, entry.choice, entry.packets, entry.bytes
        metadata = self._metadata.get(entry, EntryMetadata())
        bound, choice = None, entry.choice
        if message.HasField("action"):
            bound, choice = self._decoded(table, message.action)
        meter = self._checked_extras(table, message)
        if bound is not None:
            entry.set_action(*bound)
        entry.choice = choice
        self._set_extras(table, entry, message, meter, metadata=not constant)
        try:
            self._listener.changed(table.runtime, entry, message.metadata, new=False)
        except StatusError:
            action, args, entry.choice, entry.packets, entry.bytes = before
            entry.set_action(action, args)
            self._metadata[entry] = metadata
            raise

    def _write_default(self, change: Change, table: TableView, message: Any) -> None:
        only_modify(change, f"the default entry of table {table.name}")
        if message.match or message.priority:
            raise errors.invalid(f"table {table.name}: the default entry has neither matches nor a priority")
        if table.constant_default:
            raise errors.permission_denied(f"table {table.name} has a constant default action")
        if table.profile and message.HasField("action"):
            raise errors.permission_denied(
                f"table {table.name} has an action profile: P4Runtime leaves its default action as it is"
            )
        runtime = table.runtime
        meter = self._checked_extras(table, message)
        if message.HasField("action"):
            bound = self._bound(table, message.action, default=True)
            before = runtime.miss
            runtime.set_default(bound[0].name, bound[1])
            runtime.miss.packets, runtime.miss.bytes = before.packets, before.bytes
            self._metadata.pop(before, None)
        else:
            self._metadata.pop(runtime.miss, None)
            runtime.reset_default()
        self._set_extras(table, runtime.miss, message, meter)
        self._listener.default_changed(runtime)

    def _decoded(self, table: TableView, message: Any) -> tuple[Bound | None, MemberChoice | None]:
        """Returns the action of an entry, or its choice from an action profile."""
        kind = message.WhichOneof("type")
        if not table.profile:
            return self._bound(table, message, default=False), None
        if kind not in ("action_profile_member_id", "action_profile_group_id", "action_profile_action_set"):
            raise errors.invalid(
                f"table {table.name} takes members or groups of its action profile, not actions"
            )
        info = self._schema.info("action_profiles", table.profile)
        profile = table.runtime.profile
        assert profile is not None
        if kind != "action_profile_member_id" and not info.with_selector:
            raise errors.invalid(
                f"table {table.name}: {info.preamble.name} is no selector: it has members only"
            )
        if kind == "action_profile_member_id":
            member = message.action_profile_member_id
            if member not in profile.members:
                raise errors.not_found(f"action profile {info.preamble.name} has no member {member}")
            return None, profile.choice(member, None)
        if kind == "action_profile_group_id":
            group = message.action_profile_group_id
            if group not in profile.groups:
                raise errors.not_found(f"action profile {info.preamble.name} has no group {group}")
            return None, profile.choice(None, group)
        return None, self._action_set(table, message.action_profile_action_set)

    def _action_set(self, table: TableView, message: Any) -> MemberChoice:
        members: dict[int, BoundAction] = {}
        for number, each in enumerate(message.action_profile_actions):
            if each.WhichOneof("watch_kind") is not None:
                raise errors.unimplemented(f"table {table.name}: watch ports are not supported")
            if each.weight < 1:
                raise errors.invalid(
                    f"table {table.name}: an action of weight {each.weight}; accepted: 1 or more"
                )
            view, action = self._schema.listed_action(table, each.action.action_id, default=False)
            arguments = codec.decode_action(view, action, each.action, f"table {table.name}")
            members[number] = BoundAction(action, arguments)
        limit = self._schema.info("action_profiles", table.profile).max_group_size
        order = weighted(list(members), message.action_profile_actions, f"table {table.name}", limit)
        return MemberChoice(members, order)

    def _bound(self, table: TableView, message: Any, *, default: bool) -> Bound:
        kind = message.WhichOneof("type")
        if kind != "action":
            raise errors.invalid(f"table {table.name} takes an action, not {kind or 'an empty one'}")
        view, action = self._schema.listed_action(table, message.action.action_id, default=default)
        return action, codec.decode_action(view, action, message.action, f"table {table.name}")

    def _checked_extras(self, table: TableView, message: Any) -> tuple[Rate, Rate] | None:
        """Checks the fields for direct counters and meters. Returns the meter's rates."""
        if message.HasField("counter_data") and table.counts is None:
            raise errors.invalid(f"table {table.name} has no direct counter")
        if message.HasField("meter_counter_data"):
            raise errors.unimplemented(f"table {table.name}: meters do not count by colour")
        if not message.HasField("meter_config"):
            return None
        if not table.meters:
            raise errors.invalid(f"table {table.name} has no direct meter")
        return decode_config(message.meter_config, f"table {table.name}")

    def _set_extras(
        self,
        table: TableView,
        entry: Entry,
        message: Any,
        meter: tuple[Rate, Rate] | None,
        *,
        metadata: bool = True,
    ) -> None:
        if message.HasField("counter_data"):
            entry.packets = message.counter_data.packet_count
            entry.bytes = message.counter_data.byte_count
        if table.meters:
            self._set_meter(table, entry, meter)
        if metadata:
            action_set = None
            if message.action.WhichOneof("type") == "action_profile_action_set":
                action_set = deepcopy(message.action.action_profile_action_set)
            elif not message.HasField("action") and entry in self._metadata:
                action_set = self._metadata[entry].action_set
            self._metadata[entry] = EntryMetadata(message.controller_metadata, message.metadata, action_set)

    def _set_meter(self, table: TableView, entry: Entry, rates: tuple[Rate, Rate] | None) -> None:
        if entry.meter is None:
            info = next(
                each for each in self._schema.p4info.direct_meters if each.direct_table_id == table.id
            )
            entry.meter = Meter(info.spec.unit == info.spec.BYTES)
        committed, peak = rates or (None, None)
        entry.meter.set_rates(committed, peak, self._now())

    # ---- reading ----

    def read(self, message: Any) -> Iterator[Any]:
        """Yields the entries that a `TableEntry` asks for. Raises `StatusError`."""
        self._listener.before_read()
        for table, entry in self._selected(message):
            yield p4runtime_pb2.Entity(table_entry=self._encoded(table, entry, message))

    def _selected(self, message: Any) -> Iterator[tuple[TableView, Entry]]:
        if not message.table_id:
            if message.match or message.priority or message.HasField("action"):
                raise errors.invalid("a read from all tables takes no matches, priority or action")
            for table in self._schema.tables():
                yield from self._filtered(table, message)
            return
        table = self._schema.table(message.table_id)
        found = self._filtered(table, message)
        if message.match and not message.is_default_action:
            matches = codec.decode_matches(f"table {table.name}", table.fields, message.match)
            wanted = table.runtime.canonical(matches)
            found = (each for each in found if each[1].matches == wanted)
        yield from found

    def _filtered(self, table: TableView, message: Any) -> Iterator[tuple[TableView, Entry]]:
        entries = [table.runtime.miss] if message.is_default_action else table.runtime.entries
        action = message.action.action.action_id
        for entry in entries:
            metadata = self._metadata.get(entry, EntryMetadata())
            view = self._schema.action_called(entry.action.name)
            if message.priority and entry.priority + table.shift != message.priority:
                continue
            if message.controller_metadata and metadata.controller_metadata != message.controller_metadata:
                continue
            if message.metadata and metadata.metadata != message.metadata:
                continue
            if action and (view is None or view.id != action):
                continue
            yield table, entry

    def _encoded(self, table: TableView, entry: Entry, asked: Any) -> Any:
        message = self._named(table, entry)
        metadata = self._metadata.get(entry, EntryMetadata())
        message.controller_metadata, message.metadata = metadata.controller_metadata, metadata.metadata
        message.is_const = entry in table.constants
        if metadata.action_set is not None:
            message.action.action_profile_action_set.CopyFrom(metadata.action_set)
        elif entry.choice is not None and entry.choice.group is not None:
            message.action.action_profile_group_id = entry.choice.group
        elif entry.choice is not None:
            message.action.action_profile_member_id = entry.choice.order[0]
        else:
            action = codec.encode_action(self._schema, entry.action, entry.args)
            if action is not None:
                message.action.action.CopyFrom(action)
        if asked.HasField("counter_data") and table.counts is not None:
            message.counter_data.CopyFrom(encode_counts(table.counts, entry.packets, entry.bytes))
        if asked.HasField("meter_config") and table.meters:
            copy_config(entry.meter, message.meter_config)
        return message

    def _named(self, table: TableView, entry: Entry) -> Any:
        """Returns the fields that name an entry: its table, matches and priority."""
        message = p4runtime_pb2.TableEntry(table_id=table.id)
        if entry is table.runtime.miss:
            message.is_default_action = True
        else:
            message.match.extend(codec.encode_matches(table.fields, entry.matches))
            if table.needs_priority:
                message.priority = entry.priority + table.shift
        return message

    # ---- direct counters and meters ----

    def write_counter(self, change: Change, message: Any) -> None:
        """Does one update of a `DirectCounterEntry`. Raises `StatusError`."""
        self._listener.before_read()
        _, entry = self._direct(change, message.table_entry, "counter")
        entry.packets, entry.bytes = message.data.packet_count, message.data.byte_count

    def read_counter(self, message: Any) -> Iterator[Any]:
        """Yields the counts that a `DirectCounterEntry` asks for. Raises `StatusError`."""
        self._listener.before_read()
        for table, entry in self._with_direct(message.table_entry, "counter"):
            data = encode_counts(table.counts or (False, False), entry.packets, entry.bytes)
            answer = p4runtime_pb2.DirectCounterEntry(table_entry=self._named(table, entry), data=data)
            yield p4runtime_pb2.Entity(direct_counter_entry=answer)

    def write_meter(self, change: Change, message: Any) -> None:
        """Does one update of a `DirectMeterEntry`. Raises `StatusError`."""
        table, entry = self._direct(change, message.table_entry, "meter")
        rates = decode_config(message.config, f"table {table.name}") if message.HasField("config") else None
        self._set_meter(table, entry, rates)

    def read_meter(self, message: Any) -> Iterator[Any]:
        """Yields the meters that a `DirectMeterEntry` asks for. Raises `StatusError`."""
        for table, entry in self._with_direct(message.table_entry, "meter"):
            answer = p4runtime_pb2.DirectMeterEntry(table_entry=self._named(table, entry))
            copy_config(entry.meter, answer.config)
            yield p4runtime_pb2.Entity(direct_meter_entry=answer)

    def _with_direct(self, asked: Any, what: str) -> Iterator[tuple[TableView, Entry]]:
        if asked.table_id:
            _check_direct(self._schema.table(asked.table_id), what)
        for table, entry in self._selected(asked):
            if table.counts is not None if what == "counter" else table.meters:
                yield table, entry

    def _direct(self, change: Change, asked: Any, what: str) -> tuple[TableView, Entry]:
        only_modify(change, f"a direct {what}")
        table = self._schema.table(asked.table_id)
        entry: Entry | None = table.runtime.miss
        if not asked.is_default_action:
            matches, priority = self._key(table, asked)
            entry = table.runtime.lookup(matches, priority - table.shift)
        if entry is None:
            raise errors.not_found(f"table {table.name} has no such entry, of priority {asked.priority}")
        _check_direct(table, what)
        return table, entry


def _check_direct(table: TableView, what: str) -> None:
    if table.counts is None if what == "counter" else not table.meters:
        raise errors.invalid(f"table {table.name} has no direct {what}")

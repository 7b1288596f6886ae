"""All entities of a switch: the handler of an update or a read, and the status of its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from switchagg.errors import UsageError
from switchagg.p4runtime.server.codec import Change
from switchagg.p4runtime.server.counters import Counters, Meters
from switchagg.p4runtime.server.digests import Digests
from switchagg.p4runtime.server.errors import invalid, unimplemented
from switchagg.p4runtime.server.profiles import Groups, Members
from switchagg.p4runtime.server.replication import ReplicationEngine
from switchagg.p4runtime.server.schema import EntityListener, Schema
from switchagg.p4runtime.server.tables import TableEntries
from switchagg.p4runtime.server.value_sets import ValueSets

_UNSUPPORTED: Final = {
    "register_entry": "registers are not read or written through P4Runtime, as on bmv2",
    "extern_entry": "there are no externs beyond those that P4Runtime knows",
}

Write = Callable[[Change, Any], None]
Read = Callable[[Any], Iterator[Any]]


class Entities:
    """The entities of one program on one switch.

    Args:
        now: the switch's time in seconds.
        listener: follows what clients write.
    """

    def __init__(
        self, schema: Schema, now: Callable[[], float], listener: EntityListener | None = None
    ) -> None:
        listener = listener or EntityListener()
        tables = TableEntries(schema, now, listener)
        counters, meters = Counters(schema, listener), Meters(schema, now)
        engine = ReplicationEngine(schema, listener)
        members, groups, value_sets = Members(schema), Groups(schema), ValueSets(schema)
        self.digests = Digests(schema, now)
        self._handlers: dict[str, tuple[Write, Read]] = {
            "table_entry": (tables.write, tables.read),
            "direct_counter_entry": (tables.write_counter, tables.read_counter),
            "direct_meter_entry": (tables.write_meter, tables.read_meter),
            "counter_entry": (counters.write, counters.read),
            "meter_entry": (meters.write, meters.read),
            "packet_replication_engine_entry": (engine.write, engine.read),
            "action_profile_member": (members.write, members.read),
            "action_profile_group": (groups.write, groups.read),
            "value_set_entry": (value_sets.write, value_sets.read),
            "digest_entry": (self.digests.write, self.digests.read),
        }

    def write(self, update: Any) -> None:
        """Does one update, wholly or not at all. Raises `StatusError`."""
        if update.type not in tuple(Change):
            raise invalid(f"an update of type {update.type}; accepted: INSERT, MODIFY, DELETE")
        kind = _kind(update.entity)
        write, _ = self._handlers[kind]
        try:
            write(Change(update.type), getattr(update.entity, kind))
        except UsageError as error:
            # The tables refuse it, and no check before them did.
            raise invalid(str(error)) from None

    def read(self, entity: Any) -> Iterator[Any]:
        """Yields the entities that are asked for, with wildcards. Raises `StatusError`."""
        kind = _kind(entity)
        _, read = self._handlers[kind]
        return read(getattr(entity, kind))


def _kind(entity: Any) -> str:
    kind: str | None = entity.WhichOneof("entity")
    if kind is None:
        raise invalid("an entity without content")
    if kind in _UNSUPPORTED:
        raise unimplemented(_UNSUPPORTED[kind])
    return kind

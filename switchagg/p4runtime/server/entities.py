"""All entities of a switch: which handler an update or a read goes to, and what becomes of its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from switchagg.errors import UsageError
from switchagg.p4runtime.server.counters import Counters
from switchagg.p4runtime.server.digests import Digests
from switchagg.p4runtime.server.errors import Code, Refused, invalid, unimplemented
from switchagg.p4runtime.server.handlers import Change, Handler
from switchagg.p4runtime.server.meters import Meters
from switchagg.p4runtime.server.profiles import Groups, Members
from switchagg.p4runtime.server.replication import ReplicationEngine
from switchagg.p4runtime.server.schema import Schema
from switchagg.p4runtime.server.tables import DirectCounters, DirectMeters, TableEntries
from switchagg.p4runtime.server.value_sets import ValueSets

_REFUSED_KINDS = {
    "register_entry": "registers are not read or written through P4Runtime, as on bmv2",
    "extern_entry": "there are no externs beyond those that P4Runtime knows",
}


class Entities:
    """The entities of one program on one switch. `now` is the switch's time in seconds.

    Attributes:
        handlers: by kind of entity.
    """

    def __init__(self, schema: Schema, now: Callable[[], float]) -> None:
        tables = TableEntries(schema, now)
        self.digests = Digests(schema, now)
        self.handlers: dict[str, Handler] = {
            "table_entry": tables,
            "direct_counter_entry": DirectCounters(tables),
            "direct_meter_entry": DirectMeters(tables),
            "counter_entry": Counters(schema),
            "meter_entry": Meters(schema, now),
            "packet_replication_engine_entry": ReplicationEngine(schema),
            "action_profile_member": Members(schema),
            "action_profile_group": Groups(schema),
            "value_set_entry": ValueSets(schema),
            "digest_entry": self.digests,
        }

    def write(self, update: Any) -> None:
        """Does one update. Raises `Refused`, with nothing changed."""
        if update.type not in tuple(Change):
            raise invalid(f"an update of type {update.type}; accepted: INSERT, MODIFY, DELETE")
        handler, message = self._handler(update.entity)
        try:
            handler.write(Change(update.type), message)
        except UsageError as error:
            # What the model refuses and no check before it did.
            raise Refused(Code.INVALID_ARGUMENT, str(error)) from None

    def read(self, entity: Any) -> Iterator[Any]:
        """The entities that are asked for. Raises `Refused`."""
        handler, message = self._handler(entity)
        return handler.read(message)

    def _handler(self, entity: Any) -> tuple[Handler, Any]:
        kind = entity.WhichOneof("entity")
        if kind is None:
            raise invalid("an entity without content")
        if kind in _REFUSED_KINDS:
            raise unimplemented(_REFUSED_KINDS[kind])
        return self.handlers[kind], getattr(entity, kind)

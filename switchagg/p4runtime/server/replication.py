"""Multicast groups and clone sessions: `PacketReplicationEngineEntry`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any, Final

from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.codec import Change, check_presence, decode
from switchagg.p4runtime.server.errors import StatusError, already_exists, invalid, unimplemented
from switchagg.p4runtime.server.schema import EntityListener, Schema

_PORT_BITS: Final = 32
_MAX_SESSION: Final = 0xFFFF


class ReplicationEngine:
    """Reads and writes the replication engine of a switch. A client reads the messages that it wrote."""

    def __init__(self, schema: Schema, listener: EntityListener) -> None:
        self._engine = schema.switch.replication
        self._listener = listener
        self._groups: dict[int, Any] = {}
        self._sessions: dict[int, Any] = {}

    def write(self, change: Change, message: Any) -> None:
        """Does one update. Raises `StatusError`."""
        kind = message.WhichOneof("type")
        if kind == "multicast_group_entry":
            self._write_group(change, message.multicast_group_entry)
        elif kind == "clone_session_entry":
            self._write_session(change, message.clone_session_entry)
        else:
            raise invalid("a packet replication engine entry is a multicast group or a clone session")

    def read(self, message: Any) -> Iterator[Any]:
        """Yields the groups or sessions that are asked for; both if it names neither."""
        kind = message.WhichOneof("type")
        for name, entries, number in (
            ("multicast_group_entry", self._groups, message.multicast_group_entry.multicast_group_id),
            ("clone_session_entry", self._sessions, message.clone_session_entry.session_id),
        ):
            for each, entry in list(entries.items()) if kind in (None, name) else ():
                if number in (0, each):
                    answer = p4runtime_pb2.PacketReplicationEngineEntry(**{name: entry})
                    yield p4runtime_pb2.Entity(packet_replication_engine_entry=answer)

    def _write_group(self, change: Change, entry: Any) -> None:
        number, largest = entry.multicast_group_id, self._engine.max_group
        what = f"multicast group {number}"
        if not 1 <= number <= largest:
            raise invalid(f"{what}: accepted: 1..{largest}")
        before = self._groups.get(number)
        check_presence(change, before is not None, what)
        if change is Change.INSERT and self._engine.has_group(number):
            raise already_exists(f"{what} is there already, though not through P4Runtime")
        after = None if change is Change.DELETE else deepcopy(entry)
        self._set_group(number, after)
        try:
            self._listener.group_changed(number, after)
        except StatusError:
            self._set_group(number, before)
            raise

    def _set_group(self, number: int, entry: Any | None) -> None:
        if entry is None:
            self._engine.remove_group(number)
            del self._groups[number]
        else:
            self._engine.set_group(number, _replicas(entry.replicas, f"multicast group {number}"))
            self._groups[number] = entry

    def _write_session(self, change: Change, entry: Any) -> None:
        number = entry.session_id
        what = f"clone session {number}"
        if not 1 <= number <= _MAX_SESSION:
            raise invalid(f"{what}: accepted: 1..{_MAX_SESSION}")
        check_presence(change, number in self._sessions, what)
        if change is Change.DELETE:
            self._engine.remove_session(number)
            del self._sessions[number]
            return
        if entry.class_of_service:
            raise unimplemented(f"{what}: there is one class of service only, 0")
        if entry.packet_length_bytes < 0:
            raise invalid(f"{what}: a packet length of {entry.packet_length_bytes} bytes")
        replicas = _replicas(entry.replicas, what)
        self._engine.set_session_replicas(number, replicas, entry.packet_length_bytes or None)
        self._sessions[number] = deepcopy(entry)


def _replicas(messages: Iterable[Any], what: str) -> list[tuple[int, int]]:
    """Returns (replication id, port) of each replica."""
    pairs: list[tuple[int, int]] = []
    for each in messages:
        kind = each.WhichOneof("port_kind")
        if kind is None:
            raise invalid(f"{what}: a replica without a port")
        port = each.egress_port
        if kind == "port":
            port = decode(each.port, _PORT_BITS, f"{what}: a replica's port")
        if (each.instance, port) in pairs:
            raise invalid(f"{what}: port {port} with instance {each.instance} is there twice")
        pairs.append((each.instance, port))
    return pairs

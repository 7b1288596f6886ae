"""Multicast groups and clone sessions: `PacketReplicationEngineEntry`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.errors import Code, Refused, invalid, not_found, unimplemented
from switchagg.p4runtime.server.handlers import Change
from switchagg.p4runtime.server.schema import Schema
from switchagg.p4runtime.server.values import decode

_PORT_WIDTH = 32
_LARGEST_SESSION = 0xFFFF


class ReplicationEngine:
    """The replication engine of a switch. What clients wrote is kept in `groups`, and is what they read."""

    def __init__(self, schema: Schema) -> None:
        self._engine = schema.switch.replication
        self.groups: dict[int, Any] = {}
        self._sessions: dict[int, Any] = {}

    def write(self, change: Change, message: Any) -> None:
        """Does one update. Raises `Refused`."""
        kind = message.WhichOneof("type")
        if kind == "multicast_group_entry":
            self._write_group(change, message.multicast_group_entry)
        elif kind == "clone_session_entry":
            self._write_session(change, message.clone_session_entry)
        else:
            raise invalid("a packet replication engine entry is a multicast group or a clone session")

    def read(self, message: Any) -> Iterator[Any]:
        """The groups or sessions that are asked for; where neither is, both. Raises `Refused`."""
        kind = message.WhichOneof("type")
        if kind != "clone_session_entry":
            number = message.multicast_group_entry.multicast_group_id
            for each in _chosen(self.groups, number):
                answer = p4runtime_pb2.Entity()
                answer.packet_replication_engine_entry.multicast_group_entry.CopyFrom(each)
                yield answer
        if kind != "multicast_group_entry":
            for each in _chosen(self._sessions, message.clone_session_entry.session_id):
                answer = p4runtime_pb2.Entity()
                answer.packet_replication_engine_entry.clone_session_entry.CopyFrom(each)
                yield answer

    def _write_group(self, change: Change, entry: Any) -> None:
        number, largest = entry.multicast_group_id, self._engine.max_group
        what = f"multicast group {number}"
        if not 1 <= number <= largest:
            raise invalid(f"{what}: accepted: 1..{largest}")
        _check_there(change, number in self.groups, what)
        if change is Change.DELETE:
            self._engine.remove_group(number)
            del self.groups[number]
            return
        if change is Change.INSERT and self._engine.has_group(number):
            raise Refused(Code.ALREADY_EXISTS, f"{what} is there already, though not through P4Runtime")
        self._engine.set_group(number, _replicas(entry.replicas, what))
        self.groups[number] = _copy(entry)

    def _write_session(self, change: Change, entry: Any) -> None:
        number = entry.session_id
        what = f"clone session {number}"
        if not 1 <= number <= _LARGEST_SESSION:
            raise invalid(f"{what}: accepted: 1..{_LARGEST_SESSION}")
        _check_there(change, number in self._sessions, what)
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
        self._sessions[number] = _copy(entry)


def _chosen(entries: dict[int, Any], number: int) -> Iterable[Any]:
    if not number:
        return list(entries.values())
    return [entries[number]] if number in entries else []


def _check_there(change: Change, there: bool, what: str) -> None:
    if change is Change.INSERT and there:
        raise Refused(Code.ALREADY_EXISTS, f"{what} is there already")
    if change is not Change.INSERT and not there:
        raise not_found(f"there is no {what}")


def _replicas(messages: Iterable[Any], what: str) -> list[tuple[int, int]]:
    """(replication id, port) of each replica."""
    pairs: list[tuple[int, int]] = []
    for each in messages:
        kind = each.WhichOneof("port_kind")
        if kind is None:
            raise invalid(f"{what}: a replica without a port")
        if kind == "port":
            port = decode(each.port, _PORT_WIDTH, f"{what}: a replica's port")
        else:
            port = each.egress_port
        if (each.instance, port) in pairs:
            raise invalid(f"{what}: port {port} with instance {each.instance} is there twice")
        pairs.append((each.instance, port))
    return pairs


def _copy(entry: Any) -> Any:
    made = type(entry)()
    made.CopyFrom(entry)
    return made

"""A server, clients and messages for the tests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from switchagg.p4entities.matches import Exact, Range, Ternary
from switchagg.p4program import program as p4_program
from switchagg.p4runtime.program_source import Source, source_of
from switchagg.p4runtime.protos import p4runtime_pb2, status_pb2
from switchagg.p4runtime.server.errors import Code
from switchagg.p4runtime.server.model_device import ModelDevice
from switchagg.p4runtime.server.server import P4RuntimeServer
from tests.switchagg.p4runtime.plain_client import PlainClient

REPOSITORY = Path(__file__).parents[4]
V1MODEL = REPOSITORY / "p4" / "switchagg_v1model.p4"
TNA = REPOSITORY / "p4" / "switchagg_tna.p4"
INSERT, MODIFY, DELETE = 1, 2, 3


@contextlib.contextmanager
def served(program: Path | Source | None, **options: Any) -> Iterator[P4RuntimeServer]:
    """A server on any free port of loopback."""
    own = source_of(program) if isinstance(program, Path) else program
    with P4RuntimeServer(ModelDevice(own, **options), "127.0.0.1:0") as server:
        yield server


@contextlib.contextmanager
def connected(server: P4RuntimeServer, election_id: int = 1, device_id: int = 0) -> Iterator[PlainClient]:
    """A client that has said who it is."""
    with PlainClient(device_id, server.address, (0, election_id)) as client:
        yield client


def update(change: int, **entity: Any) -> Any:
    """An update of one entity."""
    return p4runtime_pb2.Update(type=change, entity=p4runtime_pb2.Entity(**entity))


def statuses(client: PlainClient, *updates: Any) -> list[tuple[int, str]]:
    """(code, message) of each update of a batch some of whose updates fail."""
    with pytest.raises(grpc.RpcError) as caught:
        client.write(*updates)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN, caught.value
    data = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    found = []
    for each in status_pb2.Status.FromString(data).details:
        one = p4runtime_pb2.Error()
        assert each.Unpack(one)
        found.append((one.canonical_code, one.message))
    return found


def refused(client: PlainClient, change: int, **entity: Any) -> tuple[Code, str]:
    """Code and message of the one update that fails."""
    ((code, message),) = statuses(client, update(change, **entity))
    return Code(code), message


def read(client: PlainClient, **entity: Any) -> list[Any]:
    """The entities that are read, of the kind that is asked for."""
    (kind,) = entity
    return [getattr(each, kind) for each in client.read(p4runtime_pb2.Entity(**entity))]


def canonical(number: int) -> bytes:
    """A number as a client writes it."""
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "big")


class Names:
    """Messages by name, from a P4Info."""

    def __init__(self, p4info: Any) -> None:
        self.p4info = p4info

    def of(self, kind: str, name: str) -> Any:
        """The object of this name, in full or its end."""
        found = [each for each in getattr(self.p4info, kind) if f".{each.preamble.name}".endswith(f".{name}")]
        assert len(found) == 1, (name, found)
        return found[0]

    def id(self, kind: str, name: str) -> int:
        """Its id."""
        number: int = self.of(kind, name).preamble.id
        return number

    def action(self, name: str, params: Mapping[str, int], table: Any = None) -> Any:
        """An action with its arguments. A table narrows the names down to those that it lists."""
        listed = None if table is None else {each.id for each in table.action_refs}
        found = [
            each
            for each in self.p4info.actions
            if f".{each.preamble.name}".endswith(f".{name}")
            and (listed is None or each.preamble.id in listed)
        ]
        assert len(found) == 1, (name, found)
        info = found[0]
        message = p4runtime_pb2.Action(action_id=info.preamble.id)
        for param in info.params:
            value = params[param.name] & ((1 << param.bitwidth) - 1)
            message.params.add(param_id=param.id, value=canonical(value))
        return message

    def entry(
        self,
        table: str,
        matches: Mapping[str, p4_program.Match],
        action: str | None = None,
        params: Mapping[str, int] | None = None,
        priority: int = 0,
    ) -> Any:
        """A table entry, its matches of the kinds that the table has."""
        info = self.of("tables", table)
        message = p4runtime_pb2.TableEntry(table_id=info.preamble.id, priority=priority)
        for field in info.match_fields:
            match = matches.get(field.name)
            if match is None or (isinstance(match, Ternary) and not match.mask):
                continue
            made = message.match.add(field_id=field.id)
            match match:
                case Exact(value):
                    kind = made.optional if field.match_type == field.OPTIONAL else made.exact
                    kind.value = canonical(value)
                case Ternary(value, mask) if field.match_type == field.LPM:
                    made.lpm.value, made.lpm.prefix_len = canonical(value), mask.bit_count()
                case Ternary(value, mask):
                    made.ternary.value, made.ternary.mask = canonical(value), canonical(mask)
                case Range(low, high):
                    made.range.low, made.range.high = canonical(low), canonical(high)
        if action is not None:
            message.action.action.CopyFrom(self.action(action, params or {}, info))
        return message


def entry_updates(names: Names, entries: p4_program.Entries, change: int = INSERT) -> list[Any]:
    """The updates that write, or remove, what `p4_entries` gives."""
    made = [
        update(
            change, table_entry=names.entry(each.table, each.matches, each.action, each.params, each.priority)
        )
        for each in entries.tables
    ]
    for group in entries.groups:
        engine = p4runtime_pb2.PacketReplicationEngineEntry()
        engine.multicast_group_entry.multicast_group_id = group.group
        for port, rid in group.replicas:
            engine.multicast_group_entry.replicas.add(egress_port=port, instance=rid)
        made.append(update(change, packet_replication_engine_entry=engine))
    return made


def packet_out(client: PlainClient, payload: bytes, metadata: Mapping[int, int]) -> None:
    """Sends a packet through the stream."""
    request = p4runtime_pb2.StreamMessageRequest()
    request.packet.payload = payload
    for number, value in metadata.items():
        request.packet.metadata.add(metadata_id=number, value=canonical(value))
    client.requests.put(request)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for a condition, and fails without it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.001)


def threads() -> set[str]:
    """The names of the threads that run."""
    return {each.name for each in threading.enumerate()}

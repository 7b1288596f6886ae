"""Every kind of entity: written, read back, refused, and seen in what packets do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from switchagg.p4entities.matches import Exact, Range, Ternary
from switchagg.p4runtime.program_source import Source, source_of
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.errors import Code
from switchagg.p4runtime.server.model_device import ModelDevice
from tests.switchagg.p4model.sources import TNA as TNA_SOURCE
from tests.switchagg.p4runtime.plain_client import PlainClient
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.harness import (
    DELETE,
    INSERT,
    MODIFY,
    Names,
    read,
    refused,
    update,
)
from tests.switchagg.p4runtime.server.programs import EVERYTHING

A, B = 0x020000000001, 0x020000000002


class Bench(NamedTuple):
    """A server with everything, its client, and the program's names."""

    device: ModelDevice
    client: PlainClient
    names: Names

    def send(
        self, to: int = B, sender: int = A, kind: int = 0x1234, port: int = 1, now: float | None = None
    ) -> list[tuple[int, bytes]]:
        """A packet's way through the switch, at a moment or now."""
        frame = to.to_bytes(6, "big") + sender.to_bytes(6, "big") + kind.to_bytes(2, "big") + bytes(50)
        return self.device.process(port, frame, self.device.now() if now is None else now)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("program") / "everything.p4"
    path.write_text(EVERYTHING)
    return source_of(path)


@pytest.fixture
def bench(program: Source) -> Iterator[Bench]:
    with harness.served(program) as server, harness.connected(server) as client:
        yield Bench(server.device, client, Names(client.p4info()))


def _l2(bench: Bench, action: str = "to", to: int = B, **params: int) -> Any:
    return bench.names.entry("l2", {"hdr.eth.to": Exact(to)}, action, params or {"port": 3})


# ---- tables ----


def test_an_entry_lives_from_insert_to_delete(bench: Bench) -> None:
    assert bench.send() == []
    bench.client.write(update(INSERT, table_entry=_l2(bench)))
    assert [port for port, _ in bench.send()] == [3]
    bench.client.write(update(MODIFY, table_entry=_l2(bench, port=300)))
    assert [port for port, _ in bench.send()] == [300]
    wanted = _l2(bench, port=300)
    wanted.ClearField("action")
    (found,) = read(bench.client, table_entry=wanted)
    assert found == _l2(bench, port=300)
    bench.client.write(update(DELETE, table_entry=wanted))
    assert bench.send() == []
    assert read(bench.client, table_entry=wanted) == []


def test_leading_zeros_are_taken_and_not_given(bench: Bench) -> None:
    entry = _l2(bench)
    entry.match[0].exact.value = bytes(9) + entry.match[0].exact.value
    entry.action.action.params[0].value = b"\0\0\0\x03"
    bench.client.write(update(INSERT, table_entry=entry))
    assert read(bench.client, table_entry=entry) == [_l2(bench)]
    assert refused(bench.client, INSERT, table_entry=_l2(bench))[0] is Code.ALREADY_EXISTS


def test_matches_of_each_kind_are_read_as_they_were_written(bench: Bench) -> None:
    rule = bench.names.entry(
        "rules",
        {
            "hdr.eth.from": Ternary(0x020000000000, 0xFF0000000000),
            "meta.ingress_port": Range(1, 20),
            "hdr.eth.type": Exact(0x1234),
        },
        "mark",
        {"n": 2},
        9,
    )
    anything = bench.names.entry("rules", {}, "nothing", {}, 1)
    prefix = bench.names.entry(
        "prefixes", {"hdr.eth.from": Ternary(0x020000000000, 0xFFFF00000000)}, "limit", {}
    )
    for each in (rule, anything, prefix):
        each.controller_metadata, each.metadata = 77, b"mine"
    bench.client.write(*(update(INSERT, table_entry=each) for each in (rule, anything, prefix)))
    assert read(bench.client, table_entry={"table_id": rule.table_id}) == [rule, anything]
    assert read(bench.client, table_entry={"table_id": rule.table_id, "priority": 1}) == [anything]
    assert read(bench.client, table_entry={"table_id": prefix.table_id}) == [prefix]
    bench.send(port=20)
    bench.send(port=21)
    assert bench.device.running is not None
    assert bench.device.running.switch.counter("seen").read(2)[0] == 1
    everything = read(bench.client, table_entry={})
    assert [each.table_id for each in everything if each.table_id == rule.table_id] == [rule.table_id] * 2
    assert read(bench.client, table_entry={"controller_metadata": 77}) == [rule, anything, prefix]
    assert read(bench.client, table_entry={"metadata": b"theirs"}) == []


def test_default_actions_are_set_and_reset(bench: Bench) -> None:
    default = p4runtime_pb2.TableEntry(table_id=bench.names.id("tables", "l2"), is_default_action=True)
    (before,) = read(bench.client, table_entry=default)
    assert before.action.action == bench.names.action("drop", {})
    changed = p4runtime_pb2.TableEntry()
    changed.CopyFrom(default)
    changed.action.action.CopyFrom(bench.names.action("to", {"port": 9}))
    bench.client.write(update(MODIFY, table_entry=changed))
    assert [port for port, _ in bench.send()] == [9]
    assert read(bench.client, table_entry=default) == [changed]
    bench.client.write(update(MODIFY, table_entry=default))
    assert bench.send() == []
    assert read(bench.client, table_entry=default) == [before]
    of_all = read(bench.client, table_entry={"is_default_action": True})
    assert len(of_all) == len(bench.names.p4info.tables)


def test_constant_entries_can_be_read_only(bench: Bench) -> None:
    table = bench.names.id("tables", "fixed")
    first, second = read(bench.client, table_entry={"table_id": table})
    assert first.is_const
    assert first.priority > second.priority > 0
    assert second.match[0].ternary.mask == b"\xff\x00"
    first.is_const = False
    code, message = refused(bench.client, DELETE, table_entry=first)
    assert (code, "constant" in message) == (Code.PERMISSION_DENIED, True)
    assert refused(bench.client, MODIFY, table_entry=first)[0] is Code.PERMISSION_DENIED
    new = bench.names.entry("fixed", {"hdr.eth.type": Ternary(1, 1)}, "nothing", {}, 5)
    assert refused(bench.client, INSERT, table_entry=new)[0] is Code.PERMISSION_DENIED
    assert len(read(bench.client, table_entry={"table_id": table})) == 2


def _wrong_entries(bench: Bench) -> Iterator[tuple[str, Any, Code, str]]:
    names = bench.names

    def changed(entry: Any, **fields: Any) -> Any:
        for name, value in fields.items():
            setattr(entry, name, value)
        return entry

    unknown = changed(_l2(bench), table_id=0x02FFFFFF)
    yield "table", unknown, Code.NOT_FOUND, "there is no table with id 0x2ffffff"
    yield "field", names.entry("l2", {}, "to", {"port": 1}), Code.INVALID_ARGUMENT, "hdr.eth.to is exact"
    wide = _l2(bench)
    wide.match[0].exact.value = b"\1" + bytes(6)
    yield "width", wide, Code.OUT_OF_RANGE, "match field hdr.eth.to: 0x1000000000000 does not fit 48 bits"
    empty = _l2(bench)
    empty.match[0].exact.value = b""
    yield "empty", empty, Code.OUT_OF_RANGE, "hdr.eth.to: the value is empty"
    kind = _l2(bench)
    kind.match[0].lpm.prefix_len = 3
    yield "kind", kind, Code.INVALID_ARGUMENT, "hdr.eth.to is exact, not lpm"
    other = _l2(bench)
    other.match[0].field_id = 9
    yield "field id", other, Code.INVALID_ARGUMENT, "no match field 9; it has hdr.eth.to 1"
    twice = _l2(bench)
    twice.match.add().CopyFrom(twice.match[0])
    yield "twice", twice, Code.INVALID_ARGUMENT, "hdr.eth.to is given twice"
    yield "priority", changed(_l2(bench), priority=1), Code.INVALID_ARGUMENT, "takes no priorities"
    yield "no priority", names.entry("rules", {}, "tell"), Code.INVALID_ARGUMENT, "priority 0 is not"
    outside = names.entry("rules", {"hdr.eth.from": Ternary(3, 1)}, "tell", {}, 1)
    yield "mask", outside, Code.INVALID_ARGUMENT, "0x3 has bits outside of its mask 0x1"
    whole = names.entry("rules", {"meta.ingress_port": Range(0, 511)}, "tell", {}, 1)
    yield "range", whole, Code.INVALID_ARGUMENT, "the whole range"
    turned = names.entry("rules", {"meta.ingress_port": Range(5, 4)}, "tell", {}, 1)
    yield "turned", turned, Code.INVALID_ARGUMENT, "5..4 is empty"
    prefix = names.entry("prefixes", {"hdr.eth.from": Ternary(1, 0xFF0000000000)}, "limit")
    yield "prefix", prefix, Code.INVALID_ARGUMENT, "bits after its prefix of 8"
    long = names.entry("prefixes", {"hdr.eth.from": Ternary(0, 1)}, "limit")
    long.match[0].lpm.prefix_len = 49
    yield "prefix length", long, Code.INVALID_ARGUMENT, "prefix length 49; accepted: 1..48"
    port = _l2(bench, port=512 % 512)
    port.action.action.params[0].value = b"\x02\x00"
    yield "param", port, Code.OUT_OF_RANGE, "action In.to, parameter port: 0x200 does not fit 9 bits"
    none = _l2(bench)
    del none.action.action.params[:]
    yield "no param", none, Code.INVALID_ARGUMENT, "parameter port is missing"
    more = _l2(bench)
    more.action.action.params.add(param_id=2, value=b"\1")
    yield "more", more, Code.INVALID_ARGUMENT, "no parameter 2; it has port 1"
    foreign = _l2(bench)
    foreign.action.action.CopyFrom(names.action("tell", {}))
    yield "action", foreign, Code.INVALID_ARGUMENT, "table In.l2 does not list action In.tell"
    nowhere = _l2(bench)
    nowhere.action.action.action_id = 0x01FFFFFF
    yield "no action", nowhere, Code.INVALID_ARGUMENT, "there is no action with id 0x1ffffff"
    scope = _l2(bench)
    scope.action.action.CopyFrom(names.action("drop", {}))
    yield "scope", scope, Code.PERMISSION_DENIED, "In.drop is for the default only"
    bare = _l2(bench)
    bare.ClearField("action")
    yield "bare", bare, Code.INVALID_ARGUMENT, "without an action"
    member = _l2(bench)
    member.action.action_profile_member_id = 1
    yield "member", member, Code.INVALID_ARGUMENT, "takes an action, not action_profile_member_id"
    shared = names.entry("shared", {"hdr.eth.type": Exact(1)}, "out_by", {"port": 1})
    yield "shared", shared, Code.INVALID_ARGUMENT, "takes members or groups"
    shared = names.entry("shared", {"hdr.eth.type": Exact(1)})
    shared.action.action_profile_member_id = 1
    yield "no member", shared, Code.NOT_FOUND, "has no member 1"
    yield "old", changed(_l2(bench), idle_timeout_ns=1), Code.UNIMPLEMENTED, "do not time out"
    yield "const", changed(_l2(bench), is_const=True), Code.INVALID_ARGUMENT, "is_const"
    metered = _l2(bench)
    metered.meter_config.cir = 1
    yield "meter", metered, Code.INVALID_ARGUMENT, "has no direct meter"
    counted = names.entry("rules", {}, "tell", {}, 1)
    counted.counter_data.packet_count = 1
    yield "counter", counted, Code.INVALID_ARGUMENT, "has no direct counter"


def test_wrong_entries_are_refused_each_by_its_error(bench: Bench) -> None:
    before = read(bench.client, table_entry={})
    cases = list(_wrong_entries(bench))
    found = [
        status
        for each in cases
        for status in harness.statuses(bench.client, update(INSERT, table_entry=each[1]))
    ]
    for (what, _, code, text), (given, message) in zip(cases, found, strict=True):
        assert (Code(given), text in message) == (code, True), f"{what}: {Code(given).name}: {message}"
    assert read(bench.client, table_entry={}) == before


def test_entries_that_are_not_there_and_a_full_table(bench: Bench) -> None:
    assert refused(bench.client, MODIFY, table_entry=_l2(bench))[0] is Code.NOT_FOUND
    assert refused(bench.client, DELETE, table_entry=_l2(bench))[0] is Code.NOT_FOUND
    bench.client.write(*(update(INSERT, table_entry=_l2(bench, to=each)) for each in range(4)))
    code, message = refused(bench.client, INSERT, table_entry=_l2(bench, to=9))
    assert (code, "holds 4 entries" in message) == (Code.RESOURCE_EXHAUSTED, True)


def test_default_entries_that_cannot_be(bench: Bench) -> None:
    default = p4runtime_pb2.TableEntry(table_id=bench.names.id("tables", "l2"), is_default_action=True)
    assert refused(bench.client, INSERT, table_entry=default)[0] is Code.INVALID_ARGUMENT
    assert refused(bench.client, DELETE, table_entry=default)[0] is Code.INVALID_ARGUMENT
    default.action.action.CopyFrom(bench.names.action("tell", {}))
    assert refused(bench.client, MODIFY, table_entry=default)[0] is Code.INVALID_ARGUMENT
    default.table_id = bench.names.id("tables", "prefixes")
    default.action.action.CopyFrom(bench.names.action("limit", {}))
    code, message = refused(bench.client, MODIFY, table_entry=default)
    assert (code, "constant default" in message) == (Code.PERMISSION_DENIED, True)
    rules = p4runtime_pb2.TableEntry(table_id=bench.names.id("tables", "rules"), is_default_action=True)
    rules.action.action.CopyFrom(bench.names.action("mark", {"n": 1}))
    code, message = refused(bench.client, MODIFY, table_entry=rules)
    assert (code, "is for entries only" in message) == (Code.PERMISSION_DENIED, True)


def test_a_batch_goes_on_after_an_error(bench: Bench) -> None:
    bad = _l2(bench, to=1)
    bad.match[0].exact.value = b""
    found = harness.statuses(
        bench.client,
        update(INSERT, table_entry=_l2(bench, to=1)),
        update(INSERT, table_entry=bad),
        update(0, table_entry=_l2(bench, to=3)),
        update(INSERT, table_entry=_l2(bench, to=2)),
        p4runtime_pb2.Update(type=INSERT),
    )
    assert [code for code, _ in found] == [
        0,
        Code.OUT_OF_RANGE,
        Code.INVALID_ARGUMENT,
        0,
        Code.INVALID_ARGUMENT,
    ]
    assert len(read(bench.client, table_entry={"table_id": bad.table_id})) == 2
    assert refused(bench.client, INSERT, table_entry=bad)[0] is Code.OUT_OF_RANGE


@pytest.mark.parametrize("count", [30, 100, 300])
def test_the_errors_of_large_batches_fit_into_a_reply(bench: Bench, count: int) -> None:
    updates = [update(DELETE, table_entry=_l2(bench, to=each)) for each in range(count)]
    assert [code for code, _ in harness.statuses(bench.client, *updates)] == [Code.NOT_FOUND] * count


def test_a_batch_that_is_too_large_for_details_has_a_message(bench: Bench) -> None:
    request = p4runtime_pb2.WriteRequest(
        updates=[update(DELETE, table_entry=_l2(bench, to=each)) for each in range(1000)]
    )
    request.election_id.low = 1
    with pytest.raises(grpc.RpcError) as caught:
        bench.client.stub.Write(request)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert "1000 of 1000 updates failed; update 0: NOT_FOUND" in caught.value.details()


# ---- counters and meters ----


def test_direct_counters_are_read_in_entries_and_by_themselves(bench: Bench) -> None:
    entry = _l2(bench)
    bench.client.write(update(INSERT, table_entry=entry))
    for _ in range(3):
        bench.send()
    bench.send(to=0x99)
    entry.ClearField("action")
    (plain,) = read(bench.client, table_entry=entry)
    assert not plain.HasField("counter_data")
    entry.counter_data.SetInParent()
    (counted,) = read(bench.client, table_entry=entry)
    # The counter counts packets, and says no bytes.
    assert (counted.counter_data.packet_count, counted.counter_data.byte_count) == (3, 0)
    table = {"table_entry": {"table_id": entry.table_id}}
    (found,) = read(bench.client, direct_counter_entry=table)
    assert found.data.packet_count == 3
    (missed,) = read(
        bench.client,
        direct_counter_entry={"table_entry": {"table_id": entry.table_id, "is_default_action": True}},
    )
    # v1model counts hits only.
    assert missed.data.packet_count == 0
    missed.data.packet_count = 7
    bench.client.write(update(MODIFY, direct_counter_entry=missed))
    assert read(bench.client, direct_counter_entry={"table_entry": missed.table_entry}) == [missed]
    found.data.packet_count = 100
    bench.client.write(update(MODIFY, direct_counter_entry=found))
    bench.send()
    assert read(bench.client, direct_counter_entry={"table_entry": {}})[0].data.packet_count == 101
    assert refused(bench.client, INSERT, direct_counter_entry=found)[0] is Code.INVALID_ARGUMENT
    # A new action keeps the count.
    bench.client.write(update(MODIFY, table_entry=_l2(bench, port=8)))
    assert read(bench.client, direct_counter_entry=table)[0].data.packet_count == 101


def test_indirect_counters_by_index_and_all(bench: Bench) -> None:
    bench.client.write(
        update(INSERT, table_entry=bench.names.entry("rules", {}, "mark", {"n": 5}, 1)),
    )
    bench.send()
    number = bench.names.id("counters", "seen")
    (cell,) = read(bench.client, counter_entry={"counter_id": number, "index": {"index": 5}})
    assert (cell.data.packet_count, cell.data.byte_count) == (1, 64)
    cells = read(bench.client, counter_entry={"counter_id": number})
    assert [each.index.index for each in cells] == list(range(8))
    assert read(bench.client, counter_entry={}) == cells
    bench.client.write(update(MODIFY, counter_entry={"counter_id": number, "index": {"index": 5}}))
    assert (
        read(bench.client, counter_entry={"counter_id": number, "index": {"index": 5}})[0].data.packet_count
        == 0
    )
    code, message = refused(bench.client, MODIFY, counter_entry={"counter_id": number, "index": {"index": 8}})
    assert (code, "In.seen: there is no index 8" in message) == (Code.OUT_OF_RANGE, True)
    assert refused(bench.client, MODIFY, counter_entry={"counter_id": 5})[0] is Code.NOT_FOUND


def test_meters_mark_packets(bench: Bench) -> None:
    number = bench.names.id("meters", "rates")
    asked = {"meter_id": number, "index": {"index": 1}}
    config = {"cir": 1, "cburst": 1, "pir": 1, "pburst": 2}
    bench.client.write(
        update(MODIFY, meter_entry={**asked, "config": config}),
        update(INSERT, table_entry=bench.names.entry("rules", {}, "mark", {"n": 1}, 1)),
        update(INSERT, table_entry=_l2(bench)),
    )
    (found,) = read(bench.client, meter_entry=asked)
    assert found.config == p4runtime_pb2.MeterConfig(**config)
    # Two packets' burst; the third of a moment is red, and the program drops it.
    now = bench.device.now()
    assert [len(bench.send(now=now)) for _ in range(3)] == [1, 1, 0]
    bench.client.write(update(MODIFY, meter_entry=asked))
    assert not read(bench.client, meter_entry=asked)[0].HasField("config")
    assert len(bench.send()) == 1
    bad = {**asked, "config": {**config, "cir": 2}}
    assert "above its peak rate" in refused(bench.client, MODIFY, meter_entry=bad)[1]


def test_direct_meters_belong_to_entries(bench: Bench) -> None:
    entry = bench.names.entry("prefixes", {"hdr.eth.from": Ternary(A, 0xFFFFFFFFFFFF)}, "limit")
    entry.meter_config.cir, entry.meter_config.pir = 0, 0
    bench.client.write(update(INSERT, table_entry=entry), update(INSERT, table_entry=_l2(bench)))
    assert bench.send() == []
    (found,) = read(bench.client, direct_meter_entry={"table_entry": {"table_id": entry.table_id}})
    assert found.HasField("config")
    bench.client.write(update(MODIFY, direct_meter_entry={"table_entry": found.table_entry}))
    assert len(bench.send()) == 1


# ---- replication ----


def _group(number: int, *replicas: tuple[int, int]) -> Any:
    group = p4runtime_pb2.MulticastGroupEntry(multicast_group_id=number)
    for port, instance in replicas:
        group.replicas.add(egress_port=port, instance=instance)
    return p4runtime_pb2.PacketReplicationEngineEntry(multicast_group_entry=group)


def test_multicast_groups(bench: Bench) -> None:
    bench.client.write(
        update(INSERT, packet_replication_engine_entry=_group(7, (1, 0), (2, 5))),
        update(INSERT, table_entry=_l2(bench, "copies", group=7)),
    )
    assert [port for port, _ in bench.send()] == [1, 2]
    bench.client.write(update(MODIFY, packet_replication_engine_entry=_group(7, (4, 1))))
    assert [port for port, _ in bench.send()] == [4]
    engine = "packet_replication_engine_entry"
    assert read(bench.client, **{engine: _group(0)}) == [_group(7, (4, 1))]
    assert read(bench.client, **{engine: _group(8)}) == []
    assert refused(bench.client, INSERT, **{engine: _group(7)})[0] is Code.ALREADY_EXISTS
    assert refused(bench.client, MODIFY, **{engine: _group(8)})[0] is Code.NOT_FOUND
    assert refused(bench.client, INSERT, **{engine: _group(0)})[0] is Code.INVALID_ARGUMENT
    assert "is there twice" in refused(bench.client, INSERT, **{engine: _group(8, (1, 1), (1, 1))})[1]
    bench.client.write(update(DELETE, **{engine: _group(7)}))
    assert bench.send() == []


def test_clone_sessions(bench: Bench) -> None:
    session = p4runtime_pb2.PacketReplicationEngineEntry()
    session.clone_session_entry.session_id = 5
    session.clone_session_entry.packet_length_bytes = 20
    session.clone_session_entry.replicas.add(egress_port=8, instance=1)
    session.clone_session_entry.replicas.add(egress_port=9, instance=1)
    mirror = bench.names.entry("rules", {}, "mirror", {}, 1)
    bench.client.write(
        update(INSERT, packet_replication_engine_entry=session),
        update(INSERT, table_entry=mirror),
        update(INSERT, table_entry=_l2(bench)),
    )
    assert sorted((port, len(data)) for port, data in bench.send()) == [(3, 64), (8, 20), (9, 20)]
    assert read(bench.client, packet_replication_engine_entry={}) == [session]
    session.clone_session_entry.class_of_service = 1
    assert refused(bench.client, MODIFY, packet_replication_engine_entry=session)[0] is Code.UNIMPLEMENTED
    bench.client.write(update(DELETE, packet_replication_engine_entry=session))
    assert [port for port, _ in bench.send()] == [3]


# ---- action profiles ----


def _member(bench: Bench, number: int, port: int) -> Any:
    member = p4runtime_pb2.ActionProfileMember(
        action_profile_id=bench.names.id("action_profiles", "choices"), member_id=number
    )
    member.action.CopyFrom(bench.names.action("out_by", {"port": port}))
    return member


def _shared(bench: Bench, **action: Any) -> Any:
    entry = bench.names.entry("shared", {"hdr.eth.type": Exact(0x1234)})
    entry.action.CopyFrom(p4runtime_pb2.TableAction(**action))
    return entry


def test_members_groups_and_their_entries(bench: Bench) -> None:
    profile = bench.names.id("action_profiles", "choices")
    group = p4runtime_pb2.ActionProfileGroup(action_profile_id=profile, group_id=3, max_size=8)
    group.members.add(member_id=1, weight=1)
    group.members.add(member_id=2, weight=3)
    client = bench.client
    members = [_member(bench, 1, 11), _member(bench, 2, 12)]
    client.write(*(update(INSERT, action_profile_member=each) for each in members))
    client.write(update(INSERT, action_profile_group=group))
    client.write(update(INSERT, table_entry=_shared(bench, action_profile_group_id=3)))
    ports = {port for sender in range(64) for port, _ in bench.send(sender=sender)}
    assert ports == {11, 12}
    assert read(client, action_profile_member={}) == members
    assert read(client, action_profile_member={"action_profile_id": profile, "member_id": 2}) == members[1:]
    assert read(client, action_profile_group={}) == [group]
    (entry,) = read(client, table_entry={"table_id": bench.names.id("tables", "shared")})
    assert entry == _shared(bench, action_profile_group_id=3)
    assert refused(client, DELETE, action_profile_member=members[0])[0] is Code.FAILED_PRECONDITION
    assert refused(client, DELETE, action_profile_group=group)[0] is Code.FAILED_PRECONDITION
    client.write(update(MODIFY, table_entry=_shared(bench, action_profile_member_id=1)))
    assert {port for port, _ in bench.send()} == {11}
    client.write(update(MODIFY, action_profile_member=_member(bench, 1, 20)))
    assert {port for port, _ in bench.send()} == {20}
    client.write(update(DELETE, action_profile_group=group))
    assert refused(client, DELETE, action_profile_member=members[0])[0] is Code.FAILED_PRECONDITION
    client.write(update(DELETE, table_entry=_shared(bench)), update(DELETE, action_profile_member=members[0]))
    assert read(client, action_profile_member={}) == members[1:]
    group.members[0].member_id, group.members[0].weight = 2, 2**31 - 1
    del group.members[1]
    code, message = refused(client, INSERT, action_profile_group=group)
    assert (code, "weights of 2147483647 in all; accepted: 8" in message) == (Code.RESOURCE_EXHAUSTED, True)
    group.members[0].member_id = 9
    code, message = refused(client, INSERT, action_profile_group=group)
    assert (code, "no member 9" in message) == (Code.NOT_FOUND, True)


def test_action_sets(bench: Bench) -> None:
    chosen = p4runtime_pb2.ActionProfileActionSet()
    for port in (30, 31):
        chosen.action_profile_actions.add(action=bench.names.action("out_by", {"port": port}), weight=1)
    entry = _shared(bench, action_profile_action_set=chosen)
    bench.client.write(update(INSERT, table_entry=entry))
    assert {port for sender in range(64) for port, _ in bench.send(sender=sender)} == {30, 31}
    assert read(bench.client, table_entry={"table_id": entry.table_id}) == [entry]


# ---- the rest ----


def test_value_sets(bench: Bench) -> None:
    entry = p4runtime_pb2.ValueSetEntry(value_set_id=bench.names.id("value_sets", "special"))
    bench.client.write(update(INSERT, table_entry=_l2(bench)))
    assert len(bench.send(kind=0x7777)) == 1
    entry.members.add().match.add(field_id=1).exact.value = b"\x77\x77"
    bench.client.write(update(MODIFY, value_set_entry=entry))
    assert bench.send(kind=0x7777) == []
    assert read(bench.client, value_set_entry={}) == [entry]
    for _ in range(4):
        entry.members.add().match.add(field_id=1).exact.value = b"\1"
    assert refused(bench.client, MODIFY, value_set_entry=entry)[0] is Code.RESOURCE_EXHAUSTED


def test_digests_go_to_the_primary_and_are_acknowledged(bench: Bench) -> None:
    client, number = bench.client, bench.names.id("digests", "seen_t")
    client.write(update(INSERT, table_entry=bench.names.entry("rules", {}, "tell", {}, 1)))
    bench.send()  # switched off: nobody hears of it
    entry = {"digest_id": number, "config": {"ack_timeout_ns": 60_000_000_000, "max_list_size": 1}}
    client.write(update(INSERT, digest_entry=entry))
    assert read(client, digest_entry={}) == [p4runtime_pb2.DigestEntry(**entry)]
    bench.send(port=300)
    first = client.drained("digest").digest
    members = first.data[0].struct.members
    assert [each.bitstring for each in members] == [b"\x02\0\0\0\0\x01", b"\x01\x2c"]
    bench.send(port=300)  # the same, not acknowledged: not again
    bench.send(port=301)
    assert client.drained("digest").digest.data[0].struct.members[1].bitstring == b"\x01\x2d"
    acknowledged = p4runtime_pb2.StreamMessageRequest()
    acknowledged.digest_ack.digest_id, acknowledged.digest_ack.list_id = number, first.list_id
    client.requests.put(acknowledged)
    # The stream is in order: once this is answered, the acknowledgement is there.
    harness.packet_out(client, b"", {99: 0})
    assert client.drained("error").error.canonical_code == Code.INVALID_ARGUMENT
    bench.send(port=300)
    assert client.drained("digest").digest.data == first.data
    client.write(update(DELETE, digest_entry={"digest_id": number}))
    bench.send(port=302)
    # The stream is in order: a digest would have come before the answer to this.
    harness.packet_out(client, b"", {99: 0})
    client.drained("error")
    assert client.waiting("digest") == 0
    assert refused(client, DELETE, digest_entry={"digest_id": number})[0] is Code.NOT_FOUND


def test_what_is_not_there(bench: Bench) -> None:
    register = {"register_id": bench.names.id("registers", "memory")}
    code, message = refused(bench.client, MODIFY, register_entry=register)
    assert (code, "registers are not read or written" in message) == (Code.UNIMPLEMENTED, True)
    assert refused(bench.client, INSERT, extern_entry={})[0] is Code.UNIMPLEMENTED


def test_a_tofino_s_digest_is_switched_on_and_comes(tmp_path: Path) -> None:
    path = tmp_path / "digest.p4"
    learn = "Digest<pair_t>() learned; apply { learned.pack({7, 8}); packet.emit(hdr); }"
    ingress = "apply { for_tm.ucast_egress_port = 1; for_deparser.digest_type = 1; }"
    path.write_text(TNA_SOURCE.format(ingress=ingress).replace("apply { packet.emit(hdr); }", learn, 1))
    with harness.served(path) as server, harness.connected(server) as client:
        (digest,) = client.p4info().digests
        assert digest.preamble.name == "IngressDeparser.learned"
        entry = {"digest_id": digest.preamble.id, "config": {"max_list_size": 1}}
        client.write(harness.update(harness.INSERT, digest_entry=entry))
        server.device.process(1, bytes(64), 0.0)
        found = client.drained("digest").digest
        assert found.digest_id == digest.preamble.id
        assert [each.bitstring for each in found.data[0].struct.members] == [b"\x07", b"\x08"]

"""The calls: clients that come, go and compete, pipelines, packets, and the end of a server."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from switchagg.errors import SwitchError, UsageError
from switchagg.p4entities.matches import Exact
from switchagg.p4runtime.program_source import Source, source_of
from switchagg.p4runtime.protos import p4runtime_pb2, p4runtime_pb2_grpc
from switchagg.p4runtime.server.errors import Code
from switchagg.p4runtime.server.model_device import ModelDevice
from switchagg.p4runtime.server.server import P4RuntimeServer
from tests.switchagg.p4runtime.plain_client import PlainClient
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.server.harness import (
    INSERT,
    Names,
    read,
    until,
    update,
)
from tests.switchagg.p4runtime.server.programs import EVERYTHING

Config = p4runtime_pb2.SetForwardingPipelineConfigRequest


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("program") / "everything.p4"
    path.write_text(EVERYTHING)
    return source_of(path)


@pytest.fixture
def server(program: Source) -> Iterator[P4RuntimeServer]:
    with harness.served(program) as made:
        yield made


@pytest.fixture
def empty() -> Iterator[P4RuntimeServer]:
    with harness.served(None) as made:
        yield made


def _code(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def _entry(names: Names, to: int = 1, port: int = 3) -> Any:
    return update(INSERT, table_entry=names.entry("l2", {"hdr.eth.to": Exact(to)}, "to", {"port": port}))


def _stream(server: P4RuntimeServer, *requests: Any) -> tuple[list[Any], grpc.StatusCode, str]:
    """Returns the answers of a stream to requests, until it ends by itself."""
    with grpc.insecure_channel(server.address) as channel:
        waiting: queue.Queue[Any] = queue.Queue()
        for each in requests:
            waiting.put(each)
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        stream = stub.StreamChannel(iter(waiting.get, None), timeout=60)
        answers = []
        with contextlib.suppress(grpc.RpcError):
            answers.extend(stream)
        waiting.put(None)
        return answers, stream.code(), stream.details()


def _hello(election_id: int | None = 1, device_id: int = 0, role: str = "") -> Any:
    request = p4runtime_pb2.StreamMessageRequest()
    request.arbitration.device_id = device_id
    if election_id is not None:
        request.arbitration.election_id.low = election_id
    if role:
        request.arbitration.role.name = role
    return request


# ---- arbitration ----


def test_the_version(server: P4RuntimeServer) -> None:
    with harness.connected(server) as client:
        assert client.version() == "1.4.1"


def test_two_clients_compete(server: P4RuntimeServer) -> None:
    with harness.connected(server, 1) as first:
        names = Names(first.p4info())
        first.write(_entry(names, 1))
        with harness.connected(server, 2) as second:
            demoted = first.drained("arbitration").arbitration
            assert (demoted.status.code, demoted.election_id.low) == (Code.ALREADY_EXISTS, 2)
            code, message = _code(lambda: first.write(_entry(names, 2)))
            assert (code, "election id 1 is not" in message) == (grpc.StatusCode.PERMISSION_DENIED, True)
            assert len(read(first, table_entry={"table_id": names.id("tables", "l2")})) == 1
            second.write(_entry(names, 2))
            harness.packet_out(first, b"", {})
            assert first.drained("error").error.canonical_code == Code.PERMISSION_DENIED
        gone = first.drained("arbitration").arbitration
        assert (gone.status.code, gone.election_id.low) == (Code.NOT_FOUND, 2)
        # Election ids never go down: the first one is primary again by one that is as large.
        assert _code(lambda: first.write(_entry(names, 3)))[0] is grpc.StatusCode.PERMISSION_DENIED
        first.claim(0, 2)
        assert first.drained("arbitration").arbitration.status.code == Code.OK
        first.write(_entry(names, 3))


def test_a_client_comes_back_to_what_it_wrote(server: P4RuntimeServer) -> None:
    with harness.connected(server, 7) as client:
        names = Names(client.p4info())
        client.write(_entry(names))
    for _ in range(3):
        with harness.connected(server, 7) as client:
            (found,) = read(client, table_entry={"table_id": names.id("tables", "l2")})
            assert found == _entry(names).entity.table_entry


@pytest.mark.parametrize(
    ("requests", "code", "text"),
    [
        ([_hello(device_id=3)], grpc.StatusCode.NOT_FOUND, "there is no device 3; this is device 0"),
        ([_hello(role="half")], grpc.StatusCode.NOT_FOUND, "no role half"),
        ([_hello(9)], grpc.StatusCode.INVALID_ARGUMENT, "election id 9 belongs to another"),
        (
            [p4runtime_pb2.StreamMessageRequest(packet=p4runtime_pb2.PacketOut())],
            grpc.StatusCode.FAILED_PRECONDITION,
            "begins with an arbitration",
        ),
        ([_hello(), _hello(device_id=1)], grpc.StatusCode.FAILED_PRECONDITION, "stays with its device"),
    ],
)
def test_streams_that_are_refused(
    server: P4RuntimeServer, requests: list[Any], code: grpc.StatusCode, text: str
) -> None:
    with harness.connected(server, 9) as client:
        _, found, details = _stream(server, *requests)
        assert (found, text in details) == (code, True), details
        names = Names(client.p4info())
        client.write(_entry(names))


def test_more_clients_than_there_is_room_for(server: P4RuntimeServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        waiting: queue.Queue[Any] = queue.Queue()
        streams = []
        for _ in range(32):
            mine: queue.Queue[Any] = queue.Queue()
            mine.put(_hello(None))
            streams.append(stub.StreamChannel(iter(mine.get, None)))
            assert next(streams[-1]).arbitration.status.code == Code.NOT_FOUND
        waiting.put(_hello(None))
        last = stub.StreamChannel(iter(waiting.get, None))
        assert _code(lambda: next(last))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        # Calls that are no streams still find a thread.
        stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=60)
        for each in streams:
            each.cancel()


# ---- pipelines ----


def test_before_a_pipeline_there_is_nothing(empty: P4RuntimeServer) -> None:
    with harness.connected(empty) as client:
        assert not client.p4info().tables
        read_all = p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry())
        assert _code(lambda: list(client.read(read_all)))[0] is grpc.StatusCode.FAILED_PRECONDITION
        assert _code(client.write)[0] is grpc.StatusCode.FAILED_PRECONDITION
        harness.packet_out(client, b"", {})
        assert client.drained("error").error.canonical_code == Code.FAILED_PRECONDITION
        assert empty.device.process(1, bytes(64), 0.0) == []


@pytest.mark.parametrize("form", ["text", "source", "program"])
def test_a_program_is_pushed_in_each_form(empty: P4RuntimeServer, program: Source, form: str) -> None:
    config = {
        "text": EVERYTHING.encode(),
        "source": json.dumps({"source": EVERYTHING, "defines": ["UNUSED=1"]}).encode(),
        "program": program.config,
    }[form]
    with harness.connected(empty) as client:
        client.push(program.p4info, config)
        assert client.p4info() == program.p4info
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(response_type=3)
        answer = client.stub.GetForwardingPipelineConfig(request).config
        assert (answer.p4_device_config, answer.HasField("p4info")) == (config, False)
        client.write(_entry(Names(program.p4info)))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (b"", "p4_device_config is empty, and the server was started without --program"),
        (b'{"program_id": 1, "parsers": []}', "such as bmv2's: this switch runs P4 sources"),
        (b"\x7fELF\xff\xfe", "neither text nor JSON"),
        (b'{"program": "/nowhere/x.p4"}', "/nowhere/x.p4"),
        (b'{"source": "x", "program": "y"}', 'takes "source" or "program"'),
        (b'{"source": "x", "defines": "A"}', '"defines" is a list of strings'),
        (b"control main {", "program.p4:1:"),
        (EVERYTHING.replace("size = 4;", "size = 5;").encode(), "In.l2 (tables) differs"),
    ],
)
def test_configs_that_are_refused(empty: P4RuntimeServer, program: Source, config: bytes, text: str) -> None:
    with harness.connected(empty) as client:
        code, details = _code(lambda: client.push(program.p4info, config))
        assert (code, text in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
        assert empty.device.running is None


def test_any_config_goes_with_the_program_that_the_server_has(
    server: P4RuntimeServer, program: Source
) -> None:
    with harness.connected(server) as client:
        names = Names(program.p4info)
        for config in (b"", b'{"program_id": 1}', b"\x7fELF\xff"):
            client.write(_entry(names))
            client.push(program.p4info, config)
            # A commit begins with tables as the program has them.
            assert read(client, table_entry={"table_id": names.id("tables", "l2")}) == []
        other = type(program.p4info)()
        other.CopyFrom(program.p4info)
        del other.tables[0]
        code, details = _code(lambda: client.push(other, b""))
        assert (code, "it lacks In." in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_the_actions_of_a_push(server: P4RuntimeServer, program: Source) -> None:
    names, info = Names(program.p4info), program.p4info
    table = {"table_id": names.id("tables", "l2")}
    with harness.connected(server) as client:
        client.write(_entry(names, 0x020000000002))
        frame = b"\x02\0\0\0\0\x02" + bytes(58)

        def ports() -> list[int]:
            return [port for port, _ in server.device.process(1, frame, 0.0)]

        client.push(info, b"", action=Config.VERIFY)
        assert len(read(client, table_entry=table)) == 1
        assert _code(lambda: client.push(info, b"", action=Config.COMMIT, with_config=False))[0] is (
            grpc.StatusCode.NOT_FOUND
        )
        client.push(info, b"", action=Config.VERIFY_AND_SAVE, cookie=5)
        # Writes are for what was saved; packets still go through what runs.
        assert read(client, table_entry=table) == []
        client.write(_entry(names, 0x020000000002, port=9))
        assert ports() == [3]
        assert _code(lambda: client.push(info, b"", action=Config.COMMIT))[0] is (
            grpc.StatusCode.INVALID_ARGUMENT
        )
        client.push(info, b"", action=Config.COMMIT, with_config=False)
        assert ports() == [9]
        client.push(info, b"x", action=Config.RECONCILE_AND_COMMIT, cookie=6)
        assert ports() == [9]
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(response_type=1)
        answer = client.stub.GetForwardingPipelineConfig(request).config
        assert (answer.cookie.cookie, answer.p4_device_config, len(answer.p4info.tables)) == (6, b"", 0)
        other = EVERYTHING.replace("hdr.to_client.why = why;", "hdr.to_client.why = why + 1;").encode()
        code, details = _code(lambda: client.push(info, other, action=Config.RECONCILE_AND_COMMIT))
        assert (code, "another program" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert ports() == [9]
        assert _code(lambda: client.push(info, b"", action=Config.UNSPECIFIED))[0] is (
            grpc.StatusCode.INVALID_ARGUMENT
        )


def test_calls_for_nobody(server: P4RuntimeServer) -> None:
    with harness.connected(server) as client:
        request = p4runtime_pb2.WriteRequest(device_id=8)
        assert _code(lambda: client.stub.Write(request))[0] is grpc.StatusCode.NOT_FOUND
        request = p4runtime_pb2.WriteRequest(role="half")
        assert _code(lambda: client.stub.Write(request))[0] is grpc.StatusCode.NOT_FOUND
        request = p4runtime_pb2.WriteRequest()
        assert _code(lambda: client.stub.Write(request))[0] is grpc.StatusCode.PERMISSION_DENIED
        request.atomicity, request.election_id.low = request.ROLLBACK_ON_ERROR, 1
        assert _code(lambda: client.stub.Write(request))[0] is grpc.StatusCode.UNIMPLEMENTED
        asked = p4runtime_pb2.ReadRequest(device_id=8)
        assert _code(lambda: list(client.stub.Read(asked)))[0] is grpc.StatusCode.NOT_FOUND
        info = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=8)
        assert _code(lambda: client.stub.GetForwardingPipelineConfig(info))[0] is grpc.StatusCode.NOT_FOUND


# ---- packets ----


def test_packets_out_and_in(server: P4RuntimeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, bytes]] = []
    monkeypatch.setattr(server, "_interfaces", _Wire(sent))
    with harness.connected(server) as client:
        names = Names(client.p4info())
        frame = bytes(range(64))
        harness.packet_out(client, frame, {1: 300, 2: 0})
        client.write(
            update(INSERT, table_entry=names.entry("l2", {"hdr.eth.to": Exact(1)}, "up", {"why": 99}))
        )
        until(lambda: sent == [(300, frame)])
        packet = b"\0\0\0\0\0\1" + bytes(58)
        assert server.device.process(257, packet, 0.0) == []
        got = client.drained("packet").packet
        assert got.payload == packet
        assert {each.metadata_id: each.value for each in got.metadata} == {1: b"\x01\x01", 2: b"\x63"}
        counters = server.device.counters
        assert (counters["packet_ins"], counters["packet_outs"]) == (1, 1)


@pytest.mark.parametrize(
    ("metadata", "code", "text"),
    [
        ({1: 3}, Code.INVALID_ARGUMENT, "metadata pad is missing"),
        ({1: 3, 2: 0, 4: 1}, Code.INVALID_ARGUMENT, "has no metadata 4; it has port 1, pad 2"),
        ({1: 512, 2: 0}, Code.OUT_OF_RANGE, "metadata port: 0x200 does not fit 9 bits"),
    ],
)
def test_packets_out_that_are_refused(
    server: P4RuntimeServer, metadata: dict[int, int], code: Code, text: str
) -> None:
    with harness.connected(server) as client:
        harness.packet_out(client, b"payload", metadata)
        error = client.drained("error").error
        assert (error.canonical_code, text in error.message) == (code, True), error.message
        assert error.packet_out.packet_out.payload == b"payload"
        assert server.device.counters["packet_outs"] == 0


class _Wire:
    """Takes the frames that interfaces would send."""

    failure = None

    def __init__(self, sent: list[tuple[int, bytes]]) -> None:
        self.send = sent.extend

    def close(self) -> None:
        """Nothing is open."""


# ---- servers ----


def test_a_server_that_stops_ends_its_streams(program: Source) -> None:
    with harness.served(program) as server:
        client = PlainClient(0, server.address, (0, 1))
    client.receiver.join(timeout=60)
    assert not client.receiver.is_alive()
    client.close()
    until(lambda: not any(name.startswith("p4runtime") for name in harness.threads()))


def test_a_port_is_served_once(server: P4RuntimeServer) -> None:
    second = P4RuntimeServer(ModelDevice(), server.address)
    with pytest.raises(SwitchError, match="the port is in use"):
        second.start()
    with pytest.raises(SwitchError, match="started already"):
        server.start()
    with pytest.raises(UsageError, match="accepted: HOST:PORT"):
        P4RuntimeServer(ModelDevice(), "9559")


def test_a_program_with_a_string_in_a_packet_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "strings.p4"
    named = '@p4runtime_translation("example.com/p", string) type bit<9> name_t;'
    marked = named + '\n@controller_header("packet_out")'
    path.write_text(
        EVERYTHING.replace('@controller_header("packet_out")', marked)
        .replace("header out_h { bit<9> port;", "header out_h { name_t port;")
        .replace("= hdr.of_client.port;", "= (bit<9>) hdr.of_client.port;")
    )
    with pytest.raises(Exception, match="packet_out: field port is a string"):
        ModelDevice(source_of(path))

"""One connection to a P4Runtime server: p4runtime-shell's client, with deadlines and errors, without exits.

    requests --> client --unary calls-->              server
                 client --stream: arbitration, packet-out-->
                 client <--stream: arbitration, packet-in, errors--    --> `Listener`, in the stream's thread

A `Client` is used until its stream ends; then another one is made.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from p4runtime_sh.p4runtime import P4RuntimeClient, SSLOptions

from switchagg.errors import SwitchError
from switchagg.p4runtime.client.rows import octets
from switchagg.p4runtime.client.spec import P4RuntimeSpec
from switchagg.p4runtime.protos import code_pb2, p4runtime_pb2, status_pb2

BATCH: Final = 90
"""Updates in a request: more would not fit gRPC's 8 KiB of metadata if all of them failed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """Who the server says is primary: us, another, or nobody; and the highest election id that it knows."""

    primary: bool
    vacant: bool
    election: int


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears of what comes by the stream. Called in its thread; must not block.

    Attributes:
        standing: the server said who is primary.
        packet: the controller's port received a frame.
        ended: the stream has ended, for this reason; nothing else comes.
    """

    standing: Callable[[Standing], None]
    packet: Callable[[bytes], None]
    ended: Callable[[str], None]


class WriteFailed(SwitchError):
    """Some updates of a batch failed.

    Attributes:
        codes: of each update, in order; 0 where it was done.
    """

    def __init__(self, message: str, codes: Sequence[int]) -> None:
        super().__init__(message)
        self.codes = tuple(codes)


class Client(P4RuntimeClient):  # type: ignore[misc]
    """A connection whose stream is open and has been answered.

    Raises `SwitchError` where the server cannot be reached, does not answer in time, or refuses.
    """

    def __init__(self, spec: P4RuntimeSpec, election: int, listener: Listener) -> None:
        self._spec = spec
        self._listener = listener
        self._answered = threading.Event()
        self._failure = ""
        options = None
        if spec.tls:
            names = [None if each is None else str(each) for each in (spec.ca, spec.cert, spec.key)]
            _check_readable(spec)
            options = SSLOptions(False, *names)
        super().__init__(
            spec.device, spec.server, (election >> 64, election & (1 << 64) - 1), ssl_options=options
        )

    @property
    def election(self) -> int:
        """The election id that this client has."""
        high, low = self.election_id
        return int(high) << 64 | int(low)

    def set_up_stream(self) -> None:
        """Opens the stream and waits until the server has answered. Called by the constructor."""
        self.stream_out_q: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.stream_in_q: dict[str, Any] = {}
        self.stream = self.stub.StreamChannel(iter(self.stream_out_q.get, None))
        self.stream_recv_thread = threading.Thread(
            target=self._receive, name=f"p4runtime-{self._spec.name}", daemon=True
        )
        self.stream_recv_thread.start()
        self.claim(self.election)
        if not self._answered.wait(self._spec.timeout):
            self._failure = f"no answer within {self._spec.timeout:g} s"
        if self._failure:
            self.close()
            raise SwitchError(self._failure)

    def claim(self, election: int) -> None:
        """Says to the server which election id this client has. The answer comes as a `Standing`."""
        self.election_id = election >> 64, election & (1 << 64) - 1
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = self.election_id
        self.stream_out_q.put(request)

    def close(self) -> None:
        """Ends the stream and closes the connection. Safe to call twice."""
        self.stream_out_q.put(None)
        self.stream.cancel()
        if threading.current_thread() is not self.stream_recv_thread:
            self.stream_recv_thread.join()
        self.channel.close()

    def _receive(self) -> None:
        why = "the switch ended the stream"
        try:
            for message in self.stream:
                self._heard(message)
        except grpc.RpcError as error:
            why = _text(error)
        if not self._answered.is_set():
            self._failure = why
            self._answered.set()
        else:
            self._listener.ended(why)

    def _heard(self, message: Any) -> None:
        kind = message.WhichOneof("update")
        if kind == "arbitration":
            answer = message.arbitration
            highest = answer.election_id.high << 64 | answer.election_id.low
            code = answer.status.code
            self._listener.standing(Standing(code == code_pb2.OK, code == code_pb2.NOT_FOUND, highest))
            self._answered.set()
        elif kind == "packet":
            self._listener.packet(message.packet.payload)
        elif kind == "error":
            _log.warning("switch %s: %s", self._spec.name, message.error.message)

    # ---- calls, each with the deadline of the switch's spec ----

    def write_all(self, updates: Sequence[Any]) -> None:
        """Writes updates, in batches, up to the first one in which any fails.

        Raises `WriteFailed` with a code for each of `updates` (those of later batches: CANCELLED), or another
        `SwitchError` where the switch did not answer.
        """
        for start in range(0, len(updates), BATCH):
            batch = updates[start : start + BATCH]
            request = p4runtime_pb2.WriteRequest(device_id=self.device_id, updates=batch)
            request.election_id.high, request.election_id.low = self.election_id
            try:
                self.stub.Write(request, timeout=self._spec.timeout)
            except grpc.RpcError as error:
                codes, text = _details(error, len(batch))
                if codes is None:
                    raise SwitchError(text) from None
                rest = len(updates) - start - len(batch)
                raise WriteFailed(text, [0] * start + codes + [code_pb2.CANCELLED] * rest) from None

    def read_all(self, entities: Iterable[Any]) -> Iterator[Any]:
        """Reads entities; wildcards as in P4Runtime. Raises `SwitchError`."""
        asked = list(entities)
        for start in range(0, len(asked), 500):
            request = p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=asked[start : start + 500])
            try:
                for answer in self.stub.Read(request, timeout=self._spec.timeout):
                    yield from answer.entities
            except grpc.RpcError as error:
                raise SwitchError(_text(error)) from None

    def pipeline(self) -> Any:
        """The `ForwardingPipelineConfig` that runs, without the device's part; None where there is none."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.device_id)
        request.response_type = request.P4INFO_AND_COOKIE
        try:
            answer = self.stub.GetForwardingPipelineConfig(request, timeout=self._spec.timeout)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return None
            raise SwitchError(_text(error)) from None
        config = answer.config
        return config if config.HasField("p4info") and config.p4info.tables else None

    def push(self, p4info: Any, config: bytes, cookie: int) -> None:
        """Starts a program, which empties all tables. Raises `SwitchError`."""
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=self.device_id)
        request.election_id.high, request.election_id.low = self.election_id
        request.action = request.VERIFY_AND_COMMIT
        request.config.p4info.CopyFrom(p4info)
        request.config.p4_device_config = config
        request.config.cookie.cookie = cookie
        try:
            self.stub.SetForwardingPipelineConfig(request, timeout=max(60.0, self._spec.timeout))
        except grpc.RpcError as error:
            raise SwitchError(f"the switch does not take the program: {_text(error)}") from None

    def probe(self) -> None:
        """Asks something that every server answers. Raises `SwitchError` where it does not."""
        try:
            self.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=self._spec.timeout)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise SwitchError(_text(error)) from None

    def packet_out(self, payload: bytes, metadata: Mapping[int, int]) -> None:
        """Sends a frame by the stream."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.packet.payload = payload
        for number, value in metadata.items():
            request.packet.metadata.add(metadata_id=number, value=octets(value))
        self.stream_out_q.put(request)


def _check_readable(spec: P4RuntimeSpec) -> None:
    for path in (spec.ca, spec.cert, spec.key):
        if path is not None:
            try:
                path.read_bytes()
            except OSError as error:
                raise SwitchError(f"{path}: {error.strerror}") from None


def _text(error: Any) -> str:
    details = " ".join((error.details() or "").split())
    return f"{error.code().name}: {details}" if details else str(error.code().name)


def _details(error: Any, count: int) -> tuple[list[int] | None, str]:
    """The codes of a batch's updates and the first message; None where the batch was not looked at."""
    if error.code() is not grpc.StatusCode.UNKNOWN:
        return None, _text(error)
    data = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    found = status_pb2.Status.FromString(data).details if data else ()
    codes, text = [], ""
    for place, each in enumerate(found):
        one = p4runtime_pb2.Error()
        each.Unpack(one)
        codes.append(int(one.canonical_code))
        if one.canonical_code and not text:
            name = code_pb2.Code.Name(one.canonical_code)
            text = f"update {place + 1} of {count}: {name}: {one.message}"
    if len(codes) != count:
        return None, _text(error)
    return codes, text


def election_of_now() -> int:
    """An election id that is higher for whoever starts later: microseconds of the clock."""
    return time.time_ns() // 1000

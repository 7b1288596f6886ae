"""One connection to a P4Runtime server: a channel, the stub and the stream, with deadlines and errors.

    requests --> client --unary calls-->              server
                 client --stream: arbitration, packet-out-->
                 client <--stream: arbitration, packet-in, errors--    --> `heard`, `packet`

A `Client` is used until its stream ends; then `Link` makes another one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from switchagg.errors import SwitchAggError, SwitchError
from switchagg.p4runtime.client.rows import octets
from switchagg.p4runtime.client.spec import P4RuntimeSpec
from switchagg.p4runtime.protos import code_pb2, p4runtime_pb2, p4runtime_pb2_grpc, status_pb2
from switchagg.rules.switch import ChangeKind, SwitchChange

BATCH: Final = 90
"""Updates in a request: more would not fit gRPC's 8 KiB of metadata if all of them failed."""

_FIRST_PAUSE: Final = 0.1  # seconds
_LONGEST_PAUSE: Final = 1.0
_PROBE_INTERVAL: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArbitrationAnswer:
    """The server's answer to arbitration: the primary is us, another or nobody; the highest election id."""

    primary: bool
    vacant: bool
    election: int


class WriteFailed(SwitchError):
    """Some updates of a batch failed.

    Attributes:
        codes: of each update, in order; 0 where it was done.
    """

    def __init__(self, message: str, codes: Sequence[int]) -> None:
        super().__init__(message)
        self.codes = tuple(codes)


class Client:
    """A connection whose stream is open and has been answered.

    Args:
        election: the election id to claim, up to 128 bits.
        heard: called, in the stream's thread, with the server's answers to arbitration, and with the reason
            for which the stream has ended, after which nothing else comes. It must not block.
        packet: called likewise with the frames that come to the controller's port.

    Raises `SwitchError` where the server cannot be reached, does not answer in time, or refuses.

    Attributes:
        election: the election id that was claimed last.
    """

    def __init__(
        self,
        spec: P4RuntimeSpec,
        election: int,
        heard: Callable[[ArbitrationAnswer | str], None],
        packet: Callable[[bytes], None],
    ) -> None:
        self.election = election
        self._spec = spec
        self._heard, self._packet = heard, packet
        self._answered = threading.Event()
        self._failure = ""
        self._channel = _channel(spec)
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stream = self._stub.StreamChannel(iter(self._requests.get, None))
        self._receiver = threading.Thread(target=self._receive, name=f"p4runtime-{spec.name}", daemon=True)
        self._receiver.start()
        self.claim(election)
        if not self._answered.wait(spec.timeout):
            self._failure = f"no answer within {spec.timeout:g} s"
        if self._failure:
            self.close()
            raise SwitchError(self._failure)

    def claim(self, election: int) -> None:
        """Claims an election id. The answer comes as an `ArbitrationAnswer`."""
        self.election = election
        self._requests.put(p4runtime_pb2.StreamMessageRequest(arbitration=self._identity()))

    def _identity(self) -> dict[str, Any]:
        """Returns the fields of the requests that only the primary may send."""
        election = {"high": self.election >> 64, "low": self.election & (1 << 64) - 1}
        return {"device_id": self._spec.device, "election_id": election}

    def close(self) -> None:
        """Ends the stream and closes the connection. Safe to call twice."""
        self._requests.put(None)
        self._stream.cancel()
        if threading.current_thread() is not self._receiver:
            self._receiver.join()
        self._channel.close()

    def _receive(self) -> None:
        why = "the switch ended the stream"
        try:
            for message in self._stream:
                self._take(message)
        except grpc.RpcError as error:
            why = _text(error)
        if not self._answered.is_set():
            self._failure = why
            self._answered.set()
        else:
            self._heard(why)

    def _take(self, message: Any) -> None:
        kind = message.WhichOneof("update")
        if kind == "arbitration":
            answer = message.arbitration
            highest = answer.election_id.high << 64 | answer.election_id.low
            code = answer.status.code
            self._heard(ArbitrationAnswer(code == code_pb2.OK, code == code_pb2.NOT_FOUND, highest))
            self._answered.set()
        elif kind == "packet":
            self._packet(message.packet.payload)
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
            request = p4runtime_pb2.WriteRequest(**self._identity(), updates=batch)
            try:
                with _open_channel():
                    self._stub.Write(request, timeout=self._spec.timeout)
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
            chunk = asked[start : start + 500]
            request = p4runtime_pb2.ReadRequest(device_id=self._spec.device, entities=chunk)
            try:
                with _open_channel():
                    answers = self._stub.Read(request, timeout=self._spec.timeout)
                for answer in answers:
                    yield from answer.entities
            except grpc.RpcError as error:
                raise SwitchError(_text(error)) from None

    def pipeline(self) -> Any:
        """The `ForwardingPipelineConfig` that runs, without the device's part; None where there is none."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self._spec.device)
        request.response_type = request.P4INFO_AND_COOKIE
        try:
            with _open_channel():
                answer = self._stub.GetForwardingPipelineConfig(request, timeout=self._spec.timeout)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return None
            raise SwitchError(_text(error)) from None
        config = answer.config
        return config if config.HasField("p4info") and config.p4info.tables else None

    def push(self, p4info: Any, config: bytes, cookie: int) -> None:
        """Starts a program, which empties all tables. Raises `SwitchError`."""
        pushed = {"p4info": p4info, "p4_device_config": config, "cookie": {"cookie": cookie}}
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            **self._identity(), action="VERIFY_AND_COMMIT", config=pushed
        )
        try:
            with _open_channel():
                self._stub.SetForwardingPipelineConfig(request, timeout=max(60.0, self._spec.timeout))
        except grpc.RpcError as error:
            raise SwitchError(f"the switch does not take the program: {_text(error)}") from None

    def probe(self) -> None:
        """Asks something that every server answers. Raises `SwitchError` where it does not."""
        try:
            with _open_channel():
                self._stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=self._spec.timeout)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise SwitchError(_text(error)) from None

    def packet_out(self, payload: bytes, metadata: Mapping[int, int]) -> None:
        """Sends a frame by the stream."""
        fields = [{"metadata_id": number, "value": octets(value)} for number, value in metadata.items()]
        packet = {"payload": payload, "metadata": fields}
        self._requests.put(p4runtime_pb2.StreamMessageRequest(packet=packet))


class Link:
    """Keeps a switch connected by one `Client` after another, and this controller its primary client.

        thread --Client()--> refused, silent ----------------------> down, and again after a pause
           |        `------> another is primary -------------------> down, until it goes or gives way
           |        `------> nobody is ----------------------------> claim a higher election id
           |        `------> primary --prepare()--> no program ...-> down, and again after a pause
           |                                `-----> up: `connected`, or `restarted` where its memory is gone
           `-- stream ends, a probe is not answered, another takes over -> down: `lost`

    Between two attempts it waits 0.1 s, doubling up to 1 s.

    Args:
        prepare: called with a new primary client before anybody else has it; returns whether the switch's
            memory is gone. A `SwitchAggError` closes the connection again.
        packet: takes the frames that come to the controller's port.
    """

    def __init__(
        self, spec: P4RuntimeSpec, prepare: Callable[[Client], bool], packet: Callable[[bytes], None]
    ) -> None:
        self._spec = spec
        self._prepare = prepare
        self._packet = packet
        # The clock's microseconds are higher for whoever starts later.
        self._election = spec.election or time.time_ns() // 1000
        self._news: queue.SimpleQueue[ArbitrationAnswer | str | None] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._client: Client | None = None
        self._change: SwitchChange | None = None
        self._watchers: list[Callable[[SwitchChange], None]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"link-{spec.name}", daemon=True)

    def start(self) -> None:
        """Connects from now on."""
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Waits until it is known whether the switch can be used."""
        with self._state:
            self._state.wait_for(lambda: self._change is not None, seconds)

    def client(self) -> Client:
        """The client that is primary. Raises `SwitchError` where the switch cannot be used, and says why."""
        with self._state:
            if self._client is None:
                why = self._change.why if self._change is not None else "it has not answered yet"
                raise SwitchError(why)
            return self._client

    def suspect(self) -> None:
        """A call failed: looks at once whether the switch is still there."""
        self._news.put(None)

    def watch(self, callback: Callable[[SwitchChange], None]) -> None:
        """Calls `callback` with what is now, if that is known, and with every change."""
        with self._state:
            self._watchers.append(callback)
            if self._change is not None:
                callback(self._change)

    def close(self) -> None:
        """Disconnects, and calls nobody any more."""
        with self._state:
            self._watchers.clear()
            self._closing.set()
        self._news.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # ---- the thread ----

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closing.is_set():
            was_up = False
            try:
                client = Client(self._spec, self._election, self._news.put, self._packet)
                try:
                    was_up = self._serve(client)
                finally:
                    self._client = None
                    client.close()
            except SwitchAggError as error:
                self._turn(None, SwitchChange(ChangeKind.lost, str(error)))
            except Exception as error:
                _log.exception("switch %s", self._spec.name)
                self._turn(None, SwitchChange(ChangeKind.lost, f"the driver failed: {error}"))
            pause = _FIRST_PAUSE if was_up else min(2 * pause, _LONGEST_PAUSE)
            self._closing.wait(pause)
            while not self._news.empty():
                self._news.get_nowait()

    def _serve(self, client: Client) -> bool:
        """Until the connection ends. Returns whether the switch could be used at a time."""
        was_up = False
        while not self._closing.is_set():
            try:
                news = self._news.get(timeout=_PROBE_INTERVAL)
            except queue.Empty:
                news = None
            if self._closing.is_set():
                break
            if news is None:
                client.probe()
            elif isinstance(news, str):
                raise SwitchError(news)
            elif news.primary:
                if self._client is None:
                    memory_gone = self._prepare(client)
                    kind = ChangeKind.restarted if memory_gone else ChangeKind.connected
                    self._turn(client, SwitchChange(kind, "the switch restarted" if memory_gone else ""))
                    was_up = True
            elif news.vacant:
                self._election = max(self._election, news.election + 1)
                client.claim(self._election)
            else:
                why = f"another controller, of election id {news.election}, has this switch"
                self._turn(None, SwitchChange(ChangeKind.lost, why))
        return was_up

    def _turn(self, client: Client | None, change: SwitchChange) -> None:
        """Takes a client, or none, and tells the change if it is one."""
        with self._state:
            self._client = client
            if change != self._change and not self._closing.is_set():
                self._change = change
                self._state.notify_all()
                for callback in self._watchers:
                    callback(change)


@contextmanager
def _open_channel() -> Iterator[None]:
    """Raises `SwitchError` for a call on a channel that another thread has closed; grpc has `ValueError`."""
    try:
        yield
    except ValueError as error:
        raise SwitchError(f"the connection has ended ({error})") from None


def _channel(spec: P4RuntimeSpec) -> Any:
    if not spec.tls:
        return grpc.insecure_channel(spec.server)
    ca, cert, key = map(_file, (spec.ca, spec.cert, spec.key))
    return grpc.secure_channel(spec.server, grpc.ssl_channel_credentials(ca, key, cert))


def _file(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
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

"""The calls of P4Runtime, in front of a `Device`. Method names and order are those of p4runtime.proto."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc

from switchagg.p4runtime.protos import p4runtime_pb2, status_pb2
from switchagg.p4runtime.server import errors
from switchagg.p4runtime.server.arbitration import Arbitration, Notice
from switchagg.p4runtime.server.device import Device, Forwarding, Out
from switchagg.p4runtime.server.errors import Code, StatusError

API_VERSION: Final = "1.4.1"
MAX_STREAMS: Final = 32
_READ_CHUNK: Final = 256
_STATUS: Final = {code: getattr(grpc.StatusCode, code.name) for code in Code}
_Set: Final = p4runtime_pb2.SetForwardingPipelineConfigRequest
_Get: Final = p4runtime_pb2.GetForwardingPipelineConfigRequest


class Service:
    """The calls, for `add_P4RuntimeServicer_to_server`.

    Args:
        send: takes the frames that a packet-out makes, with their ports.
    """

    def __init__(self, device: Device[Any], send: Callable[[Out], None]) -> None:
        self._device = device
        self._send = send
        self._arbitration = Arbitration()
        self._configuring = threading.Lock()
        device.on_packet_in = lambda message: self._to_primary(packet=message)
        device.on_digest = lambda message: self._to_primary(digest=message)

    # ---- the calls ----

    def Write(self, request: Any, context: Any) -> Any:
        """Does each update of a batch, also after one fails."""
        with _aborting(context), self._device.lock:
            self._check_writer(request)
            if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                raise errors.unimplemented("batches are CONTINUE_ON_ERROR; nothing else is supported")
            entities = self._target().entities
            results: list[StatusError | None] = []
            for update in request.updates:
                try:
                    entities.write(update)
                except StatusError as refused:
                    results.append(refused)
                else:
                    results.append(None)
        if any(each is not None for each in results):
            context.abort_with_status(write_status(results))
        return p4runtime_pb2.WriteResponse()

    def Read(self, request: Any, context: Any) -> Iterator[Any]:
        """Answers with all entities that are asked for, as of one moment."""
        with _aborting(context), self._device.lock:
            self._check_device(request.device_id)
            _check_role(0, request.role)
            entities = self._target().entities
            found = [each for asked in request.entities for each in entities.read(asked)]
        for start in range(0, len(found), _READ_CHUNK):
            yield p4runtime_pb2.ReadResponse(entities=found[start : start + _READ_CHUNK])

    def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        """Verifies, saves or commits a program."""
        with _aborting(context), self._configuring:
            self._configure(request)
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        """Answers with the program that runs, or what was saved after it."""
        with _aborting(context), self._device.lock:
            self._check_device(request.device_id)
            target = self._device.target
        answer = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        if target is None:
            return answer
        answer.config.SetInParent()
        if target.cookie is not None:
            answer.config.cookie.cookie = target.cookie
        kind = request.response_type
        if kind in (_Get.ALL, _Get.P4INFO_AND_COOKIE):
            answer.config.p4info.CopyFrom(target.p4info)
        if kind in (_Get.ALL, _Get.DEVICE_CONFIG_AND_COOKIE):
            answer.config.p4_device_config = target.config
        return answer

    def StreamChannel(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        """Serves one client: arbitration, packets, digests."""
        stream = Stream()
        if not context.add_callback(stream.end):
            return
        reader = threading.Thread(target=self._listen, args=(stream, requests), daemon=True)
        reader.start()
        try:
            yield from stream.messages()
        finally:
            with self._device.lock:
                if stream.joined:
                    self._notify(self._arbitration.leave(stream))
                    stream.joined = False
        with _aborting(context):
            if stream.error is not None:
                raise stream.error

    def Capabilities(self, _request: Any, _context: Any) -> Any:
        """Answers with the version of P4Runtime."""
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    # ---- checks ----

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device.device_id:
            raise errors.not_found(f"there is no device {device_id}; this is device {self._device.device_id}")

    def _check_writer(self, request: Any) -> None:
        self._check_device(request.device_id)
        _check_role(request.role_id, request.role)
        if not self._arbitration.is_primary(_election_id(request)):
            raise errors.permission_denied(
                f"election id {_election_id(request)} is not that of the primary client"
            )

    def _target(self) -> Forwarding:
        target: Forwarding | None = self._device.target
        if target is None:
            raise errors.failed_precondition("there is no forwarding pipeline yet")
        return target

    # ---- pipelines ----

    def _configure(self, request: Any) -> None:
        device, action = self._device, request.action
        with device.lock:
            self._check_writer(request)
        if action == _Set.COMMIT:
            if request.HasField("config"):
                raise errors.invalid("COMMIT takes no config: it is for the one that was saved")
            with device.lock:
                self._check_writer(request)
                if device.saved is None:
                    raise errors.not_found("there is no saved config to commit: VERIFY_AND_SAVE it first")
                device.commit(device.saved)
            return
        accepted = (_Set.VERIFY, _Set.VERIFY_AND_SAVE, _Set.VERIFY_AND_COMMIT, _Set.RECONCILE_AND_COMMIT)
        if action not in accepted:
            raise errors.invalid(f"action {action}; accepted: those of P4Runtime 1.4 but UNSPECIFIED")
        if not request.HasField("config"):
            raise errors.invalid("there is no config")
        # Packets go on through the old program while the new one is made.
        made = device.configured(request.config)
        with device.lock:
            self._check_writer(request)
            if action == _Set.VERIFY_AND_SAVE:
                device.saved = made
            elif action == _Set.VERIFY_AND_COMMIT:
                device.commit(made)
            elif action == _Set.RECONCILE_AND_COMMIT:
                device.commit(device.reconciled(made))

    # ---- streams ----

    def _listen(self, stream: Stream, requests: Iterator[Any]) -> None:
        error: StatusError | None = errors.internal("the switch failed on a stream message; see its output")
        try:
            with suppress(grpc.RpcError):  # the client is gone
                for request in requests:
                    self._receive(stream, request)
            error = None
        except StatusError as refused:
            error = refused
        finally:
            stream.end(error)

    def _receive(self, stream: Stream, request: Any) -> None:
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self._arbitrate(stream, request.arbitration)
        elif not stream.joined:
            raise errors.failed_precondition("a stream begins with an arbitration message")
        elif kind == "packet":
            self._packet_out(stream, request.packet)
        elif kind == "digest_ack":
            with self._device.lock:
                if self._arbitration.primary is stream and self._device.running is not None:
                    self._device.running.entities.digests.acknowledge(request.digest_ack)
        else:
            self._report(
                stream, errors.unimplemented(f"stream messages of kind {kind} are not supported"), "other"
            )

    def _arbitrate(self, stream: Stream, message: Any) -> None:
        with self._device.lock:
            if stream.joined and message.device_id != self._device.device_id:
                raise errors.failed_precondition("a stream stays with its device")
            self._check_device(message.device_id)
            if message.HasField("role"):
                _check_role(message.role.id, message.role.name)
            if not stream.joined and self._arbitration.count >= MAX_STREAMS:
                raise errors.resource_exhausted(f"{MAX_STREAMS} clients are connected already")
            notices = self._arbitration.update(stream, _election_id(message))
            stream.joined = True
            self._notify(notices)

    def _notify(self, notices: list[Notice]) -> None:
        for each in notices:
            answer: dict[str, Any] = {"device_id": self._device.device_id}
            answer["status"] = {"code": each.status, "message": _MEANING[each.status]}
            if each.election_id is not None:
                high, low = each.election_id >> 64, each.election_id & (1 << 64) - 1
                answer["election_id"] = {"high": high, "low": low}
            assert isinstance(each.stream, Stream)
            each.stream.send(p4runtime_pb2.StreamMessageResponse(arbitration=answer))

    def _packet_out(self, stream: Stream, message: Any) -> None:
        try:
            with self._device.lock:
                if self._arbitration.primary is not stream:
                    raise errors.permission_denied("packets are the primary client's to send")
                outs = self._device.packet_out(message)
        except StatusError as refused:
            self._report(stream, refused, "packet_out", message)
            return
        self._send(outs)

    def _report(self, stream: Stream, refused: StatusError, kind: str, message: Any = None) -> None:
        error: dict[str, Any] = {"canonical_code": refused.code, "message": str(refused)}
        error[kind] = {"packet_out": message} if kind == "packet_out" else {}
        stream.send(p4runtime_pb2.StreamMessageResponse(error=error), droppable=True)

    def _to_primary(self, **content: Any) -> None:
        primary, message = self._arbitration.primary, p4runtime_pb2.StreamMessageResponse(**content)
        if not isinstance(primary, Stream) or not primary.send(message, droppable=True):
            self._device.counters["lost"] += 1


_MEANING: Final = {
    Code.OK: "this client is the primary",
    Code.ALREADY_EXISTS: "another client is the primary",
    Code.NOT_FOUND: "there is no primary",
}


def _check_role(number: int, name: str) -> None:
    if number or name:
        raise errors.not_found(f"there is no role {name or number}: there is the default role only")


def _election_id(message: Any) -> int | None:
    if not message.HasField("election_id"):
        return None
    identity: int = message.election_id.high << 64 | message.election_id.low
    return identity


@contextmanager
def _aborting(context: Any) -> Iterator[None]:
    """Ends the call with the status of a `StatusError`."""
    try:
        yield
    except StatusError as refused:
        context.abort(_STATUS[refused.code], str(refused)[:2000])


_MOST_WAITING: Final = 10_000


class Stream:
    """The stream of one client: messages wait here until gRPC takes them. Any thread may send.

    A client that does not read loses packets and digests past 10,000 that wait. Other messages wait however
    many there are.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.error: StatusError | None = None
        self.joined = False

    def send(self, message: Any, *, droppable: bool = False) -> bool:
        """Queues a message. Returns False if it is dropped."""
        if droppable and self._waiting.qsize() >= _MOST_WAITING:
            return False
        self._waiting.put(message)
        return True

    def end(self, error: StatusError | None = None) -> None:
        """Ends the stream after the queued messages, with an error or without."""
        if self.error is None:
            self.error = error
        self._waiting.put(None)

    def messages(self) -> Iterator[Any]:
        """Yields the messages, until the stream ends."""
        return iter(self._waiting.get, None)


_ROOM: Final = 7000
_SHOWN: Final = 500
_TYPES: Final = "type.googleapis.com/"
# The longest message, and the prefix of its type name: from the most readable to the shortest.
_ATTEMPTS: Final = ((2000, _TYPES), (300, _TYPES), (100, _TYPES), (40, ""), (0, ""))


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """The argument of `context.abort_with_status`."""

    code: Any
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def write_status(results: Sequence[StatusError | None]) -> WriteStatus:
    """Returns the status of a batch; `results` has None for an update that was done.

    The code is UNKNOWN, with a p4.v1.Error for each update. A status travels in the trailers of a call, for
    which clients leave some 8 KB: messages are cut to fit. If the codes alone do not fit (past some 300
    updates), the status has a message and no details.
    """
    failed = [(place, each) for place, each in enumerate(results) if each is not None]
    place, first = failed[0]
    text = f"{len(failed)} of {len(results)} updates failed; update {place}: {first.code.name}: {first}"
    text = " ".join(text[:_SHOWN].split())
    for cut, prefix in _ATTEMPTS:
        status = status_pb2.Status(code=Code.UNKNOWN, message=text)
        for each in results:
            error = p4runtime_pb2.Error()
            if each is not None:
                error.canonical_code = each.code
                error.message = str(each)[:cut]
            status.details.add().Pack(error, prefix)
        data: bytes = status.SerializeToString()
        if len(data) <= _ROOM:
            return WriteStatus(grpc.StatusCode.UNKNOWN, text, (("grpc-status-details-bin", data),))
    return WriteStatus(grpc.StatusCode.UNKNOWN, f"{text} (the batch is too large for details)", ())

"""A P4Runtime client on gRPC's plain stub, for the tests: it checks no messages and knows no program."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from switchagg.p4runtime.protos import p4runtime_pb2, p4runtime_pb2_grpc


class PlainClient:
    """A client whose stream is open and whose arbitration message has been answered.

    Calls raise `grpc.RpcError`.

    Attributes:
        election_id: (high, low), as it stands in requests.
        requests: messages put here go out by the stream; None ends it.
    """

    def __init__(
        self,
        device_id: int,
        address: str,
        election_id: tuple[int, int] = (0, 1),
        *,
        authority: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self.device_id = device_id
        self.election_id = election_id
        if authority is None:
            self.channel = grpc.insecure_channel(address)
        else:
            chain, key = (None, None) if certificate is None else (each.read_bytes() for each in certificate)
            credentials = grpc.ssl_channel_credentials(authority.read_bytes(), key, chain)
            self.channel = grpc.secure_channel(address, credentials)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: dict[str, queue.SimpleQueue[Any]] = {
            each.name: queue.SimpleQueue() for each in p4runtime_pb2.StreamMessageResponse.DESCRIPTOR.fields
        }
        self._stream = self.stub.StreamChannel(iter(self.requests.get, None))
        self.receiver = threading.Thread(target=self._receive, daemon=True)
        self.receiver.start()
        self.claim(*election_id)
        self.drained("arbitration")

    def __enter__(self) -> PlainClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream and the channel."""
        self.requests.put(None)
        self.receiver.join(timeout=60)  # until the server has forgotten it, its election id is taken
        self._stream.cancel()
        self.channel.close()

    def claim(self, high: int, low: int) -> None:
        """Sends an arbitration message with this election id."""
        self.election_id = high, low
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = high, low
        self.requests.put(request)

    def drained(self, kind: str, timeout: float = 60) -> Any:
        """Returns the next message of this kind from the stream."""
        try:
            return self._answers[kind].get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no {kind} within {timeout} s") from None

    def waiting(self, kind: str) -> int:
        """Returns how many messages of this kind have come and were not drained."""
        return self._answers[kind].qsize()

    def version(self) -> str:
        """Returns the version of P4Runtime that the server has."""
        answer = self.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=60)
        return str(answer.p4runtime_api_version)

    def p4info(self) -> Any:
        """Returns the P4Info of the server's pipeline; an empty one without a pipeline."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.device_id)
        return self.stub.GetForwardingPipelineConfig(request).config.p4info

    def push(self, p4info: Any, config: bytes, **fields: Any) -> None:
        """Sends a SetForwardingPipelineConfigRequest; `fields`: action, cookie, with_config."""
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=self.device_id)
        request.election_id.high, request.election_id.low = self.election_id
        request.action = fields.get("action", request.VERIFY_AND_COMMIT)
        if fields.get("with_config", True):
            request.config.p4info.CopyFrom(p4info)
            request.config.p4_device_config = config
            if "cookie" in fields:
                request.config.cookie.cookie = fields["cookie"]
        self.stub.SetForwardingPipelineConfig(request)

    def write(self, *updates: Any) -> None:
        """Sends one batch of updates."""
        request = p4runtime_pb2.WriteRequest(device_id=self.device_id, updates=updates)
        request.election_id.high, request.election_id.low = self.election_id
        self.stub.Write(request)

    def read(self, *entities: Any) -> Iterator[Any]:
        """Yields the entities of the answers to one request."""
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=entities)
        for answer in self.stub.Read(request):
            yield from answer.entities

    def _receive(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in self._stream:
                self._answers[message.WhichOneof("update")].put(message)

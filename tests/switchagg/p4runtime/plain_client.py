"""A P4Runtime client for tests of the server: the stub, stream messages by kind, and decoded write errors.

It shares no code with the product's client, so that a mistake there cannot hide one in the server.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import defaultdict
from typing import Any

import grpc

from switchagg.p4runtime.protos import code_pb2, p4runtime_pb2, p4runtime_pb2_grpc, status_pb2


class WriteError(Exception):
    """A batch of which some updates failed.

    Attributes:
        errors: (index, p4.v1.Error) of each update that failed.
    """

    def __init__(self, errors: list[tuple[int, Any]]) -> None:
        lines = (f"At index {i}: {code_pb2.Code.Name(e.canonical_code)}, '{e.message}'" for i, e in errors)
        super().__init__("\n".join(lines))
        self.errors = errors


def update_errors(error: Any) -> list[Any]:
    """The p4.v1.Error of each update, in order, from a failed Write; empty where the reply has no details."""
    data = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
    found = []
    for each in status_pb2.Status.FromString(data).details:
        one = p4runtime_pb2.Error()
        assert each.Unpack(one)
        found.append(one)
    return found


class PlainClient:
    """A client whose stream is open and whose election id the server has answered.

    Args:
        election_id: (high, low).
    """

    def __init__(
        self, device_id: int, address: str, election_id: tuple[int, int], credentials: Any = None
    ) -> None:
        self.device_id, self.election_id = device_id, election_id
        plain = credentials is None
        self._channel = grpc.insecure_channel(address) if plain else grpc.secure_channel(address, credentials)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self.stream_out_q: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._received: defaultdict[str, queue.SimpleQueue[Any]] = defaultdict(queue.SimpleQueue)
        self.stream = self.stub.StreamChannel(iter(self.stream_out_q.get, None))
        self.receiver = threading.Thread(target=self._receive, daemon=True)
        self.receiver.start()
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = election_id
        self.stream_out_q.put(request)
        self.arbitration = self.get_stream_packet("arbitration", timeout=10)
        if self.arbitration is None:
            self.tear_down()
            raise ConnectionError(f"{address} does not answer the arbitration of election id {election_id}")

    def _receive(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in self.stream:
                self._received[message.WhichOneof("update")].put(message)
        self._received["arbitration"].put(None)

    def get_stream_packet(self, kind: str, timeout: float = 1) -> Any:
        """The next message of this kind; None without one in time, or at the stream's end."""
        try:
            return self._received[kind].get(timeout=timeout)
        except queue.Empty:
            return None

    def tear_down(self) -> None:
        """Ends the stream and closes the channel."""
        self.stream_out_q.put(None)
        self.receiver.join()
        self._channel.close()

    def api_version(self) -> str:
        """The server's version of P4Runtime."""
        answer = self.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest())
        return str(answer.p4runtime_api_version)

    def get_p4info(self) -> Any:
        """The P4Info of the program that runs."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.device_id)
        request.response_type = request.P4INFO_AND_COOKIE
        return self.stub.GetForwardingPipelineConfig(request).config.p4info

    def set_pipeline(self, request: Any) -> None:
        """SetForwardingPipelineConfig under this client's device and election id."""
        request.device_id = self.device_id
        request.election_id.high, request.election_id.low = self.election_id
        self.stub.SetForwardingPipelineConfig(request)

    def read_one(self, entity: Any) -> Any:
        """The answers to a read of one entity. A failure is raised as they are taken."""
        return self.stub.Read(p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=[entity]))

    def write(self, request: Any) -> None:
        """Writes a batch. Raises `WriteError` where the server names the updates that failed."""
        request.device_id = self.device_id
        request.election_id.high, request.election_id.low = self.election_id
        try:
            self.stub.Write(request)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNKNOWN:
                raise
            found = enumerate(update_errors(error))
            raise WriteError([each for each in found if each[1].canonical_code]) from None

    def write_update(self, update: Any) -> None:
        """Writes one update."""
        self.write(p4runtime_pb2.WriteRequest(updates=[update]))

"""`P4RuntimeServer`: a `Device` served over gRPC, and by interfaces of this host.

with P4RuntimeServer(ModelDevice(source), "127.0.0.1:9559") as server:
    ...                                 # clients connect to server.address
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Mapping
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import grpc

from switchagg.emulator.faults import Faults
from switchagg.emulator.lifetime import Lifetime
from switchagg.emulator.p4_interfaces import P4Interfaces, Processor
from switchagg.errors import SwitchError, UsageError
from switchagg.p4runtime.protos import p4runtime_pb2_grpc
from switchagg.p4runtime.server.device import Device, Out
from switchagg.p4runtime.server.service import MAX_STREAMS, Service

_LARGEST_MESSAGE: Final = 64 << 20
_CALLS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Tls:
    """Files (PEM) for an encrypted channel.

    Attributes:
        clients: the certificate of the authority that clients' certificates must come from; None lets any
            client in.
    """

    certificate: Path
    key: Path
    clients: Path | None = None


_Device = TypeVar("_Device", bound=Device[Any])


class P4RuntimeServer(Lifetime, Generic[_Device]):
    """A switch that P4Runtime controls.

    Args:
        device: the switch.
        address: host:port to serve on; port 0 for any free one.
        interfaces: the interface of each port, for a device that takes frames; none leaves packets to the
            client, and to `Device.process`.
        faults: what to do to the interfaces' frames; None for nothing.
        tls: None serves in the clear.

    Raises `UsageError` for an address or files that cannot work.
    """

    def __init__(
        self,
        device: _Device,
        address: str = "127.0.0.1:9559",
        interfaces: Mapping[int, str] | None = None,
        *,
        faults: Faults | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.device: _Device = device
        self._credentials = None if tls is None else _credentials(tls)
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 0xFFFF:
            raise UsageError(f"the address for P4Runtime is {address!r}; accepted: HOST:PORT")
        self._host, self._port = host, int(port)
        self._interfaces: P4Interfaces | None = None
        if interfaces:
            frames: object = device
            if not isinstance(frames, Processor):
                raise UsageError("this switch has no ports that interfaces could be")
            self._interfaces = P4Interfaces(frames, interfaces, faults=faults)
        self._server: Any = None
        self._pool: futures.ThreadPoolExecutor | None = None
        self._unsent: Counter[str] = Counter()

    def start(self) -> None:
        """Serves from now on.

        Raises:
            UsageError: there is no such interface.
            SwitchError: the port is in use, or there is no permission for packet sockets.
        """
        if self._server is not None:
            raise SwitchError("this switch was started already; a switch starts once, so make another one")
        # Without SO_REUSEPORT, or a second server on the same port would get half of the clients.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _LARGEST_MESSAGE)]
        workers = MAX_STREAMS + _CALLS_AT_ONCE
        self._pool = futures.ThreadPoolExecutor(workers, thread_name_prefix="p4runtime")
        server = grpc.server(self._pool, options=options)
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(Service(self.device, self.send), server)
        try:
            bound = f"{self._host}:{self._port}"
            if self._credentials is None:
                self._port = server.add_insecure_port(bound)
            else:
                self._port = server.add_secure_port(bound, self._credentials)
        except RuntimeError:
            raise SwitchError(
                f"P4Runtime cannot be served on {self._host}:{self._port}: the port is in use, or the "
                "address is not of this host"
            ) from None
        if self._interfaces is not None:
            self._interfaces.start()
        server.start()
        self._server = server

    def close(self) -> None:
        """Ends all calls and stops serving."""
        if self._server is None or self._pool is None:
            return
        self._server.stop(grace=0.2).wait()
        self._pool.shutdown(wait=False)
        if self._interfaces is not None:
            self._interfaces.close()

    @property
    def address(self) -> str:
        """host:port where clients connect."""
        return f"{self._host}:{self._port}"

    @property
    def failure(self) -> str | None:
        """The reason why the switch ended by itself; None while it works."""
        failed = None if self._interfaces is None else self._interfaces.failure
        return failed or self.device.failure

    def send(self, outs: Out) -> None:
        """Sends frames by their ports."""
        if self._interfaces is not None:
            self._interfaces.send(outs)
        else:
            self._unsent["no_such_port"] += len(outs)

    @property
    def faults(self) -> Faults | None:
        """The faults that are injected, with the seed in use; None for none."""
        return None if self._interfaces is None else self._interfaces.faults

    def fault_counters(self) -> dict[str, int]:
        """Returns what was done to the interfaces' frames; empty without faults."""
        return {} if self._interfaces is None else self._interfaces.fault_counters()

    def counters(self) -> dict[str, int]:
        """Those of the interfaces and of the device."""
        ports = self._interfaces.counters() if self._interfaces is not None else {**self._unsent}
        names = ("packet_ins", "packet_outs", "short_packet_ins", "no_pipeline", "lost")
        return ports | {name: self.device.counters[name] for name in names}


def _credentials(tls: Tls) -> Any:
    _check_files(tls)
    clients = None if tls.clients is None else tls.clients.read_bytes()
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())],
        root_certificates=clients,
        require_client_auth=clients is not None,
    )


def _check_files(tls: Tls) -> None:
    # gRPC would not say which file it is, nor what is wrong with it.
    for path in (tls.certificate, tls.key, tls.clients):
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; name a PEM file that can be read") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except ssl.SSLError as error:
        raise UsageError(
            f"{tls.certificate} and {tls.key} are no certificate (PEM) and its key: {error.reason or error}"
        ) from None
    if tls.clients is not None:
        try:
            context.load_verify_locations(tls.clients)
        except ssl.SSLError as error:
            raise UsageError(f"{tls.clients} holds no certificate (PEM): {error.reason or error}") from None

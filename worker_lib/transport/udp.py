"""The worker's UDP socket: bound to the address that it registers with the controller, connected to the
switch later."""

from __future__ import annotations

import errno
import ipaddress
import socket as socket_module
import sys
from dataclasses import dataclass

from switchagg.errors import NetworkError, UsageError
from worker_lib import _native

RECEIVE_BUFFER = 8 << 20
# The kernel accounts more than a packet's payload against a socket's buffer.
OVERHEAD_PER_PACKET = 512


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A bound UDP socket that an engine is about to take.

    Attributes:
        native: the socket, in the form that the engine takes.
        address, port: where the switch will send to.
        receive_buffer: bytes of datagrams that the kernel will hold.
        warning: what the kernel refused and how to allow it; empty if nothing.
    """

    native: _native.Socket
    address: str
    port: int
    receive_buffer: int
    warning: str


def bind(address: str, *, offload: bool = True) -> BoundSocket:
    """Binds a UDP socket to a free port of `address` (dotted IPv4).

    Raises:
        UsageError: not an IPv4 address of this host, or not on Linux.
        NetworkError: the kernel refused for another reason.
    """
    if sys.platform != "linux":
        raise UsageError(f"the UDP transport uses Linux socket calls; this is {sys.platform}")
    try:
        number = int(ipaddress.IPv4Address(address))
    except ValueError:
        raise UsageError(f"address {address!r} is not an IPv4 address such as 127.0.0.1") from None
    try:
        native = _native.Socket(number, 0, RECEIVE_BUFFER, offload)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"address {address} does not belong to this host") from None
        raise NetworkError(f"cannot open a UDP socket on {address}: {error.strerror}") from error
    warning = ""
    if native.receive_buffer < RECEIVE_BUFFER // 4:
        warning = (
            f"the kernel allows only {native.receive_buffer:,} bytes of receive buffer (wanted "
            f"{RECEIVE_BUFFER:,}); the window "
            f"is smaller than it could be. As root: sysctl -w net.core.rmem_max={RECEIVE_BUFFER}"
        )
    return BoundSocket(native, address, native.port, native.receive_buffer, warning)


def local_address_towards(host: str, port: int) -> str:
    """The address of this host's interface that leads to `host`.

    Raises:
        NetworkError: there is no route, or the name does not resolve.
    """
    try:
        with socket_module.socket(socket_module.AF_INET, socket_module.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise NetworkError(f"no route to {host}:{port}: {error.strerror or error}") from error


def window_limit(*, words: int, workers: int, own_buffer: int, switch_buffer: int) -> int:
    """Packets that one worker may have outstanding without overrunning a socket buffer.

    The switch's buffer is shared by all workers; a worker's own receives one RESULT for each packet that it
    sent.
    """
    each = 16 + 4 * words + OVERHEAD_PER_PACKET
    return max(1, min(own_buffer // each, switch_buffer // (each * workers)))

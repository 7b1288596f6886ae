"""The ways of a worker's packets, and the engine on one of them.

"shm"   shared memory, where the switch runs on this host, as this user, and takes part (docs/protocol.md)
"slots" the same, but where all ranks of a job can, they share the slots themselves, and the workers add
"udp"   datagrams, from a socket that is bound to the address that the controller is told
"xdp"   the same datagrams past the kernel's stack, by AF_XDP on the interface that has that address; UDP,
        with a warning that says why, where the kernel refuses
"dpdk"  the same datagrams through ports of DPDK, as SWITCHAGG_DPDK says; the address is that of the ports,
        not one of the kernel's
"auto"  "slots" where that works, else "shm", else UDP

A job that is dealt to several switches has a socket for each, and goes by UDP.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

from switchagg.addresses import parse_address, show_address
from switchagg.computer import memory_identity
from switchagg.devices.dpdk import DpdkSettings
from switchagg.devices.dpdk import start as start_dpdk
from switchagg.devices.xdp import xdp_refusal
from switchagg.errors import NetworkError, SwitchError, UsageError
from switchagg.wire.header import MAX_STRIPES
from worker_lib import _native

if TYPE_CHECKING:
    from worker_lib.join import Membership

T = TypeVar("T")
Way = tuple[_native.Socket, _native.Admission]
"""To a switch: a socket, and the engine's admission there."""
TRANSPORTS: Final = ("auto", "shm", "slots", "udp", "xdp", "dpdk")
CONGESTION: Final = ("dedicated", "shared")
RECEIVE_BUFFER: Final = 8 << 20
# The kernel accounts more than a packet's payload against a socket's buffer.
OVERHEAD_PER_PACKET: Final = 512


def checked_transport(given: str | None) -> str:
    """Returns the transport asked for: by argument, by SWITCHAGG_TRANSPORT, or "auto".

    Raises `UsageError` for any other word.
    """
    return _one_of("transport", given, TRANSPORTS)


def checked_congestion(given: str | None) -> str:
    """Returns the rule of the congestion window: by argument, by SWITCHAGG_CONGESTION, or "dedicated".

    Raises `UsageError` for any other word.
    """
    return _one_of("congestion", given, CONGESTION)


def _one_of(name: str, given: str | None, accepted: Sequence[str]) -> str:
    variable = f"SWITCHAGG_{name.upper()}"
    value = given if given is not None else os.environ.get(variable) or accepted[0]
    if value not in accepted:
        raise UsageError(
            f"{name if given is not None else variable} is {value!r}; accepted: {', '.join(accepted)}"
        )
    return value


def checked_stripes(given: int | None, transport: str) -> int:
    """Returns the number of switches that the job is to be dealt to: by argument, or by SWITCHAGG_STRIPES.

    Raises `UsageError` for a number that cannot be, or a transport that reaches one switch only.
    """
    name, value = "stripes", cast(object, given)
    if given is None:
        name, text = "SWITCHAGG_STRIPES", os.environ.get("SWITCHAGG_STRIPES") or "1"
        value = int(text) if text.isascii() and text.isdigit() else text
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_STRIPES:
        raise UsageError(f"{name} is {value!r}; accepted: 1 to {MAX_STRIPES}")
    if value > 1 and transport not in ("auto", "udp"):
        raise UsageError(
            f"{name} is {value} and the transport {transport!r}; accepted with it: 'auto', 'udp'"
        )
    return value


def start_engine(
    socks: Sequence[BoundSocket],
    member: Membership,
    transport: str,
    start: Callable[[list[Way]], T],
) -> tuple[T, str]:
    """Makes an engine, or lets a frozen one go on in a new generation.

    Args:
        socks: the sockets whose addresses the controller was told, by stripe.
        member: the admission that the controller gave.
        transport: one of `TRANSPORTS`.
        start: does it, with sockets and an engine's admissions for one transport or the other, by stripe.

    Returns:
        What `start` returns, and the transport that is used: "shm", "slots", "udp", "xdp" or "dpdk".

    Raises:
        SwitchError: no route to the switch, or it takes no link and `transport` is "shm" or "slots".
    """
    sock = socks[0]
    if member.stripes:
        transport = "udp"
    if transport in ("auto", "shm", "slots") and member.switch_link:
        try:
            used = "slots" if member.shared else "shm"
            at = _admission(member, member.slots, member.switch_link)
            return start([(sock.native, at)]), used
        except OSError as error:
            if transport != "auto":
                raise SwitchError(
                    f"no link through shared memory to the switch at {_switch(member)}: "
                    f"{error.strerror}. It has to run on this host, in the same "
                    'network namespace and as the same user; transport="udp" works from anywhere'
                ) from error
    elif transport in ("shm", "slots"):
        raise SwitchError(
            f'the switch at {_switch(member)} takes no links through shared memory; transport="udp" works'
        )
    if transport == "xdp":
        try:
            sock.native.use_xdp()
            return start([_by_packets(member, sock)]), "xdp"
        except OSError as error:
            sock.native.use_udp()
            why = xdp_refusal(error)
            warnings.warn(f"packets go by UDP, for AF_XDP does not work here: {why}", stacklevel=2)
    used = "dpdk" if transport == "dpdk" else "udp"
    try:
        ways = [_by_packets(*each) for each in zip(member.parts, socks, strict=True)]
        return start(ways), used
    except OSError as error:
        raise SwitchError(f"no route to the switch at {_switch(member)}: {error.strerror}") from error


def _by_packets(member: Membership, sock: BoundSocket) -> Way:
    return sock.native, _admission(member, window_limit(member, sock.native.receive_buffer), "")


def _switch(member: Membership) -> str:
    return show_address(member.switch_address, member.switch_port)


def shared_memory(transport: str, *, check: bool) -> str:
    """Returns what identifies the processes with which this one shares slots; empty if it does not.

    Where sums are checked, damage is healed by packets that are sent again.
    """
    return memory_identity() if transport in ("auto", "slots") and not check else ""


def _admission(member: Membership, window_limit: int, link: str) -> _native.Admission:
    return _native.Admission(
        switch_ip=_native.ip_number(member.switch_address),
        switch_port=member.switch_port,
        job=member.job,
        token=member.token,
        result_token=member.result_token,
        base=member.base,
        slots=member.slots,
        words=member.words,
        first_seq=member.first_seq,
        rank=member.rank,
        workers=member.world_size,
        window_limit=window_limit,
        link=link,
        policy=member.policy.word(),
        receivers=list(member.receivers),
        shared_slots=member.shared,
        threads=member.switch_threads,
        weight=member.weight,
    )


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A bound UDP endpoint that an engine is about to take.

    Attributes:
        native: the socket, in the form that the engine takes.
        address, port: where the switch will send to.
        warning: what the kernel refused and how to allow it; empty if nothing.
    """

    native: _native.Socket
    address: str
    port: int
    warning: str


def bind(address: str, transport: str = "udp", *, offload: bool = True) -> BoundSocket:
    """Binds a UDP socket, or an endpoint on DPDK's ports, to a free port of `address`.

    Raises:
        UsageError: not an address of this host, an IPv6 one with AF_XDP or DPDK, not on Linux, or DPDK's
            arguments cannot work.
        NetworkError: the kernel or DPDK refused for another reason.
    """
    if sys.platform != "linux":
        raise UsageError(f"the UDP transport uses Linux socket calls; this is {sys.platform}")
    address = str(parse_address("address", address))
    if ":" in address and transport in ("xdp", "dpdk"):
        raise UsageError(f"address is {address!r}; accepted with transport {transport!r}: an IPv4 address")
    number = _native.ip_number(address)
    if transport == "dpdk":
        return _bind_dpdk(address, number)
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
            f"{RECEIVE_BUFFER:,}); the window is smaller than it could be. As root: "
            f"sysctl -w net.core.rmem_max={RECEIVE_BUFFER}"
        )
    return BoundSocket(native, address, native.port, warning)


def _bind_dpdk(address: str, number: int) -> BoundSocket:
    ports = start_dpdk(DpdkSettings.from_environment(os.environ))
    try:
        native = _native.Socket.on_dpdk(number, **ports.native_arguments("workers"))
    except OSError as error:
        raise UsageError(f"address is {address}: {error.strerror}") from error
    return BoundSocket(native, address, native.port, "")


def window_limit(member: Membership, own_buffer: int) -> int:
    """Packets that one worker may have outstanding without overrunning a socket buffer.

    The switch's buffer is shared by all workers; a worker's own receives one RESULT for each packet that it
    sent.
    """
    each = 16 + 4 * member.words + OVERHEAD_PER_PACKET
    return max(1, min(own_buffer // each, member.switch_receive_buffer // (each * member.senders)))

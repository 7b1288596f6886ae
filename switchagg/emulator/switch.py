"""`Switch`: the software switch, as a Python program holds it.

    with Switch(port=0) as switch:
        switch.add_job(entry)
        switch.packet_out(init_packet)      # the controller's port
        ...                                 # workers send to switch.address

Native threads serve packets, without the GIL; every method may be called from any thread while they do.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from switchagg.addresses import exchanges, parse_address, resolve
from switchagg.computer import memory_identity
from switchagg.devices.dpdk import DpdkSettings
from switchagg.devices.dpdk import start as start_dpdk
from switchagg.devices.xdp import xdp_refusal
from switchagg.emulator.faults import Faults
from switchagg.emulator.mtu import words_at
from switchagg.emulator.rates import Rate
from switchagg.emulator.software_switch import SoftwareSwitch
from switchagg.errors import SwitchError, UsageError
from switchagg.rules.slots import Address, JobEntry
from switchagg.wire.header import max_words

if TYPE_CHECKING:
    from switchagg.p4program.program import JobPlace

DEFAULT_RECEIVE_BUFFER = 32 << 20
TRANSPORTS: Final = ("udp", "xdp", "dpdk")
_MIN_RECEIVE_BUFFER = 1 << 16
_MAX_RECEIVE_BUFFER = 1 << 30


class Switch(SoftwareSwitch):
    """A software switch on a UDP socket of this host.

    Its memory is its jobs' slots and the socket buffers (with a delay, up to 64 MB of packets under way; with
    a rate, its queues); it does not grow with traffic.

    Args:
        host: address of this host, or a name of one. At :: it takes workers of IPv6 and IPv4 at all of this
            host's addresses, and answers each from the address that the route to it says.
        port: UDP port; 0 for any free one.
        capacity: slots, 1..65,536.
        rate: of each worker's link, each way, whether its packets come by UDP or through shared memory;
            None for as fast as it goes.
        faults: what to do to packets; None for nothing.
        pcap: file to write all packets to; overwritten.
        links: let workers of this host and user attach through shared memory, where the kernel has
            memfd seals (Linux 5.1). They are admitted by their UDP address like all others.
        offload: let the kernel segment and coalesce (UDP_SEGMENT, UDP_GRO), where it can.
        receive_buffer: bytes to ask the kernel for, 64 KiB..1 GiB.
        transport: "udp", or "xdp" for AF_XDP on the interface of `host`, with neither links nor offload.
            Where the kernel refuses that, it is UDP, and `warnings` says why. "dpdk": `host` is the address
            that DPDK's ports have, without the kernel.
        dpdk: how to start DPDK, for that transport only.
        threads: that serve packets, 1..64. With several each has a socket at the same address and blocks of
            `BLOCK_SLOTS` consecutive slots of its own, and the kernel gives it their packets; a worker that
            attaches has a link to each. On AF_XDP and DPDK each has queues of its own, of which the interface
            or port must have as many. Not with a rate, faults or a capture.

    Raises `UsageError` for a value that cannot work and `SwitchError` on other systems than Linux.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        capacity: int = 65536,
        rate: Rate | None = None,
        faults: Faults | None = None,
        pcap: Path | None = None,
        links: bool = True,
        offload: bool = True,
        receive_buffer: int = DEFAULT_RECEIVE_BUFFER,
        transport: str = "udp",
        dpdk: DpdkSettings | None = None,
        threads: int = 1,
    ) -> None:
        super().__init__(capacity, rate, faults, pcap, threads)
        if not 0 <= port <= 0xFFFF:
            raise UsageError(f"port is {port}; accepted: 1..65535, or 0 for any free one")
        if not _MIN_RECEIVE_BUFFER <= receive_buffer <= _MAX_RECEIVE_BUFFER:
            raise UsageError(
                f"receive_buffer is {receive_buffer} bytes; accepted: "
                f"{_MIN_RECEIVE_BUFFER}..{_MAX_RECEIVE_BUFFER}"
            )
        if transport not in TRANSPORTS:
            raise UsageError(f"transport is {transport!r}; accepted: {', '.join(TRANSPORTS)}")
        if (dpdk is not None) != (transport == "dpdk"):
            raise UsageError(f"transport is {transport!r}, and dpdk {dpdk}; DPDK needs both")
        if threads > 1 and (rate or self.faults or pcap):
            raise UsageError(f"threads is {threads}; accepted with a rate, faults or a capture: 1")
        self.threads = threads
        """That serve packets."""
        self._dpdk = dpdk and replace(dpdk, queues=threads)
        self._transport_warnings: list[str] = []
        self.transport = transport
        """The way of packets from other hosts: "udp", "xdp" or "dpdk"."""
        self.transport_details = ""
        """Of AF_XDP the interface, and whether its driver takes part; of DPDK its ports."""
        self._mtu: int | None = None  # of DPDK's ports
        self._bind = (_resolve(host), port)
        if transport != "udp" and ":" in self._bind[0]:
            raise UsageError(f"host is {host!r}; accepted with transport {transport!r}: an IPv4 address")
        self._links = links
        self._offload = offload
        self._asked_buffer = receive_buffer

    def start(self) -> None:
        """Binds the socket and serves packets from now on.

        Raises:
            SwitchError: the port is in use, there is no permission for it, or this switch was started before.
            NetworkError: there is no DPDK, or a port of it does not open.
            UsageError: `host` is no address of this host, or `pcap` cannot be written.
        """
        if self.transport == "xdp" and self._state == "not started":
            try:
                self.transport_details = self._native.use_xdp(self._bind[0])
            except OSError as error:
                self.transport = "udp"
                self._transport_warnings.append(
                    f"packets go by UDP, for AF_XDP does not work here: {xdp_refusal(error)}"
                )
        if self._dpdk is not None and self._state == "not started":
            ports = start_dpdk(self._dpdk)
            self.transport_details, self._mtu = ports.description, ports.mtu
            try:
                self._native.use_dpdk(self._bind[0], **ports.native_arguments("a switch"))
            except OSError as error:
                raise UsageError(f"host is {self._bind[0]}: {error.strerror}") from error
        try:
            self._open(
                self._native.open,
                self._bind,
                receive_buffer=self._asked_buffer,
                offload=self._offload,
                links=self._links,
            )
        except OSError as error:
            raise _bind_error(self._bind, error) from error

    @property
    def address(self) -> Address:
        """(ip, port) where packets are taken."""
        return self._opened().address

    @property
    def largest_words(self) -> int:
        """The largest K that fits the packets of its interface."""
        return words_at(self.address[0]) if self._mtu is None else max_words(self._mtu)

    @property
    def receive_buffer(self) -> int:
        """Bytes that the kernel granted. What workers have in flight together should fit."""
        return self._opened().receive_buffer

    @property
    def link(self) -> str:
        """Name of the UNIX socket (abstract) where workers of this host attach; empty without links."""
        return self._opened().link_name

    @property
    def memory(self) -> str:
        """Identifies the processes whose jobs may have shared slots (`switchagg.computer.memory_identity`).

        Empty where none may: without links, or where rates, faults or a capture have to see packets.
        """
        return memory_identity() if self.link and not (self.rate or self.faults or self._pcap) else ""

    @property
    def gso(self) -> bool:
        """True if the kernel segments what is sent into datagrams (UDP_SEGMENT)."""
        return self._opened().gso

    @property
    def gro(self) -> bool:
        """True if the kernel coalesces received datagrams (UDP_GRO)."""
        return self._opened().gro

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator: a small buffer, no offload, a capture that is not whole, a failure."""
        native = self._opened()
        found = list(self._transport_warnings)
        if self.transport != "udp":
            return found + self._capture_warnings
        if native.receive_buffer < self._asked_buffer:
            found.append(
                f"the kernel granted a receive buffer of {native.receive_buffer} bytes, not "
                f"{self._asked_buffer}: windows have to be smaller. To allow more: "
                f"sysctl -w net.core.rmem_max={self._asked_buffer}"
            )
        missing = [name for name, on in (("UDP_SEGMENT", native.gso), ("UDP_GRO", native.gro)) if not on]
        if self._offload and missing:
            found.append(
                f"no {' and no '.join(missing)} here: packets go through sendmmsg and recvmmsg one by one, "
                "at a fraction of the speed"
            )
        return found + self._capture_warnings

    def add_job(self, job: JobEntry, place: JobPlace | None = None) -> None:  # noqa: ARG002
        """Admits a job's workers. Its slots need INIT packets (`packet_out`) before they work.

        Args:
            place: of no meaning here; where its workers are, to a switch on Ethernet.

        Raises `UsageError` where the id is in use, or the range leaves the capacity or overlaps another job.
        """
        at = self._bind[0]
        for ip in [each.ip for each in job.workers] + ([job.parent.ip] if job.parent else []):
            if not exchanges(at, ip):
                raise UsageError(f"job {job.job}: {ip} exchanges no packets with the switch at {at}")
        self._here().add_job(job)

    def port_counters(self) -> dict[str, int]:
        """Returns what passed the socket: packets_in, bytes_in, packets_out, bytes_out, and on the way
        receive_calls, send_calls, refused, send_errors. Of AF_XDP and DPDK also what was dropped: malformed,
        unaddressed, not_open, too_large, no_room. With several threads also strays, which
        came to another thread's socket than their slot's, and strays_dropped, for which that had no room.

        Bytes are of UDP payload, calls are system calls, and `refused` were answered with "port unreachable".
        """
        native = self._here()
        return native.port_counters() | native.host_counters() | native.stray_counters()


def _resolve(host: str) -> str:
    with suppress(OSError, UnicodeError):
        if host:
            return str(parse_address("host", host if ":" in host else resolve(host)))
    raise UsageError(f"host is {host!r}; accepted: an IPv4 or IPv6 address of this host, or a name of one")


def _bind_error(bind: Address, error: OSError) -> SwitchError | UsageError:
    host, port = bind
    match error.errno:
        case errno.EADDRINUSE:
            return SwitchError(
                f"UDP port {port} of {host} is in use; choose another one (0 for any that is free), or "
                f"stop what has it: ss -ulpn 'sport = :{port}' shows that"
            )
        case errno.EACCES | errno.EPERM:
            return SwitchError(
                f"no permission for UDP port {port} of {host}: ports below 1024 are for root and for "
                "processes with CAP_NET_BIND_SERVICE; choose a port above"
            )
        case errno.EADDRNOTAVAIL:
            return UsageError(f"host is {host}, which is no address of this host; `ip address` lists them")
        case _:
            return SwitchError(f"UDP port {port} of {host}: {error.strerror or error}")

"""`Switch`: the software switch, as a Python program holds it.

    with Switch(port=0) as switch:
        switch.add_job(entry)
        switch.packet_out(init_packet)      # the controller's port
        ...                                 # workers send to switch.address

One native thread serves packets, without the GIL; every method may be called from any thread while it does.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
import weakref
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

from switchagg.emulator.faults import Faults
from switchagg.emulator.lifetime import Lifetime
from switchagg.emulator.rates import Rate
from switchagg.errors import SwitchError, UsageError
from switchagg.slots import Address, JobEntry, SlotState

if TYPE_CHECKING:
    from switchagg.emulator._native import FaultSettings, NativeSwitch, RateSettings
    from switchagg.emulator.tallies import JobTallies

DEFAULT_RECEIVE_BUFFER = 32 << 20
_MIN_RECEIVE_BUFFER = 1 << 16
_MAX_RECEIVE_BUFFER = 1 << 30


class Switch(Lifetime):
    """A software switch on a UDP socket of this host.

    Its memory is its jobs' slots and the socket buffers (with a delay, up to 64 MB of packets under way; with
    a rate, its queues); it does not grow with traffic.

    Args:
        host: IPv4 address of this host, or a name of one.
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
    ) -> None:
        native = _native_switch(capacity)
        if not 0 <= port <= 0xFFFF:
            raise UsageError(f"port is {port}; accepted: 1..65535, or 0 for any free one")
        if not _MIN_RECEIVE_BUFFER <= receive_buffer <= _MAX_RECEIVE_BUFFER:
            raise UsageError(
                f"receive_buffer is {receive_buffer} bytes; accepted: "
                f"{_MIN_RECEIVE_BUFFER}..{_MAX_RECEIVE_BUFFER}"
            )
        self._native = native
        _switches.add(self)
        self._bind = (_resolve(host), port)
        self._pcap = pcap
        self._links = links
        self._offload = offload
        self._asked_buffer = receive_buffer
        self._state = "not started"
        self.rate: Rate | None = rate
        """How fast each worker's link is; None where nothing limits it."""
        self.faults: Faults | None = None
        """What is injected, with the seed that is used; None for nothing."""
        if faults is not None and faults.any:
            self.faults = faults if faults.seed is not None else replace(faults, seed=secrets.randbits(63))

    def start(self) -> None:
        """Binds the socket and serves packets from now on.

        Raises:
            SwitchError: the port is in use, there is no permission for it, or this switch was started before.
            UsageError: `host` is no address of this host, or `pcap` cannot be written.
        """
        if self._state != "not started":
            raise SwitchError(f"this switch is {self._state}; a switch starts once, so make another one")
        try:
            self._native.open(
                self._bind,
                receive_buffer=self._asked_buffer,
                offload=self._offload,
                rate=_rate_settings(self.rate),
                faults=_fault_settings(self.faults),
                capture=-1 if self._pcap is None else _create(self._pcap),
                links=self._links,
            )
        except OSError as error:
            raise _bind_error(self._bind, error) from error
        self._state = "running"

    def close(self) -> None:
        """Stops serving and closes the socket and the capture file. Counters and slots can still be read."""
        if self._state == "running" and self._native.in_own_process:
            self._native.close()
        self._state = "closed"

    @property
    def address(self) -> Address:
        """(ip, port) where packets are taken."""
        return self._opened().address

    @property
    def receive_buffer(self) -> int:
        """Bytes that the kernel granted. What workers have in flight together should fit."""
        return self._opened().receive_buffer

    @property
    def link(self) -> str:
        """Name of the UNIX socket (abstract) where workers of this host attach; empty without links."""
        return self._opened().link_name

    @property
    def gso(self) -> bool:
        """Whether the kernel cuts what is sent into datagrams (UDP_SEGMENT)."""
        return self._opened().gso

    @property
    def gro(self) -> bool:
        """Whether the kernel hands over what comes in as trains of datagrams (UDP_GRO)."""
        return self._opened().gro

    @property
    def failure(self) -> str | None:
        """Why the switch ended by itself, which no packet can make it do; None while all is well."""
        return self._here().failure or None

    @property
    def warnings(self) -> list[str]:
        """What a person should know: a small buffer, no offload, a capture that is not whole, a failure."""
        native = self._opened()
        found = []
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
        capture = native.capture_counters()
        if capture.get("error"):
            found.append(
                f"capture {self._pcap} ends early: {os.strerror(capture['error'])}; "
                f"{capture['missing']} packets are not in it"
            )
        if native.failure:
            found.append(f"the switch has stopped: {native.failure}")
        return found

    def add_job(self, job: JobEntry) -> None:
        """Admits a job's workers. Its slots need INIT packets (`packet_out`) before they work.

        Raises `UsageError` where the id is in use, or the range leaves the capacity or overlaps another job.
        """
        self._here().add_job(job)

    def remove_job(self, job_id: int) -> None:
        """Forgets a job and frees its slots. Raises `UsageError` where there is no such job."""
        self._here().remove_job(job_id)

    def fence(self, job_id: int, bits: int) -> None:
        """Drops the packets of these workers from now on, as from nobody in the job; `SlotTable.fence`.

        Raises `UsageError` where there is no such job, or one of the bits is no worker's.
        """
        self._here().fence(job_id, bits)

    def admit(self, job_id: int, bits: int) -> None:
        """Takes the packets of workers that were fenced again. Raises as `fence`."""
        self._here().admit(job_id, bits)

    def packet_out(self, packet: bytes) -> list[bytes]:
        """Takes in a packet at the controller's port; returns what leaves there, an INIT's echo."""
        return self._here().packet_out(packet)

    def counters(self) -> dict[str, int]:
        """Returns every name of `switchagg.wire.COUNTERS` with its count since the switch was made."""
        return self._here().counters()

    def job_counters(self, job_id: int) -> dict[str, int]:
        """Returns the same for one job, and ``worker_<bit>_packets``.

        Raises `UsageError` where there is no such job.
        """
        return self._here().job_counters(job_id)

    def tallies(self, job_id: int) -> JobTallies:
        """Returns what is counted of a job beyond that. Raises `UsageError` where there is no such job."""
        return self._here().tallies(job_id)

    def strangers(self) -> dict[str, int]:
        """Returns `counters` for the packets that belong to no job."""
        return self._here().strangers()

    def slot(self, index: int) -> SlotState:
        """Returns a copy of a slot. Raises `UsageError` where `index` belongs to no job."""
        return self._here().slot(index)

    def port_counters(self) -> dict[str, int]:
        """Returns what passed the socket: packets_in, bytes_in, packets_out, bytes_out, and on the way
        receive_calls, send_calls, refused, send_errors.

        Bytes are of UDP payload, calls are system calls, and `refused` were answered with "port unreachable".
        """
        return self._here().port_counters()

    def rate_counters(self) -> dict[str, int]:
        """Returns packets, wire_bytes, queued, dropped, each with _in and _out; empty without a rate.

        `wire_bytes` are as Ethernet counts (`switchagg.emulator.rates.wire_bytes`), of `packets`, which were
        let through; `queued` of these had to wait, and `dropped` found a link's queue full.
        """
        return self._here().rate_counters()

    def fault_counters(self) -> dict[str, int]:
        """Returns lost, corrupted, duplicated, reordered, delayed, overflowed, each with _in and _out.

        `overflowed` are those dropped because too much was held back already. Empty without faults.
        """
        return self._here().fault_counters()

    def capture_counters(self) -> dict[str, int]:
        """Returns captured, missing and error; empty without a capture.

        `captured` are the packets in the file (it is written in blocks, or after a second without traffic),
        `missing` those that are not in it, `error` the errno of the write that failed, or 0.
        """
        return self._here().capture_counters()

    def _here(self) -> NativeSwitch:
        if not self._native.in_own_process:
            raise SwitchError("this switch runs in the parent of this process and can be used only there")
        return self._native

    def _opened(self) -> NativeSwitch:
        if self._state == "not started":
            raise SwitchError("this switch is not started: call start(), or use it in a `with` statement")
        return self._here()


_switches: weakref.WeakSet[Switch] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A child that kept a switch's sockets would keep its workers believing in it."""
    for switch in list(_switches):
        switch._native.abandon()


os.register_at_fork(after_in_child=_let_go_in_child)


def _native_switch(capacity: int) -> NativeSwitch:
    if sys.platform != "linux":
        raise SwitchError(
            f"the software switch runs on Linux only (UDP_SEGMENT, recvmmsg), and this is {sys.platform}; "
            "run it in a Linux container or virtual machine"
        )
    from switchagg.emulator._native import NativeSwitch

    return NativeSwitch(capacity)


def _rate_settings(rate: Rate | None) -> RateSettings | None:
    from switchagg.emulator._native import RateSettings

    if rate is None:
        return None
    return RateSettings(bits_per_second=rate.bits_per_second, queue_bytes=rate.queue)


def _fault_settings(faults: Faults | None) -> FaultSettings | None:
    from switchagg.emulator._native import FaultSettings

    if faults is None:
        return None
    return FaultSettings(
        loss=faults.loss,
        duplicate=faults.duplicate,
        reorder=faults.reorder,
        corrupt=faults.corrupt,
        delay_ns=round(faults.delay * 1e9),
        jitter_ns=round(faults.jitter * 1e9),
        seed=faults.seed or 0,
    )


def _resolve(host: str) -> str:
    with suppress(ValueError):
        return str(IPv4Address(host))
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        found = []
    if not host or not found:
        raise UsageError(f"host is {host!r}; accepted: an IPv4 address of this host, or a name of one")
    return str(found[0][4][0])


def _create(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"pcap is {path}: {error.strerror}; name a file that can be written") from error


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
            return UsageError(f"host is {host}, which is no address of this host; `ip -4 address` lists them")
        case _:
            return SwitchError(f"UDP port {port} of {host}: {error.strerror or error}")

"""`P4Switch`: a switch that executes a P4 program in the model, on a UDP socket of this host.

    with P4Switch(Path("p4/switchagg_v1model.p4"), port=0) as switch:
        switch.add_job(entry)               # as `emulator.switch.Switch`, whose place it takes
        switch.packet_out(init_packet)

For tests and for looking inside: it runs some thousand packets a second. A thread serves the socket; every
method may be called from any other while it does.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from switchagg.emulator.fault_line import FaultDevice
from switchagg.emulator.faults import Faults
from switchagg.emulator.lifetime import Lifetime
from switchagg.emulator.p4_jobs import P4Jobs
from switchagg.errors import SwitchAggError, SwitchError, UsageError
from switchagg.rules.slots import Address, JobEntry, SlotState

_RECEIVE_BUFFER: Final = 32 << 20
_LARGEST: Final = 65535
_PORT_COUNTERS: Final = ("packets_in", "bytes_in", "packets_out", "bytes_out", "send_errors")


class P4Switch(Lifetime):
    """A P4 program as a switch on a UDP socket.

    Args:
        program: `switchagg_v1model.p4` or `switchagg_tna.p4`, or a copy of one.
        host: IPv4 address of this host.
        port: UDP port; 0 for any free one.
        include_dirs, defines: for the preprocessor.
        capacity: slots that jobs may have; None for all that the program has.
        seed: of the program's random numbers.
        faults: what to do to packets; None for nothing.

    Raises `UsageError` for a program or a value that cannot work.
    """

    gso = False
    gro = False
    rate = None

    def __init__(
        self,
        program: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        include_dirs: Sequence[str] = (),
        defines: Sequence[str] = (),
        capacity: int | None = None,
        seed: int = 0,
        faults: Faults | None = None,
    ) -> None:
        if not 0 <= port <= 0xFFFF:
            raise UsageError(f"port is {port}; accepted: 1..65535, or 0 for any free one")
        self._jobs = P4Jobs(program, include_dirs=include_dirs, defines=defines, capacity=capacity, seed=seed)
        self._bind = host, port
        self._lock = threading.Lock()
        self._traffic: Counter[str] = Counter()
        self._device = FaultDevice[Address](faults)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self.failure: str | None = None
        """The error that ended the switch; None while it serves."""

    def start(self) -> None:
        """Binds the socket and serves packets from now on.

        Raises:
            SwitchError: the port is in use, there is no permission for it, or this switch was started before.
            UsageError: `host` is no address of this host.
        """
        if self._socket is not None:
            raise SwitchError("this switch was started already; a switch starts once, so make another one")
        host, port = self._bind
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            made.bind((host, port))
        except socket.gaierror:
            made.close()
            raise UsageError(f"host is {host!r}; accepted: an IPv4 address of this host") from None
        except OSError as error:
            made.close()
            kind = UsageError if error.errno == errno.EADDRNOTAVAIL else SwitchError
            raise kind(f"UDP port {port} of {host}: {error.strerror}") from error
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        made.setblocking(False)
        self._socket = made
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="p4-switch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving and closes the socket. Counters and slots can still be read."""
        if self._thread is None:
            return
        self._wake.send(b"x")
        self._thread.join()
        self._thread = None
        for each in (self._wake, self._woken, self._open()):
            each.close()

    def _open(self) -> socket.socket:
        if self._socket is None:
            raise SwitchError("this switch is not started: call start(), or use it in a `with` statement")
        return self._socket

    def _serve(self) -> None:
        served = self._open()
        while True:
            timeout = self._device.timeout(time.monotonic())
            readable, _, _ = select.select([served, self._woken], [], [], timeout)
            if self._woken in readable:
                return
            now = time.monotonic()
            arrived = self._device.inward.release(now)
            if served in readable:
                try:
                    payload, source = served.recvfrom(_LARGEST)
                except OSError:
                    # An answer of the network to what was sent before; nothing came in.
                    pass
                else:
                    self._traffic.update(packets_in=1, bytes_in=len(payload))
                    arrived += self._device.inward.enter(payload, source, now)
            try:
                leaving = [out for packet in arrived for out in self._process(*packet)]
            except SwitchAggError as error:
                self.failure = str(error)
                return
            for out, address in leaving + self._device.outward.release(now):
                self._send(served, out, address)

    def _process(self, payload: bytes, source: Address) -> list[tuple[bytes, Address]]:
        """Runs a packet; returns what leaves for now."""
        now = time.monotonic()
        with self._lock:
            outs = self._jobs.receive(payload, source, now)
        return [left for address, out in outs for left in self._device.outward.enter(out, address, now)]

    def _send(self, served: socket.socket, payload: bytes, address: Address) -> None:
        try:
            served.sendto(payload, address)
        except OSError:
            self._traffic["send_errors"] += 1
        else:
            self._traffic.update(packets_out=1, bytes_out=len(payload))

    # ---- as `emulator.switch.Switch` ----

    @property
    def address(self) -> Address:
        """(ip, port) where packets are taken."""
        ip, port = self._open().getsockname()
        return str(ip), int(port)

    @property
    def receive_buffer(self) -> int:
        """Bytes that the kernel granted."""
        # The kernel reports twice what it grants: half is for its own book-keeping.
        return self._open().getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2

    @property
    def faults(self) -> Faults | None:
        """The faults that are injected, with the seed in use; None for none."""
        return self._device.faults

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator."""
        return [f"the switch has stopped: {self.failure}"] if self.failure else []

    def add_job(self, job: JobEntry) -> None:
        """Admits a job's workers. Raises `UsageError` for one that does not fit the program or other jobs."""
        with self._lock:
            self._jobs.add_job(job)

    def remove_job(self, job_id: int) -> None:
        """Forgets a job. Raises `UsageError` where there is none."""
        with self._lock:
            self._jobs.remove_job(job_id)

    def fence(self, job_id: int, bits: int) -> None:
        """Drops these workers' packets from now on. Raises `UsageError` for a job or worker not there."""
        with self._lock:
            self._jobs.fence(job_id, bits)

    def packet_out(self, packet: bytes) -> list[bytes]:
        """Takes in a packet at the controller's port; returns what leaves there, an INIT's echo."""
        with self._lock:
            return self._jobs.packet_out(packet, time.monotonic())

    def counters(self) -> dict[str, int]:
        """Every name of `switchagg.wire.header.COUNTERS` with its count."""
        with self._lock:
            return self._jobs.counters()

    def job_counters(self, job_id: int) -> dict[str, int]:
        """The same of one job, and ``worker_<bit>_packets``. Raises `UsageError` where there is none."""
        with self._lock:
            return self._jobs.job_counters(job_id)

    def slot(self, index: int) -> SlotState:
        """A copy of a slot. Raises `UsageError` where `index` belongs to no job."""
        with self._lock:
            return self._jobs.slot(index)

    def port_counters(self) -> dict[str, int]:
        """Returns the socket's traffic: packets_in, bytes_in, packets_out, bytes_out, send_errors."""
        return {name: self._traffic[name] for name in _PORT_COUNTERS}

    def rate_counters(self) -> dict[str, int]:
        """Nothing: its links have no particular rate."""
        return {}

    def fault_counters(self) -> dict[str, int]:
        """Returns lost, corrupted, duplicated, reordered, delayed, overflowed, each with _in and _out.

        Empty without faults.
        """
        return self._device.counters()

    def capture_counters(self) -> dict[str, int]:
        """Nothing: this switch writes no capture."""
        return {}

"""`SoftwareSwitch`: the members that the native switch has on a UDP port and on Ethernet alike.

Native threads serve packets, without the GIL; every method may be called from any thread while they do.
"""

from __future__ import annotations

import os
import secrets
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from switchagg.emulator.faults import Faults
from switchagg.emulator.lifetime import Lifetime
from switchagg.emulator.rates import Rate
from switchagg.errors import SwitchError, UsageError
from switchagg.rules.slots import SlotState

if TYPE_CHECKING:
    from switchagg.emulator._native import NativeSwitch
    from switchagg.emulator.outcomes import JobOutcomes


class SoftwareSwitch(Lifetime):
    """A native switch: its jobs, slots and counters. `Switch` and `EtherSwitch` stand for it.

    Args:
        capacity: slots, 1..65,536.
        rate: of each worker's link; on Ethernet of each port's.
        faults: what to do to packets; None for nothing.
        pcap: file to write all packets to; overwritten.
        threads: that serve packets.

    Raises `UsageError` for a value that cannot work and `SwitchError` on other systems than Linux.
    """

    def __init__(
        self,
        capacity: int,
        rate: Rate | None,
        faults: Faults | None,
        pcap: Path | None,
        threads: int = 1,
    ) -> None:
        self._native = _native_switch(capacity, threads)
        _switches.add(self)
        self._pcap = pcap
        self._state = "not started"
        self.rate: Rate | None = rate
        """The speed of each link; None for no limit."""
        self.faults: Faults | None = None
        """The faults that are injected, with the seed in use; None for none."""
        if faults is not None and faults.any:
            self.faults = faults if faults.seed is not None else replace(faults, seed=secrets.randbits(63))

    def _open(self, native_open: Callable[..., None], *where: object, **settings: object) -> None:
        """Calls a function of the native switch that starts it, with the devices' settings.

        Raises `SwitchError` for a switch that was started before, `UsageError` where the capture file cannot
        be made, and `OSError` as the function does.
        """
        from switchagg.emulator._native import FaultSettings, RateSettings

        if self._state != "not started":
            raise SwitchError(f"this switch is {self._state}; a switch starts once, so make another one")
        rate, faults = self.rate, self.faults
        native_open(
            *where,
            **settings,
            rate=rate
            and RateSettings(
                bits_per_second=rate.bits_per_second, queue_bytes=rate.queue, mark_bytes=rate.mark or 0
            ),
            faults=faults
            and FaultSettings(
                loss=faults.loss,
                duplicate=faults.duplicate,
                reorder=faults.reorder,
                corrupt=faults.corrupt,
                delay_ns=round(faults.delay * 1e9),
                jitter_ns=round(faults.jitter * 1e9),
                seed=faults.seed or 0,
            ),
            capture=-1 if self._pcap is None else _create_capture(self._pcap),
        )
        self._state = "running"

    def close(self) -> None:
        """Stops serving and closes the socket and the capture file. Counters and slots can still be read."""
        if self._state == "running" and self._native.in_own_process:
            self._native.close()
        self._state = "closed"

    @property
    def failure(self) -> str | None:
        """The error that ended the switch, which no packet can cause; None while it serves."""
        return self._here().failure or None

    @property
    def _capture_warnings(self) -> list[str]:
        native = self._opened()
        capture = native.capture_counters()
        found = []
        if capture.get("error"):
            found.append(
                f"capture {self._pcap} ends early: {os.strerror(capture['error'])}; "
                f"{capture['missing']} packets are not in it"
            )
        if native.failure:
            found.append(f"the switch has stopped: {native.failure}")
        return found

    def remove_job(self, job_id: int) -> None:
        """Forgets a job and frees its slots. Raises `UsageError` where there is no such job."""
        self._here().remove_job(job_id)

    def fence(self, job_id: int, bits: int) -> None:
        """Drops the packets of these workers from now on, as from nobody in the job.

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
        """Returns every name of `switchagg.wire.header.COUNTERS` with its count since the switch was made."""
        return self._here().counters()

    def job_counters(self, job_id: int) -> dict[str, int]:
        """Returns the same for one job, and ``worker_<bit>_packets``.

        Raises `UsageError` where there is no such job.
        """
        return self._here().job_counters(job_id)

    def outcome_counters(self, job_id: int) -> JobOutcomes:
        """Returns what is counted of a job beyond that. Raises `UsageError` where there is no such job."""
        return self._here().outcome_counters(job_id)

    def unknown_job_counters(self) -> dict[str, int]:
        """Returns `counters` for the packets that belong to no job."""
        return self._here().unknown_job_counters()

    def slot(self, index: int) -> SlotState:
        """Returns a copy of a slot. Raises `UsageError` where `index` belongs to no job."""
        return self._here().slot(index)

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


_switches: weakref.WeakSet[SoftwareSwitch] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A child that kept a switch's sockets would keep its workers believing in it."""
    for switch in list(_switches):
        switch._native.abandon()


os.register_at_fork(after_in_child=_let_go_in_child)


def _native_switch(capacity: int, threads: int) -> NativeSwitch:
    if sys.platform != "linux":
        raise SwitchError(
            f"the software switch runs on Linux only (UDP_SEGMENT, recvmmsg), and this is {sys.platform}; "
            "run it in a Linux container or virtual machine"
        )
    from switchagg.emulator._native import NativeSwitch

    return NativeSwitch(capacity, threads)


def _create_capture(path: Path) -> int:
    """Returns the descriptor of an empty file. Raises `UsageError` where it cannot be made."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"pcap is {path}: {error.strerror}; name a file that can be written") from error

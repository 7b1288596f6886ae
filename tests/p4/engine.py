"""A P4 device as an engine of the conformance suite: UDP payloads become frames, and frames UDP payloads.

Every frame that comes out is looked at as a station would: addresses, lengths, checksum, padding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pytest

from switchagg.p4program.counters import Reader, job_counters, refusals
from switchagg.p4program.entries import job_entries, switch_entries, worker_entries
from switchagg.p4program.frames import frame, packet_in, packet_out
from switchagg.p4program.program import (
    FLOOD_GROUP,
    OUTCOMES,
    OUTCOMES_PER_JOB,
    STATIONS,
    WORKER_PACKETS,
    WORKER_REPEATS,
    WORKERS_PER_JOB,
    Entries,
    JobPlace,
    Parent,
    Station,
    SwitchAddress,
    TableEntry,
)
from switchagg.rules.slots import Address, JobEntry, Out, SlotState, WorkerEntry
from switchagg.wire.header import COUNTERS
from tests.reference.slots import SlotTable

from .device_under_test import DeviceUnderTest

ADDRESS: Final = SwitchAddress(0x0200000000FE, "10.0.255.254")
PORTS: Final = tuple(range(48))
STRANGER: Final = 47
"""The port of whoever is no worker."""

LARGEST: Final = 9000
"""Bytes of a UDP payload that a link carries."""


def mac_of(ip: str) -> int:
    """Returns the MAC of a station."""
    return 0x020000000000 | int.from_bytes(bytes(map(int, ip.split("."))), "big")


def install_switch(dut: DeviceUnderTest, ports: tuple[int, ...] = PORTS) -> Entries:
    """Writes what a switch needs before its first job."""
    entries = switch_entries(dut.target, ADDRESS, ports)
    for entry in entries.tables:
        dut.insert(entry)
    for group in entries.groups:
        dut.insert_group(group)
    dut.set_default(STATIONS, "flood", {"group": FLOOD_GROUP})
    return entries


@dataclass
class Installed:
    """A job on a device: the entries that are there now, and all that it came with."""

    entry: JobEntry
    place: JobPlace
    entries: Entries
    cells: dict[tuple[str, int], int]  # what they were before the job
    all_entries: Entries
    refused: Counter[str] = field(default_factory=Counter)  # by entries that are gone


class P4Engine:
    """An engine on a device.

    Args:
        dut: with what `install_switch` writes.
        common: what that was.
        capacity: slots that jobs may have.
    """

    def __init__(self, dut: DeviceUnderTest, common: Entries, capacity: int) -> None:
        self._dut = dut
        self._common = common
        self._admission = SlotTable(capacity)  # for what the control plane checks
        self._jobs: dict[int, Installed] = {}
        self._gone: Counter[str] = Counter()
        self._before = refusals(common, self._reader())

    def close(self) -> None:
        for job in list(self._jobs):
            self.remove_job(job)

    def add_job(self, job: JobEntry, place: JobPlace | None = None) -> None:
        """Admits a job, by default at the first places that are free."""
        if job.words != self._dut.target.words and job.job not in self._jobs:
            pytest.skip(f"K = {job.words}; this program is compiled for {self._dut.target.words}")
        if not job.touch:
            pytest.skip("a P4 program has no floor to measure")
        self._admission.add_job(job)
        place = place or self._free_place(job)
        entries = job_entries(self._dut.target, job, place)
        for entry in entries.tables:
            self._dut.insert(entry)
        for group in entries.groups:
            self._dut.insert_group(group)
        cells = {
            (name, place.index * each + cell): self._dut.cell(name, place.index * each + cell)
            for name, each in (
                (OUTCOMES, OUTCOMES_PER_JOB),
                (WORKER_PACKETS, WORKERS_PER_JOB),
                (WORKER_REPEATS, WORKERS_PER_JOB),
            )
            for cell in range(each)
        }
        self._jobs[job.job] = Installed(job, place, entries, cells, entries)

    def _free_place(self, job: JobEntry) -> JobPlace:
        used = {each.place.index for each in self._jobs.values()}
        index = next(index for index in range(256) if index not in used)
        ports = {ip: port for port, ip in self._ports().items()}
        for worker in job.workers:
            if worker.ip not in ports:
                ports[worker.ip] = next(port for port in PORTS if port not in ports.values())
        stations = {worker.bit: Station(ports[worker.ip], mac_of(worker.ip)) for worker in job.workers}
        above = job.parent
        if above is None:
            return JobPlace(index, stations)
        if above.ip not in ports:
            ports[above.ip] = next(port for port in PORTS if port not in ports.values())
        station = Station(ports[above.ip], mac_of(above.ip))
        parent = Parent(station, above.ip, above.token, above.base, above.result_token, above.port)
        return JobPlace(index, stations, parent)

    def remove_job(self, job_id: int) -> None:
        counters = self.job_counters(job_id)
        self._admission.remove_job(job_id)
        job = self._jobs[job_id]
        self._gone.update({name: counters[name] for name in COUNTERS})
        del self._jobs[job_id]
        for entry in job.entries.tables:
            self._dut.delete(entry)
        for group in job.entries.groups:
            self._dut.delete_group(group)

    def installed(self, job_id: int) -> Installed:
        """The entries of a job on the device."""
        return self._jobs[job_id]

    def fence(self, job_id: int, bits: int) -> None:
        """Takes the workers' entries away."""
        self._admission.fence(job_id, bits)  # raises where there is no such job or worker
        job = self._jobs[job_id]
        gone = worker_entries(job.entries, job.entry, bits)
        job.refused.update(refusals(Entries(gone, ()), self._reader(job)))
        for entry in gone:
            self._dut.delete(entry)
        job.entries = Entries(tuple(e for e in job.entries.tables if e not in gone), job.entries.groups)

    def admit(self, job_id: int, bits: int) -> None:
        """Writes them again."""
        self._admission.admit(job_id, bits)
        job = self._jobs[job_id]
        back = worker_entries(job.all_entries, job.entry, bits)
        for entry in back:
            if entry not in job.entries.tables:
                self._dut.insert(entry)
        kept = tuple(e for e in job.entries.tables if e not in back)
        job.entries = Entries(kept + back, job.entries.groups)

    def receive(
        self, payload: bytes, source: Address | None, port: int | None = None, ecn: int = 0
    ) -> list[Out]:
        """Sends a packet, by default from where its source is, with that in IP's field of ECN."""
        if len(payload) > LARGEST:
            pytest.skip(f"no link carries {len(payload)} bytes")
        target = self._dut.target
        if source is None:
            frames = self._dut.send(target.controller_port, packet_out(target, ADDRESS, payload))
        else:
            sender = mac_of(source[0]), *source
            whole = frame(payload, sender, (ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port), ecn=ecn)
            frames = self._dut.send(self._port_of(source[0]) if port is None else port, whole)
        outs = [self._read(port, data) for port, data in frames]
        order = [worker.address for job in self._jobs.values() for worker in _by_bit(job.entry)]
        order += [job.entry.parent.address for job in self._jobs.values() if job.entry.parent is not None]
        return sorted(outs, key=lambda out: -1 if out[0] is None else order.index(out[0]))

    def _read(self, port: int, data: bytes) -> Out:
        if port == self._dut.target.controller_port:
            return None, packet_in(data)
        header = data[14:34]
        udp = data[34:42]
        ip, udp_port = ".".join(map(str, header[16:20])), int.from_bytes(udp[2:4], "big")
        assert data[12:14] == b"\x08\x00"
        assert int.from_bytes(data[:6], "big") == mac_of(ip)
        assert int.from_bytes(data[6:12], "big") == ADDRESS.mac
        assert header[0] == 0x45
        self.ecn = header[1] & 3
        assert header[9] == 17
        assert sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, 20, 2)) % 0xFFFF == 0
        assert ".".join(map(str, header[12:16])) == ADDRESS.ip
        assert int.from_bytes(udp[:2], "big") == ADDRESS.udp_port
        size = int.from_bytes(udp[4:6], "big")
        assert int.from_bytes(header[2:4], "big") == 20 + size
        assert udp[6:8] == b"\0\0"
        assert len(data) >= max(60, 34 + size), "a runt"
        assert not any(data[34 + size :]), "what pads a frame is zero"
        assert port == self._port_of(ip)
        return (ip, udp_port), data[42 : 34 + size]

    def _ports(self) -> dict[int, str]:
        return {
            job.place.stations[worker.bit].port: worker.ip
            for job in self._jobs.values()
            for worker in job.entry.workers
        } | {
            job.place.parent.station.port: job.place.parent.ip
            for job in self._jobs.values()
            if job.place.parent is not None
        }

    def _port_of(self, ip: str) -> int:
        return next((port for port, each in self._ports().items() if each == ip), STRANGER)

    def counters(self) -> dict[str, int]:
        counts = refusals(self._common, self._reader())
        counts.subtract(self._before)
        counts["received"] = counts.total()
        counts.update(self._gone)
        for job in self._jobs:
            here = self.job_counters(job)
            counts.update({name: here[name] for name in COUNTERS})
        return {name: counts[name] for name in COUNTERS}

    def job_counters(self, job_id: int) -> dict[str, int]:
        self._admission.job_counters(job_id)  # raises where there is none
        job = self._jobs[job_id]
        return job_counters(job.entry, job.place, job.entries, self._reader(job), job.refused)

    def slot(self, index: int) -> SlotState:
        self._admission.slot(index)  # raises where it belongs to no job
        job = next(
            job.entry
            for job in self._jobs.values()
            if job.entry.base <= index < job.entry.base + job.entry.slots
        )
        seq, missing, filled, words = self._dut.slot(index)
        full = sum(1 << worker.bit for worker in job.workers)
        return SlotState(seq, full & ~missing, bool(filled), np.array(words, np.uint32) if filled else None)

    def _reader(self, job: Installed | None = None) -> Reader:
        return Reader(self._entry_packets, partial(self._cell, job))

    def _entry_packets(self, entry: TableEntry) -> int:
        return self._dut.entry_packets(entry)

    def _cell(self, job: Installed | None, name: str, index: int) -> int:
        return self._dut.cell(name, index) - (job.cells[name, index] if job else 0)


def _by_bit(job: JobEntry) -> list[WorkerEntry]:
    return sorted(job.workers, key=lambda worker: worker.bit)

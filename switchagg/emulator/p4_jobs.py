"""Aggregation jobs on one of our P4 programs in the model: UDP payloads in, UDP payloads out. No I/O.

    (payload, source) -> frame at the port of that source -> ModelSwitch -> frames -> (payload, destination)
    JobEntry -> table entries and groups (`p4_entries`)

It takes the place of the native slot table: the same payloads in, the same payloads out. Addresses on the
frames are made up, except for workers' IPv4 addresses and UDP ports, which the admission table looks at.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from switchagg.errors import UsageError
from switchagg.p4entities.counters import CounterArray
from switchagg.p4entities.tables import Entry
from switchagg.p4model.runtime.open import open_switch
from switchagg.p4model.runtime.switch import ModelSwitch
from switchagg.p4program import counters as p4_counters
from switchagg.p4program import entries as p4_entries
from switchagg.p4program import frames as p4_frames
from switchagg.p4program import program as p4_program
from switchagg.rules.slots import MAX_CAPACITY, Address, JobEntry, SlotState, check_admission
from switchagg.wire.header import COUNTERS

# An address for documentation (RFC 5737): no worker has it, so none is taken for the switch itself.
ADDRESS: Final = p4_program.SwitchAddress(0x0200000000FE, "192.0.2.1")
PORTS: Final = tuple(range(48))
_STRANGER: Final = PORTS[-1]

Installed = list[tuple[p4_program.TableEntry, Entry]]


def install(switch: ModelSwitch, entries: p4_program.Entries) -> Installed:
    """Adds all entries and groups; each entry with what it became. Raises TableError if one does not fit."""
    made = [(entry, insert(switch, entry)) for entry in entries.tables]
    for group in entries.groups:
        switch.replication.set_group(group.group, [(rid, port) for port, rid in group.replicas])
    return made


def remove(switch: ModelSwitch, entries: p4_program.Entries, made: Installed) -> None:
    """Takes off what `install` added."""
    for entry, installed in made:
        switch.table(entry.table).remove(installed)
    for group in entries.groups:
        switch.replication.remove_group(group.group)


def insert(switch: ModelSwitch, entry: p4_program.TableEntry) -> Entry:
    """Adds one entry. Raises TableError if it does not fit."""
    return switch.table(entry.table).add(entry.matches, entry.action, entry.params, entry.priority)


@dataclass(slots=True)
class _Job:
    entry: JobEntry
    place: p4_program.JobPlace
    entries: p4_program.Entries
    made: Installed
    before: dict[str, list[int]]
    refused: Counter[str] = field(default_factory=Counter)  # by entries that are gone, of workers fenced

    @property
    def full(self) -> int:
        return sum(1 << worker.bit for worker in self.entry.workers)


class P4Jobs:
    """A program with jobs on it.

    Args:
        program: `switchagg_v1model.p4` or `switchagg_tna.p4`, or a copy of one.
        defines: macros, such as AGG_WORDS=16.
        capacity: slots that jobs may have; None for all that the program has.

    Raises `UsageError` (a `P4Error` with its place among them) for a program that cannot be used.
    """

    def __init__(
        self,
        program: Path,
        *,
        include_dirs: Sequence[str] = (),
        defines: Sequence[str] = (),
        capacity: int | None = None,
        seed: int = 0,
    ) -> None:
        sizes = _sizes(defines)
        self.model: ModelSwitch = open_switch(program, include_dirs=include_dirs, defines=defines, seed=seed)
        make = p4_program.tna if self.model.program.architecture == "tna" else p4_program.v1model
        self.target = make(**sizes)
        if not any(name.endswith(p4_program.ADMISSION) for name in self.model.tables):
            raise UsageError(
                f"{program} has no table {p4_program.ADMISSION}; jobs run on switchagg_v1model.p4, "
                "switchagg_tna.p4 or a copy of one, other programs with --interface"
            )
        self._capacity = self.target.slots if capacity is None else min(capacity, self.target.slots)
        if not 1 <= self._capacity <= MAX_CAPACITY:
            raise UsageError(f"capacity is {self._capacity}; accepted: 1..{MAX_CAPACITY}")
        self._common = p4_entries.switch_entries(self.target, ADDRESS, PORTS)
        made = install(self.model, self._common)
        self.model.table(p4_program.STATIONS).set_default("flood", {"group": p4_program.FLOOD_GROUP})
        self._entries = {id(entry): installed for entry, installed in made}
        self._jobs: dict[int, _Job] = {}
        self._gone: Counter[str] = Counter()

    def add_job(self, job: JobEntry) -> None:
        """Admits a job's workers. Raises `UsageError` for one that does not fit the program or other jobs."""
        if job.words != self.target.words:
            raise UsageError(
                f"job {job.job} has {job.words} words a packet; this program is made for {self.target.words} "
                "(-D AGG_WORDS=...)"
            )
        ports = self._ports()
        for worker in job.workers:
            if worker.ip == ADDRESS.ip:
                raise UsageError(f"job {job.job}: {worker.ip} is the address of the switch in the program")
            if worker.ip not in ports:
                free = [port for port in PORTS if port not in ports.values() and port != _STRANGER]
                if not free:
                    raise UsageError(f"job {job.job}: workers of more than {len(PORTS) - 1} addresses")
                ports[worker.ip] = free[0]
        index = next(
            number
            for number in range(p4_program.MAX_JOBS)
            if all(number != each.place.index for each in self._jobs.values())
        )
        check_admission(job, [each.entry for each in self._jobs.values()], self._capacity)
        stations = {
            worker.bit: p4_program.Station(ports[worker.ip], _mac(worker.ip)) for worker in job.workers
        }
        place = p4_program.JobPlace(index, stations)
        entries = p4_entries.job_entries(self.target, job, place)
        made = install(self.model, entries)
        self._entries.update({id(entry): installed for entry, installed in made})
        # The program's counters go on from job to job.
        before = {
            name: list(each.packets)
            for name, each in self.model.externs.items()
            if isinstance(each, CounterArray)
        }
        self._jobs[job.job] = _Job(job, place, entries, made, before)

    def remove_job(self, job_id: int) -> None:
        """Forgets a job. Raises `UsageError` where there is none."""
        counters = self.job_counters(job_id)
        self._gone.update({name: counters[name] for name in COUNTERS})
        job = self._jobs.pop(job_id)
        remove(self.model, job.entries, job.made)
        for entry, _ in job.made:
            del self._entries[id(entry)]

    def fence(self, job_id: int, bits: int) -> None:
        """Drops these workers' packets from now on. Raises `UsageError` for a job or worker not there."""
        job = self._get(job_id)
        if bits & ~job.full:
            raise UsageError(f"bits is {bits:#x}; the workers of job {job_id} have {job.full:#x}")
        gone = p4_entries.worker_entries(job.entries, job.entry, bits)
        job.refused.update(p4_counters.refusals(p4_program.Entries(gone, ()), self._reader(job)))
        removed = {id(entry) for entry in gone}
        for entry in gone:
            self.model.table(entry.table).remove(self._entries.pop(id(entry)))
        left = tuple(entry for entry in job.entries.tables if id(entry) not in removed)
        job.entries = p4_program.Entries(left, job.entries.groups)
        job.made = [(entry, made) for entry, made in job.made if id(entry) not in removed]

    def packet_out(self, payload: bytes, now: float = 0.0) -> list[bytes]:
        """A packet from the controller; what leaves at the controller's port."""
        frame = p4_frames.packet_out(self.target, ADDRESS, payload)
        frames = self.model.process(self.target.controller_port, frame, now)
        return [p4_frames.packet_in(data) for port, data in frames if port == self.target.controller_port]

    def receive(self, payload: bytes, source: Address, now: float = 0.0) -> list[tuple[Address, bytes]]:
        """A packet of a worker, or of anybody; the packets that leave, and for whom."""
        sender = _mac(source[0]), *source
        frame = p4_frames.frame(payload, sender, (ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port))
        port = self._ports().get(source[0], _STRANGER)
        outs = []
        for _, data in self.model.process(port, frame, now):
            if data[12:14] == b"\x08\x00" and data[23] == 17 and data[6:12] == ADDRESS.mac.to_bytes(6, "big"):
                size = int.from_bytes(data[38:40], "big")
                address = ".".join(map(str, data[30:34])), int.from_bytes(data[36:38], "big")
                outs.append((address, data[42 : 34 + size]))
        return outs

    def counters(self) -> dict[str, int]:
        """Every name of `switchagg.wire.header.COUNTERS` with its count."""
        counts = p4_counters.refusals(self._common, self._reader(None))
        counts["received"] = counts.total()
        counts.update(self._gone)
        for job in self._jobs:
            here = self.job_counters(job)
            counts.update({name: here[name] for name in COUNTERS})
        return {name: counts[name] for name in COUNTERS}

    def job_counters(self, job_id: int) -> dict[str, int]:
        """The same of one job, and ``worker_<bit>_packets``. Raises `UsageError` where there is none."""
        job = self._get(job_id)
        return p4_counters.job_counters(job.entry, job.place, job.entries, self._reader(job), job.refused)

    def slot(self, index: int) -> SlotState:
        """A copy of a slot. Raises `UsageError` where `index` belongs to no job."""
        jobs = self._jobs.values()
        owner = next((job for job in jobs if 0 <= index - job.entry.base < job.entry.slots), None)
        if owner is None:
            raise UsageError(f"slot {index} belongs to no job")
        seq, missing, filled = (
            int(self.model.register(name).cell(index)) for name in ("seq", "missing", "filled")
        )
        words = np.array(self._words(index), np.uint32) if filled else None
        return SlotState(seq, owner.full & ~missing, bool(filled), words)

    def _get(self, job_id: int) -> _Job:
        if job_id not in self._jobs:
            raise UsageError(f"there is no job {job_id} in the table")
        return self._jobs[job_id]

    def _words(self, index: int) -> list[int]:
        if self.model.program.architecture != "tna":
            names = [f"words.word_{place}" for place in range(self.target.words)]
            return [int(self.model.register(name).cell(index)) for name in names]
        pairs = [self.model.register(f"pair_{place}").cell(index) for place in range(self.target.words // 2)]
        return [word for pair in pairs for word in (int(pair.even), int(pair.odd))]

    def _ports(self) -> dict[str, int]:
        return {
            worker.ip: job.place.stations[worker.bit].port
            for job in self._jobs.values()
            for worker in job.entry.workers
        }

    def _reader(self, job: _Job | None) -> p4_counters.Reader:
        return p4_counters.Reader(
            lambda entry: self._entries[id(entry)].packets, lambda name, index: self._cell(job, name, index)
        )

    def _cell(self, job: _Job | None, name: str, index: int) -> int:
        packets = self.model.counter(name).read(index)[0]
        return packets - (job.before[name][index] if job is not None else 0)


def _sizes(defines: Sequence[str]) -> dict[str, int]:
    """K and the number of slots, where macros change them."""
    sizes = {}
    for define in defines:
        name, _, value = define.partition("=")
        for macro, meaning in (("AGG_WORDS", "words"), ("AGG_SLOTS", "slots")):
            if name == macro:
                if not (value.isascii() and value.isdigit()):
                    raise UsageError(f"{macro} is {value!r}; accepted: a whole number")
                sizes[meaning] = int(value)
    return sizes


def _mac(ip: str) -> int:
    return 0x020000000000 | int(ipaddress.IPv4Address(ip))

"""A switch for tests of the controller: keeps what it is told, echoes INITs, can be made to misbehave."""

from __future__ import annotations

import threading

from switchagg.control.drivers.base import Capacity
from switchagg.errors import SwitchError
from switchagg.slots import JobEntry, SlotState
from switchagg.wire import Header


class FakeDriver:
    """Fulfils `SwitchDriver`.

    Attributes:
        drop: INIT packets that it loses before it begins to echo; negative: all.
        refuse: what `install_job` raises.
    """

    def __init__(self, slots: int = 4096, words: int = 364, memory: int = 1 << 24) -> None:
        self.capacity = Capacity(slots, words, memory)
        self.address = ("127.0.0.1", 48879)
        self.receive_buffer = 1 << 20
        self.link = "a-link"
        self.warnings: list[str] = []
        self.jobs: dict[int, JobEntry] = {}
        self.installed = 0
        self.inits: list[bytes] = []
        self.drop = 0
        self.refuse: str | None = None
        self._lock = threading.Lock()

    def install_job(self, entry: JobEntry) -> None:
        if self.refuse is not None:
            raise SwitchError(self.refuse)
        with self._lock:
            ends = [(job.base, job.base + job.slots) for job in self.jobs.values()]
            assert all(entry.base + entry.slots <= base or end <= entry.base for base, end in ends)
            assert entry.job not in self.jobs
            self.jobs[entry.job] = entry
            self.installed += 1

    def remove_job(self, job_id: int) -> None:
        with self._lock:
            if self.jobs.pop(job_id, None) is None:
                raise SwitchError(f"no job {job_id}")

    def packet_out(self, packet: bytes) -> list[bytes]:
        if self.drop:
            self.drop -= 1
            return []
        self.inits.append(packet)
        return [packet]

    def counters(self) -> dict[str, int]:
        return {"received": 7, "inits": len(self.inits)}

    def job_counters(self, job_id: int) -> dict[str, int]:
        return {"received": 3, "worker_0_packets": 1} if job_id in self.jobs else {}

    def slot(self, index: int) -> SlotState | None:
        job = next(job for job in self.jobs.values() if job.base <= index < job.base + job.slots)
        seq = next(header.seq for header in map(Header.unpack, self.inits) if header.slot == index)
        seen = 1 if index == job.base + 1 else (1 << len(job.workers)) - 1
        return SlotState(seq, seen, False, None)

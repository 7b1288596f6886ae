"""A switch for tests of the controller: keeps what it is told, echoes INITs, can be made to misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from switchagg.errors import SwitchError
from switchagg.rules.slots import JobEntry, SlotState
from switchagg.rules.switch import Capacity, ChangeKind, Reconciled, SwitchChange
from switchagg.wire.header import Header


class FakeDriver:
    """Fulfils `SwitchDriver`.

    Attributes:
        drop: INIT packets that it loses before it begins to echo; negative: all.
        slow: calls with INITs whose patience ends before it gets to them; then it obeys all, in their order.
        behind: INITs that it has yet to obey.
        refuse: what `install_job` raises.
        half: it leaves the job there all the same.
        fence_fails, remove_fails: how many calls of these fail first.
        there: whether it can be reached when it is first watched.
    """

    def __init__(
        self, slots: int = 4096, words: int = 364, memory: int = 1 << 24, name: str = "fake"
    ) -> None:
        self.name = name
        self.target = "fake"
        self.capacity = Capacity(slots, words, memory)
        self.address = ("127.0.0.1", 48879)
        self.receive_buffer = 1 << 20
        self.link = "a-link"
        self.threads = 1
        self.memory = ""
        self.warnings: list[str] = []
        self.jobs: dict[int, JobEntry] = {}
        self.fenced: dict[int, int] = {}
        self.there = True
        self.fence_fails = self.remove_fails = 0
        self.callback: Callable[[SwitchChange], None] | None = None
        self.installed = 0
        self.inits: list[bytes] = []
        self.drop = 0
        self.slow = 0
        self.behind: list[bytes] = []
        self.refuse: str | None = None
        self.half = False
        self._lock = threading.Lock()

    def install_job(self, entry: JobEntry) -> None:
        if self.refuse is not None:
            if self.half:
                self.jobs[entry.job] = entry
            raise SwitchError(self.refuse)
        with self._lock:
            ends = [(job.base, job.base + job.slots) for job in self.jobs.values()]
            assert all(entry.base + entry.slots <= base or end <= entry.base for base, end in ends)
            assert entry.job not in self.jobs
            self.jobs[entry.job] = entry
            self.installed += 1

    def remove_job(self, job_id: int) -> None:
        if self.remove_fails:
            self.remove_fails -= 1
            raise SwitchError("no answer")
        with self._lock:
            self.fenced.pop(job_id, None)
            if self.jobs.pop(job_id, None) is None:
                raise SwitchError(f"no job {job_id}")

    def packets_out(self, packets: Sequence[bytes]) -> list[bytes]:
        if self.slow or self.behind:
            self.behind.extend(packets)
            if self.slow:
                self.slow -= 1
                return []
            missing, echoes = set(packets), []
            while missing:
                echoes.append(self.behind.pop(0))
                missing.discard(echoes[-1])
            return echoes
        lost = len(packets) if self.drop < 0 else min(self.drop, len(packets))
        self.drop = self.drop - lost if self.drop > 0 else self.drop
        self.inits.extend(packets[lost:])
        return list(packets[lost:])

    def fence(self, job_id: int, bits: int) -> None:
        if self.fence_fails:
            self.fence_fails -= 1
            raise SwitchError("no answer")
        with self._lock:
            self.jobs[job_id]  # as a switch: of an installed job only
            self.fenced[job_id] = self.fenced.get(job_id, 0) | bits

    def reconcile(self, entries: Sequence[JobEntry], fenced: Mapping[int, int]) -> Reconciled:
        with self._lock:
            wanted = {entry.job: entry for entry in entries}
            kept = tuple(job for job in wanted if self.jobs.get(job) == wanted[job])
            removed = tuple(job for job in self.jobs if job not in wanted)
            self.jobs = {job: wanted[job] for job in kept}
            self.fenced = {job: bits for job, bits in fenced.items() if bits and job in kept}
            return Reconciled(kept, tuple(job for job in wanted if job not in kept), removed)

    def watch(self, callback: Callable[[SwitchChange], None]) -> None:
        self.callback = callback
        if self.there:
            callback(SwitchChange(ChangeKind.connected))

    def close(self) -> None:
        pass

    def counters(self) -> dict[str, int]:
        return {"received": 7, "inits": len(self.inits)}

    def job_counters(self, job_id: int) -> dict[str, int]:
        return {"received": 3, "worker_0_packets": 1} if job_id in self.jobs else {}

    def slot(self, index: int) -> SlotState | None:
        job = next(job for job in self.jobs.values() if job.base <= index < job.base + job.slots)
        seq = next(header.seq for header in map(Header.unpack, self.inits) if header.slot == index)
        seen = 1 if index == job.base + 1 else (1 << len(job.workers)) - 1
        return SlotState(seq, seen, False, None)

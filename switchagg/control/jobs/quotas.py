"""The tenants' quotas of jobs, slots and bytes. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from switchagg.control.jobs.candidates import CandidateFinder, PlacementCandidate
from switchagg.control.jobs.job import Job
from switchagg.control.jobs.job_table import JobTable
from switchagg.control.jobs.records import JobState, Quota, Tenant
from switchagg.errors import AdmissionError


@dataclass(frozen=True, slots=True)
class Quotas:
    """The tenants' quotas, each as of the tenant's latest request."""

    _table: JobTable
    _candidates: CandidateFinder
    _quotas: dict[str, Quota] = field(default_factory=dict)

    def check(self, tenant: Tenant, job: Job | None, candidates: Sequence[PlacementCandidate]) -> None:
        """Raises `AdmissionError` if a job of this size exceeds the quota. `job` is None for one more job."""
        quota = self._quotas[tenant.name] = tenant.quota
        running = [
            each
            for each in self._table.jobs()
            if each.tenant == tenant.name and each is not job and each.state is not JobState.failed
        ]
        if job is None and quota.jobs is not None and len(running) >= quota.jobs:
            raise AdmissionError(
                f"tenant {tenant.name!r} has {len(running)} jobs; its quota is {quota.jobs}", "quota"
            )
        if not self.affordable(tenant.name, job, candidates):
            least = min(candidates, key=lambda each: each.memory)
            slots, memory = self._used(tenant.name, job)
            raise AdmissionError(
                f"{least.slots} slots ({least.memory} bytes) asked for; tenant {tenant.name!r} has {slots} "
                f"({memory} bytes) in other jobs, and its quota is "
                f"{'any number of' if quota.slots is None else quota.slots} slots and "
                f"{'any number of' if quota.memory is None else quota.memory} bytes",
                "quota",
            )

    def affordable(
        self, tenant: str, job: Job | None, candidates: Sequence[PlacementCandidate]
    ) -> list[PlacementCandidate]:
        """Returns the candidates that are within the tenant's quota."""
        quota = self._quotas.get(tenant, Quota())
        slots, memory = self._used(tenant, job)
        return [
            each
            for each in candidates
            if (quota.slots is None or slots + each.slots <= quota.slots)
            and (quota.memory is None or memory + each.memory <= quota.memory)
        ]

    def _used(self, tenant: str, without: Job | None) -> tuple[int, int]:
        """Returns the slots and bytes that a tenant's jobs have or wait for, on all switches."""
        slots = memory = 0
        for job in self._table.jobs():
            if job.tenant != tenant or job is without or job.state is JobState.failed:
                continue
            if job.placement is not None:
                slots += sum(each.slots for each in job.ranges)
                memory += sum(each.size.memory for each in job.ranges)
            elif candidates := self._candidates.of_job(job):
                least = min(candidates, key=lambda each: each.memory)
                slots, memory = slots + least.slots, memory + least.memory
        return slots, memory

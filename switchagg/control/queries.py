"""What people and programs look at: jobs, switches, slots, counters, events; in JSON's types."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from switchagg.control import views
from switchagg.control.answers import (
    EventView,
    Health,
    HistoryView,
    JobCounters,
    JobView,
    SlotsView,
    Snapshot,
    StatsView,
    SwitchSlots,
    SwitchView,
    WaitingView,
)
from switchagg.control.controller_core import Shell
from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.events import describe
from switchagg.control.history import INTERVAL
from switchagg.control.jobs.job import Generation, Job
from switchagg.control.jobs.records import (
    Tenant,
)
from switchagg.errors import AdmissionError, SwitchError

PATIENCE: Final = 5.0  # seconds that people wait for a switch's counters and slots
FRESH: Final = 0.9  # seconds that counters are good for


class Looking(Shell):
    """A controller that can be looked at. Everything is as the tenant that asks may see it."""

    @property
    def queries(self) -> Looking:
        """Returns the read-only queries."""
        return self

    def jobs(self, tenant: Tenant) -> list[JobView]:
        """Returns every job that has not ended and that the tenant may see."""
        self._refresh(0.3)
        with self._lock:
            return [self._describe(job) for job in self._book.jobs() if views.sees(tenant, job.tenant)]

    def job(self, tenant: Tenant, name: str, job_id: int | None = None) -> JobView | None:
        """Returns the newest job of that name, or the one with this id; None where there is none."""
        self._refresh(0.3)
        with self._lock:
            job = self._find(tenant, name, job_id)
            return None if job is None else self._describe(job)

    def switches(self, tenant: Tenant) -> list[SwitchView]:
        """Returns the switches, and who has which of their slots."""
        self._refresh(0.3)
        with self._lock:
            return [self._switch(name, tenant) for name in self._drivers]

    def slots(self, tenant: Tenant) -> SlotsView:
        """Returns who has which slots, of all switches together and of each."""
        with self._lock:
            rooms: list[SwitchSlots] = [
                {
                    "name": room.name,
                    "capacity": room.capacity.slots,
                    "free": room.allocator.free_slots,
                    "largest_free": room.allocator.largest_free,
                    "memory": room.capacity.memory,
                    "memory_used": room.memory_used,
                    "max_words": room.capacity.words,
                    "ranges": views.ranges(room, self._book, tenant),
                }
                for room in self._book.placement.rooms.values()
            ]
        return {
            "capacity": sum(room["capacity"] for room in rooms),
            "free": sum(room["free"] for room in rooms),
            "memory": sum(room["memory"] for room in rooms),
            "memory_used": sum(room["memory_used"] for room in rooms),
            "largest_free": max((room["largest_free"] for room in rooms), default=0),
            "max_words": max((room["max_words"] for room in rooms), default=0),
            "ranges": [{**each, "switch": room["name"]} for room in rooms for each in room["ranges"]],
            "switches": rooms,
        }

    def waiting_slots(self, tenant: Tenant, name: str, job_id: int | None = None) -> WaitingView | None:
        """Returns the slots of a job that wait for some ranks; None where there is no such job.

        Of a job that hangs this says whose packets are not there. `slots` is None where the switch does not
        show them. Raises `SwitchError` where it does not answer.
        """
        with self._lock:
            job = self._find(tenant, name, job_id)
            if job is None:
                return None
            generation = job.generation
            if generation is None or not generation.open:
                return {"job": name, "slots": []}
            agents = [(part, self._agents[part.site.switch]) for part in generation.parts]
        found: list[tuple[Generation, dict[int, Any]]] = []
        for part, agent in agents:
            indices = range(part.site.base, part.site.base + part.site.slots)
            found.append((part, agent.ask(partial(_states, indices), PATIENCE)))
        with self._lock:
            hidden = any(None in states.values() for _, states in found)
            if hidden or job.generation is not generation:
                return {"job": name, "slots": None}
            waiting = [each for part, states in found for each in views.waiting(states, part, generation)]
            return {"job": name, "slots": waiting}

    def stats(self, tenant: Tenant) -> StatsView:
        """Returns the counters of the switches, their sums, and those of every job that the tenant may see.

        A switch that does not answer has ``error`` instead.
        """
        with self._lock:
            there = [
                (job.name, job.id, job.tenant, part.site.switch)
                for job in self._book.jobs()
                if job.generation is not None and job.generation.open and views.sees(tenant, job.tenant)
                for part in job.generation.parts
            ]
        switches: dict[str, dict[str, Any]] = {}
        jobs: list[JobCounters] = []
        total: Counter[str] = Counter()
        for name, agent in self._agents.items():
            mine = [job_id for _, job_id, _, switch in there if switch == name]
            try:
                counters, of_jobs = agent.ask(partial(_counters, mine), PATIENCE)
            except SwitchError as error:
                switches[name] = {"error": str(error)}
                continue
            switches[name] = counters
            total.update(counters)
            jobs += [
                {"name": job, "id": job_id, "tenant": owner, "switch": name, "counters": of_jobs[job_id]}
                for job, job_id, owner, switch in there
                if switch == name and job_id in of_jobs
            ]
        return {"switch": dict(total), "switches": switches, "jobs": jobs}

    def events(self, tenant: Tenant, since: int = 0, limit: int = 200) -> list[EventView]:
        """Returns events after number `since`, oldest first; with 0 the newest."""
        with self._lock:
            return [describe(event) for event in self._events.since(since, limit, tenant)]

    def history(self, tenant: Tenant, name: str, job_id: int | None = None) -> HistoryView | None:
        """Returns what a job did in the last ten minutes; None where there is no such job."""
        with self._lock:
            job = self._find(tenant, name, job_id)
            if job is None:
                return None
            history = self._histories.get(job.number)
            points = [] if history is None else history.points()
            return {"job": name, "interval": INTERVAL, "points": points}

    def snapshot(self, tenant: Tenant, since: int = 0) -> Snapshot:
        """Returns all that a page shows, with counters as of a second ago."""
        self._refresh(0.3)
        with self._lock:
            return {
                "now": round(time.time(), 3),
                "switches": [self._switch(name, tenant) for name in self._drivers],
                "jobs": [self._describe(job) for job in self._book.jobs() if views.sees(tenant, job.tenant)],
                "events": [describe(event) for event in self._events.since(since, 200, tenant)],
            }

    def health(self) -> Health:
        """Returns whether all is well, and what a person should know."""
        warnings = [warning for driver in self._drivers.values() for warning in driver.warnings]
        with self._lock:
            rooms = self._book.placement.rooms
            states = {name: room.state.value for name, room in rooms.items()}
            if self._store_error:
                warnings.append(f"what has changed is not kept: {self._store_error}")
        first = next(iter(self._drivers.values()), None)
        return {
            "status": "ok",
            "switch": None if first is None else views.endpoint(first),
            "switches": states,
            "warnings": warnings,
        }

    def census(self) -> dict[tuple[str, str], int]:
        """Returns the number of jobs by tenant and state."""
        with self._lock:
            return dict(Counter((job.tenant, job.shown.value) for job in self._book.jobs()))

    def event_counts(self) -> dict[str, int]:
        """Returns how many events of each kind there were since the controller started."""
        with self._lock:
            return dict(self._events.counts)

    # With the lock held, except the last.

    def _found(self, tenant: Tenant, name: str, job_id: int | None) -> Job:
        job = self._find(tenant, name, job_id)
        if job is None:
            raise AdmissionError(f"there is no job {name[:128]!r}", "not_found")
        return job

    def _find(self, tenant: Tenant, name: str, job_id: int | None = None) -> Job | None:
        job = self._book.find(tenant.name, name, job_id)
        if job is not None or not tenant.admin:
            return job
        others = [
            job for job in self._book.jobs() if job.name == name and (job_id is None or job.id == job_id)
        ]
        owners = sorted({job.tenant for job in others})
        if len(owners) > 1:
            raise AdmissionError(
                f"tenants {', '.join(owners)} each have a job {name!r}; name the tenant too", "bad_request"
            )
        return others[-1] if others else None

    def _describe(self, job: Job) -> JobView:
        sites = () if job.tree is None else job.tree.sites
        counters = {site.switch: self._agents[site.switch].job_counters(job.id) for site in sites}
        history = self._histories.get(job.number)
        return views.job_view(job, self._book, history, counters, time.monotonic(), self._epoch)

    def _switch(self, name: str, tenant: Tenant) -> SwitchView:
        room = self._book.placement.rooms[name]
        return views.switch_view(room, self._drivers[name], self._book, self._agents[name].counters, tenant)

    def _refresh(self, patience: float) -> None:
        end = time.monotonic() + patience
        for agent in self._agents.values():
            agent.refresh(FRESH, max(0.0, end - time.monotonic()))


def _states(indices: range, driver: SwitchDriver) -> dict[int, Any]:
    return {index: driver.slot(index) for index in indices}


def _counters(jobs: Sequence[int], driver: SwitchDriver) -> tuple[dict[str, int], dict[int, dict[str, int]]]:
    return dict(driver.counters()), {job_id: dict(driver.job_counters(job_id)) for job_id in jobs}

"""Read-only queries on jobs, switches, slots, counters and events, in JSON's types."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from switchagg.control import answers, views
from switchagg.control.controller_core import ControllerCore
from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.event_log import describe
from switchagg.control.jobs.job import Generation
from switchagg.control.jobs.records import Tenant
from switchagg.control.telemetry import INTERVAL
from switchagg.errors import SwitchError

PATIENCE: Final = 5.0  # seconds that people wait for a switch's counters and slots
REFRESH_PATIENCE: Final = 0.3  # seconds to wait for fresh counters
FRESH: Final = 0.9  # seconds for which counters count as fresh


class Queries:
    """Read-only queries, filtered by what the tenant may see."""

    def __init__(self, core: ControllerCore) -> None:
        self._core = core

    def jobs(self, tenant: Tenant) -> list[answers.JobView]:
        """Returns every job that has not ended."""
        self._refresh()
        with self._core.lock:
            return self._jobs(tenant)

    def job(self, tenant: Tenant, name: str, job_id: int | None = None) -> answers.JobView | None:
        """Returns the newest job of that name, or the one with this id; None if there is none."""
        self._refresh()
        with self._core.lock:
            job = self._core.find(tenant, name, job_id)
            return None if job is None else self._core.job_view(job)

    def switches(self, tenant: Tenant) -> list[answers.SwitchView]:
        """Returns the switches with the owners of their slots."""
        self._refresh()
        with self._core.lock:
            return self._switches(tenant)

    def slots(self, tenant: Tenant) -> answers.SlotsView:
        """Returns the owners of slots, of all switches together and of each."""
        with self._core.lock:
            switches: list[answers.SwitchSlots] = [
                {
                    "name": switch.name,
                    "capacity": switch.capacity.slots,
                    "free": switch.allocator.free_slots,
                    "largest_free": switch.allocator.largest_free,
                    "memory": switch.capacity.memory,
                    "memory_used": switch.memory_used,
                    "max_words": switch.capacity.words,
                    "ranges": views.ranges(switch, self._core.book, tenant),
                }
                for switch in self._core.book.pool.switches.values()
            ]
        return {
            "capacity": sum(switch["capacity"] for switch in switches),
            "free": sum(switch["free"] for switch in switches),
            "memory": sum(switch["memory"] for switch in switches),
            "memory_used": sum(switch["memory_used"] for switch in switches),
            "largest_free": max((switch["largest_free"] for switch in switches), default=0),
            "max_words": max((switch["max_words"] for switch in switches), default=0),
            "ranges": [{**owned, "switch": each["name"]} for each in switches for owned in each["ranges"]],
            "switches": switches,
        }

    def waiting_slots(
        self, tenant: Tenant, name: str, job_id: int | None = None
    ) -> answers.WaitingView | None:
        """Returns the slots of a job that wait for some ranks; None if there is no such job.

        For a job that hangs it names the ranks whose packets are missing. `slots` is None if the switch does
        not show its slots. Raises `SwitchError` if it does not answer.
        """
        with self._core.lock:
            job = self._core.find(tenant, name, job_id)
            if job is None:
                return None
            generation = job.generation
            if generation is None or not generation.open:
                return {"job": name, "slots": []}
        found: list[tuple[Generation, dict[int, Any]]] = []
        for part in generation.parts:
            indices = range(part.slot_range.base, part.slot_range.base + part.slot_range.slots)
            agent = self._core.agents[part.slot_range.switch]
            found.append((part, agent.ask(partial(_states, indices), PATIENCE)))
        with self._core.lock:
            hidden = any(None in states.values() for _, states in found)
            if hidden or job.generation is not generation:
                return {"job": name, "slots": None}
            waiting = [each for part, states in found for each in views.waiting(states, part, generation)]
            return {"job": name, "slots": waiting}

    def stats(self, tenant: Tenant) -> answers.StatsView:
        """Returns the counters of the switches, their sums, and those of every job that the tenant may see.

        A switch that does not answer has ``error`` instead.
        """
        with self._core.lock:
            there = [
                (job.name, job.id, job.tenant, part.slot_range.switch)
                for job in self._core.book.table.jobs()
                if job.generation is not None and job.generation.open and views.sees(tenant, job.tenant)
                for part in job.generation.parts
            ]
        switches: dict[str, dict[str, Any]] = {}
        jobs: list[answers.JobCounters] = []
        total: Counter[str] = Counter()
        for name, agent in self._core.agents.items():
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

    def events(self, tenant: Tenant, since: int = 0, limit: int = 200) -> list[answers.EventView]:
        """Returns events after number `since`, oldest first; with 0 the newest."""
        with self._core.lock:
            return self._events(tenant, since, limit)

    def history(self, tenant: Tenant, name: str, job_id: int | None = None) -> answers.HistoryView | None:
        """Returns a job's rates over the last ten minutes; None if there is no such job."""
        with self._core.lock:
            job = self._core.find(tenant, name, job_id)
            if job is None:
                return None
            history = self._core.telemetry.history(job)
            points = [] if history is None else history.points()
            return {"job": name, "interval": INTERVAL, "points": points}

    def snapshot(self, tenant: Tenant, since: int = 0) -> answers.Snapshot:
        """Returns all that a page shows, with counters as of a second ago."""
        self._refresh()
        with self._core.lock:
            return {
                "now": round(time.time(), 3),
                "switches": self._switches(tenant),
                "jobs": self._jobs(tenant),
                "events": self._events(tenant, since, 200),
            }

    def health(self) -> answers.Health:
        """Returns the states of the switches, and warnings for people."""
        drivers = self._core.drivers.values()
        warnings = [warning for driver in drivers for warning in driver.warnings]
        with self._core.lock:
            switches = self._core.book.pool.switches
            states = {name: switch.state.value for name, switch in switches.items()}
            if error := self._core.journal.error:
                warnings.append(f"what has changed is not kept: {error}")
        first = next(iter(drivers), None)
        return {
            "status": "ok",
            "switch": None if first is None else views.endpoint(first),
            "switches": states,
            "warnings": warnings,
        }

    def census(self) -> dict[tuple[str, str], int]:
        """Returns the number of jobs by tenant and state."""
        with self._core.lock:
            return dict(Counter((job.tenant, job.shown.value) for job in self._core.book.table.jobs()))

    def event_counts(self) -> dict[str, int]:
        """Returns the number of events of each kind since the controller started."""
        with self._core.lock:
            return dict(self._core.journal.events.counts)

    def _refresh(self) -> None:
        """Reads counters that are no longer fresh, and waits a moment for them."""
        end = time.monotonic() + REFRESH_PATIENCE
        for agent in self._core.agents.values():
            agent.refresh(FRESH, max(0.0, end - time.monotonic()))

    # With the lock held.

    def _jobs(self, tenant: Tenant) -> list[answers.JobView]:
        jobs = self._core.book.table.jobs()
        return [self._core.job_view(job) for job in jobs if views.sees(tenant, job.tenant)]

    def _switches(self, tenant: Tenant) -> list[answers.SwitchView]:
        return [self._core.switch_view(name, tenant) for name in self._core.drivers]

    def _events(self, tenant: Tenant, since: int, limit: int) -> list[answers.EventView]:
        return [describe(event) for event in self._core.journal.events.since(since, limit, tenant)]


def _states(indices: range, driver: SwitchDriver) -> dict[int, Any]:
    return {index: driver.slot(index) for index in indices}


def _counters(jobs: Sequence[int], driver: SwitchDriver) -> tuple[dict[str, int], dict[int, dict[str, int]]]:
    return dict(driver.counters()), {job_id: dict(driver.job_counters(job_id)) for job_id in jobs}

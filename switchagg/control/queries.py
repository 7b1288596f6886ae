"""Read-only queries on jobs, switches, slots, counters and events, in JSON's types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, cast

from switchagg.control import answers
from switchagg.control.controller_core import ControllerCore
from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.event_log import describe
from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.records import JobState, MemberState, Tenant
from switchagg.control.jobs.switch_resources import SwitchResources
from switchagg.control.member_streams import endpoint
from switchagg.control.telemetry import INTERVAL
from switchagg.errors import SwitchError
from switchagg.rules.wiring import shown_network

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
            return None if job is None else self.job_view(job)

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
                    "ranges": self._ranges(switch, tenant),
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
        """Returns the slots of a job that wait for packets of some ranks; None if there is no such job.

        `slots` is None if the switch does not show its slots. Raises `SwitchError` if it does not answer.
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
            waiting = [each for part, states in found for each in _waiting(states, part, generation)]
            return {"job": name, "slots": waiting}

    def stats(self, tenant: Tenant) -> answers.StatsView:
        """Returns the counters of the switches, their sums, and those of every job that the tenant may see.

        A switch that does not answer has ``error`` instead.
        """
        with self._core.lock:
            there = [
                (job.name, part.id, job.tenant, part.slot_range.switch)
                for job in self._core.book.table.jobs()
                if job.generation is not None and job.generation.open and _sees(tenant, job)
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

    def events(
        self, tenant: Tenant, since: int = 0, limit: int = 200, job: str | None = None
    ) -> list[answers.EventView]:
        """Returns events after number `since`, oldest first; with 0 the newest; `job`: only its."""
        with self._core.lock:
            return self._events(tenant, since, limit, job)

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
                "now": round(self._core.runtime.unix(), 3),
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
            "switch": None if first is None else endpoint(first),
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
        end = self._core.runtime.monotonic() + REFRESH_PATIENCE
        for agent in self._core.agents.values():
            agent.refresh(FRESH, max(0.0, end - self._core.runtime.monotonic()))

    def job_view(self, job: Job) -> answers.JobView:
        """Returns a job. The caller holds the lock."""
        core, book, now = self._core, self._core.book, self._core.runtime.monotonic()
        generation, history = job.generation, core.telemetry.history(job)
        members = [self._member(member, generation, now) for _, member in sorted(job.members.items())]
        for member in job.back.values():
            members.append({**self._member(member, None, now), "state": "waiting"})
        queue = book.scheduler.queue()
        queued = job.state is JobState.queued
        down = [switch for each in job.ranges if not (switch := book.pool.switches[each.switch]).up]
        seats = {} if job.placement is None else dict(job.placement.seats)
        striped = job.placement if job.placement is not None and job.placement.stripes else None
        parts = () if generation is None or striped is None else generation.parts
        weights = [part.weight for part in parts] or ([] if striped is None else striped.weights)
        return {
            "name": job.name,
            "id": job.id or None,
            "tenant": job.tenant,
            "state": job.shown,
            "why": job.why
            or (book.scheduler.waiting_for(job) if queued else "")
            or "; ".join(f"switch {each.name!r} is down: {each.why}" for each in down),
            "world_size": job.world_size,
            "members": members,
            "missing": job.missing if job.state is not JobState.failed else [],
            "lost": job.ranks(MemberState.lost),
            "places": [] if generation is None else list(generation.places),
            "switch": job.switch if job.slot_range is None else job.slot_range.switch,
            "base": None if job.slot_range is None else job.slot_range.base,
            "leaves": [
                {"switch": leaf.switch, "base": leaf.base, "ranks": list(seats[leaf.switch])}
                for leaf in (() if job.placement is None else job.placement.leaves)
            ],
            "stripes": [
                {"switch": each.switch, "base": each.base, "weight": weight}
                for each, weight in zip(() if striped is None else striped.ranges, weights, strict=True)
            ],
            "slots": job.slots,
            "words": job.words,
            "shared": generation is not None and generation.entry.shared,
            "age": round(now - job.created, 3),
            "priority": job.priority,
            "queue_position": queue.index(job) + 1 if queued else None,
            "deadline": job.deadline,
            "on_loss": job.on_loss.value,
            "draining": job.draining,
            "policy": {
                **cast(answers.PolicyWord, asdict(job.policy)),
                "since": round(job.policy_since + core.epoch, 3),
                "why": job.policy_why,
            },
            "rates": None if history is None else history.rates(),
        }

    def _member(self, member: Member, generation: Generation | None, now: float) -> answers.MemberView:
        silent = self._core.book.table.liveness.silent(member.cookie, now)
        switch = packets = None
        if generation is not None and member.rank in generation.places:
            part, bit = generation.seat(member.rank)
            switch = part.slot_range.switch
            counters = self._core.agents[switch].job_counters(part.id)
            packets = counters.get(f"worker_{bit}_packets")
        return {
            "rank": member.rank,
            "state": member.state.value,
            "address": member.endpoint[0],
            "port": member.endpoint[1],
            "switch": switch,
            "silent": None if silent is None else round(silent, 2),
            "packets": packets,
            "why": member.why,
        }

    def switch_view(self, name: str, tenant: Tenant) -> answers.SwitchView:
        """Returns a switch with the owners of its slots. The caller holds the lock."""
        switch, driver = self._core.book.pool.switches[name], self._core.drivers[name]
        hosts = switch.attachment.hosts
        return {
            "name": name,
            "target": driver.target,
            **endpoint(driver),
            "state": switch.state,
            "why": switch.why,
            "draining": switch.draining,
            "warnings": driver.warnings,
            "parent": switch.attachment.parent,
            "hosts": None if hosts is None else [shown_network(network) for network in hosts],
            "bandwidth": switch.attachment.bandwidth,
            "capacity": cast(answers.CapacityView, asdict(switch.capacity)),
            "free": switch.allocator.free_slots,
            "largest_free": switch.allocator.largest_free,
            "memory_used": switch.memory_used,
            "ranges": self._ranges(switch, tenant),
            "counters": dict(self._core.agents[name].counters),
        }

    def _ranges(self, switch: SwitchResources, tenant: Tenant) -> list[answers.RangeView]:
        """Returns the ranges of a switch, by base; other tenants' ranges without names."""
        found: list[answers.RangeView] = []
        for job in self._core.book.table.jobs():
            reserved = job.ranges
            if job.change is not None and job.change.target is not None:
                reserved += tuple(each for each in job.change.target.ranges if each not in reserved)
            known = _sees(tenant, job)
            found += [
                {
                    "base": each.base,
                    "slots": each.slots,
                    "words": each.words,
                    "job": job.id or None,
                    "name": job.name if known else None,
                    "tenant": job.tenant if known else None,
                }
                for each in reserved
                if each.switch == switch.name
            ]
        return sorted(found, key=lambda each: each["base"])

    def _jobs(self, tenant: Tenant) -> list[answers.JobView]:
        return [self.job_view(job) for job in self._core.book.table.jobs() if _sees(tenant, job)]

    def _switches(self, tenant: Tenant) -> list[answers.SwitchView]:
        return [self.switch_view(name, tenant) for name in self._core.drivers]

    def _events(
        self, tenant: Tenant, since: int, limit: int, job: str | None = None
    ) -> list[answers.EventView]:
        return [describe(event) for event in self._core.journal.events.since(since, limit, tenant, job)]


def _sees(tenant: Tenant, job: Job) -> bool:
    return tenant.admin or tenant.name == job.tenant


def _states(indices: range, driver: SwitchDriver) -> dict[int, Any]:
    return {index: driver.slot(index) for index in indices}


def _counters(jobs: Sequence[int], driver: SwitchDriver) -> tuple[dict[str, int], dict[int, dict[str, int]]]:
    return dict(driver.counters()), {job_id: dict(driver.job_counters(job_id)) for job_id in jobs}


def _waiting(slots: Mapping[int, Any], part: Generation, generation: Generation) -> list[answers.WaitingSlot]:
    """Returns the slots of a part of a job that wait for some ranks. A leaf stands for the ranks below it."""
    below = {leaf.slot_range.switch: leaf.places for leaf in generation.leaves}
    senders = [below[each] if isinstance(each, str) else (each,) for each in part.senders]
    full = (1 << len(senders)) - 1

    def ranks(bits: int) -> list[int]:
        return sorted(rank for bit, each in enumerate(senders) if bits >> bit & 1 for rank in each)

    return [
        {
            "switch": part.slot_range.switch,
            "slot": index,
            "seq": state.seq,
            "filled": state.filled,
            "seen": ranks(state.seen),
            "missing": ranks(~state.seen & full),
        }
        for index, state in slots.items()
        if state.seen & full != full
    ]

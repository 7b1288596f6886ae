"""Jobs and switches in JSON's types, as answers and events show them. Only `admitted` has tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from switchagg.control import answers
from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.records import Admission, JobState, MemberState, Tenant
from switchagg.control.jobs.switch_resources import SwitchResources
from switchagg.control.telemetry import History
from switchagg.rules.wiring import shown_network


def sees(tenant: Tenant, owner: str | None) -> bool:
    """Returns True if a tenant may see the jobs of `owner`."""
    return tenant.admin or tenant.name == owner


def admitted(
    admission: Admission, driver: SwitchDriver, heartbeat: tuple[str, int] | None
) -> answers.AdmittedView:
    """Returns the first event of a member's stream."""
    shown = asdict(admission)
    cookie, interval = shown.pop("cookie"), shown.pop("interval")
    address, port = heartbeat or ("", 0)
    shown |= {
        "event": "admitted",
        "places": list(admission.places),
        "lost": [{"rank": rank, "why": why} for rank, why in admission.lost],
        "switch": {"name": driver.name, **endpoint(driver)},
        "on_loss": admission.on_loss.value,
        "heartbeat": {"address": address, "port": port, "cookie": cookie.hex(), "interval": interval},
    }
    return cast(answers.AdmittedView, shown)


def endpoint(driver: SwitchDriver) -> answers.Endpoint:
    """Returns a switch's address and port for workers, and the parameters of the way there."""
    host, port = driver.address
    return {"address": host, "port": port, "receive_buffer": driver.receive_buffer, "link": driver.link}


def job_view(
    job: Job,
    book: JobBook,
    history: History | None,
    counters: Mapping[str, Mapping[str, int]],
    now: float,
    epoch: float,
) -> answers.JobView:
    """Returns a job.

    Args:
        counters: of the job on its switches, by their names.
        now, epoch: the book's time, and the unix time at which it was 0.
    """
    generation = job.generation
    places = () if generation is None else generation.places
    queue = book.scheduler.queue()
    return {
        "name": job.name,
        "id": job.id or None,
        "tenant": job.tenant,
        "state": job.shown,
        "why": job.why or _trouble(job, book),
        "world_size": job.world_size,
        "members": [
            _member(member, book, generation, counters, now) for _, member in sorted(job.members.items())
        ]
        + [{**_member(member, book, None, {}, now), "state": "waiting"} for member in job.back.values()],
        "missing": job.missing if job.state is not JobState.failed else [],
        "lost": job.ranks(MemberState.lost),
        "places": list(places),
        "switch": job.switch if job.slot_range is None else job.slot_range.switch,
        "base": None if job.slot_range is None else job.slot_range.base,
        "leaves": _leaves(job),
        "slots": job.slots,
        "words": job.words,
        "age": round(now - job.created, 3),
        "priority": job.priority,
        "queue_position": queue.index(job) + 1 if job.state is JobState.queued else None,
        "deadline": job.deadline,
        "on_loss": job.on_loss.value,
        "draining": job.draining,
        "policy": {
            **cast(answers.PolicyWord, asdict(job.policy)),
            "since": round(job.policy_since + epoch, 3),
            "why": job.policy_why,
        },
        "rates": None if history is None else history.rates(),
    }


def _trouble(job: Job, book: JobBook) -> str:
    """Returns which of the job's switches are down; the job may go on there, or not."""
    switches = [book.pool.switches[each.switch] for each in job.ranges]
    return "; ".join(f"switch {each.name!r} is down: {each.why}" for each in switches if not each.up)


def _leaves(job: Job) -> list[answers.LeafView]:
    seats = {} if job.placement is None else dict(job.placement.seats)
    return [
        {"switch": leaf.switch, "base": leaf.base, "ranks": list(seats[leaf.switch])}
        for leaf in job.ranges[1:]
    ]


def _member(
    member: Member,
    book: JobBook,
    generation: Generation | None,
    counters: Mapping[str, Mapping[str, int]],
    now: float,
) -> answers.MemberView:
    silent = book.table.liveness.silent(member.cookie, now)
    switch = packets = None
    if generation is not None and member.rank in generation.places:
        part, bit = generation.seat(member.rank)
        switch = part.slot_range.switch
        packets = counters.get(switch, {}).get(f"worker_{bit}_packets")
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


def switch_view(
    switch: SwitchResources,
    driver: SwitchDriver,
    book: JobBook,
    counters: Mapping[str, int],
    tenant: Tenant,
) -> answers.SwitchView:
    """Returns a switch with the owners of its slots."""
    hosts = switch.attachment.hosts
    return {
        "name": switch.name,
        "target": driver.target,
        **endpoint(driver),
        "state": switch.state,
        "why": switch.why,
        "draining": switch.draining,
        "warnings": driver.warnings,
        "parent": switch.attachment.parent,
        "hosts": None if hosts is None else [shown_network(network) for network in hosts],
        "capacity": cast(answers.CapacityView, asdict(switch.capacity)),
        "free": switch.allocator.free_slots,
        "largest_free": switch.allocator.largest_free,
        "memory_used": switch.memory_used,
        "ranges": ranges(switch, book, tenant),
        "counters": dict(counters),
    }


def ranges(switch: SwitchResources, book: JobBook, tenant: Tenant) -> list[answers.RangeView]:
    """Returns the ranges of a switch, by base; other tenants' ranges without names."""
    found: list[answers.RangeView] = []
    for job in book.table.jobs():
        reserved = job.ranges
        if job.change is not None and job.change.target is not None:
            reserved += tuple(each for each in job.change.target.ranges if each not in reserved)
        for each in reserved:
            if each.switch == switch.name:
                known = sees(tenant, job.tenant)
                found.append(
                    {
                        "base": each.base,
                        "slots": each.slots,
                        "words": each.words,
                        "job": job.id or None,
                        "name": job.name if known else None,
                        "tenant": job.tenant if known else None,
                    }
                )
    return sorted(found, key=lambda each: each["base"])


def waiting(slots: Mapping[int, Any], part: Generation, generation: Generation) -> list[answers.WaitingSlot]:
    """Returns the slots of a job on one switch that wait for some ranks.

    Args:
        slots: the slots' states by index.
        part: the job on that switch. At a root a leaf stands for the ranks below it.
    """
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

"""What people and programs are shown of jobs and switches, in JSON's types. No token is in any of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchagg.control.answers import (
    AdmittedView,
    Endpoint,
    JobView,
    LeafView,
    MemberView,
    RangeView,
    SwitchView,
    WaitingSlot,
)
from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.history import History
from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.placement import Room, Tree
from switchagg.control.jobs.records import Admission, JobState, MemberState, Tenant
from switchagg.rules.wiring import shown_network


def sees(tenant: Tenant, owner: str | None) -> bool:
    """Returns whether a tenant may know whose job it is looking at."""
    return tenant.admin or tenant.name == owner


def admitted(admission: Admission, driver: SwitchDriver, heartbeat: tuple[str, int] | None) -> AdmittedView:
    """Returns the first line of a member's stream. It alone holds tokens."""
    return {
        "event": "admitted",
        "job": admission.job,
        "token": admission.token,
        "result_token": admission.result_token,
        "base": admission.base,
        "slots": admission.slots,
        "words": admission.words,
        "first_seq": admission.first_seq,
        "policy": {
            "block": admission.policy.block,
            "dense": admission.policy.dense,
            "bits": admission.policy.bits,
        },
        "worker_bit": admission.worker_bit,
        "senders": admission.senders,
        "rank": admission.rank,
        "world_size": admission.world_size,
        "places": list(admission.places),
        "lost": [{"rank": rank, "why": why} for rank, why in admission.lost],
        "switch": {"name": driver.name, **endpoint(driver)},
        "deadline": admission.deadline,
        "on_loss": admission.on_loss.value,
        "heartbeat": {
            "address": heartbeat[0] if heartbeat else "",
            "port": heartbeat[1] if heartbeat else 0,
            "cookie": admission.cookie.hex(),
            "interval": admission.interval,
        },
    }


def endpoint(driver: SwitchDriver) -> Endpoint:
    """Returns where workers send to, and what they need to know of it."""
    host, port = driver.address
    return {"address": host, "port": port, "receive_buffer": driver.receive_buffer, "link": driver.link}


def job_view(
    job: Job,
    book: JobBook,
    history: History | None,
    counters: Mapping[str, Mapping[str, int]],
    now: float,
    epoch: float,
) -> JobView:
    """Returns a job. `counters` are its switches' for it, by name; `epoch` the unix time at the clock's 0."""
    generation = job.generation
    places = () if generation is None else generation.places
    queue = book.queue()
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
        "switch": job.site.switch if job.site is not None else job.switch,
        "base": None if job.site is None else job.site.base,
        "leaves": [] if job.tree is None else _leaves(job.tree),
        "slots": job.slots,
        "words": job.words,
        "age": round(now - job.created, 3),
        "priority": job.priority,
        "queue_position": queue.index(job) + 1 if job.state is JobState.queued else None,
        "deadline": job.deadline,
        "on_loss": job.on_loss.value,
        "draining": job.draining,
        "policy": {
            "block": job.policy.block,
            "dense": job.policy.dense,
            "bits": job.policy.bits,
            "since": round(job.policy_since + epoch, 3),
            "why": job.policy_why,
        },
        "rates": None if history is None else history.rates(),
    }


def _trouble(job: Job, book: JobBook) -> str:
    """Which of its switches do not answer: what runs there may go on, or not."""
    rooms = [book.placement.rooms[name] for name in ([] if job.tree is None else job.tree.switches)]
    return "; ".join(f"switch {room.name!r} is down: {room.why}" for room in rooms if not room.up)


def _leaves(tree: Tree) -> list[LeafView]:
    seats = dict(tree.seats)
    return [
        {"switch": leaf.switch, "base": leaf.base, "ranks": list(seats[leaf.switch])} for leaf in tree.leaves
    ]


def _member(
    member: Member,
    book: JobBook,
    generation: Generation | None,
    counters: Mapping[str, Mapping[str, int]],
    now: float,
) -> MemberView:
    silent = book.liveness.silent(member.cookie, now)
    switch = packets = None
    if generation is not None and member.rank in generation.places:
        part, bit = generation.seat(member.rank)
        switch = part.site.switch
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
    room: Room, driver: SwitchDriver, book: JobBook, counters: Mapping[str, int], tenant: Tenant
) -> SwitchView:
    """Returns a switch, and who has which of its slots."""
    capacity = room.capacity
    return {
        "name": room.name,
        "target": driver.target,
        **endpoint(driver),
        "state": room.state,
        "why": room.why,
        "draining": room.draining,
        "warnings": driver.warnings,
        "parent": room.attachment.parent,
        "hosts": None
        if room.attachment.hosts is None
        else [shown_network(network) for network in room.attachment.hosts],
        "capacity": {
            "slots": capacity.slots,
            "words": capacity.words,
            "memory": capacity.memory,
            "workers": capacity.workers,
            "groups": capacity.groups,
            "exact_words": capacity.exact_words,
        },
        "free": room.allocator.free_slots,
        "largest_free": room.allocator.largest_free,
        "memory_used": room.memory_used,
        "ranges": ranges(room, book, tenant),
        "counters": dict(counters),
    }


def ranges(room: Room, book: JobBook, tenant: Tenant) -> list[RangeView]:
    """Returns the ranges of a switch, by base; other tenants' without their names."""
    found: list[RangeView] = []
    for job in book.jobs():
        sites = () if job.tree is None else job.tree.sites
        if job.change is not None and job.change.target is not None:
            sites += tuple(site for site in job.change.target.sites if site not in sites)
        for site in sites:
            if site.switch == room.name:
                known = sees(tenant, job.tenant)
                found.append(
                    {
                        "base": site.base,
                        "slots": site.slots,
                        "words": site.words,
                        "job": job.id or None,
                        "name": job.name if known else None,
                        "tenant": job.tenant if known else None,
                    }
                )
    return sorted(found, key=lambda each: each["base"])


def waiting(slots: Mapping[int, Any], part: Generation, generation: Generation) -> list[WaitingSlot]:
    """Returns the slots of a job on one of its switches that wait for some ranks.

    Args:
        slots: their states by index.
        part: what the switch has of `generation`. At a root a leaf stands for the ranks below it.
    """
    below = {leaf.site.switch: leaf.places for leaf in generation.leaves}
    senders = [below[each] if isinstance(each, str) else (each,) for each in part.senders]
    full = (1 << len(senders)) - 1

    def ranks(bits: int) -> list[int]:
        return sorted(rank for bit, each in enumerate(senders) if bits >> bit & 1 for rank in each)

    return [
        {
            "switch": part.site.switch,
            "slot": index,
            "seq": state.seq,
            "filled": state.filled,
            "seen": ranks(state.seen),
            "missing": ranks(~state.seen & full),
        }
        for index, state in slots.items()
        if state.seen & full != full
    ]

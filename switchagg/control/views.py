"""What people and programs are shown of jobs and switches, in JSON's types. No token is in any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.history import History
from switchagg.control.job import Job, Member
from switchagg.control.jobs import JobBook
from switchagg.control.placement import Room
from switchagg.control.records import Admission, JobState, MemberState, Tenant


def sees(tenant: Tenant, owner: str | None) -> bool:
    """Returns whether a tenant may know whose job it is looking at."""
    return tenant.admin or tenant.name == owner


def admitted(admission: Admission, driver: SwitchDriver, heartbeat: tuple[str, int] | None) -> dict[str, Any]:
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
        "policy": asdict(admission.policy),
        "worker_bit": admission.worker_bit,
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


def endpoint(driver: SwitchDriver) -> dict[str, Any]:
    """Returns where workers send to, and what they need to know of it."""
    host, port = driver.address
    return {"address": host, "port": port, "receive_buffer": driver.receive_buffer, "link": driver.link}


def job_view(
    job: Job, book: JobBook, history: History | None, counters: Mapping[str, int], now: float, epoch: float
) -> dict[str, Any]:
    """Returns a job. `counters` are the switch's for it; `epoch` is the unix time at the clock's 0."""
    generation = job.generation
    places = () if generation is None else generation.places
    queue = book.queue()
    return {
        "name": job.name,
        "id": job.id or None,
        "tenant": job.tenant,
        "state": job.shown.value,
        "why": job.why,
        "world_size": job.world_size,
        "members": [_member(member, book, places, counters, now) for _, member in sorted(job.members.items())]
        + [{**_member(member, book, (), {}, now), "state": "waiting"} for member in job.back.values()],
        "missing": job.missing if job.state is not JobState.failed else [],
        "lost": job.ranks(MemberState.lost),
        "places": list(places),
        "switch": job.site.switch if job.site is not None else job.switch,
        "base": None if job.site is None else job.site.base,
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


def _member(
    member: Member, book: JobBook, places: tuple[int, ...], counters: Mapping[str, int], now: float
) -> dict[str, Any]:
    silent = book.liveness.silent(member.cookie, now)
    bit = places.index(member.rank) if member.rank in places else None
    return {
        "rank": member.rank,
        "state": member.state.value,
        "address": member.endpoint[0],
        "port": member.endpoint[1],
        "silent": None if silent is None else round(silent, 2),
        "packets": None if bit is None else counters.get(f"worker_{bit}_packets"),
        "why": member.why,
    }


def switch_view(
    room: Room, driver: SwitchDriver, book: JobBook, counters: Mapping[str, int], tenant: Tenant
) -> dict[str, Any]:
    """Returns a switch, and who has which of its slots."""
    capacity = room.capacity
    return {
        "name": room.name,
        "target": driver.target,
        **endpoint(driver),
        "state": room.state.value,
        "why": room.why,
        "draining": room.draining,
        "warnings": driver.warnings,
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


def ranges(room: Room, book: JobBook, tenant: Tenant) -> list[dict[str, Any]]:
    """Returns the ranges of a switch, by base; other tenants' without their names."""
    found = []
    for job in book.jobs():
        sites = [job.site, job.change.target if job.change is not None else None]
        for site in sites:
            if site is not None and site.switch == room.name:
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
    return sorted(found, key=lambda each: int(each["base"]))


def waiting(slots: Mapping[int, Any], job: Job) -> list[dict[str, Any]]:
    """Returns the slots of a job that wait for some ranks; `slots` are their states by index."""
    assert job.generation is not None
    places = job.generation.places
    full = (1 << len(places)) - 1
    return [
        {
            "slot": index,
            "seq": state.seq,
            "filled": state.filled,
            "seen": [rank for bit, rank in enumerate(places) if state.seen >> bit & 1],
            "missing": [rank for bit, rank in enumerate(places) if not state.seen >> bit & 1],
        }
        for index, state in slots.items()
        if state.seen & full != full
    ]

"""A book of jobs for tests, with switches that do everything at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.effects import AnswerJoin, AnswerStep, Effect, Install, Remove, SendEvent
from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.records import JobSpec, JoinRequest, Quota, Tenant
from switchagg.control.jobs.switch_resources import SwitchResources
from switchagg.errors import AdmissionError
from switchagg.rules.switch import Capacity, Reconciled

ME = Tenant("me")
DOING = (Install, Remove, AnswerJoin)  # what a switch and a joining rank see


def switch(
    name: str = "s", slots: int = 64, words: int = 364, memory: int = 1 << 20, **more: Any
) -> SwitchResources:
    """A switch of 8 slots a job."""
    return SwitchResources(name, Capacity(slots, words, memory, **more), slots=8)


def book(*switches: SwitchResources, up: bool = True, **options: Any) -> JobBook:
    """A book; with no switches named, of one."""
    jobs = JobBook(switches or [switch()], **options)
    for name in jobs.pool.switches if up else ():
        jobs.switch_up(name, Reconciled())
    jobs.poll()
    return jobs


def request(rank: int, world_size: int = 2, **options: Any) -> JoinRequest:
    return JoinRequest(rank, world_size, "10.0.0.1", 4000 + rank, **options)


def join(jobs: JobBook, name: str, asked: JoinRequest, now: float = 0.0, tenant: Tenant = ME) -> Member:
    return jobs.join(tenant, name, asked, now)


def create(jobs: JobBook, name: str = "a", world_size: int = 2, **options: Any) -> Job:
    tenant = options.pop("tenant", ME)
    return jobs.create(tenant, JobSpec(name, world_size, **options), 0.0)


def carry_out(jobs: JobBook) -> list[Effect]:
    """Does all there is to do, as a switch that does everything at once; returns it."""
    done: list[Effect] = []
    while effects := jobs.poll():
        for effect in effects:
            done.append(effect)
            if isinstance(effect, Install):
                for packet in effect.generation.pending_inits():
                    effect.generation.echoed(packet)
                jobs.opened(effect.job, effect.generation, 0.0)
    return done


def doing(jobs: JobBook) -> list[Any]:
    """Returns what switches and joining ranks see of what there is to do."""
    return only(jobs.poll())


def leave(jobs: JobBook, name: str, rank: int, given: int) -> None:
    jobs.leave(jobs.table.member("me", name, rank, given))


def generation(member: Member) -> Generation:
    """The one that is there now."""
    assert member.job.generation is not None
    return member.job.generation


def only(effects: Sequence[Effect], *kinds: type) -> list[Any]:
    """Returns the effects of these kinds; with none named, what switches and joining ranks see."""
    return [effect for effect in effects if isinstance(effect, kinds or DOING)]


def told(effects: Sequence[Effect], member: Member) -> list[dict[str, Any]]:
    """Returns the events that a member was sent."""
    return [dict(effect.event) for effect in only(effects, SendEvent) if effect.member is member]


def answers(effects: Sequence[Effect]) -> dict[int, AnswerStep]:
    """Returns the answers to questions, by rank."""
    return {effect.member.rank: effect for effect in only(effects, AnswerStep)}


def run(jobs: JobBook, name: str = "a", world_size: int = 2, **options: Any) -> list[Member]:
    """A job that runs."""
    tenant = options.pop("tenant", ME)
    members = [
        join(jobs, name, request(rank, world_size, **options), tenant=tenant) for rank in range(world_size)
    ]
    carry_out(jobs)
    assert all(member.admission for member in members)
    return members


def state(jobs: JobBook) -> object:
    """All that a refusal must leave as it was."""
    return (
        [
            (job.number, job.state, sorted(job.members), sorted(job.back), job.slot_range, job.generation)
            for job in jobs.table.jobs()
        ],
        {name: (each.allocator.ranges, each.memory_used) for name, each in jobs.pool.switches.items()},
    )


def refused(jobs: JobBook, name: str, asked: JoinRequest, tenant: Tenant = ME) -> AdmissionError:
    jobs.poll()
    before = state(jobs)
    with pytest.raises(AdmissionError) as error:
        join(jobs, name, asked, tenant=tenant)
    assert state(jobs) == before
    assert jobs.poll() == []
    return error.value


def token(member: Member) -> int:
    assert member.admission is not None
    return member.admission.token


def free(jobs: JobBook) -> int:
    """Slots that are free on all switches."""
    return sum(each.allocator.free_slots for each in jobs.pool.switches.values())


def quota(**limits: int) -> Tenant:
    return Tenant("poor", quota=Quota(**limits))

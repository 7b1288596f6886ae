"""Books of jobs, and calls of them, with switches that carry out every effect at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.effects import AnswerJoin, AnswerStep, Effect, Install, Remove, SendEvent
from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.records import JobSpec, JoinRequest, Quota, Tenant
from switchagg.control.jobs.switch_resources import SwitchResources
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.switch import Capacity, Reconciled

ME = Tenant("me")
DOING = (Install, Remove, AnswerJoin)  # effects that a switch and a joining rank see


def switch(
    name: str = "s", slots: int = 64, words: int = 364, memory: int = 1 << 20, **more: Any
) -> SwitchResources:
    """Returns a switch that gives a job 8 slots by default."""
    return SwitchResources(name, Capacity(slots, words, memory, **more), slots=8)


def book(*switches: SwitchResources, up: bool = True, **options: Any) -> JobBook:
    """Returns a book of these switches, or of one."""
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
    """Carries out all effects, as switches that do everything at once; returns them."""
    done: list[Effect] = []
    while effects := jobs.poll():
        for effect in effects:
            done.append(effect)
            if isinstance(effect, Install):
                for packet in list(effect.generation.pending.values()):
                    effect.generation.echoed(packet)
                jobs.opened(effect.job, effect.generation, 0.0)
    return done


def does_not_answer(jobs: JobBook) -> str:
    """A switch does not answer when it is to install a job; returns its name."""
    install = next(each for each in jobs.poll() if isinstance(each, Install))
    jobs.opening_failed(install.job, install.generation, SwitchError("no answer within 2 s"))
    return install.generation.slot_range.switch


def doing(jobs: JobBook) -> list[Any]:
    """Returns the effects that switches and joining ranks see."""
    return only(jobs.poll())


def leave(jobs: JobBook, name: str, rank: int, given: int) -> None:
    jobs.leave(jobs.table.member("me", name, rank, given))


def generation(member: Member) -> Generation:
    """Returns the current generation of a member's job."""
    assert member.job.generation is not None
    return member.job.generation


def only(effects: Sequence[Effect], *kinds: type) -> list[Any]:
    """Returns the effects of these kinds; with none named, those that switches and joining ranks see."""
    return [effect for effect in effects if isinstance(effect, kinds or DOING)]


def told(effects: Sequence[Effect], member: Member) -> list[dict[str, Any]]:
    """Returns the events that a member was sent."""
    return [dict(effect.event) for effect in only(effects, SendEvent) if effect.member is member]


def answers(effects: Sequence[Effect]) -> dict[int, AnswerStep]:
    """Returns the answers in a change of membership, by rank."""
    return {effect.member.rank: effect for effect in only(effects, AnswerStep)}


def run(jobs: JobBook, name: str = "a", world_size: int = 2, **options: Any) -> list[Member]:
    """Makes a job run and returns its members."""
    tenant = options.pop("tenant", ME)
    members = [
        join(jobs, name, request(rank, world_size, **options), tenant=tenant) for rank in range(world_size)
    ]
    carry_out(jobs)
    assert all(member.admission for member in members)
    return members


def state(jobs: JobBook) -> object:
    """Returns all that a refusal must not change."""
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
    """Returns the number of free slots on all switches."""
    return sum(each.allocator.free_slots for each in jobs.pool.switches.values())


def quota(**limits: int) -> Tenant:
    return Tenant("poor", quota=Quota(**limits))

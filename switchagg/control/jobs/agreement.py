"""Which job a rank belongs to that wants to join, and whether it agrees with those that are there. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from switchagg.control.jobs.job import Job
from switchagg.control.jobs.places import UNOPENED
from switchagg.control.jobs.records import JobState, JoinRequest, MemberState, OnLoss
from switchagg.errors import AdmissionError


def joinable(jobs: Sequence[Job], name: str, request: JoinRequest) -> Job | None:
    """Returns the job that `request` belongs to, None for a new one."""
    for job in jobs:
        there = job.back.get(request.rank) or job.members.get(request.rank)
        if there is not None and there.state is MemberState.joined:
            raise AdmissionError(
                f"rank {request.rank} of job {name!r} is taken by {there.endpoint[0]}:"
                f"{there.endpoint[1]}; it can join again when that one has left",
                "rank_taken",
            )
    if not jobs:
        return None
    newest = jobs[-1]
    if newest.state in UNOPENED:
        return newest
    if newest.state in (JobState.running, JobState.moving):
        if newest.draining:
            raise AdmissionError(f"job {name!r} is being drained", "draining")
        was = newest.members.get(request.rank)
        comes_back = was is not None and was.state is MemberState.lost
        if newest.on_loss is OnLoss.shrink and (comes_back or request.world_size != newest.world_size):
            if request.world_size != newest.world_size:
                raise _wrong_size(newest, request)
            return newest
    if len(newest.ranks(MemberState.joined)) == newest.world_size:
        # Nobody has left: this is not the next generation coming in but one rank too many.
        raise _wrong_size(newest, request)
    return None


def check_agreement(job: Job, request: JoinRequest) -> None:
    there = [*job.joined(), *job.back.values()]
    ranks = sorted(member.rank for member in there)
    who = f"ranks {ranks} have" if job.spec is None else "it was created with"
    if request.world_size != job.world_size:
        said = f"ranks {ranks} say" if job.spec is None else "it was created for"
        raise AdmissionError(
            f"rank {request.rank} says that job {job.name!r} has {request.world_size} workers; "
            f"{said} {job.world_size}",
            "world_size_mismatch",
        )
    theirs: Mapping[str, object] = {
        "words": job.words,
        "slots": job.slots,
        "priority": job.wish("priority", None),
        "deadline": job.wish("deadline", None),
        "on_loss": job.wish("on_loss", None),
    }
    for name, value in theirs.items():
        mine = getattr(request, name)
        if mine is not None and value is not None and mine != value:
            raise AdmissionError(
                f"rank {request.rank} asks for {mine} {name} in job {job.name!r}; "
                f"{who} {value}. All must ask for the same, or for none",
                "settings_mismatch",
            )
    if there and job.touch != request.touch:
        raise AdmissionError(
            f"rank {request.rank} has touch={request.touch} in job {job.name!r}, {who} touch={job.touch}",
            "settings_mismatch",
        )
    for other in there:
        if other.endpoint == (request.address, request.port):
            raise AdmissionError(
                f"{request.address}:{request.port} is already rank {other.rank} of job {job.name!r}; "
                "every rank sends from a port of its own",
                "address_taken",
            )


def _wrong_size(job: Job, request: JoinRequest) -> AdmissionError:
    return AdmissionError(
        f"world_size is {request.world_size}; job {job.name!r} is running with {job.world_size}",
        "world_size_mismatch",
    )

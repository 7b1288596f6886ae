"""Converts jobs to JSON documents that survive a restart of the controller, and back. No I/O, no clock.

A document has all that switches and members hold of a job: its slots, its open generation with its tokens,
its members with their cookies, and the answer to progress in a change of membership. A rank that waits to be
admitted is not in it: its connection ends with the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass, replace
from enum import Enum
from itertools import repeat
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from switchagg.control.jobs.job import Change, ChangeReason, Generation, Job, Member, Placement
from switchagg.control.jobs.records import Admission, JobSpec, JobState, JoinRequest, MemberState
from switchagg.control.jobs.switch_resources import JobSize, SlotRange
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.slots import JobEntry


def kept(job: Job) -> bool:
    """Returns True if the job outlives this controller."""
    if job.state in (JobState.failed, JobState.ended):
        return False
    return job.spec is not None or job.state in (JobState.running, JobState.moving)


def dump(job: Job, epoch: float) -> dict[str, Any]:
    """Returns the document of a job. `epoch` is the unix time at which the book's clock was 0."""
    generation = job.generation if job.generation is not None and job.generation.open else None
    opened = job.state in (JobState.running, JobState.moving)
    return {
        "number": job.number,
        "tenant": job.tenant,
        "name": job.name,
        "world_size": job.world_size,
        "created": job.created + epoch,
        "spec": None if job.spec is None else asdict(job.spec),
        "state": job.state.value,
        "draining": job.draining,
        "tree": None if job.placement is None else asdict(job.placement),
        "shape": None if job.size is None else asdict(job.size),
        "id": job.id,
        "generation": None if generation is None else _generation(generation),
        "change": None
        if job.change is None or not (job.change.begun or job.change.lost)
        else {
            "reason": job.change.reason.value,
            "why": job.change.why,
            "complete_to": job.change.complete_to,
            "lost": list(job.change.lost.items()),
        },
        "policy": asdict(job.policy),
        "policy_why": job.policy_why,
        "policy_since": job.policy_since + epoch,
        "members": [_member(member) for member in job.members.values() if member.admission] if opened else [],
    }


def _generation(generation: Generation) -> dict[str, Any]:
    return {
        "entry": asdict(generation.entry),
        "first_seq": generation.first_seq,
        "places": list(generation.places),
        "fenced": generation.fenced,
        "seats": list(generation.seats),
        "leaves": [_generation(leaf) for leaf in generation.leaves],
    }


def _member(member: Member) -> dict[str, Any]:
    assert member.admission is not None
    return {
        "admission": {**asdict(member.admission), "cookie": None},
        "request": asdict(member.request),
        "endpoint": list(member.endpoint),
        "token": member.token,
        "former": member.former,
        "cookie": member.cookie.hex(),
        "state": member.state.value,
        "why": member.why,
    }


def load(document: dict[str, Any], epoch: float) -> Job:
    """Returns the job of a document, as it is after a restart.

    Raises `KeyError`, `TypeError` or `ValueError` for a document that `dump` cannot have written.
    """
    root = document.get("site")  # written when a job had one switch
    job = Job(
        number=document["number"],
        tenant=document["tenant"],
        name=document["name"],
        world_size=document["world_size"],
        created=document["created"] - epoch,
        spec=_read(JobSpec, document["spec"]),
        draining=document["draining"],
        placement=_read(Placement, document.get("tree") if root is None else {"root": root}),
        size=_read(JobSize, document["shape"]),
        policy=_read(SkipPolicy, document["policy"]),
        policy_why=document["policy_why"],
        policy_since=document["policy_since"] - epoch,
        id=document["id"],
    )
    state = JobState(document["state"])
    if state not in (JobState.running, JobState.moving):
        job.state = JobState.queued if job.placement is None else JobState.created
        return job
    job.state = state
    for saved in document["members"]:
        member = _load_member(job, saved)
        job.members[member.rank] = member
    if document["generation"] is not None and job.placement is not None:
        job.generation = _load_generation(job.ranges, document["generation"])
    if (change := document["change"]) is not None:
        job.change = Change(
            ChangeReason(change["reason"]),
            change["why"],
            complete_to=change["complete_to"],
            lost=dict(change["lost"]),
        )
    return job


def _load_member(job: Job, saved: dict[str, Any]) -> Member:
    cookie = bytes.fromhex(saved["cookie"])
    admission = saved["admission"]
    return Member(
        job,
        _read(JoinRequest, saved["request"]),
        0.0,
        endpoint=tuple(saved["endpoint"]),
        token=saved["token"],
        former=saved["former"],
        cookie=cookie,
        admission=replace(_read(Admission, {"senders": admission["world_size"], **admission}), cookie=cookie),
        state=MemberState(saved["state"]),
        why=saved["why"],
    )


def _load_generation(ranges: Sequence[SlotRange], saved: dict[str, Any]) -> Generation:
    leaves = zip(ranges[1:], saved.get("leaves", ()), strict=True)
    return Generation(
        ranges[0],
        _read(JobEntry, saved["entry"]),
        saved["first_seq"],
        tuple(saved["places"]),
        saved["fenced"],
        ready=True,
        open=True,
        leaves=tuple(_load_generation([each], leaf) for each, leaf in leaves),
        seats=tuple(saved.get("seats", ())),
    )


def _read(kind: Any, value: Any) -> Any:
    """Returns a value of JSON's types as `kind`: a dataclass, enum, tuple, or one of these or None."""
    kinds = get_args(kind)
    if value is None:
        return None
    if get_origin(kind) is UnionType:
        return _read(kinds[0], value)
    if get_origin(kind) is tuple:
        return tuple(map(_read, repeat(kinds[0]) if Ellipsis in kinds else kinds, value))
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _read(hints[name], each) for name, each in value.items()})  # type: ignore[operator]
    return kind(value) if issubclass(kind, Enum) else value

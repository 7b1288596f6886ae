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
from typing import Any, Final, get_args, get_origin, get_type_hints

from switchagg.control.jobs.job import Change, Generation, Job, Member, Placement
from switchagg.control.jobs.records import Admission, JobState
from switchagg.control.jobs.switch_resources import JobSize, SlotRange

_JOB: Final = (
    *("number", "tenant", "name", "world_size", "spec", "state", "draining", "id"),
    *("policy", "policy_why"),
)
_GENERATION: Final = ("entry", "first_seq", "places", "fenced", "seats")
_MEMBER: Final = ("request", "endpoint", "token", "former", "replays", "state", "why", "begun", "completed")
_CHANGE: Final = ("reason", "why", "complete_to")


def kept(job: Job) -> bool:
    """Returns True if the job outlives this controller."""
    if job.state in (JobState.failed, JobState.ended):
        return False
    return job.spec is not None or job.state in (JobState.running, JobState.moving)


def dump(job: Job, epoch: float) -> dict[str, Any]:
    """Returns the document of a job. `epoch` is the unix time at which the book's clock was 0."""
    generation, change = job.generation, job.change
    opened = job.state in (JobState.running, JobState.moving)
    members = [member for member in job.members.values() if member.admission] if opened else []
    return {
        **_fields(job, _JOB),
        "created": job.created + epoch,
        "tree": None if job.placement is None else asdict(job.placement),
        "shape": None if job.size is None else asdict(job.size),
        "generation": None if generation is None or not generation.open else _generation(generation),
        "change": None
        if change is None or not (change.begun or change.lost)
        else {**_fields(change, _CHANGE), "lost": list(change.lost.items())},
        "policy_since": job.policy_since + epoch,
        "members": [_member(member) for member in members],
    }


def _generation(generation: Generation) -> dict[str, Any]:
    leaves = [_generation(leaf) for leaf in generation.leaves]
    return {**_fields(generation, _GENERATION), "leaves": leaves}


def _member(member: Member) -> dict[str, Any]:
    assert member.admission is not None
    admission = {**asdict(member.admission), "cookie": None}
    return {**_fields(member, _MEMBER), "admission": admission, "cookie": member.cookie.hex()}


def load(document: dict[str, Any], epoch: float) -> Job:
    """Returns the job of a document, as it is after a restart.

    Raises `KeyError`, `TypeError` or `ValueError` for a document that `dump` cannot have written.
    """
    root = document.get("site")  # written when a job had one switch
    job = Job(
        **_read_fields(Job, _JOB, document),
        created=document["created"] - epoch,
        placement=_read(Placement, document.get("tree") if root is None else {"root": root}),
        size=_read(JobSize, document["shape"]),
        policy_since=document["policy_since"] - epoch,
    )
    if job.state not in (JobState.running, JobState.moving):
        job.state = JobState.queued if job.placement is None else JobState.created
        return job
    for saved in document["members"]:
        member = _load_member(job, saved)
        job.members[member.rank] = member
    if document["generation"] is not None and job.placement is not None:
        job.generation = _load_generation(job.ranges, document["generation"])
    if (change := document["change"]) is not None:
        job.change = Change(**_read_fields(Change, _CHANGE, change), lost=dict(change["lost"]))
    return job


def _load_member(job: Job, saved: dict[str, Any]) -> Member:
    cookie = bytes.fromhex(saved["cookie"])
    admission = _read(Admission, {"senders": saved["admission"]["world_size"], **saved["admission"]})
    return Member(
        job,
        expires=0.0,
        cookie=cookie,
        admission=replace(admission, cookie=cookie),
        **_read_fields(Member, _MEMBER, {"begun": None, "completed": None, "replays": False, **saved}),
    )


def _load_generation(ranges: Sequence[SlotRange], saved: dict[str, Any]) -> Generation:
    leaves = zip(ranges[1:], saved.get("leaves", ()), strict=True)
    return Generation(
        ranges[0],
        **_read_fields(Generation, _GENERATION, {"seats": (), **saved}),
        ready=True,
        open=True,
        leaves=tuple(_load_generation([each], leaf) for each, leaf in leaves),
    )


def _fields(record: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns some fields of a record in JSON's types."""
    values: dict[str, Any] = {name: getattr(record, name) for name in names}
    return {name: asdict(each) if is_dataclass(each) else each for name, each in values.items()}  # type: ignore[arg-type]


def _read_fields(kind: Any, names: Sequence[str], document: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: _read(hints[name], document[name]) for name in names}


def _read(kind: Any, value: Any) -> Any:
    """Returns a value of JSON's types as `kind`: a dataclass, enum, tuple, or one of these or None.

    Values of other types, also of unions of them, are taken as they are.
    """
    kinds = get_args(kind)
    if value is None:
        return None
    if get_origin(kind) is UnionType:
        return _read(kinds[0], value)
    if get_origin(kind) is tuple:
        return tuple(map(_read, repeat(kinds[0]) if Ellipsis in kinds else kinds, value))
    if is_dataclass(kind):
        return kind(**_read_fields(kind, value, value))  # type: ignore[operator]
    return kind(value) if issubclass(kind, Enum) else value

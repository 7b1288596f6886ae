"""Converts jobs to JSON documents that survive a restart of the controller, and back. No I/O, no clock.

A document has all that switches and members hold of a job: its slots, its open generation with its tokens,
its members with their cookies, and the answer to progress in a change of membership. A rank that waits to be
admitted is not in it: its connection ends with the controller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from switchagg.control.jobs.job import Change, Generation, Job, Member, Placement
from switchagg.control.jobs.records import Admission, JobState
from switchagg.control.jobs.switch_resources import JobSize, SlotRange
from switchagg.errors import SwitchAggError
from switchagg.wire.header import MAX_TREE_WORKERS, MAX_WEIGHT

_JOB: Final = (
    *("number", "tenant", "name", "world_size", "spec", "state", "draining", "id"),
    *("policy", "policy_why"),
)
_GENERATION: Final = ("entry", "first_seq", "first_packet", "places", "fenced", "seats", "weight")
_MEMBER: Final = (
    *("request", "endpoint", "more_ports", "token", "former", "replays", "state", "why"),
    *("begun", "completed"),
)
_MEMBER_DEFAULTS: Final = {"begun": None, "completed": None, "replays": False, "more_ports": ()}
_CHANGE: Final = ("reason", "why", "complete_to")
_LOST: Final = tuple[tuple[int, str], ...]


def kept(job: Job) -> bool:
    """Returns True if the job outlives this controller."""
    if job.state in (JobState.failed, JobState.ended):
        return False
    return job.spec is not None or job.state in (JobState.running, JobState.moving)


def dump(job: Job, epoch: float) -> dict[str, Any]:
    """Returns the document of a job. `epoch` is the unix time at which the book's clock was 0."""
    placement, generation, change = job.placement, job.generation, job.change
    if job.failover is not None and job.failover.former is not None:
        # Its members are still in that one; another controller would begin the failover anew.
        placement, generation = job.failover.former
    opened = job.state in (JobState.running, JobState.moving)
    members = [member for member in job.members.values() if member.admission] if opened else []
    return {
        **_fields(job, _JOB),
        "created": job.created + epoch,
        "id": job.id if generation is None or not generation.open else generation.known_as,
        "tree": None if placement is None else asdict(placement),
        "shape": None if job.size is None else asdict(job.size),
        "generation": None if generation is None or not generation.open else _generation(generation),
        "change": None
        if change is None or not (change.begun or change.lost)
        else {**_fields(change, _CHANGE), "lost": list(change.lost.items())},
        "policy_since": job.policy_since + epoch,
        "members": [_member(member) for member in members],
    }


def _generation(generation: Generation) -> dict[str, Any]:
    below = {
        "leaves": [_generation(leaf) for leaf in generation.leaves],
        "stripes": [_generation(stripe) for stripe in generation.stripes],
    }
    return {**_fields(generation, _GENERATION), **below}


def _member(member: Member) -> dict[str, Any]:
    assert member.admission is not None
    admission = {**asdict(member.admission), "cookie": None}
    return {**_fields(member, _MEMBER), "admission": admission, "cookie": member.cookie.hex()}


def load(document: dict[str, Any], epoch: float) -> Job:
    """Returns the job of a document, as it is after a restart.

    Raises `ValueError` for a document that `dump` cannot have written.
    """
    try:
        job = _load(document, epoch)
    except (KeyError, TypeError, AttributeError, OverflowError, SwitchAggError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    _check(job)
    return job


def _load(document: dict[str, Any], epoch: float) -> Job:
    root = document.get("site")  # written when a job had one switch
    job = Job(
        **_read_fields(Job, _JOB, document),
        created=_read(float, document["created"]) - epoch,
        placement=_read(Placement | None, document.get("tree") if root is None else {"root": root}),
        size=_read(JobSize | None, document["shape"]),
        policy_since=_read(float, document["policy_since"]) - epoch,
    )
    if job.state not in (JobState.running, JobState.moving):
        job.state = JobState.queued if job.placement is None else JobState.created
        return job
    for saved in document["members"]:
        member = _load_member(job, saved)
        if member.rank in job.members:
            raise ValueError(f"rank {member.rank} is there twice")
        job.members[member.rank] = member
    if document["generation"] is not None and job.placement is not None:
        job.generation = _load_generation(job.placement, document["generation"])
        job.generation.newest = job.id
    if (change := document["change"]) is not None:
        job.change = Change(**_read_fields(Change, _CHANGE, change), lost=dict(_read(_LOST, change["lost"])))
    return job


def _load_member(job: Job, saved: dict[str, Any]) -> Member:
    cookie = bytes.fromhex(saved["cookie"])
    before = {"senders": saved["admission"]["world_size"], "tree": job.switches}  # earlier ones lack these
    given = {**before, **saved["admission"], "cookie": cookie}
    return Member(
        job,
        expires=0.0,
        cookie=cookie,
        admission=_read(Admission, given),
        **_read_fields(Member, _MEMBER, _MEMBER_DEFAULTS | saved),
    )


def _check(job: Job) -> None:
    """Raises `ValueError` where parts of a job contradict each other."""
    ranges, generation = job.ranges, job.generation
    if any(each.size != job.size for each in ranges):
        raise ValueError(f"its slots on {ranges[0].switch!r} are not of its size")
    if any(each.base < 0 or each.slots < 1 or each.words < 1 for each in ranges):
        raise ValueError(f"it has no slots on {ranges[0].switch!r}")
    if not 1 <= job.world_size <= MAX_TREE_WORKERS:
        raise ValueError(f"world_size is {job.world_size}")
    if any(rank >= job.world_size for rank in job.members):
        raise ValueError(f"rank {max(job.members)} in a world of {job.world_size}")
    if generation is not None:
        for part, there in zip(generation.parts, ranges, strict=True):
            entry = part.entry
            if (entry.job, entry.base, entry.slots, entry.words) != (
                entry.job if generation.stripes else job.id,
                there.base,
                there.slots,
                there.words,
            ):
                raise ValueError(f"its entry on {there.switch!r} is of other slots, or of another job")
    if job.state is JobState.running:
        if generation is None:
            raise ValueError("it runs, and has no generation")
        for member in job.joined():
            assert member.admission is not None
            seated = any(member.rank in part.senders for part in generation.parts)
            if not seated or member.admission.switch not in [each.switch for each in ranges]:
                raise ValueError(f"rank {member.rank} is on none of its switches")


def _load_generation(placement: Placement, saved: dict[str, Any]) -> Generation:
    def below(name: str, ranges: Sequence[SlotRange]) -> tuple[Generation, ...]:
        there = zip(ranges, saved.get(name, ()), strict=True)
        return tuple(_load_generation(Placement(each), part) for each, part in there)

    return Generation(
        placement.root,
        **_read_fields(
            Generation, _GENERATION, {"seats": (), "first_packet": 0, "weight": MAX_WEIGHT, **saved}
        ),
        ready=True,
        open=True,
        leaves=below("leaves", placement.leaves),
        stripes=below("stripes", placement.stripes),
    )


def _fields(record: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns some fields of a record in JSON's types."""
    values: dict[str, Any] = {name: getattr(record, name) for name in names}
    return {name: asdict(each) if is_dataclass(each) else each for name, each in values.items()}  # type: ignore[arg-type]


def _read_fields(kind: Any, names: Sequence[str], document: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: _read(hints[name], document[name]) for name in names}


def _read(kind: Any, value: Any) -> Any:
    """Returns a value of JSON's types as `kind`: a plain type, dataclass, enum, tuple, or a union of these.

    Raises `TypeError` for a value of another type.
    """
    kinds = get_args(kind)
    if get_origin(kind) is UnionType:
        if value is None and NoneType in kinds:
            return None
        return _read(next((each for each in kinds if type(value) is each), kinds[0]), value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple) or (Ellipsis not in kinds and len(value) != len(kinds)):
            raise TypeError(f"{value!r:.60} is no list as it should be")
        return tuple(map(_read, repeat(kinds[0]) if Ellipsis in kinds else kinds, value))
    if is_dataclass(kind):
        return kind(**_read_fields(kind, value, value))  # type: ignore[operator]
    if issubclass(kind, Enum):
        return kind(value)
    accepted = (int, float) if kind is float else (kind,)
    if type(value) not in accepted or (kind is float and not math.isfinite(value)):
        raise TypeError(f"{value!r:.60} is no {kind.__name__}")
    return value

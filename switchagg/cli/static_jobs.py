"""Jobs from a file, for a switch that no controller manages.

A file holds one job or a list of jobs:

    {"job": 1, "base": 0, "slots": 256, "words": 352, "result_token": 99, "first_seq": 0,
     "workers": [{"bit": 0, "ip": "127.0.0.1", "port": 40001, "token": 11},
                 {"bit": 1, "ip": "127.0.0.1", "port": 40002, "token": 12}]}

as `switchagg.rules.slots.JobEntry` and `WorkerEntry` define them. `first_seq` (0) is the seq of
the job's first packet. A job below another switch has a "parent": {"ip": ..., "port": ..., "token": ...,
"base": ..., "result_token": ...}, as `ParentEntry`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from switchagg.control.jobs.job import init_packets
from switchagg.errors import SwitchError, UsageError, require
from switchagg.rules.slots import JobEntry, ParentEntry, WorkerEntry

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class StaticJob:
    """A job and the seq of its first packet. Raises `UsageError` where that is no 32-bit number."""

    entry: JobEntry
    first_seq: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.first_seq < 1 << 32, "first_seq", self.first_seq, f"0..{2**32 - 1}")


def admit(switch: Any, job: StaticJob) -> None:
    """Adds a job to a switch and initialises its slots.

    Args:
        switch: has `add_job(entry)` and `packet_out(packet)`, which returns the answers.

    Raises:
        UsageError: the job does not fit the switch or its other jobs.
        SwitchError: the switch did not echo an INIT.
    """
    switch.add_job(job.entry)
    for packet in init_packets(job.entry, job.first_seq).values():
        if switch.packet_out(packet) != [packet]:
            raise SwitchError(f"the switch did not initialise a slot of job {job.entry.job}")


def load_jobs(path: Path) -> list[StaticJob]:
    """Reads a file of jobs.

    Raises:
        UsageError: the file cannot be read, is not JSON, or an entry has a missing, unknown or unusable
            value; the message names the file and the entry.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"job file {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"job file {path} is not JSON: {error}") from error
    except RecursionError:
        raise UsageError(
            f"job file {path} is nested too deeply; accepted: a job, or a list of jobs"
        ) from None
    entries = content if isinstance(content, list) else [content]
    jobs = []
    for number, entry in enumerate(entries):
        place = f"job file {path}, job [{number}]" if isinstance(content, list) else f"job file {path}"
        jobs.append(_parse_job(entry, place))
    return jobs


def _parse_job(content: Any, place: str) -> StaticJob:
    if not isinstance(content, dict):
        raise UsageError(f"{place}: a job is an object, not {json.dumps(content)[:60]}")
    rest = dict(content)
    first_seq = rest.pop("first_seq", 0)
    workers = rest.get("workers")
    if isinstance(workers, list):
        rest["workers"] = tuple(
            _parse(WorkerEntry, worker, f"{place}, worker [{number}]")
            for number, worker in enumerate(workers)
        )
    if rest.get("parent", 0) is None:
        del rest["parent"]
    if "parent" in rest:
        rest["parent"] = _parse(ParentEntry, rest["parent"], f"{place}, parent")
    job = _parse(JobEntry, rest, place)
    _check_type(first_seq, int, "first_seq", place)
    return _placed(place, lambda: StaticJob(job, first_seq))


def _parse(kind: type[_Made], content: Any, place: str) -> _Made:
    if not isinstance(content, dict):
        raise UsageError(f"{place}: an object is expected, not {json.dumps(content)[:60]}")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(content) - set(known)):
        raise UsageError(f"{place}: unknown {', '.join(unknown)}; known are {', '.join(known)}")
    required = [name for name, field in known.items() if field.default is MISSING]
    if missing := [name for name in required if name not in content]:
        raise UsageError(f"{place}: {', '.join(missing)} missing")
    types = {"ip": str, "workers": tuple, "touch": bool, "shared": bool, "parent": ParentEntry}
    for name, value in content.items():
        _check_type(value, types.get(name, int), name, place)
    return _placed(place, lambda: kind(**content))


def _check_type(value: object, kind: type, name: str, place: str) -> None:
    names = {int: "a whole number", str: "a string", tuple: "a list", bool: "true or false"}
    if type(value) is not kind:  # not isinstance: true is no number here
        raise UsageError(f"{place}: {name} is {json.dumps(value, default=str)[:60]}; accepted: {names[kind]}")


def _placed(place: str, make: Callable[[], _Made]) -> _Made:
    try:
        return make()
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error

"""What crosses the control plane's boundaries: requests, answers, states, tenants and events. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from switchagg.errors import AdmissionError
from switchagg.rules.planner import SkipPolicy
from switchagg.wire.header import MAX_TREE_WORKERS
from switchagg.wire.heartbeat import MAX_DEADLINE, MIN_DEADLINE

MAX_TIMEOUT: Final = 86_400.0  # seconds
MAX_NAME: Final = 128
MAX_PRIORITY: Final = 9
DEFAULT_PRIORITY: Final = 5
DEFAULT_DEADLINE: Final = 10.0
_TOP: Final = 1 << 62  # of a quota, so that sums of them fit any store


class JobState(StrEnum):
    """Where a job stands; see the head of `switchagg.control.jobs.book`."""

    created = "created"
    queued = "queued"
    joining = "joining"
    opening = "opening"
    running = "running"
    draining = "draining"
    moving = "moving"
    failed = "failed"
    ended = "ended"


class MemberState(StrEnum):
    """Where a rank stands in its job."""

    joined = "joined"
    left = "left"
    lost = "lost"


class SwitchState(StrEnum):
    """Whether new jobs can be put on a switch."""

    up = "up"
    down = "down"
    draining = "draining"


class OnLoss(StrEnum):
    """What becomes of a job that loses a rank: it fails, or goes on without it."""

    fail = "fail"
    shrink = "shrink"


class EventKind(StrEnum):
    """What an entry of the event log is about."""

    job_created = "job_created"
    joined = "joined"
    opened = "opened"
    lost = "lost"
    left = "left"
    shrunk = "shrunk"
    failed = "failed"
    ended = "ended"
    moved = "moved"
    policy = "policy"
    switch_up = "switch_up"
    switch_down = "switch_down"
    reconciled = "reconciled"
    evicted = "evicted"
    drained = "drained"
    refused = "refused"


def check_name(what: str, name: str) -> str:
    """Returns `name`. Raises `AdmissionError` where it is no name of a job, tenant or switch."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise AdmissionError(
            f"{what} is {name[:MAX_NAME]!r}; accepted: 1..{MAX_NAME} printable characters", "bad_request"
        )
    return name


def _check_world_size(world_size: int) -> None:
    if not 1 <= world_size <= MAX_TREE_WORKERS:
        raise AdmissionError(
            f"world_size is {world_size}; a job has 1..{MAX_TREE_WORKERS} workers", "world_size"
        )


def _check_wishes(priority: int | None, deadline: float | None) -> None:
    if priority is not None and not 0 <= priority <= MAX_PRIORITY:
        raise AdmissionError(f"priority is {priority}; accepted: 0..{MAX_PRIORITY}", "bad_request")
    if deadline is not None and not MIN_DEADLINE <= deadline <= MAX_DEADLINE:
        raise AdmissionError(
            f"deadline is {deadline}; accepted: {MIN_DEADLINE:g}..{MAX_DEADLINE:g} seconds", "bad_request"
        )


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may have at once, over all switches; None for no limit. 0 is a limit too."""

    jobs: int | None = None
    slots: int | None = None
    memory: int | None = None  # bytes of switch memory

    def __post_init__(self) -> None:
        for name in ("jobs", "slots", "memory"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _TOP:
                raise AdmissionError(f"{name} is {value}; accepted: 0..{_TOP}", "bad_request")


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks. `admin` sees and touches everybody's jobs; `by` is an administrator who asks in its name."""

    name: str
    admin: bool = False
    quota: Quota = Quota()
    by: str = ""

    @property
    def who(self) -> str:
        """Whom to name for what is done."""
        return self.by or self.name


OPEN: Final = Tenant("default", admin=True)
"""Who asks where nobody has to say who they are."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as its tenant orders it.

    Attributes:
        name: unique among the tenant's jobs.
        world_size: its workers, 1..256, of which a switch takes 32.
        words: K, the words of a packet; None takes the switch's default.
        slots: P, a power of two; None likewise.
        priority: 0..9; higher ones leave the queue first.
        deadline: seconds of silence after which a worker is lost, 1..3600.
        on_loss: what becomes of the job then.
        switch: name of the one that it must run on, or whose leaves; None for any.
        touch: as in `switchagg.rules.slots.JobEntry`.

    Raises `AdmissionError` for a value that no job could have.
    """

    name: str
    world_size: int
    words: int | None = None
    slots: int | None = None
    priority: int = DEFAULT_PRIORITY
    deadline: float = DEFAULT_DEADLINE
    on_loss: OnLoss = OnLoss.fail
    switch: str | None = None
    touch: bool = True

    def __post_init__(self) -> None:
        check_name("job name", self.name)
        _check_world_size(self.world_size)
        _check_wishes(self.priority, self.deadline)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a rank asks for.

    Attributes:
        rank, world_size: 0 <= rank < world_size <= 256.
        address, port: IPv4 address and UDP port that its packets come from.
        words: K, the words of a packet; None takes what the others want, or the default.
        slots: P, the job's slots, a power of two; None likewise.
        timeout: seconds to wait for the other ranks.
        touch: as in `switchagg.rules.slots.JobEntry`.
        deadline, on_loss, priority: as in `JobSpec`; None takes what the others want, or the default.
        switch: the one that it attaches to; None leaves it to the controller, which goes by the address.

    Raises `AdmissionError` for a value that no job could have.
    """

    rank: int
    world_size: int
    address: str
    port: int
    words: int | None = None
    slots: int | None = None
    timeout: float = 30.0
    touch: bool = True
    deadline: float | None = None
    on_loss: OnLoss | None = None
    priority: int | None = None
    switch: str | None = None

    def __post_init__(self) -> None:
        _check_world_size(self.world_size)
        if not 0 <= self.rank < self.world_size:
            raise AdmissionError(
                f"rank is {self.rank}; with world_size {self.world_size} ranks are 0..{self.world_size - 1}",
                "rank_out_of_range",
            )
        check_endpoint(self.address, self.port)
        if not 0 < self.timeout <= MAX_TIMEOUT:
            raise AdmissionError(
                f"timeout is {self.timeout}; accepted: more than 0 and up to {MAX_TIMEOUT:.0f} seconds",
                "bad_request",
            )
        _check_wishes(self.priority, self.deadline)


def check_endpoint(address: str, port: int) -> None:
    """Raises `AdmissionError` where a worker's packets cannot come from there."""
    try:
        parsed = ipaddress.IPv4Address(address)
    except ValueError:
        raise AdmissionError(
            f"address is {address!r}; accepted: an IPv4 address such as 10.0.0.1", "bad_request"
        ) from None
    if parsed.is_unspecified or parsed.is_multicast:
        raise AdmissionError(
            f"address is {address}; accepted: the one address that this rank's packets come from",
            "bad_request",
        )
    if not 1 <= port <= 0xFFFF:
        raise AdmissionError(f"port is {port}; accepted: 1..65535", "bad_request")


@dataclass(frozen=True, slots=True)
class Admission:
    """What a rank needs to send and to check what it receives, in one generation of its job.

    Attributes:
        switch: the name of the switch that it sends to.
        job, token, result_token, base, slots, words, first_seq, worker_bit: see docs/protocol.md.
        senders: how many of the job's packets that switch receives in a round: workers and leaves.
        rank, world_size: in this generation: ranks are numbered densely, in the order of `places`.
        places: the ranks that the members joined as.
        lost: who was lost since the generation before, and why. They may be back already.
        deadline, on_loss: the job's.
        cookie: names this member in its heartbeats.
        interval: seconds between these.
    """

    switch: str
    job: int
    token: int = field(repr=False)
    result_token: int = field(repr=False)
    base: int
    slots: int
    words: int
    first_seq: int
    policy: SkipPolicy
    worker_bit: int
    senders: int
    rank: int
    world_size: int
    places: tuple[int, ...]
    deadline: float
    on_loss: OnLoss
    cookie: bytes = field(repr=False)
    interval: float
    lost: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the event log. `number` grows by one from event to event and survives a restart."""

    number: int
    time: float  # unix seconds
    kind: EventKind
    text: str
    tenant: str | None = None
    job: str | None = None
    switch: str | None = None
    rank: int | None = None


class EventStream(Protocol):
    """The way back to one member: the stream of events that its join began.

    Called from any thread, with the controller's lock held: no method may block, raise, or call the
    controller. A line gets one `refuse`, or one event ``admitted`` and then others.
    """

    def send(self, event: Mapping[str, Any]) -> None:
        """Queues an event. A line that cannot take it closes itself."""
        ...

    def refuse(self, error: AdmissionError) -> None:
        """The join is refused; nothing else comes."""
        ...

    def close(self) -> None:
        """Ends the stream after what is queued: the member has left, or the line was replaced by another."""
        ...

"""Records that cross the control plane's boundaries: requests, answers, states, tenants, events. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from switchagg.addresses import parse_address
from switchagg.errors import AdmissionError, UsageError
from switchagg.rules.planner import SkipPolicy
from switchagg.wire.header import MAX_STRIPES, MAX_TREE_WORKERS, MAX_WEIGHT
from switchagg.wire.heartbeat import MAX_DEADLINE, MIN_DEADLINE

MAX_TIMEOUT: Final = 86_400.0  # seconds
MAX_NAME: Final = 128
MAX_WHY: Final = 300  # characters of the exception that ended a rank
MAX_PRIORITY: Final = 9
DEFAULT_PRIORITY: Final = 5
DEFAULT_DEADLINE: Final = 10.0
_TOP: Final = 1 << 62  # of a quota, so that sums of them fit any store


class JobState(StrEnum):
    """The state of a job; see `switchagg.control.jobs.book`."""

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
    """The state of a rank in its job."""

    joined = "joined"
    left = "left"
    lost = "lost"


class SwitchState(StrEnum):
    """The availability of a switch to new jobs."""

    up = "up"
    down = "down"
    draining = "draining"


class OnLoss(StrEnum):
    """The consequence of a lost rank: its job fails, or goes on without it."""

    fail = "fail"
    shrink = "shrink"


class EventKind(StrEnum):
    """The subject of an entry of the event log."""

    job_created = "job_created"
    joined = "joined"
    opened = "opened"
    lost = "lost"
    left = "left"
    shrunk = "shrunk"
    failed = "failed"
    ended = "ended"
    paused = "paused"
    moving = "moving"
    moved = "moved"
    policy = "policy"
    switch_up = "switch_up"
    switch_down = "switch_down"
    reconciled = "reconciled"
    evicted = "evicted"
    drained = "drained"
    refused = "refused"


def check_name(what: str, name: str) -> str:
    """Returns `name`. Raises `AdmissionError` if no job, tenant or switch can have it."""
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
    """The most that a tenant may have at once, over all switches; None for no limit."""

    jobs: int | None = None
    slots: int | None = None
    memory: int | None = None  # bytes of switch memory

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 <= value <= _TOP:
                raise AdmissionError(f"{name} is {value}; accepted: 0..{_TOP}", "bad_request")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A caller. `admin` may see and change every tenant's jobs; `by` is an administrator who acts for it."""

    name: str
    admin: bool = False
    quota: Quota = Quota()
    by: str = ""

    @property
    def who(self) -> str:
        """The name of the actor in the event log."""
        return self.by or self.name


OPEN: Final = Tenant("default", admin=True)
"""The caller of a controller without authentication."""


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
        on_loss: the consequence for the job.
        switch: the name of the switch to run on, or on whose leaves; None for any.
        touch: as in `switchagg.rules.slots.JobEntry`.

    Raises `AdmissionError` for a value out of range.
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
    """A rank's request to join a job.

    Attributes:
        rank, world_size: 0 <= rank < world_size <= 256.
        address, port: IP address and UDP port that its packets come from.
        words: K, the words of a packet; None takes the other ranks' choice, or the default.
        slots: P, the job's slots, a power of two; None likewise.
        timeout: seconds to wait for the other ranks.
        touch: as in `switchagg.rules.slots.JobEntry`.
        deadline, on_loss, priority: as in `JobSpec`; None takes the other ranks' choice, or the default.
        switch: the switch that it attaches to; None lets the controller choose by the address.
        memory: identifies the processes with which it can share slots (`switchagg.computer.memory_identity`);
            empty for none.
        more_ports: of a job that is dealt to several switches, its UDP ports towards the second and further.

    Raises `AdmissionError` for a value out of range.
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
    memory: str = ""
    more_ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_world_size(self.world_size)
        if not 0 <= self.rank < self.world_size:
            raise AdmissionError(
                f"rank is {self.rank}; with world_size {self.world_size} ranks are 0..{self.world_size - 1}",
                "rank_out_of_range",
            )
        object.__setattr__(self, "address", checked_address(self.address, self.port, *self.more_ports))
        if self.stripes > MAX_STRIPES:
            raise AdmissionError(f"stripes is {self.stripes}; accepted: 1..{MAX_STRIPES}", "bad_request")
        if not 0 < self.timeout <= MAX_TIMEOUT:
            raise AdmissionError(
                f"timeout is {self.timeout}; accepted: more than 0 and up to {MAX_TIMEOUT:.0f} seconds",
                "bad_request",
            )
        _check_wishes(self.priority, self.deadline)

    @property
    def stripes(self) -> int:
        """The number of switches that the job is to be dealt to."""
        return 1 + len(self.more_ports)


def checked_address(address: str, *ports: int) -> str:
    """Returns an address in its usual form. Raises `AdmissionError` if no worker can send from there."""
    try:
        parsed = parse_address("address", address)
    except UsageError as error:
        raise AdmissionError(str(error), "bad_request") from None
    if parsed.is_unspecified or parsed.is_multicast:
        raise AdmissionError(
            f"address is {address}; accepted: the one address that this rank's packets come from",
            "bad_request",
        )
    for port in ports:
        if not 1 <= port <= 0xFFFF:
            raise AdmissionError(f"port is {port}; accepted: 1..65535", "bad_request")
    if len(set(ports)) < len(ports):
        raise AdmissionError(f"ports are {ports}; accepted: another one for each stripe", "bad_request")
    return str(parsed)


@dataclass(frozen=True, slots=True)
class StripeAdmission:
    """A rank's parameters on one of the switches that its job is dealt to; as in `Admission`."""

    switch: str
    job: int
    token: int = field(repr=False)
    result_token: int = field(repr=False)
    base: int
    first_seq: int
    first_packet: int
    weight: int = MAX_WEIGHT


@dataclass(frozen=True, slots=True)
class Admission:
    """A rank's parameters for sending and for checking results, in one generation of its job.

    docs/protocol.md says what `job`, the tokens, `base`, `slots`, `words`, `first_seq`, `worker_bit` are for.
    """

    switch: str  # the name of the one that it sends to
    job: int
    token: int = field(repr=False)
    result_token: int = field(repr=False)
    base: int
    slots: int
    words: int
    first_seq: int
    policy: SkipPolicy
    worker_bit: int
    senders: int  # workers and leaves that send to that switch for this job
    rank: int  # in this generation, whose ranks are numbered densely in the order of `places`
    world_size: int
    places: tuple[int, ...]  # the ranks that the members joined as
    deadline: float
    on_loss: OnLoss
    cookie: bytes = field(repr=False)  # identifies this member in its heartbeats
    interval: float  # seconds between heartbeats
    lost: tuple[tuple[int, str], ...] = ()  # since the previous generation, and why; may be back already
    first_packet: int = 0  # the first packet number on this switch
    receivers: tuple[int, ...] = ()  # for each rank the `reply` that names it; empty: do not direct
    shared: bool = False  # its slots are in memory that all workers share
    stripes: tuple[StripeAdmission, ...] = ()  # of all switches, if there are several; `switch` is the first
    tree: tuple[str, ...] = ()  # the switches of a job on a tree


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the event log. `number` grows by one from event to event and survives a restart."""

    number: int
    time: float  # unix seconds
    kind: EventKind
    text: str
    tenant: str | None = None
    job: str | None = None
    switch: str | None = None
    rank: int | None = None


class EventStream(Protocol):
    """The stream of events to one member.

    Called from any thread with the controller's lock held: no method may block, raise, or call the
    controller. A stream gets one `refuse`, or the event ``admitted`` and then others.
    """

    def send(self, event: Mapping[str, Any]) -> None:
        """Queues an event. A stream whose queue is full closes itself."""

    def refuse(self, error: AdmissionError) -> None:
        """Answers the join with an error; nothing follows."""

    def close(self) -> None:
        """Ends the stream after the queued events: the member has left, or has a newer stream."""

"""What the calls take and give, as OpenAPI shows it. Requests are checked strictly: no number from a string,
no unknown field. Answers are made by the controller; the models here describe them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from switchagg.control.jobs.records import (
    DEFAULT_DEADLINE,
    DEFAULT_PRIORITY,
    MAX_NAME,
    MAX_PRIORITY,
    MAX_TIMEOUT,
)
from switchagg.wire.header import MAX_TREE_WORKERS, MAX_WORKERS, MIN_WORDS
from switchagg.wire.heartbeat import FIELDS, MAX_DEADLINE, MIN_DEADLINE

_U32: Final = 2**32 - 1
_COUNT: Final = 2**63  # a number that also those hold exactly who know floating point only
_POWERS: Final = tuple(1 << exponent for exponent in range(1, 17))


def _digits(value: Any) -> Any:
    # int() and pydantic would take blanks, signs, underscores and other scripts' digits.
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) <= 20):
        raise ValueError("accepted: digits")
    return value


def _segment(value: Any) -> Any:
    """Routes see the path as it was sent; here a segment becomes the name that it stands for."""
    if isinstance(value, str):
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise ValueError("accepted: percent-encoded UTF-8") from None
    return value


def _power_of_two(value: int) -> int:
    if value not in _POWERS:
        raise ValueError(f"a power of two, {_POWERS[0]}..{_POWERS[-1]}")
    return value


Digits: Final = BeforeValidator(_digits)
Segment: Final = BeforeValidator(_segment)

JobName = Annotated[str, Field(min_length=1, max_length=MAX_NAME, description="Printable characters.")]
WorldSize = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_TREE_WORKERS,
        description=f"Workers of the job; more than {MAX_WORKERS} only on a tree of switches.",
    ),
]
Words = Annotated[
    int,
    Field(ge=MIN_WORDS, le=65535, description="K, the 32-bit words of a packet; the switch has a limit too."),
]
Slots = Annotated[
    int,
    Field(description="P, the slots of the job.", json_schema_extra={"enum": list(_POWERS)}),
    AfterValidator(_power_of_two),
]
Deadline = Annotated[
    float,
    Field(ge=MIN_DEADLINE, le=MAX_DEADLINE, description="Seconds of silence after which a worker is lost."),
]
Priority = Annotated[int, Field(ge=0, le=MAX_PRIORITY, description="Higher ones leave the queue first.")]
OnLossName = Annotated[
    Literal["fail", "shrink"], Field(description="What becomes of the job when it loses a worker.")
]
Token = Annotated[int, Field(ge=0, le=_U32, description="The member's secret, from its admission.")]
Address = Annotated[
    str, Field(max_length=15, examples=["10.0.0.1"], description="IPv4 address that the packets come from.")
]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0, le=_COUNT)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class JobOrder(_Body):
    """A job as its tenant orders it."""

    name: JobName
    world_size: WorldSize
    words: Words | None = None
    slots: Slots | None = None
    priority: Priority = DEFAULT_PRIORITY
    deadline: Deadline = DEFAULT_DEADLINE
    on_loss: OnLossName = "fail"
    switch: Annotated[
        str | None,
        Field(max_length=MAX_NAME, description="Run on this one, or below this root; null: on any."),
    ] = None
    touch: Annotated[bool, Field(description="False: payloads are neither stored nor added.")] = True


class Join(_Body):
    """What a rank asks for. What it leaves out it takes as the others want it, or the default."""

    rank: Annotated[int, Field(ge=0, le=MAX_TREE_WORKERS - 1, description="Less than world_size.")]
    world_size: WorldSize
    address: Address
    port: Port
    words: Words | None = None
    slots: Slots | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT, description="Seconds to wait for the others.")] = (
        30.0
    )
    touch: bool | None = None
    deadline: Deadline | None = None
    on_loss: OnLossName | None = None
    priority: Priority | None = None
    switch: Annotated[
        str | None,
        Field(max_length=MAX_NAME, description="The one that it attaches to; null: as its address says."),
    ] = None


class Bearing(_Body):
    """A member shows its token."""

    token: Token


class Leaving(Bearing):
    """A member is done."""

    begun: Annotated[
        Count | None,
        Field(description="Collectives that it has begun since its admission; others learn of it."),
    ] = None


class Beat(Bearing):
    """A heartbeat, for members that send no datagrams."""

    report: Annotated[
        dict[Literal[FIELDS], Count] | None,  # type: ignore[valid-type]
        Field(description="What it has done since its admission; see switchagg.wire.heartbeat.Report."),
    ] = None


class Progress(Bearing):
    """How far a member has come when the membership changes."""

    completed: Annotated[
        int, Field(ge=0, le=_COUNT, description="Collectives complete, as a prefix in call order.")
    ]


class Proceed(Bearing):
    """A member goes over to the new generation, from this address."""

    address: Address
    port: Port


# Answers.


class Problem(BaseModel):
    """What was wrong."""

    code: Annotated[str, Field(description="For programs.", examples=["rank_taken"])]
    message: Annotated[str, Field(description="For people: what was wrong, and what is accepted.")]


class Failure(BaseModel):
    """The answer to a call that failed."""

    error: Problem


class Empty(BaseModel):
    """Done; there is nothing to say."""


class MemberView(BaseModel):
    """One rank of a job."""

    rank: int
    state: Annotated[
        Literal["joined", "left", "lost", "waiting"],
        Field(description="`waiting`: it was lost, is back, and comes in at the next pause."),
    ]
    address: str
    port: int
    switch: str | None = Field(None, description="The one that it sends to.")
    silent: float | None = Field(None, description="Seconds since its last heartbeat.")
    packets: int | None = Field(None, description="Its packets that the switch admitted.")
    why: str | None = Field(None, description="Why it was lost.")


class PolicyView(BaseModel):
    """What is skipped in a job, and since when and why."""

    block: Annotated[int, Field(description="Elements that are sent or skipped together.")]
    dense: Annotated[bool, Field(description="Every block is sent without looking for zeros.")]
    bits: Annotated[int | None, Field(description="Lanes of calls that leave them to the job.")] = None
    since: Annotated[float | None, Field(description="Unix seconds.")] = None
    why: str | None = None


class RatesView(BaseModel):
    """How a job has done in the last seconds."""

    GBps: Annotated[float | None, Field(description="Bytes of tensors that are reduced, 10^9 a second.")] = (
        None
    )
    packets_per_s: float | None = None
    loss: Annotated[float | None, Field(description="Share of packets that were sent again.")] = None
    skip_ratio: Annotated[float | None, Field(description="Share of blocks that were not sent.")] = None
    density: Annotated[float | None, Field(description="Share of blocks that are not zero on any rank.")] = (
        None
    )
    rtt_us: float | None = None


class LeafView(BaseModel):
    """A job's range on a leaf, and the ranks that attach there."""

    switch: str
    base: int
    ranks: list[int]


class JobView(BaseModel):
    """A job."""

    name: str
    id: Annotated[int | None, Field(description="On the switch; another in each generation.")]
    state: Annotated[
        str,
        Field(description="created, queued, joining, opening, running, draining, moving, failed or ended."),
    ]
    why: Annotated[str | None, Field(description="Why it failed, or waits.")] = None
    world_size: int
    members: list[MemberView]
    missing: list[int]
    lost: list[int]
    base: int | None
    slots: int | None
    words: int | None
    age: float
    places: Annotated[list[int], Field(description="For each rank now, the one that it joined as.")] = []
    tenant: str | None = None
    switch: Annotated[str | None, Field(description="Where its results are made: of a tree the root.")] = None
    leaves: Annotated[list[LeafView], Field(description="Of a job on a tree of switches.")] = []
    priority: int | None = None
    queue_position: Annotated[int | None, Field(description="1 is next.")] = None
    draining: bool | None = None
    deadline: float | None = None
    on_loss: str | None = None
    policy: PolicyView | None = None
    rates: RatesView | None = None


class JobsView(BaseModel):
    """Every job that has not ended, of whoever asks."""

    jobs: list[JobView]


class RangeView(BaseModel):
    """Slots that a job has. Another tenant's has no name."""

    switch: str | None = None
    base: int
    slots: int
    words: int | None = None
    job: int | None = None
    name: str | None = None
    tenant: str | None = None


class CapacityView(BaseModel):
    """What a switch has room for."""

    slots: int
    words: int
    memory: int
    workers: int | None = None
    groups: int | None = None
    exact_words: Annotated[int | None, Field(description="The one K that its program has.")] = None


class SwitchView(BaseModel):
    """A switch."""

    name: str
    target: str
    address: str
    port: int
    state: Literal["up", "down", "draining"]
    why: str | None = None
    draining: bool | None = None
    warnings: list[str] = []
    parent: Annotated[str | None, Field(description="The switch above, of a leaf.")] = None
    hosts: Annotated[
        list[str] | None, Field(description="Networks of the workers that attach here; null: any.")
    ] = None
    capacity: CapacityView
    free: int
    largest_free: int
    memory_used: int | None = None
    ranges: list[RangeView]
    counters: dict[str, int] | None = None


class SwitchesView(BaseModel):
    """Every switch."""

    switches: list[SwitchView]


class SlotsView(BaseModel):
    """Who has which slots, over all switches and for each."""

    capacity: int
    free: int
    largest_free: int
    memory: int
    memory_used: int
    max_words: int
    ranges: list[RangeView]
    switches: list[dict[str, Any]] = []


class WaitingView(BaseModel):
    """The slots of a job that wait for some ranks; null where the switch does not show them."""

    job: str
    slots: list[dict[str, Any]] | None


class StatsView(BaseModel):
    """Counters: of all switches together, of each, of each job."""

    switch: dict[str, int]
    switches: dict[str, dict[str, int]] = {}
    jobs: list[dict[str, Any]]


class EventView(BaseModel):
    """A line of the event log."""

    n: int
    time: Annotated[float, Field(description="Unix seconds.")]
    kind: str
    job: str | None = None
    tenant: str | None = None
    switch: str | None = None
    rank: int | None = None
    text: str


class EventsView(BaseModel):
    """Lines of the event log, oldest first."""

    events: list[EventView]


class HistoryView(BaseModel):
    """How a job has done over time."""

    job: Any
    interval: float
    points: list[dict[str, float | int | None]]


class CompleteView(BaseModel):
    """How many collectives are to be completed before `proceed`."""

    complete_to: int


class AdmittedView(BaseModel):
    """What a rank needs to send and to check what it receives; the first event of its stream."""

    event: Literal["admitted"]
    job: int
    token: int
    result_token: int
    base: int
    slots: int
    words: int
    first_seq: int
    policy: dict[str, Any]
    worker_bit: int
    senders: Annotated[int, Field(description="Workers and leaves that send to the same slots.")]
    rank: int
    world_size: int
    places: list[int]
    lost: list[dict[str, Any]] = Field(description="Who was lost since the generation before, and why.")
    switch: dict[str, Any]
    deadline: float
    on_loss: str
    heartbeat: dict[str, Any] | None = None


class HealthView(BaseModel):
    """Whether it runs. Without a token, where one is needed, only the first three."""

    status: Literal["ok"]
    version: str
    authentication: bool
    warnings: list[str] | None = None
    switch: dict[str, Any] | None = None
    switches: dict[str, str] | None = None

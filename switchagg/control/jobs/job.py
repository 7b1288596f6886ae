"""The records of one job: its placement, its generations, its members, a change of its membership. No I/O.

A *generation* is what the switches know of a job: an entry with tokens and slots of its own. A job gets a new
one whenever its membership changes or it moves. A running entry is never edited, except to fence a lost
worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from switchagg.control.jobs.records import (
    DEFAULT_DEADLINE,
    DEFAULT_PRIORITY,
    Admission,
    JobSpec,
    JobState,
    JoinRequest,
    MemberState,
    OnLoss,
)
from switchagg.control.jobs.switch_resources import JobSize, SlotRange
from switchagg.errors import AdmissionError
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.slots import JobEntry
from switchagg.wire.header import MAX_WEIGHT, Header, Op, WireError

UNOPENED = (JobState.created, JobState.queued, JobState.joining)
"""The states of a job that has no generation yet."""


def list_ranks(ranks: Sequence[int], one: str = "", more: str = "") -> str:
    """Returns ``rank 1`` or ``ranks 1, 2`` for people, with the verb for one or for more."""
    single = len(ranks) == 1
    return f"{'rank' if single else 'ranks'} {', '.join(map(str, ranks))}{one if single else more}"


def init_packets(entry: JobEntry, first_seq: int) -> dict[int, bytes]:
    """Returns the INIT of every slot of a job, by slot index (base + i).

    Slot i starts at the smallest packet number q >= 0 with (first_seq + q) mod P = i. Its INIT carries that
    packet's sequence number less P, so that exactly the job's first packet for this slot is fresh.
    """
    packets = {}
    for i in range(entry.slots):
        number = (i - first_seq) % entry.slots
        seq = (first_seq + number - entry.slots) % (1 << 32)
        slot = entry.base + i
        packets[slot] = Header(Op.INIT, 0, entry.job, 0, seq, slot).pack()
    return packets


@dataclass(frozen=True, slots=True)
class Placement:
    """A job's ranges: one on one switch, or one on a root and one on each leaf, all of one size.

    Or several that packets are dealt to, of which `root` is the first and `stripes` are the others, with the
    weights of all. `seats` pairs each switch with the ranks that attach to it; empty if all attach to the
    root.
    """

    root: SlotRange
    leaves: tuple[SlotRange, ...] = ()
    seats: tuple[tuple[str, tuple[int, ...]], ...] = ()
    stripes: tuple[SlotRange, ...] = ()
    weights: tuple[int, ...] = ()

    @property
    def ranges(self) -> tuple[SlotRange, ...]:
        """All ranges, the root's first."""
        return self.root, *self.leaves, *self.stripes

    @property
    def switches(self) -> tuple[str, ...]:
        """The names of the switches, the root's first."""
        return tuple(each.switch for each in self.ranges)


@dataclass(eq=False, slots=True)
class Generation:
    """A job on one switch; for a job on a tree, the job on the root, with its leaves.

    For a job that is dealt to several switches, the job on the first, with the others as its `stripes`.
    """

    slot_range: SlotRange
    entry: JobEntry
    first_seq: int
    places: tuple[int, ...]  # rank i, of those on this switch and below, joined as places[i]
    fenced: int = 0  # bits of workers
    ready: bool = False  # every slot on this switch is initialised
    open: bool = False  # the job is ready on all its switches, and the members have been told
    forgotten: frozenset[str] = frozenset()  # switches that have lost the slots, until a failover begins
    leaves: tuple[Generation, ...] = ()  # the same job on the switches below
    seats: tuple[int | str, ...] = ()  # in a tree, the `senders`; on a single switch these are `places`
    pending: dict[int, bytes] = field(default_factory=dict)  # INITs that have not been echoed, by slot
    stripes: tuple[Generation, ...] = ()  # the same job on the second and further switches
    first_packet: int = 0  # the number, on this switch, that `first_seq` is of
    weight: int = MAX_WEIGHT  # of a stripe, when it came to this switch
    newest: int = 0  # the id of the stripe that went over to another switch last

    @property
    def id(self) -> int:
        """The job id in packets to this switch."""
        return self.entry.job

    @property
    def known_as(self) -> int:
        """The id that members know the generation by; another one after each failover."""
        return self.newest or self.id

    @property
    def parts(self) -> tuple[Generation, ...]:
        """The job on each of its switches: this one, the leaves and the stripes."""
        return self, *self.leaves, *self.stripes

    @property
    def senders(self) -> tuple[int | str, ...]:
        """The senders to this switch, by worker bit: ranks, and names of leaves."""
        return self.seats or self.places

    def seat(self, rank: int) -> tuple[Generation, int]:
        """Returns the part that a rank, one of `places`, sends to, and its worker bit there."""
        part = next(part for part in self.parts if rank in part.senders)
        return part, part.senders.index(rank)

    def ask_again(self, attempt: int) -> None:
        """Gives pending INITs the number of another attempt, so that only the echo of the last copy counts.

        A slow switch has obeyed earlier copies by then. Later, they would set back a slot that is in use.
        """
        for slot, packet in self.pending.items():
            self.pending[slot] = replace(Header.unpack(packet), reply=attempt).pack()

    def echoed(self, packet: bytes) -> None:
        """Takes a packet from the controller's port; ignores all but echoes of pending INITs."""
        try:
            header = Header.unpack(packet)
        except WireError:
            return
        if header.op is Op.INIT and self.pending.get(header.slot) == packet:
            del self.pending[header.slot]


@dataclass(eq=False, slots=True)
class Member:
    """One rank of one job."""

    job: Job
    request: JoinRequest
    expires: float  # when its join is refused, unless it has been admitted by then
    endpoint: tuple[str, int] = ("", 0)  # source of its packets; a change of membership may bring another
    more_ports: tuple[int, ...] = ()  # towards the second and further switches
    token: int = field(default=0, repr=False)  # in the newest generation; it learns this when that opens
    former: int = field(default=0, repr=False)  # its token before the latest admission
    replays: bool = False  # a failover has brought that admission
    cookie: bytes = field(default=b"", repr=False)  # identifies it in heartbeats, in all generations
    state: MemberState = MemberState.joined
    admission: Admission | None = None
    refusal: AdmissionError | None = None
    heartbeats: int = -1  # the sequence number of the latest one
    attached: float = -math.inf  # when it opened its stream again
    crowded_out: bool = False  # a rank has given up since its job found no room in time
    why: str = ""  # the reason of its loss, or the exception with which it left
    begun: int | None = None  # collectives of its last generation, when it left, if known
    completed: int | None = None  # of these, if the switch has what it contributed to them

    def __post_init__(self) -> None:
        if not self.endpoint[0]:
            self.endpoint = (self.request.address, self.request.port)
            self.more_ports = self.request.more_ports

    @property
    def ports(self) -> tuple[int, ...]:
        """Its ports, by stripe."""
        return self.endpoint[1], *self.more_ports

    def move_to(self, address: str, ports: Sequence[int]) -> None:
        """Its packets come from there, in generations to come."""
        self.endpoint, self.more_ports = (address, ports[0]), tuple(ports[1:])

    @property
    def rank(self) -> int:
        """The rank that it joined as."""
        return self.request.rank

    def is_behind(self, token: int) -> bool:
        """Returns True for its token of the generation before: it has not been told of its new admission.

        Collectives have other numbers there, unless a failover has brought it.
        """
        if self.admission is None or self.replays:
            return False
        return token == self.former != self.admission.token


class ChangeReason(StrEnum):
    """The cause of a change of membership."""

    shrink = "shrink"
    rejoin = "rejoin"
    move = "move"


@dataclass(eq=False, slots=True)
class SwitchSearch:
    """The search of a running job for a switch that takes its next generation, once one has not.

    Attributes:
        refused: the switches that have not taken it since all were tried.
        last, why: the last of them, and its reason.
        waits: there is no other at the moment.
        since: when it was first seen to wait; attempts do not end that.
        down_since: when it was first seen to wait for a switch that is down; None when it does not any more.
        retry_at: when all are tried again.
    """

    refused: frozenset[str] = frozenset()
    last: str = ""
    why: str = ""
    waits: bool = False
    since: float | None = None
    down_since: float | None = None
    retry_at: float = 0.0


@dataclass(eq=False, slots=True)
class Change:
    """A change of membership under way; docs/protocol.md has its steps."""

    reason: ChangeReason
    why: str
    completed: dict[int, int] = field(default_factory=dict)  # collectives that survivors report, by rank
    replaying: set[int] = field(default_factory=set)  # ranks among these that await what they have sent again
    complete_to: int | None = None  # the largest of these once all have reported
    proceeded: set[int] = field(default_factory=set)  # ranks that are done with the old generation
    target: Placement | None = None  # ranges reserved for the job if it moves
    lost: dict[int, str] = field(default_factory=dict)  # by rank, why old members were lost
    stranded: bool = False  # its switch was lost too: what is not complete now never is
    making_room: bool = False  # the job moves so that a waiting job finds room
    waited_since: float | None = None  # when members were first found not to have paused for that
    search: SwitchSearch = field(default_factory=SwitchSearch)  # after all have proceeded

    @property
    def begun(self) -> bool:
        """True once a member has paused for it; before, members were only asked to."""
        return bool(self.completed or self.proceeded) or self.complete_to is not None


@dataclass(eq=False, slots=True)
class Failover:
    """A job's way from a switch that is gone to another; docs/protocol.md has its steps."""

    why: str
    target: Placement
    gone: frozenset[str]  # the switches that it leaves, or finds empty
    # By rank, of those that have reported: the lowest number whose RESULT a member lacks, of each stripe.
    lowest: dict[int, tuple[int, ...]]
    planned: bool = False  # from a switch that lives, and is drained
    first: tuple[int, ...] | None = None  # the lowest of these once all have reported
    former: tuple[Placement, Generation] | None = None  # from then on: those of before
    search: SwitchSearch = field(default_factory=SwitchSearch)


@dataclass(eq=False, slots=True)
class Job:
    """A job from its creation to its end."""

    number: int  # unique among all jobs of a controller and its successors
    tenant: str
    name: str
    world_size: int
    created: float
    spec: JobSpec | None = None  # the order; None for a job that its first join made
    state: JobState = JobState.joining
    draining: bool = False
    members: dict[int, Member] = field(default_factory=dict)
    back: dict[int, Member] = field(default_factory=dict)  # lost ranks that wait to be let in again
    placement: Placement | None = None  # until its switches have removed it
    size: JobSize | None = None  # from its first placement on; later generations keep it
    generation: Generation | None = None  # the one that its members use, or are about to
    change: Change | None = None
    failover: Failover | None = None
    policy: SkipPolicy = field(default_factory=SkipPolicy)
    policy_why: str = "set at admission"
    policy_since: float = 0.0
    overtaken: int = 0  # younger jobs that had slots of switches that it waited for
    stays: bool = False  # members did not pause to make room; they are not asked again in this generation
    why: str = ""  # the reason of a failed job's end
    id: int = 0  # of its newest generation, even after that is removed; 0 before there is one

    @property
    def slot_range(self) -> SlotRange | None:
        """Its range on its switch, or on its tree's root."""
        return None if self.placement is None else self.placement.root

    @property
    def ranges(self) -> tuple[SlotRange, ...]:
        """Its ranges on all its switches."""
        return () if self.placement is None else self.placement.ranges

    @property
    def switches(self) -> tuple[str, ...]:
        """The names of its switches, the root's first."""
        return () if self.placement is None else self.placement.switches

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self.world_size) if rank not in self.members]

    @property
    def shown(self) -> JobState:
        """Its state as people see it, which may be `draining`, or `moving` in a failover."""
        if self.failover is not None:
            return JobState.moving
        return JobState.draining if self.draining and self.state is JobState.running else self.state

    @property
    def search(self) -> SwitchSearch | None:
        """Its search for a switch in a failover or a change of membership; None if there is neither."""
        step = self.failover or self.change
        return None if step is None else step.search

    def ranks(self, state: MemberState) -> list[int]:
        """Returns the ranks in `state`, in order."""
        return sorted(rank for rank, member in self.members.items() if member.state is state)

    def joined(self) -> list[Member]:
        """Returns the present members, by rank."""
        return [self.members[rank] for rank in self.ranks(MemberState.joined)]

    @property
    def priority(self) -> int:
        """0..9; higher ones leave the queue first."""
        return int(self.requested("priority", DEFAULT_PRIORITY))

    @property
    def deadline(self) -> float:
        """Seconds of silence after which a member is lost."""
        return float(self.requested("deadline", DEFAULT_DEADLINE))

    @property
    def on_loss(self) -> OnLoss:
        """The consequence of a lost member."""
        return OnLoss(self.requested("on_loss", OnLoss.fail))

    @property
    def requests(self) -> list[JoinRequest]:
        """Those of its members."""
        return [member.request for member in self.members.values()]

    @property
    def touch(self) -> bool:
        """As in `JobEntry`."""
        if self.spec is not None:
            return self.spec.touch
        return all(request.touch for request in self.requests)

    @property
    def words(self) -> int | None:
        """K of the job, or as requested; None if there is no request."""
        return self.requested("words") if self.size is None else self.size.words

    @property
    def slots(self) -> int | None:
        """P of the job, or as requested; None if there is no request."""
        return self.requested("slots") if self.size is None else self.size.slots

    @property
    def stripes(self) -> int:
        """The number of switches that it is dealt to."""
        return 1 if self.spec is not None else int(self.requested("stripes", 1))

    @property
    def switch(self) -> str | None:
        """The switch that it must run on or below; None for any."""
        return None if self.spec is None else self.spec.switch

    def requested(self, name: str, default: Any = None) -> Any:
        """Returns an attribute of the spec, or the first that is not None of the ranks' requests."""
        sources = self.requests if self.spec is None else [self.spec]
        values = (getattr(source, name) for source in sources)
        return next((value for value in values if value is not None), default)

"""One job as the book of `jobs.py` holds it: its members, its generations, a change of its membership. No
I/O.

A *generation* is what a switch knows: an entry with tokens and slots of its own. A job has a new one
whenever its membership changes or it moves; entries that run are never edited, except that a lost worker is
fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from switchagg.control.jobs.placement import Shape, Site, Tree
from switchagg.control.jobs.records import Admission, JobSpec, JobState, JoinRequest, MemberState, OnLoss
from switchagg.errors import AdmissionError
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.slots import JobEntry
from switchagg.wire.header import Header, Op, WireError


def init_packets(entry: JobEntry, first_seq: int) -> dict[int, bytes]:
    """Returns the INIT of every slot of a job, by slot index (base + i).

    Slot i starts at the smallest position q >= 0 with (first_seq + q) mod P = i. Its INIT carries that
    position's sequence number less P, so that exactly the first packet of the job for this slot is fresh.
    """
    packets = {}
    for i in range(entry.slots):
        position = (i - first_seq) % entry.slots
        seq = (first_seq + position - entry.slots) % (1 << 32)
        slot = entry.base + i
        packets[slot] = Header(Op.INIT, 0, entry.job, 0, seq, slot).pack()
    return packets


@dataclass(eq=False, slots=True)
class Generation:
    """A job on a switch; of one on a tree of switches, on its root, with what is on its leaves.

    Attributes:
        places: the ranks that its workers joined as, here or below; rank i of the generation is places[i].
        fenced: bits of workers that are shut out.
        ready: every slot here is initialised.
        open: they are on all switches, and the members have been told.
        leaves: the same job on the switches below.
        seats: on a tree, whose packets come to this switch, by worker bit: a rank that a worker joined as, or
            the name of a leaf. Empty on one switch: as `places`.
    """

    site: Site
    entry: JobEntry
    first_seq: int
    places: tuple[int, ...]
    fenced: int = 0
    ready: bool = False
    open: bool = False
    leaves: tuple[Generation, ...] = ()
    seats: tuple[int | str, ...] = ()
    _pending: dict[int, bytes] = field(default_factory=dict)  # slot -> its INIT, not yet echoed

    @property
    def id(self) -> int:
        """The job id in packets."""
        return self.entry.job

    @property
    def parts(self) -> tuple[Generation, ...]:
        """It, and what is on the leaves."""
        return self, *self.leaves

    @property
    def senders(self) -> tuple[int | str, ...]:
        """Whose packets come to this switch, by worker bit: ranks, and names of leaves."""
        return self.seats or self.places

    def seat(self, rank: int) -> tuple[Generation, int]:
        """Returns the part that a rank, one of `places`, sends to, and its worker bit there."""
        part = next(part for part in self.parts if rank in part.senders)
        return part, part.senders.index(rank)

    def prepare(self) -> None:
        """Makes the INIT packets, those of the leaves too."""
        for part in self.parts:
            part._pending = init_packets(part.entry, part.first_seq)

    def pending_inits(self) -> list[bytes]:
        """Returns the INIT packets that no echo has come for."""
        return list(self._pending.values())

    def echoed(self, packet: bytes) -> None:
        """Takes a packet that came back through the controller's port; ignores all but this job's echoes."""
        try:
            header = Header.unpack(packet)
        except WireError:
            return
        if header.op is Op.INIT and self._pending.get(header.slot) == packet:
            del self._pending[header.slot]


@dataclass(eq=False, slots=True)
class Member:
    """One rank of one job.

    Attributes:
        expires: when its join is refused if it has not been admitted.
        endpoint: where its packets come from; a change of membership may bring another.
        token: its secret in the newest generation, which it is told when that opens.
        former: the one that it had before its latest admission.
        cookie: names it in heartbeats; the same in all generations.
        heartbeats: the sequence number of the latest.
        crowded_out: whether a rank has gone since there was no room for its job in time.
        why: what became of a lost one.
    """

    job: Job
    request: JoinRequest
    expires: float
    endpoint: tuple[str, int] = ("", 0)
    token: int = field(default=0, repr=False)
    former: int = field(default=0, repr=False)
    cookie: bytes = field(default=b"", repr=False)
    state: MemberState = MemberState.joined
    admission: Admission | None = None
    refusal: AdmissionError | None = None
    heartbeats: int = -1
    crowded_out: bool = False
    why: str = ""

    def __post_init__(self) -> None:
        if not self.endpoint[0]:
            self.endpoint = (self.request.address, self.request.port)

    @property
    def rank(self) -> int:
        """The rank that it joined as."""
        return self.request.rank


class ChangeReason(StrEnum):
    """Why the membership of a job changes."""

    shrink = "shrink"
    rejoin = "rejoin"
    move = "move"


@dataclass(eq=False, slots=True)
class Change:
    """A change of membership under way; docs/protocol.md has its steps.

    Attributes:
        completed: collectives that each survivor has completed, by rank, as far as they have said so.
        complete_to: the most of these, once all have; until then None.
        proceeded: the ranks that are done with the old generation.
        lost: why, by rank, members of the old generation are not in the new one, or not in the same life.
        target: ranges, on other switches or the same, that wait for the job if it moves.
        making_room: it moves so that a job that waits has room.
        waited_since: when somebody first looked how long its members take to stop for that.
    """

    reason: ChangeReason
    why: str
    completed: dict[int, int] = field(default_factory=dict)
    complete_to: int | None = None
    proceeded: set[int] = field(default_factory=set)
    target: Tree | None = None
    lost: dict[int, str] = field(default_factory=dict)
    making_room: bool = False
    waited_since: float | None = None

    @property
    def begun(self) -> bool:
        """Whether members have stopped for it; until then they were only asked to."""
        return bool(self.completed or self.proceeded) or self.complete_to is not None


@dataclass(eq=False, slots=True)
class Job:
    """A job from its creation to its end.

    Attributes:
        number: never given to another job, whatever its name.
        spec: what was ordered; None for a job that its first join made.
        tree: its ranges of slots, from when it has them until it is removed from its switches.
        shape: its P and K, from when it was first placed; later generations keep them.
        generation: the one that its members use, or will.
        back: lost ranks that have come back and wait to be let in.
        stays: its members did not stop when they were asked to make room; not asked again in this generation.
        why: what ended a failed job.
    """

    number: int
    tenant: str
    name: str
    world_size: int
    created: float
    spec: JobSpec | None = None
    state: JobState = JobState.joining
    draining: bool = False
    members: dict[int, Member] = field(default_factory=dict)
    back: dict[int, Member] = field(default_factory=dict)
    tree: Tree | None = None
    shape: Shape | None = None
    generation: Generation | None = None
    change: Change | None = None
    policy: SkipPolicy = field(default_factory=SkipPolicy)
    policy_why: str = "set at admission"
    policy_since: float = 0.0
    stays: bool = False
    why: str = ""
    last_id: int = 0  # of its newest generation, also when that is removed

    @property
    def id(self) -> int:
        """The id of its newest generation; 0 before there is one."""
        return self.last_id

    @property
    def site(self) -> Site | None:
        """Its range on its switch, or on its tree's root."""
        return None if self.tree is None else self.tree.root

    @property
    def entry(self) -> JobEntry | None:
        """What the switch knows of it."""
        return None if self.generation is None else self.generation.entry

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self.world_size) if rank not in self.members]

    @property
    def shown(self) -> JobState:
        """Its state, for people."""
        return JobState.draining if self.draining and self.state is JobState.running else self.state

    def ranks(self, state: MemberState) -> list[int]:
        """Returns the ranks in `state`, in order."""
        return sorted(rank for rank, member in self.members.items() if member.state is state)

    def joined(self) -> list[Member]:
        """Returns the members that are there, by rank."""
        return [self.members[rank] for rank in self.ranks(MemberState.joined)]

    @property
    def priority(self) -> int:
        """0..9; higher ones leave the queue first."""
        return int(self.wish("priority", 5))

    @property
    def deadline(self) -> float:
        """Seconds of silence after which a member is lost."""
        return float(self.wish("deadline", 10.0))

    @property
    def on_loss(self) -> OnLoss:
        """What becomes of it when a member is lost."""
        return OnLoss(self.wish("on_loss", OnLoss.fail))

    @property
    def touch(self) -> bool:
        """As in `JobEntry`."""
        if self.spec is not None:
            return self.spec.touch
        return all(member.request.touch for member in self.members.values())

    @property
    def wanted(self) -> tuple[int | None, int | None]:
        """K and P as its spec or its ranks ask for them; None leaves it to the controller."""
        if self.spec is not None:
            return self.spec.words, self.spec.slots
        return self.wish("words", None), self.wish("slots", None)

    @property
    def words(self) -> int | None:
        """K, where it is known."""
        return self.wanted[0] if self.shape is None else self.shape.words

    @property
    def slots(self) -> int | None:
        """P, where it is known."""
        return self.wanted[1] if self.shape is None else self.shape.slots

    @property
    def switch(self) -> str | None:
        """The switch that it must run on; None for any."""
        return None if self.spec is None else self.spec.switch

    def wish(self, name: str, default: Any) -> Any:
        """Returns what the job's spec says, or a rank that has an opinion."""
        sources: list[object] = [*(member.request for member in self.members.values())]
        if self.spec is not None:
            sources = [self.spec]
        for source in sources:
            value = getattr(source, name)
            if value is not None:
                return value
        return default

"""The random plan of a soak run: a lane is a job name, an episode one life of a job of that name.

An episode has several generations if the job shrinks. No I/O.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from random import Random
from typing import Any, Self


class Event(StrEnum):
    """A disturbance of one rank of an episode."""

    none = "none"
    kill = "kill"  # its process ends by SIGKILL
    stop = "stop"  # its process stands still (SIGSTOP) for longer than the job's deadline, then goes on
    leave = "leave"  # it closes its session in order, while the others go on
    late = "late"  # it joins late, which must not affect the others


@dataclass(frozen=True, slots=True)
class Lane:
    """One job name, and the settings that its episodes share.

    Attributes:
        job: its name.
        dtype: type of its tensors.
        bits: width of their lanes on the wire.
        elements: of a tensor, at most.
        density: share of a tensor's 256-element blocks that are not zero.
        workers: fewest and most.
        on_loss: "fail" or "shrink".
        events: disturbances of its ranks.
    """

    job: str
    dtype: str
    bits: int
    elements: int
    density: float
    workers: tuple[int, int]
    on_loss: str = "fail"
    events: tuple[Event, ...] = (Event.none, Event.kill, Event.leave, Event.late)


LANES = (
    Lane("dense", "float32", 32, 100_000, 1.0, (2, 4)),
    Lane("sparse", "float32", 16, 400_000, 0.02, (2, 5)),
    Lane("integers", "int32", 32, 5_000, 0.5, (2, 6)),
    Lane(
        "shrinking",
        "float32",
        8,
        60_000,
        0.2,
        (3, 5),
        "shrink",
        (Event.none, Event.kill, Event.kill, Event.late),
    ),
    Lane("halting", "float64", 64, 20_000, 1.0, (2, 3), "fail", (Event.none, Event.none, Event.stop)),
)


@dataclass(frozen=True, slots=True)
class Episode:
    """One life of a job, from its first join to its end.

    Attributes:
        number: of the episode in its lane.
        world_size, collectives, elements: how many ranks, calls and elements a tensor.
        seed: of the contributions.
        event, victim: the disturbance and its rank.
        after: seconds from the moment that all ranks run (kill, stop) or from the start (late).
        leave_at: the collective before which the victim leaves.
        until: a file; where it is given, the ranks go on past `collectives` until it exists.
    """

    lane: Lane
    number: int
    world_size: int
    collectives: int
    elements: int
    seed: int
    event: Event
    victim: int
    after: float
    leave_at: int
    until: str = ""

    def command(self, rank: int, controller: str) -> dict[str, Any]:
        """Returns the command for a rank's process."""
        return {
            "controller": controller,
            "job": self.lane.job,
            "rank": rank,
            "world_size": self.world_size,
            "collectives": self.leave_at
            if self.event is Event.leave and rank == self.victim
            else self.collectives,
            "until": self.until,
            "task": asdict(self.task),
            "on_loss": self.lane.on_loss,
            "deadline": DEADLINE,
        }

    @property
    def task(self) -> Task:
        """The task of its ranks."""
        lane = self.lane
        return Task(lane.dtype, lane.bits, self.elements, lane.density, self.seed)


DEADLINE = 2.0  # seconds of silence after which a rank is lost


@dataclass(frozen=True, slots=True)
class Task:
    """Determines the contribution of every rank to every collective."""

    dtype: str
    bits: int
    elements: int
    density: float
    seed: int

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Builds a task from the fields that `asdict` gave."""
        return cls(**fields)


def draw(lane: Lane, number: int, rng: Random) -> Episode:
    """Draws the next episode of a lane."""
    world_size = rng.randint(*lane.workers)
    event = rng.choice(lane.events)
    collectives = rng.randint(20, 80)
    return Episode(
        lane=lane,
        number=number,
        world_size=world_size,
        # Enough that a stopped rank is stopped in the middle.
        collectives=collectives * 20 if event is Event.stop else collectives,
        elements=rng.randint(1, lane.elements),
        seed=rng.getrandbits(32),
        event=event,
        victim=rng.randrange(world_size),
        after=rng.choice((0.0, rng.random() * 0.3, rng.random())),
        leave_at=rng.randrange(collectives),
    )

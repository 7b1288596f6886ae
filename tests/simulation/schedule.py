"""Schedules of whole systems: what a seed draws, and which parts of it may be left out.

A fault has a time and a name. Whether a packet is lost, and the like, follows from the seed and the packet
(see `tests/native/simulation/network.h`). So a schedule can be run again with some of its faults only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

MS: Final = 0.001


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens at a time.

    Attributes:
        at: seconds from when all ranks have joined, or from the start of the system (`Plan.early`); as drawn,
            the share of the time that the undisturbed job takes.
        after: seconds more, as drawn.
        kind: one of `KINDS`.
        who: a rank's place, a switch's number, or -1.
        seconds: for how long, where it ends.
    """

    at: float
    kind: str
    who: int = -1
    seconds: float = 0.0
    after: float = 0.0

    def __str__(self) -> str:
        who = "" if self.who < 0 else f" {self.who}"
        return f"{self.kind}{who} at {self.at:.4f} s" + (
            f", for {self.seconds:.4f} s" if self.seconds else ""
        )


KINDS: Final = (
    "worker killed", "worker raises", "worker stopped", "worker comes back", "worker cut from its switch",
    "worker cut from the controller", "switch killed", "switch drained", "switch stopped",
    "switch cut from the controller", "controller killed", "switch and controller killed",
    "controller stopped", "store fails", "store stalls",
)  # fmt: skip
_OFTEN: Final = {
    "worker killed": 3,
    "worker raises": 2,
    "worker comes back": 3,
    "switch killed": 3,
    "switch drained": 2,
}
_WEIGHTS: Final = tuple(_OFTEN.get(kind, 1) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule.

    Attributes:
        workers: number of ranks. steps: collectives of each.
        switches: names with their parents; workers attach to leaves, or to any switch without a parent.
        depth: collectives at once. think: longest pause between steps, seconds.
        shrink: the job goes on without lost ranks.
        deadline: of the job. timeout: of a collective.
        network: fields of `library.Settings`.
        uniform: all collectives have the same shape, since ranks come back.
        early: faults begin with the system, and not with the job.
        stripes: switches that the job is dealt to.
        lingers: seconds that rank 0 does something else before it leaves.
    """

    seed: int
    workers: int
    steps: int
    switches: tuple[tuple[str, str | None], ...]
    slots: int
    words: int
    depth: int
    think: float
    shrink: bool
    uniform: bool
    deadline: float
    timeout: float
    init_loss: float
    network: dict[str, Any]
    early: bool
    stripes: int = 1
    lingers: float = 0.0
    faults: tuple[Fault, ...] = field(default=())

    @property
    def tree(self) -> bool:
        return any(parent is not None for _, parent in self.switches)

    def leaves(self) -> list[int]:
        """Numbers of the switches that workers attach to."""
        parents = {parent for _, parent in self.switches}
        return [number for number, (name, _) in enumerate(self.switches) if name not in parents]

    def has(self, *kinds: str) -> bool:
        return any(fault.kind in kinds for fault in self.faults)

    def undisturbed(self) -> Plan:
        """The same without any fault."""
        calm = dict.fromkeys(("lost", "damaged", "reordered", "twice", "twice_late"), 0.0)
        return replace(self, faults=(), init_loss=0.0, network={**self.network, **calm, "queue": 1 << 60})


def _log(random: random.Random, least: float, most: float) -> float:
    """Equally often in each order of magnitude."""
    return float(least * (most / least) ** random.random())


def timed(plan: Plan, seconds: float) -> Plan:
    """Returns the plan with its faults' times in seconds. `seconds` is how long the undisturbed job took."""
    faults = [replace(each, at=each.at * seconds + each.after, after=0.0) for each in plan.faults]
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def draw(seed: int) -> Plan:
    """Returns the schedule of a seed."""
    r = random.Random(f"plan {seed}")
    shape = r.choices(("one", "two", "three", "tree", "trees"), (15, 45, 10, 15, 15))[0]
    switches: tuple[tuple[str, str | None], ...] = {
        "one": (("s0", None),),
        "two": (("s0", None), ("s1", None)),
        "three": (("s0", None), ("s1", None), ("s2", None)),
        "tree": (("root", None), ("left", "root"), ("right", "root")),
        "trees": (
            ("root", None), ("left", "root"), ("right", "root"),
            ("other", None), ("other left", "other"), ("other right", "other"),
        ),
    }[shape]  # fmt: skip
    workers = r.choices((2, 3, 4, 8), (40, 35, 20, 5))[0]
    shrink = r.random() < 0.4
    uniform = shrink and r.random() < 0.5
    steps = r.randint(3, 8)
    think = r.choice((0.0, 1.0, 5.0, 20.0)) * MS
    delay = _log(r, 2e3, 200e3)
    lossy = r.random() < 0.6

    def share(how_often: float, most: float) -> float:
        return most * r.random() * r.random() if lossy and r.random() < how_often else 0.0

    network = {
        "delay": int(delay), "jitter": int(r.random() * delay) if r.random() < 0.5 else 0,
        "latency": int(_log(r, 200, 30e3)), "queue": int(_log(r, 20e3, 2e6)), "inbox": 8 << r.randrange(8),
        "ns_per_byte": 10 ** r.uniform(-1, 1), "lost": share(0.8, 0.1), "damaged": share(0.3, 0.02),
        "reordered": share(0.5, 0.2), "reordered_by": int(_log(r, 10e3, 3e6)), "twice": share(0.5, 0.1),
        "twice_late": share(0.5, 0.1), "late_by": int(_log(r, 1e6, 500e6)),
    }  # fmt: skip
    early = r.random() < 0.15
    faults = _faults(r, len(switches), workers, shrink, uniform)
    return Plan(
        seed=seed, workers=workers, steps=steps, switches=switches, slots=2 << r.randrange(1, 5),
        words=r.choice((16, 32, 64)), depth=r.choices((1, 2, 3), (60, 25, 15))[0], think=think, shrink=shrink,
        uniform=uniform, deadline=r.choice((1.0, 2.0, 5.0)), timeout=60.0, init_loss=share(0.5, 0.3),
        network=network, early=early, faults=faults,
        stripes=2 if shape in ("two", "three") and random.Random(f"stripes {seed}").random() < 0.4 else 1,
    )  # fmt: skip


def _faults(r: random.Random, switches: int, workers: int, shrink: bool, uniform: bool) -> tuple[Fault, ...]:
    """Faults at any time of the job, or soon after another one, while that is dealt with."""
    found: list[Fault] = []
    for _ in range(r.choices((0, 1, 2, 3), (5, 50, 30, 15))[0]):
        at, after = (
            r.random() if r.random() < 0.7 else r.uniform(0.85, 1.05),
            0.0,
        )  # the end is a time of its own
        if found and r.random() < 0.5:
            at, after = found[-1].at, found[-1].after + _log(r, 0.5 * MS, 0.5)
        kind = r.choices(KINDS, _WEIGHTS)[0]
        rank, switch = r.randrange(workers), r.randrange(switches)
        moment = _log(r, 1 * MS, 6.0)
        match kind:
            case "worker killed" | "worker raises" | "worker comes back":
                found.append(
                    Fault(at, "worker killed" if kind == "worker comes back" else kind, rank, 0.0, after)
                )
                if shrink and uniform:
                    found.append(Fault(at, "worker comes back", rank, 0.0, after + _log(r, 0.01, 1.0)))
            case "worker stopped" | "worker cut from its switch" | "worker cut from the controller":
                found.append(Fault(at, kind, rank, moment, after))
            case "controller killed" | "store fails" | "store stalls" | "controller stopped":
                found.append(Fault(at, kind, -1, moment, after))
            case "switch stopped":
                found.append(Fault(at, kind, switch, min(moment, 1.0), after))
            case _:  # a switch that is killed may stay away
                away = kind in ("switch killed", "switch and controller killed") and r.random() < 0.3
                found.append(Fault(at, kind, switch, 0.0 if away else moment, after))
    return tuple(found)

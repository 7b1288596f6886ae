"""`switchagg bench fsdp`: training with sharded parameters (FSDP2), through the switch and through gloo.

This is the parent: it starts a switch and the ranks (`fsdp_rank.py`), gathers their figures, and makes a
table and JSON of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from switchagg.bench.ddp import check_training, measure
from switchagg.errors import UsageError, require
from switchagg.report.machine import machine
from switchagg.report.table import Cell, Table

# Each with the largest distance from gloo's parameters that is right, as a share of the largest change.
SYSTEMS: Final = {
    "gloo": 0.0, "switchagg": 1e-3, "switchagg-hooks": 1e-3, "switchagg-16": 1e-2, "switchagg-8": 0.5,
    "none": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FsdpSettings:
    """Parameters of `switchagg bench fsdp`.

    Attributes:
        workers: numbers of ranks, one group of processes each.
        replicas: of the model, each sharded over workers / replicas ranks (HSDP).
        systems: of `SYSTEMS`; the numbers are bits a lane, "hooks" calls the session from FSDP2's custom
            all-gather and reduce-scatter, and between replicas from its all-reduce hook; "none" exchanges
            nothing and so shows what a step costs besides.
        steps: a round. repeat: timed rounds of each system, in turns. warmup: rounds before them.
        parameters: of the model, about.
        batch: samples a rank and step.
        timeout: seconds that a collective may take.

    Raises:
        UsageError: a value that cannot work.
    """

    workers: tuple[int, ...] = (2, 4)
    systems: tuple[str, ...] = ("gloo", "switchagg", "none")
    steps: int = 2
    repeat: int = 5
    warmup: int = 1
    parameters: int = 40_000_000
    batch: int = 16
    timeout: float = 60.0
    replicas: int = 1

    def __post_init__(self) -> None:
        if not (self.workers and self.systems):
            raise UsageError("nothing to measure: name workers and systems")
        check_training(self, SYSTEMS)
        require(self.replicas >= 1, "replicas", self.replicas, "1 and more")
        for n in self.workers if self.replicas > 1 else ():
            fits = n % self.replicas == 0 and n >= 2 * self.replicas
            require(fits, "workers", n, f"multiples of {self.replicas} replicas, of 2 ranks or more each")


@dataclass(frozen=True, slots=True)
class Figures:
    """One system with one number of ranks.

    Attributes:
        steps_per_second: of each round, the slowest rank's.
        bytes_sent, bytes_received: by a rank in a step, the mean of the ranks: payload of its TCP
            connections, and of its packets to and from the switch.
        loss: the mean of the ranks, at the end.
        apart: largest distance from gloo's parameters at the end, as a share of the largest change of a
            parameter; None without gloo.
    """

    workers: int
    system: str
    steps_per_second: tuple[float, ...]
    bytes_sent: float
    bytes_received: float
    loss: float
    apart: float | None

    @property
    def rate(self) -> float:
        """Steps a second, the median of the rounds."""
        return statistics.median(self.steps_per_second)

    @property
    def right(self) -> bool:
        """False if the parameters are further from gloo's than the system's rounding leads."""
        limit = SYSTEMS[self.system]
        return self.apart is None or limit is None or self.apart <= limit


def run(settings: FsdpSettings, found: Callable[[Figures], None]) -> list[Figures]:
    """Measures; calls `found` with each system's figures as they come.

    Raises:
        UsageError: torch is not installed. ProcessError: a rank failed; the message has its last lines.
    """
    return measure("switchagg.bench.fsdp_rank", settings, Figures, found)


LEGEND: Final = """\
steps/s   median of the rounds; x gloo: as a multiple of gloo's in the same run
added ms  what a step takes longer than with "none", which exchanges nothing
sent MB   and received, by a rank in a step
apart     distance from gloo's parameters at the end, as a share of the largest change of a parameter"""


def table(found: list[Figures]) -> str:
    """All lines, under a head."""
    others = {(f.workers, f.system): f for f in found}

    def times_gloo(f: Figures) -> Cell:
        gloo = others.get((f.workers, "gloo"))
        return None if gloo is None else f.rate / gloo.rate

    def added(f: Figures) -> Cell:
        none = others.get((f.workers, "none"))
        return None if none in (None, f) else 1000 * (1 / f.rate - 1 / none.rate)

    columns: dict[str, Callable[[Figures], Cell]] = {
        "ranks": lambda f: f.workers,
        "system": lambda f: f.system,
        "steps/s": lambda f: f.rate,
        "x gloo": times_gloo,
        "added ms": added,
        "sent MB": lambda f: round(f.bytes_sent / 1e6, 3),
        "received MB": lambda f: round(f.bytes_received / 1e6, 3),
        "loss": lambda f: f.loss,
        "apart": lambda f: f.apart,
        "right": lambda f: "yes" if f.right else "NO",
    }
    return Table.of("FSDP2", found, columns).text()


def to_json(settings: FsdpSettings, found: list[Figures]) -> dict[str, Any]:
    """Everything as JSON values."""
    return {"machine": machine(), "settings": asdict(settings), "runs": [asdict(f) for f in found]}

"""Parameters and figures of `switchagg bench ddp`. Imports little: the command line reads defaults here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from switchagg.errors import UsageError, require

MODELS: Final = ("dense", "embedding", "sparse")
SYSTEMS: Final = (
    "gloo", "gloo-fp16", "switchagg", "switchagg-16", "switchagg-8", "switchagg-16-ef", "switchagg-8-ef",
    "none",
)  # fmt: skip
MAX_WORKERS: Final = 32


@dataclass(frozen=True, slots=True)
class DdpSettings:
    """Parameters of `switchagg bench ddp`.

    Attributes:
        workers: numbers of ranks, one group of processes each.
        models: of `MODELS`: all layers dense; a large embedding with a dense gradient that is nearly all
            zeros; the same embedding with a sparse gradient.
        systems: of `SYSTEMS`; the numbers are bits a lane, "ef" is error feedback, "none" exchanges nothing
            and so shows what a step costs besides.
        steps: a round. repeat: timed rounds of each system, in turns. warmup: rounds before them.
        parameters: of the model, about.
        batch: samples a rank and step.
        timeout: seconds that a step may take.

    Raises:
        UsageError: a value that cannot work.
    """

    workers: tuple[int, ...] = (2, 4, 8)
    models: tuple[str, ...] = MODELS
    systems: tuple[str, ...] = ("gloo", "gloo-fp16", "switchagg", "switchagg-16", "none")
    steps: int = 5
    repeat: int = 5
    warmup: int = 1
    parameters: int = 4_000_000
    batch: int = 32
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if not (self.workers and self.models and self.systems):
            raise UsageError("nothing to measure: name workers, models and systems")
        for n in self.workers:
            require(2 <= n <= MAX_WORKERS, "workers", n, f"2 to {MAX_WORKERS}")
        for name, given, accepted in (("model", self.models, MODELS), ("system", self.systems, SYSTEMS)):
            for each in given:
                require(each in accepted, name, repr(each), ", ".join(accepted))
        for name, value in (("steps", self.steps), ("repeat", self.repeat), ("batch", self.batch)):
            require(value >= 1, name, value, "1 and more")
        require(self.warmup >= 0, "warmup", self.warmup, "0 and more")
        require(10_000 <= self.parameters <= 2**31, "parameters", self.parameters, "10,000 to 2^31")
        require(self.timeout > 0, "timeout", self.timeout, "seconds greater than 0")


@dataclass(frozen=True, slots=True)
class Figures:
    """One system on one model with one number of ranks.

    Attributes:
        steps_per_second: of each round, the slowest rank's.
        communication_seconds: of each round, a step, the mean of the ranks: from when the first bucket is
            handed over until the last one is reduced, less the times between when none is under way.
        bytes_sent: by each rank and step, UDP payload or its like through shared memory; 0 for gloo, which
            does not count.
        same: True if all ranks had the same parameters to the bit at the end; None where they exchanged
            nothing.
        loss: of rank 0, at the end.
    """

    workers: int
    model: str
    system: str
    steps_per_second: Sequence[float]
    communication_seconds: Sequence[float]
    bytes_sent: float
    same: bool | None
    loss: float

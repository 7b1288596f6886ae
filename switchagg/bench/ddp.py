"""`switchagg bench ddp`: training under DistributedDataParallel, through the switch and through gloo.

This is the parent: it starts a switch and the ranks (`ddp_rank.py`), gathers their figures, and makes a table
and JSON of them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Final, TypeVar

from switchagg.errors import UsageError, require
from switchagg.launch.processes import Ended, Line, ProcessError, Processes
from switchagg.report.machine import machine
from switchagg.report.table import columns

_F = TypeVar("_F")
MODELS: Final = ("dense", "embedding", "sparse")
SYSTEMS: Final = (
    "gloo", "gloo-fp16", "switchagg", "switchagg-16", "switchagg-8", "switchagg-16-ef", "switchagg-8-ef",
    "barrier", "none",
)  # fmt: skip
APART: Final = ("barrier", "none")  # systems under which every rank keeps its own gradients
DEVICES: Final = ("cpu", "cuda")
MAX_WORKERS: Final = 32


@dataclass(frozen=True, slots=True)
class DdpSettings:
    """Parameters of `switchagg bench ddp`.

    Attributes:
        workers: numbers of ranks, one group of processes each.
        models: of `MODELS`: all layers dense; a large embedding with a dense gradient that is nearly all
            zeros; the same embedding with a sparse gradient.
        systems: of `SYSTEMS`; the numbers are bits a lane, "ef" is error feedback, "none" exchanges nothing
            and so shows what a step costs besides, and "barrier" exchanges nothing but waits once a step for
            all ranks, as every exchange has to.
        steps: a round. repeat: timed rounds of each system, in turns. warmup: rounds before them.
        parameters: of the model, about.
        batch: samples a rank and step.
        timeout: seconds that a step may take.
        device: of the models, "cpu" or "cuda": then all ranks share one GPU.

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
    device: str = "cpu"

    def __post_init__(self) -> None:
        require(self.device in DEVICES, "device", repr(self.device), ", ".join(DEVICES))
        if not (self.workers and self.models and self.systems):
            raise UsageError("nothing to measure: name workers, models and systems")
        for each in self.models:
            require(each in MODELS, "model", repr(each), ", ".join(MODELS))
        check_training(self, SYSTEMS)


def check_training(settings: Any, systems: Collection[str]) -> None:
    """Checks the settings that the benchmarks of trainings have in common.

    Raises:
        UsageError: a value that cannot work.
    """
    for n in settings.workers:
        require(2 <= n <= MAX_WORKERS, "workers", n, f"2 to {MAX_WORKERS}")
    for system in settings.systems:
        require(system in systems, "system", repr(system), ", ".join(systems))
    for name in ("steps", "repeat", "batch"):
        value = getattr(settings, name)
        require(value >= 1, name, value, "1 and more")
    require(settings.warmup >= 0, "warmup", settings.warmup, "0 and more")
    require(10_000 <= settings.parameters <= 2**31, "parameters", settings.parameters, "10,000 to 2^31")
    require(settings.timeout > 0, "timeout", settings.timeout, "seconds greater than 0")


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
            no gradients.
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


def run(settings: DdpSettings, found: Callable[[Figures], None]) -> list[Figures]:
    """Measures; calls `found` with each system's figures as they come.

    Raises:
        UsageError: torch is not installed. ProcessError: a rank failed; the message has its last lines.
    """
    return measure("switchagg.bench.ddp_rank", settings, Figures, found)


def measure(module: str, settings: Any, kind: Callable[..., _F], found: Callable[[_F], None]) -> list[_F]:
    """Runs a switch and one group of ranks after another, to their ends.

    Args:
        module: the rank's program; its argument is JSON: settings, workers, rank, and a file to meet in.
        settings: a dataclass; `workers` has the numbers of ranks.
        kind: makes the figures of the JSON in a line that a rank 0 prints.
        found: called with the figures as they come.

    Returns:
        All of them.

    Raises:
        UsageError: torch is not installed. ProcessError: a rank failed; the message has its last lines.
    """
    figures: list[_F] = []

    def collect(line: str) -> None:
        figures.append(kind(**json.loads(line)))
        found(figures[-1])

    if find_spec("torch") is None:
        raise UsageError("this benchmark needs torch: pip install 'switchagg[torch]'")
    from worker_lib.embedded import start_embedded

    with start_embedded(quiet=True) as host:
        for count in settings.workers:
            _group(module, settings, count, host.controller, collect)
    return figures


def _group(module: str, settings: Any, workers: int, controller: str, collect: Callable[[str], None]) -> None:
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "SWITCHAGG_CONTROLLER": controller,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="swbench-") as folder, Processes() as processes:
        config = {"settings": asdict(settings), "workers": workers, "store": f"{folder}/store"}
        command = [sys.executable, "-P", "-m", module]
        for rank in range(workers):
            text = json.dumps(config | {"rank": rank})
            processes.start(f"rank {rank} of {workers}", [*command, text], environment=environment)
        for event in processes.events():
            match event:
                case Line(child, text) if child is processes.children[0]:
                    collect(text)
                case Ended(child) if child.status:
                    raise ProcessError(child.ending(lines=20, characters=2000))
                case Ended() if not processes.running():
                    return


_HEAD: Final = (
    "ranks", "model", "system", "steps/s", "x gloo", "comm. ms", "of gloo's", "added ms", "of gloo's",
    "sent MB", "same", "loss",
)  # fmt: skip
LEGEND: Final = """\
steps/s   median of the rounds; x gloo: as a multiple of gloo's in the same run
comm. ms  a step: while at least one bucket was under way; it overlaps with the backward pass
added ms  what a step takes longer than with "none": communication as training feels it
sent MB   by each rank and step
same      whether all ranks had the same parameters to the bit at the end
none      exchanges nothing: its steps/s are what no system can pass
barrier   exchanges nothing, but waits once a step for all ranks, at a barrier of the C library"""


def _row(figures: Figures, gloo: Figures | None, none: Figures | None) -> tuple[str, ...]:
    """A line of the table; `gloo` and `none` did the same model with as many ranks."""
    communication = statistics.median(figures.communication_seconds)
    added = _added(figures, none)
    times, share, added_share = "-", "-", "-"
    if gloo is not None:
        times = f"{_rate(figures) / _rate(gloo):.2f}"
        if figures.system not in APART:
            share = f"{communication / statistics.median(gloo.communication_seconds):.2f}"
        if added is not None and (theirs := _added(gloo, none)) is not None and theirs > 0:
            added_share = f"{added / theirs:.2f}"
    return (
        str(figures.workers), figures.model, figures.system, f"{_rate(figures):.1f}", times,
        f"{1000 * communication:.1f}", share, "-" if added is None else f"{1000 * added:.1f}", added_share,
        f"{figures.bytes_sent / 1e6:.2f}" if figures.bytes_sent else "-",
        {True: "yes", False: "NO", None: "-"}[figures.same], f"{figures.loss:.4f}",
    )  # fmt: skip


def _rate(figures: Figures) -> float:
    return statistics.median(figures.steps_per_second)


def _added(figures: Figures, none: Figures | None) -> float | None:
    """Seconds that communication adds to a step; None where it is unknown."""
    if none is None or figures.system == "none":
        return None
    return 1 / _rate(figures) - 1 / _rate(none)


def table(found: list[Figures]) -> str:
    """All lines, under a head."""
    beside = {(f.workers, f.model): f for f in found if f.system == "gloo"}
    alone = {(f.workers, f.model): f for f in found if f.system == "none"}
    of = [(f, (f.workers, f.model)) for f in found]
    rows = [_HEAD, *(_row(f, beside.get(key), alone.get(key)) for f, key in of)]
    return columns(rows, [heading not in ("model", "system") for heading in _HEAD])


def to_json(settings: DdpSettings, found: list[Figures]) -> dict[str, Any]:
    """Everything as JSON values."""
    return {"machine": machine(), "settings": asdict(settings), "runs": [asdict(f) for f in found]}

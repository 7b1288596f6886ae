"""Measurements of a demo run as records, and the figures that follow from them; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from switchagg.demo import messages, model
from switchagg.demo.settings import Settings

WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of all workers: `loss` of the whole batch; everything else is the mean over workers.

    `touched` is the share of the gradient that one worker's batch touches, `union` the share of blocks that
    are non-zero at any worker. `seconds` has compute, scan, quantize, wire, wait, decode, other (the rest of
    the all-reduce call) and update.
    """

    step: int
    loss: float
    touched: float
    union: float
    bytes_sent: float
    bytes_received: float
    retransmissions: float
    seconds: dict[str, float]


def combine(steps: Sequence[messages.Step]) -> StepRecord:
    """One record from the messages of all workers about one step."""

    def mean(value: Callable[[messages.Step], float]) -> float:
        return _mean([value(step) for step in steps])

    parts = {
        name: _mean([step.usage.seconds.get(name, 0.0) for step in steps]) for name in messages.USAGE_SECONDS
    }
    return StepRecord(
        steps[0].step,
        mean(lambda step: step.loss),
        mean(lambda step: step.touched),
        mean(lambda step: step.usage.blocks_union / max(1, step.usage.blocks_total)),
        mean(lambda step: step.usage.bytes_sent),
        mean(lambda step: step.usage.bytes_received),
        mean(lambda step: step.usage.retransmissions),
        {
            "compute": mean(lambda step: step.compute),
            **parts,
            "other": max(0.0, mean(lambda step: step.reduce) - sum(parts.values())),
            "update": mean(lambda step: step.update),
        },
    )


@dataclass(slots=True)
class TrainingRun:
    """One training through the switch.

    Attributes:
        bits: lane width.
        steps: records in order of steps.
        digests: by step, SHA-256 of the parameters by rank.
        held_out: by step, the loss on held-out text.
        comparisons: the dense comparisons of all ranks.
        sample: text from the trained model.
        seconds: from the first step to the last.
    """

    bits: int
    steps: list[StepRecord] = field(default_factory=list)
    digests: dict[int, dict[int, str]] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)
    comparisons: list[messages.Comparison] = field(default_factory=list)
    sample: messages.Sample | None = None
    seconds: float = 0.0

    @property
    def losses(self) -> list[float]:
        """Training loss of each step's batch."""
        return [record.loss for record in self.steps]

    def identical(self, workers: int) -> bool:
        """True if all workers' weights were equal to the bit each time they were compared."""
        return bool(self.digests) and all(
            len(ranks) == workers and len(set(ranks.values())) == 1 for ranks in self.digests.values()
        )


@dataclass(slots=True)
class ReferenceRun:
    """One training in a single process, by step: losses, and losses on held-out text."""

    losses: list[float] = field(default_factory=list)
    held_out: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    """The text that was read: files, bytes, words, distinct words, and the share of words held out."""

    files: int
    size: int
    words: int
    distinct: int
    held_out: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Mean bytes a worker sends and receives in a step."""

    way: str
    how: str
    sent: float
    received: float


@dataclass(slots=True)
class Outcome:
    """Everything in the report. `runs[0]` has the lanes of `settings`; --compare-bits adds more."""

    settings: Settings
    corpus: CorpusFacts
    runs: list[TrainingRun]
    reference: ReferenceRun
    shuffled: ReferenceRun
    sample_text: tuple[str, str] | None = None
    seconds: float = 0.0

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one worker's gradient."""
        return WORD_BYTES * model.parameter_count(self.settings)

    @property
    def identical(self) -> bool:
        """True if the weights were equal to the bit in every run."""
        return all(run.identical(self.settings.workers) for run in self.runs)

    @property
    def rounding(self) -> float:
        """The largest distance of the two references: rounding alone drives the curves that far apart."""
        return largest_difference(self.reference.losses, self.shuffled.losses)

    def difference(self, run: TrainingRun) -> float:
        """The largest distance of a run's loss curve from the single process's."""
        return largest_difference(run.losses, self.reference.losses)

    def traffic(self, run: TrainingRun) -> list[Traffic]:
        """Bytes on the wire for one worker and one step: ring, dense switch, switch with zero-skip."""
        ring = ring_bytes(self.gradient_bytes, self.settings.workers)
        rows = [Traffic("ring all-reduce, float32", "computed", ring, ring)]

        def measured(way: str, costs: Sequence[messages.Usage | StepRecord]) -> None:
            sent, received = [cost.bytes_sent for cost in costs], [cost.bytes_received for cost in costs]
            name = f"switch, {way}, {run.bits}-bit lanes"
            rows.append(Traffic(name, "measured", _mean(sent), _mean(received)))

        if run.comparisons:
            measured("dense", [comparison.dense for comparison in run.comparisons])
        measured("zero-skip", run.steps)
        return rows

    def time_split(self, run: TrainingRun) -> dict[str, float]:
        """Mean seconds of a step by activity of a worker."""
        names = run.steps[0].seconds
        return {name: _mean([record.seconds[name] for record in run.steps]) for name in names}

    def to_json(self) -> dict[str, Any]:
        """All figures as JSON types."""
        return {
            "settings": asdict(self.settings),
            "corpus": asdict(self.corpus),
            "seconds": self.seconds,
            "parameters": model.parameter_count(self.settings),
            "gradient_bytes": self.gradient_bytes,
            "weights_identical": self.identical,
            "rounding_difference": self.rounding,
            "reference": asdict(self.reference),
            "reference_shuffled": asdict(self.shuffled),
            "runs": [
                {
                    "bits": run.bits,
                    "seconds": run.seconds,
                    "final_loss": final_loss(run.losses),
                    "largest_difference": self.difference(run),
                    "held_out": run.held_out,
                    "digests": run.digests,
                    "traffic": [asdict(row) for row in self.traffic(run)],
                    "time_split": self.time_split(run),
                    "dense_equals_sparse": all(comparison.equal for comparison in run.comparisons),
                    "steps": [asdict(record) for record in run.steps],
                }
                for run in self.runs
            ],
        }


def ring_bytes(gradient_bytes: int, workers: int) -> float:
    """Payload that each worker sends, and receives, in one ring all-reduce: 2 (n-1)/n S, no headers counted.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (JPDC 69,
    2009), section 3.
    """
    return 2 * (workers - 1) / workers * gradient_bytes


def largest_difference(left: Sequence[float], right: Sequence[float]) -> float:
    """Largest absolute difference of two curves, over the steps that both have."""
    return max((abs(a - b) for a, b in zip(left, right, strict=False)), default=0.0)


def final_loss(losses: Sequence[float], tail: int = 20) -> float:
    """Mean over the last `tail` steps: one batch alone is noisy."""
    return _mean(losses[-tail:])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))

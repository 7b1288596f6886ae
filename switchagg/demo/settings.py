"""Settings of one demo run: sizes, seeds and faults, checked once and handed to every process as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass

from switchagg.emulator.rates import Rate
from switchagg.errors import UsageError
from switchagg.wire.header import MAX_WORKERS

LANES = (32, 16, 8)
MAX_PARAMETERS = 64_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """One training run; every process of the run holds an equal copy.

    Attributes:
        workers: worker processes, 1 to 32; each takes an equal share of every batch.
        steps: optimizer steps.
        bits: lane width of the all-reduce, 32, 16 or 8.
        packet_loss, packet_duplicate, packet_reorder: shares of packets, 0 up to 1, that the switch's fault
            injector drops, repeats or delays past a later one.
        seed: seeds initial weights, the order of batches, the fault injector and the sampled text.
        rows, dimension: the embedding table, float32[rows, dimension]. Half of the rows stand for words, half
            for hashed pairs of neighbouring words.
        context: words of context that predict the next word.
        hidden: units of the hidden layer.
        vocabulary: words that the model can predict; the last of them stands for every other word.
        batch: examples a worker sees in a step; a step's batch has workers * batch examples.
        learning_rate: of Adagrad.
        rate: of each worker's link, each way, such as ``1Gbit``; None for no limit.
        corpus_bytes: bytes of the standard library's source to read.
        digests: number of times that the workers' weights are compared during training.
        dense_steps: batches that are summed once with zero-skip and once dense when training is over.

    Raises:
        UsageError: a value that cannot work; the message names the option.
    """

    workers: int = 4
    steps: int = 300
    bits: int = 32
    packet_loss: float = 0.0
    packet_duplicate: float = 0.0
    packet_reorder: float = 0.0
    seed: int = 0
    rows: int = 65_536
    dimension: int = 64
    context: int = 5
    hidden: int = 128
    vocabulary: int = 1024
    batch: int = 128
    learning_rate: float = 0.1
    rate: str | None = None
    corpus_bytes: int = 6_000_000
    digests: int = 4
    dense_steps: int = 5

    def __post_init__(self) -> None:
        _within("--workers", self.workers, 1, MAX_WORKERS)
        _within("--steps", self.steps, 1, 1_000_000)
        if self.bits not in LANES:
            raise UsageError(f"--bits {self.bits}: lanes are 32, 16 or 8 bits wide")
        for option, value in (
            ("--loss", self.packet_loss),
            ("--duplicate", self.packet_duplicate),
            ("--reorder", self.packet_reorder),
        ):
            if not 0.0 <= value < 1.0:
                raise UsageError(f"{option} {value:g}: a share of packets, from 0 up to but not including 1")
        _within("--seed", self.seed, 0, 2**32 - 1)
        _within("--batch", self.batch, 1, 4096)
        _within("--corpus-bytes", self.corpus_bytes, 100_000, 1_000_000_000)
        _within("vocabulary", self.vocabulary, 2, 65_536)
        _within("context", self.context, 2, 64)
        if self.rows < 2 * self.vocabulary or self.dimension < 1:
            raise UsageError(
                f"--embedding {self.rows}x{self.dimension}: at least {2 * self.vocabulary} rows, "
                "and at least 1 column"
            )
        if self.rows * self.dimension > MAX_PARAMETERS:
            raise UsageError(
                f"--embedding {self.rows}x{self.dimension} has {self.rows * self.dimension:,} parameters: "
                f"at most {MAX_PARAMETERS:,}"
            )
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UsageError(f"--learning-rate {self.learning_rate:g}: a positive number")
        if self.rate is not None:
            Rate.parse(self.rate)

    def checkpoints(self) -> frozenset[int]:
        """Numbers of the steps (from 1) after which weights are compared; always includes the last."""
        return frozenset(
            max(1, round(self.steps * part / self.digests)) for part in range(1, self.digests + 1)
        ) | {self.steps}


def parse_embedding(text: str) -> tuple[int, int]:
    """Reads ``ROWSxCOLUMNS``, for example ``65536x64``.

    Raises:
        UsageError: the text is not two whole numbers joined by an x.
    """
    rows, _, columns = text.lower().partition("x")
    if not all(each.isascii() and each.isdecimal() and len(each) < 10 for each in (rows, columns)):
        raise UsageError(f"--embedding {text[:40]}: expected ROWSxCOLUMNS, for example 65536x64")
    return int(rows), int(columns)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name} {value}: a whole number from {least} to {most}")

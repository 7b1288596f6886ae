"""The all-reduce benchmark: every system on every cell of the grid, in turn, results checked.

A round draws new tensors; each system then reduces the same ones, the order moving on by one from round to
round, so that no system always runs after the same other one. A sample's time is the largest over the ranks,
from an instant agreed on beforehand to the return of the rank's last call.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.bench.check import decibels, judge
from switchagg.bench.data import Distribution, Draw, Reference, reference
from switchagg.bench.grid import DEFAULT, Cell, Settings, Variant, is_float, numpy_dtype
from switchagg.bench.group import Group
from switchagg.bench.peers.registry import Lineup, line_up
from switchagg.bench.rank import AllReduceRank, Digest, Fill, Measured, Run, Show
from switchagg.emulator.rates import Rate
from switchagg.errors import SwitchAggError

_GAUGES = ("rtt_seconds", "window")
_MARGIN_SECONDS = 15.0
_LEAD_SECONDS = 0.01
_LEAD_SECONDS_A_WORKER = 0.001


class Progress(Protocol):
    """Takes the progress of a run."""

    def begin(self, samples: int) -> None:
        """`samples` will be taken in all."""

    def cell(self, cell: Cell) -> None:
        """This cell comes next."""

    def sample(self, variant: Variant, round_number: int, rounds: int) -> None:
        """This sample comes next."""

    def note(self, line: str) -> None:
        """A line for the user."""


@dataclass(slots=True)
class Measurement:
    """Figures of one variant on one cell.

    Attributes:
        seconds: of a call, one number a timed round.
        call_seconds: of each timed call, at the rank where it took longest.
        late: seconds from the common start until the last rank woke, one number a timed round.
        counters: growth over all timed calls, summed over ranks.
        cpu_seconds: processor time of all ranks, and of the switch where there is one, over all timed calls.
        complaint: the first error of a result; empty when every result was right.
        failure: the error that ended the measurement; empty when there was none.
        worst: the largest error seen in units of its bound.
        power: sums of squares of signal and noise for each distribution.
    """

    cell: Cell
    variant: Variant
    seconds: list[float] = field(default_factory=list)
    call_seconds: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    complaint: str = ""
    failure: str = ""
    worst: float = 0.0
    power: dict[Distribution, tuple[float, float]] = field(default_factory=dict)

    @property
    def checked(self) -> bool:
        """False for the no-op baseline, which has no result to check."""
        return self.variant.system != "udp-floor"

    @property
    def timed_calls(self) -> int:
        """Calls over which counters were taken."""
        return len(self.seconds) * self.cell.calls

    @property
    def exact(self) -> bool | None:
        """True if every result was within its bound and the same on all ranks; None where there is none."""
        return not self.complaint if self.checked else None

    @property
    def algbw(self) -> float:
        """Bytes of one tensor over the median time of a call, in bytes a second."""
        return self.cell.size / statistics.median(self.seconds)

    @property
    def busbw(self) -> float:
        """`algbw` times 2(n-1)/n: what a ring's links would carry at this speed."""
        return self.algbw * 2 * (self.cell.workers - 1) / self.cell.workers

    def snr_db(self) -> dict[str, float | None]:
        """Signal-to-noise ratio of the results in dB, by distribution of the data."""
        return {str(name): decibels(*power) for name, power in self.power.items()}

    def quantile(self, share: float) -> float:
        """The shortest time of a call that a share of all timed calls did not exceed, in seconds."""
        return float(np.quantile(self.call_seconds, share, method="inverted_cdf"))

    def add(self, measured: Sequence[Measured], others_cpu_seconds: float) -> None:
        """Adds all ranks' measurements of one timed round, and processor time of other processes."""
        self.seconds.append(max(one.seconds for one in measured) / self.cell.calls)
        self.call_seconds += (max(call) for call in zip(*(one.calls for one in measured), strict=True))
        self.late.append(max(one.late for one in measured))
        self.cpu_seconds += sum(one.cpu_seconds for one in measured) + others_cpu_seconds
        for one in measured:
            for key, value in one.counters.items():
                if key not in _GAUGES:
                    self.counters[key] = self.counters.get(key, 0.0) + value

    def check(
        self,
        distribution: Distribution,
        references: Sequence[Reference],
        digests: Sequence[tuple[int, ...]],
        results: Sequence[NDArray[Any]],
    ) -> None:
        """Compares rank 0's results, one a call, with the references, and all ranks' digests of theirs."""
        if len(set(digests)) > 1 and not self.complaint:
            odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
            self.complaint = f"ranks {odd} have other results than rank 0"
        for answer, result in zip(references, results, strict=True):
            verdict = judge(self.cell, self.variant, answer, result)
            self.worst = max(self.worst, verdict.worst)
            self.complaint = self.complaint or verdict.complaint
            if is_float(self.cell.dtype):
                signal, noise = self.power.get(distribution, (0.0, 0.0))
                self.power[distribution] = (signal + verdict.signal, noise + verdict.noise)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run: measurements in the order of the grid, and lines on all that was left out."""

    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if everything in the line-up was measured and every result was right."""
        return all(
            not measurement.failure and measurement.exact is not False for measurement in self.measurements
        )


def run(settings: Settings, progress: Progress) -> Outcome:
    """Measures the grid.

    Raises:
        UsageError: nothing of what was asked for can run here.
    """
    lineup = line_up(settings)
    cells = list(settings.cells())
    notes: list[str] = []

    def note(line: str) -> None:
        if line not in notes:
            notes.append(line)
            progress.note(line)

    for line in lineup.notes:
        note(line)
    if settings.rate is not None:
        note(f"links of {Rate.parse(settings.rate)} are switchagg's alone; others go as fast as they can")
    plans = [(cell, lineup.variants(settings, cell.dtype)) for cell in cells]
    for _, (_, refusals) in plans:
        for line in refusals:
            note(line)
    rounds = settings.warmup + settings.repeat
    progress.begin(sum(len(variants) for _, (variants, _) in plans) * rounds)
    measurements: list[Measurement] = []
    for workers, same_workers in groupby(plans, key=lambda plan: plan[0].workers):
        with _Groups(settings, lineup, workers, note) as groups:
            for cell, (variants, _) in same_workers:
                progress.cell(cell)
                done = groups.measure(cell, variants, progress)
                for measurement in done:
                    for trouble in filter(None, (measurement.failure, measurement.complaint)):
                        note(f"{measurement.variant.describe()}: {trouble}")
                measurements += done
    return Outcome(tuple(measurements), tuple(notes))


class _Groups:
    """The groups of one number of workers, each started at its first use. A group that fails stays out."""

    def __init__(self, settings: Settings, lineup: Lineup, workers: int, note: Callable[[str], None]) -> None:
        self._settings = settings
        self._note = note
        self._lineup = lineup
        self._workers = workers
        self._groups: dict[str, Group] = {}
        self._failures: dict[str, str] = {}

    def __enter__(self) -> _Groups:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with ExitStack() as stack:
            for group in self._groups.values():
                stack.callback(group.close, gently=kind is None)

    def _use(self, key: str, use: Callable[[Group], object]) -> str:
        """Calls `use` with the group of this key, unless the group has failed or cannot be started.

        Returns the error that ended the group; empty where it goes on.
        """
        try:
            if key not in self._groups and key not in self._failures:
                peer = self._lineup.groups[key]
                self._groups[key] = Group(peer, self._workers, self._settings.timeout, AllReduceRank)
                for line in peer.warnings():
                    self._note(f"{peer.name}: {line}")
            if key in self._groups:
                use(self._groups[key])
        except (SwitchAggError, OSError) as error:
            self._failures[key] = str(error)
            if key in self._groups:
                self._groups.pop(key).close()
        return self._failures.get(key, "")

    def measure(self, cell: Cell, variants: Sequence[Variant], progress: Progress) -> list[Measurement]:
        """Measures one cell: warm-up, timed rounds, a round of heavy-tailed data for lossy variants."""
        if not variants:  # everything was refused on this element type, and the notes say why
            return []
        found = [Measurement(cell, variant) for variant in variants]
        for key in dict.fromkeys(variant.group for variant in variants):
            self._use(key, lambda group: group.command(lambda _: cell, type(None), _MARGIN_SECONDS))
        rounds = self._settings.warmup + self._settings.repeat
        with _ResultArea(cell) as area:
            for number in range(rounds):
                sample = self._sample(cell, number, Distribution.NORMAL, area)
                turn = number % len(variants)
                for each in [*found[turn:], *found[:turn]]:
                    progress.sample(each.variant, number, rounds)
                    take = partial(sample, each, timed=number >= self._settings.warmup)
                    each.failure = self._use(each.variant.group, take) or each.failure
            lossy = [each for each in found if DEFAULT < each.variant.bits < 32 and each.checked]
            if lossy and is_float(cell.dtype):
                sample = self._sample(cell, rounds, Distribution.STUDENT_T3, area)
                for each in lossy:
                    take = partial(sample, each, timed=False)
                    each.failure = self._use(each.variant.group, take) or each.failure
        return found

    def _sample(
        self, cell: Cell, number: int, distribution: Distribution, area: _ResultArea
    ) -> Callable[..., None]:
        """A function that takes one round's sample with a group and adds it to a measurement."""
        draws = tuple(Draw(self._settings.seed, number, call, distribution) for call in range(cell.calls))
        references = reference(cell, draws)
        limit = cell.calls * self._settings.timeout + _MARGIN_SECONDS

        def sample(measurement: Measurement, group: Group, *, timed: bool) -> None:
            variant = measurement.variant
            fill = Fill(
                variant.system,
                variant.bits,
                draws,
                self._settings.mask and variant.system == "switchagg",
                tuple(_union_bytes(cell, answer) for answer in references),
            )
            group.command(lambda _: fill, type(None), _MARGIN_SECONDS + self._settings.timeout)
            cpu = group.cpu_seconds()
            start = time.monotonic() + _LEAD_SECONDS + _LEAD_SECONDS_A_WORKER * cell.workers
            measured = group.command(lambda _: Run(start), Measured, limit)
            if timed:
                measurement.add(measured, group.cpu_seconds() - cpu)
            if measurement.checked:
                shown = group.command(lambda rank: Show(area.path if rank == 0 else None), Digest, limit)
                measurement.check(distribution, references, [each.calls for each in shown], area.results())

        return sample


def _union_bytes(cell: Cell, answer: Reference) -> int:
    elements = min(answer.union * cell.block_size, cell.elements)
    return elements * cell.size // cell.elements


class _ResultArea:
    """Anonymous shared memory into which rank 0 writes its results; other processes open it by `path`."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._descriptor = os.memfd_create("switchagg-bench-result")
        os.ftruncate(self._descriptor, cell.size * cell.calls)
        self._map = mmap.mmap(self._descriptor, cell.size * cell.calls)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def results(self) -> list[NDArray[Any]]:
        """The results of the last sample, one a call, (elements,) each. Drop them before the area closes."""
        rows = np.frombuffer(self._map, dtype=np.uint8).reshape(self._cell.calls, self._cell.size)
        return [row.view(numpy_dtype(self._cell.dtype)) for row in rows]

    def __enter__(self) -> _ResultArea:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()
        os.close(self._descriptor)

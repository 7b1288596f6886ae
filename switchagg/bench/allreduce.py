"""The all-reduce benchmark: every system on every cell of the grid, in turn, results checked.

A round draws new tensors; each system then reduces the same ones, the order moving on by one from round to
round, so that no system always runs in the shadow of the same other. A sample's time is the largest over
the ranks, from an instant agreed on beforehand to the return of the rank's last call.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.bench.check import decibels, judge
from switchagg.bench.data import Distribution, Draw, Reference, reference
from switchagg.bench.grid import Cell, Settings, Variant, is_float, numpy_dtype
from switchagg.bench.group import Group
from switchagg.bench.messages import Digest, Fill, Measured, Run, Show
from switchagg.bench.peers.registry import Lineup, line_up
from switchagg.emulator.rates import Rate
from switchagg.errors import SwitchAggError

_GAUGES = ("rtt_seconds", "window")
_MARGIN_SECONDS = 15.0
_LEAD_SECONDS = 0.01
_LEAD_SECONDS_A_WORKER = 0.001


class Progress(Protocol):
    """Where a run says what it is doing."""

    def begin(self, samples: int) -> None:
        """`samples` will be taken in all."""

    def cell(self, cell: Cell) -> None:
        """This cell comes next."""

    def sample(self, variant: Variant, round_number: int, rounds: int) -> None:
        """This sample comes next."""

    def note(self, line: str) -> None:
        """Something that the user should know."""


@dataclass(slots=True)
class Tally:
    """What is known about one variant on one cell.

    Attributes:
        seconds: of a call, one number a timed round.
        late: how much after the common start the last rank woke, likewise.
        counters: growth over all timed calls, summed over ranks.
        cpu_seconds: processor time of all ranks, and of the switch where there is one, over all timed calls.
        checked: whether there is a result to check: the floor has none.
        complaint: the first thing wrong with a result; empty when every result was right.
        failure: why it could not be measured to the end; empty when it was.
        worst: the largest error seen in units of its bound.
        power: sums of squares of signal and noise for each distribution.
    """

    cell: Cell
    variant: Variant
    seconds: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    checked: bool = True
    complaint: str = ""
    failure: str = ""
    worst: float = 0.0
    power: dict[Distribution, tuple[float, float]] = field(default_factory=dict)

    @property
    def timed_calls(self) -> int:
        """Calls over which counters were taken."""
        return len(self.seconds) * self.cell.calls

    @property
    def exact(self) -> bool | None:
        """Every result within its bound and the same to the bit on all ranks; None where there is none."""
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run: tallies in the order of the grid, and lines on what was left out."""

    tallies: tuple[Tally, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything in the line-up was measured and every result was right."""
        return all(not tally.failure and tally.exact is not False for tally in self.tallies)


def run(settings: Settings, progress: Progress) -> Outcome:
    """Measure the grid.

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
    tallies: list[Tally] = []
    for workers, same_workers in groupby(plans, key=lambda plan: plan[0].workers):
        with _Stage(settings, lineup, workers, note) as stage:
            for cell, (variants, _) in same_workers:
                progress.cell(cell)
                done = stage.measure(cell, variants, progress)
                for tally in done:
                    for trouble in filter(None, (tally.failure, tally.complaint)):
                        note(f"{tally.variant.describe()}: {trouble}")
                tallies += done
    return Outcome(tuple(tallies), tuple(notes))


class _Stage:
    """All groups of one number of workers, started when first used. A group that fails stays out."""

    def __init__(self, settings: Settings, lineup: Lineup, workers: int, note: Callable[[str], None]) -> None:
        self._settings = settings
        self._note = note
        self._lineup = lineup
        self._workers = workers
        self._groups: dict[str, Group] = {}
        self._lost: dict[str, str] = {}

    def __enter__(self) -> _Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with ExitStack() as stack:
            for group in self._groups.values():
                stack.callback(group.close, gently=kind is None)

    @contextmanager
    def _group(self, key: str, tally: Tally | None) -> Iterator[Group | None]:
        """The group of this key, or None where it is lost; what it raises inside loses it."""
        self._start(key)
        try:
            yield self._groups.get(key)
        except (SwitchAggError, OSError) as error:
            self._lost[key] = str(error)
            if key in self._groups:
                self._groups.pop(key).close()
        if key in self._lost and tally is not None:
            tally.failure = self._lost[key]

    def _start(self, key: str) -> None:
        if key in self._groups or key in self._lost:
            return
        peer = self._lineup.groups[key]
        try:
            self._groups[key] = Group(peer, self._workers, self._settings.timeout)
        except (SwitchAggError, OSError) as error:
            self._lost[key] = str(error)
            return
        for line in peer.warnings():
            self._note(f"{peer.name}: {line}")

    def measure(self, cell: Cell, variants: Sequence[tuple[str, Variant]], progress: Progress) -> list[Tally]:
        """One cell: warm-up and timed rounds, then a round of heavy-tailed data for what loses precision."""
        if not variants:  # everything was refused on this element type, and the notes say why
            return []
        tallies = {
            variant: Tally(cell, variant, checked=variant.system != "udp-floor") for _, variant in variants
        }
        for key in dict(variants):
            with self._group(key, None) as group:
                if group is not None:
                    group.command(lambda _: cell, type(None), _MARGIN_SECONDS)
        rounds = self._settings.warmup + self._settings.repeat
        with _ResultArea(cell) as area:
            for number in range(rounds):
                draws = self._draws(cell, number, Distribution.NORMAL)
                references = reference(cell, draws)
                turn = number % len(variants)
                for key, variant in [*variants[turn:], *variants[:turn]]:
                    progress.sample(variant, number, rounds)
                    with self._group(key, tallies[variant]) as group:
                        if group is not None:
                            timed = number >= self._settings.warmup
                            self._sample(group, tallies[variant], draws, references, area, timed=timed)
            lossy = [(key, v) for key, v in variants if v.bits < 32 and tallies[v].checked]
            if lossy and is_float(cell.dtype):
                draws = self._draws(cell, rounds, Distribution.STUDENT_T3)
                references = reference(cell, draws)
                for key, variant in lossy:
                    with self._group(key, tallies[variant]) as group:
                        if group is not None:
                            self._sample(group, tallies[variant], draws, references, area, timed=False)
        return [tallies[variant] for _, variant in variants]

    def _draws(self, cell: Cell, number: int, distribution: Distribution) -> tuple[Draw, ...]:
        return tuple(Draw(self._settings.seed, number, call, distribution) for call in range(cell.calls))

    def _sample(
        self,
        group: Group,
        tally: Tally,
        draws: Sequence[Draw],
        references: Sequence[Reference],
        area: _ResultArea,
        *,
        timed: bool,
    ) -> None:
        cell, variant = tally.cell, tally.variant
        command = Fill(
            variant.system,
            variant.bits,
            tuple(draws),
            self._settings.mask and variant.system == "switchagg",
            tuple(_union_bytes(cell, answer) for answer in references),
        )
        group.command(lambda _: command, type(None), _MARGIN_SECONDS + self._settings.timeout)
        cpu = group.cpu_seconds()
        start = time.monotonic() + _LEAD_SECONDS + _LEAD_SECONDS_A_WORKER * cell.workers
        limit = cell.calls * self._settings.timeout + _MARGIN_SECONDS
        measured = group.command(lambda _: Run(start), Measured, limit)
        if timed:
            tally.seconds.append(max(one.seconds for one in measured) / cell.calls)
            tally.late.append(max(one.late for one in measured))
            tally.cpu_seconds += sum(one.cpu_seconds for one in measured) + group.cpu_seconds() - cpu
            _add_counters(tally.counters, measured)
        if tally.checked:
            shown = group.command(lambda rank: Show(area.path if rank == 0 else None), Digest, limit)
            digests = [each.calls for each in shown]
            _check(tally, draws[0].distribution, references, digests, area.results())


def _union_bytes(cell: Cell, answer: Reference) -> int:
    elements = min(answer.union * cell.block_size, cell.elements)
    return elements * cell.size // cell.elements


def _add_counters(counters: dict[str, float], measured: Sequence[Measured]) -> None:
    for one in measured:
        for key, value in one.counters.items():
            if key not in _GAUGES:
                counters[key] = counters.get(key, 0.0) + value


def _check(
    tally: Tally,
    distribution: Distribution,
    references: Sequence[Reference],
    digests: Sequence[tuple[int, ...]],
    results: Sequence[NDArray[Any]],
) -> None:
    """Judge rank 0's results, and by the digests that every other rank's are the same to the bit."""
    if len(set(digests)) > 1 and not tally.complaint:
        odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        tally.complaint = f"ranks {odd} have other results than rank 0"
    for answer, result in zip(references, results, strict=True):
        verdict = judge(tally.cell, tally.variant, answer, result)
        tally.worst = max(tally.worst, verdict.worst)
        tally.complaint = tally.complaint or verdict.complaint
        if is_float(tally.cell.dtype):
            signal, noise = tally.power.get(distribution, (0.0, 0.0))
            tally.power[distribution] = (signal + verdict.signal, noise + verdict.noise)


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

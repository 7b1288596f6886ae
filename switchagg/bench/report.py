"""Reports on the all-reduce benchmark: JSON for programs, a table for people, progress of a run."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from switchagg.bench.allreduce import Measurement, Outcome
from switchagg.bench.grid import DEFAULT, Cell, Settings, Variant, format_size, name_of_bits
from switchagg.report.format import significant
from switchagg.report.machine import machine
from switchagg.report.table import columns

_PER_RANK: Final = "seconds."
_SETTINGS: Final = (
    "repeat", "warmup", "mask", "block_size", "words", "slots", "rate", "duplicate", "reorder", "seed",
    "timeout",
)  # fmt: skip


def to_json(settings: Settings, outcome: Outcome) -> dict[str, Any]:
    """The whole outcome as JSON values.

    `runs` has an entry for each variant of each cell that was measured, `failed` for each that failed.
    `stats` are counters a call, summed over the ranks; its `seconds` are of a call and rank. `exact` and
    `worst_error_of_bound` (the largest error in units of the bound on it) are null where there is no sum to
    check. `wake_up_seconds` is the longest that a rank woke after the common start; the times include it.
    """
    return {
        "machine": machine(),
        "settings": {name: getattr(settings, name) for name in _SETTINGS},
        "notes": list(outcome.notes),
        "runs": [_run_to_json(measurement) for measurement in outcome.measurements if measurement.seconds],
        "failed": [
            {**_identity(measurement), "error": measurement.failure}
            for measurement in outcome.measurements
            if measurement.failure
        ],
    }


def _identity(measurement: Measurement) -> dict[str, Any]:
    bits = measurement.variant.bits
    return {
        "system": measurement.variant.system,
        "transport": measurement.variant.transport or None,
        "workers": measurement.cell.workers,
        "bytes": measurement.cell.size,
        "dtype": measurement.cell.dtype,
        "bits": bits if bits > DEFAULT else name_of_bits(bits),
        "density": measurement.cell.density,
        "overlap": str(measurement.cell.overlap),
        "loss": measurement.variant.loss,
    }


def _run_to_json(measurement: Measurement) -> dict[str, Any]:
    return {
        **_identity(measurement),
        "seconds": {
            "min": min(measurement.seconds),
            "median": statistics.median(measurement.seconds),
            "max": max(measurement.seconds),
            "call_p50": measurement.quantile(0.5),
            "call_p99": measurement.quantile(0.99),
        },
        "algbw_GBps": measurement.algbw / 1e9,
        "busbw_GBps": measurement.busbw / 1e9,
        "exact": measurement.exact,
        "samples": measurement.seconds,
        "calls_per_sample": measurement.cell.calls,
        "wake_up_seconds": max(measurement.late, default=0.0),
        "cpu_seconds": measurement.cpu_seconds / measurement.timed_calls,
        "worst_error_of_bound": measurement.worst if measurement.exact else None,
        "snr_db": measurement.snr_db(),
        "stats": _stats(measurement),
    }


def _stats(measurement: Measurement) -> dict[str, Any]:
    """Counters a call, summed over ranks; times a call and rank."""
    stats: dict[str, Any] = {}
    for key, value in sorted(measurement.counters.items()):
        a_call = value / measurement.timed_calls
        if key.startswith(_PER_RANK):
            seconds = stats.setdefault("seconds", {})
            seconds[key.removeprefix(_PER_RANK)] = a_call / measurement.cell.workers
        else:
            stats[key] = a_call
    return stats


_HEADINGS = (
    "system", "via", "bits", "loss", "min ms", "median", "max", "p99", "algbw GB/s", "busbw", "x gloo",
    "x floor", "cpu ms", "wire MB", "resent", "checked", "SNR dB",
)  # fmt: skip


def table(outcome: Outcome) -> str:
    """The outcome as text: a block a cell, a row a variant, with ratios to gloo's algbw and the floor's."""
    blocks = []
    for cell, measurements in groupby(outcome.measurements, key=lambda measurement: measurement.cell):
        members = list(measurements)
        rows = [_HEADINGS, *(_row(measurement, members) for measurement in members)]
        right = [heading != "system" for heading in _HEADINGS]
        blocks.append(f"{cell.describe()}\n{columns(rows, right, indent='  ')}")
    return "\n\n".join(blocks)


def _row(measurement: Measurement, members: Iterable[Measurement]) -> tuple[str, ...]:
    variant = measurement.variant
    start = (
        variant.system,
        variant.transport,
        name_of_bits(variant.bits),
        f"{variant.loss:.3g}" if variant.loss else "",
    )
    if not measurement.seconds:
        return (*start, *[""] * 11, "failed", "")
    times = (
        min(measurement.seconds),
        statistics.median(measurement.seconds),
        max(measurement.seconds),
        measurement.quantile(0.99),
    )
    by_system = {other.variant.system: other.algbw for other in members if other.seconds}
    ratios = tuple(
        significant(measurement.algbw / by_system[base]) if base in by_system else ""
        for base in ("gloo", "udp-floor")
    )
    sent = measurement.counters.get("bytes_sent")
    wire = (
        ""
        if sent is None
        else significant(
            (sent + measurement.counters.get("bytes_received", 0.0)) / measurement.timed_calls / 1e6
        )
    )
    resent = measurement.counters.get("retransmissions")
    verdict = {True: "ok", False: "WRONG", None: "-"}[measurement.exact]
    return (
        *start,
        *(significant(1e3 * seconds) for seconds in times),
        significant(measurement.algbw / 1e9),
        significant(measurement.busbw / 1e9),
        *ratios,
        significant(1e3 * measurement.cpu_seconds / measurement.timed_calls),
        wire,
        "" if resent is None else significant(resent / measurement.timed_calls),
        "failed" if measurement.failure else verdict,
        " / ".join("exact" if value is None else f"{value:.0f}" for value in measurement.snr_db().values()),
    )


LEGEND = """\
Times are of one call, from a common start to the return of the last rank; of calls under 4 MB several are
made back to back. p99: of single calls, each at the rank where it took longest. x gloo and x floor are
ratios of algbw. cpu: processor time of all ranks (and the switch) a call. wire: UDP payload that all workers
send and receive a call; resent: packets that they send again a call. checked: the sum is right and the same
to the bit on all ranks.
SNR: of the result on normal data / on heavy-tailed data (Student's t, 3 degrees of freedom)."""


class TerminalProgress:
    """Progress on standard error: a bar on a terminal, plain lines elsewhere. A context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar: Bar | None = None
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Bar(*columns, console=self._console, transient=True)
        self._cell = ""
        self._samples = 0
        self._done = 0

    def __enter__(self) -> TerminalProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, samples: int) -> None:
        """`samples` will be taken in all."""
        self._samples = samples
        if self._bar is not None:
            self._bar.add_task("starting", total=samples)

    def cell(self, cell: Cell) -> None:
        """This cell comes next."""
        self._cell = cell.describe()
        if self._bar is None:
            self._line(
                f"[{self._done}/{self._samples}] {self._cell}, {format_size(cell.calls * cell.size)} a sample"
            )

    def sample(self, variant: Variant, round_number: int, rounds: int) -> None:
        """This sample comes next."""
        self._done += 1
        if self._bar is not None:
            text = f"{self._cell}: {variant.describe()}, round {round_number + 1}/{rounds}"
            self._bar.update(self._bar.task_ids[0], completed=self._done, description=text)

    def note(self, line: str) -> None:
        """A line for the user."""
        if self._bar is None:
            self._line(line)
        else:
            self._console.print(line, markup=False)

    @staticmethod
    def _line(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

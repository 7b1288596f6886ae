"""What a benchmark found: JSON for programs, a table for people, and the progress of a run."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from switchagg.bench.allreduce import Outcome, Tally
from switchagg.bench.grid import Cell, Settings, Variant, format_size

_PER_RANK = "seconds."


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, kernel, memory, versions, socket buffer limits."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "memory_bytes": int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]) * 1024,
        "python": platform.python_version(),
        "switchagg": _version("switchagg"),
        "numpy": _version("numpy"),
        "torch": _version("torch"),
        "mpi4py": _version("mpi4py"),
        "huge_pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "rmem_max": _number("/proc/sys/net/core/rmem_max"),
        "wmem_max": _number("/proc/sys/net/core/wmem_max"),
    }


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _chosen(path: str) -> str | None:
    """The word in brackets, as in `always [madvise] never`."""
    try:
        return Path(path).read_text().partition("[")[2].partition("]")[0] or None
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def to_json(settings: Settings, outcome: Outcome) -> dict[str, Any]:
    """The whole outcome as JSON values.

    `runs` has an entry for each variant of each cell that was measured, `failed` for each that failed.
    `stats` are counters a call, summed over the ranks; its `seconds` are of a call and rank. `exact` and
    `worst_error_of_bound` (the largest error in units of the bound on it) are null where there is no sum to
    check. `wake_up_seconds` is how late a rank was for the common start, at worst; the times include it.
    """
    return {
        "machine": machine(),
        "settings": {
            "repeat": settings.repeat,
            "warmup": settings.warmup,
            "mask": settings.mask,
            "block_size": settings.block_size,
            "words": settings.words,
            "slots": settings.slots,
            "rate": settings.rate,
            "duplicate": settings.duplicate,
            "reorder": settings.reorder,
            "seed": settings.seed,
            "timeout": settings.timeout,
        },
        "notes": list(outcome.notes),
        "runs": [_run_to_json(tally) for tally in outcome.tallies if tally.seconds],
        "failed": [
            {**_identity(tally), "error": tally.failure} for tally in outcome.tallies if tally.failure
        ],
    }


def _identity(tally: Tally) -> dict[str, Any]:
    return {
        "system": tally.variant.system,
        "transport": tally.variant.transport or None,
        "workers": tally.cell.workers,
        "bytes": tally.cell.size,
        "dtype": tally.cell.dtype,
        "bits": tally.variant.bits,
        "density": tally.cell.density,
        "overlap": str(tally.cell.overlap),
        "loss": tally.variant.loss,
    }


def _run_to_json(tally: Tally) -> dict[str, Any]:
    return {
        **_identity(tally),
        "seconds": {
            "min": min(tally.seconds),
            "median": statistics.median(tally.seconds),
            "max": max(tally.seconds),
        },
        "algbw_GBps": tally.algbw / 1e9,
        "busbw_GBps": tally.busbw / 1e9,
        "exact": tally.exact,
        "samples": tally.seconds,
        "calls_per_sample": tally.cell.calls,
        "wake_up_seconds": max(tally.late, default=0.0),
        "cpu_seconds": tally.cpu_seconds / tally.timed_calls,
        "worst_error_of_bound": tally.worst if tally.exact else None,
        "snr_db": tally.snr_db(),
        "stats": _stats(tally),
    }


def _stats(tally: Tally) -> dict[str, Any]:
    """Counters a call, summed over ranks; times a call and rank."""
    stats: dict[str, Any] = {}
    for key, value in sorted(tally.counters.items()):
        a_call = value / tally.timed_calls
        if key.startswith(_PER_RANK):
            seconds = stats.setdefault("seconds", {})
            seconds[key.removeprefix(_PER_RANK)] = a_call / tally.cell.workers
        else:
            stats[key] = a_call
    return stats


_HEADINGS = (
    "system", "via", "bits", "loss", "min ms", "median", "max", "algbw GB/s", "busbw", "x gloo", "x floor",
    "cpu ms", "wire MB", "resent", "checked", "SNR dB",
)  # fmt: skip


def table(outcome: Outcome) -> str:
    """The outcome as text: a block a cell, a row a variant, with ratios to gloo's algbw and the floor's."""
    blocks = []
    for cell, tallies in groupby(outcome.tallies, key=lambda tally: tally.cell):
        members = list(tallies)
        rows = [_HEADINGS, *(_row(tally, members) for tally in members)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
        lines = [cell.describe()]
        for row in rows:
            cells = (
                text.ljust(width) if index == 0 else text.rjust(width)
                for index, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  " + "  ".join(cells).rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _row(tally: Tally, members: Iterable[Tally]) -> tuple[str, ...]:
    variant = tally.variant
    start = (
        variant.system,
        variant.transport,
        str(variant.bits),
        f"{variant.loss:.3g}" if variant.loss else "",
    )
    if not tally.seconds:
        return (*start, *[""] * 10, "failed", "")
    times = (min(tally.seconds), statistics.median(tally.seconds), max(tally.seconds))
    by_system = {other.variant.system: other.algbw for other in members if other.seconds}
    ratios = tuple(
        _short(tally.algbw / by_system[base]) if base in by_system else "" for base in ("gloo", "udp-floor")
    )
    sent = tally.counters.get("bytes_sent")
    wire = (
        ""
        if sent is None
        else _short((sent + tally.counters.get("bytes_received", 0.0)) / tally.timed_calls / 1e6)
    )
    resent = tally.counters.get("retransmissions")
    verdict = {True: "ok", False: "WRONG", None: "-"}[tally.exact]
    return (
        *start,
        *(_short(1e3 * seconds) for seconds in times),
        _short(tally.algbw / 1e9),
        _short(tally.busbw / 1e9),
        *ratios,
        _short(1e3 * tally.cpu_seconds / tally.timed_calls),
        wire,
        "" if resent is None else _short(resent / tally.timed_calls),
        "failed" if tally.failure else verdict,
        " / ".join("exact" if value is None else f"{value:.0f}" for value in tally.snr_db().values()),
    )


def _short(value: float) -> str:
    """Three significant digits, without exponents where people would not want one."""
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


LEGEND = """\
Times are of one call, from a common start to the return of the last rank; x gloo and x floor are ratios of
algbw. cpu: processor time of all ranks (and the switch) a call. wire: UDP payload that all workers send and
receive a call; resent: packets that they send again a call. checked: the sum is right and the same to the
bit on all ranks.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Something that the user should know."""
        if self._bar is None:
            self._line(line)
        else:
            self._console.print(line, markup=False)

    @staticmethod
    def _line(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

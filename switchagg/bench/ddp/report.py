"""The table of `switchagg bench ddp`, and its JSON."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any, Final

from switchagg.bench.ddp.settings import DdpSettings, Figures
from switchagg.bench.report import machine

_HEAD: Final = (
    "ranks",
    "model",
    "system",
    "steps/s",
    "x gloo",
    "comm. ms",
    "of gloo's",
    "sent MB",
    "same",
    "loss",
)
LEGEND: Final = """\
steps/s   median of the rounds; x gloo: as a multiple of gloo's in the same run
comm. ms  a step: while at least one bucket was under way; it overlaps with the backward pass
sent MB   by each rank and step
same      whether all ranks had the same parameters to the bit at the end"""


def row(figures: Figures, gloo: Figures | None) -> tuple[str, ...]:
    """A line of the table; `gloo` is what gloo did on the same model with as many ranks."""
    rate, communication = (
        statistics.median(figures.steps_per_second),
        statistics.median(figures.communication_seconds),
    )
    times, share = "-", "-"
    if gloo is not None:
        times = f"{rate / statistics.median(gloo.steps_per_second):.2f}"
        share = f"{communication / statistics.median(gloo.communication_seconds):.2f}"
    sent = f"{figures.bytes_sent / 1e6:.2f}" if figures.bytes_sent else "-"
    return (
        str(figures.workers), figures.model, figures.system, f"{rate:.1f}", times,
        f"{1000 * communication:.1f}", share, sent,
        "yes" if figures.same else "NO", f"{figures.loss:.4f}",
    )  # fmt: skip


def table(found: list[Figures]) -> str:
    """All lines, under a head."""
    beside = {(f.workers, f.model): f for f in found if f.system == "gloo"}
    rows = [_HEAD, *(row(f, beside.get((f.workers, f.model))) for f in found)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(_HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in (1, 2) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(r, widths, strict=True))
        ).rstrip()
        for r in rows
    )


def to_json(settings: DdpSettings, found: list[Figures]) -> dict[str, Any]:
    """Everything as JSON values."""
    return {"machine": machine(), "settings": asdict(settings), "runs": [asdict(f) for f in found]}

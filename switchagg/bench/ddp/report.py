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
    "added ms",
    "of gloo's",
    "sent MB",
    "same",
    "loss",
)
LEGEND: Final = """\
steps/s   median of the rounds; x gloo: as a multiple of gloo's in the same run
comm. ms  a step: while at least one bucket was under way; it overlaps with the backward pass
added ms  what a step takes longer than with "none": communication as training feels it
sent MB   by each rank and step
same      whether all ranks had the same parameters to the bit at the end
none      exchanges nothing: its steps/s are what no system can pass"""


def row(figures: Figures, gloo: Figures | None, none: Figures | None) -> tuple[str, ...]:
    """A line of the table; `gloo` and `none` did the same model with as many ranks."""
    communication = statistics.median(figures.communication_seconds)
    added = _added(figures, none)
    times, share, added_share = "-", "-", "-"
    if gloo is not None:
        times = f"{_rate(figures) / _rate(gloo):.2f}"
        if figures.system != "none":
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
    """Seconds that communication adds to a step; None where nobody knows."""
    if none is None or figures.system == "none":
        return None
    return 1 / _rate(figures) - 1 / _rate(none)


def table(found: list[Figures]) -> str:
    """All lines, under a head."""
    beside = {(f.workers, f.model): f for f in found if f.system == "gloo"}
    alone = {(f.workers, f.model): f for f in found if f.system == "none"}
    of = [(f, (f.workers, f.model)) for f in found]
    rows = [_HEAD, *(row(f, beside.get(key), alone.get(key)) for f, key in of)]
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

"""Faults by the state of the job that they met, and the reasons why some never meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from tests.simulation.schedule import KINDS

STATES: Final = (
    "before the job", "queued", "joining", "opening", "running", "running, a pause is wanted",
    "change, collecting", "change, finishing", "change, opening", "failover, collecting", "failover, opening",
    "failed", "after the job", "no controller",
)  # fmt: skip
REASONS: Final[Mapping[tuple[str, str], str]] = {
    **{
        ("worker comes back", state): "it comes back to a job that has begun"
        for state in ("before the job", "queued", "opening")
    },
    ("worker comes back", "failed"): "only jobs that shrink have ranks that come back, and these rarely fail",
}
"""Cells that may be empty."""


def table(cells: Counter[tuple[str, str]]) -> str:
    """Returns a Markdown table of counts; a reason stands as "-"."""
    states = [state for state in STATES if any(cells[kind, state] for kind in KINDS)]
    rows = ["| fault | " + " | ".join(states) + " |", "| --- |" + " --- |" * len(states)]
    for kind in KINDS:
        counts = (
            f"{cells[kind, state]:,}" if cells[kind, state] or (kind, state) not in REASONS else "-"
            for state in states
        )
        rows.append(f"| {kind} | " + " | ".join(counts) + " |")
    return "\n".join(rows)

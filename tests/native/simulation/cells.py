"""Faults by the state of the packet that met them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_KINDS: Final = ("OR", "SUM", "SKIP", "repeat", "repeat of SKIP", "RESULT", "empty RESULT", "answer")
STATES: Final = (*_KINDS, *(f"leaf: {kind}" for kind in _KINDS))
FAULTS: Final = (
    "lost", "damaged", "link down", "queue full", "inbox full", "reordered", "twice", "twice, late",
    "of a former job", "receiver stopped", "foreign",
)  # fmt: skip
# Cells in which nothing can be, and why.
EMPTY: Final[Mapping[tuple[str, str], str]] = {
    (
        f"leaf: {kind}",
        "of a former job",
    ): "switches go on when the next job comes: nothing tells their packets apart"
    for kind in _KINDS
}


def table(cells: Mapping[tuple[str, str], int]) -> str:
    """Returns the counts as a table in Markdown."""
    lines = [f"| packet | {' | '.join(FAULTS)} |", "| --- " * (len(FAULTS) + 1) + "|"]
    for state in STATES:
        counts = ("-" if (state, fault) in EMPTY else f"{cells.get((state, fault), 0):,}" for fault in FAULTS)
        lines.append(f"| {state} | {' | '.join(counts)} |")
    return "\n".join(lines)

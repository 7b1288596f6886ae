"""The table of the differences between each system's losses and gloo's."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tests.training.compare import Trained

LAST = 50  # steps that "at the end" means


@dataclass(frozen=True)
class Gap:
    """One system beside gloo.

    Attributes:
        largest: in any step, |loss - gloo's loss|.
        end: mean loss of the last steps, less gloo's.
        loss: mean loss of the last steps.
        same: whether ranks were equal to the bit after every step.
    """

    largest: float
    end: float
    loss: float
    same: bool


def gap(ours: Trained, gloo: Trained) -> Gap:
    """Compares two trainings on the same batches."""
    pairs = list(zip(ours.losses, gloo.losses, strict=True))
    end, theirs = (statistics.fmean(t.losses[-LAST:]) for t in (ours, gloo))
    return Gap(max(abs(a - b) for a, b in pairs), end - theirs, end, not ours.differ)


def table(model: str, trained: dict[str, Trained]) -> str:
    """Lines of Markdown for one model."""
    lines = []
    for system, each in trained.items():
        found = gap(each, trained["gloo"])
        same = "yes" if found.same else f"NO, {len(each.differ)} steps"
        end = "" if system == "gloo" else f"{found.end:+.1e}"
        largest = "" if system == "gloo" else f"{found.largest:.1e}"
        lines.append(f"| {model} | {system} | {largest} | {found.loss:.4f} | {end} | {same} |")
    return "\n".join(lines)


HEAD = """\
| model | system | largest gap in a step | mean loss, last 50 steps | less gloo's | same on all ranks |
| --- | --- | --- | --- | --- | --- |"""

"""What a run of experiments leaves: a `Record` of each, and the folder of the report.

results.json       everything, for programs
index.html         everything, for people, with the pictures in it
NAME-PLOT.png      the pictures again, for other documents
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from switchagg.bench.report import machine
from switchagg.errors import SwitchAggError
from switchagg.experiments.base import Experiment, Outcome
from switchagg.experiments.rank_api import plain
from switchagg.experiments.runner import Settings


class Verdict(StrEnum):
    """What became of an experiment."""

    HELD = "held"
    NOT_HELD = "not held"
    FAILED = "failed"  # it broke off
    SKIPPED = "skipped"  # something has to be installed first


@dataclass(frozen=True, slots=True)
class Record:
    """An experiment and what came of it.

    Attributes:
        outcome: None where it failed or was skipped.
        reason: why it did, or was.
        seconds: that it took.
        others: share of the cores' time that other processes took meanwhile.
    """

    experiment: Experiment
    outcome: Outcome | None
    seconds: float = 0.0
    reason: str = ""
    others: float = 0.0
    skipped: bool = False

    @property
    def verdict(self) -> Verdict:
        """What became of it."""
        if self.outcome is None:
            return Verdict.SKIPPED if self.skipped else Verdict.FAILED
        return Verdict.HELD if self.outcome.held else Verdict.NOT_HELD

    def to_json(self) -> dict[str, Any]:
        """Everything but the function, as JSON values."""
        experiment = self.experiment
        told: dict[str, Any] = {
            "title": experiment.title,
            "claim": experiment.claim,
            "source": experiment.source,
            "verdict": str(self.verdict),
            "seconds": self.seconds,
            "others": self.others,
        }
        if self.outcome is None:
            return told | {"reason": self.reason}
        found: dict[str, Any] = _plain(asdict(self.outcome))
        return told | found


def _plain(value: Any) -> Any:
    """JSON values, without NaN and infinities, which JSON does not have: those become null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain(plain(value))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(records: Sequence[Record], settings: Settings, seconds: float) -> dict[str, Any]:
    """The whole run as JSON values."""
    return {
        "machine": machine(),
        "quick": settings.quick,
        "seed": settings.seed,
        "seconds": seconds,
        "experiments": {each.experiment.name: each.to_json() for each in records},
    }


def write(records: Sequence[Record], settings: Settings, seconds: float, folder: Path) -> tuple[Path, bool]:
    """Write the report.

    Returns:
        The path of the HTML file, and whether it has all its pictures.

    Raises:
        SwitchAggError: the folder cannot be written to.
    """
    from switchagg.experiments import page, pictures

    try:
        folder.mkdir(parents=True, exist_ok=True)
        told = to_json(records, settings, seconds)
        (folder / "results.json").write_text(json.dumps(told, indent=1, default=plain) + "\n")
        try:
            drawn = pictures.draw(records, folder)
        except ImportError:
            drawn = None
        index = folder / "index.html"
        index.write_text(page.html(records, settings, seconds, told["machine"], drawn), encoding="utf-8")
    except OSError as error:
        raise SwitchAggError(f"could not write the report to {folder}: {error}") from None
    return index, drawn is not None

"""Runs experiments one after the other; one that breaks off does not stop the next."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from switchagg.errors import SwitchAggError
from switchagg.experiments import catalog
from switchagg.experiments.base import Experiment
from switchagg.experiments.record import Record
from switchagg.experiments.runner import Lab, Settings
from switchagg.processor_time import everybody_seconds, family_seconds


def run(
    experiments: Sequence[Experiment], settings: Settings, say: Callable[[str], None]
) -> Iterator[Record]:
    """Each experiment's record as it ends.

    Args:
        say: takes a line for whoever watches.
    """
    for experiment in experiments:
        if (reason := catalog.missing(experiment)) is not None:
            yield Record(experiment, None, reason=reason, skipped=True)
            continue
        say(f"{experiment.name}: {experiment.title}")
        clock = _Clock()
        try:
            outcome = experiment.run(Lab(settings, _marked(say, experiment.name)))
        except SwitchAggError as error:
            yield Record(experiment, None, clock.seconds(), str(error), clock.others())
        else:
            yield Record(experiment, outcome, clock.seconds(), others=clock.others())


class _Clock:
    """Since it was made."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._others = everybody_seconds() - family_seconds()

    def seconds(self) -> float:
        return time.monotonic() - self._started

    def others(self) -> float:
        """Share of the cores' time that went to other processes than this one and its children."""
        used = everybody_seconds() - family_seconds() - self._others
        return min(1.0, max(0.0, used / self.seconds() / len(os.sched_getaffinity(0))))


def _marked(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda line: say(f"{name}: {line}")

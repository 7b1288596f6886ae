"""Runs experiments one after the other; one that breaks off does not stop the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from switchagg.errors import SwitchAggError
from switchagg.experiments import catalog
from switchagg.experiments.base import Experiment
from switchagg.experiments.lab import Lab, Settings
from switchagg.experiments.record import Record


def run(
    experiments: Sequence[Experiment], settings: Settings, say: Callable[[str], None]
) -> Iterator[Record]:
    """Each experiment's record as it ends.

    Args:
        say: takes a line for whoever watches.
    """
    for experiment in experiments:
        if (reason := catalog.missing(experiment)) is not None:
            yield Record(experiment, None, 0.0, reason, skipped=True)
            continue
        say(f"{experiment.name}: {experiment.title}")
        started = time.monotonic()
        try:
            outcome = experiment.run(Lab(settings, _marked(say, experiment.name)))
        except SwitchAggError as error:
            yield Record(experiment, None, time.monotonic() - started, str(error))
        else:
            yield Record(experiment, outcome, time.monotonic() - started)


def _marked(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda line: say(f"{name}: {line}")

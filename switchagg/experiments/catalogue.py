"""All experiments, by name: every module in `switchagg.experiments.claims` has one as its `EXPERIMENT`.

A claim describes its figures as data; terminal, page and pictures are made of them elsewhere. Importing it
has to be cheap: large packages (scikit-learn, worker_lib) are imported inside its functions.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Final

from switchagg.errors import UsageError
from switchagg.experiments import claims
from switchagg.experiments.experiment import Experiment

_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def load() -> dict[str, Experiment]:
    """Every experiment by name, in the order of the report.

    Raises:
        ValueError: a name is malformed or not unique.
    """
    found: list[Experiment] = []
    for module in pkgutil.iter_modules(claims.__path__, f"{claims.__name__}."):
        experiment = getattr(importlib.import_module(module.name), "EXPERIMENT", None)
        if isinstance(experiment, Experiment):
            if not _NAME.fullmatch(experiment.name):
                raise ValueError(f"{module.name}: {experiment.name!r} is no name of small letters and dashes")
            found.append(experiment)
    found.sort(key=lambda each: (each.order, each.name))
    by_name = {each.name: each for each in found}
    if len(by_name) < len(found):
        raise ValueError(f"two experiments have one name: {sorted(each.name for each in found)}")
    return by_name


def chosen(names: list[str]) -> list[Experiment]:
    """The experiments of these names, or for ``all`` every one but those that take longer, each once.

    Raises:
        UsageError: there is none of a name, or no name was given.
    """
    known = load()
    if not names:
        raise UsageError(f"which experiment? accepted: all, {', '.join(known)}")
    for name in names:
        if name != "all" and name not in known:
            raise UsageError(f"there is no experiment {name}; accepted: all, {', '.join(known)}")
    return [each for each in known.values() if each.name in names or ("all" in names and each.in_all)]

"""Which experiments there are: every module in `switchagg.experiments.claims` that has an `EXPERIMENT`."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from typing import Final

from switchagg.errors import UsageError
from switchagg.experiments import claims
from switchagg.experiments.base import Experiment

_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_EXTRAS: Final = {"sklearn": ("scikit-learn", "experiments"), "matplotlib": ("matplotlib", "plots")}


def load() -> dict[str, Experiment]:
    """Every experiment by name, in the order of the report."""
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
    """The experiments of these names, or every one for ``all``, each once.

    Raises:
        UsageError: there is none of a name, or no name was given.
    """
    known = load()
    if not names:
        raise UsageError(f"which experiment? accepted: all, {', '.join(known)}")
    for name in names:
        if name != "all" and name not in known:
            raise UsageError(f"there is no experiment {name}; accepted: all, {', '.join(known)}")
    return [each for each in known.values() if each.name in names or "all" in names]


def missing(experiment: Experiment) -> str | None:
    """What has to be installed before it can run, in one line; None where nothing has."""
    for module in experiment.needs:
        if importlib.util.find_spec(module) is None:
            package, extra = _EXTRAS.get(module, (module, "experiments"))
            return f'{package} is missing: pip install "switchagg[{extra}]"'
    return None

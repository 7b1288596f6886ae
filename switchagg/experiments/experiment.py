"""An experiment: a claim and its source, a function that measures, and its outcome as data."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from switchagg.report.plots import Plot
from switchagg.report.table import Table

if TYPE_CHECKING:
    from switchagg.experiments.runner import Runner

_EXTRAS: Final = {"sklearn": ("scikit-learn", "experiments"), "matplotlib": ("matplotlib", "plots")}


@dataclass(frozen=True, slots=True)
class Check:
    """One statement of a claim that a measurement decides.

    Attributes:
        statement: part of the claim, such as ``DIANA comes within 1e-8 of the optimum``.
        held: whether the measurement agrees.
        measured: the figures behind it, such as ``3.1e-10 after 400 steps``.
    """

    statement: str
    held: bool
    measured: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that an experiment found.

    Attributes:
        checks: at least one.
        numbers: all else worth keeping, as JSON values; goes into results.json.
        notes: sentences for the reader: what was left out, which resource was the limit, surprises.

    Raises:
        ValueError: there is no check.
    """

    checks: Sequence[Check]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("an outcome has at least one check")

    @property
    def held(self) -> bool:
        """True if every statement held."""
        return all(check.held for check in self.checks)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim, and the function that checks it.

    Attributes:
        name: on the command line: small letters, digits, dashes.
        title: a few words for headings.
        claim: one or two sentences, as the source has it.
        source: authors, title, arXiv number or venue, section.
        run: measures. The runner starts its ranks, and has the seed and whether the short form is wanted.
        needs: modules that must be installed, such as ``("sklearn",)``.
        order: position in `all` and the report; the same for all of a subject.
        in_all: False for one that takes long, and runs by its name only.
    """

    name: str
    title: str
    claim: str
    source: str
    run: Callable[[Runner], Outcome]
    needs: tuple[str, ...] = ()
    order: int = 100
    in_all: bool = True

    def missing(self) -> str | None:
        """A line that names a package to install first; None where nothing is missing."""
        for module in self.needs:
            if importlib.util.find_spec(module) is None:
                package, extra = _EXTRAS.get(module, (module, "experiments"))
                return f'{package} is missing: pip install "switchagg[{extra}]"'
        return None

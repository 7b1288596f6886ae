"""What an experiment is made of: a claim and its source, a function that measures, and what it found.

A claim's file describes its figures as data. Terminal, page and pictures are made of them elsewhere, so such
a file imports neither matplotlib nor HTML. Importing it has to be cheap: what is large (scikit-learn,
worker_lib) is imported inside its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from switchagg.experiments.runner import Lab

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Check:
    """One statement of a claim that a measurement decides.

    Attributes:
        statement: what is claimed, such as ``DIANA comes within 1e-8 of the optimum``.
        held: whether it did.
        measured: the figures that say so, such as ``3.1e-10 after 400 steps``.
    """

    statement: str
    held: bool
    measured: str


@dataclass(frozen=True, slots=True)
class Table:
    """Figures in rows. Floats are shown with four significant digits; None as a dash.

    Attributes:
        note: a sentence below it.
    """

    title: str
    headings: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"table {self.title!r}: {len(self.headings)} headings, but a row is {row}")


@dataclass(frozen=True, slots=True)
class Series:
    """One curve or set of bars; `x` holds words where these are bars.

    Attributes:
        style: of the line; "points" has markers and no line.
        low, high: ends of error bars, y's length; empty for none.
    """

    label: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    style: Literal["solid", "dashed", "dotted", "points"] = "solid"
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"series {self.label!r}: {len(self.x)} x for {len(self.y)} y")


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture.

    Attributes:
        name: of its file, letters, digits and dashes; unique in its experiment.
        kind: curves, or groups of bars (the series' `x` are then the same words).
        log_x, log_y: logarithmic axes.
        lines: horizontal lines, label and height.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: Literal["curves", "bars"] = "curves"
    log_x: bool = False
    log_y: bool = False
    lines: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment found.

    Attributes:
        checks: at least one.
        numbers: all else worth keeping, as JSON values; goes into results.json.
        notes: sentences for the reader: what was left out, what bound, what surprised.
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
        """Whether every statement did."""
        return all(check.held for check in self.checks)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim, and how it is checked.

    Attributes:
        name: on the command line: small letters, digits, dashes.
        title: a few words for headings.
        claim: one or two sentences, as the source has it.
        source: whose claim: authors, title, arXiv number or venue, section.
        run: measures. It starts ranks through the lab, which also says whether the quick form is wanted.
        needs: modules that must be installed, such as ``("sklearn",)``.
        order: place in `all` and the report; the same for all of a subject.
    """

    name: str
    title: str
    claim: str
    source: str
    run: Callable[[Lab], Outcome]
    needs: tuple[str, ...] = ()
    order: int = 100

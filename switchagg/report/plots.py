"""Plots as data, and as PNG files in one style. Needs matplotlib, which the extra ``plots`` brings.

Importing this module does not import matplotlib: who describes a plot need not have it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, BROWN, GREY = (
    "#2563eb", "#ea7317", "#169c6b", "#8b5cf6", "#d6336c", "#0d9488", "#b45309", "#9aa5b1",
)  # fmt: skip
_COLOURS: Final = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, BROWN, GREY, INK)
_LINES: Final = {"solid": "-", "dashed": "--", "dotted": ":", "points": ""}
_MARKERS: Final = "osD^vPX*<>"


@dataclass(frozen=True, slots=True)
class Series:
    """One curve or set of bars; `x` holds words where these are bars.

    Attributes:
        style: of the line; "points" has markers and no line.
        low, high: ends of error bars, y's length; empty for none.

    Raises:
        ValueError: `x` and `y` differ in length.
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
        name: of its file, letters, digits and dashes; unique in its report.
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

    def draw(self, pyplot: Any) -> Any:
        """A matplotlib figure, in the style that `styled` has set."""
        figure, axes = pyplot.subplots(layout="constrained")
        axes.set_title(self.title)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        if self.log_y:
            axes.set_yscale("log")
        (self._bars if self.kind == "bars" else self._curves)(axes)
        for label, height in self.lines:
            axes.axhline(height, color=FAINT, linestyle="--", linewidth=1.1, label=label)
        if len(self.series) + len(self.lines) > 1:
            # Beside the curves: a legend inside would lie on some of them.
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, fontsize=9.5)
        return figure

    def _curves(self, axes: Any) -> None:
        if self.log_x:
            axes.set_xscale("log")
        for index, series in enumerate(self.series):
            colour = _COLOURS[index % len(_COLOURS)]
            few = len(series.x) <= 24
            marker = _MARKERS[index % len(_MARKERS)] if few or series.style == "points" else ""
            again = series.style == "solid" and index >= len(_COLOURS)  # a colour for the second time
            line = "--" if again else _LINES[series.style]
            # A logarithmic axis has no 0, and a line from there would come out of the frame.
            there = [i for i, x in enumerate(series.x) if not self.log_x or cast(float, x) > 0]
            x, y = [series.x[i] for i in there], [series.y[i] for i in there]
            axes.plot(x, y, color=colour, linestyle=line, marker=marker, markersize=4.5, label=series.label)
            if series.low:
                axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.12, linewidth=0)

    def _bars(self, axes: Any) -> None:
        names = list(dict.fromkeys(str(x) for series in self.series for x in series.x))
        width = 0.8 / max(1, len(self.series))
        for index, series in enumerate(self.series):
            shift = (index - (len(self.series) - 1) / 2) * width
            places = [names.index(str(x)) + shift for x in series.x]
            colour = _COLOURS[index % len(_COLOURS)]
            axes.bar(places, series.y, width * 0.92, color=colour, label=series.label)
            if series.low:
                ends = (
                    [y - low for y, low in zip(series.y, series.low, strict=True)],
                    [high - y for y, high in zip(series.y, series.high, strict=True)],
                )
                axes.errorbar(places, series.y, yerr=ends, fmt="none", ecolor=INK, linewidth=1)
        slanted = max((len(name) for name in names), default=0) * len(names) > 90
        axes.set_xticks(
            range(len(names)), names, rotation=30 if slanted else 0, ha="right" if slanted else "center"
        )
        axes.grid(axis="x", visible=False)


@contextmanager
def headless_pyplot() -> Iterator[Any]:
    """pyplot without a display. Its caches go to a temporary folder, unless the user has named one.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="switchagg-") as cache:
        mine = "MPLCONFIGDIR" not in os.environ
        if mine:
            os.environ["MPLCONFIGDIR"] = cache
        try:
            import matplotlib

            matplotlib.use("Agg")
            from matplotlib import pyplot

            yield pyplot
        finally:
            if mine:
                del os.environ["MPLCONFIGDIR"]


@contextmanager
def styled() -> Iterator[Any]:
    """`headless_pyplot` with our style. Raises ImportError where matplotlib is not installed."""
    style = {
        "figure.figsize": (9, 4.2),
        "figure.dpi": 100,
        "savefig.dpi": 160,
        "savefig.facecolor": "white",
        "savefig.bbox": "tight",
        "savefig.pad_inches": 0.15,
        "font.size": 11,
        "axes.titlesize": 13,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 12,
        "axes.edgecolor": GRID,
        "axes.labelcolor": FAINT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "text.color": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
    }
    with headless_pyplot() as pyplot, pyplot.rc_context(style):
        yield pyplot


def save(pyplot: Any, figure: Any, path: Path) -> Path:
    """Writes a figure to `path`, as PNG, and lets go of it."""
    figure.savefig(path)
    pyplot.close(figure)
    return path

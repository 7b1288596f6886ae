"""The plots of experiments as PNG files. Needs matplotlib, which the extra ``plots`` brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from switchagg.demo.plots import COLOURS, styled
from switchagg.experiments.base import Plot
from switchagg.experiments.record import Record

_LINES: Final = {"solid": "-", "dashed": "--", "dotted": ":", "points": ""}
_MARKERS: Final = "osD^vPX*<>"


def draw(records: Sequence[Record], folder: Path) -> dict[tuple[str, str], Path]:
    """Draw every plot into `folder`, which exists.

    Returns:
        Paths by the names of experiment and plot.

    Raises:
        ImportError: matplotlib is not installed.
    """
    paths = {}
    with styled() as pyplot:
        for record in records:
            for plot in record.outcome.plots if record.outcome else ():
                figure = _bars(pyplot, plot) if plot.kind == "bars" else _curves(pyplot, plot)
                path = folder / f"{record.experiment.name}-{plot.name}.png"
                figure.savefig(path, bbox_inches="tight", pad_inches=0.15)
                pyplot.close(figure)
                paths[record.experiment.name, plot.name] = path
    return paths


def _axes(pyplot: Any, plot: Plot) -> tuple[Any, Any]:
    figure, axes = pyplot.subplots(layout="constrained")
    axes.set_title(plot.title)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if plot.log_y:
        axes.set_yscale("log")
    return figure, axes


def _finish(figure: Any, axes: Any, plot: Plot) -> Any:
    for label, height in plot.lines:
        axes.axhline(height, color="#7b8794", linestyle="--", linewidth=1.1, label=label)
    if len(plot.series) + len(plot.lines) > 1:
        # Beside the curves: a legend inside would lie on some of them.
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, fontsize=9.5)
    return figure


def _curves(pyplot: Any, plot: Plot) -> Any:
    figure, axes = _axes(pyplot, plot)
    if plot.log_x:
        axes.set_xscale("log")
    for index, series in enumerate(plot.series):
        colour = COLOURS[index % len(COLOURS)]
        few = len(series.x) <= 24
        marker = _MARKERS[index % len(_MARKERS)] if few or series.style == "points" else ""
        again = series.style == "solid" and index >= len(COLOURS)  # a colour for the second time
        line = "--" if again else _LINES[series.style]
        # A logarithmic axis has no 0, and a line from there would come out of the frame.
        there = [i for i, x in enumerate(series.x) if not plot.log_x or cast(float, x) > 0]
        axes.plot(
            [series.x[i] for i in there],
            [series.y[i] for i in there],
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=4.5,
            label=series.label,
        )
        if series.low:
            axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.12, linewidth=0)
    return _finish(figure, axes, plot)


def _bars(pyplot: Any, plot: Plot) -> Any:
    figure, axes = _axes(pyplot, plot)
    names = list(dict.fromkeys(str(x) for series in plot.series for x in series.x))
    width = 0.8 / max(1, len(plot.series))
    for index, series in enumerate(plot.series):
        shift = (index - (len(plot.series) - 1) / 2) * width
        places = [names.index(str(x)) + shift for x in series.x]
        axes.bar(places, series.y, width * 0.92, color=COLOURS[index % len(COLOURS)], label=series.label)
        if series.low:
            ends = (
                [y - low for y, low in zip(series.y, series.low, strict=True)],
                [high - y for y, high in zip(series.y, series.high, strict=True)],
            )
            axes.errorbar(places, series.y, yerr=ends, fmt="none", ecolor="#1f2933", linewidth=1)
    slanted = max((len(name) for name in names), default=0) * len(names) > 90
    axes.set_xticks(
        range(len(names)), names, rotation=30 if slanted else 0, ha="right" if slanted else "center"
    )
    axes.grid(axis="x", visible=False)
    return _finish(figure, axes, plot)

"""The pictures of the report, as PNG. Needs matplotlib, which the extra ``plots`` brings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from switchagg.demo.outcome import Outcome, TrainingRun
from switchagg.demo.progress import human_bytes

_INK, _FAINT, _GRID = "#1f2933", "#7b8794", "#e4e7eb"
_BLUE, _ORANGE, _GREEN, _PURPLE, _RED, _GREY = (
    "#2563eb",
    "#ea7317",
    "#169c6b",
    "#8b5cf6",
    "#d6336c",
    "#9aa5b1",
)
COLOURS = (_BLUE, _ORANGE, _GREEN, _PURPLE, _RED, "#0d9488", "#b45309", _GREY, _INK)
LANE_COLOURS = {32: _BLUE, 16: _ORANGE, 8: _PURPLE}
PART_COLOURS = {
    "compute": _BLUE,
    "scan": "#0d9488",
    "quantize": _GREEN,
    "wire": _ORANGE,
    "wait": "#fbbf77",
    "decode": _PURPLE,
    "other": _GREY,
    "update": _RED,
}
PART_NAMES = {
    "compute": "forward, backward",
    "scan": "scan",
    "quantize": "quantize",
    "wire": "send, receive",
    "wait": "wait",
    "decode": "decode",
    "other": "rest of the call",
    "update": "Adagrad",
}


@contextmanager
def styled() -> Iterator[Any]:
    """pyplot with our style. Its caches go to a temporary folder, unless the user has named one.

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

            style = {
                "figure.figsize": (9, 4.2),
                "figure.dpi": 100,
                "savefig.dpi": 160,
                "savefig.facecolor": "white",
                "font.size": 11,
                "axes.titlesize": 13,
                "axes.titleweight": "bold",
                "axes.titlelocation": "left",
                "axes.titlepad": 12,
                "axes.edgecolor": _GRID,
                "axes.labelcolor": _FAINT,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.color": _GRID,
                "text.color": _INK,
                "xtick.color": _FAINT,
                "ytick.color": _FAINT,
                "legend.frameon": False,
                "lines.linewidth": 1.8,
            }
            with matplotlib.rc_context(style):
                yield pyplot
        finally:
            if mine:
                del os.environ["MPLCONFIGDIR"]


def draw(outcome: Outcome, folder: Path) -> dict[str, Path]:
    """Draw every picture into `folder`, which exists.

    Returns:
        Paths by name: loss, density, bytes, time.

    Raises:
        ImportError: matplotlib is not installed.
    """
    drawings: dict[str, Callable[[Any, Outcome], Any]] = {
        "loss": _loss,
        "density": _density,
        "bytes": _bytes,
        "time": _time,
    }
    paths = {}
    with styled() as pyplot:
        for name, drawing in drawings.items():
            figure = drawing(pyplot, outcome)
            paths[name] = folder / f"{name}.png"
            figure.savefig(paths[name], bbox_inches="tight", pad_inches=0.15)
            pyplot.close(figure)
    return paths


def _smooth(values: list[float], width: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Mean over a window that is cut at the ends, so that the curve keeps its length."""
    width = max(1, min(width, len(values)))
    kernel = np.ones(width)
    padded = np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
    return np.asarray(padded, dtype=np.float64)


def _loss(pyplot: Any, outcome: Outcome) -> Any:
    figure, (upper, lower) = pyplot.subplots(
        2, 1, figsize=(9, 6.8), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    reference = outcome.reference.losses
    steps = np.arange(1, len(reference) + 1)
    window = max(1, len(steps) // 60)
    upper.plot(steps, reference, color=_GREY, linewidth=0.6, alpha=0.45)
    upper.plot(
        steps,
        _smooth(reference, window),
        color=_INK,
        linewidth=4.5,
        alpha=0.25,
        label="one process, no network",
    )
    for run in outcome.runs:
        upper.plot(
            steps[: len(run.losses)],
            _smooth(run.losses, window),
            color=LANE_COLOURS[run.bits],
            label=f"{outcome.settings.workers} workers, {run.bits}-bit lanes",
        )
    upper.set_ylabel("loss, nats a word")
    upper.set_title("Training loss: through the switch and in one process")
    upper.legend(loc="upper right")

    floor = 1e-9
    rounding = np.abs(np.subtract(reference, outcome.shuffled.losses[: len(reference)]))
    lower.plot(
        steps,
        np.maximum(rounding, floor),
        color=_INK,
        alpha=0.3,
        linewidth=1.2,
        label="one process, shuffled",
    )
    for run in outcome.runs:
        distance = np.abs(np.subtract(run.losses, reference[: len(run.losses)]))
        lower.plot(
            steps[: len(distance)],
            np.maximum(distance, floor),
            color=LANE_COLOURS[run.bits],
            linewidth=1.1,
            alpha=0.9,
            label=f"switch, {run.bits}-bit lanes",
        )
    lower.set_yscale("log")
    lower.set_xlabel("step")
    lower.set_ylabel("distance, nats")
    lower.set_title("Distance from the curve of one process")
    lower.legend(loc="upper left", bbox_to_anchor=(0, -0.3), fontsize=9.5, ncols=4, borderaxespad=0)
    lower.set_xlim(1, max(2, len(steps)))
    return figure


def _density(pyplot: Any, outcome: Outcome) -> Any:
    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    run = outcome.runs[0]
    steps = [record.step for record in run.steps]
    union = [100 * record.union for record in run.steps]
    own = [100 * record.touched for record in run.steps]
    axes.fill_between(steps, union, color=_BLUE, alpha=0.10, linewidth=0)
    axes.plot(steps, union, color=_BLUE, label="at any worker: the blocks that travel")
    axes.plot(steps, own, color=_ORANGE, label="at one worker")
    axes.set_ylim(0, max(union) * 1.35)
    axes.set_xlim(1, max(2, len(steps)))
    axes.set_ylabel("% of the gradient")
    axes.set_xlabel("step")
    axes.set_title("Non-zero share of the gradient, in blocks")
    axes.legend(loc="upper right", ncols=1)
    return figure


def _bytes(pyplot: Any, outcome: Outcome) -> Any:
    rows = [("ring, float32\n(computed)", outcome.traffic(outcome.runs[0])[0], _GREY)]
    for kind, note in (("dense", "dense"), ("zero-skip", "zero-skip")):
        for run in outcome.runs:
            rows += [
                (f"switch, {note}\n{run.bits}-bit lanes", row, LANE_COLOURS[run.bits])
                for row in outcome.traffic(run)
                if kind in row.way
            ]
    rows = [row for row in rows if row[1].sent > 0] or rows
    figure, axes = pyplot.subplots(figsize=(9, 0.9 + 0.66 * len(rows)), layout="constrained")
    places = np.arange(len(rows))[::-1]
    most = max(max(row.sent, row.received) for _, row, _ in rows) or 1.0
    for place, (_, row, colour) in zip(places, rows, strict=True):
        axes.barh(place + 0.19, row.sent, 0.34, color=colour)
        axes.barh(place - 0.19, row.received, 0.34, color=colour, alpha=0.45)
        for shift, value, word in ((0.19, row.sent, "sent"), (-0.19, row.received, "received")):
            axes.text(
                value + most * 0.008, place + shift, f"{human_bytes(value)} {word}", va="center", fontsize=9
            )
    axes.set_yticks(places, [name for name, _, _ in rows], color=_INK)
    axes.set_xlim(0, most * 1.2)
    axes.xaxis.set_major_formatter(lambda value, _: human_bytes(value) if value else "0")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_title("Bytes a worker moves in one step")
    return figure


def _time(pyplot: Any, outcome: Outcome) -> Any:
    figure, axes = pyplot.subplots(figsize=(9, 1.7 + 0.55 * len(outcome.runs)), layout="constrained")
    longest = 1000 * max(sum(outcome.time_split(run).values()) for run in outcome.runs)
    for place, run in enumerate(reversed(outcome.runs)):
        _time_bar(axes, place, run, outcome, longest)
    axes.set_yticks(
        range(len(outcome.runs)),
        [f"{run.bits}-bit lanes" for run in reversed(outcome.runs)],
        color=_INK,
    )
    handles = [
        pyplot.Rectangle((0, 0), 1, 1, color=PART_COLOURS[name], label=PART_NAMES[name])
        for name in PART_NAMES
    ]
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.32), ncols=len(handles), fontsize=9,
        columnspacing=1.1, handlelength=1.0,
    )  # fmt: skip
    axes.set_xlim(0, longest * 1.03)
    axes.set_ylim(-0.6, len(outcome.runs) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("ms")
    axes.set_title("Where a step's time goes, mean of all workers")
    return figure


def _time_bar(axes: Any, place: int, run: TrainingRun, outcome: Outcome, scale: float) -> None:
    left = 0.0
    parts = {name: 1000 * seconds for name, seconds in outcome.time_split(run).items()}
    for name in PART_NAMES:
        width = parts[name]
        axes.barh(place, width, 0.6, left=left, color=PART_COLOURS[name], edgecolor="white", linewidth=0.8)
        if width > 0.055 * scale:
            axes.text(
                left + width / 2, place, f"{width:.1f}", ha="center", va="center", color="white", fontsize=9.5
            )
        left += width

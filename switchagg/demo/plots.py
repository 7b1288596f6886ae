"""The pictures of the demo's report. Drawing them needs matplotlib, which the extra ``plots`` brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from switchagg.demo.outcome import Outcome, TrainingRun
from switchagg.report.format import size
from switchagg.report.plots import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, TEAL, save, styled

LANE_COLOURS: Final = {32: BLUE, 16: ORANGE, 8: PURPLE}
PARTS: Final = {
    "compute": ("forward, backward", BLUE),
    "scan": ("scan", TEAL),
    "quantize": ("quantize", GREEN),
    "wire": ("send, receive", ORANGE),
    "wait": ("wait", "#fbbf77"),
    "decode": ("decode", PURPLE),
    "other": ("rest of the call", GREY),
    "update": ("Adagrad", RED),
}
"""The parts of a step's time: how each is called, and its colour."""


def draw(outcome: Outcome, folder: Path) -> dict[str, Path]:
    """Draws every picture into `folder`, which exists.

    Returns:
        Paths by name: loss, density, bytes, time.

    Raises:
        ImportError: matplotlib is not installed.
    """
    drawings = {"loss": _loss, "density": _density, "bytes": _bytes, "time": _time}
    with styled() as pyplot:
        return {
            name: save(pyplot, drawing(pyplot, outcome), folder / f"{name}.png")
            for name, drawing in drawings.items()
        }


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
    upper.plot(steps, reference, color=GREY, linewidth=0.6, alpha=0.45)
    smooth = _smooth(reference, window)
    upper.plot(steps, smooth, color=INK, linewidth=4.5, alpha=0.25, label="one process, no network")
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

    least = 1e-9  # a logarithmic axis has no 0
    rounding = np.abs(np.subtract(reference, outcome.shuffled.losses[: len(reference)]))
    rounding = np.maximum(rounding, least)
    lower.plot(steps, rounding, color=INK, alpha=0.3, linewidth=1.2, label="one process, shuffled")
    for run in outcome.runs:
        distance = np.abs(np.subtract(run.losses, reference[: len(run.losses)]))
        lower.plot(
            steps[: len(distance)],
            np.maximum(distance, least),
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
    axes.fill_between(steps, union, color=BLUE, alpha=0.10, linewidth=0)
    axes.plot(steps, union, color=BLUE, label="at any worker: the blocks that travel")
    axes.plot(steps, own, color=ORANGE, label="at one worker")
    axes.set_ylim(0, max(union) * 1.35)
    axes.set_xlim(1, max(2, len(steps)))
    axes.set_ylabel("% of the gradient")
    axes.set_xlabel("step")
    axes.set_title("Non-zero share of the gradient, in blocks")
    axes.legend(loc="upper right", ncols=1)
    return figure


def _bytes(pyplot: Any, outcome: Outcome) -> Any:
    rows = [("ring, float32\n(computed)", outcome.traffic(outcome.runs[0])[0], GREY)]
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
            axes.text(value + most * 0.008, place + shift, f"{size(value)} {word}", va="center", fontsize=9)
    _name_bars(axes, places, [name for name, _, _ in rows])
    axes.set_xlim(0, most * 1.2)
    axes.xaxis.set_major_formatter(lambda value, _: size(value) if value else "0")
    axes.set_title("Bytes a worker moves in one step")
    return figure


def _time(pyplot: Any, outcome: Outcome) -> Any:
    figure, axes = pyplot.subplots(figsize=(9, 1.7 + 0.55 * len(outcome.runs)), layout="constrained")
    longest = 1000 * max(sum(outcome.time_split(run).values()) for run in outcome.runs)
    for place, run in enumerate(reversed(outcome.runs)):
        _time_bar(axes, place, run, outcome, longest)
    _name_bars(axes, range(len(outcome.runs)), [f"{run.bits}-bit lanes" for run in reversed(outcome.runs)])
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour, label=title) for title, colour in PARTS.values()]
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.32), ncols=len(handles), fontsize=9,
        columnspacing=1.1, handlelength=1.0,
    )  # fmt: skip
    axes.set_xlim(0, longest * 1.03)
    axes.set_ylim(-0.6, len(outcome.runs) - 0.4)
    axes.set_xlabel("ms")
    axes.set_title("Where a step's time goes, mean of all workers")
    return figure


def _name_bars(axes: Any, places: Any, names: list[str]) -> None:
    """Names horizontal bars, in place of the y axis."""
    axes.set_yticks(places, names, color=INK)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _time_bar(axes: Any, place: int, run: TrainingRun, outcome: Outcome, scale: float) -> None:
    left = 0.0
    parts = {name: 1000 * seconds for name, seconds in outcome.time_split(run).items()}
    for name, (_, colour) in PARTS.items():
        width = parts[name]
        axes.barh(place, width, 0.6, left=left, color=colour, edgecolor="white", linewidth=0.8)
        if width > 0.055 * scale:
            axes.text(
                left + width / 2, place, f"{width:.1f}", ha="center", va="center", color="white", fontsize=9.5
            )
        left += width

"""The report: one HTML page with its pictures inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final

from switchagg.demo.report import PLOTS_HINT, fill, image
from switchagg.experiments.base import Outcome, Table
from switchagg.experiments.record import Record, Verdict
from switchagg.experiments.runner import Settings
from switchagg.experiments.text import figure, numeric
from switchagg.report.format import duration

_CLASSES: Final = {Verdict.HELD: "good", Verdict.NOT_HELD: "bad", Verdict.FAILED: "bad", Verdict.SKIPPED: ""}
_MUCH: Final = 0.2  # of the cores, taken by others
_QUICK_HINT: Final = (
    "The short form: every experiment has run for seconds only, to show that it works. What it says of the "
    "claims means little."
)
_MACHINE: Final = {
    "cpu": "processor",
    "cores": "cores",
    "kernel": "kernel",
    "python": "Python",
    "numpy": "NumPy",
    "switchagg": "switchagg",
}

Pictures = Mapping[tuple[str, str], Path]


def html(
    records: Sequence[Record],
    settings: Settings,
    seconds: float,
    machine: Mapping[str, Any],
    pictures: Pictures | None,
) -> str:
    """The page. `pictures` is None where matplotlib is missing."""
    hints = [_QUICK_HINT] if settings.quick else []
    if pictures is None and any(each.outcome and each.outcome.plots for each in records):
        hints.append(PLOTS_HINT)
    counts = {verdict: sum(each.verdict is verdict for each in records) for verdict in Verdict}
    cards = [
        f"<div class='card{' bad' if count and _CLASSES[verdict] == 'bad' else ''}'><b>{count}</b>"
        f"<span>{verdict}</span></div>"
        for verdict, count in counts.items()
        if count or verdict in (Verdict.HELD, Verdict.NOT_HELD)
    ]
    cards.append(f"<div class=card><b>{duration(seconds)}</b><span>in all</span></div>")
    rows = "".join(
        f"<tr><td><a href='#{each.experiment.name}'>{escape(each.experiment.title)}</a></td>"
        f"<td>{_verdict(each)}</td><td class=n>{each.seconds:.1f} s</td></tr>"
        for each in records
    )
    others = max((each.others for each in records), default=0.0)
    if others >= _MUCH:
        hints.append(
            f"Other programs had up to {others:.0%} of the cores while this ran: times are longer than they "
            "would be on an idle computer."
        )
    facts = "".join(
        f"<tr><td>{name}</td><td>{escape(str(machine[key]))}</td></tr>"
        for key, name in _MACHINE.items()
        if machine.get(key) is not None
    )
    template = resources.files("switchagg.experiments").joinpath("report.html").read_text(encoding="utf-8")
    return fill(
        template,
        {
            "lead": "Each claim was checked by real processes that trained or computed through the software "
            "switch: packets, sums and losses are not simulated. It is marked as held where every "
            "statement below it was measured to be so, and only then.",
            "hints": "".join(f"<p class=hint>{escape(hint)}</p>" for hint in hints),
            "cards": "".join(cards),
            "summary": f"<table><tr><th>claim</th><th>here</th><th class=n>took</th></tr>{rows}</table>",
            "sections": "".join(_section(each, pictures or {}) for each in records),
            "machine": f"<table>{facts}<tr><td>seed</td><td>{settings.seed}</td></tr></table>",
        },
    )


def _word(held: bool) -> str:
    return "<b class='verdict good'>held</b>" if held else "<b class='verdict bad'>not held</b>"


def _verdict(record: Record) -> str:
    return f"<b class='verdict {_CLASSES[record.verdict]}'>{record.verdict}</b>"


def _section(record: Record, pictures: Pictures) -> str:
    experiment = record.experiment
    parts = [
        f"<section id='{experiment.name}'><h2>{escape(experiment.title)}: {_verdict(record)}</h2>",
        f"<p>{escape(experiment.claim)}</p><p><small>Source: {escape(experiment.source)}</small></p>",
        f"<p><small><code>switchagg experiment {experiment.name}</code></small></p>",
    ]
    if record.outcome is None:
        parts.append(f"<p class=hint>{escape(record.reason)}</p>")
    else:
        parts.append(_found(experiment.name, record.outcome, pictures))
    return "".join([*parts, "</section>"])


def _found(name: str, outcome: Outcome, pictures: Pictures) -> str:
    checks = "".join(
        f"<tr><td>{_word(each.held)}</td>"
        f"<td>{escape(each.statement)}</td><td>{escape(each.measured)}</td></tr>"
        for each in outcome.checks
    )
    parts = [f"<table><tr><th></th><th>statement</th><th>measured</th></tr>{checks}</table>"]
    parts += [
        image(pictures[name, plot.name], plot.title)
        for plot in outcome.plots
        if (name, plot.name) in pictures
    ]
    parts += [_table(table) for table in outcome.tables]
    parts += [f"<p>{escape(note)}</p>" for note in outcome.notes]
    return "".join(parts)


def _table(table: Table) -> str:
    classes = [" class=n" if numeric(table, column) else "" for column in range(len(table.headings))]
    head = "".join(f"<th{k}>{escape(each)}</th>" for k, each in zip(classes, table.headings, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{k}>{escape(figure(cell))}</td>" for k, cell in zip(classes, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    note = f"<p><small>{escape(table.note)}</small></p>" if table.note else ""
    return f"<p><b>{escape(table.title)}</b></p><table><tr>{head}</tr>{body}</table>{note}"

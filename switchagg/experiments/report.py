"""Reports on experiments: text for a terminal, JSON, a page with its pictures, Markdown for the docs.

results.json       everything, for programs
index.html         everything, for people, with the pictures in it
NAME-PLOT.png      the pictures again, for other documents
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any, Final

from switchagg.experiments.runner import Record, Settings, Verdict
from switchagg.report import page
from switchagg.report.format import duration
from switchagg.report.machine import machine
from switchagg.report.plots import save, styled
from switchagg.report.table import WIDTH, Markup, html_table, markdown_table

_GOOD: Final = {Verdict.HELD: "good", Verdict.NOT_HELD: "bad", Verdict.FAILED: "bad", Verdict.SKIPPED: ""}
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

Pictures = Mapping[tuple[str, str], Path]  # by the names of experiment and plot


def to_json(records: Sequence[Record], settings: Settings, seconds: float) -> dict[str, Any]:
    """The whole run as JSON values."""
    return {
        "machine": machine(),
        "quick": settings.quick,
        "seed": settings.seed,
        "seconds": seconds,
        "processor": sum(each.processor for each in records),
        "experiments": {each.experiment.name: _record_to_json(each) for each in records},
    }


def _record_to_json(record: Record) -> dict[str, Any]:
    experiment = record.experiment
    told: dict[str, Any] = {name: getattr(experiment, name) for name in ("title", "claim", "source")}
    told |= {"verdict": str(record.verdict), "seconds": record.seconds, "others": record.others}
    told["processor"] = record.processor
    if record.outcome is None:
        return told | {"reason": record.reason}
    found: dict[str, Any] = _json_value(asdict(record.outcome))
    return told | found


def _json_value(value: Any) -> Any:
    """Values as JSON has them: NumPy's as Python's; NaN and infinities, which it lacks, become null."""
    if isinstance(value, dict):
        return {str(key): _json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    if hasattr(value, "tolist"):
        return _json_value(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write(records: Sequence[Record], settings: Settings, seconds: float, folder: Path) -> tuple[Path, bool]:
    """Writes the report; returns the path of the HTML file, and whether it has all its pictures.

    Raises:
        SwitchAggError: the folder cannot be written to.
    """
    results = to_json(records, settings, seconds)
    return page.write(
        folder,
        results,
        lambda to: draw(records, to),
        lambda pictures: html(records, settings, seconds, results["machine"], pictures),
    )


def draw(records: Sequence[Record], folder: Path) -> dict[tuple[str, str], Path]:
    """Draws every plot into `folder`, which exists; returns paths by the names of experiment and plot.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with styled() as pyplot:
        return {
            (name, plot.name): save(pyplot, plot.draw(pyplot), folder / f"{name}-{plot.name}.png")
            for name, outcome in ((each.experiment.name, each.outcome) for each in records)
            for plot in (outcome.plots if outcome else ())
        }


def record_text(record: Record) -> str:
    """A record as text, from its name to its verdict."""
    experiment = record.experiment
    lines = [f"{experiment.name}: {experiment.title}"]
    lines += _labelled("claim", experiment.claim) + _labelled("source", experiment.source)
    if record.outcome is None:
        return "\n".join([*lines, *_labelled(record.verdict.upper(), record.reason)])
    for table in record.outcome.tables:
        lines += ["", table.text()]
    lines.append("")
    for check in record.outcome.checks:
        lines += _labelled("held" if check.held else "NOT HELD", f"{check.statement}: {check.measured}")
    for note in record.outcome.notes:
        lines += _labelled("note", note)
    worked = f", {record.processor:.1f} s of processor time" if record.processor else ""
    others = f"; other programs had {record.others:.0%} of the cores" if record.others >= 0.1 else ""
    lines += _labelled("verdict", f"{record.verdict}, after {record.seconds:.1f} s{worked}{others}")
    return "\n".join(lines)


def summary_text(records: Sequence[Record]) -> str:
    """A line for each record."""
    width = max(len(each.experiment.name) for each in records)
    return "\n".join(
        f"{each.experiment.name:{width}}  {each.verdict.upper():8}  {each.seconds:6.1f} s  "
        f"{each.experiment.title}"
        for each in records
    )


def _labelled(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {label:9} ", subsequent_indent=" " * 12)


def html(
    records: Sequence[Record],
    settings: Settings,
    seconds: float,
    computer: Mapping[str, Any],
    pictures: Pictures | None,
) -> str:
    """The page. `pictures` is None where matplotlib is missing."""
    hints = [_QUICK_HINT] if settings.quick else []
    if pictures is None and any(each.outcome and each.outcome.plots for each in records):
        hints.append(page.PLOTS_HINT)
    others = max((each.others for each in records), default=0.0)
    if others >= _MUCH:
        hints.append(
            f"Other programs had up to {others:.0%} of the cores while this ran: times are longer than they "
            "would be on an idle computer."
        )
    counts = {verdict: sum(each.verdict is verdict for each in records) for verdict in Verdict}
    cards = [
        page.card(str(count), str(verdict), good=not count or _GOOD[verdict] != "bad")
        for verdict, count in counts.items()
        if count or verdict in (Verdict.HELD, Verdict.NOT_HELD)
    ]
    summary = [
        (
            Markup(f"<a href='#{each.experiment.name}'>{escape(each.experiment.title)}</a>"),
            _verdict(each.verdict),
            f"{each.seconds:.1f} s",
        )
        for each in records
    ]
    facts = [(name, str(computer[key])) for key, name in _MACHINE.items() if computer.get(key) is not None]
    return page.page(
        "switchagg experiments",
        "Claims, checked through the switch",
        "Each claim was checked by real processes that trained or computed through the software switch: "
        "packets, sums and losses are not simulated. It is marked as held where every statement below it was "
        "measured to be so, and only then.",
        hints,
        [*cards, page.card(duration(seconds), "in all")],
        [
            page.section("All claims", html_table(("claim", "here", "took"), summary, (False, False, True))),
            *(_section(each, pictures or {}) for each in records),
            page.section(
                "Where and how",
                html_table((), [*facts, ("seed", str(settings.seed))], (False, False))
                + "<p>All figures: <code>results.json</code> beside this page.</p>",
            ),
        ],
    )


def _verdict(verdict: Verdict) -> Markup:
    return Markup(f"<b class='verdict {_GOOD[verdict]}'>{verdict}</b>")


def _section(record: Record, pictures: Pictures) -> str:
    experiment, outcome = record.experiment, record.outcome
    parts = [
        f"<p>{escape(experiment.claim)}</p><p><small>Source: {escape(experiment.source)}</small></p>"
        f"<p><small><code>switchagg experiment {experiment.name}</code></small></p>"
    ]
    if outcome is None:
        parts.append(f"<p class=hint>{escape(record.reason)}</p>")
    else:
        checks = [
            (_verdict(Verdict.HELD if each.held else Verdict.NOT_HELD), each.statement, each.measured)
            for each in outcome.checks
        ]
        parts.append(html_table(("", "statement", "measured"), checks, (False,) * 3))
        names = [(experiment.name, plot.name) for plot in outcome.plots]
        parts += [
            page.image(pictures[name], plot.title)
            for name, plot in zip(names, outcome.plots, strict=True)
            if name in pictures
        ]
        parts += [table.html() for table in outcome.tables]
        parts += [f"<p>{escape(note)}</p>" for note in outcome.notes]
    heading = f"{escape(experiment.title)}: {_verdict(record.verdict)}"
    return page.section(heading, "".join(parts), name=experiment.name)


def markdown(told: Mapping[str, Any]) -> str:
    """Results as Markdown, for docs/experiments.md: a table of all claims, then a section for each.

    Args:
        told: contents of a results.json. ``"pictures"`` of an experiment, if there are any, are shown from
            the folder images, with as many tables. ``"names"`` stands in the command; all by default.
            ``"seconds"`` and ``"others"`` of an experiment may be None, and ``"processor"`` missing: not
            measured. ``"alone"`` has the names of those that ran by themselves.
    """
    experiments: Mapping[str, Any] = told["experiments"]
    computer = told["machine"]
    others = max((each["others"] or 0.0 for each in experiments.values()), default=0.0)
    names, alone = told.get("names", "all"), told.get("alone", ())
    command = f"switchagg experiment {names}{' --quick' if told['quick'] else ''} --seed {told['seed']}"
    cpu = str(computer["cpu"]).replace("|", "\\|")
    verdicts = [
        (
            f"[{each['title']}](#{name})",
            each["verdict"],
            *(round(each[kind]) if each.get(kind) else "-" for kind in ("seconds", "processor")),
        )
        for name, each in experiments.items()
    ]
    lines = [
        f"As `{command}` found them on {computer['cores']} cores ({cpu}), "
        f"in {told['seconds'] / 60:.1f} minutes"
        + (f" and {told['processor'] / 60:.1f} minutes of processor time" if told.get("processor") else "")
        + (f", while other programs had up to {others:.0%} of the cores" if others >= 0.1 else "")
        + (f" ({', '.join(alone)} by its name)" if alone else "")
        + ":",
        "",
        *markdown_table(("claim", "here", "seconds", "processor seconds"), verdicts),
    ]
    for name, each in experiments.items():
        lines += ["", f"### {name}", "", f"{each['claim']} *{each['source']}*", ""]
        lines += [f"`switchagg experiment {name}`: **{each['verdict']}**", ""]
        if "checks" not in each:
            lines.append(each["reason"])
            continue
        checks = [
            ("held" if check["held"] else "**not held**", check["statement"], check["measured"])
            for check in each["checks"]
        ]
        lines += markdown_table(("", "statement", "measured"), checks)
        for picture in each.get("pictures", ()):
            lines += ["", f"![{each['title']}: {picture}](images/{name}-{picture}.png)"]
        for table in each["tables"][: len(each.get("pictures", ())) or 1]:
            lines += ["", table["title"] + ":", "", *markdown_table(table["headings"], table["rows"])]
            if table["note"]:
                lines += ["", table["note"]]
        if each["notes"]:
            lines += ["", *(f"* {note}" for note in each["notes"])]
    return "\n".join(lines) + "\n"

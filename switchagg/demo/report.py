"""The demo's report: one HTML file that needs nothing else, its pictures, and all figures as JSON."""

from __future__ import annotations

import base64
import json
import os
from html import escape
from importlib import resources
from pathlib import Path

from switchagg.demo import model, plots
from switchagg.demo.outcome import Outcome, TrainingRun, final_loss
from switchagg.demo.progress import human_bytes
from switchagg.errors import SwitchAggError, UsageError

PLOTS_HINT = "no plots: matplotlib is not installed; pip install 'switchagg[plots]'"


def check_folder(folder: Path, option: str = "--report") -> None:
    """Fail early where a report could not be written. Creates nothing.

    Args:
        option: what the user calls it.

    Raises:
        UsageError: the path is a file, or neither it nor the folder it would be made in can be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{option} {folder}: this is a file; give a folder")
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {folder}: cannot write to {existing}")


def write(outcome: Outcome, folder: Path) -> tuple[Path, bool]:
    """Write the report.

    Returns:
        The path of the HTML file, and whether it has plots.

    Raises:
        SwitchAggError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(outcome.to_json(), indent=1) + "\n")
        try:
            pictures = plots.draw(outcome, folder)
        except ImportError:
            pictures = {}
        page = folder / "index.html"
        page.write_text(html(outcome, pictures), encoding="utf-8")
    except OSError as error:
        raise SwitchAggError(f"could not write the report to {folder}: {error}") from None
    return page, bool(pictures)


def html(outcome: Outcome, pictures: dict[str, Path]) -> str:
    """The page, with the pictures inside it."""
    template = resources.files("switchagg.demo").joinpath("report.html").read_text(encoding="utf-8")
    run = outcome.runs[0]
    settings = outcome.settings
    values = {
        "summary": _summary(outcome, run),
        "cards": _cards(outcome, run),
        "loss": _picture(
            pictures, "loss", "Training loss through the switch and in one process, and distance"
        ),
        "loss_text": _loss_text(outcome, run),
        "identical": _identical(outcome),
        "bytes": _picture(pictures, "bytes", "Bytes a worker sends and receives in one step"),
        "bytes_table": _bytes_table(outcome),
        "bytes_text": _bytes_text(outcome, run),
        "density": _picture(pictures, "density", "Share of non-zero blocks by step"),
        "time": _picture(pictures, "time", "Mean time of a step by activity"),
        "time_table": _time_table(outcome),
        "lanes": _lanes(outcome),
        "sample": _sample(outcome),
        "model": _model_text(outcome),
        "settings": _settings_table(outcome),
        "plots_hint": "" if pictures else f"<p class=hint>{escape(PLOTS_HINT)}</p>",
        "workers": str(settings.workers),
    }
    return fill(template, values)


def fill(template: str, values: dict[str, str]) -> str:
    """A page from its template: HTML in place of each ``{{name}}``, and our style sheet."""
    style = resources.files("switchagg.demo").joinpath("report.css").read_text(encoding="utf-8")
    for name, value in {**values, "style": f"<style>\n{style}</style>"}.items():
        template = template.replace("{{" + name + "}}", value)
    return template


def summary_lines(outcome: Outcome) -> list[str]:
    """What the terminal says at the end, a line each."""
    run = outcome.runs[0]
    lines = [
        f"loss       {run.losses[0]:.3f} -> {final_loss(run.losses):.4f} through the switch "
        f"({run.bits}-bit lanes), {final_loss(outcome.reference.losses):.4f} in one process",
        f"           max |difference| {outcome.difference(run):.2e}; "
        f"{outcome.rounding:.2e} between two orders of summing in one process",
        f"weights    {_verdict(outcome)}",
    ]
    traffic = outcome.traffic(run)
    least = traffic[-1].sent
    for index, row in enumerate(traffic):
        ratio = f"  {row.sent / least:5.1f}x" if least and row.sent != least else ""
        lines.append(
            f"{'bytes' if index == 0 else '':10} {row.way:32} {human_bytes(row.sent):>8} sent, "
            f"{human_bytes(row.received):>8} received a worker and step, {row.how}{ratio}"
        )
    parts = outcome.time_split(run)
    lines.append(
        "time       "
        + ", ".join(f"{plots.PART_NAMES[name]} {1000 * parts[name]:.1f}" for name in plots.PART_NAMES)
        + " ms a step"
    )
    for other in outcome.runs[1:]:
        lines.append(
            f"{other.bits:>2}-bit     final loss {final_loss(other.losses):.4f}, max |difference| "
            f"{outcome.difference(other):.2e}, "
            f"{human_bytes(outcome.traffic(other)[-1].sent)} sent a worker and step"
        )
    return lines


def _verdict(outcome: Outcome) -> str:
    count = len(outcome.runs[0].digests)
    if not outcome.identical:
        return "NOT IDENTICAL: see results.json for the digests"
    times = "once" if count == 1 else f"each of the {count} times they were compared"
    return f"identical to the bit on all {outcome.settings.workers} workers, {times}"


def _summary(outcome: Outcome, run: TrainingRun) -> str:
    settings = outcome.settings
    return (
        f"{settings.workers} processes trained a language model of {model.parameter_count(settings):,} "
        f"parameters on the Python standard library for {len(run.steps)} steps. Every step, a software "
        f"switch summed their gradients in {run.bits}-bit lanes, and blocks that were zero everywhere never "
        "left the workers."
    )


def _cards(outcome: Outcome, run: TrainingRun) -> str:
    ring, skip = outcome.traffic(run)[0].sent, outcome.traffic(run)[-1].sent
    cards = [
        (f"{run.losses[0]:.2f} → {final_loss(run.losses):.2f}", "training loss, nats a word", True),
        (f"{outcome.difference(run):.1e}", "largest distance from the curve of one process", True),
        (
            "identical" if outcome.identical else "different",
            f"weights of {outcome.settings.workers} workers, to the bit",
            outcome.identical,
        ),
    ]
    if ring and skip:
        cards.append((f"{ring / skip:.1f}×", "fewer bytes sent than a ring", True))
    if run.seconds:
        cards.append((f"{len(run.steps) / run.seconds:.1f}", "steps a second", True))
    return "".join(
        f"<div class='card{'' if good else ' bad'}'><b>{escape(value)}</b><span>{escape(text)}</span></div>"
        for value, text, good in cards
    )


def _picture(pictures: dict[str, Path], name: str, text: str) -> str:
    return image(pictures[name], text) if name in pictures else ""


def image(path: Path, text: str) -> str:
    """A PNG file as an <img> that holds it; `text` is for those who cannot see it."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'


def _loss_text(outcome: Outcome, run: TrainingRun) -> str:
    held_out = run.held_out.get(max(run.held_out, default=0))
    parts = [
        f"The same {len(run.steps)} batches, in one process without a network, give a curve that is at most "
        f"<b>{outcome.difference(run):.2e}</b> nats away.",
        f"Summing each batch in another order in that one process moves its curve by {outcome.rounding:.2e}: "
        "that much comes from float32 rounding alone, with no switch involved.",
        f"Final loss, mean of the last 20 steps: {final_loss(run.losses):.4f} through the switch, "
        f"{final_loss(outcome.reference.losses):.4f} in one process.",
    ]
    if held_out is not None:
        parts.append(f"On held-out files: {held_out:.4f}.")
    return " ".join(parts)


def _identical(outcome: Outcome) -> str:
    rows = []
    for run in outcome.runs:
        for step, ranks in sorted(run.digests.items()):
            distinct = sorted(set(ranks.values()))
            same = len(distinct) == 1 and len(ranks) == outcome.settings.workers
            rows.append(
                f"<tr><td>{run.bits}</td><td>{step}</td><td><code>"
                + "<br>".join(digest[:32] + "…" for digest in distinct)
                + f"</code></td><td class='{'good' if same else 'bad'}'>{len(ranks)} workers, "
                + ("identical" if same else f"{len(distinct)} different")
                + "</td></tr>"
            )
    return (
        "<table><tr><th>lanes</th><th>after step</th><th>SHA-256 of all parameters</th><th></th></tr>"
        + "".join(rows)
        + "</table>"
    )


def _bytes_table(outcome: Outcome) -> str:
    rows = []
    ring = outcome.traffic(outcome.runs[0])[0]
    listed = [ring] + [row for run in outcome.runs for row in outcome.traffic(run)[1:]]
    workers = outcome.settings.workers
    for row in listed:
        ratio = f"{ring.sent / row.sent:.1f}×" if row.sent and ring.sent else "–"
        rows.append(
            f"<tr><td>{escape(row.way)}</td><td>{row.how}</td><td class=n>{human_bytes(row.sent)}</td>"
            f"<td class=n>{human_bytes(row.received)}</td>"
            f"<td class=n>{human_bytes(row.sent * workers)}</td><td class=n>{ratio}</td></tr>"
        )
    return (
        "<table><tr><th>a worker and step</th><th></th><th class=n>sent</th><th class=n>received</th>"
        "<th class=n>sent by all</th><th class=n>fewer than ring</th></tr>" + "".join(rows) + "</table>"
    )


def _bytes_text(outcome: Outcome, run: TrainingRun) -> str:
    count, size = outcome.settings.workers, outcome.gradient_bytes
    text = (
        f"Ring, computed: each worker sends 2(n−1)/n · S, and all together 2(n−1) · S; here n = {count} and "
        f"S = {human_bytes(size)}, payload only, without headers or retransmissions. The switch's figures "
        "are UDP payload as the workers counted it: headers, plans, data and retransmissions."
    )
    if run.comparisons:
        count = len(run.comparisons) // max(1, outcome.settings.workers)
        text += f" Dense was measured on {count} further batches, each summed both ways" + (
            "; the two sums were equal in every element."
            if all(comparison.equal for comparison in run.comparisons)
            else "; narrow lanes round each sum with fresh random numbers, so the two differ in rounding."
            if run.bits < 32
            else "; THE TWO SUMS DIFFERED."
        )
    again = sum(record.retransmissions for record in run.steps)
    settings = outcome.settings
    if settings.packet_loss or settings.packet_duplicate or settings.packet_reorder:
        text += (
            f" The switch lost {settings.packet_loss:.1%}, duplicated {settings.packet_duplicate:.1%} and "
            f"reordered {settings.packet_reorder:.1%} of all packets; a worker sent {again:,.0f} again."
        )
    return text


def _time_table(outcome: Outcome) -> str:
    names = list(plots.PART_NAMES)
    rows = []
    for run in outcome.runs:
        parts = outcome.time_split(run)
        cells = "".join(f"<td class=n>{1000 * parts[name]:.2f}</td>" for name in names)
        rows.append(
            f"<tr><td>{run.bits}-bit lanes</td>{cells}<td class=n>{1000 * sum(parts.values()):.2f}</td></tr>"
        )
    heads = "".join(f"<th class=n>{plots.PART_NAMES[name]}</th>" for name in names)
    return f"<table><tr><th>ms a step</th>{heads}<th class=n>all</th></tr>{''.join(rows)}</table>"


def _lanes(outcome: Outcome) -> str:
    if len(outcome.runs) == 1:
        return (
            f"<p>This run used {outcome.settings.bits}-bit lanes. <code>switchagg demo --compare-bits</code> "
            "trains with 32-, 16- and 8-bit lanes and shows them side by side.</p>"
        )
    rows = []
    for run in outcome.runs:
        held_out = run.held_out.get(max(run.held_out, default=0), float("nan"))
        rows.append(
            f"<tr><td>{run.bits}</td><td class=n>{final_loss(run.losses):.4f}</td>"
            f"<td class=n>{held_out:.4f}</td>"
            f"<td class=n>{outcome.difference(run):.2e}</td>"
            f"<td class=n>{human_bytes(outcome.traffic(run)[-1].sent)}</td>"
            f"<td class=n>{len(run.steps) / max(run.seconds, 1e-9):.1f}</td></tr>"
        )
    held_out = outcome.reference.held_out.get(max(outcome.reference.held_out, default=0), float("nan"))
    rows.append(
        f"<tr><td>one process</td><td class=n>{final_loss(outcome.reference.losses):.4f}</td>"
        f"<td class=n>{held_out:.4f}</td><td class=n>–</td><td class=n>–</td><td class=n>–</td></tr>"
    )
    return (
        "<table><tr><th>lanes</th><th class=n>final loss</th><th class=n>held out</th>"
        "<th class=n>largest distance</th><th class=n>sent a worker and step</th>"
        "<th class=n>steps/s</th></tr>" + "".join(rows) + "</table>"
    )


def _sample(outcome: Outcome) -> str:
    if outcome.sample_text is None:
        return ""
    given, written = outcome.sample_text
    return f"<pre><mark>{escape(given)}</mark>{escape(written)}</pre>"


def _model_text(outcome: Outcome) -> str:
    settings, facts = outcome.settings, outcome.corpus
    table = settings.rows * settings.dimension / model.parameter_count(settings)
    return (
        f"{facts.files} files, {human_bytes(facts.size)}, {facts.words:,} words of which {facts.distinct:,} "
        f"distinct; {facts.held_out:.0%} held out. An n-gram neural model (Bengio et al., JMLR 3, 2003): "
        f"{settings.context} words of context and their neighbouring pairs, an embedding table of "
        f"{settings.rows:,} × {settings.dimension} ({table:.0%} of all parameters), {settings.hidden} tanh "
        f"units, softmax over {settings.vocabulary:,} words; Adagrad, batches of "
        f"{settings.workers} × {settings.batch}."
    )


def _settings_table(outcome: Outcome) -> str:
    fields = outcome.to_json()["settings"].items()
    cells = "".join(
        f"<tr><td>{escape(str(name))}</td><td class=n>{value}</td></tr>" for name, value in fields
    )
    return f"<table>{cells}<tr><td>seconds, all</td><td class=n>{outcome.seconds:.1f}</td></tr></table>"

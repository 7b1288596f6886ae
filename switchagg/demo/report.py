"""The demo's report: one page, its pictures, all figures as JSON, and the lines that end the command."""

from __future__ import annotations

from html import escape
from pathlib import Path

from switchagg.demo import model, plots
from switchagg.demo.outcome import Outcome, ReferenceRun, TrainingRun, final_loss
from switchagg.report import page
from switchagg.report.format import size
from switchagg.report.table import Cell, Markup, html_table

_DASH = "–"


def write(outcome: Outcome, folder: Path) -> tuple[Path, bool]:
    """Writes the report; returns the path of the HTML file, and whether it has plots.

    Raises:
        SwitchAggError: the folder cannot be written to.
    """
    return page.write(
        folder,
        outcome.to_json(),
        lambda to: plots.draw(outcome, to),
        lambda pictures: html(outcome, pictures or {}),
    )


def html(outcome: Outcome, pictures: dict[str, Path]) -> str:
    """The page, with the pictures inside it; `pictures` is empty where matplotlib is missing."""
    run = outcome.runs[0]
    settings = outcome.settings

    def picture(name: str, text: str) -> str:
        return page.image(pictures[name], text) if name in pictures else ""

    sections = {
        "The same curve as one process": picture(
            "loss", "Training loss through the switch and in one process, and distance"
        )
        + f"<p>{_loss_text(outcome, run)}</p>",
        "The same weights on every worker": (
            "<p>After the first broadcast no weights are exchanged: they stay equal because every worker "
            "gets the same sums, to the bit.</p>" + _digests(outcome)
        ),
        "Fewer bytes": picture("bytes", "Bytes a worker sends and receives in one step")
        + _bytes_table(outcome)
        + f"<p>{_bytes_text(outcome, run)}</p>",
        "Because most blocks are zero": picture("density", "Share of non-zero blocks by step")
        + "<p>A batch touches few rows of the embedding table; the rest of its gradient is zero. Blocks that "
        "are zero at every worker are left out; where a worker's own blocks of a packet are all zero, it "
        "sends a header without payload.</p>",
        "Where the time goes": picture("time", "Mean time of a step by activity") + _time_table(outcome),
        "Narrower lanes": _lanes(outcome),
        "What the model writes": "<p>Marked words come from held-out text; the model wrote the rest, one "
        "word after another.</p>" + _sample(outcome),
        "The model and its text": f"<p>{_model_text(outcome)}</p>"
        f"<details><summary>All settings</summary>{_settings_table(outcome)}</details>"
        "<p>All figures, step by step: <code>results.json</code> beside this page.</p>",
    }
    return page.page(
        "switchagg demo",
        "Training through a switch",
        f"{settings.workers} processes trained a language model of {model.parameter_count(settings):,} "
        f"parameters on the Python standard library for {len(run.steps)} steps. Every step, a software "
        f"switch summed their gradients in {run.bits}-bit lanes, and blocks that were zero everywhere never "
        "left the workers.",
        [] if pictures else [page.PLOTS_HINT],
        _cards(outcome, run),
        [page.section(heading, body) for heading, body in sections.items()],
    )


def summary_lines(outcome: Outcome) -> list[str]:
    """The lines that end the command."""
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
            f"{'bytes' if index == 0 else '':10} {row.way:32} {size(row.sent):>8} sent, "
            f"{size(row.received):>8} received a worker and step, {row.how}{ratio}"
        )
    parts = outcome.time_split(run)
    times = (f"{title} {1000 * parts[name]:.1f}" for name, (title, _) in plots.PARTS.items())
    lines.append(f"time       {', '.join(times)} ms a step")
    for other in outcome.runs[1:]:
        lines.append(
            f"{other.bits:>2}-bit     final loss {final_loss(other.losses):.4f}, max |difference| "
            f"{outcome.difference(other):.2e}, {size(outcome.traffic(other)[-1].sent)} sent a worker and step"
        )
    return lines


def _verdict(outcome: Outcome) -> str:
    count = len(outcome.runs[0].digests)
    if not outcome.identical:
        return "NOT IDENTICAL: see results.json for the digests"
    times = "once" if count == 1 else f"each of the {count} times they were compared"
    return f"identical to the bit on all {outcome.settings.workers} workers, {times}"


def _cards(outcome: Outcome, run: TrainingRun) -> list[str]:
    ring, skip = outcome.traffic(run)[0].sent, outcome.traffic(run)[-1].sent
    cards = [
        page.card(f"{run.losses[0]:.2f} → {final_loss(run.losses):.2f}", "training loss, nats a word"),
        page.card(f"{outcome.difference(run):.1e}", "largest distance from the curve of one process"),
        page.card(
            "identical" if outcome.identical else "different",
            f"weights of {outcome.settings.workers} workers, to the bit",
            good=outcome.identical,
        ),
    ]
    if ring and skip:
        cards.append(page.card(f"{ring / skip:.1f}×", "fewer bytes sent than a ring"))
    if run.seconds:
        cards.append(page.card(f"{len(run.steps) / run.seconds:.1f}", "steps a second"))
    return cards


def _loss_text(outcome: Outcome, run: TrainingRun) -> str:
    parts = [
        f"The same {len(run.steps)} batches, in one process without a network, give a curve that is at most "
        f"<b>{outcome.difference(run):.2e}</b> nats away.",
        f"Summing each batch in another order in that one process moves its curve by {outcome.rounding:.2e}: "
        "that much comes from float32 rounding alone, with no switch involved.",
        f"Final loss, mean of the last 20 steps: {final_loss(run.losses):.4f} through the switch, "
        f"{final_loss(outcome.reference.losses):.4f} in one process.",
    ]
    if run.held_out:
        parts.append(f"On held-out files: {run.held_out[max(run.held_out)]:.4f}.")
    return " ".join(parts)


def _digests(outcome: Outcome) -> str:
    rows: list[tuple[Cell, ...]] = []
    for run in outcome.runs:
        for step, ranks in sorted(run.digests.items()):
            distinct = sorted(set(ranks.values()))
            same = len(distinct) == 1 and len(ranks) == outcome.settings.workers
            found = "identical" if same else f"{len(distinct)} different"
            rows.append(
                (
                    str(run.bits),
                    str(step),
                    Markup(f"<code>{'<br>'.join(digest[:32] + '…' for digest in distinct)}</code>"),
                    Markup(f"<span class={'good' if same else 'bad'}>{len(ranks)} workers, {found}</span>"),
                )
            )
    return html_table(("lanes", "after step", "SHA-256 of all parameters", ""), rows, (False,) * 4)


def _bytes_table(outcome: Outcome) -> str:
    ring = outcome.traffic(outcome.runs[0])[0]
    rows = [
        (
            row.way,
            row.how,
            size(row.sent),
            size(row.received),
            size(row.sent * outcome.settings.workers),
            f"{ring.sent / row.sent:.1f}×" if row.sent and ring.sent else _DASH,
        )
        for row in [ring] + [row for run in outcome.runs for row in outcome.traffic(run)[1:]]
    ]
    headings = ("a worker and step", "", "sent", "received", "sent by all", "fewer than ring")
    return html_table(headings, rows, (False, False, True, True, True, True))


def _bytes_text(outcome: Outcome, run: TrainingRun) -> str:
    settings = outcome.settings
    text = (
        "Ring, computed: each worker sends 2(n−1)/n · S, and all together 2(n−1) · S; here n = "
        f"{settings.workers} and S = {size(outcome.gradient_bytes)}, payload only, without headers or "
        "retransmissions. The switch's figures are UDP payload as the workers counted it: headers, plans, "
        "data and retransmissions."
    )
    if run.comparisons:
        count = len(run.comparisons) // max(1, settings.workers)
        text += f" Dense was measured on {count} further batches, each summed both ways" + (
            "; the two sums were equal in every element."
            if all(comparison.equal for comparison in run.comparisons)
            else "; narrow lanes round each sum with fresh random numbers, so the two differ in rounding."
            if run.bits < 32
            else "; THE TWO SUMS DIFFERED."
        )
    if settings.packet_loss or settings.packet_duplicate or settings.packet_reorder:
        again = sum(record.retransmissions for record in run.steps)
        text += (
            f" The switch lost {settings.packet_loss:.1%}, duplicated {settings.packet_duplicate:.1%} and "
            f"reordered {settings.packet_reorder:.1%} of all packets; a worker sent {again:,.0f} again."
        )
    return text


def _time_table(outcome: Outcome) -> str:
    rows = []
    for run in outcome.runs:
        parts = outcome.time_split(run)
        times = [*(parts[name] for name in plots.PARTS), sum(parts.values())]
        rows.append((f"{run.bits}-bit lanes", *(f"{1000 * seconds:.2f}" for seconds in times)))
    headings = ("ms a step", *(title for title, _ in plots.PARTS.values()), "all")
    return html_table(headings, rows, (False, *(True for _ in headings[1:])))


def _lanes(outcome: Outcome) -> str:
    if len(outcome.runs) == 1:
        return (
            f"<p>This run used {outcome.settings.bits}-bit lanes. <code>switchagg demo --compare-bits</code> "
            "trains with 32-, 16- and 8-bit lanes and shows them side by side.</p>"
        )

    def losses(run: TrainingRun | ReferenceRun) -> tuple[str, str]:
        held_out = run.held_out.get(max(run.held_out, default=0), float("nan"))
        return f"{final_loss(run.losses):.4f}", f"{held_out:.4f}"

    rows = [
        (
            str(run.bits),
            *losses(run),
            f"{outcome.difference(run):.2e}",
            size(outcome.traffic(run)[-1].sent),
            f"{len(run.steps) / max(run.seconds, 1e-9):.1f}",
        )
        for run in outcome.runs
    ]
    rows.append(("one process", *losses(outcome.reference), _DASH, _DASH, _DASH))
    headings = ("lanes", "final loss", "held out", "largest distance", "sent a worker and step", "steps/s")
    return html_table(headings, rows, (False, *(True for _ in headings[1:])))


def _sample(outcome: Outcome) -> str:
    if outcome.sample_text is None:
        return ""
    given, written = outcome.sample_text
    return f"<pre><mark>{escape(given)}</mark>{escape(written)}</pre>"


def _model_text(outcome: Outcome) -> str:
    settings, facts = outcome.settings, outcome.corpus
    table = settings.rows * settings.dimension / model.parameter_count(settings)
    return (
        f"{facts.files} files, {size(facts.size)}, {facts.words:,} words of which {facts.distinct:,} "
        f"distinct; {facts.held_out:.0%} held out. An n-gram neural model (Bengio et al., JMLR 3, 2003): "
        f"{settings.context} words of context and their neighbouring pairs, an embedding table of "
        f"{settings.rows:,} × {settings.dimension} ({table:.0%} of all parameters), {settings.hidden} tanh "
        f"units, softmax over {settings.vocabulary:,} words; Adagrad, batches of "
        f"{settings.workers} × {settings.batch}."
    )


def _settings_table(outcome: Outcome) -> str:
    rows = [(name, str(value)) for name, value in outcome.to_json()["settings"].items()]
    return html_table((), [*rows, ("seconds, all", f"{outcome.seconds:.1f}")], (False, True))

"""What an experiment found, as text for a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Final

from switchagg.experiments.base import Cell, Table
from switchagg.experiments.record import Record

_WIDTH: Final = 110


def figure(value: Cell) -> str:
    """A cell of a table: floats with four significant digits, whole numbers with their thousands apart."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "-"
        if value == 0 or 1e-3 <= abs(value) < 1e6:
            digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
            text = f"{value:,.{min(6, digits)}f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
        return f"{value:.2e}"
    return value


def numeric(table: Table, column: int) -> bool:
    """Whether a column holds numbers, which go to the right."""
    return all(isinstance(row[column], int | float | None) for row in table.rows) and bool(table.rows)


def table_text(table: Table) -> str:
    """A table with its title and note."""
    rows = [table.headings, *(tuple(figure(cell) for cell in row) for row in table.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.headings))]
    right = [numeric(table, column) for column in range(len(table.headings))]
    lines = [table.title]
    for row in rows:
        cells = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        )
        lines.append("  " + "  ".join(cells).rstrip())
    if table.note:
        lines += textwrap.wrap(table.note, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def record_text(record: Record) -> str:
    """A record from its name to its verdict."""
    experiment = record.experiment
    lines = [f"{experiment.name}: {experiment.title}"]
    lines += _labelled("claim", experiment.claim) + _labelled("source", experiment.source)
    if record.outcome is None:
        return "\n".join([*lines, *_labelled(record.verdict.upper(), record.reason)])
    for table in record.outcome.tables:
        lines += ["", table_text(table)]
    lines.append("")
    for check in record.outcome.checks:
        lines += _labelled("held" if check.held else "NOT HELD", f"{check.statement}: {check.measured}")
    for note in record.outcome.notes:
        lines += _labelled("note", note)
    others = f"; other programs had {record.others:.0%} of the cores" if record.others >= 0.1 else ""
    lines += _labelled("verdict", f"{record.verdict}, after {record.seconds:.1f} s{others}")
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
    return textwrap.wrap(text, _WIDTH, initial_indent=f"  {label:9} ", subsequent_indent=" " * 12)

"""Tables: rows of cells as text in columns, as HTML and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Self, TypeVar

from switchagg.report.format import figure, plain

Cell = str | int | float | bool | None
Item = TypeVar("Item")
WIDTH: Final = 110


class Markup(str):
    """A cell that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Figures in rows, shown as `format.figure` shows them.

    Attributes:
        note: a sentence below it.

    Raises:
        ValueError: a row has more or fewer cells than there are headings.
    """

    title: str
    headings: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"table {self.title!r}: {len(self.headings)} headings, but a row is {row}")

    @classmethod
    def of(
        cls, title: str, items: Iterable[Item], columns: Mapping[str, Callable[[Item], Cell]], note: str = ""
    ) -> Self:
        """A row of each item; `columns` are headings and the functions of an item that give the cells."""
        return cls(title, tuple(columns), [[cell(each) for cell in columns.values()] for each in items], note)

    def text(self) -> str:
        """Title, columns and note for a terminal."""
        lines = [self.headings, *([figure(cell) for cell in row] for row in self.rows)]
        text = f"{self.title}\n{columns(lines, _numeric(self.rows, len(self.headings)), indent='  ')}"
        if not self.note:
            return text
        note = textwrap.fill(self.note, WIDTH, initial_indent="  ", subsequent_indent="  ")
        return f"{text}\n{note}"

    def html(self) -> str:
        """Title, table and note for a page."""
        right = _numeric(self.rows, len(self.headings))
        note = f"<p><small>{escape(self.note)}</small></p>" if self.note else ""
        return f"<p><b>{escape(self.title)}</b></p>{html_table(self.headings, self.rows, right)}{note}"


def _numeric(rows: Sequence[Sequence[Any]], count: int) -> list[bool]:
    """Tells for each column whether it holds numbers, which go to the right."""
    return [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(count)]


def columns(lines: Sequence[Sequence[str]], right: Sequence[bool], *, indent: str = "") -> str:
    """Lines of cells as text in columns.

    Args:
        lines: all of one length, the headings first.
        right: for each column, whether its cells go to the right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        indent
        + "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def listing(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows in columns for a terminal, numbers to the right; strangers' control characters are escaped."""
    return columns(
        [headings, *([plain(cell) for cell in row] for row in rows)], _numeric(rows, len(headings))
    )


def html_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], right: Sequence[bool]) -> str:
    """A <table> in a frame that scrolls; without headings it has no head. Text is escaped, `Markup` is not.

    Args:
        right: for each column, whether its cells go to the right.
    """
    head = _html_row("th", headings, right) if headings else ""
    body = "".join(_html_row("td", row, right) for row in rows)
    # A key can scroll it only if it can have the focus.
    return f"<div class=frame tabindex=0><table>{head}{body}</table></div>"


def _html_row(tag: str, row: Sequence[Cell], right: Sequence[bool]) -> str:
    texts = [cell if isinstance(cell, Markup) else escape(figure(cell)) for cell in row]
    opened = [f"<{tag} class=n>" if to_right else f"<{tag}>" for to_right in right]
    return f"<tr>{''.join(f'{o}{t}</{tag}>' for o, t in zip(opened, texts, strict=True))}</tr>"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """A table's lines in Markdown; a bar within a cell is escaped."""
    lines = [headings, *([figure(cell) for cell in row] for row in rows)]
    head, *body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return [head, "|" + " --- |" * len(headings), *body]

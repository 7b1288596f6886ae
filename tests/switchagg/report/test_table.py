"""Tables as text, HTML and Markdown."""

from __future__ import annotations

import pytest

from switchagg.report.plots import Series
from switchagg.report.table import Markup, Table, columns, html_table, listing, markdown_table

TABLE = Table("figures", ("word", "number"), [("<one>", 1.0), ("many", 12345.678), ("none", None)], "A note.")


def test_tables_and_series_are_checked() -> None:
    with pytest.raises(ValueError, match="2 headings"):
        Table("t", ("a", "b"), [(1,)])
    with pytest.raises(ValueError, match="1 x for 2 y"):
        Series("s", [1], [1.0, 2.0])


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    lines = columns([("a", "number"), ("long", "1")], (False, True), indent="  ")
    assert lines == "  a     number\n  long       1"


def test_a_listing_puts_numbers_to_the_right_and_escapes_control_characters() -> None:
    assert listing(("job", "slots"), [("a\x1b[1m", 128), ("b", 4)]).splitlines() == [
        "job       slots",
        "a\\x1b[1m    128",
        "b             4",
    ]
    assert listing(("job", "slots"), []) == "job  slots"


def test_text_has_title_figures_and_note() -> None:
    assert TABLE.text().splitlines() == [
        "figures",
        "  word   number",
        "  <one>       1",
        "  many   12,346",
        "  none        -",
        "  A note.",
    ]


def test_html_escapes_text_but_no_markup() -> None:
    shown = TABLE.html()
    assert "<td>&lt;one&gt;</td><td class=n>1</td>" in shown
    assert "<th>word</th><th class=n>number</th>" in shown
    assert "<small>A note.</small>" in shown
    table = html_table((), [(Markup("<b>x</b>"),)], (False,))
    assert table == "<div class=frame tabindex=0><table><tr><td><b>x</b></td></tr></table></div>"


def test_markdown_escapes_bars() -> None:
    lines = ["| a | b |", "| --- | --- |", "| x\\|y | 1,234 |"]
    assert markdown_table(("a", "b"), [("x|y", 1234)]) == lines

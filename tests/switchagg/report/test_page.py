"""The folder of a report, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switchagg.errors import SwitchAggError, UsageError
from switchagg.report.page import card, check_folder, page, section, write


def test_folder_that_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for folder in (file, file / "report"):
        with pytest.raises(UsageError, match="--out"):
            check_folder(folder)
    check_folder(tmp_path / "new" / "report")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(SwitchAggError, match="could not write the report to"):
        write(file / "report", {}, lambda _: {}, lambda _: "")


def test_the_folder_has_page_and_figures(tmp_path: Path) -> None:
    def no_matplotlib(_: Path) -> dict[str, Path]:
        raise ImportError("matplotlib")

    assert write(tmp_path / "a", {"n": 1}, lambda _: {}, str) == (tmp_path / "a" / "index.html", True)
    assert json.loads((tmp_path / "a" / "results.json").read_text()) == {"n": 1}
    assert write(tmp_path / "b", {}, no_matplotlib, str) == (tmp_path / "b" / "index.html", False)
    assert (tmp_path / "b" / "index.html").read_text() == "None"


def test_a_page_needs_nothing_else_and_escapes_text() -> None:
    cards, sections = [card("<1>", "a & b", good=False)], [section("h", "<p>body</p>", name="h")]
    shown = page("t", "<h>", "lead", ["no <plots>"], cards, sections)
    assert "{{" not in shown
    assert "http" not in shown
    assert "<h1>&lt;h&gt;</h1>" in shown
    assert "<p class=hint>no &lt;plots&gt;</p>" in shown
    assert "<div class='card bad'><b>&lt;1&gt;</b><span>a &amp; b</span></div>" in shown
    assert "<section id='h'><h2>h</h2><p>body</p></section>" in shown

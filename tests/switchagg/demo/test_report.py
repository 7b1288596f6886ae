"""The report of a made-up run: what it says, with and without matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from switchagg.demo import messages, report
from switchagg.demo.outcome import (
    CorpusFacts,
    Outcome,
    ReferenceRun,
    TrainingRun,
    combine,
    largest_difference,
    ring_bytes,
)
from switchagg.demo.progress import sparkline
from switchagg.demo.settings import Settings


def make_outcome(lanes: tuple[int, ...] = (32, 8), *, same: bool = True) -> Outcome:
    settings = Settings(workers=2, steps=3, rows=4096, dimension=8, packet_loss=0.01)
    cost = messages.Usage(1000, 1200, 1, 100, 25, {"scan": 0.001, "wire": 0.002})
    dense = messages.Usage(9000, 9000, 0, 100, 100)
    runs = []
    for lane in lanes:
        run = TrainingRun(lane, seconds=2.0, held_out={3: 2.5}, digests={3: {0: "ab" * 32, 1: "ab" * 32}})
        if not same:
            run.digests[3][1] = "cd" * 32
        for step in (1, 2, 3):
            pair = [
                messages.Step(rank, step, 4.0 - step + rank, 0.2, 0.01, 0.02, 0.005, cost) for rank in (0, 1)
            ]
            run.steps.append(combine(pair))
        run.comparisons = [messages.Comparison(rank, cost, dense, equal=True) for rank in (0, 1)]
        runs.append(run)
    outcome = Outcome(
        settings,
        CorpusFacts(20, 5_000_000, 900_000, 30_000, 0.05),
        runs,
        ReferenceRun([3.5, 2.5, 1.5001], {3: 2.5}),
        ReferenceRun([3.5, 2.5, 1.50011], {3: 2.5}),
        sample_text=("def f", "<b>&"),
    )
    outcome.seconds = 12.5
    return outcome


def test_report_is_one_page_with_pictures_and_all_figures(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "report"
    page, has_plots = report.write(make_outcome(), folder)
    assert has_plots
    text = page.read_text()
    assert "{{" not in text
    assert text.count("data:image/png;base64,") == 4
    assert "http" not in text
    assert "&lt;b&gt;&amp;" in text
    assert "1.00e-04" in text
    assert "the two sums were equal in every element" in text
    assert "lost 1.0%" in text
    assert sorted(path.name for path in folder.iterdir()) == [
        *("bytes.png", "density.png", "index.html", "loss.png", "results.json", "time.png")
    ]
    figures = json.loads((folder / "results.json").read_text())
    assert figures["weights_identical"] is True
    assert [run["bits"] for run in figures["runs"]] == [32, 8]
    assert [row["sent"] for row in figures["runs"][0]["traffic"]] == [figures["gradient_bytes"], 9000, 1000]
    assert figures["runs"][0]["steps"][0]["union"] == 0.25


def test_without_matplotlib_the_report_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page, has_plots = report.write(make_outcome(), tmp_path)
    assert not has_plots
    text = page.read_text()
    assert "switchagg[plots]" in text
    assert "data:image/png" not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "results.json"]


def test_one_step_and_one_worker_make_a_report(tmp_path: Path) -> None:
    outcome = make_outcome((16,))
    outcome.settings = Settings(workers=1, steps=1, bits=16, rows=4096, dimension=8, dense_steps=0)
    run = outcome.runs[0]
    del run.steps[1:]
    run.comparisons, run.digests = [], {1: {0: "ab" * 32}}
    outcome.reference, outcome.shuffled = ReferenceRun([3.5]), ReferenceRun([3.5])
    page, _ = report.write(outcome, tmp_path)
    assert "identical" in page.read_text()
    assert report.summary_lines(outcome)


def test_different_weights_are_shouted() -> None:
    outcome = make_outcome(same=False)
    assert not outcome.identical
    assert any("NOT IDENTICAL" in line for line in report.summary_lines(outcome))
    assert "2 different" in report.html(outcome, {})


def test_a_missing_rank_is_not_identical() -> None:
    run = TrainingRun(32, digests={1: {0: "ab"}})
    assert not run.identical(2)
    assert not TrainingRun(32).identical(1)


def test_figures() -> None:
    assert ring_bytes(1000, 4) == 1500
    assert ring_bytes(1000, 1) == 0
    assert largest_difference([1, 2, 3], [1, 2.5]) == 0.5
    assert sparkline([1.0, 2.0, 3.0]) == "▁▅█"
    assert len(sparkline([float(value) for value in range(1000)], 30)) == 30

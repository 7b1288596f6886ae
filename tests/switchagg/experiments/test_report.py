"""Records as text, page, pictures, JSON and Markdown."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.experiments import report
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Record, Runner, Settings, Verdict
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table


def experiment(name: str) -> Experiment:
    def run(_: Runner) -> Outcome:
        raise AssertionError("not to be run")

    return Experiment(name, f"Title of {name}", "That <a> claim.", "Somebody, 2020", run)


def outcome(*held: bool) -> Outcome:
    return Outcome(
        checks=[Check(f"statement {i}", each, f"{i} & so on") for i, each in enumerate(held)],
        tables=[Table("figures", ("word", "number"), [("one", 1.0), ("nothing", None), ("many", 12345.678)])],
        plots=[
            Plot("curve", "A curve", "step", "loss", [Series("a", [1, 2, 3], [3.0, 2.0, 1.0])], log_y=True),
            Plot("bars", "Bars", "rate", "s", kind="bars", lines=[("best", 1.5)],
                 series=[Series("a", ["x", "y"], [1.0, 2.0], low=[0.5, 1], high=[2, 3])]),
        ],
        numbers={"array": np.arange(3), "nan": float("nan"), "scalar": np.float32(0.5)},
        notes=["A note."],
    )  # fmt: skip


RECORDS = [
    Record(experiment("good"), outcome(True, True), 1.5),
    Record(experiment("partly"), outcome(True, False), 2.5, others=0.4),
    Record(experiment("broken"), None, 0.5, "rank 1 was killed by SIGKILL"),
    Record(experiment("absent"), None, 0.0, "scikit-learn is missing", skipped=True),
]


def test_one_statement_that_does_not_hold_decides() -> None:
    assert [each.verdict for each in RECORDS] == [
        Verdict.HELD,
        Verdict.NOT_HELD,
        Verdict.FAILED,
        Verdict.SKIPPED,
    ]


def test_an_outcome_says_something() -> None:
    with pytest.raises(ValueError, match="at least one check"):
        Outcome(checks=[])


def test_text_has_verdict_and_figures() -> None:
    shown = report.record_text(RECORDS[1])
    assert "NOT HELD  statement 1: 1 & so on" in shown
    assert re.search(r"\n +many +12,346\n", shown)
    assert re.search(r"\n +nothing +-\n", shown)
    assert "verdict   not held, after 2.5 s; other programs had 40% of the cores" in shown
    assert "other programs" not in report.record_text(RECORDS[0])
    assert "FAILED    rank 1 was killed by SIGKILL" in report.record_text(RECORDS[2])
    summary = report.summary_text(RECORDS)
    assert [line.split()[0] for line in summary.splitlines()] == ["good", "partly", "broken", "absent"]


def test_report_is_a_folder_that_stands_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    index, drawn = report.write(RECORDS, Settings(seed=5), 4.5, tmp_path / "new")
    assert drawn
    told = json.loads((tmp_path / "new" / "results.json").read_text())
    assert told["seed"] == 5
    assert {name: each["verdict"] for name, each in told["experiments"].items()} == {
        "good": "held", "partly": "not held", "broken": "failed", "absent": "skipped",
    }  # fmt: skip
    assert told["experiments"]["good"]["numbers"] == {"array": [0, 1, 2], "nan": None, "scalar": 0.5}
    shown = index.read_text()
    assert "{{" not in shown
    assert shown.count("data:image/png;base64,") == 4
    assert "That &lt;a&gt; claim." in shown
    assert "rank 1 was killed by SIGKILL" in shown
    assert not re.search(r'(src|href)=["\'](?!data:|#)', shown)
    for name in ("good-curve", "good-bars", "partly-curve", "partly-bars"):
        assert (tmp_path / "new" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_page_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    index, drawn = report.write(RECORDS, Settings(), 1.0, tmp_path)
    assert not drawn
    assert "switchagg[plots]" in index.read_text()
    assert not list(tmp_path.glob("*.png"))


def test_the_short_form_says_so() -> None:
    assert "short form" in report.html(RECORDS, Settings(quick=True), 1.0, {}, {})
    assert "short form" not in report.html(RECORDS, Settings(), 1.0, {}, {})


def test_a_busy_computer_is_named() -> None:
    assert "Other programs had up to 40% of the cores" in report.html(RECORDS, Settings(), 1.0, {}, {})
    assert "Other programs" not in report.html(RECORDS[:1], Settings(), 1.0, {}, {})


def test_markdown_has_every_claim() -> None:
    told = report.to_json(RECORDS, Settings(seed=2), 120.0)
    told["machine"]["cpu"] = "Some | Processor"
    shown = report.markdown(told)
    assert "experiment all --seed 2` found them" in shown
    assert "Some \\| Processor" in shown
    assert "in 2.0 minutes, while other programs had up to 40% of the cores:" in shown
    for each in RECORDS:
        assert f"| [{each.experiment.title}](#{each.experiment.name}) | {each.verdict} |" in shown
    assert "| **not held** | statement 1 | 1 & so on |" in shown
    assert "| many | 12,346 |" in shown
    assert "scikit-learn is missing" in shown
    assert "\n* A note.\n" in shown
    tables = [line for line in shown.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)

"""`switchagg experiment` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from switchagg.cli.main import main
from switchagg.errors import SwitchAggError
from switchagg.experiments import catalogue
from switchagg.experiments.experiment import Experiment, Outcome
from switchagg.experiments.runner import Runner


def test_list_has_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--list"]) == 0
    shown = capsys.readouterr().out
    for each in catalogue.load().values():
        assert each.name in shown
    assert main(["experiment", "--list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(catalogue.load())


def test_every_claim_has_a_source() -> None:
    known = catalogue.load()
    assert "same-bits" in known
    for each in known.values():
        assert each.claim.endswith(".")
        assert len(each.source) > 10


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "which experiment? accepted: all, "),
        (["nonsense"], "there is no experiment nonsense; accepted: all, "),
        (["same-bits", "--seed", "-1"], "--seed -1: a whole number from 0"),
        (["same-bits", "--list"], "--list takes no names"),
        (["same-bits", "--out", "/dev/null"], "--out /dev/null: this is a file"),
    ],
)
def test_mistakes_are_named(line: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", *line]) == 2
    assert said in capsys.readouterr().err


def replace_experiments(monkeypatch: pytest.MonkeyPatch, *experiments: Experiment) -> None:
    monkeypatch.setattr(catalogue, "load", lambda: {each.name: each for each in experiments})


def refuse(_: Runner) -> Outcome:
    raise SwitchAggError("the switch is on fire")


BROKEN = Experiment("broken", "t", "c.", "s", refuse)
ABSENT = Experiment("absent", "t", "c.", "s", refuse, needs=("no_such_module_of_ours",))


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_experiments(monkeypatch, ABSENT)
    assert main(["experiment", "absent", "--out", str(tmp_path / "r")]) == 2
    assert 'is missing: pip install "switchagg[experiments]"' in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_what_breaks_off_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_experiments(monkeypatch, BROKEN, ABSENT)
    assert main(["experiment", "all", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "FAILED    the switch is on fire" in shown
    assert "SKIPPED   no_such_module_of_ours is missing" in shown
    assert (tmp_path / "index.html").exists()


def test_one_experiment_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "same-bits", "--quick", "--json", "--out", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["quick"] is True
    found = told["experiments"]["same-bits"]
    assert found["verdict"] == "held"
    again = sum(row[3] for row in found["tables"][0]["rows"] if row[1] == 5.0)
    assert again > 0  # packets were lost, so the claim was put to the test
    assert json.loads((tmp_path / "results.json").read_text()) == told


def test_a_list_needs_no_package_beyond_ours() -> None:
    code = (
        "import sys; from switchagg.experiments.catalogue import load; load(); "
        "print([name for name in ('sklearn', 'matplotlib', 'torch', 'worker_lib') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

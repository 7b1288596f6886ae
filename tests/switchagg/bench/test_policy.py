"""The policy benchmark: a short run of it, and its figures of made-up times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from switchagg.bench.policy import Layout, Phase, PolicyOutcome, PolicySettings, table
from switchagg.cli.main import main
from switchagg.errors import UsageError


def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    status = main(
        [
            "bench", "policy", "--workers", "2", "--size", "1M", "--density", "1,0.01,1",
            "--layout", "random", "--blocks", "64,1024", "--phase-seconds", "0.4",
            "--deadline", "1", "--json", str(file),
        ]
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert status == 0, shown
    figures: dict[str, Any] = json.loads(file.read_text())
    assert [phase["density"] for phase in figures["phases"]] == [1.0, 0.01, 1.0]
    for phase in figures["phases"]:
        assert phase["exact"]
        assert set(phase["fixed_seconds"]) == {"dense", "sparse 64", "sparse 1024"}
        assert phase["policy_seconds"] > 0
        assert phase["policies"][0][0] == 0  # under some policy from the first call on
        assert min(phase["fixed_cpu_seconds"].values()) > 0
    totals = figures["totals"]["all"]
    assert totals["policy_seconds"] == pytest.approx(sum(p["policy_seconds"] for p in figures["phases"]))
    assert "with the best setting of each phase" in shown


def test_totals() -> None:
    dense_wins, sparse_wins = {"dense": 2.0, "sparse 64": 3.0}, {"dense": 2.0, "sparse 64": 1.0}
    phases = (
        Phase(Layout.RANDOM, 1.0, 10, 2.2, dense_wins, 2.0, dense_wins),
        Phase(Layout.RANDOM, 0.01, 10, 1.1, sparse_wins, 1.0, sparse_wins),
    )
    outcome = PolicyOutcome(phases)
    assert outcome.policy == pytest.approx(3.3)
    assert outcome.best_each == pytest.approx(3.0)
    assert outcome.single == {"dense": 4.0, "sparse 64": 4.0}
    assert outcome.cpu_over_best == pytest.approx(1.0)
    assert outcome.exact
    shown = table(outcome).splitlines()
    assert "200.0*" in shown[1]
    assert "+10%" in shown[1]
    assert "3.3 s as the policy says, 3.0 s with the best setting of each phase (+10.0%)" in shown[-1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"workers": 1}, "workers is 1"),
        ({"size": 10}, "size is 10"),
        ({"densities": (1.5,)}, "density is 1.5"),
        ({"densities": ()}, "one or more"),
        ({"blocks": (0,)}, "block is 0"),
        ({"seconds": 0.0}, "phase-seconds is 0"),
        ({"share": 0.0}, "share is 0"),
        ({"deadline": 0.5}, "deadline is 0.5"),
        ({"transport": "tcp"}, "transport is tcp"),
    ],
)
def test_what_cannot_work(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PolicySettings(**settings)


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "policy", "--density", "1,much"]) == 2
    assert "density is '1,much'" in capsys.readouterr().err
    assert main(["bench", "policy", "--layout", "round"]) == 2
    assert "random, clustered" in capsys.readouterr().err

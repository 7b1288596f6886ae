"""The end-to-end experiment: its short form with real ranks, and its verdicts on figures."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from switchagg.experiments.claims import link_speeds
from switchagg.experiments.claims.link_speeds import COMPRESSORS, METHODS
from switchagg.experiments.runner import RanksResult, Runner, Settings


def test_short_form_trains_to_the_loss_at_every_speed() -> None:
    said: list[str] = []
    outcome = link_speeds.EXPERIMENT.run(Runner(Settings(quick=True, seed=3), said.append))
    table = outcome.tables[0]
    assert [row[0] for row in table.rows] == ["dense, 32 bit", "zero-skip, 8 bit", "top blocks, 5 %, EF"]
    assert table.rows[0][1] > 0  # type: ignore[operator]
    assert table.rows[0][3] == 1.0
    runs = outcome.numbers["runs"]
    for rate, bits in (("1Gbit", 1e9), ("100Mbit", 1e8)):
        dense = runs[rate]["dense, 32 bit"]
        assert dense["losses"][-1][2] < dense["losses"][0][2] - 0.5  # nats: it does learn
        each = 32 * outcome.numbers["parameters"] / bits - 1e-3  # what idle links may make up for
        assert dense["seconds"] >= dense["steps"] * each
        assert (
            dense["seconds"]
            >= dense["compute"] + dense["compress"] + dense["network"] + dense["update"] - 1e-3
        )
        assert runs[rate]["zero-skip, 8 bit"]["wire_sent"] < 0.5 * dense["wire_sent"]
    # The last statement does not depend on how busy the computer is.
    assert outcome.checks[-1].statement.startswith("the links' speed changes no result")
    assert outcome.checks[-1].held
    assert any("links of 100Mbit" in line for line in said)


def figures(seconds: dict[str, dict[str, float | None]]) -> dict[str, RanksResult]:
    """Results as ranks would return them, had each method taken so long."""
    found = {}
    for rate, by_method in seconds.items():
        runs: dict[str, Any] = {
            name: {
                "losses": [(0, 0.0, 6.0), (10, 1.0, 2.0)],
                "reached": None if took is None else (10, took, 2.0),
                "steps": 10,
                "seconds": took or 9.0,
                "compute": 0.1,
                "compress": 0.1,
                "network": 0.1,
                "update": 0.1,
                "wire_sent": 1000,
                "wire_received": 2000,
                "cpu_seconds": 1.0,
                "weights": "same",
            }
            for name, took in by_method.items()
        }
        ranks = [{"runs": copy.deepcopy(runs), "target": 2.5, "parameters": 100} for _ in range(2)]
        found[rate] = RanksResult(ranks, 1.0, [1.0, 1.0], 1.0)
    return found


def judged(found: dict[str, RanksResult]) -> list[bool]:
    runs = {rate: ran.results[0]["runs"] for rate, ran in found.items()}
    rates = {rate: link_speeds.RATES[rate] for rate in found}
    return [check.held for check in link_speeds._outcome(found, runs, rates, 10).checks]


USUAL: dict[str, dict[str, float | None]] = {
    "10Gbit": {"dense, 32 bit": 1.0, "zero-skip, 8 bit": 0.9, **dict.fromkeys(COMPRESSORS, 2.0)},
    "1Gbit": {"dense, 32 bit": 2.0, "zero-skip, 8 bit": 0.9, **dict.fromkeys(COMPRESSORS, 2.0)},
    "100Mbit": {"dense, 32 bit": 20.0, "zero-skip, 8 bit": 2.5, **dict.fromkeys(COMPRESSORS, 3.0)},
}


def test_the_claim_as_it_is_expected() -> None:
    assert judged(figures(USUAL)) == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("rate", "took", "verdicts"),
    [
        ("100Mbit", 30.0, [False, True, False, False, True]),  # no compressor pays where links are slow
        ("10Gbit", 0.5, [True, False, False, True, True]),  # all of them pay where links are fast
        ("1Gbit", None, [True, True, False, False, True]),  # none gets there
    ],
)
def test_what_is_otherwise_is_said(rate: str, took: float | None, verdicts: list[bool]) -> None:
    seconds = copy.deepcopy(USUAL)
    seconds[rate] |= dict.fromkeys(COMPRESSORS, took)
    assert judged(figures(seconds)) == verdicts


def test_unequal_weights_are_said() -> None:
    found = figures(USUAL)
    found["1Gbit"].results[1]["runs"]["dense, 32 bit"]["weights"] = "other"
    assert judged(found) == [True, True, True, False, False]


def test_steps_that_depend_on_the_links_are_said() -> None:
    found = figures(USUAL)
    found["1Gbit"].results[0]["runs"]["dense, 32 bit"]["reached"] = (12, 2.0, 2.0)
    assert judged(found) == [True, True, True, False, False]


def test_every_method_can_be_made() -> None:
    for make in METHODS.values():
        assert callable(make(0))

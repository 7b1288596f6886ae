"""The convex claims in their short form, by real processes; and the data sets that they use."""

from __future__ import annotations

import importlib
import json
import sys

import numpy as np
import pytest

from switchagg.errors import UsageError
from switchagg.experiments.rank import to_builtin
from switchagg.experiments.runner import Runner, Settings

CLAIMS = ("differences", "both", "random_blocks", "adaptive_level")


@pytest.mark.parametrize(
    "name", [CLAIMS[0], *(pytest.param(name, marks=pytest.mark.long) for name in CLAIMS[1:])]
)
def test_short_forms_run_and_workers_agree(name: str) -> None:
    pytest.importorskip("sklearn", reason="the data sets come with scikit-learn")
    said: list[str] = []
    module = importlib.import_module(f"switchagg.experiments.claims.{name}")
    outcome = module.EXPERIMENT.run(Runner(Settings(quick=True, seed=2), said.append))
    (agreed,) = (check for check in outcome.checks if "same to the bit" in check.statement)
    assert agreed.held, agreed.measured
    assert outcome.tables
    assert outcome.plots
    assert said
    assert json.loads(json.dumps(outcome.numbers, default=to_builtin)) is not None
    for plot in outcome.plots:
        for series in plot.series:
            assert np.isfinite(series.y).all()


@pytest.mark.parametrize(
    ("name", "loss", "dim", "samples"),
    [
        ("diabetes", "ridge", 11, 442),
        ("breast_cancer", "logistic", 31, 569),
        ("digits", "logistic", 62, 1797),
    ],
)
def test_data_sets(name: str, loss: str, dim: int, samples: int) -> None:
    pytest.importorskip("sklearn", reason="the data sets come with scikit-learn")
    from switchagg.experiments.data import problem

    p = problem(name, loss=loss, l2=0.1)
    assert (p.samples, p.dim) == (samples, dim)
    assert np.square(p.features).sum(axis=1).mean() == pytest.approx(1)
    assert np.abs(p.features[:, :-1].mean(axis=0)).max() < 1e-12
    wide = problem(name, loss=loss, l2=0.1, pairs=40, standard=False, seed=1)
    assert dim < wide.dim <= dim + 40
    variances = wide.features[:, :-1].var(axis=0)
    assert (np.diff(variances) <= 1e-12).all()
    assert np.array_equal(wide.features, problem(name, loss=loss, pairs=40, standard=False, seed=1).features)


def test_a_shared_minimizer_in_a_data_set() -> None:
    pytest.importorskip("sklearn", reason="the data sets come with scikit-learn")
    from switchagg.experiments.convex import make_task

    given = {"name": "diabetes", "loss": "ridge", "l2": 0.01}
    assert make_task(given, 3, "sorted", shared_minimizer=True).heterogeneity < 1e-12
    spreads = [make_task(given, 3, order).heterogeneity for order in ("shuffled", "half", "sorted")]
    assert spreads == sorted(spreads)
    assert spreads[0] < spreads[2]


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from switchagg.experiments import data

    with pytest.raises(UsageError, match="data set is 'iris'; accepted: diabetes, breast_cancer, digits"):
        data.problem("iris")
    with pytest.raises(UsageError, match="loss is 'hinge'; accepted: 'logistic', 'ridge'"):
        data.problem("digits", loss="hinge")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    data._load.cache_clear()
    with pytest.raises(UsageError, match=r"scikit-learn, which is not installed: pip install"):
        data.problem("digits")

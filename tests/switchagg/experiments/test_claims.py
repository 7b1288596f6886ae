"""Claims' own arithmetic, and that each runs to its end with real processes in its short form."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from switchagg.experiments.claims import (
    count_sketch,
    gadmm,
    one_bit_adam,
    quantized_top_k,
    sparse_break_even,
    sparse_loco,
    swarm,
)
from switchagg.experiments.experiment import Outcome
from switchagg.experiments.runner import Runner, Settings
from tests.seeds import seed_of_this_run


def test_where_the_difference_is_nothing() -> None:
    shares = np.array(sparse_break_even.SHARES)
    for share in (0.1, 0.4, 0.85):
        assert sparse_break_even.crossing(2 * (shares - share)) == pytest.approx(share)
    assert sparse_break_even.crossing(shares - 3) == 1  # sparse stays below
    assert sparse_break_even.crossing(-1 - shares) == 1
    assert sparse_break_even.crossing(shares + 0.1) == 0  # and never is


def test_regret_is_the_time_that_the_choice_loses() -> None:
    shares = np.array(sparse_break_even.SHARES)
    dense, sparse = np.full(shares.size, 0.5), shares
    assert sparse_break_even.regret(sparse, dense, 0.5) == (1.0, shares[0])
    worst, at = sparse_break_even.regret(sparse, dense, 1.0)  # sparse to the end
    assert (worst, at) == (pytest.approx(0.95 / 0.5), 0.95)


def test_a_goal_is_reached_where_no_later_step_is_farther() -> None:
    ranks = [
        [[0, 5.0, 0, 0], [1, 0.5, 8, 100], [2, 0.1, 16, 200], [3, 0.05, 24, 300]],
        [[0, 4.0, 0, 0], [1, 0.9, 8, 100], [2, 2.0, 16, 220], [3, 0.02, 24, 330]],
    ]
    curve = gadmm.together(ranks)
    assert curve == [(0, 5.0, 0, 0), (1, 0.9, 16, 200), (2, 2.0, 32, 420), (3, 0.05, 48, 630)]
    assert gadmm.reached(curve, 1.0) == (3, 48, 630)
    assert gadmm.reached(curve, 3.0) == (1, 16, 200)
    assert gadmm.reached(curve, 0.01) is None


def test_the_perceptron_s_gradient_is_its_loss_s() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    pixels, digits = rng.random((7, 64)), rng.integers(0, 10, 7)
    model = swarm.Perceptron(pixels, digits)
    x = model.start(1)
    assert x.shape == (model.dim,)

    def loss(at: np.ndarray) -> float:
        first, offset, second, last = model.parts(at)
        scores = np.tanh(pixels @ first + offset) @ second + last
        return float((np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(7), digits]).mean())

    slope = model.batch_gradient(x, np.arange(7))
    for _ in range(5):
        way = rng.standard_normal(model.dim)
        rise = (loss(x + 1e-5 * way) - loss(x - 1e-5 * way)) / 2e-5
        assert rise == pytest.approx(float(slope @ way), rel=1e-4)
    assert 0 <= model.error(x, pixels, digits) <= 1


@pytest.mark.long
@pytest.mark.parametrize(
    "claim",
    [sparse_break_even, swarm, gadmm, one_bit_adam, sparse_loco, quantized_top_k, count_sketch],
    ids=lambda m: m.EXPERIMENT.name,
)
def test_short_forms_run(claim: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in claim.EXPERIMENT.needs:
        pytest.importorskip(name)
    if claim in (sparse_break_even, swarm, gadmm, count_sketch):
        monkeypatch.setattr(claim, "WORKERS", 2)
    said: list[str] = []
    outcome = claim.EXPERIMENT.run(Runner(Settings(quick=True), said.append))
    assert isinstance(outcome, Outcome)
    assert said
    if claim is gadmm:  # steps and bits, unlike times, are the same everywhere
        assert [check.held for check in outcome.checks] == [True, False, True, True], outcome.checks
    if claim is sparse_break_even:
        assert all(check.held for check in outcome.checks[:3]), outcome.checks  # bytes, no times
    if claim is count_sketch:
        assert outcome.checks[-1].held, outcome.checks  # the sum through a switch

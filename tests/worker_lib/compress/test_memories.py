"""Error feedback, EF21 and DIANA's differences: what they remember, and that all ranks remember alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import (
    EF21,
    EF21SGDM,
    Compressor,
    Differences,
    Dithering,
    ErrorFeedback,
    IntSGD,
    Marina,
    RandomBlocks,
    Round,
    SharedExponent,
    StochasticRounding,
    Threshold,
    TopBlocks,
    chain,
)

from .table import Array, Table

Maker = Callable[[], Compressor]
REMEMBER: list[Maker] = [
    lambda: ErrorFeedback(TopBlocks(tau=0.1, block=8)),
    lambda: ErrorFeedback(chain(TopBlocks(tau=0.2, block=8), Dithering(levels=4))),
    lambda: EF21(TopBlocks(tau=0.1, block=8)),
    lambda: EF21(chain(TopBlocks(tau=0.2, block=8), Dithering(levels=64))),
    lambda: Differences(Dithering(levels=4, p=2)),
    lambda: Differences(chain(RandomBlocks(tau=0.25, block=8), Dithering(levels=8))),
    lambda: Differences(RandomBlocks(tau=0.25, block=8, independent=True)),
]


def vectors(n: int, d: int = 203, dtype: Any = np.float64) -> list[Array]:
    rng = np.random.default_rng(seed_of_this_run())
    return [rng.standard_normal(d).astype(dtype) for _ in range(n)]


# ---------------------------------------------------------------------- error feedback


def test_what_was_sent_and_what_is_left_are_all_there_was() -> None:
    xs = vectors(3)
    cs = [ErrorFeedback(TopBlocks(tau=0.1, block=8)) for _ in xs]
    table = Table(cs)
    sent = [np.zeros_like(x) for x in xs]
    for t in range(1, 30):
        total, owns = table.round(xs)
        assert np.allclose(total, np.sum(owns, axis=0), atol=1e-12)
        for rank, c in enumerate(cs):
            sent[rank] += owns[rank]
            assert np.allclose(sent[rank] + c.memories()["residual"], t * xs[rank], atol=1e-11)


def test_the_residual_stays_bounded_as_the_contraction_says() -> None:
    # Karimireddy et al.: |e|^2 <= 4 (1 - delta) / delta^2 * max |x|^2.
    rng = np.random.default_rng(seed_of_this_run())
    c = ErrorFeedback(TopBlocks(tau=0.1, block=1))
    delta = TopBlocks(tau=0.1, block=1).delta(100)
    assert delta is not None
    table = Table([c])
    for _ in range(200):
        x = rng.standard_normal(100)
        table.round([x / np.linalg.norm(x)])
        assert float(np.square(c.memories()["residual"]).sum()) <= 4 * (1 - delta) / delta**2


# ---------------------------------------------------------------------- EF21


def test_of_a_fixed_vector_ef21_knows_all_in_the_end() -> None:
    xs = vectors(4)
    cs = [EF21(TopBlocks(tau=0.1, block=8)) for _ in xs]
    table = Table(cs)
    delta = TopBlocks(tau=0.1, block=8).delta(203)
    assert delta is not None
    for t in range(1, 40):
        total, _ = table.round(xs)
        for x, c in zip(xs, cs, strict=True):
            off = float(np.square(x - c.memories()["own"]).sum())
            assert off <= (1 - delta) ** t * float(x @ x) + 1e-20
    assert np.allclose(total, np.sum(xs, axis=0), atol=1e-12)


@pytest.mark.parametrize("inner", [RandomBlocks(tau=0.5), Dithering(levels=1), Threshold(1.0), IntSGD(8)])
def test_ef21_wants_a_contraction(inner: Compressor) -> None:
    with pytest.raises(UsageError, match=r"has no delta in \(0, 1\] on 1000 elements"):
        EF21(inner).prepare(1000, Round(0, 4))


def test_unbiased_ones_with_small_omega_contract() -> None:
    EF21(RandomBlocks(tau=0.75, block=10)).prepare(1000, Round(0, 4))
    EF21(Dithering(levels=100)).prepare(1000, Round(0, 4))


# ---------------------------------------------------------------------- DIANA


def test_of_a_fixed_vector_differences_know_all_in_the_end() -> None:
    # arXiv 1904.05115 with a fixed gradient: E|h - x|^2 <= (1 - alpha)^t |h_0 - x|^2.
    xs = vectors(3)
    inner = Dithering(levels=4, p=2)
    cs = [Differences(Dithering(levels=4, p=2)) for _ in xs]
    omega = inner.omega(203, 3)
    assert omega is not None
    alpha = 1 / (1 + omega)
    assert cs[0].rate(203, 3) == alpha
    table = Table(cs)
    first = sum(float(x @ x) for x in xs)
    rounds = 300
    for _ in range(rounds):
        total, _ = table.round(xs)
    left = sum(float(np.square(x - c.memories()["own"]).sum()) for x, c in zip(xs, cs, strict=True))
    # The largest of three ranks sets the scale, so one rank alone may lag; together they do not. A million is
    # room for chance: the distance varies by its own size each round and shrinks by far more than that.
    assert left <= 1e6 * (1 - alpha) ** rounds * first
    assert np.allclose(total, np.sum(xs, axis=0), atol=1e-2 * math.sqrt(left) + 1e-9)


def test_alpha_over_its_bound_is_refused() -> None:
    inner = RandomBlocks(tau=0.25, block=10)
    Differences(inner, alpha=0.25).prepare(400, Round(0, 3))
    with pytest.raises(
        UsageError, match=r"alpha is 0.26; accepted: at most 1 / \(1 \+ omega\) = 0.25, where omega is 3"
    ):
        Differences(inner, alpha=0.26).prepare(400, Round(0, 3))
    for alpha in (0, -1, 1.5, math.nan):
        with pytest.raises(UsageError, match="alpha is"):
            Differences(inner, alpha=alpha)
    with pytest.raises(UsageError, match=r"alpha is not given, and StochasticRounding.* has no omega"):
        Differences(StochasticRounding(1.0)).prepare(400, Round(0, 3))
    Differences(StochasticRounding(1.0), alpha=0.5).prepare(400, Round(0, 3))


def test_differences_want_an_unbiased_compressor() -> None:
    for inner in (TopBlocks(k=1), RandomBlocks(k=1, scaled=False), ErrorFeedback(SharedExponent())):
        with pytest.raises(UsageError, match="biased; differences need an unbiased"):
            Differences(inner)
    with pytest.raises(UsageError, match="inner is a int"):
        Differences(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- all of them


@pytest.mark.parametrize("make", REMEMBER)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_sum_is_of_what_each_sent_and_the_shared_memory_is_equal(make: Maker, dtype: Any) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    n, d = 4, 203
    cs = [make() for _ in range(n)]
    table = Table(cs)
    tolerance = 1e-4 if dtype == np.float32 else 1e-11
    for _ in range(25):
        xs = [rng.standard_normal(d).astype(dtype) for _ in range(n)]
        total, owns = table.round(xs)
        assert total.dtype == dtype
        assert np.allclose(total, np.sum(owns, axis=0), atol=tolerance)
        memories = [c.memories() for c in cs]
        if "sum" in memories[0]:
            for memory in memories[1:]:
                assert np.array_equal(memory["sum"], memories[0]["sum"])  # to the bit
            assert np.allclose(
                memories[0]["sum"], np.sum([m["own"] for m in memories], axis=0), atol=tolerance
            )


@pytest.mark.parametrize("make", [*REMEMBER, lambda: IntSGD(8), lambda: chain(RandomBlocks(k=2), IntSGD(16))])
def test_a_state_goes_on_where_it_was_left(make: Maker) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [[rng.standard_normal(203) for _ in range(3)] for _ in range(12)]
    table = Table([make() for _ in range(3)])
    whole = [table.round(x)[0] for x in xs]
    table = Table([make() for _ in range(3)])
    for x in xs[:5]:
        table.round(x)
    states = [c.state_dict() for c in table.compressors]
    fresh = Table([make() for _ in range(3)])
    for c, state in zip(fresh.compressors, states, strict=True):
        c.load_state_dict(state)
    for x in xs[5:9]:
        table.round(x)  # the states are copies: what runs on does not change them
    for x, expected in zip(xs[5:], whole[5:], strict=True):
        assert np.array_equal(fresh.round(x)[0], expected)


def test_a_state_of_another_is_refused_and_changes_nothing() -> None:
    ours = ErrorFeedback(TopBlocks(tau=0.5))
    Table([ours]).round([np.ones(640)])
    before = ours.state_dict()
    for other in (EF21(TopBlocks(tau=0.5)), ErrorFeedback(RandomBlocks(tau=0.5))):
        with pytest.raises(UsageError, match="state is of"):
            ours.load_state_dict(other.state_dict())
    with pytest.raises(UsageError, match="memories are"):
        ours.restore_memories({"own": np.ones(3)})
    assert np.array_equal(ours.state_dict()["memories"]["residual"], before["memories"]["residual"])


@pytest.mark.parametrize("make", REMEMBER)
def test_one_nan_does_not_stay(make: Maker) -> None:
    xs = [x.astype(np.float32) for x in vectors(2)]
    cs = [make() for _ in xs]
    table = Table(cs)
    for _ in range(3):
        table.round(xs)
    poisoned = [xs[0].copy(), xs[1]]
    poisoned[0][100] = np.nan
    with np.errstate(invalid="ignore"):
        total, _ = table.round(poisoned)
    assert all(np.isfinite(m).all() for c in cs for m in c.memories().values())
    total, _ = table.round(xs)
    assert np.isfinite(total).all()


@pytest.mark.parametrize("make", REMEMBER)
def test_a_fork_begins_anew(make: Maker) -> None:
    c = make()
    xs = vectors(1)
    first = Table([c]).round(xs)[0]
    fork = c.fork(0)
    assert not fork.memories()
    assert fork.step == 0
    assert np.array_equal(Table([fork]).round(xs)[0], first)


def test_when_other_ranks_take_part_shared_memories_begin_anew_and_residuals_stay() -> None:
    xs = vectors(2)
    feedback = ErrorFeedback(TopBlocks(k=1, block=8))
    differences = Differences(Dithering(levels=4))
    for c in (feedback, differences):
        Table([c, c.fork(1)]).round(xs)
        c.forget_shared()
        assert c.step == 0
    assert feedback.memories()["residual"].any()
    assert not differences.memories()


def test_a_memory_of_another_size_is_refused() -> None:
    c = ErrorFeedback(TopBlocks(tau=0.5))
    c.restore_memories({"residual": np.zeros(10)})
    with pytest.raises(UsageError, match="memory 'residual' has 10 elements, and x has 11"):
        c.prepare(11, Round(0, 2))


# ---------------------------------------------------------------------- EF21-SGDM and MARINA


def test_with_noise_the_average_helps() -> None:
    # The example of arXiv 2305.15155: EF21 with noisy gradients goes away from the minimum of
    # |x|^2 / 2 however small its step is; with momentum it stays.
    rng = np.random.default_rng(seed_of_this_run())

    def distance(make: Callable[[], Compressor]) -> float:
        cs = [make()]
        x = np.zeros(3)
        seen = []
        for step in range(4000):
            k = rng.integers(3)
            noise = 3.0 * np.array([[2.0, 0, 0], [1, 2, 0], [-3, -2, 0]])[k] if step else np.zeros(3)
            total, _ = Table(cs).round([x + noise])
            x = x - 0.003 * total
            seen.append(float(np.linalg.norm(x)))
        return float(np.mean(seen[2000:]))

    plain = distance(lambda: EF21(TopBlocks(k=1, block=1)))
    averaged = distance(lambda: EF21SGDM(TopBlocks(k=1, block=1), eta=0.03))
    print(f"{plain} {averaged}")
    assert averaged < plain


def test_eta_of_one_is_ef21() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    a, b = Table([EF21(TopBlocks(tau=0.2, block=5))]), Table([EF21SGDM(TopBlocks(tau=0.2, block=5), eta=1.0)])
    for _ in range(5):
        x = rng.standard_normal(100)
        assert np.allclose(a.round([x])[0], b.round([x])[0], atol=1e-12)


@pytest.mark.parametrize("workers", [1, 4])
def test_marina_is_its_recursion_and_converges(workers: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    goals = [rng.standard_normal(60) for _ in range(workers)]
    inner = chain(RandomBlocks(tau=0.25, block=5), Dithering(levels=4, bits=8))
    cs = [Marina(inner) for _ in goals]
    p, w = cs[0].chance(60, workers), inner.mean_omega(60, workers)
    assert w is not None
    assert p == pytest.approx(1 / (1 + inner.omega(60, workers)))  # type: ignore[operator]
    gamma = 1 / (1 + math.sqrt((1 - p) / p * w))  # L = 1
    table, x, full = Table(cs), np.zeros(60), 0
    before, last = np.zeros(60), None
    for _ in range(400):
        gradients = [x - goal for goal in goals]
        total, owns = table.round(gradients)
        assert np.allclose(np.sum(owns, axis=0), total, atol=1e-9)
        if table.messages[0].values.dtype == np.float64:
            full += 1
            assert np.allclose(total, np.sum(gradients, axis=0))
        else:
            assert last is not None
            moved = np.sum(gradients, axis=0) - np.sum(last, axis=0)
            assert np.linalg.norm(total - before - moved) <= 20 * np.linalg.norm(moved) + 1e-12
        before, last = total, gradients
        x = x - gamma * total / workers
    assert 1 < full < 250
    assert np.linalg.norm(x - np.mean(goals, axis=0)) < 1e-6


def test_marina_leaves_out_what_is_not_finite() -> None:
    c = Marina(Dithering(levels=4), p=0.5)
    table = Table([c])
    x = np.ones(10)
    table.round([x])
    bad = x.copy()
    bad[3] = np.nan
    assert np.isnan(table.round([bad])[0]).any()
    for _ in range(5):
        assert np.isfinite(table.round([x])[0]).all()


def test_what_the_new_ones_refuse() -> None:
    with pytest.raises(UsageError, match="biased; MARINA needs an unbiased compressor"):
        Marina(TopBlocks(k=1))
    with pytest.raises(UsageError, match="p is 0; accepted: greater than 0, at most 1"):
        Marina(Dithering(levels=1), p=0)
    with pytest.raises(UsageError, match=r"p is not given, and StochasticRounding.* has no omega"):
        Marina(StochasticRounding(1.0)).prepare(10, Round(0, 1))
    with pytest.raises(UsageError, match="eta is 2; accepted"):
        EF21SGDM(TopBlocks(k=1), eta=2)

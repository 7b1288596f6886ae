"""Sparsifiers: which blocks are sent, what that does on average, and what the sum is then."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import (
    Compressor,
    Dithering,
    ErrorFeedback,
    RandomBlocks,
    Round,
    SharedExponent,
    StochasticRounding,
    Threshold,
    TopBlocks,
    chain,
)
from worker_lib.compress.sparsifiers import placed_blocks, take_blocks

from .table import CHANCE, Array, Table, hoeffding, right_on_average

ALONE = Round(0, 1)


def test_blocks_are_taken_and_put_back() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for size, block in itertools.product((1, 5, 63, 64, 65, 1000), (1, 3, 64, 100)):
        x = rng.standard_normal(size)
        blocks = -(-size // block)
        numbers = np.sort(rng.choice(blocks, rng.integers(1, blocks + 1), replace=False))
        y = placed_blocks(take_blocks(x, numbers, block), numbers, block, size)
        there = np.isin(np.arange(size) // block, numbers)
        assert np.array_equal(y, np.where(there, x, 0))


# ---------------------------------------------------------------------- random blocks


def test_with_shared_blocks_compression_commutes_with_the_sum() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [rng.integers(-1000, 1000, 997).astype(np.float64) for _ in range(6)]
    cs: list[Compressor] = [RandomBlocks(k=4, block=64, seed=9) for _ in xs]
    alone = Table([RandomBlocks(k=4, block=64, seed=9)])
    for _ in range(20):
        table = Table(cs)
        total, owns = table.round(xs)
        assert np.array_equal(total, alone.round([np.sum(xs, axis=0)])[0])  # the sum, compressed
        assert np.array_equal(total, np.sum(owns, axis=0))
        assert table.messages[0].values.size == 4 * 64  # no index and no bitmap beside them
        assert isinstance(table.messages[0].blocks, str)
        assert table.messages[0].blocks == "dense"


def test_blocks_of_each_ranks_own_and_their_union() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [rng.standard_normal(64 * 50) for _ in range(3)]
    table = Table([RandomBlocks(k=10, independent=True, scaled=False) for _ in xs])
    total, owns = table.round(xs)
    masks = [np.asarray(m.blocks) for m in table.messages]
    assert [int(mask.sum()) for mask in masks] == [10, 10, 10]
    assert not all(np.array_equal(a, b) for a, b in itertools.combinations(masks, 2))
    for own, x, mask in zip(owns, xs, masks, strict=True):
        assert np.array_equal(own, np.where(np.repeat(mask, 64), x, 0))
    assert np.array_equal(np.abs(total.reshape(50, 64)).any(axis=1), np.any(masks, axis=0))


@pytest.mark.parametrize("independent", [False, True])
def test_unbiased_omega_and_every_block_as_often(independent: bool) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    d, block, k, trials = 58, 6, 3, 4000
    x = rng.standard_normal(d)
    c = RandomBlocks(k=k, block=block, independent=independent, seed=int(rng.integers(1 << 30)))
    draws = np.array([Table([c]).round([x])[0] for _ in range(trials)])
    blocks = math.ceil(d / block)
    assert c.unbiased
    assert c.omega(d) == pytest.approx(blocks / k - 1)
    kept = draws != 0
    assert ((kept[:, ::block]).sum(axis=1) == k).all()
    assert (np.abs(kept.mean(axis=0) - k / blocks) <= hoeffding(1.0, trials, d)).all()
    assert np.allclose(draws[kept], np.broadcast_to(x * blocks / k, draws.shape)[kept])
    off = np.abs(draws.mean(axis=0) - x)
    assert (off <= hoeffding(np.abs(x) * blocks / k, trials, d)).all()
    # |Q(x) - x|^2 has mean omega |x|^2 exactly.
    squares = np.square(draws - x).sum(axis=1)
    span = (blocks / k) ** 2 * float(x @ x)
    assert abs(squares.mean() - c.omega(d) * float(x @ x)) <= hoeffding(span, trials)  # type: ignore[operator]


def test_rounds_differ_ranks_do_not_and_forks_do() -> None:
    def numbers(c: RandomBlocks, rounds: int) -> list[tuple[int, ...]]:
        table = Table([c])
        out = []
        for _ in range(rounds):
            table.round([np.ones(6400)])
            out.append(tuple(table.messages[0].kept[1]))
        return out

    first = numbers(RandomBlocks(k=5, seed=1), 10)
    assert len(set(first)) == 10
    assert numbers(RandomBlocks(k=5, seed=1), 10) == first
    assert numbers(RandomBlocks(k=5, seed=2), 10) != first
    assert numbers(RandomBlocks(k=5, seed=1).fork(7), 10) != first


# ---------------------------------------------------------------------- the largest blocks


def test_the_largest_blocks_and_delta() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for d, block in ((640, 64), (130, 1), (1000, 7)):
        x = rng.standard_normal(d) * np.exp(2 * rng.standard_normal(d))
        blocks = -(-d // block)
        c = TopBlocks(tau=0.2, block=block)
        k = math.ceil(0.2 * blocks)
        y, _ = Table([c]).round([x])
        padded = np.zeros(blocks * block)
        padded[:d] = x
        norms = np.square(padded).reshape(blocks, block).sum(axis=1)
        sent = np.abs(np.pad(y, (0, blocks * block - d))).reshape(blocks, block).any(axis=1)
        assert sent.sum() == k
        assert norms[sent].min() >= norms[~sent].max()
        assert c.delta(d) == pytest.approx(k / blocks)
        assert float(np.square(y - x).sum()) <= (1 - k / blocks) * float(x @ x)
    flat = np.ones(640)  # where all blocks are alike, the bound is reached
    y, _ = Table([TopBlocks(k=2)]).round([flat])
    assert float(np.square(y - flat).sum()) == pytest.approx((1 - 0.2) * 640)


def test_zero_blocks_are_not_sent_even_if_fewer_than_k_are_left() -> None:
    x = np.zeros(640)
    x[70] = 1
    table = Table([TopBlocks(k=5)])
    table.round([x])
    assert np.flatnonzero(table.messages[0].blocks).tolist() == [1]


def test_what_is_not_finite_is_chosen() -> None:
    x = np.ones(640)
    x[500] = np.nan
    for c in (TopBlocks(k=1), Threshold(5.0)):
        table = Table([c])
        with np.errstate(invalid="ignore"):
            table.round([x])
        assert np.flatnonzero(table.messages[0].blocks).tolist() == [7]


def test_threshold() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    x = rng.standard_normal(1003)
    x[64:128] = 0.5
    c = Threshold(2.0, block=16)
    y, _ = Table([c]).round([x])
    there = np.array([np.abs(x[i : i + 16]).max() >= 2.0 for i in range(0, 1003, 16)])
    assert 0 < there.sum() < there.size
    assert np.array_equal(y, np.where(np.repeat(there, 16)[:1003], x, 0))
    assert np.abs(y - x).max() < 2.0
    assert c.delta(1003) is None


# ---------------------------------------------------------------------- chains


def test_a_chain_is_unbiased_and_within_omega() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    d, trials = 40, 1200
    x = rng.standard_normal(d)
    for independent in (False, True):
        c = chain(
            RandomBlocks(k=5, block=4, independent=independent, seed=int(rng.integers(1 << 30))),
            Dithering(levels=2, p=2, norm_bits=5),
        )
        omega = c.omega(d)
        inner = Dithering(levels=2, p=2, norm_bits=5).omega(20)
        assert c.unbiased
        assert omega is not None
        assert inner is not None
        assert omega == pytest.approx(2 * (1 + inner) - 1)
        draws = np.array([Table([c]).round([x])[0] for _ in range(trials)])
        largest = float(np.linalg.norm(x)) * (1 + 2**-5)
        right_on_average(draws, x, 2 * 2 * largest)  # within +-(levels * unit) * 2
        squares = np.square(draws - x).sum(axis=1)
        span = float(squares.max()) * 2
        assert squares.mean() <= omega * float(x @ x) + hoeffding(span, trials)


@pytest.mark.parametrize("n", [2, 8, 64])
@pytest.mark.parametrize("independent", [False, True])
def test_shared_draws_do_not_average_out(independent: bool, n: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    d, k, block, trials = 48, 3, 4, 200
    x = rng.standard_normal(d)
    seed = int(rng.integers(1 << 30))
    cs = [RandomBlocks(k=k, block=block, independent=independent, seed=seed) for _ in range(n)]
    shared = 0.0 if independent else d / block / k - 1
    assert cs[0].shared_omega(d, n) == pytest.approx(shared)
    w = cs[0].mean_omega(d, n)
    assert w == pytest.approx(3 if not independent else 3 / n)
    off = [Table(cs).round([x] * n)[0] / n - x for _ in range(trials)]
    squares = np.square(off).sum(axis=1) / float(x @ x)
    # Equal vectors make it an equality. |mean Q - x| <= (b / k - 1) |x|, whatever the blocks.
    assert abs(squares.mean() - w) <= hoeffding((d / block / k - 1) ** 2, trials)
    both = chain(cs[0], Dithering(levels=2, p=2))
    inner = Dithering(levels=2, p=2).omega(k * block, n)
    assert inner is not None
    expected = inner * 4 / n + 3 if not independent else ((1 + inner) * 4 - 1) / n
    assert both.mean_omega(d, n) == pytest.approx(expected)
    nested = chain(RandomBlocks(k=k, block=block, independent=True), RandomBlocks(tau=0.5, block=block))
    assert nested.shared_omega(d, n) == pytest.approx(1)
    assert nested.mean_omega(d, n) == pytest.approx(1 + 2 * 3 / n)


def test_a_chain_contracts_as_it_says() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    d, trials = 200, 600
    x = rng.standard_normal(d)
    c = chain(TopBlocks(tau=0.25, block=10), Dithering(levels=20, p=2))
    delta = c.delta(d)
    assert delta is not None
    assert 0 < delta < 0.25
    assert not c.unbiased
    left = np.array([float(np.square(Table([c]).round([x])[0] - x).sum()) for _ in range(trials)])
    assert left.mean() <= (1 - delta) * float(x @ x) + hoeffding(float(left.max() - left.min()) * 2, trials)
    assert chain(TopBlocks(tau=0.25, block=10), Dithering(levels=1)).delta(d) is None


def test_a_chain_sends_few_words() -> None:
    xs = [np.random.default_rng(r).standard_normal(64 * 100).astype(np.float32) for r in range(3)]
    table = Table([chain(RandomBlocks(k=10), Dithering(bits=8)) for _ in xs])
    total, owns = table.round(xs)
    assert table.messages[0].values.size == 10 * 64 // 4
    assert np.allclose(total, np.sum(owns, axis=0), atol=1e-5)
    table = Table([chain(TopBlocks(k=10), Dithering(bits=8)) for _ in xs])
    table.round(xs)
    message = table.messages[0]
    assert (message.blocks, message.block_size) == ("sparse", 16)  # a block's words
    assert np.abs(message.values.reshape(100, 16)).any(axis=1).sum() == 10


def test_a_chain_of_two_sparsifiers() -> None:
    x = np.random.default_rng(3).standard_normal(6400)
    c = chain(RandomBlocks(tau=0.5), TopBlocks(tau=0.2), SharedExponent())
    table = Table([c])
    y, owns = table.round([x])
    assert np.array_equal(y, owns[0])
    blocks = np.abs(y.reshape(100, 64)).any(axis=1)
    assert blocks.sum() == 10
    assert np.allclose(y.reshape(100, 64)[blocks], 2 * x.reshape(100, 64)[blocks])


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("kind", [RandomBlocks, TopBlocks])
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "k is None and tau is None; give one of them"),
        ({"k": 1, "tau": 0.5}, "give one of them"),
        ({"k": 0}, "k is 0; accepted: blocks from 1"),
        ({"k": 2.0}, r"k is 2\.0"),
        ({"tau": 0}, "tau is 0; accepted: greater than 0, at most 1"),
        ({"tau": 1.01}, r"tau is 1\.01; accepted: greater than 0, at most 1"),
        ({"tau": math.nan}, "tau is nan"),
        ({"k": 1, "block": 0}, "block is 0; accepted: 1 to 65536"),
        ({"k": 1, "block": 65537}, "block is 65537"),
    ],
)
def test_wrong_parameters(kind: Any, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        kind(**arguments)


@pytest.mark.parametrize("c", [RandomBlocks(k=11), TopBlocks(k=11)])
def test_k_over_the_blocks_is_refused_with_the_bound(c: Compressor) -> None:
    c.prepare(11 * 64, ALONE)
    with pytest.raises(UsageError, match="k is 11; accepted: at most 10, the blocks of 64 in 640 elements"):
        c.prepare(640, ALONE)


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "x"])
def test_wrong_thresholds(value: Any) -> None:
    with pytest.raises(UsageError, match="value is"):
        Threshold(value)


def test_chains_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="chain of nothing"):
        chain()
    with pytest.raises(UsageError, match="Dithering comes before TopBlocks; accepted: sparsifiers"):
        chain(Dithering(levels=1), TopBlocks(k=1))
    with pytest.raises(UsageError, match="remembers every element but would get other blocks each round"):
        chain(TopBlocks(k=1), ErrorFeedback(Dithering(levels=1)))
    with pytest.raises(UsageError, match="inner is a str"):
        TopBlocks(k=1).through("dithering")  # type: ignore[arg-type]
    c = chain(TopBlocks(tau=0.5), StochasticRounding(1.0, bits=4))
    with pytest.raises(UsageError, match="8 workers cannot share"):
        c.prepare(640, Round(0, 8))


def test_the_bounds_of_these_tests_find_a_bias() -> None:
    # A check that cannot fail is a defect: rounding down, and forgetting the factor, must be found.
    rng = np.random.default_rng(1)
    x = rng.uniform(0.5, 3, 60)
    down = np.array([np.floor(x / 0.5) * 0.5 for _ in range(3000)])
    with pytest.raises(AssertionError):
        right_on_average(down, x, 0.5)
    kept = rng.random((4000, 60)) < 0.3
    unscaled: Array = np.where(kept, x, 0)
    with pytest.raises(AssertionError):
        right_on_average(unscaled, x, x / 0.3)
    assert CHANCE < 1e-6

"""Rotation and clipping: native as the reference, errors within their bounds, heavy tails or not."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from tests.reference import lanes as reference_lanes
from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import Dithering, ErrorFeedback, Rotation, Round
from worker_lib.compress.rotation import best_clip, rotate, unrotate

from .table import Array, Table, hoeffding


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("block", [32, 64, 1024, 4096])
def test_native_is_the_reference_to_the_bit(block: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for size in (1, block - 1, block, 3 * block + 17):
        x = (rng.standard_normal(size) * np.exp(3 * rng.standard_normal(size))).astype(dtype)
        first, second = (int(k) for k in rng.integers(0, 1 << 32, 2))
        y = rotate(x, block, (first, second))
        assert y.tobytes() == reference_lanes.rotate(x, block, (first, second)).tobytes()
        back = unrotate(y, size, block, (first, second))
        assert back.tobytes() == reference_lanes.unrotate(y, size, block, (first, second)).tobytes()
        # Each stage is a rotation, whose sums and products are each wrong by half of eps at most.
        bound = (math.log2(block) + 2) * np.finfo(dtype).eps * np.linalg.norm(x)
        assert np.linalg.norm(back - x) <= bound
        assert np.linalg.norm(y.astype(float)) == pytest.approx(np.linalg.norm(x.astype(float)), rel=1e-5)


def test_it_is_the_hadamard_matrix() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    h = np.ones((1, 1))
    while h.shape[0] < 64:
        h = np.block([[h, h], [h, -h]])
    key = (7, 8)
    signs = np.where(reference_lanes.drawn(np.arange(64, dtype=np.uint32), key) >> 31, -1.0, 1.0)
    x = rng.standard_normal(64)
    assert np.allclose(rotate(x, 64, key), h @ (signs * x) / 8, atol=1e-12)


@pytest.mark.parametrize("workers", [1, 7, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_sum_is_that_of_the_addends(workers: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [rng.standard_normal(5003).astype(dtype) for _ in range(workers)]
    for x in xs:
        x[1024:3072] = 0
    table = Table([Rotation(bits=4 if workers < 8 else 8, seed=5) for _ in xs])
    for _ in range(3):
        total, owns = table.round(xs)
        assert np.allclose(total, np.sum(owns, axis=0, dtype=np.float64), atol=1e-4 * workers)
        assert not total[1024:3072].any()  # and their words are zeros, which are not sent
        assert not table.messages[0].values[128 : 3 * 128].any() or workers >= 8


def heavy(rng: np.random.Generator, workers: int, size: int) -> list[Array]:
    """A gradient whose few largest elements have most of its norm, and each worker's noise on it.

    Magnitudes are the log-normal distribution's quantiles. In a sample one element may have all of the norm.
    """
    quantiles = [NormalDist().inv_cdf((i + 0.5) / size) for i in range(size)]
    common = np.exp(1.5 * rng.permutation(quantiles)) * rng.choice([-1.0, 1.0], size)
    return [(common * (1 + 0.3 * rng.standard_normal(size))).astype(np.float32) for _ in range(workers)]


@pytest.mark.parametrize(("workers", "bits"), [(16, 8), (7, 4)])
def test_heavy_tails_cost_it_little(workers: int, bits: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = heavy(rng, workers, 1 << 15)
    exact = np.sum(xs, axis=0, dtype=np.float64)

    def nmse(compressor: Any) -> float:
        total, _ = Table([compressor() for _ in xs]).round(xs)
        return float(np.square(total - exact).sum() / np.square(exact).sum())

    rotated = nmse(lambda: Rotation(bits=bits))
    plain = nmse(lambda: Dithering(bits=bits, block=1024))
    print(f"NMSE {rotated:.4f} against {plain:.4f}")
    assert rotated < plain / 4


def test_the_error_is_within_the_bound_whatever_x_is() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    spike = np.zeros(256)
    spike[3] = 1.0
    for x in (spike, rng.standard_normal(256), np.ones(256)):
        for bits in (4, 8):
            c = Rotation(bits=bits, block=64, norm_bits=7, seed=int(rng.integers(1 << 30)))
            delta = c.delta(x.size)
            assert delta is not None
            table = Table([c])
            trials = 300
            squares = [np.square(table.round([x])[0] - x).sum() for _ in range(trials)]
            norm = float(x @ x)
            assert np.mean(squares) <= (1 - delta) * norm + hoeffding(float(max(squares)) + norm, trials)


def test_the_clip_point_is_the_best() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    z = rng.standard_normal(400_000)
    for levels, workers in ((7, 16), (1, 7), (63, 2)):
        t = best_clip(levels, workers)

        def error(at: float, levels: int = levels, workers: int = workers) -> float:
            scaled = np.clip(z, -at, at) / at * levels
            part = scaled - np.floor(scaled)
            rounding = float((part * (1 - part)).mean()) * (at / levels) ** 2 / workers
            return rounding + float(np.square(np.maximum(np.abs(z) - at, 0)).mean())

        # Of coarse levels the variance is less than the formula's, so only near it.
        assert error(t) < 1.25 * min(error(t * f) for f in (0.7, 0.85, 1.2, 1.5))
    assert best_clip(7, 16) < best_clip(15, 16) < best_clip(63, 16)


def test_what_is_not_finite_stays_in_its_block() -> None:
    xs = [np.ones(4096, np.float32) for _ in range(3)]
    xs[1][1030] = np.nan
    xs[2][2050] = np.inf
    table = Table([ErrorFeedback(Rotation(bits=8)) for _ in xs])
    total, _ = table.round(xs)
    assert np.isnan(total[1024:3072]).all()
    assert np.isfinite(total[:1024]).all()
    assert np.isfinite(total[3072:]).all()
    total, _ = table.round([np.ones(4096, np.float32)] * 3)
    assert np.isfinite(total).all()


def test_with_error_feedback_nothing_is_lost() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = heavy(rng, 4, 4096)
    table = Table([ErrorFeedback(Rotation(bits=8, clip=1.5)) for _ in xs])  # clips one element in eight
    rounds, total = 60, np.zeros(4096)
    for _ in range(rounds):
        total += table.round(xs)[0]
    exact = np.sum(xs, axis=0, dtype=np.float64)
    assert np.linalg.norm(total / rounds - exact) < 0.1 * np.linalg.norm(exact)


def test_draws_are_shared_and_differ_from_round_to_round() -> None:
    a, b = Rotation(seed=3), Rotation(seed=3)
    x = np.random.default_rng(1).standard_normal(2048)
    table = Table([a, b])
    table.round([x, x])
    first = table.messages[0].kept[1]
    assert first == table.messages[1].kept[1]
    table.round([x, x])
    assert table.messages[0].kept[1] != first
    assert a.fork(1)._signs() != Rotation(seed=3)._signs()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bits": 6}, "bits is 6; accepted: 2, 4, 8, 16"),
        ({"bits": True}, "bits is True"),
        ({"block": 48}, "block is 48; accepted: a power of two from 32 to 2"),
        ({"block": 16}, "block is 16"),
        ({"clip": 0}, "clip is 0; accepted: deviations"),
        ({"clip": math.inf}, "clip is inf"),
        ({"norm_bits": 8}, "norm_bits is 8; accepted: 0 to 7"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Rotation(**arguments)


def test_lanes_of_four_bits_serve_seven_workers() -> None:
    Rotation(bits=4).prepare(100, Round(0, 7))
    with pytest.raises(UsageError, match="8 workers cannot share lanes so narrow; needed: at least 5"):
        Rotation(bits=4).prepare(100, Round(0, 8))

"""The hand-written gradient against finite differences, and the parts of the training step."""

from __future__ import annotations

import numpy as np
import pytest

from switchagg.demo import model
from switchagg.demo.settings import Settings

SMALL = Settings(workers=2, rows=40, dimension=6, context=3, hidden=7, vocabulary=11, batch=9, seed=5)


def make_batch(settings: Settings = SMALL, count: int = 18) -> tuple[np.ndarray, model.Batch]:
    tokens = np.random.default_rng(3).integers(0, 30, 200).astype(np.int32)
    return tokens, model.examples(tokens, np.arange(settings.context, settings.context + count), settings)


@pytest.mark.parametrize("tensor", ["embedding", "hidden", "hidden_bias", "output", "output_bias"])
def test_gradient_matches_finite_differences(tensor: str) -> None:
    # In float64, so that the difference is exact enough to compare eight digits.
    flat = model.initial_parameters(SMALL).astype(np.float64)
    flat += np.random.default_rng(1).normal(0, 0.3, flat.shape)
    _, batch = make_batch()
    parameters = model.views(flat, SMALL)  # type: ignore[arg-type]
    gradient = model.views(np.zeros_like(flat), SMALL)
    value = model.loss_and_gradient(parameters, batch, gradient)
    assert value == pytest.approx(model.loss(parameters, batch), rel=1e-12)
    weights, derivative = getattr(parameters, tensor).reshape(-1), getattr(gradient, tensor).reshape(-1)
    for index in range(0, len(weights), max(1, len(weights) // 60)):
        kept = weights[index]
        weights[index] = kept + 1e-5
        above = model.loss(parameters, batch)
        weights[index] = kept - 1e-5
        below = model.loss(parameters, batch)
        weights[index] = kept
        assert derivative[index] == pytest.approx((above - below) / 2e-5, rel=1e-6, abs=1e-9)


def test_gradient_touches_only_the_rows_of_the_batch() -> None:
    flat = model.initial_parameters(SMALL)
    _, batch = make_batch(count=2)
    buffer = np.zeros_like(flat)
    gradient = model.views(buffer, SMALL)
    model.loss_and_gradient(model.views(flat, SMALL), batch, gradient)
    assert np.array_equal(model.touched_rows(gradient.embedding), np.unique(batch.rows))
    share = (len(np.unique(batch.rows)) * 6 + gradient.dense.size) / buffer.size
    assert model.touched_share(batch, SMALL) == pytest.approx(share)


def test_views_cover_the_flat_vector_once() -> None:
    flat = np.arange(model.parameter_count(SMALL), dtype=np.float32)
    tensors = model.views(flat, SMALL)
    parts = [tensors.embedding, tensors.hidden, tensors.hidden_bias, tensors.output, tensors.output_bias]
    assert np.array_equal(np.concatenate([part.reshape(-1) for part in parts]), flat)
    assert np.array_equal(tensors.dense, flat[tensors.embedding.size :])
    assert all(np.shares_memory(part, flat) for part in parts)


def test_touched_rows_finds_the_smallest_subnormal_and_odd_widths() -> None:
    for width in (5, 6):
        table = np.zeros((10, width), dtype=np.float32)
        table[3, width - 1] = np.float32(1e-45)
        table[8, 0] = -1
        assert model.touched_rows(table).tolist() == [3, 8]


def test_rows_stay_in_their_halves_and_targets_in_the_vocabulary() -> None:
    tokens = np.random.default_rng(0).integers(0, 2**31 - 1, 100).astype(np.int32)
    tokens[:50] %= 15
    batch = model.examples(tokens, np.arange(3, 100), SMALL)
    words, pairs = batch.rows[:, :3], batch.rows[:, 3:]
    assert words.min() >= 0
    assert words.max() < 20
    assert pairs.min() >= 20
    assert pairs.max() < 40
    assert batch.targets.max() == SMALL.vocabulary - 1


def test_adagrad_skips_untouched_rows_and_clears_the_gradient() -> None:
    flat = model.initial_parameters(SMALL)
    kept = flat.copy()
    buffer = np.zeros_like(flat)
    gradient = model.views(buffer, SMALL)
    gradient.embedding[7] = 0.5
    gradient.output_bias[:] = -0.25
    model.Adagrad(SMALL).step(model.views(flat, SMALL), gradient)
    moved = model.views(flat - kept, SMALL)
    assert model.touched_rows(moved.embedding).tolist() == [7]
    expected = -SMALL.learning_rate * 0.5 / np.sqrt(0.25 + model.ADAGRAD_START)
    assert moved.embedding[7] == pytest.approx(expected, rel=1e-5)
    assert not gradient.embedding.any()


def test_probabilities_sum_to_one_and_follow_the_loss() -> None:
    _, batch = make_batch()
    parameters = model.views(model.initial_parameters(SMALL), SMALL)
    chances = model.probabilities(parameters, batch)
    assert chances.sum(axis=1) == pytest.approx(1.0)
    picked = chances[np.arange(len(batch.targets)), batch.targets]
    assert -np.log(picked).mean() == pytest.approx(model.loss(parameters, batch), rel=1e-5)

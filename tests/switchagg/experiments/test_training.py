"""Training with all workers in one process is what a session's classes do; what is counted as sent."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from switchagg.experiments.claims import one_bit_adam, sparse_loco
from switchagg.experiments.claims.count_sketch import CLIENTS, EACH, MOMENTUM, Clients, CountSketch, FetchSGD
from switchagg.experiments.claims.race import Dense
from switchagg.experiments.claims.training import EVERY, WORKERS, Adam, Sums, tuned
from switchagg.experiments.lockstep import Lockstep
from tests.seeds import seed_of_this_run
from worker_lib.adam import CompressedAdam, CompressedLamb
from worker_lib.compress import Dithering, SharedExponent, Signs
from worker_lib.outer import OuterSteps

pytest.importorskip("sklearn", reason="the dense model's data come with scikit-learn")


class Done:
    """Work that is done."""

    def wait(self) -> None:
        pass


class Alone:
    """A session of one rank whose mean is what it is given."""

    def broadcast(self, x: Any, root: int) -> None:
        pass

    def allreduce(self, x: Any, **_: Any) -> Any:
        return x

    def allreduce_async(self, *_: Any, **__: Any) -> Any:
        return Done()


@pytest.mark.parametrize(("optimizer", "library"), [("Adam", CompressedAdam), ("LAMB", CompressedLamb)])
def test_two_phases_are_those_of_the_library(optimizer: str, library: type[CompressedAdam]) -> None:
    task, seed, steps = Dense(), seed_of_this_run(), 2 * EVERY
    curve, bits = one_bit_adam.train(task, 0.002, seed, optimizer, None, 0.5, steps)
    assert bits == 32 * task.dim
    x = task.start(seed)
    ends = np.cumsum([int(np.prod(shape)) for shape in task.shapes])[:-1]
    adam = library(Alone(), np.split(x, ends), rate=0.002, warm_up=EVERY, compressor=SharedExponent())  # type: ignore[arg-type]
    for step in range(steps):
        gradients = [task.gradient(x, seed, step, rank) for rank in range(WORKERS)]
        adam.step(np.split(np.mean(gradients, axis=0, dtype=np.float32), ends))
        if (step + 1) % EVERY == 0:
            assert task.loss(x) == pytest.approx(dict(curve)[step + 1], rel=1e-3)


def test_outer_steps_are_those_of_the_library() -> None:
    """With one worker's batches at all workers, so that the mean is each one's own."""
    task, seed, steps = Dense(), seed_of_this_run(), 2 * sparse_loco.EVERY
    gradient = task.gradient
    task.gradient = lambda x, seed, step, _: gradient(x, seed, step, 0)  # type: ignore[method-assign]
    curve, _ = sparse_loco.train(task, 0.002, seed, sparse_loco.EVERY, (0.7, 0.9), None, steps)
    x = task.start(seed)
    outer = OuterSteps(Alone(), [x], every=sparse_loco.EVERY, rate=0.7, momentum=0.9)  # type: ignore[arg-type]
    inner = Adam(x)
    for step in range(1, steps + 1):
        inner.step(x, gradient(x, seed, step, 0), 0.002)
        outer.step()
    assert task.loss(x) == pytest.approx(curve[-1][1], rel=1e-3)


def test_what_is_sent_is_the_union() -> None:
    xs = [np.zeros(4096, np.float32) for _ in range(WORKERS)]
    for rank, x in enumerate(xs):
        x[1024 * rank : 1024 * rank + 8] = 1 + rank
    workers = Lockstep(lambda: Dithering(levels=1, block=1024), WORKERS)
    workers.mean(xs)
    norms = 8 * 32 * 4  # 2^3 words for each of four blocks
    assert workers.sent == norms + WORKERS * 32  # a word holds eight lanes of four bits
    assert workers.bits == norms + 4 * 4096
    sums = Sums(partial(Signs, block=1024), [(4096,)])
    magnitudes = np.arange(1, 5) * 8 / 1024 / WORKERS
    assert np.allclose(sums.mean(xs).reshape(WORKERS, 1024), magnitudes[:, None])  # 0 counts as positive
    assert sums.bits == 4 * 32 + 4096 // 10 * 32 + 32  # ten lanes of three bits a word


def test_the_best_rate_is_taken_and_other_seeds_are_shown() -> None:
    asked: list[tuple[float, int]] = []

    def run(_: Any, rate: float, seed: int) -> tuple[list[tuple[int, float]], float]:
        asked.append((rate, seed))
        end = np.nan if rate > 2 else abs(rate - 1) + seed / 1000
        return [(0, 3.0), (10, 1.5), (20, end)], 7.0

    found = tuned(run, (0.5, 1.0, 4.0), 2, 3, None)
    assert found.rate == 1.0
    assert [seed for rate, seed in asked if rate == 1.0] == [1002, 2, 3, 4]
    assert found.loss == pytest.approx(0.003)
    assert found.steps_to(0.0035) == [20, 20, None]
    assert found.series("x").y == pytest.approx([3.0, 1.5, 0.003])


def test_sketches_add_up_and_tell_the_largest() -> None:
    rng = np.random.default_rng(0)  # an element with two buckets of the largest looks like one of them
    x, y = (rng.integers(-9, 10, 2000).astype(np.float32) for _ in range(2))
    sketch = CountSketch(2000, 3000, 1)
    assert np.array_equal(sketch.of(x) + sketch.of(y), sketch.of(x + y))
    few = np.zeros(2000, np.float32)
    places = rng.choice(2000, 5, replace=False)
    few[places] = 1000 * (1 + np.arange(5))
    found = sketch.estimate(sketch.of(few + 0.01 * x))
    assert set(np.argsort(-np.abs(found))[:5]) == set(places)
    assert np.allclose(found[places], few[places], atol=10)


def test_fetch_sgd_moves_the_largest_and_forgets_them() -> None:
    sketch = CountSketch(100, 50_000, 2)  # hardly a collision
    server, x = FetchSGD(sketch, 10), np.zeros(100, np.float32)
    gradient = np.random.default_rng(seed_of_this_run()).standard_normal(100).astype(np.float32)
    momentum, error, expected = (np.zeros(100) for _ in range(3))
    for _ in range(5):
        server.step(x, sketch.of(gradient), 0.1)
        momentum = MOMENTUM * momentum + gradient
        error += 0.1 * momentum
        moved = np.argsort(-np.abs(error))[:10]
        expected[moved] -= error[moved]
        momentum[moved] = error[moved] = 0
    assert np.allclose(x, expected, atol=1e-5)
    assert np.count_nonzero(x) > 10


def test_clients_have_one_digit_and_one_gradient_each() -> None:
    task, seed = Clients(), seed_of_this_run()
    members = task.members(seed, 3)
    assert members.shape == (CLIENTS, EACH)
    digits = task._train[1]
    assert sum(len(set(digits[each])) == 1 for each in task._clients) >= len(task._clients) - 9
    x = task.start(seed)
    each = task.gradient_of(x, members)
    assert np.array_equal(each[4], task.gradient_of(x, members[4]))
    assert np.allclose(each.mean(axis=0), task.gradient_of(x, members.reshape(-1)), atol=1e-6)

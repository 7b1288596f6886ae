"""SwarmSGD: what a pair makes of its sum, what averaging keeps, and that it all converges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.algorithms import swarm
from switchagg.algorithms.base import Array, Log
from switchagg.algorithms.problems import RidgeRegression
from switchagg.algorithms.swarm import Meetings, PairCodec
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from tests.switchagg.algorithms.shares import shares
from tests.worker_lib.harness import together
from worker_lib import Session

# ---------------------------------------------------------------------- a pair's messages


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_both_read_the_same_difference_or_both_know_that_they_cannot(bits: int, size: int) -> None:
    rng = np.random.default_rng((seed_of_this_run(), bits, size))
    codec = PairCodec(size, bits, 0.01)
    read = missed = 0
    for _ in range(300):
        there = 10 ** rng.uniform(-1, 1)  # of the range
        middle = rng.standard_normal(size) * 100
        apart = rng.uniform(-1, 1, size) * there * codec.reach * codec.unit / 2
        a, b = codec.encode(middle - apart, rng), codec.encode(middle + apart, rng)
        total = a[1] + b[1]
        up = codec.difference(a[0], total)
        down = codec.difference(b[0], total)
        true = b[0] - a[0]
        if np.abs(true).max() <= codec.reach:
            assert up is not None
            assert down is not None
            assert np.array_equal(up, true)
            assert np.array_equal(down, -true)
            read += 1
        elif np.abs(true).max() > codec.reach + 1:
            assert up is None
            assert down is None
            missed += 1
    assert min(read, missed) > 30


def test_half_the_range_is_read_alike() -> None:
    codec = PairCodec(1, 4, 1.0)
    rng = np.random.default_rng(seed_of_this_run())
    low, high = codec.encode(np.array([0.0]), rng), codec.encode(np.array([8.0]), rng)
    first = codec.difference(low[0], low[1] + high[1])
    second = codec.difference(high[0], low[1] + high[1])
    assert (first is None) == (second is None)


def test_places_are_right_on_average_and_within_a_unit() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    codec, draws = PairCodec(50, 8, 0.1), 4000
    y = rng.standard_normal(50)
    total = np.zeros(50)
    for _ in range(draws):
        error = codec.encode(y, rng)[0] * codec.unit - y
        assert np.abs(error).max() < codec.unit
        total += error
    assert np.abs(total / draws).max() <= 6 * codec.unit / 2 / np.sqrt(draws)  # six standard deviations


# ---------------------------------------------------------------------- averaging


@pytest.mark.parametrize(("workers", "bits"), [(2, 8), (3, 8), (4, 4), (4, None)])
def test_averaging_keeps_the_mean_and_brings_models_together(
    host: EmbeddedController, workers: int, bits: int | None
) -> None:
    seed = seed_of_this_run()
    start = np.random.default_rng(seed).standard_normal((workers, 33))
    still = RidgeRegression(np.zeros((1, 33)), np.zeros(1))  # no slope anywhere

    def call(session: Session) -> tuple[Array, Array, int]:
        log, met = Log(every=1, optimum=start.mean(axis=0)), Meetings()
        mean = swarm.run(
            still, session, steps=16, rate=0.1, bits=bits, spread=8.0, seed=seed, log=log,
            x0=start[session.rank], meetings=met,
        )  # fmt: skip
        assert met.misses == 0
        return mean, np.array([r.distance for r in log.records]), met.pairs

    results = together(host.url, workers, call)
    for mean, distances, pairs in results:
        assert mean.tobytes() == results[0][0].tobytes()
        assert np.abs(mean - start.mean(axis=0)).max() < 1e-12
        grid = 0 if bits is None else 8.0 / (2 ** (bits - 1) - 1)
        assert distances[-1] <= 0.05 * distances[0] + 2 * grid * np.sqrt(33)
        assert pairs == 16 or workers == 3
    assert sum(pairs for _, _, pairs in results) == 16 * (workers // 2 * 2)


def test_models_too_far_apart_are_averaged_in_full(host: EmbeddedController) -> None:
    still = RidgeRegression(np.zeros((1, 20)), np.zeros(1))

    def call(session: Session) -> tuple[Array, int]:
        met = Meetings()
        mean = swarm.run(
            still, session, steps=3, rate=0.1, spread=0.5, x0=np.full(20, 1.0 * session.rank), meetings=met
        )
        return mean, met.misses

    for mean, misses in together(host.url, 2, call):
        assert np.array_equal(mean, np.full(20, 0.5))
        assert misses == 1  # from then on they are together


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("bits", [8, None])
def test_it_comes_near_the_optimum(host: EmbeddedController, bits: int | None, non_blocking: bool) -> None:
    seed, workers = seed_of_this_run(), 4
    problems, best = shares(seed, workers, loss="ridge")
    rate = 0.2 / max(p.smoothness for p in problems)

    def call(session: Session) -> tuple[Array, int, int]:
        log, met = Log(every=50), Meetings()
        x = swarm.run(
            problems[session.rank], session, steps=150, rate=rate, local_steps=2, bits=bits, seed=seed,
            non_blocking=non_blocking, log=log, meetings=met,
        )  # fmt: skip
        return x, log.records[-1].payload_bits, met.misses

    results = together(host.url, workers, call)
    for x, payload, misses in results:
        assert x.tobytes() == results[0][0].tobytes()
        # Each f_i pulls its worker its own way; pairs that average now and then agree only so far.
        assert np.linalg.norm(x - best) < 0.15 * np.linalg.norm(best)
        each = 64 * best.size if bits is None else bits * best.size + 32  # a check word
        assert payload == 150 * each + misses * 64 * best.size
        assert misses <= 15


def test_alone_it_is_gradient_descent() -> None:
    problems, best = shares(seed_of_this_run(), 1, loss="ridge")
    with worker_lib.connect(rank=0, world_size=1) as session:
        x = swarm.run(
            problems[0], session, steps=400, rate=1 / problems[0].smoothness, local_steps=5, batch=None
        )
    assert np.linalg.norm(x - best) < 1e-6 * np.linalg.norm(best)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"local_steps": 0}, "local_steps is 0; accepted: a whole number, 1 and up"),
        ({"rate": 0.0}, r"rate is 0\.0; accepted: greater than 0"),
        ({"batch": 121}, "batch is 121; accepted: 1 to 120 samples"),
        ({"bits": 6}, "bits is 6; accepted: 4, 8, 16, or None"),
        ({"spread": -1.0}, r"spread is -1\.0; accepted: greater than 0"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], said: str) -> None:
    problems, _ = shares(1, 1)
    with worker_lib.connect(rank=0, world_size=1) as session, pytest.raises(UsageError, match=said):
        swarm.run(problems[0], session, **{"steps": 1, "rate": 0.1, **arguments})

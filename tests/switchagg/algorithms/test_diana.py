"""DIANA and VR-DIANA: differences to a memory, through a real switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from switchagg.algorithms import diana, vr_diana
from switchagg.algorithms.base import Array
from switchagg.algorithms.diana import CompressedAverage, Diana, sent_bits
from switchagg.algorithms.problems import LogisticRegression, RidgeRegression
from switchagg.algorithms.vr_diana import Components, VrDiana
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from tests.worker_lib.compress.table import Table
from tests.worker_lib.harness import together
from worker_lib import Session
from worker_lib.compress import Compressor, Differences, Dithering, Message, RandomBlocks, TopBlocks, chain

from .problems_for_tests import WORKERS, distances, shares, solve


def coarse(seed: int) -> Dithering:
    return Dithering(levels=2, norm_bits=0, seed=seed)


def test_quantized_gradients_stall_and_differences_do_not(host: EmbeddedController) -> None:
    seed = seed_of_this_run()
    problems, x = shares(seed)
    stalled = distances(
        solve(host, diana.run, problems, x, steps=400, compressor=coarse(seed), memory=False, step=0.5)
    )
    assert min(stalled[2:]) > 3e-3
    log = solve(host, diana.run, problems, x, steps=800, compressor=coarse(seed), step=0.5)
    assert distances(log)[-1] < 1e-8
    # 24 lanes of 4 bits, unless all are zero, and one norm of 8 exponent bits, one-hot
    assert 80 * 256 < log.records[1].payload_bits <= 80 * (3 * 32 + 256)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_momentum_and_a_regularizer(host: EmbeddedController, momentum: float) -> None:
    seed = seed_of_this_run()
    problems, x = shares(seed, kind=LogisticRegression, l1=0.005)
    assert 0 < np.count_nonzero(x) < x.size
    log = solve(host, diana.run, problems, x, steps=600, compressor=coarse(seed), step=3.0, momentum=momentum)
    assert distances(log)[-1] < 1e-6


@pytest.mark.parametrize("independent", [False, True])
def test_sparsified_and_quantized_at_once(host: EmbeddedController, independent: bool) -> None:
    seed = seed_of_this_run()
    problems, x = shares(seed)
    both = chain(
        RandomBlocks(tau=0.5, block=4, independent=independent, seed=seed),
        Dithering(levels=4, norm_bits=0, seed=seed),
    )
    log = solve(host, diana.run, problems, x, steps=700, compressor=both, step=0.7)
    assert distances(log)[-1] < 1e-5


def test_the_guarantee_of_the_step(host: EmbeddedController) -> None:
    seed = seed_of_this_run()
    problems, x = shares(seed)

    def call(session: Session) -> tuple[float, float, float]:
        me = Diana(
            problems[session.rank], session, compressor=coarse(seed), alpha=None, step=None, momentum=0.0,
            memory=True, x0=None,
        )  # fmt: skip
        before = float(np.linalg.norm(me.x - x))
        for _ in range(400):
            me.step()
        return before, float(np.linalg.norm(me.x - x)), me.rate

    before, after, rate = together(host.url, WORKERS, call)[0]
    # The bound is on a mean that has the memories' distance in it as well; 1,000 is room for both.
    assert after**2 < 1000 * (1 - rate) ** 400 * before**2


COMPRESSORS: dict[str, Callable[[bool, int], Compressor]] = {
    "masks": lambda independent, seed: RandomBlocks(tau=1 / 16, block=1, independent=independent, seed=seed),
    "masks, quantized": lambda independent, seed: chain(
        RandomBlocks(tau=0.25, block=4, independent=independent, seed=seed), Dithering(levels=8, seed=seed)
    ),
}


def ones(dim: int) -> RidgeRegression:
    """|x - 1|^2 / 2, whose Hessian is the identity."""
    root = np.sqrt(dim)
    return RidgeRegression(root * np.eye(dim), root * np.ones(dim), 0.0)


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_workers_that_are_alike_converge_as_proved(
    host: EmbeddedController, name: str, independent: bool
) -> None:
    # Shared masks do not average out: gamma = 1 / (L (1 + 6 omega / n)) grew the distance 5e5 times.
    seed, workers, steps, dim = seed_of_this_run(), 8, 150, 64

    def call(session: Session) -> tuple[float, float, float]:
        me = Diana(ones(dim), session, compressor=COMPRESSORS[name](independent, seed))
        more = VrDiana(
            ones(dim), session, compressor=COMPRESSORS[name](independent, seed), batch=dim, variance="saga"
        )
        for _ in range(steps):
            me.step()
            more.step()
        return *(float(np.square(each.x - 1).sum()) / dim for each in (me, more)), me.rate

    after, with_batches, rate = together(host.url, workers, call)[0]
    # The gradients at x* are 0 as the memories are at first, so E|x - x*|^2 shrinks by the rate. 1,000 is
    # room for chance.
    assert after < 1000 * (1 - rate) ** steps
    assert with_batches < 1  # the largest constant of the theory leaves little to see of its rate


@pytest.mark.parametrize("workers", [64])
@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_many_workers_that_are_alike(name: str, independent: bool, workers: int) -> None:
    seed, steps, dim = seed_of_this_run(), 60, 64
    one = COMPRESSORS[name](independent, seed)
    omega, w = one.omega(dim, workers), one.mean_omega(dim, workers)
    assert omega is not None
    assert w is not None
    gamma = 1 / (1 + 6 * w)  # L = mu = 1
    table = Table([Differences(COMPRESSORS[name](independent, seed)) for _ in range(workers)])
    x = np.zeros(dim)
    for _ in range(steps):
        total, _ = table.round([x - 1] * workers)
        x = x - gamma * total / workers
    rate = min(gamma, 1 / (1 + omega) / 2)
    assert float(np.square(x - 1).sum()) < 1000 * (1 - rate) ** steps * dim


def test_memories_are_equal_and_unbiased_estimates(host: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> tuple[Array, Array, Array, Array]:
        x = np.random.default_rng((seed, session.rank)).standard_normal(24)
        average = CompressedAverage(session, 24, coarse(seed), None, memory=True)
        first = [average(x)[0] for _ in range(60)]
        own, memory = average.memories()
        return x, own, memory, first[-1]

    found = together(host.url, WORKERS, call)
    exact = np.mean([x for x, *_ in found], axis=0)
    assert all(memory.tobytes() == found[0][2].tobytes() for _, _, memory, _ in found)
    assert np.abs(np.mean([own for _, own, _, _ in found], axis=0) - found[0][2]).max() < 1e-14
    for x, own, _, estimate in found:
        assert np.abs(own - x).max() < 1e-3  # the memory has learned what does not change
        assert np.abs(estimate - exact).max() < 1e-3


@pytest.mark.parametrize("variance", ["lsvrg", "saga"])
def test_stochastic_gradients_reach_the_optimum(host: EmbeddedController, variance: str) -> None:
    seed = seed_of_this_run()
    problems, x = shares(seed)
    log = solve(
        host, vr_diana.run, problems, x, steps=900, compressor=coarse(seed), batch=7, variance=variance,
        step=0.5, seed=seed,
    )  # fmt: skip
    assert distances(log)[-1] < 1e-6


def test_components_average_to_the_gradient() -> None:
    problems, x = shares(seed_of_this_run())
    for batch in (1, 7, 30):
        parts = Components(problems[0], batch, 5, 0)
        assert parts.count == -(-30 // batch)
        mean = np.mean([parts.gradient(j, x) for j in range(parts.count)], axis=0)
        assert np.allclose(mean, problems[0].gradient(x), atol=1e-14)


def test_what_messages_are_counted_as() -> None:
    words = np.ones(100, np.int32)
    assert sent_bits(Message(words, blocks="dense")) == 3200
    mask = np.zeros(10, np.bool_)
    mask[[0, 9]] = True
    assert sent_bits(Message(words, blocks=mask, block_size=11)) == (11 + 1) * 32 + 10
    words[11:88] = 0
    assert sent_bits(Message(words, blocks="sparse", block_size=11)) == (11 + 12) * 32 + 10
    assert sent_bits(Message(np.ones(8, np.float32), bits=16)) == 128


@pytest.mark.parametrize(
    ("run", "arguments", "words"),
    [
        (diana.run, {"alpha": 0.9}, r"alpha is 0.9; accepted: at most 1 / \(1 \+ omega\) = 0\.\d+"),
        (vr_diana.run, {"alpha": 0.9}, r"alpha is 0.9; accepted: at most 1 / \(1 \+ omega\) = 0\.\d+"),
        (diana.run, {"alpha": 0.0}, "alpha is 0.0"),
        (diana.run, {"compressor": TopBlocks(k=1)}, "biased; needed: an unbiased one"),
        (diana.run, {"compressor": "int8"}, "compressor is a str"),
        (diana.run, {"momentum": 1.0}, "momentum is 1.0; accepted: 0 and up, under 1"),
        (diana.run, {"step": 100.0}, r"step is 100.0; accepted: greater than 0, at most [\d.]+ \(2 / L\)"),
        (diana.run, {"compressor": RandomBlocks(k=9, block=4)}, "k is 9; accepted: at most 6"),
        (vr_diana.run, {"batch": 0}, "batch is 0"),
        (vr_diana.run, {"batch": 31}, "batch is 31; accepted: 1 to 30, this worker's samples"),
        (vr_diana.run, {"variance": "sarah"}, "'lsvrg', 'saga'"),
        (vr_diana.run, {"step": 0.0}, "step is 0.0"),
    ],
)
def test_what_is_refused(host: EmbeddedController, run: Any, arguments: dict[str, Any], words: str) -> None:
    problems, _ = shares(7)

    def call(session: Session) -> None:
        with pytest.raises(UsageError, match=words):
            run(problems[session.rank], session, **{"steps": 1, "compressor": coarse(1), **arguments})
        session.barrier()  # and the session goes on

    together(host.url, WORKERS, call)

"""IBCD and ISEGA: random blocks through a real switch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.algorithms import ibcd, isega
from switchagg.algorithms.base import Array
from switchagg.algorithms.blocks import BlockDraws, mean_of_blocks
from switchagg.algorithms.isega import Isega
from switchagg.algorithms.problems import LogisticRegression
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from worker_lib import Session

from .problems_for_tests import WORKERS, distances, shares, solve


def test_draws_are_uniform_and_shared_or_not() -> None:
    seed = seed_of_this_run()
    draws = [BlockDraws(50, block=5, tau=0.3, draw="shared", seed=seed, rank=r) for r in range(2)]
    own = [BlockDraws(50, block=5, tau=0.3, draw="independent", seed=seed, rank=r) for r in range(2)]
    hits, pairs, same = np.zeros(10), np.zeros((10, 10)), 0
    rounds = 4000
    for _ in range(rounds):
        a, b = (d.next() for d in draws)
        assert np.array_equal(a, b)
        assert np.count_nonzero(a) == 3
        c, d = (x.next() for x in own)
        same += np.array_equal(c, d)
        hits += c
        pairs += np.outer(c, c)
    # 6 standard deviations of a binomial: one false alarm in 10 million runs over all that is compared.
    assert np.abs(hits / rounds - 0.3).max() < 6 * np.sqrt(0.3 * 0.7 / rounds)
    off = pairs[~np.eye(10, dtype=bool)] / rounds
    chance = 3 / 10 * 2 / 9
    assert np.abs(off - chance).max() < 6 * np.sqrt(chance * (1 - chance) / rounds)
    assert same < 6 * rounds / 120 + 50  # 120 choices of 3 blocks


@pytest.mark.parametrize("shared", [True, False])
def test_means_of_blocks(host: EmbeddedController, shared: bool) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> tuple[Array, Array, int]:
        rng = np.random.default_rng((seed, session.rank))
        mask = np.random.default_rng((seed, 0 if shared else session.rank)).random(8) < 0.5
        x = rng.standard_normal(61)  # the last block has 5
        mean, bits = mean_of_blocks(session, x, mask, 8, shared=shared)
        inside = np.repeat(mask, 8)[:61]
        assert bits == 64 * np.count_nonzero(inside) + (0 if shared else 8)
        return mean, np.where(inside, x, 0), bits

    found = together(host.url, WORKERS, call, words=16)
    exact = np.mean([x for _, x, _ in found], axis=0)
    for mean, _, _ in found:
        assert mean.tobytes() == found[0][0].tobytes()
        assert np.abs(mean - exact).max() < 1e-15


def test_with_a_shared_minimizer_few_blocks_suffice(host: EmbeddedController) -> None:
    problems, x = shares(seed_of_this_run(), shared_minimizer=True)
    for draw in ("independent", "shared"):
        log = solve(host, ibcd.run, problems, x, steps=600, tau=1 / 3, block=4, draw=draw)
        assert distances(log)[-1] < 1e-6 * distances(log)[0]


def test_without_one_ibcd_stalls_and_isega_does_not(host: EmbeddedController) -> None:
    problems, x = shares(seed_of_this_run())
    stalled = distances(solve(host, ibcd.run, problems, x, steps=400, tau=1 / 3, block=4))
    assert min(stalled[3:]) > 1e-3
    found = distances(solve(host, isega.run, problems, x, steps=900, tau=1 / 3, block=4, step=1.0))
    assert found[-1] < 1e-8
    shared = distances(solve(host, ibcd.run, problems, x, steps=500, tau=1 / 3, block=4, draw="shared"))
    assert shared[-1] < 1e-5  # one draw for all is block descent on F


def test_isega_with_a_regularizer_and_shared_blocks(host: EmbeddedController) -> None:
    problems, x = shares(seed_of_this_run(), kind=LogisticRegression, l1=0.005)
    assert 0 < np.count_nonzero(x) < x.size
    for draw in ("independent", "shared"):
        log = solve(host, isega.run, problems, x, steps=900, tau=0.5, block=4, draw=draw, step=3.0)
        assert distances(log)[-1] < 1e-6


def test_the_guarantee_of_isegas_step(host: EmbeddedController) -> None:
    problems, x = shares(seed_of_this_run())

    def call(session: Session) -> tuple[float, float, float]:
        me = Isega(
            problems[session.rank], session, tau=0.5, block=4, draw="independent", step=None, seed=1,
            bits=64, x0=None,
        )  # fmt: skip
        before = float(np.linalg.norm(me.x - x))
        for _ in range(400):
            me.step()
        return before, float(np.linalg.norm(me.x - x)), me.rate

    before, after, rate = together(host.url, WORKERS, call)[0]
    # The theorem bounds the mean of the squared error with the memories' in it; a hundredfold of it is room
    # for both.
    assert after**2 < 100 * (1 - rate) ** 400 * before**2 * 10


def test_all_workers_keep_the_mean_of_the_memories(host: EmbeddedController) -> None:
    problems, _ = shares(seed_of_this_run())

    def call(session: Session) -> tuple[Array, Array]:
        me = Isega(
            problems[session.rank], session, tau=0.4, block=5, draw="independent", step=None, seed=3,
            bits=64, x0=None,
        )  # fmt: skip
        for _ in range(50):
            me.step()
        return me.own_memory, me.memory

    found = together(host.url, WORKERS, call)
    assert all(h.tobytes() == found[0][1].tobytes() for _, h in found)
    assert np.abs(np.mean([own for own, _ in found], axis=0) - found[0][1]).max() < 1e-14
    assert np.abs(found[0][0] - found[1][0]).max() > 1e-3  # and they differ among themselves


@pytest.mark.parametrize(
    ("run", "arguments", "words"),
    [
        (ibcd.run, {"tau": 0.0}, "tau is 0.0; accepted: greater than 0, at most 1"),
        (isega.run, {"tau": 1.01}, "tau is 1.01; accepted: greater than 0, at most 1"),
        (ibcd.run, {"tau": 0.5, "block": 0}, "block is 0; accepted: a whole number, 1 and up"),
        (ibcd.run, {"tau": 0.5, "block": 65537}, "block is 65537; accepted: 1 to 65536"),
        (isega.run, {"tau": 0.5, "draw": "both"}, "draw is 'both'; accepted: 'shared', 'independent'"),
        (isega.run, {"tau": 0.5, "bits": 8}, "bits is 8; accepted: 64, 32"),
        (isega.run, {"tau": 0.5, "seed": -1}, "seed is -1"),
        (isega.run, {"tau": 0.5, "x0": [1.0]}, r"x0 has shape \(1,\); needed: \(24,\)"),
        (isega.run, {"tau": 0.5, "steps": -1}, "steps is -1"),
        (
            ibcd.run,
            {"tau": 0.5, "step": 1e3},
            r"step is 1000.0; .* at most [\d.]+ \(2 n",
        ),
        (
            isega.run,
            {"tau": 0.5, "step": 1e3},
            r"step is 1000.0; .* at most [\d.]+ \(2 /",
        ),
    ],
)
def test_what_is_refused(host: EmbeddedController, run: Any, arguments: dict[str, Any], words: str) -> None:
    problems, _ = shares(7)

    def call(session: Session) -> None:
        with pytest.raises(UsageError, match=words):
            run(problems[session.rank], session, **{"steps": 1, **arguments})
        session.barrier()  # and the session goes on

    together(host.url, WORKERS, call)


def test_problems_that_cannot_work_are_refused(host: EmbeddedController) -> None:
    problems, _ = shares(7, l1=0.1)
    narrow, _ = shares(7, dim=12)

    def call(session: Session) -> None:
        with pytest.raises(UsageError, match="l1 term, which IBCD does not treat"):
            ibcd.run(problems[session.rank], session, steps=1, tau=0.5)
        mine = narrow[0] if session.rank == 1 else problems[session.rank]
        with pytest.raises(UsageError, match=r"dimensions \[24, 12, 24\]; needed: one for all"):
            isega.run(mine, session, steps=1, tau=0.5)

    together(host.url, WORKERS, call)

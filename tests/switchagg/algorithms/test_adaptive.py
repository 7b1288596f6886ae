"""The adaptive level: cost models against packets that were sent, rules against brute force, and descent."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from switchagg.algorithms import adaptive, levels
from switchagg.algorithms.adaptive import Adaptive
from switchagg.algorithms.base import Array
from switchagg.algorithms.cost import CostModel, Packets, PayloadBits, SwitchCost
from switchagg.algorithms.levels import Blocks
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from worker_lib import Session

from .problems_for_tests import WORKERS, distances, shares, solve


def energies(seed: int, size: int = 12) -> Array:
    return np.random.default_rng(seed).lognormal(0, 2, size)


# ---------------------------------------------------------------------- costs


def test_costs_of_payload_and_packets() -> None:
    elements, blocks = np.array([16, 160]), np.array([1, 10])
    assert PayloadBits(index=5, once=32).cost(elements, blocks, 8).tolist() == [165, 1362]
    assert Packets(size=1000, each=2, start=7).cost(elements, blocks, 32).tolist() == [9, 19]


@pytest.mark.parametrize("words", [16, 64, 352])
def test_our_cost_is_what_travels(host: EmbeddedController, words: int) -> None:
    model = SwitchCost(words)

    def call(session: Session) -> None:
        for elements, bits in itertools.product((1, 15, 64, 65, 3000), (32, 16, 8)):
            before = session.stats()
            session.allreduce(np.ones(elements, np.float32), op="avg", bits=bits, blocks="dense")
            after = session.stats()
            sent = after["packets_data"] + after["packets_skip"]  # repeats are not in these
            sent -= before["packets_data"] + before["packets_skip"]
            assert sent == model.packets(elements, bits), f"{elements} in lanes of {bits}"

    together(host.url, 2, call, words=words)


def test_the_session_says_what_a_packet_costs(host: EmbeddedController) -> None:
    found = together(host.url, WORKERS, SwitchCost.measured, words=80)
    assert all(model == found[0] for model in found)  # the same at all workers
    assert found[0].words == 80
    assert found[0].unit == "seconds"
    one, many = found[0].cost([1, 80_000], [1, 1], 32)
    assert 0 < one < many < 60
    assert SwitchCost(80).cost(1, 1, 32) == 2 * 2 * (320 + 16 + 28 + 38)
    assert SwitchCost(80, unit="packets").cost(81, 1, 32) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PayloadBits(index=-1), "index is -1; accepted: 0 and up"),
        (lambda: Packets(size=0), "size is 0; accepted: bits of a packet, greater than 0"),
        (lambda: Packets(size=1, each=float("nan")), "each is nan"),
        (lambda: SwitchCost(15), "words is 15; accepted: 16 and up"),
        (lambda: SwitchCost(64, unit="euros"), "accepted: 'packets', 'bytes', 'seconds'"),
        (lambda: SwitchCost(64, unit="seconds"), "latency and packet_seconds 0"),
    ],
)
def test_costs_that_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


# ---------------------------------------------------------------------- levels


@pytest.mark.parametrize("model", [PayloadBits(once=300), Packets(size=700, start=1), SwitchCost(16)])
def test_levels_are_the_best_of_all(model: CostModel) -> None:
    seed = seed_of_this_run()
    sizes = np.full(12, 16)
    sizes[-1] = 3
    for case in range(30):
        e = energies(seed + case)
        along = np.random.default_rng(seed + case).uniform(0.1, 1.5, 12)
        blocks = Blocks(sizes, along, 2.0)
        order = np.argsort(-e)
        best = levels.sparse(e, blocks, model)
        noise = {32: 0.0, 16: 1e-4, 8: 0.05}
        mixed = levels.quantized(e, blocks, model, noise, extra=1)
        for count in range(1, 13):
            own, elements = e[order[:count]].sum(), int(sizes[order[:count]].sum())
            smooth = min(2.0, along[order[:count]].sum())
            value = own / smooth / model.cost(elements, count, 32)
            assert best.gain / best.cost >= value * (1 - 1e-12)
            for bits, each in noise.items():
                value = own**2 / (own + elements * each) / smooth / model.cost(elements + 1, count, bits)
                assert mixed.gain / mixed.cost >= value * (1 - 1e-12)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_what_levels_promise_is_kept(count: int) -> None:
    """On a quadratic, where gains can be computed exactly, or averaged over many draws."""
    rng = np.random.default_rng(seed_of_this_run())
    a = rng.standard_normal((60, 40)) * np.repeat(np.linspace(0.2, 2, 8), 5)
    hessian = a.T @ a / 60
    along = np.array([np.linalg.eigvalsh(hessian[i : i + 5, i : i + 5])[-1] for i in range(0, 40, 5)])
    blocks = Blocks(np.full(8, 5), along, float(np.linalg.eigvalsh(hessian)[-1]))
    x = rng.standard_normal(40)
    gradient = hessian @ x
    e = np.square(gradient).reshape(8, 5).sum(axis=1)

    def decrease(move: Array) -> float:
        return float(x @ hessian @ x - (x - move) @ hessian @ (x - move)) / 2

    level = levels.sparse(e, blocks, PayloadBits(), counts=[count])
    inside = np.repeat(np.isin(np.arange(8), levels.largest(e)[:count]), 5)
    assert decrease(level.step * gradient * inside) >= level.gain / 2 * (1 - 1e-9)
    noisy = levels.quantized(e, blocks, PayloadBits(), {8: 0.01}, counts=[count])
    found = [decrease(noisy.step * (gradient + 0.1 * rng.standard_normal(40)) * inside) for _ in range(4000)]
    # 6 standard deviations of the mean: one false alarm in a billion
    assert np.mean(found) >= noisy.gain / 2 - 6 * np.std(found) / np.sqrt(4000) - 1e-9
    drawn, p = levels.stochastic(e, blocks, PayloadBits(), counts=[count])
    found = [decrease(drawn.step * gradient * np.repeat((rng.random(8) < p) / p, 5)) for _ in range(4000)]
    assert np.mean(found) >= drawn.gain / 2 * 0.99 - 6 * np.std(found) / np.sqrt(4000)


def test_probabilities_are_the_best_of_all() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for count in (1, 3, 7, 12):
        e = rng.lognormal(0, 2, 12)
        p = levels.probabilities(e, count)
        assert p.sum() == pytest.approx(count)
        assert (p > 0).all()
        assert (p <= 1).all()
        for _ in range(200):  # no other with the same sum does better
            other = np.clip(p * np.exp(0.3 * rng.standard_normal(12)), 1e-9, 1)
            for _ in range(60):
                other = np.minimum(1, other * count / other.sum())
            if other.sum() == pytest.approx(count, rel=1e-9):
                assert (e / p).sum() <= (e / other).sum() * (1 + 1e-9)


# ---------------------------------------------------------------------- runs


@pytest.mark.parametrize("variant", adaptive.VARIANTS)
def test_every_variant_reaches_the_optimum(host: EmbeddedController, variant: str) -> None:
    seed = seed_of_this_run()
    problems, x = shares(seed, dim=30)
    log = solve(
        host, adaptive.run, problems, x, steps=400, cost=PayloadBits(once=64), variant=variant, block=4,
        seed=seed,
    )  # fmt: skip
    found = distances(log)
    # Lanes of float32 have the last word; with 8 and 16 bits the noise holds the step down for longer.
    assert found[-1] < (1e-3 if variant == "quantized" else 1e-5) * found[0]


def test_the_sparse_form_never_goes_uphill(host: EmbeddedController) -> None:
    problems, _ = shares(seed_of_this_run(), dim=30)

    def call(session: Session) -> list[int]:
        me = Adaptive(
            problems[session.rank], session, cost=PayloadBits(once=200), variant="sparse", block=4,
            level=None, seed=0, x0=None,
        )  # fmt: skip
        value = np.inf
        for _ in range(60):
            me.step()
            now = float(np.mean([p.loss(me.x) for p in problems]))
            assert now <= value + 1e-9
            value = now
        return me.counts

    found = together(host.url, WORKERS, call)
    assert all(counts == found[0] for counts in found)  # agreed without a message
    assert found[0][0] == 8  # all blocks at first
    assert len(set(found[0][1:])) >= 1
    assert min(found[0][1:]) < 8


def test_the_level_follows_the_price(host: EmbeddedController) -> None:
    problems, _ = shares(seed_of_this_run(), dim=32)

    def call(session: Session) -> list[float]:
        out = []
        for cost in (PayloadBits(), PayloadBits(once=1e6)):
            me = Adaptive(
                problems[session.rank], session, cost=cost, variant="sparse", block=4, level=None, seed=0,
                x0=None,
            )  # fmt: skip
            for _ in range(20):
                me.step()
            out.append(float(np.mean(me.counts[1:])))
        return out

    cheap, dear = together(host.url, WORKERS, call)[0]
    assert cheap < 2  # elements alone are paid for: the best block by itself
    assert dear > 7  # messages are paid for: as much as goes into one


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"variant": "dense"}, "accepted: 'sparse', 'quantized', 'stochastic'"),
        ({"level": 0}, "level is 0; accepted: a whole number, 1 and up"),
        ({"level": 7}, "level is 7; accepted: 1 to 6, the blocks of 24 elements"),
        ({"block": -1}, "block is -1"),
        ({"seed": 0.5}, "seed is 0.5"),
    ],
)
def test_what_is_refused(host: EmbeddedController, arguments: dict[str, Any], words: str) -> None:
    problems, _ = shares(7)

    def call(session: Session) -> None:
        with pytest.raises(UsageError, match=words):
            adaptive.run(
                problems[session.rank],
                session,
                **{"steps": 1, "cost": PayloadBits(), "block": 4, **arguments},
            )

    together(host.url, WORKERS, call)

"""GADMM and its kin reach the optimum that Newton's method finds; Q-GADMM's rounding keeps its bounds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.algorithms import gadmm
from switchagg.algorithms.base import Array, Log
from switchagg.algorithms.chain import Chain
from switchagg.algorithms.gadmm import Quantizer, decode, minimize, pack, unpack
from switchagg.algorithms.problems import RidgeRegression
from switchagg.control.client import ControllerClient
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import SwitchAggError, UsageError
from tests.seeds import seed_of_this_run
from tests.switchagg.algorithms.shares import shares
from tests.waiting import eventually
from tests.worker_lib.harness import together
from worker_lib import Session

METHODS: dict[str, dict[str, Any]] = {
    "chain": {},
    "quantized": {"bits": 4},
    "changing": {"change_every": 7},
    "changing, quantized": {"change_every": 9, "bits": 6},
    "changing at every step": {"change_every": 1, "steps": 45},
}


@pytest.mark.parametrize(("name", "loss"), [("chain", "ridge"), *((name, "logistic") for name in METHODS)])
def test_every_worker_reaches_the_optimum(host: EmbeddedController, name: str, loss: str) -> None:
    workers = 4
    problems, best = shares(seed_of_this_run(), workers, loss=loss)

    def call(session: Session) -> tuple[float, list[int]]:
        log = Log(every=20, optimum=best)
        settings = {"steps": 100, "rho": 0.1, **METHODS[name]}
        x = gadmm.run(problems[session.rank], session, log=log, **settings)
        assert log.records[-1].distance == pytest.approx(float(np.linalg.norm(x - best)))
        return float(np.linalg.norm(x - best)), [r.payload_bits for r in log.records]

    reach = float(np.linalg.norm(best))
    for distance, payload in together(host.url, workers, call):
        assert distance < 1e-6 * reach
        if name == "chain":
            assert payload == [step * 64 * best.size for step in range(0, 101, 20)]
        if name == "quantized":
            assert payload == [step * 8 * (8 + -(-4 * best.size // 8)) for step in range(0, 101, 20)]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_chains_of_any_length(host: EmbeddedController, workers: int) -> None:
    problems, best = shares(seed_of_this_run(), workers, loss="ridge")

    def call(session: Session) -> Array:
        return gadmm.run(problems[session.rank], session, steps=120, rho=0.1, change_every=30)

    for x in together(host.url, workers, call):
        assert np.linalg.norm(x - best) < 1e-6 * np.linalg.norm(best)


def test_alone_it_is_newton_s_method() -> None:
    problems, best = shares(seed_of_this_run(), 1)
    with worker_lib.connect(rank=0, world_size=1) as session:
        x = gadmm.run(problems[0], session, steps=1, rho=0.1, change_every=1)
    assert np.linalg.norm(x - best) < 1e-9


def test_slots_of_old_chains_come_back(host: EmbeddedController) -> None:
    client = ControllerClient(host.url)
    problems, _ = shares(seed_of_this_run(), 4)
    before = int(client.slots()["free"])
    together(
        host.url,
        4,
        lambda session: gadmm.run(problems[session.rank], session, steps=6, rho=0.1, change_every=1),
    )
    eventually(lambda: int(client.slots()["free"]) == before)


def test_a_message_goes_to_neighbours_and_nobody_else(host: EmbeddedController) -> None:
    order = [2, 0, 3, 1]

    def call(session: Session) -> dict[int, int]:
        with Chain(session, order, 8) as chain:
            found = {}
            for heads in (True, False):
                sent = np.array([session.rank, 100 * session.rank])
                for rank, message in chain.exchange(sent, heads=heads).items():
                    assert message.tolist() == [rank, 100 * rank]
                    found[rank] = int(message[1])
        with pytest.raises(UsageError, match=r"\[0, 1, 2\]; accepted: every rank from 0 to 3 once"):
            Chain(session, [0, 1, 2], 8)
        return found

    assert together(host.url, 4, call) == [{2: 200, 3: 300}, {3: 300}, {0: 0}, {0: 0, 1: 100}]


# ---------------------------------------------------------------------- the quantizer


@pytest.mark.parametrize("bits", [2, 3, 8, 16])
def test_errors_are_under_a_step_and_right_on_average(bits: int) -> None:
    seed = seed_of_this_run()
    rng = np.random.default_rng((seed, bits))
    size, draws = 40, 4000
    x, before = rng.standard_normal(size), rng.standard_normal(size)
    reach = float(np.abs(x - before).max())
    step = 2 * reach / (2**bits - 1)
    total, square = np.zeros(size), 0.0
    for _ in range(draws):
        quantizer = Quantizer(size, bits, rng)
        quantizer.sent = before.copy()
        message = quantizer.encode(x)
        assert message.nbytes == 8 + -(-size * bits // 8)
        assert np.array_equal(decode(message, before, bits), quantizer.sent)  # both ends hold the same
        error = quantizer.sent - x
        assert np.abs(error).max() < step * (1 + 1e-9)
        total += error
        square += float(error @ error)
    # Each error's variance is at most step^2/4: six standard deviations of the mean of `draws`.
    assert np.abs(total / draws).max() <= 6 * step / 2 / np.sqrt(draws)
    # Q-GADMM, section III: E||error||^2 <= d step^2 / 4. A mean of bounded terms, six deviations again.
    assert square / draws <= size * step**2 / 4 + 6 * size * step**2 / np.sqrt(draws)


def test_what_is_the_same_costs_nothing_and_errors_die_out() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    quantizer = Quantizer(30, 3, rng)
    x = rng.standard_normal(30)
    errors = []
    for _ in range(12):  # the same x again and again: each error is under 2/7 of the one before
        quantizer.encode(x)
        errors.append(float(np.abs(quantizer.sent - x).max()))
    assert all(b <= 2 / 7 * a + 1e-15 for a, b in itertools.pairwise(errors))
    quantizer.sent = x.copy()
    quantizer.encode(x)
    assert np.array_equal(quantizer.sent, x)


def test_numbers_of_any_width_are_packed_end_to_end() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for bits in range(1, 17):
        values = rng.integers(0, 1 << bits, 37).astype(np.uint32)
        data = pack(values, bits)
        assert data.nbytes == -(-37 * bits // 8)
        assert np.array_equal(unpack(data, 37, bits), values)


# ---------------------------------------------------------------------- the local problem


@pytest.mark.parametrize("loss", ["ridge", "logistic"])
def test_the_local_minimizer_has_no_slope(loss: str) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    problems, _ = shares(seed_of_this_run(), 2, loss=loss)
    for weight in (0.0, 1e-3, 1.0, 100.0):
        linear = rng.standard_normal(problems[0].dim)
        x = minimize(problems[0], linear, weight, 10 * rng.standard_normal(problems[0].dim))
        slope = problems[0].gradient(x) - linear + weight * x
        assert np.linalg.norm(slope) <= 1e-10 * (1 + weight * np.linalg.norm(x))


def test_a_problem_without_a_minimizer() -> None:
    flat = RidgeRegression(np.zeros((3, 2)), np.ones(3))
    with pytest.raises(UsageError, match=r"weight is 0\.0 .* not strongly convex"):
        minimize(flat, np.ones(2), 0.0, np.zeros(2))

    class Broken(RidgeRegression):
        def loss(self, x: Array) -> float:
            return float("nan") * x[0]

    with pytest.raises(SwitchAggError, match="is its loss convex"):
        minimize(Broken(np.ones((3, 2)), np.ones(3)), np.ones(2), 1.0, np.zeros(2))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"steps": 0}, "steps is 0; accepted: a whole number, 1 and up"),
        ({"rho": 0.0}, r"rho is 0\.0; accepted: greater than 0"),
        ({"rho": float("inf")}, "rho is inf"),
        ({"bits": 1}, "bits is 1; accepted: 2 to 16"),
        ({"bits": 17}, "bits is 17"),
        ({"change_every": 0}, "change_every is 0; accepted: a whole number, 1 and up"),
        ({"x0": np.zeros(3)}, r"x0 has shape \(3,\)"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], said: str) -> None:
    problems, _ = shares(1, 1)
    with worker_lib.connect(rank=0, world_size=1) as session, pytest.raises(UsageError, match=said):
        gadmm.run(problems[0], session, **{"steps": 1, "rho": 1.0, **arguments})


def test_a_regularizer_is_refused() -> None:
    lasso = RidgeRegression(np.eye(3), np.ones(3), l2=0.1, l1=0.1)
    with worker_lib.connect(rank=0, world_size=1) as session, pytest.raises(UsageError, match="R = 0"):
        gadmm.run(lasso, session, steps=1, rho=1.0)

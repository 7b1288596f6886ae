"""Claims that count with all workers in one process, and what they are judged by; and parts that are kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from switchagg.experiments.claims import density, local_work, more_workers
from switchagg.experiments.lockstep import ThreadSession, in_threads
from switchagg.experiments.runner import Runner, Settings
from tests.seeds import seed_of_this_run


def test_threads_sum_as_a_session_does() -> None:
    seed = seed_of_this_run()
    xs = np.random.default_rng(seed).standard_normal((5, 40))

    def call(session: ThreadSession) -> tuple[list[float], list[float], list[float], int]:
        mine = xs[session.rank].copy()
        total = session.allreduce(mine.copy(), bits=64, blocks="dense")
        mean = session.allreduce(mine, op="avg")
        assert mean is mine
        return total.tolist(), mean.tolist(), session.allgather(xs[session.rank])[3].tolist(), session.numbers

    found = in_threads(call, 5)
    assert all(each == found[0] for each in found)
    assert np.allclose(found[0][0], xs.sum(axis=0), rtol=1e-14, atol=1e-14)
    assert np.allclose(found[0][1], xs.mean(axis=0), rtol=1e-14, atol=1e-14)
    assert found[0][2] == xs[3].tolist()
    assert found[0][3] == 80


def test_a_thread_that_fails_ends_the_others() -> None:
    def call(session: ThreadSession) -> None:
        if session.rank == 1:
            raise ZeroDivisionError("on purpose")
        session.allgather(np.zeros(1))

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        in_threads(call, 3)


def test_a_vector_has_its_share_of_blocks() -> None:
    seed = seed_of_this_run()
    ranks = [density.vector(seed, rank, 4096, 16, 0.25, True).reshape(-1, 16) for rank in range(3)]
    kept = [np.flatnonzero(each.any(axis=1)).tolist() for each in ranks]
    assert len(kept[0]) == 64
    assert kept[0] == kept[1] == kept[2]
    assert not np.array_equal(ranks[0], ranks[1])
    apart = [np.flatnonzero(density.vector(seed, rank, 4096, 1, 0.25, False)).tolist() for rank in range(2)]
    assert len(apart[0]) == len(apart[1]) == 1024
    assert apart[0] != apart[1]


def test_verdicts_on_density_follow_the_figures() -> None:
    cases = density.cases(False)
    dense = 1.0
    sent = [4e6 * (c["density"] if c["alike"] else 1) + 1e4 for c in cases]
    slow = [dense * (0.15 + 0.85 * c["density"] if c["alike"] else 1 + c["block"] / 1e3) for c in cases]
    fast = [dense * (0.01 + 0.99 * c["density"] if c["alike"] else 1 + c["block"] / 1e3) for c in cases]
    slow[0] = fast[0] = dense
    assert [check.held for check in density.outcome(cases, slow, sent, 1 << 19).checks] == [
        False, False, True, True, True,
    ]  # fmt: skip
    assert all(check.held for check in density.outcome(cases, fast, sent, 1 << 19).checks)
    backwards = [1 / each for each in fast]
    assert not density.outcome(cases, backwards, sent, 1 << 19).checks[2].held


def test_a_network_s_curvature_is_its_gradient_s() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    network = local_work.Network(rng.random((6, 64)), rng.integers(0, 10, 6))
    x, ways = network.start(1), rng.standard_normal((network.dim, 2))
    ways /= np.linalg.norm(ways, axis=0)
    bent = network.hessian_product(x, ways)
    assert bent[:, 0] @ ways[:, 1] == pytest.approx(float(bent[:, 1] @ ways[:, 0]), abs=1e-7)
    rise = (network.loss(x + 1e-5 * ways[:, 0]) - network.loss(x - 1e-5 * ways[:, 0])) / 2e-5
    assert rise == pytest.approx(float(network.gradient(x) @ ways[:, 0]), abs=1e-7)


def test_fedbcd_and_curvature_run() -> None:
    pytest.importorskip("sklearn", reason="the data sets come with scikit-learn")
    outcome = local_work.EXPERIMENT.run(Runner(Settings(quick=True), lambda _: None))
    held = {check.statement[:20]: check.held for check in outcome.checks}
    assert held["FedBCD: more local s"]
    assert held["DS-LSR1 sends at mos"]


@pytest.mark.long
def test_more_workers_run() -> None:
    pytest.importorskip("sklearn", reason="the data sets come with scikit-learn")
    outcome = more_workers.EXPERIMENT.run(Runner(Settings(quick=True), lambda _: None))
    assert [check.held for check in outcome.checks[:3]] == [True, True, True], outcome.checks


@pytest.mark.long
def test_density_runs() -> None:
    outcome = density.EXPERIMENT.run(Runner(Settings(quick=True), lambda _: None))
    assert outcome.tables
    assert len(outcome.checks) == 5


def test_parts_of_an_interrupted_run_are_taken_over(tmp_path: Path) -> None:
    made: list[str] = []

    def part(runner: Runner, key: str) -> object:
        return runner.part(key, lambda: made.append(key) or {"steps": np.arange(3)})  # type: ignore[func-returns-value]

    def runner(**more: object) -> Runner:
        return Runner(Settings(parts=tmp_path, **more), lambda _: None, "race")  # type: ignore[arg-type]

    assert part(runner(), "a") == {"steps": [0, 1, 2]}
    again = runner()
    assert part(again, "a") == {"steps": [0, 1, 2]}
    assert again.before > 0
    part(again, "b")
    part(runner(seed=1), "a")
    part(runner(quick=True), "a")
    assert made == ["a", "b", "a", "a"]
    for path in tmp_path.iterdir():
        kept = json.loads(path.read_text())
        path.write_text(json.dumps({**kept, "whose": {**kept["whose"], "version": "0.0.1"}}))
    part(runner(), "a")
    assert made == ["a", "b", "a", "a", "a"]


def test_parts_need_a_folder() -> None:
    assert Runner(Settings(), lambda _: None).part("a", lambda: 7) == 7

"""The tuner on a made-up machine whose costs are known: it finds what is best, soon, and stays there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from switchagg.errors import UsageError
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.policy import BLOCKS, CostModel, Densities, SkipTuner
from switchagg.wire.heartbeat import FIELDS, SAMPLED_SIZES, Report
from tests.seeds import seed_of_this_run

ELEMENTS = 1 << 24  # a collective
_KINDS = [SkipPolicy(block) for block in BLOCKS] + [SkipPolicy(dense=True)]


@pytest.fixture
def rng() -> np.random.Generator:
    seed = seed_of_this_run()
    return np.random.default_rng(seed)


@dataclass(frozen=True)
class Data:
    """Tensors whose non-zero pieces of `grain` elements lie independently, with share `density` on a rank."""

    density: float
    grain: int = 64
    workers: int = 4
    same: bool = False  # the same pieces on all ranks

    def share(self, size: int, ranks: int) -> float:
        """Of blocks of `size` that are not zero on any of so many ranks."""
        piece = self.density if self.same else 1 - (1 - self.density) ** ranks
        return piece if size <= self.grain else float(1 - (1 - piece) ** (size / self.grain))


@dataclass
class Machine:
    """The cost of an element, in nanoseconds, with coefficients and quirks of its own."""

    scan: float = 1.5
    wire: float = 1.5
    arithmetic: float = 1.5
    border: float = 120.0
    quirk: dict[SkipPolicy, float] = field(default_factory=dict)
    noise: float = 0.05

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Machine:
        speed = float(rng.uniform(0.3, 5))
        parts = rng.uniform(0.4, 1.6, 4) * [1.2, 1.8, 1.5, 100]
        quirks = {kind: float(rng.uniform(0.9, 1.15)) for kind in _KINDS}
        return cls(*(speed * parts).tolist(), quirks, noise=0.04)

    def cost(self, policy: SkipPolicy, data: Data) -> float:
        kind = SkipPolicy(dense=True) if policy.dense else SkipPolicy(policy.block)
        quirk = self.quirk.get(kind, 1.0)
        narrow = 1.0 if policy.bits is None else policy.bits / 32 * 1.1
        if policy.dense:
            return quirk * (self.scan + self.wire * narrow + self.arithmetic)
        union = data.share(policy.block, data.workers)
        grains = max(1.0, data.grain / policy.block)
        borders = 0.0
        for ranks in (1, data.workers):
            share = data.share(policy.block, ranks)
            borders += share * (1 - share) / grains / policy.block
        return quirk * (self.scan + union * (self.wire * narrow + self.arithmetic) + self.border * borders)

    def best(self, data: Data, kinds: Sequence[SkipPolicy] = _KINDS) -> float:
        return min(self.cost(kind, data) for kind in kinds)


@dataclass
class Run:
    """A job on a machine, window by window.

    Attributes:
        spent, ideal: sums of what an element has cost, and of what it would have cost under the best policy.
        changes: of the policy, by time.
    """

    machine: Machine
    rng: np.random.Generator
    tuner: SkipTuner
    window: float = 0.5
    floor: int = 0
    now: float = 0.0
    spent: float = 0.0
    ideal: float = 0.0
    changes: list[tuple[float, SkipPolicy, str]] = field(default_factory=list)
    rounded: bool = False  # the caller's own lanes are narrow

    def go(self, data: Data, windows: int, slowdown: float = 1.0) -> None:
        for _ in range(windows):
            policy = self.tuner.policy
            true = self.machine.cost(policy, data) * slowdown
            self.spent += true
            self.ideal += self.machine.best(data) * slowdown
            self.now += self.window
            decision = self.tuner.observe(self.now, self.reports(policy, data, true))
            if decision is not None:
                self.changes.append((self.now, decision.policy, decision.why))

    def reports(self, policy: SkipPolicy, data: Data, cost: float) -> dict[int, Report]:
        noisy = cost * float(np.exp(self.rng.normal(0, self.machine.noise)))
        collectives = max(1, round(self.window * 1e9 / (noisy * ELEMENTS)))
        groups = collectives * ELEMENTS >> 17
        summed = 0 if self.rounded or (policy.bits or 32) < 32 else groups

        def counts(ranks: int, looked_at: int) -> list[int]:
            return [
                int(self.rng.binomial(looked_at * 1024 // size, data.share(size, ranks)))
                for size in SAMPLED_SIZES
            ]

        sums = counts(data.workers, summed)
        return {
            rank: Report(
                0, *[0] * 20, groups * 64, *counts(1, groups), summed * 64, *sums,
                policy_collectives=collectives, policy_elements=collectives * ELEMENTS,
                policy_ns=int(noisy * collectives * ELEMENTS), policy_word=policy.word(),
                policy_lanes=self.floor,
            )
            for rank in range(data.workers)
        }  # fmt: skip

    @property
    def excess(self) -> float:
        return self.spent / self.ideal - 1

    def restart(self) -> None:
        self.spent = self.ideal = 0.0
        self.changes.clear()


DATA = [
    Data(1.0), Data(0.5), Data(0.1), Data(0.01), Data(0.1, grain=4), Data(0.3, grain=16),
    Data(0.05, grain=1), Data(0.1, grain=4096), Data(0.5, grain=4096), Data(0.02, same=True), Data(0.0),
]  # fmt: skip


@pytest.mark.parametrize("data", DATA, ids=str)
def test_it_finds_what_is_best_and_stays(rng: np.random.Generator, data: Data) -> None:
    spent: list[float] = []
    for _ in range(3):
        run = Run(Machine.drawn(rng), rng, SkipTuner(data.workers))
        run.go(data, 60)
        run.restart()
        run.go(data, 200)
        story = f"{run.machine}: {run.changes}"
        spent.append(run.excess)
        assert run.excess < 0.2, story
        trials = [why for _, _, why in run.changes if "trial" in why]
        # Two that are nearer than the noise may change places now and then.
        costs = [run.machine.cost(to, data) for _, to, why in run.changes if "trial" not in why]
        assert len(costs) <= 6, story
        assert sum(abs(np.log(b / a)) > run.machine.noise for a, b in pairwise(costs)) <= 3, story
        assert len(trials) <= 10, story
    assert np.mean(spent) < 0.08


@pytest.mark.parametrize("grain", [64, 4096, 4])
def test_it_keeps_up_with_a_density_that_drifts(rng: np.random.Generator, grain: int) -> None:
    for _ in range(3):
        run = Run(Machine.drawn(rng), rng, SkipTuner(4))
        for density in (1.0, 0.5, 0.1, 0.03, 0.01, 0.03, 0.1, 0.5, 1.0):
            run.go(Data(density, grain), 30)
        assert run.excess < 0.1, f"{run.machine}: {run.changes}"


def test_a_dense_job_sees_zeros_appear_within_two_windows() -> None:
    rng = np.random.default_rng(1)
    slow_to_skip = Machine(quirk={kind: 1.15 for kind in _KINDS if not kind.dense})
    run = Run(slow_to_skip, rng, SkipTuner(4, SkipPolicy(dense=True)))
    run.go(Data(1.0), 20)
    assert run.tuner.policy.dense
    run.restart()
    run.go(Data(0.01), 2)
    assert len(run.changes) == 1
    _, policy, why = run.changes[0]
    assert not policy.dense
    assert "of blocks of" in why
    assert "faster than dense" in why


def distinct() -> Machine:
    """No two policies cost the same, so that a change is either right or wrong."""
    return Machine(quirk={kind: 1 + 0.08 * i for i, kind in enumerate([_KINDS[1], *_KINDS[2:], _KINDS[0]])})


def test_stalls_do_not_change_the_policy(rng: np.random.Generator) -> None:
    run = Run(distinct(), rng, SkipTuner(4))
    run.go(Data(0.05), 40)
    run.restart()
    for _ in range(10):
        run.go(Data(0.05), 1, slowdown=15)
        run.go(Data(0.05), 12)
    assert run.tuner.policy == SkipPolicy(64)
    assert not [each for each in run.changes if each[1] != SkipPolicy(64) and "trial" not in each[2]]


@pytest.mark.parametrize("slower", [3.0, 0.3])
def test_a_machine_that_becomes_slower_keeps_its_policy(rng: np.random.Generator, slower: float) -> None:
    run = Run(distinct(), rng, SkipTuner(4))
    run.go(Data(0.05), 40)
    run.restart()
    run.go(Data(0.05), 100, slowdown=slower)
    assert run.excess < 0.03, run.changes
    assert not [each for each in run.changes if each[1] != SkipPolicy(64) and "trial" not in each[2]]


@pytest.mark.parametrize(("floor", "widths"), [(0, {None}), (32, {None}), (16, {16}), (8, {8, 16})])
def test_lanes_are_narrowed_where_calls_allow_it(floor: int, widths: set[int | None]) -> None:
    rng = np.random.default_rng(2)
    run = Run(Machine(wire=4.0), rng, SkipTuner(4), floor=floor)
    run.go(Data(1.0), 60)
    assert run.tuner.policy.bits in widths
    assert all(p.bits is None or p.bits >= floor for _, p, _ in run.changes)


def test_without_sums_to_look_at_the_union_is_modelled() -> None:
    rng = np.random.default_rng(3)
    run = Run(Machine(), rng, SkipTuner(4), rounded=True)
    run.go(Data(0.1), 10)
    found = run.tuner.densities
    assert found is not None
    assert found.own[2] == pytest.approx(0.1, abs=0.01)
    assert found.union[2] == pytest.approx(1 - 0.9**4, abs=0.02)  # as if independent, knowing nothing else
    # Once it was seen that ranks have the same blocks, that is what is believed.
    run.rounded = False
    run.go(Data(0.1, same=True), 10)
    run.rounded = True
    run.go(Data(0.2, same=True), 10)
    found = run.tuner.densities
    assert found is not None
    assert found.union[2] == pytest.approx(0.2, abs=0.03)


def test_a_decision_that_is_not_carried_out_is_said_again() -> None:
    rng = np.random.default_rng(4)
    run = Run(Machine(), rng, SkipTuner(4, SkipPolicy(dense=True)))
    data = Data(0.01)
    deaf = SkipPolicy(dense=True)
    said = []
    for window in range(60):
        decision = run.tuner.observe(window * 0.5, run.reports(deaf, data, 5.0))
        if decision is not None:
            said.append((window * 0.5, decision.policy))
    assert len({policy for _, policy in said}) == 1
    gaps = np.diff([when for when, _ in said])
    assert len(gaps) >= 3
    assert gaps.min() >= 5


def test_nothing_is_decided_on_little() -> None:
    tuner = SkipTuner(2)
    few = Report(
        sampled_blocks=64, policy_collectives=1, policy_elements=1000, policy_ns=10**9,
        policy_word=SkipPolicy().word(),
    )  # fmt: skip
    for i in range(20):
        assert tuner.observe(float(i), {0: few}) is None  # rank 1 says nothing
    assert tuner.observe(20.0, {1: few}) is None
    assert tuner.observe(21.0, {0: Report(), 1: Report()}) is None
    assert (tuner.policy, tuner.why, tuner.densities) == (SkipPolicy(), "set at admission", None)
    with pytest.raises(UsageError, match="workers is 0"):
        SkipTuner(0)


def test_reports_of_another_policy_teach_no_costs() -> None:
    rng = np.random.default_rng(5)
    run = Run(Machine(), rng, SkipTuner(4))
    for window in range(20):
        run.tuner.observe(window * 0.1, run.reports(SkipPolicy(1024), Data(0.5), 1e6))
    assert not run.tuner.model.ready
    assert run.tuner.densities is not None  # which do not depend on the policy


def test_the_model_knows_costs_of_policies_that_were_never_in_force() -> None:
    machine, model = Machine(noise=0.0), CostModel()
    for density in (1.0, 0.5, 0.2, 0.1, 0.05, 0.01, 0.3, 0.7):
        for _ in range(4):
            data = Data(density)
            model.learn(SkipPolicy(64), known(data), machine.cost(SkipPolicy(64), data))
    for density in (1.0, 0.4, 0.02):
        for kind in (SkipPolicy(dense=True), SkipPolicy(256), SkipPolicy(1024)):
            data = Data(density)
            assert model.predict(kind, known(data)) == pytest.approx(machine.cost(kind, data), rel=0.25)


def known(data: Data) -> Densities:
    own, union = (tuple(data.share(s, ranks) for s in SAMPLED_SIZES) for ranks in (1, data.workers))
    return Densities(own, union)


def test_borders_are_counted_at_the_size_of_the_pieces() -> None:
    # Pieces of 64 elements, half of them there, on one rank alone.
    found = known(Data(0.5, grain=64, workers=1))
    assert found.runs(64) == pytest.approx(0.5 / 64)
    assert found.runs(16) == pytest.approx(0.5 / 64)
    assert found.runs(256) < 0.5 / 64 / 4
    assert known(Data(1.0)).runs(64) == 0
    assert known(Data(0.0)).runs(64) == 0


def test_reports_of_any_numbers_do_no_harm(rng: np.random.Generator) -> None:
    extremes = [0, 1, 2, 48, 1 << 16, 1 << 32, (1 << 63) - 1, (1 << 64) - 1]
    for _ in range(120):
        workers = int(rng.integers(1, 4))
        tuner, now = SkipTuner(workers), 0.0
        wild = rng.random()
        for _ in range(20):
            now += float(rng.choice([0.0, 0.001, 1.0, 10.0]))
            for rank in range(workers):
                numbers = {
                    name: extremes[rng.integers(len(extremes))]
                    if rng.random() < wild
                    else int(rng.integers(1000))
                    for name in FIELDS
                }
                if rng.random() < 0.8:
                    numbers["policy_word"] = tuner.policy.word()
                tuner.observe(now, {rank: Report(**numbers)})


def test_collectives_that_took_no_time_teach_nothing() -> None:
    tuner = SkipTuner(1)
    elements = {f"sampled_own_{size}": 1 << 10 for size in SAMPLED_SIZES[1:]}
    report = Report(
        policy_elements=1 << 20, sampled_blocks=1 << 20, policy_word=tuner.policy.word(), **elements
    )
    assert [tuner.observe(float(second), {0: report}) for second in range(5)] == [None] * 5


def test_a_rank_that_says_ever_new_policies_fills_no_memory() -> None:
    tuner = SkipTuner(2)
    for word in range(10_000):
        tuner.observe(word * 1e-3, {0: Report(policy_elements=1, policy_ns=1, policy_word=word)})
    assert len(tuner._words) < 10

"""The race: its models' gradients, steps that are counted as training takes them, and its short form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.experiments import catalogue
from switchagg.experiments.claims import race
from switchagg.experiments.claims.race import DENSE, LINKS, MODELS, SKIP8, WAYS
from switchagg.experiments.runner import Runner, Settings
from tests.seeds import seed_of_this_run

pytest.importorskip("sklearn", reason="the dense model's data come with scikit-learn")


@pytest.mark.parametrize("name", list(MODELS))
def test_gradients_are_their_losses(name: str) -> None:
    seed = seed_of_this_run()
    task: Any = MODELS[name]()
    x = task.start(seed)
    assert x.shape == (task.dim,)
    assert sum(int(np.prod(shape)) for shape in task.shapes) == task.dim
    gradient = task.gradient(x, seed, 1, 2)
    assert np.array_equal(gradient, task.gradient(x, seed, 1, 2))
    assert not np.array_equal(gradient, task.gradient(x, seed, 1, 3))
    assert (np.count_nonzero(gradient) < task.dim / 4) == (name == "sparse")
    found, state = x.copy(), {}  # type: ignore[var-annotated]
    for step in range(1, 30):
        mean = np.mean([task.gradient(found, seed, step, r) for r in range(race.WORKERS)], axis=0)
        task.update(found, mean.astype(np.float32), state, 0.1, 0.9)
    assert task.loss(found) < task.loss(x) - 0.2


def test_every_way_trains() -> None:
    task: Any = MODELS["dense"]()
    before = task.loss(task.start(3))
    for name, way in WAYS.items():
        _, after = race.steps_to(task, way, 0.05, 3, None, 16 if way.every > 1 else 10)
        assert after < before - 0.02, name
    steps, _ = race.steps_to(task, WAYS[DENSE], 0.05, 3, before - 0.3, 60)
    assert steps is not None
    assert steps % race.LOOK == 0


def test_seconds_are_steps_times_a_step() -> None:
    links = list(LINKS)[:2]
    ways = {
        DENSE: {"rate": 0.1, "steps": [100, 120, 140], "edge": False},
        SKIP8: {"rate": 0.1, "steps": [100, 120, None], "edge": False},
        "rotation, 8 bit": {"rate": 0.2, "steps": [200, 200, 200], "edge": False},
    }
    times = {
        link: {way: {"seconds": each, "low": each, "high": each} for way, each in zip(ways, of, strict=True)}
        for link, of in zip(links, [(0.01, 0.001, 0.02), (0.1, 0.001, 0.02)], strict=True)
    }
    outcome = race.outcome({"dense": {"target": 1.0, "dim": 9, "ways": ways}}, {"dense": times})
    rows = {row[0]: row for row in outcome.tables[0].rows}
    assert rows[DENSE][4:] == (pytest.approx(1.2), pytest.approx(12.0))
    assert rows[SKIP8][2:] == (None, "not by all seeds", None, None)
    assert [check.held for check in outcome.checks] == [False, True]


@pytest.mark.long
def test_short_form_runs() -> None:
    said: list[str] = []
    outcome = race.EXPERIMENT.run(Runner(Settings(quick=True), said.append))
    assert outcome.tables
    assert said


def test_it_is_not_in_all() -> None:
    assert "race" in catalogue.load()
    assert [each.name for each in catalogue.chosen(["race"])] == ["race"]
    assert "race" not in [each.name for each in catalogue.chosen(["all"])]

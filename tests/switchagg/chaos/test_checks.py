"""The checks of `switchagg chaos` find what is wrong, and the faults are drawn as they should be."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from switchagg.chaos.faults import KINDS, Deck
from switchagg.chaos.results import Results
from switchagg.chaos.worker import Array, Checker, Task
from switchagg.cli.main import main
from tests.seeds import seed_of_this_run

TASKS = [Task(dtype, bits, 700, 3, 5) for dtype, bits in (("float32", 32), ("float64", 64), ("int32", 32))]
CALLS = {0: 1 << 24 | 77, 1: 2 << 24 | 4096, 2: 3 << 24 | 4095}


def total(task: Task, places: list[int]) -> Array:
    parts = [Checker(task, place).tensor(CALLS[place]) for place in places]
    return np.sum(parts, axis=0, dtype=task.dtype)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_the_right_sum_of_any_ranks_is_right_and_tells_their_calls(task: Task) -> None:
    for places in ([0, 1, 2], [0, 2], [1]):
        result = total(task, places)
        for place in places:
            checker = Checker(task, place)
            assert checker.error(CALLS[place], tuple(places), result) == ""
            assert checker.calls(result) == [CALLS[each] if each in places else 0 for each in range(3)]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_any_element_that_is_wrong_is_found(task: Task) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    checker = Checker(task, 1)
    for element in [*range(9), *rng.integers(9, 709, 20)]:
        result = total(task, [0, 1, 2])
        result[element] += 1
        assert checker.error(CALLS[1], (0, 1, 2), result), element


def test_ranks_that_are_missing_or_too_many_are_found() -> None:
    task = TASKS[0]
    checker = Checker(task, 0)
    assert "ranks [0, 2] are in it" in checker.error(CALLS[0], (0, 1, 2), total(task, [0, 2]))
    assert "ranks [0, 1, 2] are in it" in checker.error(CALLS[0], (0, 1), total(task, [0, 1, 2]))
    assert "which made call" in checker.error(CALLS[0] + 1, (0, 1), total(task, [0, 1]))


def test_results_that_differ_between_ranks_are_found() -> None:
    results = Results()
    assert results.add("a", 0, [1, 1], 0xAA) == ""
    assert results.add("a", 1, [1, 1], 0xAA) == ""
    assert results.add("b", 0, [1, 1], 0xBB) == ""
    assert results.add("a", 0, [2, 2], 0xCC) == ""
    assert "checksum 0xcc" in results.add("a", 1, [2, 2], 0xDD)
    assert results.add("a", 0, [3, 3], 0xEE) == ""
    assert "call 3 of rank 0 went into two results" in results.add("a", 1, [3, 4], 0xEE)


def test_a_seed_draws_the_same_faults_and_each_kind_before_any_comes_again() -> None:
    seed = seed_of_this_run()
    one, other = (Deck(KINDS, Random(seed)) for _ in range(2))
    drawn = [one.draw() for _ in range(3 * len(KINDS))]
    assert drawn == [other.draw() for _ in drawn]
    assert set(Counter(draw.kind for draw in drawn).values()) == {3}
    for draw in drawn:
        assert draw.kind.seconds[0] <= draw.seconds <= draw.kind.seconds[1]
        assert draw.kind.loss[0] <= draw.loss <= draw.kind.loss[1]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--workers", "1"), "workers is 1; accepted: 2 to 32"),
        (("--jobs", "0"), "jobs is 0; accepted: 1 to 64"),
        (("--seconds", "0"), "seconds is 0.0; accepted: greater than 0"),
        (("--fault", "fire"), "fault is 'fire'; accepted: worker-kill, worker-stop"),
        (("--site", "inside", "--loss", "0.1"), "--loss is of a switch in a process of its own"),
        (("--site", "inside", "--fault", "switch-kill"), "no fault is left"),
    ],
)
def test_options_that_cannot_work(
    option: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", *option]) == 2
    assert message in capsys.readouterr().err

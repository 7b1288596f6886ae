"""The runner: real ranks, a real switch, and functions that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.experiments.runner import Runner, Settings
from switchagg.launch.processes import ProcessError
from tests.switchagg.experiments import functions


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def runner(said: list[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # where ranks find the functions
    return Runner(Settings(quick=True), said.append)


def test_ranks_return_what_the_function_does(runner: Runner, said: list[str]) -> None:
    ran = runner.ranks(functions.add, 3, {"from": 1})
    assert [result["rank"] for result in ran.results] == [0, 1, 2]
    assert all(result["sum"] == [6.0, 6.0, 6.0] for result in ran.results)
    assert all(result["switch"] for result in ran.results)
    assert said == ["added"]
    assert len(ran.cpu_seconds) == 3
    assert min(ran.cpu_seconds) > 0
    assert ran.switch_cpu_seconds > 0
    assert ran.seconds > 0


def test_a_rank_that_is_killed_is_named(runner: Runner) -> None:
    with pytest.raises(ProcessError, match=r"rank 1 \(process \d+\) was killed by SIGKILL"):
        runner.ranks(functions.die, 2, {"who": 1})


def test_a_refusal_comes_as_it_was_said(runner: Runner) -> None:
    with pytest.raises(ProcessError, match=r"rank [01]: half a worker is not accepted"):
        runner.ranks(functions.misuse, 2, {"what": "half a worker"})


def test_a_mistake_in_a_function_is_named(runner: Runner) -> None:
    with pytest.raises(ProcessError, match="ZeroDivisionError"):
        runner.ranks(functions.stumble, 1, {"zero": 0})


def test_silence_ends_the_wait(runner: Runner) -> None:
    with pytest.raises(ProcessError, match=r"no word for 0\.2 s from"):
        runner.ranks(functions.sleep, 1, {"seconds": 60}, silence=0.2)


def test_what_is_given_is_small(runner: Runner) -> None:
    with pytest.raises(ValueError, match="let them load what is large"):
        runner.ranks(functions.add, 1, {"from": "x" * 200_000})

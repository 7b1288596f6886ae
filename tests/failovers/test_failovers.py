"""Switches are killed in the middle of all-reduces, alone and together with the controller, or drained."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

from tests.failovers.run import kills
from tests.seeds import seed_of_this_run


@pytest.mark.parametrize("transport", ["udp", pytest.param("shm", marks=pytest.mark.long)])
def test_a_job_survives_its_switches(tmp_path: Path, transport: str) -> None:
    rng = random.Random(seed_of_this_run())
    done = list(kills(tmp_path, rng, 4, workers=3, elements=1 << 21, transport=transport))
    assert len(done) == 4
    for kill in done:
        assert kill.same, kill


def test_a_job_survives_its_switch_and_its_controller(tmp_path: Path) -> None:
    rng = random.Random(seed_of_this_run())
    for kill in kills(tmp_path, rng, 3, workers=3, elements=1 << 18, transport="udp", controller=True):
        assert kill.same, kill


def test_a_job_survives_the_leaves_of_its_tree(tmp_path: Path) -> None:
    rng = random.Random(seed_of_this_run())
    done = list(kills(tmp_path, rng, 3, workers=4, elements=1 << 20, transport="udp", victim="leaf"))
    assert len(done) == 3
    for kill in done:
        assert kill.same, kill


def test_a_job_moves_off_a_drained_switch_and_back(tmp_path: Path) -> None:
    rng = random.Random(seed_of_this_run())
    done = list(kills(tmp_path, rng, 4, workers=3, elements=1 << 21, transport="udp", victim="drained"))
    assert {kill.switch for kill in done} == {"a", "b"}
    for kill in done:
        assert kill.same, kill

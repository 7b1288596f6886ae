"""One of the switches that a job is dealt to is killed in the middle of all-reduces, or drained."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

import numpy as np

from tests.failovers.run import kills
from tests.seeds import seed_of_this_run
from tests.switchagg.control.drivers.test_two_switches import Site
from tests.worker_lib.harness import processes, say
from worker_lib import Session, SwitchError


@pytest.mark.parametrize("victim", ["switch", pytest.param("drained", marks=pytest.mark.long)])
def test_a_job_survives_one_of_its_switches(tmp_path: Path, victim: str) -> None:
    rng = random.Random(seed_of_this_run())
    done = list(
        kills(tmp_path, rng, 3, workers=3, elements=1 << 20, transport="udp", victim=victim, stripes=2)
    )
    assert len(done) == 3
    for kill in done:
        assert kill.same, kill


@pytest.mark.long
def test_a_job_survives_one_of_its_switches_and_its_controller(tmp_path: Path) -> None:
    rng = random.Random(seed_of_this_run())
    for kill in kills(
        tmp_path, rng, 2, workers=3, elements=1 << 18, transport="udp", controller=True, stripes=2
    ):
        assert kill.same, kill


def _again_and_again(session: Session) -> str:
    x = np.ones(200_000, np.float32)
    try:
        for number in range(100_000):
            session.allreduce(x, blocks="dense")
            x[:] = 1
            if number == 3:
                say("goes")
    except SwitchError as error:
        return str(error)
    return "it never ended"


def test_without_another_switch_all_ranks_end_in_the_same_way(tmp_path: Path) -> None:
    site = Site(tmp_path / "state")
    try:
        where = f"http://127.0.0.1:{site.port}"
        with processes(where, 3, _again_and_again, transport="udp", stripes=2) as ranks:
            for rank in ranks:
                assert rank.hear() == "goes"
            site.kill_switch("b")
            texts = [rank.finish().get() for rank in ranks]
    finally:
        site.close()
    for text in texts:
        assert "switch" in text, texts
        assert "The session is broken: connect again." in text, texts

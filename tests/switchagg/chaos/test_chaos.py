"""`switchagg chaos` as people run it. `processes.command` sees to it that no process is left."""

from __future__ import annotations

import importlib.util
import signal

import pytest

from tests.seeds import seed_of_this_run
from tests.switchagg.cli.processes import command, outcome

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
separate = pytest.mark.skipif(
    importlib.util.find_spec("finsy") is None, reason='needs the extra: pip install "switchagg[p4runtime]"'
)


def test_jobs_under_faults_have_right_sums_and_come_back() -> None:
    seed = str(seed_of_this_run())
    status, out, err = outcome("chaos", "--seconds", "15", "--seed", seed, "--errors", seconds=200)
    assert status == 0, out + err
    assert f"seed {seed}" in err
    assert "WRONG" not in out
    assert "median pause" in out


@separate
def test_sums_that_the_network_has_made_wrong_are_found() -> None:
    options = ["--site", "separate", "--jobs", "2", "--seconds", "20", "--corrupt", "0.02"]
    status, out, err = outcome("chaos", *options, "--fault", "worker-stop", "--seed", "11", seconds=200)
    assert status == 1, out + err
    assert "WRONG: " in out
    assert "(seed 11)" in out
    assert "elements are wrong" in out or "the header" in out or "went into two results" in out, out


def test_ctrl_c_in_the_middle_ends_all() -> None:
    with command(["chaos", "--site", "inside", "--jobs", "1", "--fault", "worker-stop"]) as running:
        assert running.process.stderr is not None
        while " s  worker stopped" not in running.process.stderr.readline():
            assert running.process.poll() is None
        running.process.send_signal(signal.SIGINT)
        status, _, err = running.finish()
        assert status == 130, err

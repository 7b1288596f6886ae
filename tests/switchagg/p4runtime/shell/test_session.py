"""`switchagg shell` on a running switch, beside the controller that drives it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchagg.control.drivers.p4runtime import P4RuntimeDriver
from tests.switchagg.control.drivers import model_switch
from tests.switchagg.p4runtime.shell.conftest import served_engine

pytestmark = [pytest.mark.usefixtures("shell_python"), pytest.mark.timeout(300)]

STATION = """
entry = TableEntry('stations')(action='forward')
entry.match['ethernet_destination'] = '02:00:00:00:00:77'
entry.action['port'] = '7'
entry.insert()
"""


@pytest.fixture(scope="module", params=["p4", "native"])
def server(request: pytest.FixtureRequest, shell_python: Path) -> Iterator[str]:
    del shell_python
    with served_engine(request.param) as made:
        yield made.address


def shell(server: str, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs code in the shell."""
    line = [sys.executable, "-m", "switchagg.cli.main", "shell", server, "-c", code, *options]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=240)


def test_helpers_and_writes_beside_a_controller(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = model_switch.job(3, workers=2, base=32, slots=4, words=64)
    driver = P4RuntimeDriver(model_switch.spec(server))
    try:
        driver.install_job(entry)
        packets = model_switch.inits(entry)
        monkeypatch.setattr(
            "switchagg.control.drivers.p4runtime._PATIENCE", 60.0
        )  # a busy computer echoes late
        assert sorted(driver.packets_out(packets)) == sorted(packets)
        code = """
admission = admissions(3)[0]
workers = [tuple(worker) for worker in jobs()[0].workers]
print([tuple(jobs()[0])[:4], workers, [tuple(each) for each in slots()], counters(3), admission.action])
"""
        run = shell(server, code)
        assert run.returncode == 0, run.stderr
        job, workers, slots, counters, action = ast.literal_eval(run.stdout)
        assert job == (3, 0, 32, 4)
        assert [(bit, ip, port) for bit, ip, port, _ in workers] == [
            (each.bit, each.ip, each.port) for each in entry.workers
        ]
        assert slots == [(32, 35, 3)]
        assert counters == dict(driver.job_counters(3))
        assert counters["inits"] == 4
        assert action in ("initialise", "contribute")

        run = shell(server, "admissions(4)")
        assert run.returncode == 1
        assert "there is no job 4; jobs: [3]" in run.stderr
        run = shell(server, STATION)
        assert run.returncode == 1
        assert "this shell only reads" in run.stderr
        run = shell(server, "pass", "--election", "1")
        assert run.returncode == 1
        assert "another controller has election id" in run.stderr
        # The controller is still primary.
        driver.remove_job(3)
    finally:
        driver.close()


def test_with_an_election_id_it_writes(server: str) -> None:
    election = str(1 << 100)
    run = shell(
        server, STATION + "print(len(list(TableEntry('stations').read())) > 0)", "--election", election
    )
    assert (run.returncode, run.stdout.strip()) == (0, "True"), run.stderr
    run = shell(server, "pass", "--election", "7")
    assert run.returncode == 1
    assert f"a former controller has election id {election}" in run.stderr


def test_exit_status_is_that_of_the_code(server: str) -> None:
    assert shell(server, "raise SystemExit(3)").returncode == 3


def test_servers_that_open_no_session(server: str) -> None:
    run = shell(server, "pass", "--device", "9")
    assert run.returncode == 1
    assert "opens no session for device 9: NOT_FOUND" in run.stderr
    run = shell("127.0.0.1:9", "pass")
    assert run.returncode == 1
    assert "no P4Runtime server can be reached at 127.0.0.1:9" in run.stderr


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (["localhost"], "accepted: HOST:PORT"),
        (["localhost:1", "--election", "0"], "election is 0"),
        (["localhost:1", "--device", "-1"], "device is -1"),
        (["localhost:1", "--cert", "/a"], "one of --cert and --key is missing"),
        (["localhost:1", "--ca", "/nowhere"], "/nowhere cannot be read"),
    ],
)
def test_options_that_cannot_work(line: list[str], problem: str) -> None:
    command = [sys.executable, "-m", "switchagg.cli.main", "shell", *line]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 2
    assert problem in run.stderr

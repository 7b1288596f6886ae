"""Whole runs with tiny tensors and real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from switchagg.bench import allreduce
from switchagg.bench.allreduce import Outcome
from switchagg.bench.grid import DEFAULT, EXACT, Cell, Settings, Variant
from switchagg.bench.group import Group
from switchagg.bench.peers import mpi
from switchagg.bench.peers.gloo import GlooPeer
from switchagg.bench.peers.registry import COMPARABLE, line_up, reasons
from switchagg.bench.peers.switchagg import SwitchaggPeer, flatten
from switchagg.bench.rank import AllReduceRank, Measured
from switchagg.bench.report import table, to_json
from switchagg.cli.main import main
from switchagg.errors import UsageError
from switchagg.launch.cores import shares
from switchagg.launch.processes import ProcessError
from switchagg.report.machine import machine
from tests.cores import needs_two_cores
from tests.waiting import eventually

SWITCHAGG_MISSING = SwitchaggPeer(Settings()).missing()
needs_switchagg = pytest.mark.skipif(SWITCHAGG_MISSING is not None, reason=str(SWITCHAGG_MISSING))
needs_gloo = pytest.mark.skipif(GlooPeer().missing() is not None, reason=str(GlooPeer().missing()))


class Quiet:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.samples = 0
        self.taken = 0
        self.notes: list[str] = []

    def begin(self, samples: int) -> None:
        self.samples = samples

    def cell(self, cell: Cell) -> None:
        pass

    def sample(self, variant: Variant, round_number: int, rounds: int) -> None:
        assert 0 <= round_number < rounds, variant
        self.taken += 1

    def note(self, line: str) -> None:
        self.notes.append(line)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> object:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert not left


def measure(**changes: object) -> tuple[Outcome, Quiet]:
    progress = Quiet()
    given = {
        "workers": (2,),
        "sizes": (65536,),
        "densities": (1.0,),
        "repeat": 2,
        "warmup": 1,
        "timeout": 120.0,
    } | changes
    outcome = allreduce.run(Settings(**given), progress)  # type: ignore[arg-type]
    return outcome, progress


def ended(process: psutil.Process) -> bool:
    """True for a process that has ended; one that nobody has reaped yet counts."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for_ends(processes: list[psutil.Process]) -> None:
    """Waits until all have ended."""
    eventually(lambda: all(map(ended, processes)))


def command(*arguments: str) -> int:
    return main(["bench", "allreduce", *arguments])


RUN_KEYS = {
    "system", "workers", "bytes", "dtype", "bits", "density", "overlap", "loss",
    "seconds", "algbw_GBps", "busbw_GBps", "exact",
}  # fmt: skip


def check_runs(outcome: Outcome, progress: Quiet) -> list[dict[str, object]]:
    assert outcome.ok, progress.notes
    assert progress.taken == progress.samples
    document = json.loads(json.dumps(to_json(Settings(), outcome)))
    assert set(document) >= {"machine", "runs"}
    assert len(document["runs"]) == len(outcome.measurements)
    for run in document["runs"]:
        assert set(run) >= RUN_KEYS
        assert 0 < run["seconds"]["min"] <= run["seconds"]["median"] <= run["seconds"]["max"]
        assert 0 < run["seconds"]["call_p50"] <= run["seconds"]["call_p99"]
        assert run["algbw_GBps"] == pytest.approx(run["bytes"] / run["seconds"]["median"] / 1e9)
        n = run["workers"]
        assert run["busbw_GBps"] == pytest.approx(run["algbw_GBps"] * 2 * (n - 1) / n)
        assert run["exact"] is (None if run["system"] == "udp-floor" else True)
        assert run["system"] in table(outcome)
    return document["runs"]


@needs_gloo
def test_gloo_on_a_grid() -> None:
    outcome, progress = measure(
        compare=("gloo", "gloo-fp16"),
        measure_switchagg=False,
        densities=(1.0, 0.1),
        dtypes=("float32", "int32"),
    )
    runs = check_runs(outcome, progress)
    assert [(run["system"], run["dtype"]) for run in runs] == [
        *[("gloo", "float32"), ("gloo-fp16", "float32")] * 2,
        *[("gloo", "int32")] * 2,
    ]
    half = [run for run in runs if run["system"] == "gloo-fp16"]
    assert all(55 < run["snr_db"]["normal"] < 90 for run in half)  # type: ignore[index]
    assert all("student_t3" in run["snr_db"] for run in half)  # type: ignore[operator]
    assert any("gloo-fp16" in line for line in progress.notes)


@pytest.mark.parametrize(
    "system",
    [
        pytest.param(name, marks=[] if name == "openmpi-shm" else [pytest.mark.long])
        for name in (*mpi.WAYS, "oneccl")
    ],
)
def test_launched_peers(system: str) -> None:
    if missing := reasons()[system]:
        pytest.skip(missing)
    dtypes = ("float32", "int64", "float16")
    outcome, progress = measure(
        compare=(system,), measure_switchagg=False, workers=(3,), sizes=(4096,), dtypes=dtypes
    )
    runs = check_runs(outcome, progress)
    measured = dtypes if system == "oneccl" else dtypes[:2]
    assert [(run["system"], run["dtype"]) for run in runs] == [(system, dtype) for dtype in measured]
    assert progress.notes == ([] if system == "oneccl" else [f"{system}: left out: MPI has no float16"])


@needs_switchagg
@pytest.mark.parametrize("mask", [pytest.param(False, marks=pytest.mark.long), True])
def test_switchagg(mask: bool) -> None:
    outcome, progress = measure(compare=(), densities=(1.0, 0.1), mask=mask, sizes=(1 << 20,))
    runs = check_runs(outcome, progress)
    assert [run["bits"] for run in runs] == ["default", 32, 16, 8] * 4
    assert all(run["stats"]["bytes_sent"] > 0 for run in runs)  # type: ignore[index]


@needs_switchagg
def test_switchagg_through_loss() -> None:
    outcome, progress = measure(compare=(), losses=(0.0, 0.05), bits=(32,), sizes=(1 << 19,), duplicate=0.02)
    runs = check_runs(outcome, progress)
    ways = [(run["transport"], run["loss"]) for run in runs]
    assert ways == [("shm", 0.0), ("udp", 0.0), ("shm", 0.05), ("udp", 0.05)]
    for run in runs:
        assert run["loss"] == 0 or run["stats"]["retransmissions"] > 0  # type: ignore[index]


@needs_switchagg
@pytest.mark.parametrize(
    "dtype",
    ["int64", *(pytest.param(other, marks=pytest.mark.long) for other in ("int32", "float64", "float16"))],
)
def test_switchagg_on_other_types(dtype: str) -> None:
    bits = (32, 64) if dtype.startswith("int") else (DEFAULT, EXACT, 16)
    check_runs(*measure(compare=(), dtypes=(dtype,), bits=bits))


@needs_switchagg
@pytest.mark.long
def test_the_no_op_baseline() -> None:
    outcome, progress = measure(compare=("udp-floor",), bits=(32,), sizes=(1 << 20,))
    runs = check_runs(outcome, progress)
    assert [(run["system"], run["transport"]) for run in runs] == [
        ("switchagg", "slots"),
        ("switchagg", "udp"),
        ("udp-floor", None),
    ]


def test_a_wrong_sum_counts_as_wrong_everywhere() -> None:
    settings = Settings(workers=(2,), sizes=(65536,), densities=(1.0,))
    (cell,) = settings.cells()
    draws = [allreduce.Draw(1, 0, call) for call in range(cell.calls)]
    references = allreduce.reference(cell, draws)
    measurement = allreduce.Measurement(cell, Variant("gloo", 32))
    results = [np.ones(cell.elements, np.float32) for _ in draws]
    measurement.check(draws[0].distribution, references, [(1,), (1,)], results)
    assert measurement.exact is False
    assert "elements wrong" in measurement.complaint
    measurement.add([Measured(1.0, (0.25, 0.75), 0.0, {}, 0.0)], 0.0)
    outcome = Outcome((measurement,), ())
    assert not outcome.ok
    assert "WRONG" in table(outcome)
    assert to_json(settings, outcome)["runs"][0]["exact"] is False


def test_a_call_takes_as_long_as_at_its_slowest_rank() -> None:
    (cell,) = Settings(workers=(2,), sizes=(65536,), densities=(1.0,)).cells()
    measurement = allreduce.Measurement(cell, Variant("gloo", 32))
    for long in (3.0, 5.0):
        ranks = [Measured(9.0, (1.0, long), 0.0, {}, 0.0), Measured(8.0, (2.0, 1.0), 0.5, {}, 0.0)]
        measurement.add(ranks, 0.0)
    assert measurement.call_seconds == [2.0, 3.0, 2.0, 5.0]
    assert (measurement.quantile(0.5), measurement.quantile(0.75), measurement.quantile(0.99)) == (
        2.0,
        3.0,
        5.0,
    )
    assert measurement.seconds == [9.0 / cell.calls] * 2


def test_ranks_that_differ_count_as_wrong() -> None:
    (cell, *_) = Settings(sizes=(65536,), densities=(1.0,)).cells()
    draws = [allreduce.Draw(1, 0, call) for call in range(cell.calls)]
    references = allreduce.reference(cell, draws)
    results = [answer.total.astype(np.float32) for answer in references]
    measurement = allreduce.Measurement(cell, Variant("gloo", 32))
    measurement.check(draws[0].distribution, references, [(1,)] * 4, results)
    assert measurement.exact is True
    measurement.check(draws[0].distribution, references, [(1,), (1,), (2,), (1,)], results)
    assert measurement.exact is False
    assert measurement.complaint == "ranks [2] have other results than rank 0"


@needs_switchagg
@pytest.mark.long
def test_links_of_a_rate() -> None:
    outcome, progress = measure(
        compare=(), rate="100Mbit", sizes=(1 << 18,), densities=(1.0,), bits=(32,), repeat=2
    )
    runs = check_runs(outcome, progress)
    assert {run["transport"] for run in runs} == {"shm", "udp"}
    for run in runs:
        assert run["seconds"]["min"] >= 8 * (1 << 18) / 1e8 - 1e-3  # type: ignore[index]
    assert any("links of 100 Mbit/s are switchagg's alone" in line for line in progress.notes)


@needs_switchagg
def test_a_system_that_cannot_start_is_a_failure_with_a_reason() -> None:
    outcome, progress = measure(compare=(), words=20_000, bits=(32,), transports=("udp",))
    assert not outcome.ok
    (measurement,) = outcome.measurements
    assert "words is 20000" in measurement.failure
    assert any("words is 20000" in note for note in progress.notes)
    assert "failed" in table(outcome)


def test_a_cell_that_every_system_refuses() -> None:
    settings = Settings(workers=(2,), dtypes=("float16",))
    (cell, *_) = settings.cells()
    with allreduce._Groups(settings, allreduce.Lineup({}, (), ()), 2, print) as groups:
        assert groups.measure(cell, [], Quiet()) == []


@needs_gloo
def test_a_rank_that_dies_is_a_failure_with_a_reason() -> None:
    with Group(GlooPeer(), 2, 120.0, AllReduceRank) as group:
        os.kill(group.processes.children[1].pid, signal.SIGKILL)
        eventually(lambda: group.processes.children[1].status is not None or group.processes.wait(0.1))
        (cell, *_) = Settings(workers=(2,), sizes=(4096,)).cells()
        with pytest.raises(ProcessError, match=r"rank 1 ended|rank 1 hung up|was killed by SIGKILL"):
            group.command(lambda _: cell, type(None), 120.0)


@needs_gloo
@needs_two_cores
def test_each_rank_has_its_share_of_the_cores() -> None:
    with Group(GlooPeer(), 2, 120.0, AllReduceRank) as group:
        found = [os.sched_getaffinity(child.pid) for child in group.processes.children]
    assert found == shares(os.sched_getaffinity(0), 2)


@needs_two_cores
@pytest.mark.parametrize("transport", ["slots", "udp"])
def test_ranks_are_bound_where_the_switch_needs_no_core(transport: str) -> None:
    with Group(SwitchaggPeer(Settings(), transport=transport), 2, 120.0, AllReduceRank) as group:
        found = [os.sched_getaffinity(child.pid) for child in group.processes.children]
    own = os.sched_getaffinity(0)
    assert found == (shares(own, 2) if transport == "slots" else [own, own])


@needs_gloo
def test_what_a_rank_raises_reaches_the_parent() -> None:
    with (
        Group(GlooPeer(), 2, 120.0, AllReduceRank) as group,
        pytest.raises(ProcessError, match="TypeError: no such command: 'dance'"),
    ):
        group.command(lambda _: "dance", type(None), 120.0)


@needs_gloo
def test_ranks_end_when_the_parent_is_killed() -> None:
    code = (
        "import time\n"
        "from switchagg.bench.group import Group\n"
        "from switchagg.bench.peers.gloo import GlooPeer\n"
        "from switchagg.bench.rank import AllReduceRank\n"
        "group = Group(GlooPeer(), 2, 120.0, AllReduceRank)\n"
        "print(*[process.pid for process in group.processes.children], flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    ranks = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(ranks) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for_ends(ranks)


@needs_gloo
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(number: signal.Signals) -> None:
    arguments = ["bench", "allreduce", "--size", "4K", "--compare", "gloo", "--repeat", "1000"]
    run = subprocess.Popen(
        [sys.executable, "-m", "switchagg.cli.main", *arguments], stderr=subprocess.PIPE, text=True
    )
    assert run.stderr is not None
    for line in run.stderr:
        if line.startswith("[0/"):
            break
    parent = psutil.Process(run.pid)
    eventually(lambda: len(parent.children(recursive=True)) >= 4)
    children = parent.children(recursive=True)
    run.send_signal(number)
    run.communicate(timeout=240)  # a full pipe would hold the command up
    assert run.returncode in (130, 143)
    wait_for_ends(children)


@needs_switchagg
def test_switch_and_ranks_end_when_the_command_is_killed() -> None:
    arguments = [
        "bench",
        "allreduce",
        "--workers",
        "2",
        "--size",
        "4K",
        "--compare",
        "none",
        "--transport",
        "udp",
        "--repeat",
        "100000",
    ]
    run = subprocess.Popen(
        [sys.executable, "-m", "switchagg.cli.main", *arguments], stderr=subprocess.DEVNULL
    )
    parent = psutil.Process(run.pid)
    # The switch, the guardian, two ranks, and nothing that ends by itself.
    eventually(lambda: len(parent.children(recursive=True)) == 4)
    time.sleep(1)
    children = parent.children(recursive=True)
    assert len(children) == 4
    run.kill()
    run.wait()
    wait_for_ends(children)


@pytest.fixture
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither an environment of a system's own, nor an mpiexec beside this Python or on PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/proc/nonexistent")
    monkeypatch.setattr(sys, "executable", "/proc/nonexistent/python")


@pytest.mark.usefixtures("_nothing_installed")
@pytest.mark.parametrize(
    ("system", "reason"),
    [
        ("openmpi-shm", "Open MPI is not installed (switchagg bench peers --install openmpi; Debian: apt"),
        (
            "mpich",
            "MPICH is not installed (switchagg bench peers --install mpich; Debian: apt install mpich)",
        ),
        ("intelmpi", "Intel MPI is not installed (switchagg bench peers --install intelmpi)"),
        ("oneccl", "oneCCL is not installed (switchagg bench peers --install oneccl)"),
    ],
)
def test_what_is_not_there_is_left_out_in_one_line(system: str, reason: str) -> None:
    with pytest.raises(UsageError, match="nothing to measure") as error:
        line_up(Settings(compare=(system,), measure_switchagg=False))
    assert f"{system}: left out: {reason}" in str(error.value)


@pytest.mark.usefixtures("_nothing_installed")
def test_peers_lists_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert tuple(lines) == COMPARABLE
    assert "MPICH is not installed" in lines["mpich"]


def test_an_unknown_peer_is_refused_before_any_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["bench", "peers", "--install", "mpich,ucc"]) == 2
    assert "install is ucc; accepted: openmpi, mpich, intelmpi, oneccl" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_mpiexec_of_another_implementation_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = tmp_path / "mpiexec"
    other.write_text("#!/bin/sh\necho 'mpiexec (Another MPI) 1.0'\n")
    other.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "MPICH is not installed" in str(mpi.MpiPeer(mpi.WAYS["mpich"]).missing())
    other.write_text("#!/bin/sh\necho 'HYDRA build details:'\n")
    mpi.identity.cache_clear()
    monkeypatch.setattr(mpi, "find_spec", lambda _: object())
    assert mpi.MpiPeer(mpi.WAYS["mpich"]).missing() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "0"), "size is 0"),
        (("--workers", "1"), "workers is 1; accepted: 2 to 32"),
        (("--workers", "33"), "workers is 33"),
        (("--workers", "two"), "workers: cannot read 'two'"),
        (("--density", "0"), "density is 0"),
        (("--density", "1.5"), "density is 1.5"),
        (("--overlap", "some"), "overlap"),
        (
            ("--compare", "gloo,nccl"),
            "compare is nccl; accepted: gloo, gloo-fp16, openmpi-tcp, openmpi-shm, mpich, intelmpi",
        ),
        (("--bits", "7"), "bits"),
        (("--json", "/proc/nonexistent/out.json"), "no folder"),
    ],
)
def test_bad_parameters_end_with_status_2_and_a_clear_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


@needs_gloo
def test_the_command_writes_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = [
        "--workers",
        "2",
        "--size",
        "4K",
        "--density",
        "1",
        "--bits",
        "32",
        "--repeat",
        "1",
        "--warmup",
        "0",
    ]
    status = command(*arguments, "--compare", "gloo", "--json", str(out))
    captured = capsys.readouterr()
    if SWITCHAGG_MISSING is None:
        assert status == 0, captured.err
    document = json.loads(out.read_text())
    assert "gloo" in {run["system"] for run in document["runs"]}
    assert "2 workers, 4K float32, density 1" in captured.out
    assert "x gloo" in captured.out
    assert "\x1b" not in captured.out + captured.err


def test_the_machine_is_described() -> None:
    facts = machine()
    assert set(facts) >= {"cpu", "cores", "kernel", "memory_bytes", "python", "numpy", "torch", "rmem_max"}
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > 1 << 20


def test_counters_come_out_flat() -> None:
    assert flatten({"a": 1, "seconds": {"wire": 0.5}, "name": "x", "on": True}) == {
        "a": 1,
        "seconds.wire": 0.5,
    }

"""A P4 program in the model as the switch on a real socket."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from switchagg.cli.main import main
from switchagg.emulator.faults import Faults
from switchagg.emulator.p4_jobs import P4Jobs
from switchagg.emulator.p4_switch import P4Switch
from switchagg.errors import SwitchError, UsageError
from switchagg.rules.slots import JobEntry, WorkerEntry
from tests.seeds import seed_of_this_run
from tests.switchagg.emulator.plain_workers import PlainWorkers, reduce_rounds
from tests.switchagg.emulator.test_switch_command import event, job_file, started
from tests.switchagg.p4model.sources import V1MODEL
from tests.waiting import eventually

PROGRAMS = Path(__file__).parents[3] / "p4"
SMALL = ("AGG_WORDS=16", "AGG_SLOTS=64")


@pytest.mark.parametrize("program", ["switchagg_v1model.p4", "switchagg_tna.p4"])
def test_workers_get_their_sums(program: str) -> None:
    seed = seed_of_this_run()
    with (
        P4Switch(PROGRAMS / program, defines=SMALL) as switch,
        PlainWorkers(3, first_seq=2**32 - 4) as workers,
    ):
        workers.join(switch)  # type: ignore[arg-type]
        reduce_rounds(workers, 12, np.random.default_rng(seed))
        eventually(lambda: switch.port_counters()["packets_out"] == 36)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"hello", switch.address)
            eventually(lambda: switch.counters()["truncated"] == 1)
        assert switch.port_counters()["packets_in"] == 37
        counters = switch.counters()
        assert (counters["accepted"], counters["results"], counters["truncated"]) == (36, 12, 1)
        assert counters["inits"] == workers.entry.slots
        assert switch.job_counters(1)["worker_2_packets"] == 12
        slot = switch.slot(0)
        assert slot.seen == 0b111
        assert switch.failure is None
        switch.remove_job(1)
        assert switch.counters()["accepted"] == 36
        with pytest.raises(UsageError, match="no job 1"):
            switch.job_counters(1)


def test_jobs_that_do_not_fit() -> None:
    jobs = P4Jobs(PROGRAMS / "switchagg_v1model.p4", defines=SMALL)
    worker = WorkerEntry(0, "127.0.0.1", 4000, 1)
    with pytest.raises(UsageError, match=r"job 1 has 32 words a packet; this program is made for 16"):
        jobs.add_job(JobEntry(1, 0, 8, 32, 9, (worker,)))
    with pytest.raises(UsageError, match="64"):
        jobs.add_job(JobEntry(1, 64, 8, 16, 9, (worker,)))
    jobs.add_job(JobEntry(1, 0, 8, 16, 9, (worker,)))
    many = tuple(WorkerEntry(i, f"10.0.0.{i}", 4000, i) for i in range(1, 32))
    jobs.add_job(JobEntry(2, 8, 8, 16, 9, many))
    more = tuple(WorkerEntry(i, f"10.0.1.{i}", 4000, i) for i in range(1, 32))
    with pytest.raises(UsageError, match="workers of more than 47 addresses"):
        jobs.add_job(JobEntry(3, 16, 8, 16, 9, more))
    with pytest.raises(UsageError, match=r"192\.0\.2\.1 is the address of the switch"):
        jobs.add_job(JobEntry(4, 24, 8, 16, 9, (WorkerEntry(0, "192.0.2.1", 4000, 1),)))
    with pytest.raises(UsageError, match="AGG_WORDS is '²'"):
        P4Jobs(PROGRAMS / "switchagg_v1model.p4", defines=["AGG_WORDS=²"])
    with pytest.raises(UsageError, match="AGG_WORDS is 'x'"):
        P4Jobs(PROGRAMS / "switchagg_v1model.p4", defines=["AGG_WORDS=x"])


def test_a_program_that_serves_no_jobs(tmp_path: Path) -> None:
    program = tmp_path / "other.p4"
    program.write_text(V1MODEL.format(top="", parser="transition accept;", ingress="apply { }"))
    with pytest.raises(
        UsageError, match=r"has no table SwitchIngress\.frames\.admission\.admission; jobs run on"
    ):
        P4Jobs(program)


def test_a_port_in_use() -> None:
    program = PROGRAMS / "switchagg_v1model.p4"
    with P4Switch(program, defines=SMALL) as switch:
        with pytest.raises(SwitchError, match="in use"):
            P4Switch(program, *switch.address, defines=SMALL).start()
        with pytest.raises(SwitchError, match="started already"):
            switch.start()
    with pytest.raises(UsageError, match="Cannot assign"):
        P4Switch(program, "192.0.2.7", defines=SMALL).start()


def test_the_command_serves_until_a_signal(tmp_path: Path) -> None:
    program = str(PROGRAMS / "switchagg_v1model.p4")
    with PlainWorkers(2) as workers:
        jobs = job_file(tmp_path / "job.json", workers)
        macros = [word for define in SMALL for word in ("-D", define)]
        with started(
            "--engine", "p4", "--program", program, *macros, "--json", "--job", str(jobs)
        ) as process:
            ready = event(process)
            assert (ready["event"], ready["engine"], ready["jobs"]) == ("ready", "p4", [1])
            workers.at((ready["address"], ready["port"]))
            reduce_rounds(workers, 6, np.random.default_rng(1))
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (0, "")
        stopped = json.loads(output)
        assert stopped["counters"]["results"] == 6
        assert stopped["port"]["packets_in"] == 12


def test_faults() -> None:
    seed = seed_of_this_run()
    rng = np.random.default_rng(seed)
    faults = Faults(loss=0.2, duplicate=0.2, reorder=0.2, jitter=1e-3, seed=seed)
    with (
        P4Switch(PROGRAMS / "switchagg_v1model.p4", defines=SMALL, faults=faults) as switch,
        PlainWorkers(2) as workers,
    ):
        assert switch.faults == faults
        workers.join(switch)  # type: ignore[arg-type]
        for each in workers.sockets:
            each.settimeout(0.02)
        for seq in range(20):
            words = rng.integers(0, 2**32, (2, 16), dtype=np.uint32)
            missing = {0, 1}
            while missing:
                for bit in sorted(missing):
                    workers.send(bit, seq, words[bit])
                    with contextlib.suppress(TimeoutError):
                        while bit in missing:
                            header, got = workers.receive(bit)
                            if header.seq == seq:
                                np.testing.assert_array_equal(got, words.sum(0, np.uint32))
                                missing.discard(bit)

        def all_delayed() -> bool:  # repeats may still be on their way
            counters, port = switch.fault_counters(), switch.port_counters()
            passed_in = port["packets_in"] - counters["lost_in"] + counters["duplicated_in"]
            return counters["delayed_in"] == passed_in

        eventually(all_delayed)
        counters = switch.fault_counters()
    assert counters["lost_in"] + counters["lost_out"] > 0
    assert counters["duplicated_in"] + counters["duplicated_out"] > 0
    assert switch.failure is None


def test_everything_lost() -> None:
    program = PROGRAMS / "switchagg_v1model.p4"
    with P4Switch(program, defines=SMALL, faults=Faults(loss=1.0)) as switch, PlainWorkers(1) as workers:
        workers.join(switch)  # type: ignore[arg-type]
        for seq in range(30):
            workers.send(0, seq)
        eventually(lambda: switch.fault_counters()["lost_in"] == 30)
        assert switch.counters()["accepted"] == 0
        assert switch.port_counters()["packets_out"] == 0


def test_the_command_injects_faults(tmp_path: Path) -> None:
    with PlainWorkers(1) as workers:
        jobs = job_file(tmp_path / "job.json", workers)
        options = [word for define in SMALL for word in ("-D", define)]
        options += ["--job", str(jobs), "--duplicate", "1", "--seed", "5", "--json"]
        with started(
            "--engine", "p4", "--program", str(PROGRAMS / "switchagg_v1model.p4"), *options
        ) as process:
            ready = event(process)
            assert ready["seed"] == 5
            workers.at((ready["address"], ready["port"])).send(0, 0)
            # The repeat is answered too, and each answer comes twice.
            assert [workers.receive(0)[0].seq for _ in range(4)] == [0, 0, 0, 0]
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (0, "")
        faults = json.loads(output)["faults"]
        assert (faults["duplicated_in"], faults["duplicated_out"], faults["lost_in"]) == (1, 2, 0)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (["--program", "x.p4"], "--program, -D and -I are for --engine p4"),
        (["--engine", "p4", "--program", "x.p4", "--loss", "2"], "loss is 2.0"),
        (["--engine", "p4", "--program", "x.p4", "--pcap", "x"], "writes no capture"),
        (["--engine", "p4", "--program", "x.p4", "--rate", "1Gbit"], "no particular --rate"),
        (["--engine", "p4", "--program", "x.p4"], "x.p4"),
    ],
)
def test_what_cannot_work(line: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["switch", "--port", "0", *line]) == 2
    assert problem in capsys.readouterr().err


def test_nothing_but_standard_library_until_the_engine_is_asked_for() -> None:
    code = "import sys, switchagg.cli.switch; print([name for name in sys.modules if 'p4model' in name])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

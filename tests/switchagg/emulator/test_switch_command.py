"""`switchagg switch` as a person starts and stops it."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from switchagg.cli.main import main
from switchagg.cli.static_jobs import load_jobs
from switchagg.errors import UsageError
from tests.switchagg.emulator.plain_workers import PlainWorkers, reduce_rounds

COMMAND = [sys.executable, "-m", "switchagg.cli.main", "switch"]


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def event(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(f"it ended: {process.stderr.read()}")
    loaded: dict[str, Any] = json.loads(line)
    return loaded


def job_file(path: Path, *workers: PlainWorkers, first_seq: int = 0) -> Path:
    jobs = [{**asdict(each.entry), "first_seq": first_seq} for each in workers]
    path.write_text(json.dumps(jobs if len(jobs) > 1 else jobs[0]))
    return path


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal(stop: signal.Signals, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    pcap = tmp_path / "capture.pcap"
    with PlainWorkers(2, first_seq=2**32 - 4) as workers:
        jobs = job_file(tmp_path / "job.json", workers, first_seq=2**32 - 4)
        with started("--json", "--job", str(jobs), "--pcap", str(pcap)) as process:
            ready = event(process)
            assert ready["event"] == "ready"
            assert ready["pid"] == process.pid
            assert ready["jobs"] == [1]
            assert ready["receive_buffer"] > 0
            address = (ready["address"], ready["port"])
            workers.at(address)
            reduce_rounds(workers, 20, np.random.default_rng(seed))
            assert psutil.Process(process.pid).children(recursive=True) == []
            process.send_signal(stop)
            output, errors = process.communicate(timeout=240)
        assert process.returncode == 0
        assert errors == ""
        stopped = json.loads(output)
        assert stopped["event"] == "stopped"
        assert stopped["counters"]["results"] == 20
        assert stopped["port"]["packets_in"] == stopped["port"]["packets_out"] == 40
        assert stopped["capture"] == {"captured": 80, "missing": 0, "error": 0}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(address)


def test_stops_under_a_flood(tmp_path: Path) -> None:
    with PlainWorkers(1, first_seq=8) as workers:
        jobs = job_file(tmp_path / "job.json", workers, first_seq=8)
        with started("--json", "--job", str(jobs)) as process:
            ready = event(process)
            workers.at((ready["address"], ready["port"]))
            packet = workers.packet(0, 0)
            for sent in range(20_000):
                if sent == 1000:
                    process.send_signal(signal.SIGTERM)
                workers.send_bytes(0, packet)
            assert process.wait(timeout=240) == 0


def test_speaks_to_people(tmp_path: Path) -> None:
    with PlainWorkers(1) as workers:
        jobs = job_file(tmp_path / "job.json", workers)
        options = ["--loss", "0.5", "--seed", "9", "--no-offload", "--stats-interval", "0.05"]
        with started("--job", str(jobs), *options) as process:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert re.match(r"switch ready on 127\.0\.0\.1:\d+, 65536 slots, 1 jobs, .*no offload", ready)
            assert "loss=0.5" in process.stdout.readline()
            assert process.stdout.readline().startswith("in 0 packets")
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert "switch stopped" in output
    assert "inits 8" in output


def test_threads(tmp_path: Path) -> None:
    with (
        PlainWorkers(2, slots=256) as workers,
        started("--threads", "3", "--job", str(job_file(tmp_path / "job.json", workers))) as process,
    ):
        assert process.stdout is not None
        ready = re.match(r"switch ready on ([\d.]+):(\d+), .*, 3 threads$", process.stdout.readline())
        assert ready
        workers.at((ready[1], int(ready[2])))
        reduce_rounds(workers, 600, np.random.default_rng(3))
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert "results 600" in output


def test_more_signals_do_not_cut_the_stop_short() -> None:
    with started("--json") as process:
        event(process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=240)
    assert json.loads(output)["event"] == "stopped"


def test_reader_gone() -> None:
    with started("--stats-interval", "0.01") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        try:
            process.wait(timeout=0.5)
            raise AssertionError("a closed pipe ended it")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=240) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "99999"], "port is 99999"),
        (["--host", "203.0.113.7"], "203.0.113.7, which is no address of this host"),
        (["--loss", "2"], "loss is 2.0; accepted: a probability, 0..1"),
        (["--capacity", "0"], "capacity"),
        (["--job", "/proc/nonexistent.json"], "job file /proc/nonexistent.json: No such file"),
        (["--pcap", "/proc/nonexistent/file"], "pcap is /proc/nonexistent/file"),
        (["--stats-interval", "-1"], "stats-interval is -1.0"),
        (["--engine", "abacus"], "abacus"),
        (["--threads", "0"], "threads is '0'; accepted: 1..64, or auto"),
        (["--threads", "2", "--loss", "0.1"], "threads is 2"),
        (["--threads", "2", "--engine", "p4"], "--threads is for --engine native on a UDP port"),
        (["--threads", "2", "--interface", "1=lo"], "--threads is for --engine native on a UDP port"),
    ],
)
def test_values_that_cannot_work(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["switch", "--port", "0", *arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert message in capsys.readouterr().err


def test_port_in_use() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, "--port", port], capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == 1
    assert f"UDP port {port} of 127.0.0.1 is in use" in done.stderr
    assert "Traceback" not in done.stderr


GOOD: dict[str, Any] = {
    "job": 1,
    "base": 0,
    "slots": 8,
    "words": 16,
    "result_token": 5,
    "workers": [{"bit": 0, "ip": "127.0.0.1", "port": 4000, "token": 1}],
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("7", "a job is an object, not 7"),
        ([GOOD, 8], r"job \[1\]: a job is an object, not 8"),
        ({k: v for k, v in GOOD.items() if k not in ("job", "words")}, "job, words missing"),
        ({**GOOD, "wrods": 16}, "unknown wrods; known are job"),
        ({**GOOD, "slots": 7}, "slots is 7; accepted: a power of two"),
        ({**GOOD, "slots": "8"}, 'slots is "8"; accepted: a whole number'),
        ({**GOOD, "slots": True}, "slots is true; accepted: a whole number"),
        ({**GOOD, "slots": 8.0}, "slots is 8.0; accepted: a whole number"),
        ({**GOOD, "touch": 1}, "touch is 1; accepted: true or false"),
        ({**GOOD, "workers": 3}, "workers is 3; accepted: a list"),
        ({**GOOD, "workers": []}, "0 workers"),
        ({**GOOD, "workers": [4]}, r"worker \[0\]: an object is expected, not 4"),
        ({**GOOD, "workers": [{**GOOD["workers"][0], "ip": "x"}]}, r"worker \[0\]: ip is 'x'"),
        ({**GOOD, "first_seq": 2**32}, "first_seq is 4294967296"),
        ({**GOOD, "first_seq": "0"}, 'first_seq is "0"; accepted: a whole number'),
    ],
)
def test_job_files_that_cannot_work(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UsageError, match=message) as caught:
        load_jobs(path)
    assert str(path) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user other than root, who reads everything")
def test_unreadable_job_file(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.touch(mode=0)
    with pytest.raises(UsageError, match="Permission denied"):
        load_jobs(path)

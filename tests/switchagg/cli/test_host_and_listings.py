"""`switchagg host`, and `jobs`, `slots`, `stats` that look into it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from switchagg.cli.main import main
from tests.switchagg.cli.processes import SWITCHAGG, Command, command, outcome
from tests.waiting import eventually
from tests.worker_lib.harness import ended
from worker_lib.join import Membership, join


@contextmanager
def hosting(*arguments: str) -> Iterator[tuple[Command, dict[str, Any]]]:
    with command(["host", "--slots", "16", *arguments]) as running:
        assert running.process.stdout is not None
        yield running, json.loads(running.process.stdout.readline())
        if running.process.poll() is None:
            assert running.process.stdin is not None
            running.process.stdin.close()
            running.process.stdin = None


def join_all(url: str, job: str, world_size: int) -> list[Membership]:
    def one(rank: int) -> Membership:  # which sends no heartbeats
        return join(url, job, rank, world_size, "127.0.0.1", 43000 + rank, timeout=100, deadline=600)

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(one, range(world_size)))


def test_announcement() -> None:
    with hosting() as (running, said):
        assert said["pid"] == running.process.pid
        assert said["controller"].startswith("http://127.0.0.1:")
        assert said["switch"]["address"] == "127.0.0.1"
        host, port = said["controller"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))):
            pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_at_once(number: signal.Signals) -> None:
    with hosting() as (running, said):
        (member,) = join_all(said["controller"], "a", 1)
        running.process.send_signal(number)
        status, _, err = running.finish()
        assert (status, err) == (0, "")
        assert ended(member._held.stream)


def test_end_of_input_ends_it_when_the_ranks_have_left() -> None:
    with hosting() as (running, said):
        (member,) = join_all(said["controller"], "a", 1)
        assert running.process.stdin is not None
        running.process.stdin.close()
        running.process.stdin = None
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(0.3)
        member.leave()
        assert running.finish()[0] == 0


def test_it_goes_on_without_input() -> None:
    with command(["host", "--ignore-stdin"]) as running:
        assert running.process.stdin is not None
        running.process.stdin.close()
        running.process.stdin = None
        assert running.process.stdout is not None
        assert json.loads(running.process.stdout.readline())
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(0.3)
        running.process.terminate()
    # /dev/null is nobody's other end.
    with subprocess.Popen(
        [*SWITCHAGG, "host"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.terminate()
        assert process.wait(60) == 0


def test_it_uses_no_cpu_while_idle() -> None:
    with hosting() as (_, said):
        members = join_all(said["controller"], "a", 2)
        process = psutil.Process(said["pid"])
        switches = process.num_ctx_switches().voluntary
        time.sleep(1)
        # A thread that polls, however slowly, is woken again and again.
        assert process.num_ctx_switches().voluntary - switches < 10
        for member in members:
            member.leave()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--port", "70000"], 2, "port is 70000; accepted: 1..65535"),
        (["--controller-port", "-1"], 2, "controller_port is -1"),
        (["--host", "0.0.0.0"], 2, "host is 0.0.0.0; workers are told where to send"),
        (["--loss", "1.5"], 2, "loss is 1.5; accepted: a probability"),
        (["--capacity", "0"], 2, "capacity"),
        (["--slots", "12"], 2, "slots is 12; accepted: a power of two"),
        (["--words", "20000"], 2, "words is 20000; accepted: 16..16000"),
        (["--parent", "4194304"], 2, "parent is 4194304: no such process"),
        (["--pcap", "/proc/nonexistent/file"], 2, "/proc/nonexistent/file"),
    ],
)
def test_what_it_cannot_do(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["host", *arguments]) == status
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)


def test_ports_in_use() -> None:
    with hosting() as (_, said):
        port = said["controller"].rpartition(":")[2]
        status, _, err = outcome("host", "--controller-port", port)
        assert (status, "Address already in use" in err) == (1, True)
        status, _, err = outcome("host", "--port", str(said["switch"]["port"]))
        assert (status, "in use" in err) == (1, True)


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs a command line in this process; returns status, output and errors."""

    def run(*line: str) -> tuple[int, str, str]:
        return main(line), *capsys.readouterr()

    return run


def test_listings(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosting("--capacity", "64") as (_, said):
        url = said["controller"]
        assert outcome("jobs", "--controller", url) == (0, f"no jobs at {url}\n", "")
        monkeypatch.setenv("SWITCHAGG_CONTROLLER", url)
        assert "64 of 64 slots free" in say("slots")[1]
        assert say("stats")[1] == "nothing has been counted yet\n"
        members = join_all(url, "train", 3)
        out = say("slots")[1]
        assert out.startswith("48 of 64 slots free, 32 in one range; ")
        assert out.splitlines()[2].split() == ["0", "15", "16", str(members[0].words), "train"]
        assert json.loads(say("slots", "--json")[1])["ranges"][0]["name"] == "train"
        assert "waits for anybody" in say("slots", "--job", "train")[1]
        status, _, err = say("slots", "--job", "other")
        assert (status, "there is no job 'other'" in err) == (1, True)

        out = say("stats")[1]
        assert ["inits", "16", "16"] in [line.split() for line in out.splitlines()]
        stats = json.loads(say("stats", "--json")[1])
        assert stats["switch"]["inits"] == 16
        assert stats["jobs"][0]["name"] == "train"

        members[1].close_descriptors()
        eventually(lambda: members[0].standing()[0] == (1,))
        members[2].leave()
        status, out, err = say("jobs")
        assert (status, err) == (0, "")
        heading, line, *_ = out.splitlines()
        columns = dict(zip(re.split(r"\s{2,}", heading), re.split(r"\s{2,}", line), strict=True))
        assert {
            name: columns[name] for name in ("id", "job", "state", "ranks", "missing", "lost", "left")
        } == {
            "id": str(members[0].job),
            "job": "train",
            "state": "failed",
            "ranks": "1/3",
            "missing": "-",
            "lost": "1",
            "left": "2",
        }
        assert (columns["slots"], columns["words"]) == ("16", str(members[0].words))
        assert re.fullmatch(r"\d+m?\d*s", columns["age"])
        (job,) = json.loads(say("jobs", "--json")[1])["jobs"]
        assert (job["name"], job["lost"]) == ("train", [1])

        assert say("slots")[1].startswith("64 of 64 slots free")
        members[0].leave()


@pytest.mark.parametrize("name", ["jobs", "slots", "stats"])
def test_listings_without_a_controller(name: str, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_CONTROLLER", "")
    status, out, err = say(name)
    assert (status, out) == (2, "")
    assert "no controller named: give --controller http://host:port or set SWITCHAGG_CONTROLLER" in err
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        status, out, err = say(name, "--controller", url)
    assert (status, out) == (1, "")
    assert f"no controller at {url}: connection refused; start one with" in err

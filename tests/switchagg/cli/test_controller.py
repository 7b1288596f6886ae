"""`switchagg controller` and `switchagg tenant`, as processes."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.cli.main import main
from switchagg.control.client import ControllerClient
from switchagg.errors import AdmissionError
from tests.switchagg.cli.processes import outcome
from tests.waiting import eventually
from tests.worker_lib.harness import in_threads
from worker_lib.join import join

ROOT = Path(__file__).parents[3]


@dataclass
class Running:
    process: subprocess.Popen[str]
    said: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.said["controller"])

    def end(self, number: int = signal.SIGTERM) -> str:
        """Ends it by a signal and returns its log."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=240)[1]


@contextlib.contextmanager
def controller(*arguments: object) -> Iterator[Running]:
    line = [sys.executable, "-m", "switchagg.cli.main", "controller", "--listen", "127.0.0.1:0", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "STATE_DIRECTORY"}
    with subprocess.Popen(
        [*line, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            if not first:
                pytest.fail(process.communicate()[1])
            yield Running(process, json.loads(first))
        finally:
            process.kill()


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tenant(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Say:
    def say(*arguments: str) -> tuple[int, str, str]:
        status = main(["tenant", *arguments, "--state", str(tmp_path)])
        return status, *capsys.readouterr()

    return say


def test_tenants_come_and_go_while_it_runs(tmp_path: Path, tenant: Say) -> None:
    status, token, _ = tenant("add", "alice", "--jobs", "1", "--memory", "64M")
    assert status == 0
    with controller("--state", tmp_path, "--switch", "a=native:64", "--log-format", "json") as running:
        assert running.said["switches"] == {"a": "native"}
        assert running.said["warnings"] == []
        client = ControllerClient(running.url, timeout=60.0, token=token.strip())
        assert client.jobs() == []
        with pytest.raises(AdmissionError, match="no token came"):
            ControllerClient(running.url, timeout=60.0, token=None).jobs()
        second = tenant("token", "alice", "--revoke")[1]
        with pytest.raises(AdmissionError, match="is not, or no longer, a tenant's"):
            client.jobs()
        member = join(running.url, "x", 0, 1, "127.0.0.1", 42000, timeout=100, credential=second.strip())
        assert (
            ControllerClient(running.url, timeout=60.0, token=second.strip()).jobs()[0]["tenant"] == "alice"
        )
        logged = running.end()
        assert running.process.returncode == 0
        told = member.next_event(120)
        assert told is not None
        assert (told["event"], told["jobs"]) == ("stopping", "stay")
        assert member.next_event(120) is None
        member.close_stream()
    lines = [json.loads(line) for line in logged.splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, lines))
    asked = [line for line in lines if line["message"].startswith("GET /v1/jobs ")]
    assert {line["status"] for line in asked} == {200, 401}
    secrets = (token.strip(), second.strip(), str(member.token), str(member.result_token))
    assert [secret for secret in secrets if secret in logged] == []
    # Every file is for its owner alone, and does not hold the token itself.
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o077 == 0
        assert token.strip().encode() not in file.read_bytes()


def test_one_state_one_controller(tmp_path: Path) -> None:
    with controller("--state", tmp_path) as running:
        status, out, err = outcome("controller", "--listen", "127.0.0.1:0", "--state", str(tmp_path))
        assert (status, out) == (1, "")
        assert str(tmp_path) in err
        assert "Traceback" not in err
        assert ControllerClient(running.url, timeout=60.0).health()["status"] == "ok"
        running.end(signal.SIGINT)


def test_a_tree_of_software_switches(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[switch.root]\nurl = "native:64"\n[switch.rack1]\nurl = "native:64"\nparent = "root"\n'
        'hosts = ["127.1.1.0/24", "127.1.9.9"]\n'
    )
    rack2 = "rack2=native:64?parent=root&host=127.1.2.0/24"
    with controller("--config", file, "--switch", rack2, "--slots", "4") as running:
        client = ControllerClient(running.url, timeout=60.0)
        eventually(lambda: {each["state"] for each in client.switches()} == {"up"})
        shown = {each["name"]: (each["parent"], each["hosts"]) for each in client.switches()}
        assert shown == {
            "root": (None, []),
            "rack1": ("root", ["127.1.1.0/24", "127.1.9.9"]),
            "rack2": ("root", ["127.1.2.0/24"]),
        }

        def work(rank: int, address: str) -> float:
            with worker_lib.connect(running.url, "j", rank, 2, address=address) as session:
                total = session.allreduce(np.full(100, rank + 1.0, np.float32))[7]
                if rank == 0:
                    for command, wanted in (
                        (("jobs", "j"), "below it    rack1: ranks 0, slots from 0"),
                        (("stats",), "j at rack2"),
                        (("switches",), "127.1.1.0/24, 127.1.9.9"),
                    ):
                        status, out, _ = outcome(*command, "--controller", running.url)
                        assert status == 0
                        assert wanted in out
                session.barrier()
                return float(total)

        ranks = [lambda: work(0, "127.1.9.9"), lambda: work(1, "127.1.2.3")]
        assert [each.get() for each in in_threads(ranks)] == [3.0, 3.0]


def test_a_file_and_options(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[controller]\nstate = "kept"\nwords = 100\nslots = 8\n'
        '[switch.soft]\nurl = "native:32"\nmemory = "1M"\n'
    )
    with controller("--config", file, "--switch", "b=native:16?port=0", "--slots", "4") as running:
        client = ControllerClient(running.url, timeout=60.0)
        assert {each["name"]: each["capacity"]["slots"] for each in client.switches()} == {
            "soft": 32,
            "b": 16,
        }
        assert (tmp_path / "kept" / "controller.db").exists()
        member = join(running.url, "x", 0, 1, "127.0.0.1", 42000, timeout=100)
        assert (member.slots, member.words) == (4, 100)
        member.leave()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--listen", "0.0.0.0:0"],
            "which others reach, without tenants; accepted: 127.0.0.1, ::1, or tenants",
        ),
        (["--listen", "nonsense"], "listen is 'nonsense'; accepted: HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "accepted: HOST:PORT"),
        (["--listen", "no.such.host.invalid:1"], "listen is 'no.such.host.invalid:1'"),
        (["--tls-cert", "x"], "only one of tls-cert and tls-key is given"),
        (["--tls-cert", "/none", "--tls-key", "/none"], "tls-cert is /none: No such file"),
        (["--switch", "a"], "switch is 'a'; accepted: NAME=native"),
        (["--switch", "a=ftp://b"], "url is 'ftp://b'; accepted: native"),
        (["--switch", "a=native:x"], "switch a: slots is 'x'; accepted: 2..65536"),
        (["--switch", "a=native:8?colour=red"], "there is no key 'colour'"),
        (["--switch", "a=native:8?address=0.0.0.0"], "address is '0.0.0.0'; accepted: that of an interface"),
        (["--switch", "a=native:8?memory=1Q"], "memory is '1Q'; accepted: bytes"),
        (["--switch", "a=native?parent=b"], "switch a: parent is 'b'; accepted: another switch: none"),
        (
            ["--switch", "a=native?host=10.0.0.1/8"],
            "switch a: host is '10.0.0.1/8'; accepted: an address or a network",
        ),
        (["--switch", "a=native", "--switch", "a=native"], "switch 'a' is given twice"),
        (["--switch", "a=p4runtime://h"], "switch a: url is 'p4runtime://h'"),
        (["--config", "/none"], "config is /none: No such file"),
        (["--state", "/proc/none"], "state directory /proc/none"),
    ],
)
def test_what_cannot_start(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controller", "--listen", "127.0.0.1:0", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, said in err, len(err.splitlines())) == ("", True, 1), err


def test_defaults_that_no_switch_has_room_for() -> None:
    status, out, err = outcome("controller", "--listen", "127.0.0.1:0", "--words", "1")
    assert (status, out) == (2, "")
    assert "words is 1; accepted: 16.." in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is no TOML"),
        ("x = 1", "unknown table 'x'; accepted: controller, switch.NAME"),
        ("switch = 1", "accepted: [switch.NAME]"),
        ("[controller]\nport = 1", "unknown key 'port' in controller; accepted: listen"),
        ("[controller]\nwords = '1'", "words is '1'; accepted: a number"),
        ("[controller]\nlog_format = 'x'", "log_format is 'x'; accepted: plain, json"),
        ("[switch.a]\nslots = 1", "switch a: url is None; accepted: native"),
        ("[switch.a]\nurl = 'native'\nslots = 1", "slots is '1'; accepted: 2..65536"),
    ],
)
def test_what_is_wrong_in_a_file(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    assert main(["controller", "--config", str(file)]) == 2
    assert said in capsys.readouterr().err


def test_tenants(tenant: Say, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no tenants: everybody on this computer" in tenant("list")[1]
    first = tenant("add", "alice", "--jobs", "2", "--slots", "64", "--memory", "2M")[1]
    assert first.startswith("swagg_")
    assert tenant("add", "root", "--admin")[0] == 0
    kept = json.loads(tenant("list", "--json")[1])["tenants"]
    assert kept == [
        {"name": "alice", "admin": False, "jobs": 2, "slots": 64, "memory": 2 << 20},
        {"name": "root", "admin": True, "jobs": None, "slots": None, "memory": None},
    ]
    assert tenant("change", "alice", "--slots", "none", "--admin")[0] == 0
    assert json.loads(tenant("list", "--json")[1])["tenants"][0] == {
        "name": "alice", "admin": True, "jobs": 2, "slots": None, "memory": 2 << 20,
    }  # fmt: skip
    assert tenant("remove", "alice")[0] == 0
    for arguments, said in (
        (("remove", "alice"), "there is no tenant 'alice'"),
        (("token", "alice"), "there is no tenant 'alice'"),
        (("change", "alice"), "there is no tenant 'alice'"),
        (("add", "root"), "there is a tenant 'root' already"),
        (("add", ""), "tenant is ''; accepted: 1..128 printable characters"),
        (("add", "b", "--jobs", "-1"), "jobs is '-1'; accepted: a number"),
        (("add", "b", "--slots", "٣"), "slots is '٣'; accepted: a number"),
        (("add", "b", "--memory", "1Q"), "memory is '1Q'; accepted: bytes"),
    ):
        status, out, err = tenant(*arguments)
        assert (status in (1, 2), out, said in err) == (True, "", True), err
    assert main(["tenant", "list"]) == 2
    assert "no state folder named: give --state DIR" in capsys.readouterr().err


def test_it_has_room_for_as_many_connections_as_it_may() -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 1024:
        pytest.skip("there are no more to have")
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, most))
    try:
        with controller() as running:
            limits = Path(f"/proc/{running.process.pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3:5] == [str(most)] * 2

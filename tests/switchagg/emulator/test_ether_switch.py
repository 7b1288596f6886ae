"""The native switch between real interfaces, and the command that starts it."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from switchagg.cli.main import main
from switchagg.emulator.ether_switch import EtherSwitch
from switchagg.errors import UsageError
from switchagg.rules.slots import JobEntry, WorkerEntry
from tests.switchagg.control.drivers.rack import REPOSITORY, has_namespaces, in_namespace

needs_namespaces = pytest.mark.skipif(
    not has_namespaces(), reason="no network namespaces here (unshare, nsenter, ip, ethtool)"
)
COMMAND = [sys.executable, "-m", "switchagg.cli.main", "switch", "--engine", "native"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The observations between interfaces."""
    if not has_namespaces():
        pytest.skip("no network namespaces here (unshare, nsenter, ip, ethtool)")
    folder = tmp_path_factory.mktemp("acts")
    found: dict[str, Any] = in_namespace("tests.switchagg.emulator.ether_scenarios", str(folder))
    return found


def test_frames_go_where_they_should(seen: dict[str, Any]) -> None:
    frames = seen["frames"]
    known, tagged, unknown = frames["known"], frames["tagged"], frames["unknown"]
    assert frames["seen"] == {"1": [], "2": [known, tagged, unknown], "3": [unknown]}
    counters = frames["counters"]
    assert (counters["forwarded"], counters["flooded"], counters["own_source"]) == (2, 1, 1)
    first, second, third = frames["interfaces"]
    assert (first["packets_in"], second["packets_out"], third["packets_out"]) == (4, 3, 1)
    assert all(each["up"] for each in frames["interfaces"])


def test_a_sum_is_exact_whatever_a_foreign_host_sends(seen: dict[str, Any]) -> None:
    sums = seen["sums"]
    assert [each["words"] for each in sums["results"]] == [sums["expected"]] * 2
    assert all(each["whole"] for each in sums["results"])
    assert (sums["counters"]["source"], sums["counters"]["accepted"]) == (1, 2)


def test_super_frames_are_cut_up_and_checksums_completed(seen: dict[str, Any]) -> None:
    offloads = seen["offloads"]
    if not offloads["sent"]["udp"]:
        pytest.skip("this kernel has no UDP super-frames for packet sockets")
    got = [bytes.fromhex(each) for each in offloads["got"]]
    assert len(got) == 9
    for each in got:
        assert len(each) <= 1514
        assert _sum(each[14:34]) == 0xFFFF
        length = int.from_bytes(each[16:18], "big") - 20
        assert len(each) == max(60, 34 + length)
        pseudo = each[26:34] + struct.pack(">HH", each[23], length)
        assert _sum(pseudo + each[34 : 34 + length]) == 0xFFFF
    payload = bytes.fromhex(offloads["payload"])
    datagrams, segments = [each for each in got if each[23] == 17], [each for each in got if each[23] == 6]
    assert b"".join(each[42:] for each in datagrams[:4]) == payload
    assert datagrams[4][42:] == payload
    assert [int.from_bytes(each[18:20], "big") for each in datagrams[:4]] == [0, 1, 2, 3]
    assert b"".join(each[54:] for each in segments) == payload
    assert [int.from_bytes(each[38:42], "big") for each in segments] == [1000, 1300, 1600, 1900]
    assert [each[47] for each in segments] == [0x10, 0x10, 0x10, 0x19]
    assert offloads["interfaces"][0]["split"] == 2


def _sum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_interfaces_may_go_and_come_back(seen: dict[str, Any]) -> None:
    found = seen["comings and goings"]
    for act in ("before", "down", "errors", "up", "after", "gone", "back", "again"):
        assert found[act], act
    assert found["downs"] == [1, 1]
    assert found["failure"] is None
    assert any("sw2 (port 2) is down or away: ip link set sw2 up" in each for each in found["warnings"])


def test_a_capture_holds_frames_and_faults_meet_them(seen: dict[str, Any]) -> None:
    found = seen["devices"]
    data = bytes.fromhex(found["pcap"])
    assert struct.unpack("=IHHIIII", data[:24])[-1] == 1  # LINKTYPE_ETHERNET
    frame = bytes.fromhex(found["frame"])
    assert data.count(frame) == 2  # on its way in and on its way out
    assert found["lost"]
    assert found["passed"] == 0


# Without interfaces


def test_what_a_switch_between_interfaces_refuses() -> None:
    for interfaces, ports, problem in (
        ({}, (), "needs one at least"),
        ({1: "a", 2: "a"}, (), "an interface can be one port only"),
        ({512: "a"}, (), "port is 512; accepted: 0..511"),
        ({510: "a"}, (), "but 510, the controller's"),
        ({1: "a" * 16}, (), "1 to 15 characters"),
    ):
        with pytest.raises(UsageError, match=problem):
            EtherSwitch(interfaces, ports=ports)
    with EtherSwitch(None, ports=(1, 2)) as switch:
        job = JobEntry(1, 0, 4, 16, 0, (WorkerEntry(0, "10.0.0.1", 1, 0),))
        with pytest.raises(UsageError, match="has no places"):
            switch.add_job(job)
        assert switch.counters()["received"] == 0


def _run(*arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    run = subprocess.run(
        [*prefix, *COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        timeout=240,
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--interface", "1=nothere0"], "interface nothere0: there is none; `ip link` lists"),
        (["--interface", "lo"], "--interface takes PORT=NAME"),
        (["--interface", "1=lo", "--interface", "1=lo"], "port 1 is given twice"),
        (["--interface", "1=lo", "--program", "x.p4"], "are for --engine p4"),
        (["--interface", "1=lo", "--address", "here"], "address is 'here'"),
        (["--interface", "1=lo", "--station", "10.0.0.1"], "station is '10.0.0.1'; accepted:"),
        (["--interface", "1=lo", "--device-id", "1"], "--device-id and --cpu-port are for --p4runtime"),
        (["--address", "10.0.0.1"], "--address and --station are for --engine native with --interface"),
    ],
)
def test_the_command_names_what_is_wrong(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["switch", "--engine", "native", *arguments]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare here")
def test_the_command_without_permission() -> None:
    probe = subprocess.run(["unshare", "-U", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no user namespaces here")
    status, said = _run("--interface", "1=lo", prefix=("unshare", "-U"))
    assert (status, "packet sockets need root, or CAP_NET_RAW" in said) == (1, True), said


@needs_namespaces
def test_the_command_serves_a_job_until_it_is_stopped(tmp_path: Path) -> None:
    job = {"job": 1, "base": 0, "slots": 4, "words": 16, "result_token": 9}
    job["workers"] = [{"bit": 0, "ip": "10.0.0.1", "port": 7000, "token": 5}]  # type: ignore[assignment]
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    options = ["--interface", "1=sw1", "--address", "10.0.0.254", "--station", "10.0.0.1,02:00:00:00:00:01,1"]
    shell = 'ip link add sw1 type veth peer name h1 && ip link set h1 up && ip link set sw1 up && exec "$@"'
    alone = ["unshare", "-rn", "sh", "-c", shell, "sh"]
    line = [*alone, *COMMAND, *options, "--job", str(path), "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["event"], ready["interfaces"], ready["jobs"]) == ("ready", {"1": "sw1"}, [1])
        process.send_signal(signal.SIGTERM)
        stopped = json.loads(process.stdout.read().splitlines()[-1])
    assert process.returncode == 0
    assert (stopped["event"], stopped["counters"]["inits"], stopped["failure"]) == ("stopped", 4, None)
    assert stopped["interfaces"][0]["name"] == "sw1"

"""DPDK on devices that need no hardware, and the messages where it cannot work. Skipped without DPDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from switchagg.cli.main import main
from switchagg.devices import dpdk
from switchagg.devices.dpdk import LAYOUTS, DpdkSettings
from switchagg.emulator.switch import Switch
from switchagg.errors import NetworkError, UsageError
from switchagg.wire.header import Flag
from tests.seeds import seed_of_this_run
from tests.switchagg.control.drivers.rack import REPOSITORY
from tests.switchagg.devices.networks import alone, process, why_no_xdp
from worker_lib.transport import bind

_SCENARIOS = "tests.switchagg.devices.dpdk_scenarios"


def _why_not(*drivers: str) -> str:
    for name in ("eal", "ethdev", "mempool_ring", *(f"net_{driver}" for driver in drivers)):
        if not any(_loads(f"librte_{name}.so.{abi}") for abi in LAYOUTS):
            return f"DPDK is not here: librte_{name} (apt-get install librte-{name.replace('_', '-')}23)"
    return ""


def _loads(name: str) -> bool:
    try:
        # In a process of its own: drivers register themselves when they are loaded.
        return (
            subprocess.run(
                [sys.executable, "-c", f"import ctypes; ctypes.CDLL({name!r})"],
                check=False,
                stderr=subprocess.DEVNULL,
            ).returncode
            == 0
        )
    except OSError:
        return False


def _needs(*drivers: str) -> pytest.MarkDecorator:
    why = _why_not(*drivers)
    return pytest.mark.skipif(bool(why), reason=why or "DPDK is here")


@_needs("memif")
def test_sums_by_memif_are_exact_with_faults(tmp_path: Path) -> None:
    found = process(_SCENARIOS, "memif", str(seed_of_this_run()), str(tmp_path))
    assert [len(found["loss"]), len(found["faults"])] == [4, 2]
    _assert_exact(found["loss"] + found["faults"])
    vdev = f"--no-huge --no-pci --vdev=net_memif0,role=server,socket={tmp_path}/threads"
    said = process(_SCENARIOS, "attempt", "0", json.dumps({"arguments": vdev, "queues": 2}))
    assert "UsageError: threads is 2; accepted with DPDK's port net_memif0, a memif: 1" in said


@_needs("af_packet")
@pytest.mark.skipif(bool(why_no_xdp()), reason=why_no_xdp())
def test_sums_by_packet_sockets_are_exact_with_loss(tmp_path: Path) -> None:
    found = alone(_SCENARIOS, "af_packet", str(seed_of_this_run()), str(tmp_path))
    assert len(found["loss"]) == 4
    _assert_exact(found["loss"])
    assert [(each["exact"], each["transport"], each["warnings"]) for each in found["threads"]] == [
        (True, "dpdk", [])
    ] * 3


@_needs("af_packet")
@pytest.mark.skipif(bool(why_no_xdp()), reason=why_no_xdp())
def test_two_threads_have_a_queue_each() -> None:
    found = alone("tests.switchagg.devices.two_threads", "dpdk", str(seed_of_this_run()))
    assert (found["exact"], found["results"], found["warnings"]) == (16 * 512, 512, [])
    # A worker's frames come to one queue, and half of its slots are the other thread's.
    assert (found["ports"]["strays"], found["ports"]["strays_dropped"]) == (8 * 512, 0)


@pytest.mark.long  # beside the one with one thread
@_needs("af_packet")
@pytest.mark.skipif(bool(why_no_xdp()), reason=why_no_xdp())
def test_the_conformance_suite_with_two_threads() -> None:
    found = alone("tests.switchagg.devices.conformance", "dpdk", "1500", "2", timeout=280)
    assert found["status"] == 0, found
    assert found["passed"] > 100, found


def _assert_exact(ranks: list[dict[str, Any]]) -> None:
    assert all(each["exact"] and each["affinity_kept"] and not each["warnings"] for each in ranks), ranks
    assert {each["transport"] for each in ranks} == {"dpdk"}
    assert sum(each["retransmissions"] for each in ranks) > 0


@_needs("af_packet")
@pytest.mark.skipif(bool(why_no_xdp()), reason=why_no_xdp())
def test_the_conformance_suite_and_random_sequences() -> None:
    found = alone("tests.switchagg.devices.conformance", "dpdk", "9000", timeout=280)
    assert found["status"] == 0, found
    assert found["passed"] > 100, found


@_needs("pcap")
def test_frames_of_scapy_and_the_answers(tmp_path: Path) -> None:
    found = process(_SCENARIOS, "pcap", str(seed_of_this_run()), str(tmp_path))
    assert found["sums"] == found["given"]
    assert found["checksums"] == [True] * 9
    assert found["ecn"] == [[0, 0]] * 8 + [[2, Flag.CE | Flag.ECT]]
    assert found["arp"] == [[2, "10.0.0.254", "10.0.0.1", "02:00:00:00:00:01"]]
    assert found["echo"] == [[0, 7, "an echo request"]]
    counters = found["counters"]
    assert (counters["packets_in"], counters["not_open"], counters["malformed"]) == (9, 1, 1)
    assert (found["statistics"]["packets_in"], found["statistics"]["packets_out"]) == (13, 11)
    assert found["details"].startswith("DPDK ")


@_needs("ring", "null")
def test_a_start_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    found = process(_SCENARIOS, "devices", "0", str(tmp_path))
    assert found["names"] == ["net_ring0", "net_null0"]
    assert found["up"] == [True, True]
    assert found["mtu"] == 1500
    assert found["counters"]["malformed"] >= 1000  # the null device gives empty frames
    assert found["affinity"]
    assert all(each == found["processors"] for each in found["threads"])
    runs, owner, address = found["errors"]
    assert "DPDK runs in this process already" in runs
    assert "ports belong to a switch; start workers in another process" in owner
    assert "this process's DPDK ports have another address already" in address
    assert found["fork"] == 0


@_needs("ring", "null")
def test_memory_for_the_rings_of_all_ports_and_the_drivers_word_on_rss(tmp_path: Path) -> None:
    found = process(_SCENARIOS, "many", "0", str(tmp_path))
    assert found["ports"] == 10
    assert found["free"] > 10 * 2 * 1024  # full rings, both ways
    assert "net_null0 has RSS by addresses and ports" in found["net_null0"]
    assert "net_ring0 reports no RSS" in found["net_ring0"]


@_needs("ring")
def test_a_wait_sleeps(tmp_path: Path) -> None:
    found = process(_SCENARIOS, "idle", "0", str(tmp_path))
    assert found["seconds"] < 0.5  # of one; a poll would take all of it


@_needs("ring", "af_packet")
def test_what_cannot_work_is_said(tmp_path: Path) -> None:
    found = process(_SCENARIOS, "refused", "0", str(tmp_path))
    wanted = {
        "wrong argument": ("UsageError", "--no-huge --no-pci --bogus", "Invalid 'command line' arguments"),
        "no such driver": ("UsageError", "net_nothing0", "failed to parse device"),
        "no such interface": ("UsageError", "finds no port", "SIOCGIFINDEX", "No such device"),
        "no port": ("UsageError", "finds no port", "name a device with -a or --vdev"),
        "no memory": (
            "NetworkError",
            "no memory for 16,383 packets of 2,176 bytes",
            "its ports (1) and their queues each way (1) need -m 127 or more",
        ),
        "mtu": ("OSError", "the interface carries datagrams of 572 bytes, and the job's have 1424"),
        "few queues": ("UsageError", "threads is 17; accepted with DPDK's port net_ring0: 1..16, its queues"),
        "layout": ("NetworkError", "ABI", "is not laid out as it should be: a fresh mbuf is called wrong"),
        "pool": ("NetworkError", "ABI", "the operations of a memory pool are elsewhere"),
        "burst": ("NetworkError", "ABI", "a function of net_ring0 is elsewhere"),
    }
    assert set(found) == set(wanted)
    for name, parts in wanted.items():
        status, out, err = found[name]
        assert status == 0, (name, out, err)
        for part in parts:
            assert part in out, (name, out)


@_needs("ring")
def test_without_permission_for_hugepages_and_devices() -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root away from itself")
    line = (
        "import os; from switchagg.devices.dpdk import DpdkSettings, start\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "start(DpdkSettings('--vdev=net_ring0'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 1
    assert "hugepages and devices need root, and --no-huge --no-pci do without them" in done.stderr


def test_a_foreign_abi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = subprocess.CompletedProcess(
        [], 0, "librte_eal.so.77 (libc6,x86-64) => /usr/lib/librte_eal.so.77\n", ""
    )
    monkeypatch.setattr(dpdk, "LAYOUTS", {7: LAYOUTS[23]})
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: listed)
    with pytest.raises(
        NetworkError, match=r"DPDK is here as librte_eal.so.77, and this ABI is not known .*known: 7"
    ):
        dpdk._Library()


def test_without_dpdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpdk, "LAYOUTS", {})
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "", ""))
    with pytest.raises(NetworkError, match=r"DPDK is not installed: .* apt-get install librte-ethdev23"):
        dpdk._Library()


def test_settings_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in ("-h", "--no-huge --version", "'"):
        with pytest.raises(UsageError, match="DPDK's arguments"):
            DpdkSettings(arguments)
    with pytest.raises(UsageError, match=r"DPDK's MTU is 60; accepted: 68\.\.9216"):
        DpdkSettings("", 60)
    with pytest.raises(UsageError, match="DPDK needs both"):
        Switch(transport="dpdk")
    monkeypatch.delenv("SWITCHAGG_DPDK", raising=False)
    with pytest.raises(UsageError, match="SWITCHAGG_DPDK is not set"):
        bind("10.0.0.1", "dpdk")
    for name, value in (("MTU", "big"), ("POLL", "yes")):
        with pytest.raises(UsageError, match=value):
            DpdkSettings.from_environment({"SWITCHAGG_DPDK": "", f"SWITCHAGG_DPDK_{name}": value})


@pytest.mark.parametrize("options", [("--transport", "dpdk"), ("--dpdk", "--no-huge"), ("--dpdk-poll",)])
def test_options_that_do_not_go_together(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["switch", "--port", "0", *options])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert "--dpdk" in capsys.readouterr().err

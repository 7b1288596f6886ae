"""AF_XDP between namespaces: sums, the frames that it makes and takes, and the reasons for UDP instead."""

from __future__ import annotations

import os
from typing import Any

import pytest

from switchagg.emulator.switch import Switch
from switchagg.errors import UsageError
from switchagg.wire.header import Flag
from tests.seeds import seed_of_this_run
from tests.switchagg.control.drivers.rack import has_namespaces
from tests.switchagg.devices.networks import alone, why_no_xdp

_SCENARIOS = "tests.switchagg.devices.xdp_scenarios"


@pytest.fixture(scope="module")
def frames() -> dict[str, Any]:
    """Returns observations of a switch on AF_XDP, made with scapy."""
    if why_no_xdp():
        pytest.skip(why_no_xdp())
    found: dict[str, Any] = alone(_SCENARIOS, "frames", str(seed_of_this_run()))
    return found


@pytest.fixture(scope="module")
def refusals() -> dict[str, Any]:
    if why_no_xdp():
        pytest.skip(why_no_xdp())
    found: dict[str, Any] = alone(_SCENARIOS, "refusals", "0")
    return found


@pytest.mark.skipif(bool(why_no_xdp()), reason=why_no_xdp())
def test_sums_of_four_workers_are_exact_with_faults_and_beside_udp() -> None:
    found = alone(_SCENARIOS, "jobs", str(seed_of_this_run()))
    assert found["announced"]["warnings"] == []
    for name, transports in (
        ("xdp", ["xdp"] * 4),
        ("mixed", ["xdp", "xdp", "udp", "udp"]),
        ("faults", ["xdp"] * 2),
    ):
        assert [each["transport"] for each in found[name]] == transports, found[name]
        assert all(each["exact"] and each["affinity_kept"] for each in found[name])
        assert not any(each["warnings"] for each in found[name])
        assert sum(each["retransmissions"] for each in found[name]) > 0
    if os.cpu_count() != 1:  # as many queues can the rack's interfaces have
        assert found["announced threads"]["warnings"] == []
    assert all(each["exact"] and each["transport"] == "xdp" for each in found["threads"])


def test_results_are_as_scapy_would_make_them(frames: dict[str, Any]) -> None:
    assert (frames["transport"], frames["warnings"]) == ("xdp", [])
    results = frames["results"]
    assert [each["sum"] for each in results] == frames["given"]
    assert all(each["same"] and each["checksum"] for each in results)
    assert {tuple(each["from"]) for each in results} == {(frames["near"], "10.0.0.254", frames["port"])}
    assert {tuple(each["to"]) for each in results} == {("02:00:00:00:00:01", "10.0.0.1", 7000)}
    assert frames["after"]["packets_in"] == len(results)


def test_a_mark_is_in_the_result(frames: dict[str, Any]) -> None:
    assert frames["ecn"] == [2, Flag.CE | Flag.ECT, True]


def test_what_does_not_fit_its_headers_is_dropped(frames: dict[str, Any]) -> None:
    assert frames["silent"]
    before, after = frames["after"], frames["dropped"]
    assert after["malformed"] - before["malformed"] == 3
    assert after["packets_in"] - before["packets_in"] == 2
    assert frames["taken"] == [True, True]


@pytest.mark.skipif(bool(why_no_xdp()), reason=why_no_xdp())
def test_the_conformance_suite_and_random_sequences() -> None:
    found = alone("tests.switchagg.devices.conformance", "xdp", "1500", timeout=280)
    assert found["status"] == 0, found
    assert found["passed"] > 100, found


@pytest.mark.skipif(bool(why_no_xdp()), reason=why_no_xdp())
def test_two_threads_have_a_queue_each() -> None:
    found = alone("tests.switchagg.devices.two_threads", "xdp", str(seed_of_this_run()))
    assert (found["exact"], found["results"], found["warnings"]) == (16 * 512, 512, [])
    assert found["details"].endswith(", 2 queues")
    assert min(found["queues"]) > 0
    # A worker's frames come to one queue, and half of its slots are the other thread's.
    assert (found["ports"]["strays"], found["ports"]["strays_dropped"]) == (8 * 512, 0)
    transport, warning = found["few"]
    assert transport == "udp"
    assert "near: it has 2 queues to use, and the switch 3 threads" in warning


@pytest.mark.long  # beside the one with one thread
@pytest.mark.skipif(bool(why_no_xdp()), reason=why_no_xdp())
def test_the_conformance_suite_with_two_threads() -> None:
    found = alone("tests.switchagg.devices.conformance", "xdp", "1500", "2", timeout=280)
    assert found["status"] == 0, found
    assert found["passed"] > 100, found


def test_everything_else_stays_with_the_kernel(frames: dict[str, Any]) -> None:
    assert frames["other port"] == "for the kernel"
    assert frames["fragments"]
    assert frames["echo"]
    assert frames["tagged"]
    assert frames["program"]
    assert frames["gone"]


def test_where_it_cannot_be_it_is_udp_and_people_are_told(refusals: dict[str, Any]) -> None:
    loopback = refusals["loopback"]
    assert (loopback["sums"], loopback["transports"]) == ([True, True], ["udp", "udp"])
    [said] = loopback["warnings"]
    assert "packets go by UDP" in said
    assert "lo: it is no Ethernet interface" in said
    assert any("lo: it is no Ethernet interface" in each for each in loopback["switch"])
    transport, *warnings = refusals["mtu"]
    assert transport == "udp"
    assert "near: its MTU is 9000, and AF_XDP carries 3826 bytes" in warnings[0]


def test_one_process_at_a_time_has_an_interface(refusals: dict[str, Any]) -> None:
    assert refusals["other"] == "xdp"
    transport, *warnings = refusals["taken"]
    assert transport == "udp"
    assert "another process has an XDP program there" in warnings[0]
    assert refusals["shared"] == ["xdp", "xdp"]


def test_without_permission_it_is_udp() -> None:
    if not has_namespaces():
        pytest.skip("no user namespaces here")
    found = alone(_SCENARIOS, "permission", "0", namespace=("-rnpf", "--mount-proc", "--kill-child"))
    assert found["transport"] == "udp"
    assert "it needs root, or CAP_NET_ADMIN" in found["warnings"][0]


def test_a_transport_that_there_is_not() -> None:
    with pytest.raises(UsageError, match=r"transport is 'tcp'; accepted: udp, xdp"):
        Switch(transport="tcp")

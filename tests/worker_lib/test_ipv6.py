"""Jobs over IPv6, at ::1 and between namespaces, with the same sums as over IPv4."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from functools import partial

import pytest

import worker_lib
from switchagg.control.controller import Controller
from switchagg.control.drivers.embedded import EmbeddedDriver
from switchagg.control.embedded import EmbeddedController
from switchagg.control.jobs.records import JoinRequest
from switchagg.control.service import ControlServer
from switchagg.emulator.faults import Faults
from switchagg.emulator.switch import Switch
from switchagg.errors import AdmissionError, UsageError
from switchagg.rules.wiring import Attachment, parse_hosts
from tests.ipv6 import needs_ipv6
from tests.seeds import seed_of_this_run
from tests.switchagg.cli.processes import SWITCHAGG
from tests.switchagg.control.drivers.rack import has_namespaces, in_namespace
from tests.waiting import eventually
from tests.worker_lib.harness import in_threads, job_name, several_sums, together
from worker_lib.session import Session

pytestmark = needs_ipv6

RANKS = 3


@pytest.fixture(scope="module")
def seed() -> int:
    return seed_of_this_run()


@pytest.fixture(scope="module")
def over_ipv4(seed: int) -> list[bytes]:
    """The bits of sums at 127.0.0.1, without a loss."""
    with EmbeddedController() as host:
        results = together(host.url, RANKS, several_sums, seed, transport="udp")
    return list(results[0])


def sums_and_retransmissions(session: Session, seed: int) -> tuple[list[bytes], int]:
    return several_sums(session, seed), session.stats()["retransmissions"]


def test_same_sums_with_losses(over_ipv4: list[bytes], seed: int) -> None:
    with EmbeddedController("::1", faults=Faults(loss=0.02, seed=seed)) as host:
        assert host.url.startswith("http://[::1]:")
        done = together(host.url, RANKS, sums_and_retransmissions, seed, transport="udp")
    assert [sums for sums, _ in done] == [over_ipv4] * RANKS
    assert sum(count for _, count in done) > 0


def test_same_sums_of_several_threads(over_ipv4: list[bytes], seed: int) -> None:
    with EmbeddedController("::1", threads=2) as host:
        assert together(host.url, RANKS, several_sums, seed, transport="udp") == [over_ipv4] * RANKS
        assert host.switch.port_counters()["strays"] == 0


def used_and_sums(session: Session, seed: int) -> tuple[str, list[bytes]]:
    return session.transport, several_sums(session, seed)


@pytest.mark.parametrize("transport", ["shm", "slots"])
def test_same_sums_through_shared_memory(over_ipv4: list[bytes], seed: int, transport: str) -> None:
    with EmbeddedController("::1") as host:
        done = together(host.url, RANKS, used_and_sums, seed, transport=transport)
    assert done == [(transport, over_ipv4)] * RANKS


def test_ipv4_and_ipv6_in_one_job(over_ipv4: list[bytes], seed: int) -> None:
    """Each is told an address of the switch that it can send to, and heartbeats of both kinds come."""
    with EmbeddedController("::", faults=Faults(loss=0.02, seed=seed)) as host:
        port, name = host.url.rpartition(":")[2], job_name()
        addresses = ["127.0.0.1", "[::1]", "127.0.0.1"]

        outcomes = host._server._heartbeats.outcomes

        def rank(number: int) -> tuple[str, list[bytes]]:
            url = f"http://{addresses[number]}:{port}"
            with worker_lib.connect(url, name, number, RANKS, timeout=60, transport="udp") as session:
                monitor = session._state.monitor
                assert monitor is not None
                found = several_sums(session, seed)
                eventually(lambda: outcomes["taken"] >= RANKS)  # of a rank that has left none is taken
                return monitor.member.switch_address, found

        done = [each.get() for each in in_threads([partial(rank, number) for number in range(RANKS)])]
        assert [address for address, _ in done] == ["127.0.0.1", "::1", "127.0.0.1"]
        assert [sums for _, sums in done] == [over_ipv4] * RANKS


def test_a_leaf_and_a_root_over_ipv6(over_ipv4: list[bytes], seed: int) -> None:
    wiring = {
        "root": Attachment(None, ()),
        "leaf": Attachment("root", parse_hosts("leaf", ["::1"])),
        "other": Attachment("root", parse_hosts("other", ["::/0"])),
    }
    with contextlib.ExitStack() as stack:
        switches = {name: stack.enter_context(Switch("::1", capacity=1024)) for name in wiring}
        drivers = [EmbeddedDriver(switch, 1024, name=name) for name, switch in switches.items()]
        server = ControlServer(Controller(drivers, wiring=wiring), "::1", 0)
        stack.callback(server.close)
        server.start()
        name = job_name()

        def rank(number: int) -> list[bytes]:
            with worker_lib.connect(
                server.url,
                name,
                number,
                RANKS,
                timeout=20,
                transport="udp",
                switch="other" if number else "leaf",
            ) as session:
                return several_sums(session, seed)

        done = [each.get() for each in in_threads([partial(rank, number) for number in range(RANKS)])]
        assert done == [over_ipv4] * RANKS
        assert switches["root"].counters()["results"] > 0


def test_a_leaf_of_another_family_is_refused() -> None:
    wiring = {"root": Attachment(None, ()), "leaf": Attachment("root", None)}
    for at in ("::1", "::"):
        with Switch("127.0.0.1") as root, Switch(at) as leaf:
            drivers = [EmbeddedDriver(root, 1024, name="root"), EmbeddedDriver(leaf, 1024, name="leaf")]
            with pytest.raises(UsageError, match=f"switch leaf is at {at}, and root at 127.0.0.1; accepted"):
                Controller(drivers, wiring=wiring)


def test_a_worker_of_the_other_family_is_refused(host: EmbeddedController) -> None:
    with pytest.raises(AdmissionError, match=r"rank 0 at ::1 attaches to no switch.*local: any over IPv4"):
        worker_lib.connect(host.url, job_name(), 0, 2, address="::1", timeout=5)
    with (
        EmbeddedController("::1") as other,
        pytest.raises(AdmissionError, match=r"at 127\.0\.0\.1 attaches to no switch.*local: any over IPv6"),
    ):
        worker_lib.connect(other.url, job_name(), 0, 2, address="127.0.0.1", timeout=5)


def test_an_address_has_one_form_in_the_book() -> None:
    assert JoinRequest(0, 2, "FD00:0::1", 4000).address == "fd00::1"
    assert JoinRequest(0, 2, "::ffff:10.0.0.1", 4000).address == "10.0.0.1"


@pytest.mark.parametrize("transport", ["xdp", "dpdk"])
def test_devices_know_ipv4_only(transport: str) -> None:
    with (
        EmbeddedController("::1") as host,
        pytest.raises(UsageError, match="address is '::1'; accepted with"),
    ):
        worker_lib.connect(host.url, job_name(), 0, 2, address="::1", transport=transport)
    with pytest.raises(UsageError, match="host is '::1'; accepted with transport 'xdp': an IPv4 address"):
        Switch("::1", transport="xdp")


def test_a_link_local_address_is_refused(host: EmbeddedController) -> None:
    for address in ("fe80::1", "fe80::1%lo"):
        with pytest.raises(UsageError, match=f"address is '{address}', a link-local address"):
            worker_lib.connect(host.url, job_name(), 0, 2, address=address)
    with pytest.raises(UsageError, match=r"http://\[fd00::1\]:port"):
        worker_lib.connect("http://::1:8080", job_name(), 0, 2)
    with pytest.raises(UsageError, match="the controller's address is 'fe80::1%25lo', a link-local address"):
        worker_lib.connect("http://[fe80::1%25lo]:8080", job_name(), 0, 2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["switch", "--host", "fe80::1%lo"], "host is 'fe80::1%lo', a link-local address"),
        (
            ["switch", "--host", "::1", "--engine", "p4"],
            "host is '::1'; accepted: an IPv4 address of this host",
        ),
        (
            ["switch", "--host", "::1", "--p4runtime", "127.0.0.1:0"],
            "accepted: with --p4runtime, an IPv4 address",
        ),
        (["switch", "--host", "2001:db8::1"], "host is 2001:db8::1, which is no address of this host"),
        (["host", "--host", "::1:5000:"], "host is '::1:5000:'; accepted: an IPv4 or IPv6 address"),
        (["controller", "--listen", "::1:5000"], "accepted: an IPv6 address in brackets, such as [::1]:5000"),
        (
            ["controller", "--switch", "a=native?address=fe80::1"],
            "switch a: address is 'fe80::1', a link-local",
        ),
    ],
)
def test_commands_name_what_they_refuse(arguments: list[str], problem: str) -> None:
    done = subprocess.run([*SWITCHAGG, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert problem in done.stderr


def test_a_host_command_at_all_addresses() -> None:
    with subprocess.Popen(
        [*SWITCHAGG, "host", "--host", "::"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        port = re.fullmatch(r"http://\[::\]:(\d+)", said["controller"])
        assert port is not None
        for url in (f"http://[::1]:{port[1]}", f"http://127.0.0.1:{port[1]}"):
            assert len(set(map(str, together(url, 2, several_sums, 1)))) == 1
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.skipif(not has_namespaces(), reason="no namespaces with veth pairs here")
def test_between_hosts_with_global_addresses(seed: int) -> None:
    """Packets of the largest K cross a link of 1,500 bytes without being fragmented."""
    found = in_namespace("tests.worker_lib.ipv6_hosts", str(seed), str(RANKS))
    assert found["largest_words"] == 359
    assert found["fragments"] == 0
    assert found["hashes"] == [found["expected"]] * RANKS

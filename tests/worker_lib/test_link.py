"""Links through shared memory: the same sums as over UDP, and a switch that trusts nothing it is given."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from switchagg.emulator.switch import Switch
from switchagg.errors import SwitchError, UsageError
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import Header, Op, decode, encode
from tests.reference.link_end import RING, TAKEN, Admitted, Claim, LinkEnd, Shape
from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from tests.worker_lib.harness import job_name, several_sums, together
from worker_lib.join import Membership, join
from worker_lib.session import Session


@pytest.fixture
def udp() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def alone(host: EmbeddedController, udp: socket.socket) -> Iterator[Membership]:
    """A job of one rank, whose packets come from `udp`."""
    member = join(host.url, job_name(), 0, 1, *udp.getsockname(), words=16, slots=16, deadline=600.0)
    yield member
    member.leave()


def sums(session: Session, seed: int) -> tuple[str, list[bytes], int]:
    return session.transport, several_sums(session, seed), session.stats()["packets_sent"]


def test_the_same_bits_and_packets_as_over_udp() -> None:
    seed = seed_of_this_run()
    over: dict[str, list[bytes]] = {}
    with EmbeddedController() as host:
        all_sent = 0
        for transport in ("shm", "slots", "udp"):
            ranks = together(host.url, 3, sums, seed, transport=transport)
            assert {used for used, _, _ in ranks} == {transport}
            assert ranks[0][1] == ranks[1][1] == ranks[2][1]
            # Packets that a rank sent again just before it left may be read with those of the next ones.
            all_sent += sum(sent for _, _, sent in ranks)
            assert host.switch.port_counters()["packets_in"] <= all_sent
            over[transport] = ranks[0][1]
    assert over["shm"] == over["slots"] == over["udp"]


def test_one_job_over_both(host: EmbeddedController) -> None:
    seed = seed_of_this_run()
    name = job_name()

    def rank(r: int) -> tuple[str, list[bytes], int]:
        with worker_lib.connect(
            host.url, name, r, 3, timeout=20, transport=("shm", "udp", "auto")[r]
        ) as session:
            return sums(session, seed)

    with ThreadPoolExecutor(3) as pool:
        ranks = list(pool.map(rank, range(3)))
    assert [used for used, _, _ in ranks] == ["shm", "udp", "shm"]
    assert ranks[0][1] == ranks[1][1] == ranks[2][1]


def test_faults_and_capture_see_links_too(tmp_path: Path) -> None:
    faults = Faults(loss=0.1, duplicate=0.1, reorder=0.1, corrupt=0.0, delay=0.0005, jitter=0.001, seed=7)
    with EmbeddedController(faults=faults, pcap=tmp_path / "links.pcap") as host:

        def call(session: Session) -> float:
            assert session.transport == "shm"
            x = np.arange(200_000, dtype=np.int32)
            session.allreduce(x)
            assert np.array_equal(x, 3 * np.arange(200_000))
            return float(session.stats()["retransmissions"])

        assert sum(together(host.url, 3, call, words=500)) > 0
        counters = host.switch.fault_counters()
        for name in ("lost", "duplicated", "reordered", "delayed"):
            assert counters[f"{name}_in"] > 0, name
            assert counters[f"{name}_out"] > 0, name
    assert (tmp_path / "links.pcap").stat().st_size > 2 * 3 * 200_000 * 4


def test_a_switch_without_links() -> None:
    with EmbeddedController(links=False) as host:
        assert host.switch.link == ""
        assert together(host.url, 2, lambda session: session.transport) == ["udp", "udp"]
        for word, rank in (("shm", 0), ("shm", 1)):
            del word
            with ThreadPoolExecutor(2) as pool:
                name = job_name()
                ends = [
                    pool.submit(worker_lib.connect, host.url, name, r, 2, timeout=30, transport="shm")
                    for r in range(2)
                ]
                with pytest.raises(
                    SwitchError, match='takes no links through shared memory; transport="udp"'
                ):
                    ends[rank].result()


def test_a_link_that_cannot_be_had(host: EmbeddedController, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a switch in another network namespace: "auto" goes by UDP, "shm" says why not."""
    monkeypatch.setattr(type(host.driver), "link", property(lambda _: "switchagg-nobody"))
    assert together(host.url, 2, lambda session: session.transport) == ["udp", "udp"]
    name = job_name()
    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(worker_lib.connect, host.url, name, r, 2, timeout=30, transport="shm")
            for r in range(2)
        ]
        for end in ends:
            with pytest.raises(SwitchError, match=r"no link .* refused.* same user"):
                end.result()


def test_words_for_transports(host: EmbeddedController, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="transport is 'rdma'; accepted: auto, shm, slots, udp"):
        worker_lib.connect(host.url, "x", 0, 2, transport="rdma")
    monkeypatch.setenv("SWITCHAGG_TRANSPORT", "tcp")
    with pytest.raises(UsageError, match="SWITCHAGG_TRANSPORT is 'tcp'; accepted: auto, shm, slots, udp"):
        worker_lib.connect(host.url, "x", 0, 2)
    monkeypatch.setenv("SWITCHAGG_TRANSPORT", "udp")
    assert together(host.url, 2, lambda session: session.stats()["transport"]) == ["udp", "udp"]
    assert worker_lib.connect(world_size=1).transport == "none"


def sums_and_window(session: Session) -> int:
    """Several sums; the window after them."""
    for k in range(8):
        x = np.full(100_000, session.rank + k, np.int32)
        assert (session.allreduce(x) == 2 * k + 1).all()
    return int(session.stats()["window"])


def test_ranks_whose_windows_follow_losses_and_others_share_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    udp = {"transport": "udp", "words": 352, "slots": 512, "timeout": 30.0}
    faults = Faults(loss=0.05, seed=seed_of_this_run())
    with EmbeddedController(faults=faults) as host, ThreadPoolExecutor(2) as pool:
        name = job_name()
        joining = [
            pool.submit(worker_lib.connect, host.url, name, r, 2, congestion=word, **udp)
            for r, word in enumerate(("shared", "dedicated"))
        ]
        first, second = (each.result() for each in joining)
        with first, second:
            assert [session.stats()["window"] for session in (first, second)] == [10, 256]
            windows = list(pool.map(sums_and_window, (first, second)))
            assert windows[0] < 45 <= windows[1], "a batch"
            groups = pool.map(lambda session: session.group([0, 1]), (first, second))
            for group, window in zip(groups, (10, 256), strict=True):
                with group:
                    assert group.stats()["window"] == window
    with EmbeddedController() as host:
        monkeypatch.setenv("SWITCHAGG_CONGESTION", "shared")
        assert together(host.url, 2, lambda session: session.stats()["window"], **udp) == [10, 10]
        assert 10 not in together(host.url, 2, lambda session: session.stats()["window"]), "shared memory"
        monkeypatch.setenv("SWITCHAGG_CONGESTION", "tcp")
        with pytest.raises(UsageError, match="SWITCHAGG_CONGESTION is 'tcp'; accepted: dedicated, shared"):
            worker_lib.connect(host.url, "x", 0, 2)
    with pytest.raises(UsageError, match="congestion is 'cubic'; accepted: dedicated, shared"):
        worker_lib.connect(host.url, "x", 0, 2, congestion="cubic")


def contribution(member: Membership, position: int, words: list[int] | None) -> bytes:
    seq = (member.first_seq + position) % 2**32
    slot = member.base + seq % member.slots
    header = Header(op=Op.SUM, flags=0, job=member.job, token=member.token, seq=seq, slot=slot, reply=0)
    return encode(header, None if words is None else np.array(words, np.uint32))


def test_a_python_link_and_a_udp_worker_sum(host: EmbeddedController, udp: socket.socket) -> None:
    """The switch's memory comes read-only, a RESULT lies where the entry says, and repeats are answered."""
    name = job_name()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other, ThreadPoolExecutor(1) as pool:
        other.bind(("127.0.0.1", 0))
        other.settimeout(30)
        settings: dict[str, Any] = {"words": 16, "slots": 16, "deadline": 600.0}
        later = pool.submit(join, host.url, name, 1, 2, *other.getsockname(), **settings)
        mine = join(host.url, name, 0, 2, *udp.getsockname(), **settings)
        theirs = later.result()
        link = LinkEnd.attach(mine.switch_link, udp, mine)
        to = (theirs.switch_address, theirs.switch_port)
        for position in range(100):
            link.send(contribution(mine, position, [position + i for i in range(16)]))
            if position % 3 == 0:
                other.sendto(contribution(theirs, position, None), to)
            else:
                other.sendto(contribution(theirs, position, [7] * 16), to)
            result = link.receive()
            assert result is not None
            assert result == other.recv(100)
            header, words = decode(result)
            assert header.op is Op.RESULT
            assert header.token == mine.result_token
            assert words is not None
            assert words.tolist() == [position + i + (0 if position % 3 == 0 else 7) for i in range(16)]
            if position % 10 == 0:  # again: the stored RESULT, to this worker alone
                link.send(contribution(mine, position, [1] * 16))
                assert link.receive() == result
        assert len(link.regions) == 1
        (descriptor,) = link.region_descriptors.values()
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 1024, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        link.close()
        # Without its link the worker is reached by UDP again.
        udp.settimeout(0.2)
        for _ in range(200):
            udp.sendto(contribution(mine, 99, [1] * 16), to)
            try:
                assert udp.recv(100) == result
                break
            except TimeoutError:
                continue
        else:
            pytest.fail("no answer by UDP")
        mine.leave()
        theirs.leave()


def serves(host: EmbeddedController) -> None:
    assert together(host.url, 2, lambda session: session.allreduce(np.ones(5, np.int32)).tolist()) == [
        [2] * 5,
        [2] * 5,
    ]


WRONG_ATTACHES = {
    "magic": {"magic": 1},
    "entries not a power of two": {"shape": Shape(entries=65)},
    "too few entries": {"shape": Shape(entries=32)},
    "packet too small": {"shape": Shape(packet_bytes=15)},
    "packet too large": {"shape": Shape(packet_bytes=65508)},
    "memory smaller than it says": {"size": 4096},
    "packet memory smaller than it says": {"packets": 2048},
    "no packet memory": {"shape": Shape(memory_bytes=0), "packets": 4096},
    "memory that could shrink": {"seals": 0},
    "no UDP socket": {"descriptors": 2},
    "one memory alone": {"descriptors": 1},
    "no descriptors": {"descriptors": 0},
}


@pytest.mark.parametrize("wrong", WRONG_ATTACHES)
def test_a_wrong_attach_is_refused(
    host: EmbeddedController, udp: socket.socket, alone: Membership, wrong: str
) -> None:
    with pytest.raises(ConnectionError):
        LinkEnd.attach(host.switch.link, udp, alone, **WRONG_ATTACHES[wrong])  # type: ignore[arg-type]
    serves(host)


def attach_after_a_link(name: str, udp: socket.socket, member: Admitted) -> LinkEnd:
    """Attaches, as soon as the switch has seen the end of the link before."""
    made: list[LinkEnd] = []

    def attached() -> bool:
        with contextlib.suppress(ConnectionError):
            made.append(LinkEnd.attach(name, udp, member))
        return bool(made)

    eventually(attached)
    return made[0]


def test_a_link_is_for_an_admitted_worker_and_once(
    host: EmbeddedController, udp: socket.socket, alone: Membership
) -> None:
    """A socket with a worker's address is not enough: anybody may bind one to any host's."""
    link = host.switch.link
    job, token = alone.job, alone.token
    for claim in (Claim(job, token ^ 1), Claim(job ^ 1, token), Claim(job + 65536, token)):
        with pytest.raises(ConnectionError):
            LinkEnd.attach(link, udp, claim)
    with socket.create_server(("127.0.0.1", 0)) as tcp, pytest.raises(ConnectionError):
        LinkEnd.attach(link, tcp, alone)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionError):
            LinkEnd.attach(link, other, alone)
    first = LinkEnd.attach(link, udp, alone)
    with pytest.raises(ConnectionError):
        LinkEnd.attach(link, udp, alone)
    first.close()
    attach_after_a_link(link, udp, alone).close()
    serves(host)


def test_a_link_gets_nothing_of_other_jobs_of_its_address(
    host: EmbeddedController, udp: socket.socket, alone: Membership
) -> None:
    """Such as those of a worker whose address somebody else has given as his own."""
    other = join(host.url, job_name(), 0, 1, *udp.getsockname(), words=16, slots=16, deadline=600.0)
    link = LinkEnd.attach(host.switch.link, udp, other)
    udp.settimeout(60)
    for position in range(20):
        udp.sendto(contribution(alone, position, [position] * 16), host.switch.address)
        header, words = decode(udp.recv(100))
        assert header.job == alone.job
        assert words is not None
        assert words.tolist() == [position] * 16
        link.send(contribution(other, position, [3] * 16))
        result = link.receive()
        assert result is not None
        assert decode(result)[0].job == other.job
    with pytest.raises(TimeoutError):
        link.receive(timeout=0.1)
    link.close()
    other.leave()


def test_a_bell_that_nobody_hears_stops_nothing(host: EmbeddedController, udp: socket.socket) -> None:
    """Whatever a worker makes of its own end of the bell, the switch does not wait for it."""
    name = job_name()
    # It sends no heartbeats, and on a busy machine all this takes longer than the default deadline.
    mine = join(host.url, name, 0, 1, *udp.getsockname(), words=16, slots=16, deadline=600.0)
    link = LinkEnd.attach(mine.switch_link, udp, mine)
    fcntl.fcntl(link.bell, fcntl.F_SETFL, fcntl.fcntl(link.bell, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    for position in range(1000):  # a group of one: every packet is answered at once
        struct.pack_into("=I", link.memory, RING + 128, 1)  # asleep: ring
        link.send(contribution(mine, position, [1] * 16))
        assert link.receive() is not None
    assert 100 < len(link.bell.recv(4096)) < 1000  # it has rung until there was no room, and gone on
    with contextlib.suppress(BlockingIOError):
        for _ in range(1000):
            link.bell.send(bytes(1 << 16), socket.MSG_DONTWAIT)
    serves(host)
    link.bell.shutdown(socket.SHUT_RDWR)
    assert link.ended()
    serves(host)
    link.close()
    mine.leave()


@pytest.mark.parametrize(
    "wrong",
    ["offset", "offset past the file", "offset past 2^64", "size", "short", "region", "count", "message"],
)
def test_nonsense_in_the_rings_ends_the_link(
    host: EmbeddedController, udp: socket.socket, alone: Membership, wrong: str
) -> None:
    past_the_file = wrong == "offset past the file"  # within the last huge page that it would fill
    shape = Shape(memory_bytes=(2 << 20) + 4096) if past_the_file else None
    link = LinkEnd.attach(host.switch.link, udp, alone, shape)
    packet = bytes(16 + 64)
    match wrong:
        case "offset" | "offset past the file":
            link.send(packet, offset=3 << 20 if past_the_file else link.shape.memory_bytes - 63)
        case "offset past 2^64":
            link.send(packet, offset=2**64 - 8)
        case "size":
            link.send(packet, size=link.shape.packet_bytes + 1)
        case "short":
            link.send(packet, size=15)
        case "region":
            link.send(packet, region=1)
        case "count":
            link.publish(65)
        case "message":
            link.socket.send(b"hello")
    assert link.ended()
    link.close()
    serves(host)


def test_packets_that_nobody_admitted(
    host: EmbeddedController, udp: socket.socket, alone: Membership
) -> None:
    """A link makes nobody a member: what comes through it is checked like a datagram."""
    link = LinkEnd.attach(host.switch.link, udp, alone)
    before = host.switch.counters()
    header = Header(op=Op.SUM, flags=0, job=60_000, token=1, seq=1, slot=1, reply=0)
    link.send(encode(header, None))
    eventually(lambda: host.switch.counters()["job"] > before["job"])
    with pytest.raises(TimeoutError):
        link.receive(timeout=0.2)
    link.close()


def test_a_ring_that_nobody_empties_loses_packets_and_stops_nothing(
    host: EmbeddedController, udp: socket.socket
) -> None:
    name = job_name()
    mine = join(host.url, name, 0, 1, *udp.getsockname(), words=16, slots=16, deadline=600.0)
    link = LinkEnd.attach(mine.switch_link, udp, mine)
    errors = host.switch.port_counters()["send_errors"]
    for position in range(3 * link.shape.entries):  # a group of one: every packet is answered at once
        link.send(contribution(mine, position, [1] * 16))
        if position % 16 == 15:  # else the switch would find more entries than there are
            eventually(lambda: struct.unpack_from("=I", link.memory, TAKEN)[0] == link.written)
    eventually(lambda: host.switch.port_counters()["send_errors"] >= errors + 2 * link.shape.entries)
    serves(host)
    assert link.receive() is not None
    link.close()
    mine.leave()


def test_other_users_are_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    with Switch() as switch, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        worker = WorkerEntry(0, *own.getsockname(), token=5)
        switch.add_job(JobEntry(job=7, base=0, slots=16, words=16, result_token=1, workers=(worker,)))
        name = switch.link
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setuid(65534)
                try:
                    LinkEnd.attach(name, own, Claim(7, 5))
                except OSError:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0

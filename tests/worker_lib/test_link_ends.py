"""Links that end badly, and switches that do: nobody spins, waits too long, or keeps what the other needs."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.switch import Switch
from switchagg.rules.slots import JobEntry, WorkerEntry
from tests.reference.link_end import ANNOUNCE, ATTACH, ATTACHED, ENTRY, MAGIC, Claim, LinkEnd, Shape
from tests.waiting import eventually
from tests.worker_lib.harness import in_threads, job_name
from tests.worker_lib.test_link import attach_after_a_link
from worker_lib import _native
from worker_lib.plan import DType

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
TIMEOUT, DONE = 3, 1  # of an engine's collective


def udp_socket() -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind(("127.0.0.1", 0))
    return bound


def admitted(switch: Switch, udp: socket.socket) -> Claim:
    """Adds a job of one worker, with this socket's address, to a switch."""
    worker = Claim(7, 0xABCDEF01)
    entry = WorkerEntry(0, *udp.getsockname(), worker.token)
    switch.add_job(JobEntry(job=worker.job, base=0, slots=16, words=16, result_token=1, workers=(entry,)))
    return worker


def calls_in(switch: Switch, seconds: float, nobody: socket.socket) -> int:
    """Returns the number of system calls of the switch's thread in that time."""
    before = switch.port_counters()["receive_calls"]
    time.sleep(seconds)
    # Counters are those of the last batch, and a switch that sleeps makes no batch.
    nobody.sendto(b"x", switch.address)
    time.sleep(0.1)
    return switch.port_counters()["receive_calls"] - before


def in_child(function: Callable[[], None]) -> int:
    """Forks a process that runs `function` and ends."""
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_link_ends_while_a_forked_child_holds_its_socket() -> None:
    with Switch() as switch, udp_socket() as udp:
        worker = admitted(switch, udp)
        link = LinkEnd.attach(switch.link, udp, worker)
        # As between the fork and the exec of a program: a child of os.fork() lets go of it.
        held = [os.dup(int(name)) for name in os.listdir("/proc/self/fd") if _is_link_socket(int(name))]
        assert held
        link.socket.shutdown(socket.SHUT_RDWR)
        link.close()
        assert calls_in(switch, 0.5, udp) < 50
        for descriptor in held:
            os.close(descriptor)
        attach_after_a_link(switch.link, udp, worker).close()


def _is_link_socket(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            return found.family == socket.AF_UNIX and str(found.getsockname()).startswith("b'\\x00switchagg-")
    except OSError:
        return False


def test_the_end_of_a_switch_is_seen_though_its_forked_child_lives() -> None:
    reader, writer = os.pipe()

    def switch_with_a_child() -> None:
        switch = Switch()
        switch.start()
        admitted(switch, udp)
        os.write(writer, switch.link.encode().ljust(64))
        os.read(second_reader, 1)
        grandchild = in_child(lambda: time.sleep(120))
        os.write(writer, str(grandchild).encode().ljust(64))
        time.sleep(120)

    second_reader, second_writer = os.pipe()
    udp = udp_socket()
    child = in_child(switch_with_a_child)
    grandchild = 0
    try:
        link = LinkEnd.attach(os.read(reader, 64).decode().strip(), udp, Claim(7, 0xABCDEF01))
        os.write(second_writer, b"x")
        grandchild = int(os.read(reader, 64))
        time.sleep(0.2)  # until the grandchild has come to its sleep
        end(child)
        child = 0
        assert link.ended()
        link.close()
    finally:
        udp.close()
        if child:
            end(child)
        if grandchild:
            os.kill(grandchild, signal.SIGKILL)
        for descriptor in (reader, writer, second_reader, second_writer):
            os.close(descriptor)


def test_a_switch_without_descriptors_sleeps_and_takes_links_later() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        Switch() as switch,
        udp_socket() as udp,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller,
    ):
        worker = admitted(switch, udp)
        hold: list[int] = []
        last = max(int(entry) for entry in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 8, limits[1]))
        try:
            while len(hold) < 5000:
                try:
                    hold.append(os.dup(0))
                except OSError:
                    break
            assert len(hold) < 5000
            before = switch.port_counters()["receive_calls"]
            caller.connect(b"\0" + switch.link.encode())
            assert calls_in(switch, 0.7, udp) < 50
            assert switch.port_counters()["receive_calls"] - before < 50
        finally:
            for descriptor in hold:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        time.sleep(0.6)
        LinkEnd.attach(switch.link, udp, worker).close()


def test_a_socket_that_is_not_udp_owns_no_udp_address() -> None:
    with Switch() as switch, udp_socket() as udp:
        worker = admitted(switch, udp)
        try:
            other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)  # UDP-Lite: ports of its own
        except OSError:
            pytest.skip("this kernel has no UDP-Lite")
        with other:
            other.bind(udp.getsockname())
            with pytest.raises(ConnectionError):
                LinkEnd.attach(switch.link, other, worker)
        LinkEnd.attach(switch.link, udp, worker).close()


def test_many_strangers_do_not_stop_the_packets(host: EmbeddedController) -> None:
    stop = threading.Event()

    def knock() -> None:
        while not stop.is_set():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
                caller.setblocking(False)
                try:
                    caller.connect(b"\0" + host.switch.link.encode())
                except BlockingIOError:
                    time.sleep(0.001)

    knocking = threading.Thread(target=knock, daemon=True)
    knocking.start()
    try:
        name = job_name()

        def rank(r: int) -> int:
            with worker_lib.connect(host.url, name, r, 2, timeout=60) as session:
                for _ in range(50):
                    session.allreduce(np.ones(1000, np.float32))
                return session.stats()["collectives"]

        ended = in_threads([lambda: rank(0), lambda: rank(1)])
        assert [outcome.get() for outcome in ended] == [50, 50]
    finally:
        stop.set()
        knocking.join()


def test_a_closed_session_keeps_nothing(host: EmbeddedController) -> None:
    """Also while somebody still refers to it."""

    def held() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), maps.read().count("memfd:switchagg")

    kept = []

    def rounds(count: int) -> None:
        for _ in range(count):
            name = job_name()

            def rank(r: int, name: str = name) -> worker_lib.Session:
                session = worker_lib.connect(host.url, name, r, 2, timeout=60)
                session.allreduce(np.ones(1000, np.float32))
                session.close()
                return session

            kept.extend(outcome.get() for outcome in in_threads([lambda: rank(0), lambda: rank(1)]))

    def let_go() -> bool:
        """Switch and controller of this process are told of the ends, and close theirs soon."""
        descriptors, mappings = held()
        return descriptors <= before[0] + 3 and mappings <= before[1] + 2

    rounds(2)
    time.sleep(0.2)
    before = held()
    rounds(6)
    eventually(let_go)


class FakeSwitch:
    """Takes one link, and then does what `act(fake)` says."""

    def __init__(self, act: Callable[[FakeSwitch], None], threads: int = 1) -> None:
        self.name = f"switchagg-fake-{os.getpid()}-{job_name()}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(b"\0" + self.name.encode())
        self.listener.listen()
        self.act, self.threads = act, threads
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.link, _ = self.listener.accept()
        message, descriptors, _, _ = socket.recv_fds(self.link, 64, 4)
        _, _, _, entries, packet_bytes, memory_bytes = ATTACH.unpack(message)
        self.shape = Shape(entries, packet_bytes, memory_bytes)
        self.memory = mmap.mmap(descriptors[0], self.shape.bytes)
        self.bell, theirs = socket.socketpair()
        socket.send_fds(self.link, [ATTACHED.pack(MAGIC, self.threads)], [theirs.fileno()])
        theirs.close()
        self.act(self)

    def show(self, *entries: bytes, count: int | None = None) -> None:
        """Writes entries into the worker's ring and rings."""
        for i, entry in enumerate(entries):
            at = self.shape.down_entries + i * ENTRY.size
            self.memory[at : at + ENTRY.size] = entry
        struct.pack_into("=I", self.memory, 192, len(entries) if count is None else count)
        self.bell.send(b"!")

    def close(self) -> None:
        self.thread.join(60)
        self.listener.close()


def nonsense_count(fake: FakeSwitch) -> None:
    fake.show(count=1 << 20)


def unknown_region(fake: FakeSwitch) -> None:
    fake.show(*[ENTRY.pack(7, 16 + 64, 0, bytes(16))] * 10)


def outside_its_region(fake: FakeSwitch) -> None:
    region = os.memfd_create("region", os.MFD_ALLOW_SEALING)
    os.ftruncate(region, 4096)
    socket.send_fds(fake.link, [ANNOUNCE.pack(MAGIC, 7, 4096)], [region])  # and it could shrink
    fake.show(ENTRY.pack(7, 16 + 64, 0, bytes(16)))


def larger_than_a_packet(fake: FakeSwitch) -> None:
    fake.show(ENTRY.pack(0, 16 + 68, 0, bytes(16)))


def hangs_up(fake: FakeSwitch) -> None:
    fake.link.close()


def closes_the_bell(fake: FakeSwitch) -> None:
    fake.bell.close()


@pytest.fixture(
    params=[
        nonsense_count,
        unknown_region,
        outside_its_region,
        larger_than_a_packet,
        hangs_up,
        closes_the_bell,
    ]
)
def fake(request: pytest.FixtureRequest) -> Iterator[FakeSwitch]:
    switch = FakeSwitch(request.param)
    yield switch
    switch.close()


def admission(link: str) -> _native.Admission:
    return _native.Admission(
        switch_ip=0x7F000001, switch_port=9, job=1, token=1, result_token=1, base=0, slots=16, words=16,
        first_seq=0, rank=0, workers=2, window_limit=8, link=link,
    )  # fmt: skip


def test_a_thread_that_does_not_listen_ends_the_links_to_the_others() -> None:
    ended: list[bytes] = []
    fake = FakeSwitch(lambda fake: ended.append(fake.link.recv(64)), threads=2)
    sock = _native.Socket(0x7F000001, 0, 1 << 20, False)
    with pytest.raises(ConnectionRefusedError):
        _native.Engine(sock, admission(fake.name))
    fake.close()
    assert ended == [b""]
    _native.Engine(sock, admission("")).close()  # by UDP, with the same socket


def test_a_switch_that_talks_nonsense_costs_a_worker_its_timeout(fake: FakeSwitch) -> None:
    sock = _native.Socket(0x7F000001, 0, 1 << 20, False)
    engine = _native.Engine(sock, admission(fake.name))
    x = np.ones(10, np.float32)
    call = _call(x, x)
    cpu = time.process_time()
    work = engine.submit(call, int(1e9), False)
    status, waits = 0, 0
    while status == 0:
        status = engine.wait(work, 50_000_000)
        waits += 1
    assert status == TIMEOUT
    assert waits > 1  # a wait ends after its own 50 ms
    assert engine.stats()["refused"] > 0
    assert time.process_time() - cpu < 0.5
    engine.close()


def _call(x: np.ndarray, out: np.ndarray) -> _native.Call:
    count = x.size
    return _native.Call(
        kind=0, op=0, dtype=int(DType.F32), bits=32, root=0, sparse=True, block=16, count=count,
        fingerprint_count=count, shape_crc=1, workers=2, rank=0, policy=0, input=x.ctypes.data,
        in_begin=0, in_end=count, output=out.ctypes.data, out_begin=0, out_end=count, mask=0, zero_fill=True,
    )  # fmt: skip


def test_a_union_with_blocks_that_there_are_not() -> None:
    """A flipped bit, or a member that lies: the sum may be wrong, but nothing is written past the tensor."""
    words, count = 64, 80
    x, out = np.ones(count, np.float32), np.full(count + 4096, 7, np.float32)
    for bit in range(5, 32):
        codec = _native.Codec(_call(x, out), 0, words)
        first = codec.plan_packet(0)
        assert first is not None
        plan = np.frombuffer(first, ">u4").astype(np.uint32)
        plan[12] |= np.uint32(1 << bit)
        codec.plan_result(0, plan.astype(">u4").tobytes())
        assert codec.next_step() == 2  # five blocks of 16, 64 to a packet
        for packet in range(2):
            codec.decode(packet, bytes(4 * words))
        codec.finish()
        assert (out[count:] == 7).all()

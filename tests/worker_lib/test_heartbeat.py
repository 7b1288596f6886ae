"""The native heartbeats: their bytes against `switchagg.wire.heartbeat`, and the thread that sends them."""

from __future__ import annotations

import ctypes
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from switchagg.rules.planner import SkipPolicy
from switchagg.wire.heartbeat import FIELDS, Heartbeat, Report
from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from worker_lib import _native

from .generations import DONE, Cluster, Sum
from .harness import Process, in_threads

COOKIE = bytes(range(16))
MILLISECOND = 1_000_000


@pytest.fixture
def ear() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(60)
        yield sock


LOOPBACK = 0x7F000001


def port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def hear(sock: socket.socket) -> Heartbeat:
    return Heartbeat.unpack(sock.recv(4096))


def test_the_same_bytes_as_in_python() -> None:
    draw = random.Random(seed_of_this_run())
    for _ in range(200):
        values = [draw.getrandbits(draw.randrange(1, 65)) for _ in FIELDS]
        cookie, sequence = draw.randbytes(16), draw.getrandbits(64)
        assert (
            _native.heartbeat(cookie, sequence, values) == Heartbeat(cookie, sequence, Report(*values)).pack()
        )
    with pytest.raises(ValueError, match="16 bytes"):
        _native.heartbeat(b"short", 0, [0] * len(FIELDS))


def test_it_tells_what_the_engine_has_done(ear: socket.socket) -> None:
    with Cluster(2) as cluster:
        heart = _native.HeartbeatSender(cluster.engines[0])
        heart.start(LOOPBACK, port(ear), COOKIE, 10 * MILLISECOND)
        first = hear(ear)
        nothing = Report(policy_word=SkipPolicy().word())  # that says what is so, not what was done
        assert (first.cookie, first.sequence, first.report) == (COOKIE, 0, nothing)
        x = np.zeros(64 * 100, np.int32)
        x[:640] = 1
        sums = [Sum(e, x.copy()) for e in cluster.engines.values()]
        assert [s.wait() for s in sums] == [DONE] * 2
        heartbeat, stats = first, cluster.engines[0].stats()

        def settled() -> bool:
            """The answer to a retransmission may come when the sum is done."""
            nonlocal heartbeat, stats
            heartbeat, stats = hear(ear), cluster.engines[0].stats()
            return heartbeat.report.packets_received == stats["packets_received"]

        eventually(settled)
        report = heartbeat.report
        assert heartbeat.sequence > 0
        assert report.collectives == 1
        assert (report.elements, report.bytes_reduced) == (6400, 25600)
        assert (report.blocks_total, report.blocks_own, report.blocks_union) == (400, 40, 40)
        assert report.position == stats["positions"] > 10
        assert report.packets_sent == stats["packets_sent"] >= report.position
        assert report.packets_received == stats["packets_received"] > 10
        assert report.bytes_sent == stats["bytes_sent"]
        assert 0 < report.scan_ns < report.busy_ns < 20_000 * MILLISECOND
        assert report.rtt_ns == stats["rtt_ns"]
        heart.close()


def test_a_new_aim_counts_from_zero(ear: socket.socket) -> None:
    with Cluster(2) as cluster:
        sums = [Sum(e, np.ones(1000, np.int32)) for e in cluster.engines.values()]
        assert [s.wait() for s in sums] == [DONE] * 2
        heart = _native.HeartbeatSender(cluster.engines[0])
        heart.start(LOOPBACK, port(ear), COOKIE, 3_600_000 * MILLISECOND)
        assert hear(ear).report.collectives == 0
        heart.start(LOOPBACK, port(ear), COOKIE[::-1], 3_600_000 * MILLISECOND)
        second = hear(ear)
        assert (second.cookie, second.sequence) == (COOKIE[::-1], 1)
        assert second.report.packets_sent == 0
        heart.close()


def test_closing_ends_it_at_once_and_for_good(ear: socket.socket) -> None:
    with Cluster(2) as cluster:
        heart = _native.HeartbeatSender(cluster.engines[0])
        heart.start(LOOPBACK, port(ear), COOKIE, 3_600_000 * MILLISECOND)
        hear(ear)
        heart.close()
        heart.close()
        heart.start(LOOPBACK, port(ear), COOKIE, MILLISECOND)
        ear.settimeout(0.1)
        with pytest.raises(TimeoutError):
            ear.recv(4096)
        never_started = _native.HeartbeatSender(cluster.engines[0])
        never_started.close()


def test_several_threads_may_close_it(ear: socket.socket) -> None:
    with Cluster(2) as cluster:
        for _ in range(20):
            heart = _native.HeartbeatSender(cluster.engines[0])
            heart.start(LOOPBACK, port(ear), COOKIE, 3_600_000 * MILLISECOND)
            for outcome in in_threads([heart.close] * 3):
                outcome.get()


def test_nobody_listens() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        number = port(unused)
    with Cluster(2) as cluster:
        heart = _native.HeartbeatSender(cluster.engines[0])
        heart.start(LOOPBACK, number, COOKIE, MILLISECOND)
        eventually(lambda: heart.sent >= 5)
        heart.close()


def test_it_beats_while_python_s_lock_is_held(ear: socket.socket) -> None:
    """A PyDLL call keeps the lock: no Python thread runs for 0.8 s."""
    with Cluster(2) as cluster:
        heart = _native.HeartbeatSender(cluster.engines[0])
        heart.start(LOOPBACK, port(ear), COOKIE, 20 * MILLISECOND)
        hear(ear)
        ticks = [time.monotonic()]
        stop = threading.Event()

        def tick() -> None:
            while not stop.wait(0.01):
                ticks.append(time.monotonic())

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        sleep = ctypes.PyDLL(None).usleep
        sent = heart.sent
        sleep(800_000)
        beats = heart.sent - sent
        ticks.append(time.monotonic())
        stop.set()
        ticker.join()
        assert max(later - earlier for earlier, later in pairwise(ticks)) >= 0.8, "the lock was not held"
        assert beats >= 3
        heart.close()


def forks_with_a_heart(number: int) -> list[int]:
    with Cluster(2) as cluster:
        heart = _native.HeartbeatSender(cluster.engines[0])
        heart.start(LOOPBACK, number, COOKIE, 10 * MILLISECOND)
        statuses = []
        for drop in (False, True):
            pid = os.fork()
            if pid == 0:
                for engine in cluster.engines.values():
                    engine.abandon()
                heart.abandon()
                if drop:
                    del heart
                os._exit(len(os.listdir("/proc/self/task")))  # threads of the child
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        sent = heart.sent
        eventually(lambda: heart.sent >= sent + 3)
        heart.close()
        return statuses


def test_a_forked_child_has_no_heart(ear: socket.socket) -> None:
    with Process(forks_with_a_heart, port(ear)) as process:
        assert process.finish().get() == [1, 1]

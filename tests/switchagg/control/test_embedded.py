"""The controller in front of a real switch, with packets from real sockets."""

from __future__ import annotations

import gc
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest

from switchagg.control.client import ControllerClient
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.mtu import LOOPBACK_WORDS, interface_mtu, words_at
from switchagg.errors import SwitchError, UsageError
from switchagg.wire.header import Header, Op, decode, encode
from tests.switchagg.control.http_calls import Joined, connect, leave, stream
from tests.waiting import eventually


class Rank:
    """One rank with its UDP socket and its connection to the controller."""

    def __init__(self, url: str, job: str, rank: int, world_size: int, **options: Any) -> None:
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.udp.settimeout(60)
        self.rank, self.job = rank, job
        self.url = url
        self.line: Joined | None = None
        self.body = {
            "rank": rank,
            "world_size": world_size,
            "address": "127.0.0.1",
            "port": self.udp.getsockname()[1],
            "timeout": 100,
            "deadline": 600,  # it sends no heartbeats
            **options,
        }
        self.place: dict[str, Any] = {}

    def join(self) -> None:
        self.line = stream(connect(self.url), f"/v1/jobs/{self.job}/members", self.body)
        self.place = self.line.place

    def send(self, position: int, words: Any) -> None:
        place = self.place
        seq = (place["first_seq"] + position) % 2**32
        slot = place["base"] + seq % place["slots"]
        header = Header(Op.SUM, 0, place["job"], place["token"], seq, slot)
        self.udp.sendto(encode(header, words), (place["switch"]["address"], place["switch"]["port"]))

    def receive(self) -> tuple[int, Any]:
        """The position and the words of a result."""
        header, words = decode(self.udp.recv(65536))
        assert (header.op, header.job, header.token) == (
            Op.RESULT,
            self.place["job"],
            self.place["result_token"],
        )
        return (header.seq - self.place["first_seq"]) % 2**32, words

    def leave(self) -> None:
        assert self.line is not None
        assert leave(self.url, self.job, self.line) == (200, {})

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
        self.udp.close()


def start(url: str, job: str, world_size: int, **options: Any) -> list[Rank]:
    ranks = [Rank(url, job, rank, world_size, **options) for rank in range(world_size)]
    with ThreadPoolExecutor(world_size) as pool:
        list(pool.map(Rank.join, ranks))
    return ranks


def test_a_job_adds_up_in_every_slot_from_its_first_packet_on() -> None:
    with EmbeddedController(capacity=256) as host:
        ranks = start(host.url, "a", 3, words=16, slots=32)
        for position in range(16):  # half of the slots are a window
            for rank in ranks:
                rank.send(position, np.full(16, rank.rank + 1 + position, np.uint32))
            for rank in ranks:
                got, words = rank.receive()
                assert (got, set(words.tolist())) == (position, {6 + 3 * position})
        for position in range(16, 80):
            for rank in ranks:
                rank.send(position, None)
            assert {rank.receive()[0] for rank in ranks} == {position}
        client = ControllerClient(host.url, timeout=60.0)
        ranks[1].send(80, None)
        ranks[2].send(80, np.ones(16, np.uint32))
        eventually(
            lambda: (
                [
                    (each["seen"], each["missing"], each["filled"])
                    for each in client.waiting_slots("a")["slots"]
                ]
                == [([1, 2], [0], True)]
            )
        )
        (job,) = client.stats()["jobs"]
        assert job["counters"]["worker_1_packets"] == 81
        assert client.stats()["switch"]["inits"] == 32
        for rank in ranks:
            rank.leave()
            rank.close()
        assert client.slots()["free"] == 256


@pytest.mark.long
def test_200_jobs_in_sequence_leave_nothing_behind() -> None:
    process, others = psutil.Process(), set(threading.enumerate())
    with EmbeddedController() as host:

        def one(number: int) -> None:
            ranks = start(host.url, f"job{number % 3}", 4)
            for rank in ranks:
                rank.send(0, np.full(rank.place["words"], rank.rank, np.uint32))
            for rank in ranks:
                assert rank.receive()[1].tolist() == [6] * rank.place["words"]
                if number % 2:
                    rank.leave()
                rank.close()

        def quiet() -> None:
            end = time.monotonic() + 20
            while host.controller.busy:
                assert time.monotonic() < end
                time.sleep(0.01)
            gc.collect()

        for number in range(30):
            one(number)
        ControllerClient(host.url).slots()
        quiet()
        memory, descriptors = process.memory_info().rss, process.num_fds()
        threads = process.num_threads()
        for number in range(200):
            one(number)
        quiet()
        assert ControllerClient(host.url).slots()["free"] == 65536
        quiet()
        # Connections end a moment after their jobs.
        eventually(lambda: process.num_threads() <= threads)
        eventually(lambda: process.num_fds() <= descriptors)
        assert process.memory_info().rss - memory < 16 << 20
    assert not [each for each in {*threading.enumerate()} - others if "switchagg" in each.name]


def test_largest_packets_on_loopback() -> None:
    with EmbeddedController(capacity=4) as host:
        ranks = start(host.url, "a", 2, words=LOOPBACK_WORDS, slots=4)
        for rank in ranks:
            rank.send(0, np.arange(LOOPBACK_WORDS, dtype=np.uint32))
        for rank in ranks:
            assert (rank.receive()[1] == 2 * np.arange(LOOPBACK_WORDS)).all()
            rank.close()


def test_words_that_fit_an_interface() -> None:
    assert words_at("127.0.0.1") == 16_000
    assert interface_mtu("127.0.0.1") >= 1500
    assert interface_mtu("192.0.2.1") == 1500  # nobody's address
    assert words_at("192.0.2.1") == 364


def test_what_cannot_start() -> None:
    with pytest.raises(UsageError, match=r"host is 0\.0\.0\.0; workers are told where to send"):
        EmbeddedController("0.0.0.0")
    with pytest.raises(UsageError, match="host is 'nonsense'"):
        EmbeddedController("nonsense")
    with pytest.raises(UsageError, match="slots is 3"):
        EmbeddedController(slots=3)
    with EmbeddedController() as host:
        udp, tcp = host.switch.address[1], int(host.url.rpartition(":")[2])
        with pytest.raises(SwitchError):
            EmbeddedController(port=udp)
        with pytest.raises(SwitchError, match="Address already in use"):
            EmbeddedController(controller_port=tcp)
        host.close()
        with EmbeddedController(port=udp, controller_port=tcp):
            pass

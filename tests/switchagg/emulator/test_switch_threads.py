"""A switch with several threads: each has its slots, and what the kernel gives to another is not lost."""

from __future__ import annotations

import contextlib
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from switchagg.emulator.rates import Rate
from switchagg.emulator.switch import Switch
from switchagg.errors import UsageError, WorkerLostError
from switchagg.wire.header import decode
from tests.ipv6 import needs_ipv6
from tests.reference.link_end import Claim, LinkEnd
from tests.seeds import seed_of_this_run
from tests.switchagg.emulator.plain_workers import PlainWorkers, reduce_rounds
from tests.waiting import eventually
from tests.worker_lib.harness import in_threads, job_name, several_sums, together, try_together
from worker_lib.connect import connect
from worker_lib.session import Session

SLOTS, WORDS, TRAIN = 512, 64, 48


@pytest.fixture
def rng() -> np.random.Generator:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("threads", "base", "slots", "host"),
    [
        (2, 0, 256, "127.0.0.1"),
        (3, 1024, 512, "127.0.0.1"),
        (5, 1152, 128, "127.0.0.1"),
        (4, 160, 32, "127.0.0.1"),
        pytest.param(3, 1024, 512, "::1", marks=needs_ipv6),
    ],
)
def test_sums_over_the_blocks_of_all_threads(
    threads: int, base: int, slots: int, host: str, rng: np.random.Generator
) -> None:
    with (
        Switch(host, threads=threads) as switch,
        PlainWorkers(2, slots=slots, base=base, first_seq=2**32 - 100, host=host).join(switch) as workers,
    ):
        reduce_rounds(workers, 3 * slots, rng)
        counters = switch.job_counters(1)
        assert counters["results"] == 3 * slots
        assert counters["inits"] == slots
        assert [counters[f"worker_{bit}_packets"] for bit in (0, 1)] == [3 * slots] * 2
        # The kernel gave every packet to the thread that has its slot.
        assert switch.port_counters()["strays"] == 0
        for index in (base, base + slots - 1):
            assert switch.slot(index).seen == 3


def test_trains_that_cross_blocks_are_handed_over(rng: np.random.Generator) -> None:
    rounds = 4 * SLOTS // TRAIN
    with (
        Switch(threads=3) as switch,
        PlainWorkers(1, words=WORDS, slots=SLOTS, base=SLOTS).join(switch) as workers,
    ):
        if not (switch.gso and switch.gro):
            pytest.skip("this kernel has no UDP_SEGMENT or no UDP_GRO")
        for turn in range(rounds):
            first = turn * TRAIN
            block = rng.integers(0, 2**32, (TRAIN, WORDS), dtype=np.uint32)
            workers.send_train(0, [workers.packet(0, first + i, block[i]) for i in range(TRAIN)])
            got = {header.seq: words for header, words in (workers.receive(0) for _ in range(TRAIN))}
            for i in range(TRAIN):
                np.testing.assert_array_equal(got[first + i], block[i])
        port = switch.port_counters()
        assert port["packets_in"] == port["packets_out"] == rounds * TRAIN
        assert 0 < port["strays"] < rounds * TRAIN
        assert port["strays_dropped"] == 0
        assert switch.job_counters(1)["results"] == rounds * TRAIN


def test_packets_of_no_slot_are_counted_once() -> None:
    with Switch(threads=4) as switch, PlainWorkers(2, slots=256).join(switch) as workers:
        for number in range(64):
            workers.send_bytes(0, bytes([number]))
            workers.send(1, number, token=5)
        eventually(lambda: switch.counters()["received"] == 256 + 128)
        counters = switch.counters()
        assert (counters["truncated"], counters["token"]) == (64, 64)
        assert sum(switch.outcome_counters(1).workers[bit].token for bit in (0, 1)) == 64


def test_a_fenced_worker_is_shut_out_by_all_threads() -> None:
    with Switch(threads=4) as switch, PlainWorkers(2, slots=256).join(switch) as workers:
        switch.fence(1, 0b10)
        for seq in range(0, 256, 16):
            workers.send(1, seq)
        eventually(lambda: switch.counters()["source"] == 16)
        switch.admit(1, 0b10)
        for seq in range(0, 256, 16):
            workers.send(0, seq)
            workers.send(1, seq)
        for _ in range(16):
            assert workers.receive(1)[1] is None


def test_a_job_has_the_bits_that_one_thread_gives() -> None:
    seed = seed_of_this_run()
    found = []
    for threads in (1, 2, 3):
        with EmbeddedController(threads=threads) as host:
            for transport in ("udp", "shm"):
                ranks = together(host.url, 3, several_sums, seed, transport=transport, slots=512)
                assert ranks[0] == ranks[1] == ranks[2]
                found.append(ranks[0])
            if threads > 1:  # workers know which thread has a slot, and where their trains have to end
                assert host.switch.port_counters()["strays"] == 0
    assert all(each == found[0] for each in found)


def test_one_job_through_the_memory_of_all_threads_and_by_udp() -> None:
    seed, name = seed_of_this_run(), job_name()

    def rank(number: int) -> tuple[str, list[bytes]]:
        with connect(
            host.url, name, number, 3, timeout=100, slots=256, transport=("shm", "udp", "shm")[number]
        ) as session:
            return session.transport, several_sums(session, seed)

    with EmbeddedController(threads=3) as host:
        ranks = [each.get() for each in in_threads([partial(rank, number) for number in range(3)])]
    assert [used for used, _ in ranks] == ["shm", "udp", "shm"]
    assert ranks[0][1] == ranks[1][1] == ranks[2][1]


def test_what_a_thread_finds_in_its_memory_for_another_is_handed_over() -> None:
    with Switch(threads=2) as switch, PlainWorkers(1, slots=256).join(switch) as workers:
        member = Claim(1, workers.entry.workers[0].token)
        names = (switch.link, f"{switch.link}.1")
        links = [LinkEnd.attach(name, workers.sockets[0], member) for name in names]
        assert [link.threads for link in links] == [2, 2]
        for seq in range(0, 256, 32):
            links[0].send(workers.packet(0, seq, np.full(16, seq, np.uint32)))
            result = links[seq // 64 % 2].receive()  # of the thread that has the slot
            assert result is not None
            header, words = decode(result)
            assert header.seq == seq
            np.testing.assert_array_equal(words, np.full(16, seq))
        assert switch.port_counters()["strays"] == 4
        # A thread lets its own link go, and then answers by UDP.
        links[1].close()
        workers.sockets[0].settimeout(0.2)
        for _ in range(200):
            links[0].send(workers.packet(0, 224, np.full(16, 7, np.uint32)))
            with contextlib.suppress(TimeoutError):
                assert workers.receive(0)[0].seq == 224
                break
        else:
            pytest.fail("no answer by UDP")
        links[0].close()


def test_workers_of_one_computer_share_slots_or_links() -> None:
    def transport(session: Session) -> tuple[str, float]:
        return session.transport, float(session.allreduce(np.ones(1000, np.float32))[0])

    with EmbeddedController(threads=2) as host:
        assert together(host.url, 2, transport) == [("slots", 2.0)] * 2
        assert together(host.url, 2, transport, check=True) == [("shm", 2.0)] * 2  # which shares no slots


def test_a_rank_is_lost_and_the_others_go_on_through_all_threads() -> None:
    def call(session: Session) -> list[int]:
        sizes = []
        for turn in range(6):
            if turn == 3 and session.rank == 2 and session.world_size == 3:
                raise ArithmeticError("gone")
            with contextlib.suppress(WorkerLostError):
                sizes.append(int(session.allreduce(np.ones(50_000, np.int32))[-1]))
        return sizes

    with EmbeddedController(threads=2) as host:
        ranks = try_together(host.url, 3, call, transport="shm", slots=256, on_loss="shrink")
    assert isinstance(ranks[2].error, ArithmeticError)
    for each in ranks[:2]:
        assert each.get()[:3] == [3, 3, 3]
        assert set(each.get()[3:]) == {2}


@pytest.mark.parametrize("count", [0, -1, 65])
def test_numbers_of_threads_that_cannot_be(count: int) -> None:
    with pytest.raises(UsageError, match=rf"threads.*{count}|{count}.*threads"):
        Switch(threads=count)


def test_what_knows_one_thread_alone(tmp_path: Path) -> None:
    cases: list[dict[str, object]] = [
        {"rate": Rate(1e9)},
        {"faults": Faults(loss=0.1)},
        {"pcap": tmp_path / "file"},
    ]
    for each in cases:
        with pytest.raises(UsageError, match="threads is 2"):
            Switch(threads=2, **each)  # type: ignore[arg-type]
    assert not (tmp_path / "file").exists()

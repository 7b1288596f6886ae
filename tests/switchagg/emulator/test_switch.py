"""The switch on real sockets: reductions, repeats, start and stop, its errors and its limits."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from switchagg.emulator.switch import Switch
from switchagg.errors import SwitchError, UsageError
from switchagg.p4program.program import COMPLETING, Outcome
from switchagg.wire.header import HEADER_BYTES, Flag, Op
from tests.switchagg.emulator.plain_workers import PlainWorkers, reduce_rounds
from tests.waiting import eventually


@pytest.fixture
def rng() -> np.random.Generator:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture(params=[(True, 1), (False, 1), (True, 3)], ids=["offload", "plain", "threads"])
def switch(request: pytest.FixtureRequest) -> Iterator[Switch]:
    offload, threads = request.param
    with Switch(offload=offload, threads=threads) as made:
        yield made


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_reduces(switch: Switch, count: int, rng: np.random.Generator) -> None:
    with PlainWorkers(count, words=364, slots=16).join(switch) as workers:
        reduce_rounds(workers, 100, rng)
    counters = switch.job_counters(1)
    assert counters["results"] == 100
    assert counters["accepted"] == counters["received"] - counters["inits"] == 100 * count
    assert [counters[f"worker_{bit}_packets"] for bit in range(count)] == [100] * count


def test_seq_wraps(switch: Switch, rng: np.random.Generator) -> None:
    with PlainWorkers(2, slots=8, first_seq=2**32 - 13).join(switch) as workers:
        reduce_rounds(workers, 40, rng)


@pytest.mark.parametrize("words", [16, 2200, 16000])
def test_any_packet_size(switch: Switch, words: int, rng: np.random.Generator) -> None:
    with PlainWorkers(2, words=words, slots=4).join(switch) as workers:
        reduce_rounds(workers, 12, rng)


def test_or_of_words(switch: Switch) -> None:
    low, high = np.full(16, 0x00FF00F0, np.uint32), np.full(16, 0xFF00000F, np.uint32)
    with PlainWorkers(2).join(switch) as workers:
        workers.send(0, 0, low, op=Op.OR)
        workers.send(1, 0, high, op=Op.OR)
        for bit in range(2):
            np.testing.assert_array_equal(workers.receive(bit)[1], low | high)


def test_all_skip_gives_an_empty_result(switch: Switch) -> None:
    with PlainWorkers(3).join(switch) as workers:
        for bit in range(3):
            workers.send(bit, 0)
        for bit in range(3):
            header, words = workers.receive(bit)
            assert header.seq == 0
            assert words is None
            assert not header.flags & Flag.PAYLOAD
    assert switch.counters()["empty_results"] == 1


def test_a_repeat_is_answered_to_its_sender_alone(switch: Switch) -> None:
    words = np.arange(16, dtype=np.uint32)
    with PlainWorkers(2).join(switch) as workers:
        workers.send(0, 0, words)
        workers.send(0, 0, words)  # not full yet: dropped
        workers.send(1, 0, words)
        for bit in range(2):
            workers.receive(bit)
        workers.send(1, 0, words, reply=77)
        header, again = workers.receive(1)
        assert header.reply == 77
        np.testing.assert_array_equal(again, 2 * words)
        workers.send(1, 0, words)
        assert workers.receive(1)[0].reply == 0
        assert workers.pending(0) == 0
    counters = switch.counters()
    assert (counters["duplicate"], counters["duplicates_answered"], counters["results"]) == (1, 2, 1)


def test_what_is_not_admitted_is_counted_and_not_answered(switch: Switch) -> None:
    words = np.zeros(16, np.uint32)
    with PlainWorkers(1).join(switch) as workers:
        stranger = PlainWorkers(1).at(switch.address)
        stranger.send(0, 0, words)
        workers.send(0, 0, words, token=1)
        workers.send(0, 24, words)
        workers.send(0, 0, np.zeros(17, np.uint32))
        workers.send(0, 0, words, op=Op.RESULT)
        workers.send(0, 0, words, op=Op.INIT)
        workers.send_bytes(0, b"\x10" + bytes(6))
        workers.send_bytes(0, b"")
        workers.send_bytes(0, b"\x20" + bytes(15))
        eventually(lambda: switch.port_counters()["packets_in"] == 9)
        assert workers.pending(0) == stranger.pending(0) == 0
        stranger.close()
    dropped = ("source", "token", "stale", "length", "op", "truncated", "version")
    # Packets that one thread hands to another are counted a little later than they came in.
    eventually(lambda: [switch.counters()[reason] for reason in dropped] == [1, 1, 1, 1, 2, 2, 1])
    assert switch.counters()["accepted"] == 0
    assert switch.port_counters()["packets_out"] == 0


def test_a_fenced_worker_is_shut_out_while_the_others_go_on(switch: Switch) -> None:
    words = np.arange(16, dtype=np.uint32)
    with PlainWorkers(3).join(switch) as workers:
        workers.send(2, 0, words)
        eventually(lambda: switch.job_counters(1)["accepted"] == 1)
        switch.fence(1, 0b100)
        workers.send(2, 1, words)
        eventually(lambda: switch.job_counters(1)["source"] == 1)
        workers.send(0, 0, words)
        workers.send(1, 0, words)
        for bit in range(2):
            np.testing.assert_array_equal(workers.receive(bit)[1], 3 * words)
        with pytest.raises(UsageError, match="bits is 0x8"):
            switch.fence(1, 8)
        switch.admit(1, 0b100)
        workers.send(2, 1, words)
        eventually(lambda: switch.job_counters(1)["accepted"] == 4)


def test_tallies_say_what_became_of_each_worker_s_packets(switch: Switch) -> None:
    words = np.arange(16, dtype=np.uint32)
    with PlainWorkers(2).join(switch) as workers:
        workers.send(0, 0, words)
        workers.send(0, 0, words, token=1)
        workers.send(1, 0, words)
        workers.receive(0)
        workers.send(1, 0, words)
        workers.send(1, 1)
        workers.send(0, 1)
        eventually(lambda: switch.job_counters(1)["received"] == 6 + switch.job_counters(1)["inits"])
    tallies = switch.outcome_counters(1)
    named = {Outcome(each): count for each, count in enumerate(tallies.outcomes[:24]) if count and each != 4}
    assert named == {Outcome.FRESH_STORED: 1, Outcome.ANSWERED: 1, Outcome.FRESH_SKIP: 1}
    completing = {
        Outcome(each): tallies.outcomes[each + COMPLETING] for each in Outcome if each >= Outcome.SKIP
    }
    assert {each for each, count in completing.items() if count} == {Outcome.ADDED, Outcome.EMPTY_SKIP}
    assert [(each.packets, each.token) for each in tallies.workers.values()] == [(2, 1), (3, 0)]
    assert switch.unknown_job_counters()["received"] == 0
    with pytest.raises(UsageError, match="no job 2"):
        switch.outcome_counters(2)


def test_two_jobs_at_once(switch: Switch, rng: np.random.Generator) -> None:
    with (
        PlainWorkers(2, words=16, slots=8, job=1, base=0).join(switch) as first,
        PlainWorkers(3, words=100, slots=32, job=9, base=32).join(switch) as second,
    ):
        for _ in range(3):
            reduce_rounds(first, 8, rng)
            reduce_rounds(second, 32, rng)
            first.first_seq += 8
            second.first_seq += 32
        switch.remove_job(1)
        reduce_rounds(second, 32, rng)
        first.send(0, 24)
        eventually(lambda: switch.counters()["job"] == 1)


def test_trains_of_packets(rng: np.random.Generator) -> None:
    """UDP_SEGMENT batches come in as GRO trains; each datagram in them counts."""
    slots, words = 256, 352
    with Switch() as switch, PlainWorkers(1, words=words, slots=slots).join(switch) as workers:
        if not (switch.gso and switch.gro):
            pytest.skip("this kernel has no UDP_SEGMENT or no UDP_GRO")
        for start in range(0, 4 * slots, 32):
            block = rng.integers(0, 2**32, (32, words), dtype=np.uint32)
            workers.send_train(0, [workers.packet(0, start + i, block[i]) for i in range(32)])
            for i in range(32):
                header, got = workers.receive(0)
                assert header.seq == start + i
                np.testing.assert_array_equal(got, block[i])
        port = switch.port_counters()
        assert port["packets_in"] == port["packets_out"] == 4 * slots
        assert port["bytes_in"] == port["bytes_out"] == 4 * slots * (HEADER_BYTES + 4 * words)
        assert port["send_calls"] == 4 * slots / 32  # each train is answered by one


def test_skips_and_words_in_one_batch(rng: np.random.Generator) -> None:
    """Results of both sizes leave in one flush."""
    with Switch() as switch, PlainWorkers(1, words=64, slots=128).join(switch) as workers:
        block = rng.integers(0, 2**32, (60, 64), dtype=np.uint32)
        workers.send_train(0, [workers.packet(0, seq, block[seq]) for seq in range(0, 60, 2)])
        workers.send_train(0, [workers.packet(0, seq) for seq in range(1, 60, 2)])
        results = {header.seq: words for header, words in (workers.receive(0) for _ in range(60))}
        for seq in range(60):
            if seq % 2:
                assert results[seq] is None
            else:
                np.testing.assert_array_equal(results[seq], block[seq])


def test_slot_shows_what_is_in_it(switch: Switch) -> None:
    words = np.arange(16, dtype=np.uint32)
    with PlainWorkers(2, base=8).join(switch) as workers:
        before = switch.slot(9)
        assert (before.seq, before.seen, before.filled, before.words) == (1 - 8 + 2**32, 3, False, None)
        workers.send(1, 1, words)
        eventually(lambda: switch.counters()["accepted"] == 1)
        slot = switch.slot(9)
        assert (slot.seq, slot.seen, slot.filled) == (1, 2, True)
        np.testing.assert_array_equal(slot.words, words)


def flood(switch: Switch, workers: PlainWorkers, stop: threading.Event) -> threading.Thread:
    """Repeats of a finished slot, as fast as one Python thread sends them."""
    workers.send(0, 0, np.zeros(workers.entry.words, np.uint32))
    workers.receive(0)
    packets = [workers.packet(0, 0)] * 60
    address = switch.address

    def send() -> None:
        while not stop.is_set():
            try:
                workers.send_train(0, packets)
            except OSError:
                for packet in packets:
                    workers.sockets[0].sendto(packet, address)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_control_while_packets_flood_in(switch: Switch) -> None:
    stop = threading.Event()
    with PlainWorkers(1, words=352).join(switch) as workers, PlainWorkers(2, job=2, base=64) as others:
        thread = flood(switch, workers, stop)
        try:
            for _ in range(50):
                others.join(switch)
                assert switch.slot(64).seen == 3
                assert switch.job_counters(2)["inits"] == 8
                switch.remove_job(2)
                assert switch.counters()["received"] >= 9
            received = switch.counters()["received"]
            eventually(lambda: switch.counters()["received"] > received)
            switch.close()
        finally:
            stop.set()
            thread.join()
    assert switch.counters()["duplicates_answered"] > 0


def test_control_from_several_threads(switch: Switch) -> None:
    failures: list[BaseException] = []

    def use(job: int) -> None:
        try:
            with PlainWorkers(1, job=job, base=8 * job) as workers:
                for round_ in range(20):
                    workers.join(switch)
                    workers.send(0, 0, np.full(16, round_, np.uint32))
                    words = workers.receive(0)[1]
                    assert words is not None
                    assert (words == round_).all()
                    switch.remove_job(job)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(job,)) for job in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_memory_does_not_grow_with_traffic() -> None:
    with Switch() as switch, PlainWorkers(1, words=16, slots=128).join(switch) as workers:
        train = [workers.packet(0, 0)] * 50
        workers.send(0, 0)
        sent = 1

        def send(batches: int) -> None:
            nonlocal sent
            for _ in range(batches):
                workers.send_train(0, train)
                sent += len(train)
                if sent % 1000 == 1:
                    eventually(lambda all_=sent: switch.port_counters()["packets_in"] == all_)  # type: ignore[misc]
                    workers.pending(0)

        send(200)
        before = psutil.Process().memory_info().rss
        send(4000)
        assert switch.port_counters()["packets_in"] == sent == 210_001
        assert psutil.Process().memory_info().rss - before < 4 << 20


def test_an_idle_switch_sleeps(switch: Switch) -> None:
    with PlainWorkers(1).join(switch) as workers:
        workers.send(0, 0)
        workers.receive(0)
        eventually(lambda: switch.port_counters()["packets_in"] == 1)
        calls = switch.port_counters()["receive_calls"]
        threading.Event().wait(0.3)
        assert switch.port_counters()["receive_calls"] - calls <= 2


def test_state_is_readable_after_close() -> None:
    switch = Switch()
    with switch, PlainWorkers(1).join(switch) as workers:
        address = switch.address
        workers.send(0, 0, np.ones(16, np.uint32))
        workers.receive(0)
    switch.close()  # again: nothing happens
    assert switch.address == address
    assert switch.counters()["results"] == 1
    assert switch.port_counters()["packets_out"] == 1
    assert switch.slot(0).filled
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(address)


def test_a_closed_switch_leaves_no_descriptor_or_thread() -> None:
    with Switch():
        pass
    process = psutil.Process()
    fds, threads = process.num_fds(), process.num_threads()
    for _ in range(20):
        with Switch():
            pass
    # A thread that was joined is still counted for a moment, now and above.
    eventually(lambda: process.num_fds() <= fds and process.num_threads() <= threads)


def test_start_happens_once() -> None:
    switch = Switch()
    with pytest.raises(SwitchError, match="not started"):
        _ = switch.address
    with switch, pytest.raises(SwitchError, match="running"):
        switch.start()
    with pytest.raises(SwitchError, match="closed"):
        switch.start()


def test_port_in_use() -> None:
    with Switch() as switch:
        port = switch.address[1]
        with pytest.raises(SwitchError, match=f"port {port} of 127.0.0.1 is in use"):
            Switch(port=port).start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"host": "203.0.113.7"}, "203.0.113.7, which is no address of this host"),
        ({"host": "no such host"}, "host is 'no such host'"),
        ({"host": ""}, "host is ''"),
        ({"host": "fe80::1"}, "link-local"),
        ({"port": 65536}, "port is 65536"),
        ({"port": -1}, "port is -1"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": 65537}, "65537"),
        ({"receive_buffer": 1}, "receive_buffer is 1"),
    ],
)
def test_values_that_cannot_work(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Switch(**arguments).start()  # type: ignore[arg-type]


def test_jobs_that_cannot_be() -> None:
    with Switch(capacity=16) as switch, PlainWorkers(1).join(switch) as workers:
        with pytest.raises(UsageError, match="job 1 is already"):
            switch.add_job(workers.entry)
        with PlainWorkers(1, job=2, base=16) as outside, pytest.raises(UsageError, match="outside"):
            switch.add_job(outside.entry)
        with PlainWorkers(1, job=2) as overlapping, pytest.raises(UsageError, match="overlap"):
            switch.add_job(overlapping.entry)
        for use in (switch.remove_job, switch.job_counters):
            for job in (7, -1, 1 << 20):
                with pytest.raises(UsageError, match=f"no job {job}"):
                    use(job)
        for index in (8, 15, 65536, -1):
            with pytest.raises(UsageError, match="slot"):
                switch.slot(index)


def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SwitchError, match=r"Linux only.*darwin"):
        Switch()


def run_python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to drop its rights and be refused")
def test_without_privileges() -> None:
    output = run_python(
        """
        import os
        from switchagg.emulator.switch import Switch
        from switchagg.errors import SwitchError
        import switchagg.emulator._native
        os.setgroups([])
        os.setresuid(65534, 65534, 65534)
        try:
            Switch(port=77).start()
        except SwitchError as error:
            print(error)
        with Switch(receive_buffer=1 << 29) as switch:
            print(switch.receive_buffer < 1 << 29)
            print(switch.warnings)
        """
    )
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) > 77:
        assert "no permission for UDP port 77 of 127.0.0.1" in output
    assert "True" in output
    assert "sysctl -w net.core.rmem_max=536870912" in output


def test_a_forked_child_disturbs_nothing() -> None:
    output = run_python(
        """
        import os, sys
        from switchagg.emulator.switch import Switch
        from switchagg.errors import SwitchError
        from tests.switchagg.emulator.plain_workers import PlainWorkers
        switch = Switch()
        switch.start()
        workers = PlainWorkers(1).join(switch)
        child = os.fork()
        if child == 0:
            try:
                switch.counters()
            except SwitchError:
                switch.close()
                del switch
                sys.exit(7)
            sys.exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        workers.send(0, 0)
        print(workers.receive(0)[0].seq, switch.counters()["results"])
        """
    )
    assert output.split() == ["0", "1"]


def test_forgotten_at_exit() -> None:
    """A program that never closes its switch still ends."""
    run_python("from switchagg.emulator.switch import Switch; switch = Switch(); switch.start()")

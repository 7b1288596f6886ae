"""The rate device, seen from outside. Bounds on time are those that hold however busy the computer is: a link
never carries more than its rate, and what its queue bears arrives.

A finished slot answers every repeat, and the answer echoes the repeat's `reply`, so numbered repeats tell
what has passed, in which order.
"""

from __future__ import annotations

import argparse
import socket
import time

import numpy as np
import pytest

from switchagg.cli.main import main
from switchagg.cli.options import add_network_options, network_arguments, rate_from
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from switchagg.emulator.rates import MIN_RATE, Rate, wire_bytes
from switchagg.emulator.switch import Switch
from switchagg.errors import UsageError
from tests.switchagg.emulator.plain_workers import PlainWorkers
from tests.waiting import eventually
from tests.worker_lib.harness import together
from worker_lib import Session

BURST = 200e-6  # seconds of idleness that a link may make up for
REPEAT = 16 + 64  # bytes of a RESULT of 16 words, and of what asks for it again
COST = 8 * wire_bytes(REPEAT)  # bits


def ask(switch: Switch, workers: PlainWorkers, numbers: range) -> None:
    """Sends numbered repeats, no more at once than the switch's socket has room for."""
    for number in numbers:
        workers.send(0, 0, np.zeros(16, np.uint32), reply=number)
        if number % 100 == 0:
            eventually(lambda sent=number: switch.port_counters()["packets_in"] >= sent)  # type: ignore[misc]


def finish_a_slot(workers: PlainWorkers) -> None:
    """Leaves a RESULT with words in slot 0, for repeats to fetch."""
    workers.send(0, 0, np.ones(16, np.uint32))
    workers.receive(0)


@pytest.mark.parametrize("offload", [True, False])
def test_a_link_carries_its_rate_and_loses_nothing_that_its_queue_bears(offload: bool) -> None:
    count, rate = 600, Rate(2e6)
    with Switch(rate=rate, offload=offload) as switch, PlainWorkers(1).join(switch) as workers:
        finish_a_slot(workers)
        started = time.monotonic()
        ask(switch, workers, range(1, count + 1))
        came = [workers.receive(0)[0].reply for _ in range(count)]
        elapsed = time.monotonic() - started
        counters = switch.rate_counters()
    assert came == list(range(1, count + 1))
    assert elapsed >= count * COST / rate.bits_per_second - 2 * BURST
    assert counters["dropped_in"] == counters["dropped_out"] == 0
    assert counters["packets_in"] == counters["packets_out"] == count + 1
    assert counters["wire_bytes_in"] == (count + 1) * COST // 8
    assert counters["queued_in"] > count / 2


def test_at_any_moment_within_the_rate() -> None:
    rate = Rate(4e6)
    with Switch(rate=rate) as switch, PlainWorkers(1).join(switch) as workers:
        finish_a_slot(workers)
        started = time.monotonic()
        asked, bits = 0, 0.0
        while bits < 0.25 * rate.bits_per_second:
            while asked * COST - bits < 400 * COST:  # never more than the queue bears
                asked += 1
                ask(switch, workers, range(asked, asked + 1))
            workers.receive(0)
            bits += COST
            now = time.monotonic() - started
            assert bits <= (now + 2 * BURST) * rate.bits_per_second + COST
        assert switch.rate_counters()["dropped_in"] == 0


def test_a_full_queue_drops_and_counts() -> None:
    rate = Rate(1e5, queue=1 << 14)
    bears = rate.queue // wire_bytes(REPEAT)
    with Switch(rate=rate) as switch, PlainWorkers(1).join(switch) as workers:
        started = time.monotonic()
        ask(switch, workers, range(1, 1001))
        eventually(lambda: switch.port_counters()["packets_in"] == 1000)
        counters = switch.rate_counters()
        elapsed = time.monotonic() - started
    assert counters["packets_in"] + counters["dropped_in"] == 1000
    assert bears <= counters["packets_in"] <= bears + (elapsed + BURST) * rate.bits_per_second / COST + 1
    assert counters["dropped_out"] == 0


def test_each_worker_has_a_link_of_its_own() -> None:
    with Switch(rate=Rate(MIN_RATE)) as switch, PlainWorkers(2).join(switch) as workers:
        ask(switch, workers, range(1, 101))  # some twelve seconds' worth
        workers.send(1, -7, reply=7)  # a slot that worker 0 does not use
        assert workers.receive(1)[0].reply == 7
        assert switch.counters()["received"] < 100  # worker 0's are still on their way


def test_waiting_takes_no_processor_time() -> None:
    with Switch(rate=Rate(MIN_RATE)) as switch, PlainWorkers(1).join(switch) as workers:
        ask(switch, workers, range(1, 101))
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.25


@pytest.mark.parametrize("size", [0, 1, 18, 19, 80, 1472, 8144])
def test_cost_on_the_wire(size: int) -> None:
    with Switch(rate=Rate(1e9)) as switch, PlainWorkers(1).at(switch.address) as workers:
        workers.send_bytes(0, bytes(size))
        eventually(lambda: switch.rate_counters()["packets_in"] == 1)
        assert switch.rate_counters()["wire_bytes_in"] == wire_bytes(size)


def test_least_and_usual_frames() -> None:
    assert wire_bytes(0) == 84  # 64 bytes of frame, 8 of preamble, 12 of gap
    assert wire_bytes(1472) == 1538  # an MTU of 1,500


def test_strangers_do_not_use_up_links() -> None:
    """Idle links are forgotten; where too many are busy, newcomers are dropped, and counted."""
    for rate, dropped in ((Rate(1e9), False), (Rate(MIN_RATE), True)):
        with Switch(rate=rate) as switch:
            for sent in range(1, 4301):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                    stranger.bind((f"127.0.{1 + sent % 200}.1", 0))
                    stranger.sendto(bytes(8000), switch.address)
                if sent % 100 == 0:
                    eventually(lambda all_=sent: switch.port_counters()["packets_in"] == all_)  # type: ignore[misc]
            assert (switch.rate_counters()["dropped_in"] > 0) is dropped
            with PlainWorkers(1).join(switch) as workers:
                if not dropped:
                    workers.send(0, -8, reply=3)
                    assert workers.receive(0)[0].reply == 3


def test_faults_and_a_rate_together() -> None:
    with Switch(rate=Rate(2e6), faults=Faults(loss=0.3, seed=1)) as switch, PlainWorkers(1) as workers:
        workers.join(switch)
        ask(switch, workers, range(1, 301))
        eventually(lambda: switch.rate_counters()["packets_in"] == 300)
        eventually(lambda: switch.counters()["received"] == 8 + 300 - switch.fault_counters()["lost_in"])
        assert 30 < switch.fault_counters()["lost_in"] < 200


@pytest.mark.parametrize("transport", ["udp", "shm"])
def test_a_job_over_either_transport(transport: str) -> None:
    """The sum is right, and took as long as its bytes take of a link."""
    elements, rate = 200_000, Rate(2e7)

    def reduce(session: Session) -> tuple[str, float]:
        x = np.full(elements, session.rank + 1, np.int32)
        session.barrier()
        started = time.monotonic()
        session.allreduce(x)
        elapsed = time.monotonic() - started
        assert (x == 3).all()
        return session.transport, elapsed

    with EmbeddedController(rate=rate) as host:
        ranks = together(host.url, 2, reduce, transport=transport)
        counters = host.switch.rate_counters()
    assert [used for used, _ in ranks] == [transport] * 2
    assert all(elapsed >= elements * 32 / rate.bits_per_second - 2 * BURST for _, elapsed in ranks)
    assert counters["wire_bytes_out"] >= 2 * 4 * elements


def test_no_rate_no_device() -> None:
    with Switch() as switch:
        assert switch.rate is None
        assert switch.rate_counters() == {}


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1Gbit", 1e9), ("100Mbit", 1e8), ("2.5 gbit/s", 2.5e9), ("64kbit", 64e3), ("20000bit", 2e4),
        ("1000000000.0bit", 1e9), ("1Tbit", 1e12),
    ],
)  # fmt: skip
def test_rates(text: str, bits: float) -> None:
    assert Rate.parse(text).bits_per_second == bits


@pytest.mark.parametrize("text", ["", "1", "0.1", "1GB", "fast", "-1Gbit", "1e9bit", "nanbit", "1 Gbit 2"])
def test_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match=r"rate is .* accepted: a number and bit"):
        Rate.parse(text)


@pytest.mark.parametrize("text", ["0bit", "9999bit", "2Tbit"])
def test_out_of_range(text: str) -> None:
    with pytest.raises(UsageError, match="accepted: 10kbit to 1Tbit"):
        Rate.parse(text)


@pytest.mark.parametrize("queue", [0, (1 << 14) - 1, (1 << 28) + 1])
def test_no_queue(queue: int) -> None:
    with pytest.raises(UsageError, match=f"queue is {queue} bytes"):
        Rate(1e9, queue)


@pytest.mark.parametrize("mark", [0, (1 << 20) + 1])
def test_no_mark(mark: int) -> None:
    with pytest.raises(UsageError, match=f"mark is {mark} bytes; accepted: 1..1048576"):
        Rate(1e9, mark=mark)


@pytest.mark.parametrize(
    "rate", [Rate(1e9), Rate(123456.75, 1 << 20), Rate(1e12, 1 << 28), Rate(1e9, 1 << 16, 1 << 14)]
)
def test_options_are_read_back(rate: Rate) -> None:
    parser = argparse.ArgumentParser()
    add_network_options(parser)
    args = parser.parse_args(rate.options())
    assert rate_from(args) == rate
    assert network_arguments(args) == rate.options()


def test_how_it_is_shown() -> None:
    assert [str(Rate(bits)) for bits in (1e9, 1e8, 2.5e9, 1e12)] == [
        "1 Gbit/s", "100 Mbit/s", "2.5 Gbit/s", "1 Tbit/s",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["run", "-n", "1", "--rate", "1", "--", "true"], "rate is '1'; accepted: a number and bit"),
        (["run", "-n", "1", "--queue", "65536", "--", "true"], "--queue is of links with a --rate"),
        (["run", "-n", "1", "--mark", "65536", "--", "true"], "--mark is of links with a --rate"),
        (["switch", "--port", "0", "--rate", "1Gbit", "--queue", "1"], "queue is 1 bytes"),
        (["host", "--rate", "1kbit"], "accepted: 10kbit to 1Tbit"),
        (["demo", "--rate", "0.1"], "rate is '0.1'"),
        (["bench", "allreduce", "--rate", "fast"], "rate is 'fast'"),
        (["switch", "--engine", "p4", "--program", "x.p4", "--rate", "1Gbit"], "no particular --rate"),
    ],
)
def test_commands_refuse_what_is_no_rate(
    line: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 2
    assert said in capsys.readouterr().err

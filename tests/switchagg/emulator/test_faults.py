"""The fault device, seen from outside: what a worker gets back from a switch behind a bad network.

A finished slot answers every repeat, and the answer echoes the repeat's `reply`: so n numbered repeats tell
which of n datagrams came through, in which order, and how often.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from switchagg.emulator.faults import Faults
from switchagg.emulator.switch import Switch
from switchagg.errors import UsageError
from tests.switchagg.emulator.plain_workers import PlainWorkers
from tests.waiting import eventually

COUNT = 4000


def finish_a_slot(switch: Switch, workers: PlainWorkers) -> None:
    """INIT leaves every slot full, with nothing in it: a repeat of the round before the first is answered."""
    workers.join(switch)


def answers(switch: Switch, count: int = COUNT) -> list[int]:
    """Sends numbered repeats, a hundred at a time; returns the numbers of the answers as they came back."""
    came: list[int] = []
    with PlainWorkers(1, first_seq=8) as workers:
        finish_a_slot(switch, workers)
        for start in range(1, count + 1, 100):
            numbers = range(start, min(start + 100, count + 1))
            for number in numbers:
                workers.send(0, 0, reply=number)
            eventually(lambda sent=numbers[-1]: switch.port_counters()["packets_in"] == sent)  # type: ignore[misc]
            settle(switch, workers, came)
    return came


def settle(switch: Switch, workers: PlainWorkers, came: list[int]) -> None:
    """Takes in the answers to all that the switch has got, also those that are held back for a moment."""
    faults = switch.fault_counters()
    passed_in = switch.port_counters()["packets_in"] - faults["lost_in"] + faults["duplicated_in"]
    while len(came) < passed_in - faults["lost_out"] + faults["duplicated_out"]:
        came.append(workers.receive(0)[0].reply)


def share(count: int, of: int) -> float:
    return count / of


def test_loss() -> None:
    with Switch(faults=Faults(loss=0.1, seed=1)) as switch:
        came = answers(switch)
    counters = switch.fault_counters()
    assert 0.07 < share(counters["lost_in"], COUNT) < 0.13
    assert 0.07 < share(counters["lost_out"], COUNT - counters["lost_in"]) < 0.13
    assert len(came) == COUNT - counters["lost_in"] - counters["lost_out"]
    assert came == sorted(set(came))


def test_everything_lost() -> None:
    with Switch(faults=Faults(loss=1.0)) as switch:
        assert answers(switch, 300) == []
        assert switch.fault_counters()["lost_in"] == 300
        assert switch.counters()["received"] == 8  # the INITs, which do not come through the port


def test_duplicates() -> None:
    with Switch(faults=Faults(duplicate=0.2, seed=2)) as switch:
        came = answers(switch)
    counters = switch.fault_counters()
    assert 0.15 < share(counters["duplicated_in"], COUNT) < 0.25
    assert len(came) == COUNT + counters["duplicated_in"] + counters["duplicated_out"]
    assert set(came) == set(range(1, COUNT + 1))


def test_reordering() -> None:
    with Switch(faults=Faults(reorder=0.1, seed=3)) as switch:
        came = answers(switch)
    counters = switch.fault_counters()
    assert 0.07 < share(counters["reordered_in"], COUNT) < 0.13
    assert sorted(came) == list(range(1, COUNT + 1))
    assert came != sorted(came)
    # Held back twice at the most, for 8 datagrams each time, of which some were held back themselves.
    assert max(abs(number - place) for place, number in enumerate(came, 1)) < 40


def test_a_datagram_that_nothing_follows_is_not_held_for_ever() -> None:
    with Switch(faults=Faults(reorder=1.0)) as switch, PlainWorkers(1).join(switch) as workers:
        for seq in range(20):
            workers.send(0, seq)
            assert workers.receive(0)[0].seq == seq


def test_delay_is_of_every_datagram_both_ways() -> None:
    with Switch(faults=Faults(delay=0.05)) as switch, PlainWorkers(1).join(switch) as workers:
        start = time.monotonic()
        for seq in range(4):
            workers.send(0, seq, np.full(16, seq, np.uint32))
        for seq in range(4):  # in order, and the bytes are kept
            header, words = workers.receive(0)
            assert header.seq == seq
            assert words is not None
            assert (words == seq).all()
        assert time.monotonic() - start >= 0.1
    assert switch.fault_counters()["delayed_in"] == switch.fault_counters()["delayed_out"] == 4


def test_jitter_changes_places() -> None:
    with (
        Switch(faults=Faults(jitter=0.02, seed=4)) as switch,
        PlainWorkers(1, slots=64).join(switch) as workers,
    ):
        for seq in range(32):
            workers.send(0, seq)
        seqs = [workers.receive(0)[0].seq for _ in range(32)]
    assert sorted(seqs) == list(range(32))
    assert seqs != sorted(seqs)


def test_corruption_flips_one_bit() -> None:
    words = np.zeros(364, np.uint32)
    with Switch(faults=Faults(corrupt=1.0, seed=5)) as switch, PlainWorkers(1, words=364) as workers:
        workers.join(switch)
        for seq in range(8):
            workers.send(0, seq, words)
        eventually(lambda: switch.port_counters()["packets_in"] == 8)
        answered = switch.port_counters()["packets_out"]
        came = [workers.sockets[0].recv(65536) for _ in range(answered)]
        counters = switch.fault_counters()
        stored = [switch.slot(index) for index in range(8)]
    assert counters["corrupted_in"] == 8
    assert counters["corrupted_out"] == answered
    flips = [sum(int(word).bit_count() for word in slot.words) for slot in stored if slot.words is not None]
    assert flips
    assert set(flips) <= {0, 1}  # 0: in a part of the header that nothing checks
    assert 1 in flips
    for packet in came:
        assert sum(byte.bit_count() for byte in packet[16:]) <= 2


def test_same_seed_same_fate() -> None:
    faults = [Faults(loss=0.1, duplicate=0.1, corrupt=0.0, seed=seed) for seed in (6, 6, 7)]
    came = []
    for each in faults:
        with Switch(faults=each) as switch:
            came.append(answers(switch, 1500))
    assert came[0] == came[1]
    assert came[0] != came[2]


def test_fate_does_not_depend_on_batches() -> None:
    came = []
    for offload in (True, False):
        with Switch(faults=Faults(loss=0.2, duplicate=0.1, seed=8), offload=offload) as switch:
            came.append(answers(switch, 1500))
    assert came[0] == came[1]


def test_a_seed_is_chosen_and_shown() -> None:
    one, two = Switch(faults=Faults(loss=0.5)), Switch(faults=Faults(loss=0.5))
    assert one.faults is not None
    assert two.faults is not None
    assert one.faults.seed is not None
    assert one.faults.seed != two.faults.seed


def test_no_faults_no_device() -> None:
    with Switch(faults=Faults(seed=3)) as switch:
        assert switch.faults is None
        assert switch.fault_counters() == {}


def test_what_is_held_is_bounded() -> None:
    packet = bytes(60_000)
    with Switch(faults=Faults(delay=10.0)) as switch, PlainWorkers(1).at(switch.address) as workers:
        for sent in range(1, 701):
            workers.send_bytes(0, packet)
            if sent % 50 == 0:
                eventually(lambda all_=sent: switch.port_counters()["packets_in"] == all_)  # type: ignore[misc]
        counters = switch.fault_counters()
        assert 100 < counters["overflowed_in"] < 200
    assert switch.counters()["received"] == 0


@pytest.mark.parametrize("name", ["loss", "duplicate", "reorder", "corrupt"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_no_probability(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} is"):
        Faults(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["delay", "jitter"])
@pytest.mark.parametrize("value", [-1e-9, 11.0, float("nan")])
def test_no_time(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} is"):
        Faults(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_no_seed(seed: int) -> None:
    with pytest.raises(UsageError, match="seed is"):
        Faults(seed=seed)

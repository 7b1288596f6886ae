"""The fault device of the P4 engine, on numbered packets and a clock of its own."""

from __future__ import annotations

import math
import random

import pytest

from switchagg.emulator.fault_line import HELD_BYTES, LONGEST_REORDER, FaultDevice, FaultLine
from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run

COUNT = 4000


def line(**faults: float) -> FaultLine[str]:
    return FaultLine(Faults(**faults, seed=seed_of_this_run()), "in")  # type: ignore[arg-type]


def numbers(packets: list[tuple[bytes, str]]) -> list[int]:
    assert all(where == "here" for _, where in packets)
    return [int.from_bytes(data, "big") for data, _ in packets]


def passed(through: FaultLine[str], count: int = COUNT, gap: float = 1e-6) -> list[int]:
    """Sends numbered packets, `gap` seconds apart; returns the numbers as they leave, to the last."""
    came: list[int] = []
    now = 0.0
    for number in range(count):
        now = number * gap
        came += numbers(through.release(now) + through.enter(number.to_bytes(4, "big"), "here", now))
    while (due := through.next_due()) < math.inf:
        assert due > now
        now = due
        came += numbers(through.release(now))
    return came


def test_loss() -> None:
    through = line(loss=0.1)
    came = passed(through)
    assert came == sorted(set(came))
    assert through.counters["lost"] == COUNT - len(came)
    assert 0.07 < through.counters["lost"] / COUNT < 0.13


def test_duplicates() -> None:
    through = line(duplicate=0.2)
    came = passed(through)
    assert came == sorted(came)
    assert len(came) == COUNT + through.counters["duplicated"]
    assert 0.15 < through.counters["duplicated"] / COUNT < 0.25


def test_reordering() -> None:
    through = line(reorder=0.1)
    came = passed(through)
    assert sorted(came) == list(range(COUNT))
    assert 0.07 < through.counters["reordered"] / COUNT < 0.13
    # Every packet that was held is overtaken by 1 to 8 others, unless its time is over before.
    late = [place - number for place, number in enumerate(came)]
    assert {each for each in late if each > 0} <= set(range(1, 17))
    assert sum(each > 0 for each in late) > COUNT * 0.05


def test_a_packet_that_nothing_follows_is_not_held_for_ever() -> None:
    through = line(reorder=1.0)
    assert through.enter(b"\0", "here", 5.0) == []
    assert through.next_due() == 5.0 + LONGEST_REORDER
    assert through.release(5.0 + LONGEST_REORDER / 2) == []
    assert through.release(5.0 + LONGEST_REORDER) == [(b"\0", "here")]
    assert through.next_due() == math.inf


def test_delay_is_of_every_packet_and_keeps_the_order() -> None:
    through = line(delay=0.05)
    for number in range(10):
        assert through.enter(bytes([number]), "here", number * 1e-3) == []
    assert through.next_due() == pytest.approx(0.05)
    assert through.release(0.0499) == []
    assert numbers(through.release(0.0545)) == [0, 1, 2, 3, 4]
    assert numbers(through.release(1.0)) == [5, 6, 7, 8, 9]
    assert through.counters["delayed"] == 10


def test_jitter_changes_places() -> None:
    through = line(jitter=0.02)
    came = passed(through, 64)
    assert sorted(came) == list(range(64))
    assert came != sorted(came)


def test_corruption_flips_one_bit() -> None:
    through = line(corrupt=1.0)
    flips = set()
    for _ in range(200):
        [(data, _)] = through.enter(bytes(4), "here", 0.0)
        flips.add(int.from_bytes(data, "big"))
    assert all(each.bit_count() == 1 for each in flips)
    assert len(flips) > 20
    assert through.enter(b"", "here", 0.0) == [(b"", "here")]
    assert through.counters["corrupted"] == 200


def test_a_seed_is_a_sequence_of_fates_in_each_direction() -> None:
    faults = Faults(loss=0.1, duplicate=0.1, reorder=0.1, seed=6)
    came = [passed(FaultLine(faults, direction)) for direction in ("in", "in", "out")]
    assert came[0] == came[1] != came[2]
    assert came[0] != passed(FaultLine(Faults(loss=0.1, duplicate=0.1, reorder=0.1, seed=7), "in"))
    # One kind of fault leaves the fates of the others as they were.
    alone = passed(FaultLine(Faults(loss=0.1, seed=6), "in"))
    assert set(came[0]) == set(alone)


def test_all_at_once_loses_only_what_is_counted() -> None:
    generator = random.Random(seed_of_this_run())
    kinds = ("loss", "duplicate", "reorder")
    through = line(**{kind: generator.random() * 0.5 for kind in kinds}, delay=1e-3, jitter=1e-3)
    came = passed(through)
    assert len(came) == COUNT - through.counters["lost"] + through.counters["duplicated"]


def test_what_is_held_is_bounded() -> None:
    through = line(delay=10.0)
    for _ in range(700):
        assert through.enter(bytes(60_000), "here", 0.0) == []
    assert through.counters["overflowed"] == 700 - HELD_BYTES // 60_128
    assert len(through.release(10.0)) == HELD_BYTES // 60_128
    assert through.enter(bytes(60_000), "here", 20.0) == []
    assert len(through.release(30.0)) == 1


def test_no_faults_no_device() -> None:
    for faults in (None, Faults(seed=3)):
        device = FaultDevice[str](faults)
        assert device.faults is None
        assert device.counters() == {}
        assert device.inward.enter(b"x", "here", 0.0) == [(b"x", "here")]
        assert device.timeout(0.0) is None


def test_a_seed_is_chosen_and_directions_are_counted() -> None:
    one, two = (FaultDevice[str](Faults(loss=1.0)) for _ in range(2))
    assert one.faults is not None
    assert two.faults is not None
    assert one.faults.seed != two.faults.seed
    assert one.inward.enter(b"x", "here", 0.0) == []
    names = ("lost", "corrupted", "duplicated", "reordered", "delayed", "overflowed")
    empty = {f"{name}_{end}": 0 for name in names for end in ("in", "out")}
    assert one.counters() == empty | {"lost_in": 1}
    held = FaultDevice[str](Faults(delay=2.0))
    held.outward.enter(b"x", "here", 1.0)
    assert held.timeout(1.5) == 1.5
    assert held.timeout(4.0) == 0.0

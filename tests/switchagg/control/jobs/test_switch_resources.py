"""Slot ranges: aligned, apart from each other, and all there again in the end."""

from __future__ import annotations

import random

import pytest

from switchagg.control.jobs.records import SwitchState
from switchagg.control.jobs.slot_allocator import SlotAllocator
from switchagg.control.jobs.switch_resources import JobSize, SwitchResources
from switchagg.errors import AdmissionError, UsageError
from switchagg.rules.switch import Capacity
from tests.seeds import seed_of_this_run


def test_lowest_base_first_and_neighbours_join_again() -> None:
    slots = SlotAllocator(16)
    a, b = slots.allocate(4), slots.allocate(8)
    assert (a, b) == (0, 8)
    assert slots.ranges == {0: 4, 8: 8}
    assert (slots.free_slots, slots.largest_free) == (4, 4)
    slots.free(a)
    assert slots.largest_free == 8
    slots.free(b)
    assert slots.allocate(16) == 0
    assert (slots.free_slots, slots.largest_free) == (0, 0)


def test_a_capacity_that_is_no_power_of_two_is_used_in_full() -> None:
    slots = SlotAllocator(1000)
    assert slots.largest_free == 512
    bases = [slots.allocate(8) for _ in range(125)]
    assert sorted(bases) == list(range(0, 1000, 8))
    for base in bases:
        slots.free(base)
    assert [slots.allocate(size) for size in (512, 256, 128, 64, 32, 8)] == [0, 512, 768, 896, 960, 992]


@pytest.mark.parametrize("size", [0, -4, 3, 1000])
def test_sizes_are_powers_of_two(size: int) -> None:
    with pytest.raises(UsageError, match=f"slots is {size}; accepted: a power of two"):
        SlotAllocator(1024).allocate(size)


def test_too_many_says_what_there_is() -> None:
    slots = SlotAllocator(16)
    with pytest.raises(AdmissionError, match="32 slots asked for; the switch has 16") as refused:
        slots.allocate(32)
    assert refused.value.code == "no_slots"
    slots.allocate(4)
    with pytest.raises(
        AdmissionError, match="16 slots asked for; 12 of the switch's 16 are free, 8 of them in one"
    ):
        slots.allocate(16)
    assert slots.free_slots == 12


def test_only_ranges_are_freed() -> None:
    slots = SlotAllocator(16)
    base = slots.allocate(8)
    slots.free(base)
    with pytest.raises(UsageError, match="base is 0; ranges start at"):
        slots.free(base)
    with pytest.raises(UsageError, match="capacity is 0"):
        SlotAllocator(0)


@pytest.mark.parametrize("capacity", [64, 100, 65536])
def test_random_use(capacity: int) -> None:
    seed = seed_of_this_run()
    draw = random.Random(seed)
    slots = SlotAllocator(capacity)
    mine: dict[int, int] = {}
    refused = 0
    for _ in range(3000):
        if mine and draw.random() < 0.45:
            base = draw.choice(sorted(mine))
            slots.free(base)
            del mine[base]
            continue
        size = 1 << draw.randrange(capacity.bit_length())
        room = slots.largest_free
        if size > room:
            with pytest.raises(AdmissionError):
                slots.allocate(size)
            refused += 1
            continue
        base = slots.allocate(size)
        assert base % size == 0
        assert base + size <= capacity
        assert all(base + size <= other or other + mine[other] <= base for other in mine)
        mine[base] = size
        assert slots.ranges == dict(sorted(mine.items()))
    assert refused
    for base in mine:
        slots.free(base)
    fresh = SlotAllocator(capacity)
    assert (slots.free_slots, slots.largest_free) == (capacity, fresh.largest_free)


def switch(name: str, slots: int = 64, memory: int = 1 << 24, **more: int) -> SwitchResources:
    made = SwitchResources(name, Capacity(slots, 364, memory, **more), slots=8)
    made.up = True
    return made


def test_what_a_switch_lacks() -> None:
    small = switch("s", memory=40_000, groups=2)
    size = small.job_size(None, None)
    assert (size.slots, small.obstacle(size)) == (8, "")
    assert small.obstacle(JobSize(64, 352)).startswith(
        "64 slots of 352 words take 92160 bytes; switch 's' has 40000"
    )
    small.take(JobSize(8, 16))
    big = JobSize(64, 16)
    assert (
        small.obstacle(big)
        == "64 slots asked for; 56 of the 64 of switch 's' are free, 32 of them in one range"
    )
    small.take(JobSize(8, 16))
    assert small.obstacle(size) == "all 2 multicast groups of switch 's' are taken"
    small.draining = True
    assert (small.obstacle(size), small.state) == ("switch 's' is being drained", SwitchState.draining)
    small.up, small.why = False, "cut off"
    assert (small.obstacle(size), small.state) == ("switch 's' is down: cut off", SwitchState.down)


def test_a_range_is_claimed_again_after_a_restart() -> None:
    first = switch("s", 100)
    ranges = [first.take(JobSize(slots, 16)) for slots in (4, 16, 2, 32)]
    again = switch("s", 100)
    for each in reversed(ranges):
        again.claim(each)
    assert (again.allocator.ranges, again.memory_used) == (first.allocator.ranges, first.memory_used)
    assert again.allocator._free == {
        size: bases for size, bases in first.allocator._free.items() if bases or size in again.allocator._free
    }
    with pytest.raises(UsageError, match=r"slots 96\.\.99 are not free"):
        again.claim(ranges[0])
    for each in ranges:
        again.release(each)
    assert again.allocator.largest_free == 64
    for base, slots in ((3, 4), (96, 8), (-4, 4), (0, 128)):
        with pytest.raises(UsageError, match="are not free"):
            again.allocator.claim(base, slots)

"""Placements: the best candidate gets its ranges, and whatever is free can be taken."""

from __future__ import annotations

import random
from collections.abc import Sequence

from switchagg.control.jobs.candidates import CandidateFinder, PlacementCandidate
from switchagg.control.jobs.job import Placement
from switchagg.control.jobs.switch_pool import SwitchPool
from switchagg.control.jobs.switch_resources import SlotRange, SwitchResources
from switchagg.rules.switch import Capacity
from tests.seeds import seed_of_this_run


def switch(name: str, slots: int = 64, memory: int = 1 << 24, **more: int) -> SwitchResources:
    made = SwitchResources(name, Capacity(slots, 364, memory, **more), slots=8)
    made.up = True
    return made


def anywhere(pool: SwitchPool, slots: int) -> Sequence[PlacementCandidate]:
    return CandidateFinder(pool.switches).of_size(None, None, slots, 2)


def take(pool: SwitchPool, slots: int) -> SlotRange | None:
    placement = pool.take(anywhere(pool, slots))
    return None if placement is None else placement.root


def test_the_smallest_hole_that_fits_then_the_least_used() -> None:
    pool = SwitchPool([switch("a"), switch("b", 128), switch("c", 128)])

    def place(slots: int) -> tuple[str, int]:
        slot_range = take(pool, slots)
        assert slot_range is not None
        return slot_range.switch, slot_range.base

    assert place(8) == ("a", 0)  # the hole of 64
    assert place(8) == ("a", 8)  # what is left of it
    assert place(128) == ("b", 0)  # whole, since nothing smaller went there
    assert place(32) == ("a", 32)
    assert place(64) == ("c", 0)
    assert place(64) == ("c", 64)
    assert place(16) == ("a", 16)
    assert take(pool, 2) is None


def test_switches_alike_are_used_alike() -> None:
    pool = SwitchPool([switch("a"), switch("b")])
    found = [take(pool, 32) for _ in range(4)]
    assert [(each.switch, each.base) for each in found if each] == [
        ("a", 0),
        ("a", 32),
        ("b", 0),
        ("b", 32),
    ]


def holes(each: SwitchResources) -> set[int]:
    """The sizes of aligned ranges that nobody has, found by looking at every slot."""
    taken = [False] * each.capacity.slots
    for base, slot_range in each.ranges.items():
        taken[base : base + slot_range.slots] = [True] * slot_range.slots
    found = set()
    size = 1
    while size <= each.capacity.slots:
        starts = range(0, each.capacity.slots - size + 1, size)
        if any(not any(taken[start : start + size]) for start in starts):
            found.add(size)
        size *= 2
    return found


def test_whatever_is_free_and_aligned_can_be_had() -> None:
    seed = seed_of_this_run()
    draw = random.Random(seed)
    refused = 0
    for capacities in ([64], [100, 64, 256], [32, 32, 32]):
        switches = [switch(f"s{i}", slots) for i, slots in enumerate(capacities)]
        pool = SwitchPool(switches)
        mine = []
        for _ in range(1500):
            if mine and draw.random() < 0.48:
                pool.release(Placement(mine.pop(draw.randrange(len(mine)))))
                continue
            size = 1 << draw.randrange(1, 8)
            if size > max(capacities):
                continue
            possible = anywhere(pool, size)
            there = [each.name for each in switches if size in holes(each)]
            slot_range = take(pool, size)
            if slot_range is None:
                refused += 1
                assert not there
                assert all(pool.switches[each.root].obstacle(each.size) for each in possible)
            else:
                assert slot_range.switch in there
                assert slot_range.base % size == 0
                mine.append(slot_range)
        for slot_range in mine:
            pool.release(Placement(slot_range))
        for each in switches:
            assert (each.ranges, each.memory_used, each.allocator.free_slots) == ({}, 0, each.capacity.slots)
            assert each.allocator.largest_free == 1 << (each.capacity.slots.bit_length() - 1)
    assert refused

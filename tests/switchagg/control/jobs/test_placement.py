"""Where jobs go, and that what is free can be had."""

from __future__ import annotations

import random

import pytest

from switchagg.control.jobs.placement import Placement, Room, Shape
from switchagg.control.jobs.records import SwitchState
from switchagg.errors import AdmissionError, UsageError
from switchagg.rules.switch import Capacity
from tests.seeds import seed_of_this_run


def room(name: str, slots: int = 64, words: int = 364, memory: int = 1 << 24, **more: int) -> Room:
    made = Room(name, Capacity(slots, words, memory, **more), slots=8)
    made.up = True
    return made


def anywhere(placement: Placement, slots: int, workers: int = 2) -> dict[str, Shape]:
    return dict(placement.possible(None, None, slots, workers))


def test_the_smallest_hole_that_fits_then_the_least_used() -> None:
    placement = Placement([room("a"), room("b", 128), room("c", 128)])

    def place(slots: int) -> tuple[str, int]:
        site = placement.place(anywhere(placement, slots))
        assert site is not None
        return site.switch, site.base

    assert place(8) == ("a", 0)  # the hole of 64
    assert place(8) == ("a", 8)  # what is left of it
    assert place(128) == ("b", 0)  # whole, since nothing smaller went there
    assert place(32) == ("a", 32)
    assert place(64) == ("c", 0)
    assert place(64) == ("c", 64)
    assert place(16) == ("a", 16)
    assert placement.place(anywhere(placement, 2)) is None


def test_switches_alike_are_used_alike() -> None:
    placement = Placement([room("a"), room("b")])
    found = [placement.place(anywhere(placement, 32)) for _ in range(4)]
    assert [(site.switch, site.base) for site in found if site] == [("a", 0), ("a", 32), ("b", 0), ("b", 32)]


def test_what_a_switch_lacks() -> None:
    small = room("s", memory=40_000, groups=2)
    shape = small.shape(None, None)
    assert (shape.slots, small.lacks(shape)) == (8, "")
    assert small.lacks(Shape(64, 352)).startswith(
        "64 slots of 352 words take 92160 bytes; switch 's' has 40000"
    )
    small.take(Shape(8, 16))
    big = Shape(64, 16)
    assert (
        small.lacks(big) == "64 slots asked for; 56 of the 64 of switch 's' are free, 32 of them in one range"
    )
    small.take(Shape(8, 16))
    assert small.lacks(shape) == "all 2 multicast groups of switch 's' are taken"
    small.draining = True
    assert (small.lacks(shape), small.state) == ("switch 's' is being drained", SwitchState.draining)
    small.up, small.why = False, "cut off"
    assert (small.lacks(shape), small.state) == ("switch 's' is down: cut off", SwitchState.down)


def test_a_program_has_one_k() -> None:
    placement = Placement([room("p4", words=64, exact_words=64, workers=8), room("native", words=364)])
    assert placement.possible("p4", None, None, 2)["p4"] == Shape(8, 64)
    assert placement.possible(None, 100, None, 2) == {"native": Shape(8, 100)}
    assert set(placement.possible(None, 64, None, 2)) == {"p4", "native"}
    with pytest.raises(
        AdmissionError, match="words is 32; accepted: 64, which the program of switch 'p4' was"
    ):
        placement.possible("p4", 32, None, 2)
    with pytest.raises(
        AdmissionError, match="9 workers; the program of switch 'p4' takes 8 in a job"
    ) as error:
        placement.possible("p4", None, None, 9)
    assert error.value.code == "world_size"
    with pytest.raises(AdmissionError, match="switch is 'x'; accepted: p4, native"):
        placement.possible("x", None, None, 2)
    with pytest.raises(AdmissionError, match="there are no switches"):
        Placement([]).possible(None, None, None, 2)


def test_a_range_is_claimed_again_after_a_restart() -> None:
    first = room("s", 100)
    sites = [first.take(Shape(slots, 16)) for slots in (4, 16, 2, 32)]
    again = room("s", 100)
    for site in reversed(sites):
        again.claim(site)
    assert (again.allocator.ranges, again.memory_used) == (first.allocator.ranges, first.memory_used)
    assert again.allocator._free == {
        size: bases for size, bases in first.allocator._free.items() if bases or size in again.allocator._free
    }
    with pytest.raises(UsageError, match=r"slots 96\.\.99 are not free"):
        again.claim(sites[0])
    for site in sites:
        again.give(site)
    assert again.allocator.largest_free == 64
    for base, slots in ((3, 4), (96, 8), (-4, 4), (0, 128)):
        with pytest.raises(UsageError, match="are not free"):
            again.allocator.claim(base, slots)


def holes(each: Room) -> set[int]:
    """The sizes of aligned ranges that nobody has, found by looking at every slot."""
    taken = [False] * each.capacity.slots
    for base, site in each.sites.items():
        taken[base : base + site.slots] = [True] * site.slots
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
        rooms = [room(f"s{i}", slots) for i, slots in enumerate(capacities)]
        placement = Placement(rooms)
        mine = []
        for _ in range(1500):
            if mine and draw.random() < 0.48:
                placement.free(mine.pop(draw.randrange(len(mine))))
                continue
            size = 1 << draw.randrange(1, 8)
            if size > max(capacities):
                continue
            possible = anywhere(placement, size)
            there = [each.name for each in rooms if size in holes(each)]
            site = placement.place(possible)
            if site is None:
                refused += 1
                assert not there
                assert all(placement.rooms[name].lacks(shape) for name, shape in possible.items())
            else:
                assert site.switch in there
                assert site.base % size == 0
                mine.append(site)
        for site in mine:
            placement.free(site)
        for each in rooms:
            assert (each.sites, each.memory_used, each.allocator.free_slots) == ({}, 0, each.capacity.slots)
            assert each.allocator.largest_free == 1 << (each.capacity.slots.bit_length() - 1)
    assert refused

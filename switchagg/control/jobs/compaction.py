"""Makes room for a large job by moving small ones. No I/O and no clock.

    [A][ ][B][ ]  two are free, but not in one range      [A][B][    ]  B has moved

Running jobs are moved only by their own change of membership, when they come to a pause, and only while a job
waits that a switch has everything for but a range of that size. The range that costs least is cleared: its
jobs have the fewest slots, all of them run, and there is somewhere to go for each. A job that does not
come to a pause in time stays where it is, and others are asked instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from switchagg.control.jobs.allocator import SlotAllocator
from switchagg.control.jobs.placement import Placement, Room, Shape, Site
from switchagg.errors import UsageError

Shapes = Mapping[str, Shape]


def clear_range(
    placement: Placement, room: Room, slots: int, movable: Callable[[Site], Shapes | None]
) -> list[tuple[Site, Site]]:
    """Finds what to move so that an aligned range of `slots` becomes free, and takes the places to move to.

    Args:
        movable: where the job at a site could go; None if it cannot move now.

    Returns:
        Pairs of a site and the place that is kept for its job; empty where there is no way.
    """
    windows = []
    for start in range(0, room.capacity.slots - slots + 1, slots):
        there = [
            site
            for site in room.sites.values()
            if site.base < start + slots and start < site.base + site.slots
        ]
        if all(site.slots < slots and movable(site) is not None for site in there):
            windows.append((sum(site.slots for site in there), start, there))
    for _, start, there in sorted(windows, key=lambda window: window[:2]):
        with _kept_free(room.allocator, start, slots):
            moves = _places(placement, there, movable)
        if moves:
            return moves
    return []


def _places(
    placement: Placement, sites: list[Site], movable: Callable[[Site], Shapes | None]
) -> list[tuple[Site, Site]]:
    moves: list[tuple[Site, Site]] = []
    for site in sorted(sites, key=lambda each: -each.slots):
        target = placement.place(movable(site) or {})
        if target is None:
            for _, taken in moves:
                placement.free(taken)
            return []
        moves.append((site, target))
    return moves


@contextmanager
def _kept_free(allocator: SlotAllocator, start: int, slots: int) -> Iterator[None]:
    """Keeps others out of what is free in a range."""
    held: list[int] = []

    def hold(base: int, size: int) -> None:
        try:
            allocator.claim(base, size)
        except UsageError:
            if size > 1:
                hold(base, size // 2)
                hold(base + size // 2, size // 2)
        else:
            held.append(base)

    hold(start, slots)
    try:
        yield
    finally:
        for base in held:
            allocator.free(base)

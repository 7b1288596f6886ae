"""The slots of all switches of a controller: takes a job's ranges, frees them, makes room for large jobs.

A job is placed on switches that are up and not draining, and that have the slots, the memory and a multicast
group for it. Of its candidates it gets

    1. the one whose smallest fitting hole is smallest (best fit),
    2. then the one that is used least, then the first by name.

A job in stripes gets those of its switches with the most bandwidth free, and weights in proportion. Free is
the part of a switch's link that one job more has, if all share it evenly.

So small jobs are packed into small holes, and a large hole stays whole on some switch as long as any smaller
one would do. The fragmentation that is left are holes too small for a waiting job. `clear_range` then has
smaller jobs move aside:

    [A][ ][B][ ]  two are free, but not in one range      [A][B][    ]  B has moved

It chooses the range that costs least: its jobs have the fewest slots, all of them can move, and there is
somewhere to go for each. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from switchagg.control.jobs.candidates import PlacementCandidate, seats_in_tree
from switchagg.control.jobs.job import Placement
from switchagg.control.jobs.slot_allocator import SlotAllocator
from switchagg.control.jobs.switch_resources import JobSize, SlotRange, SwitchResources
from switchagg.errors import UsageError
from switchagg.wire.header import MAX_WEIGHT

Candidates = Iterable[PlacementCandidate]


class SwitchPool:
    """The switches of one controller, by name, in `switches`."""

    def __init__(self, switches: Iterable[SwitchResources]) -> None:
        self.switches = {switch.name: switch for switch in switches}

    def take(
        self, candidates: Candidates, *, without: Iterable[str] = (), held: Placement | None = None
    ) -> Placement | None:
        """Takes ranges on all switches of the best candidate; on none if no candidate has room now.

        No switch of `without` is used. Ranges of `held` that the job can keep are in the result too.
        """
        best = self._best(candidates, without, held)
        if best is None:
            return None
        mine = _by_switch(held)
        return _placed(*best, lambda name, size: mine.get(name) or self.switches[name].take(size))

    def retake(
        self, candidates: Candidates, held: Placement, *, without: Iterable[str] = ()
    ) -> Placement | None:
        """Frees `held` and takes the ranges of the best candidate, perhaps the same; or keeps `held`."""
        best = self._best(candidates, without, held)
        if best is None:
            return None
        self.release(held)
        return _placed(*best, lambda name, size: self.switches[name].take(size))

    def claim(self, placement: Placement) -> None:
        """Takes exactly these ranges. Raises `UsageError`, with none taken, if one is not free."""
        with ExitStack() as undo:
            for each in placement.ranges:
                if each.switch not in self.switches:
                    raise UsageError(f"there is no switch {each.switch!r} any more")
                self.switches[each.switch].claim(each)
                undo.callback(self.switches[each.switch].release, each)
            undo.pop_all()

    def release(self, placement: Placement, kept: Placement | None = None) -> None:
        """Frees the ranges of `placement`, except those that `kept` has too."""
        for each in placement.ranges:
            if kept is None or each not in kept.ranges:
                self.switches[each.switch].release(each)

    def draining(self, placement: Placement) -> list[str]:
        """Returns the switches of a placement that are being drained."""
        return [name for name in placement.switches if self.switches[name].draining]

    def obstacles(self, candidates: Candidates) -> str:
        """Returns the reasons, for people, why no candidate has room now."""
        texts = [self.switches[name].obstacle(each.size) for each in candidates for name in each.switches]
        return "; ".join(dict.fromkeys(filter(None, texts)))

    def clear_range(
        self, waiting: Candidates, movable: Callable[[SlotRange], Sequence[PlacementCandidate]]
    ) -> list[tuple[SlotRange, Placement]]:
        """Finds jobs to move so that a job on one switch finds room, and reserves ranges for them.

        Only switches are considered that lack nothing but a free range of the job's size. Returns pairs of a
        range and the placement reserved for its job; empty if there is no solution.

        Args:
            waiting: the job's candidates on one switch each.
            movable: returns the candidates of the job at a range; none if it cannot move now.
        """
        for candidate in waiting:
            switch, size = self.switches[candidate.root], candidate.size
            if switch.allocator.smallest_hole(size.slots) or switch.obstacle(size, besides_range=True):
                continue
            windows = []
            for start in range(0, switch.capacity.slots - size.slots + 1, size.slots):
                there = [
                    each
                    for each in switch.ranges.values()
                    if each.base < start + size.slots and start < each.base + each.slots
                ]
                if all(each.slots < size.slots and movable(each) for each in there):
                    windows.append((sum(each.slots for each in there), start, there))
            for _, start, there in sorted(windows, key=lambda window: window[:2]):
                with _kept_free(switch.allocator, start, size.slots):
                    moves = self._reserve(there, movable)
                if moves:
                    return moves
        return []

    def _reserve(
        self, ranges: list[SlotRange], movable: Callable[[SlotRange], Sequence[PlacementCandidate]]
    ) -> list[tuple[SlotRange, Placement]]:
        moves: list[tuple[SlotRange, Placement]] = []
        with ExitStack() as undo:
            for each in sorted(ranges, key=lambda each: -each.slots):
                target = self.take(movable(each))
                if target is None:
                    return []
                undo.callback(self.release, target)
                moves.append((each, target))
            undo.pop_all()
        return moves

    def _best(
        self, candidates: Candidates, without: Iterable[str], held: Placement | None
    ) -> tuple[PlacementCandidate, dict[str, tuple[int, ...]], Mapping[str, int]] | None:
        """Returns the candidate that has room and takes the fewest more switches, or smallest holes.

        With it come the ranks that attach to each of its switches, and the switches of its stripes with their
        weights.
        """
        shut, mine = set(without), _by_switch(held)

        def usable(name: str, size: JobSize) -> bool:
            switch = self.switches[name]
            if name in mine:  # the job may keep its range even where no new jobs are placed
                return name not in shut and switch.up
            return name not in shut and not switch.obstacle(size)

        def free(name: str) -> float:
            switch = self.switches[name]
            return switch.attachment.bandwidth / (1 + len(switch.ranges) - (name in mine))

        found: list[tuple[Any, PlacementCandidate, dict[str, tuple[int, ...]], Mapping[str, int]]] = []
        for each in candidates:
            there = [name for name in each.switches if usable(name, each.size)]
            if each.stripes > 1:
                kept = [name if name in there else "" for name in mine or range(each.stripes)]
                best = sorted((-free(name), *self._fit(name, each.size)) for name in set(there) - mine.keys())
                best = best[: kept.count("")]
                if len(best) == kept.count(""):
                    new = (name for *_, name in best)
                    chosen = {name: free(name) for name in (name or next(new) for name in kept)}
                    most = max(chosen.values())
                    weights = {name: max(1, round(MAX_WEIGHT * part / most)) for name, part in chosen.items()}
                    found.append(((len(best) if mine else 0, (0, 0.0, "")), each, {}, weights))
            elif each.root in there:
                seats: dict[str, tuple[int, ...]] | None = {}
                if each.options is not None:
                    seats = seats_in_tree(each.root, each.options, self.switches, there)
                if seats is not None:
                    more = {each.root, *seats} - mine.keys()
                    holes = [self._fit(name, each.size) for name in more]
                    cost = (len(more) if mine else 0, max(holes, default=(0, 0.0, each.root)))
                    found.append((cost, each, seats, {}))
        if not found:
            return None
        _, candidate, seats, stripes = min(found, key=lambda each: each[0])
        return candidate, seats, stripes

    def _fit(self, name: str, size: JobSize) -> tuple[int, float, str]:
        switch = self.switches[name]
        used = 1 - switch.allocator.free_slots / switch.capacity.slots
        return switch.allocator.smallest_hole(size.slots), used, name


def _placed(
    candidate: PlacementCandidate,
    seats: dict[str, tuple[int, ...]],
    stripes: Mapping[str, int],
    take: Callable[[str, JobSize], SlotRange],
) -> Placement:
    if stripes:
        first, *others = (take(name, candidate.size) for name in stripes)
        return Placement(first, stripes=tuple(others), weights=tuple(stripes.values()))
    root = candidate.root
    leaves = tuple(take(name, candidate.size) for name in sorted(seats.keys() - {root}))
    return Placement(take(root, candidate.size), leaves, tuple(sorted(seats.items())))


def _by_switch(placement: Placement | None) -> dict[str, SlotRange]:
    return {} if placement is None else {each.switch: each for each in placement.ranges}


@contextmanager
def _kept_free(allocator: SlotAllocator, start: int, slots: int) -> Iterator[None]:
    """Keeps others out of the free slots of a range."""
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

"""Which switch a job goes to, and what of it. No I/O.

A job is placed on a switch that is up and not draining, whose program can carry its K and number of workers,
and that has the slots, the memory and a multicast group for it: the named one, or of all these

    1. the one whose smallest fitting hole is smallest (best fit),
    2. then the one that is used least, then the first by name.

So small jobs are packed into small holes wherever these are, and a large hole stays whole on some switch as
long as any smaller one would do. Within a switch `allocator.py` keeps to the same rule. What fragmentation is
left is holes that are too small for a job that waits; `compaction.py` then has smaller jobs move aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from switchagg.control.jobs.allocator import SlotAllocator, is_power_of_two
from switchagg.control.jobs.records import SwitchState
from switchagg.errors import AdmissionError, UsageError
from switchagg.rules.planner import default_shape
from switchagg.rules.switch import Capacity
from switchagg.rules.wiring import Attachment
from switchagg.wire.header import MIN_WORDS

MIN_SLOTS: Final = 2  # a window is half of them
UNREACHED: Final = "not reached yet"


@dataclass(frozen=True, slots=True)
class Shape:
    """P and K of a job."""

    slots: int
    words: int

    @property
    def memory(self) -> int:
        """Bytes of switch memory that it takes."""
        return Capacity.bytes_of(self.slots, self.words)


@dataclass(frozen=True, slots=True)
class Site:
    """A range of slots of a switch that belongs to a job."""

    switch: str
    base: int
    slots: int
    words: int

    @property
    def shape(self) -> Shape:
        """Its size."""
        return Shape(self.slots, self.words)


@dataclass(frozen=True, slots=True)
class Tree:
    """Where a job is: a range on one switch, or on a root and on leaves below it, all of one size.

    Attributes:
        leaves: none of a job on one switch.
        seats: switches with the ranks that attach to them; empty where all are at the root.
    """

    root: Site
    leaves: tuple[Site, ...] = ()
    seats: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        """All its ranges, the root's first."""
        return self.root, *self.leaves

    @property
    def switches(self) -> tuple[str, ...]:
        """Their switches."""
        return tuple(site.switch for site in self.sites)


@dataclass(eq=False, slots=True)
class Room:
    """What one switch has, and what of it is taken.

    Args:
        words, slots: of a job that leaves these to the controller; None takes what suits the switch.
        attachment: how it is wired.
        address: where packets for it go, an IPv4 address and a UDP port; port 0 while it is not known.

    Raises `UsageError` for defaults that the switch has no room for.
    """

    name: str
    capacity: Capacity
    words: int | None = None
    slots: int | None = None
    attachment: Attachment = field(default_factory=Attachment)
    address: tuple[str, int] = ("0.0.0.0", 0)
    up: bool = False
    draining: bool = False
    why: str = UNREACHED
    allocator: SlotAllocator = field(init=False)
    sites: dict[int, Site] = field(default_factory=dict)  # base -> site
    memory_used: int = 0
    asked: tuple[int | None, int | None] = field(init=False)  # words and slots, as they were given

    def __post_init__(self) -> None:
        self.asked = self.words, self.slots
        self.allocator = SlotAllocator(self.capacity.slots)
        usual_words, usual_slots = default_shape(self.capacity.words)
        if self.words is None:
            self.words = usual_words if self.capacity.exact_words is None else self.capacity.exact_words
        if self.slots is None:
            self.slots = min(usual_slots, self.allocator.largest_free)
        try:
            self.shape(None, None)
        except AdmissionError as error:
            raise UsageError(str(error)) from None

    def resize(self, capacity: Capacity) -> None:
        """Goes by what the switch has, where that is not what was expected of it before it answered.

        Raises `AdmissionError` or `UsageError`, with nothing changed, where its jobs do not fit any more.
        """
        fresh = Room(self.name, capacity, *self.asked)
        for site in self.sites.values():
            fresh.shape(site.words, site.slots)
            fresh.claim(site)
        self.capacity, self.allocator = capacity, fresh.allocator
        self.words, self.slots = fresh.words, fresh.slots

    @property
    def state(self) -> SwitchState:
        """For people, and for placing jobs."""
        if not self.up:
            return SwitchState.down
        return SwitchState.draining if self.draining else SwitchState.up

    def shape(self, words: int | None, slots: int | None, workers: int = 1) -> Shape:
        """Returns the shape of a job here, were the switch empty. Raises `AdmissionError` for none."""
        assert self.words is not None
        assert self.slots is not None
        found = Shape(self.slots if slots is None else slots, self.words if words is None else words)
        capacity = self.capacity
        if capacity.exact_words is not None and found.words != capacity.exact_words:
            raise AdmissionError(
                f"words is {found.words}; accepted: {capacity.exact_words}, "
                f"which the program of switch {self.name!r} was compiled for",
                "bad_request",
            )
        if not MIN_WORDS <= found.words <= capacity.words:
            raise AdmissionError(
                f"words is {found.words}; accepted: {MIN_WORDS}..{capacity.words}, "
                "which is what fits the MTU on the way to the switch",
                "bad_request",
            )
        if found.slots < MIN_SLOTS or not is_power_of_two(found.slots):
            raise AdmissionError(
                f"slots is {found.slots}; accepted: a power of two, at least {MIN_SLOTS}", "bad_request"
            )
        if found.slots > capacity.slots:
            raise AdmissionError(
                f"slots is {found.slots}; the switch has {capacity.slots} in all", "no_slots"
            )
        if workers > capacity.workers:
            raise AdmissionError(
                f"{workers} workers; the program of switch {self.name!r} takes {capacity.workers} in a job",
                "world_size",
            )
        if found.memory > capacity.memory:
            raise AdmissionError(
                f"{found.slots} slots of {found.words} words take {found.memory} bytes; "
                f"the switch has {capacity.memory} bytes for slots",
                "no_memory",
            )
        return found

    def lacks(self, shape: Shape) -> str:
        """Returns what keeps a job of that shape from being placed here now; empty for nothing."""
        capacity = self.capacity
        if not self.up:
            return f"switch {self.name!r} is down: {self.why}"
        if self.draining:
            return f"switch {self.name!r} is being drained"
        if shape.memory > capacity.memory - self.memory_used:
            return (
                f"{shape.slots} slots of {shape.words} words take {shape.memory} bytes; switch {self.name!r} "
                f"has {capacity.memory} bytes for slots, of which other jobs have {self.memory_used}"
            )
        if not self.allocator.smallest_hole(shape.slots):
            return (
                f"{shape.slots} slots asked for; {self.allocator.free_slots} of the {capacity.slots} of "
                f"switch {self.name!r} are free, {self.allocator.largest_free} of them in one range"
            )
        if capacity.groups is not None and len(self.sites) >= capacity.groups:
            return f"all {capacity.groups} multicast groups of switch {self.name!r} are taken"
        return ""

    def take(self, shape: Shape) -> Site:
        """Takes a range. The caller has looked at `lacks`."""
        return self._keep(Site(self.name, self.allocator.allocate(shape.slots), shape.slots, shape.words))

    def claim(self, site: Site) -> None:
        """Takes this very range, as after a restart. Raises `UsageError` where it is not free."""
        self.allocator.claim(site.base, site.slots)
        self._keep(site)

    def give(self, site: Site) -> None:
        """Gives a range back."""
        del self.sites[site.base]
        self.allocator.free(site.base)
        self.memory_used -= site.shape.memory

    def _keep(self, site: Site) -> Site:
        self.sites[site.base] = site
        self.memory_used += site.shape.memory
        return site


class Placement:
    """All switches of one controller."""

    def __init__(self, rooms: Iterable[Room]) -> None:
        self.rooms: dict[str, Room] = {room.name: room for room in rooms}

    def possible(
        self, switch: str | None, words: int | None, slots: int | None, workers: int
    ) -> Mapping[str, Shape]:
        """Returns the switches that could take such a job if they were empty, and its shape on each.

        Raises `AdmissionError` where none could, or the one that is named is not there.
        """
        if switch is not None and switch not in self.rooms:
            known = ", ".join(self.rooms) or "none, there are no switches"
            raise AdmissionError(f"switch is {switch[:128]!r}; accepted: {known}", "bad_request")
        found: dict[str, Shape] = {}
        refusals: list[AdmissionError] = []
        for room in self.rooms.values():
            if switch is None or room.name == switch:
                try:
                    found[room.name] = room.shape(words, slots, workers)
                except AdmissionError as error:
                    refusals.append(error)
        if found:
            return found
        if not refusals:
            raise AdmissionError("there are no switches", "no_slots")
        texts = dict.fromkeys(str(refusal) for refusal in refusals)
        raise AdmissionError("; ".join(texts), refusals[0].code)

    def place(self, possible: Mapping[str, Shape], *, without: Iterable[str] = ()) -> Site | None:
        """Takes a range on the best of these switches; None where none has room now."""
        shut = set(without)
        fitting = [
            (self.rooms[name], shape)
            for name, shape in possible.items()
            if name not in shut and not self.rooms[name].lacks(shape)
        ]
        if not fitting:
            return None
        room, shape = min(fitting, key=lambda each: self._rank(*each))
        return room.take(shape)

    @staticmethod
    def _rank(room: Room, shape: Shape) -> tuple[int, float, str]:
        used = 1 - room.allocator.free_slots / room.capacity.slots
        return room.allocator.smallest_hole(shape.slots), used, room.name

    def free(self, site: Site) -> None:
        """Gives a range back to its switch."""
        self.rooms[site.switch].give(site)

    def cramped(self, possible: Mapping[str, Shape]) -> list[str]:
        """Returns the switches that lack nothing but a free range of that size."""
        return [
            name
            for name, shape in possible.items()
            if (room := self.rooms[name]).state is SwitchState.up
            and not room.allocator.smallest_hole(shape.slots)
            and shape.memory <= room.capacity.memory - room.memory_used
            and (room.capacity.groups is None or len(room.sites) < room.capacity.groups)
        ]

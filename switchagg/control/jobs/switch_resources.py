"""One switch as the book of jobs sees it: its size, its state, its slots (`slot_allocator.py`). No I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from switchagg.control.jobs.records import JoinRequest, SwitchState
from switchagg.control.jobs.slot_allocator import SlotAllocator, is_power_of_two
from switchagg.errors import AdmissionError, UsageError
from switchagg.rules.planner import default_shape
from switchagg.rules.switch import Capacity
from switchagg.rules.wiring import Attachment
from switchagg.wire.header import MIN_WORDS

MIN_SLOTS: Final = 2  # a window is half of them
UNREACHED: Final = "not reached yet"


@dataclass(frozen=True, slots=True)
class JobSize:
    """P and K of a job."""

    slots: int
    words: int

    @property
    def memory(self) -> int:
        """Bytes of memory on each switch."""
        return Capacity.bytes_of(self.slots, self.words)


@dataclass(frozen=True, slots=True)
class SlotRange:
    """A job's range of slots on one switch."""

    switch: str
    base: int
    slots: int
    words: int

    @property
    def size(self) -> JobSize:
        """The size of the job that it belongs to."""
        return JobSize(self.slots, self.words)


@dataclass(eq=False, slots=True)
class SwitchResources:
    """The capacity of one switch and the ranges that jobs have taken of it.

    `words` and `slots` are for jobs that ask for none; None takes what suits the switch. Raises `UsageError`
    if they do not fit it.
    """

    name: str
    capacity: Capacity
    words: int | None = None
    slots: int | None = None
    attachment: Attachment = field(default_factory=Attachment)
    address: tuple[str, int] = ("0.0.0.0", 0)  # IPv4 address and UDP port; port 0 while it is not known
    memory: str = ""  # identifies the processes whose jobs may have shared slots; empty: none
    up: bool = False
    draining: bool = False
    why: str = UNREACHED  # the reason while it is not up
    measured: bool = False  # it has reported the capacity; that is an expectation before
    allocator: SlotAllocator = field(init=False)
    ranges: dict[int, SlotRange] = field(default_factory=dict)  # of jobs, by their base
    memory_used: int = 0  # bytes of their slots
    default: JobSize = field(init=False)  # of a job that asks for none

    def __post_init__(self) -> None:
        self.allocator = SlotAllocator(self.capacity.slots)
        words, slots = default_shape(self.capacity.words)
        self.default = JobSize(
            min(slots, self.allocator.largest_free) if self.slots is None else self.slots,
            (self.capacity.exact_words or words) if self.words is None else self.words,
        )
        try:
            self.job_size(None, None)
        except AdmissionError as error:
            raise UsageError(str(error)) from None

    def resize(self, capacity: Capacity) -> None:
        """Replaces the expected capacity by the one that the switch reports.

        Raises `AdmissionError` or `UsageError`, with nothing changed, if its jobs no longer fit.
        """
        fresh = SwitchResources(self.name, capacity, self.words, self.slots)
        for slot_range in self.ranges.values():
            fresh.job_size(slot_range.words, slot_range.slots)
            fresh.claim(slot_range)
        self.capacity, self.allocator, self.default = capacity, fresh.allocator, fresh.default

    @property
    def state(self) -> SwitchState:
        """Its availability to new jobs."""
        if not self.up:
            return SwitchState.down
        return SwitchState.draining if self.draining else SwitchState.up

    @property
    def is_lost(self) -> bool:
        """True while it cannot be reached, after it was, or after an attempt to."""
        return not self.up and self.why != UNREACHED

    def shares_slots(self, requests: Collection[JoinRequest]) -> bool:
        """Returns True if ranks with these requests can share slots in memory here; False for none."""
        here = {request.memory if request.touch else "" for request in requests}
        return self.memory != "" and here == {self.memory}

    def job_size(
        self, words: int | None, slots: int | None, workers: int = 1, *, shared: bool = False
    ) -> JobSize:
        """Returns the size of a job on this switch while it is empty, with defaults for None.

        Raises `AdmissionError` if the switch could not carry the job even then.
        """
        capacity = self.capacity
        words = self.default.words if words is None else words
        if slots is None:
            slots = self.default.slots
            if self.slots is None:
                slots = min(slots, default_shape(words, workers, shared=shared)[1])
        found = JobSize(slots, words)
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

    def obstacle(self, size: JobSize, *, besides_range: bool = False) -> str:
        """Returns the reason why no job of that size can be placed here now; empty if one can.

        With `besides_range` the lack of a free range is none.
        """
        capacity = self.capacity
        if not self.up:
            return f"switch {self.name!r} is down: {self.why}"
        if self.draining:
            return f"switch {self.name!r} is being drained"
        if size.memory > capacity.memory - self.memory_used:
            return (
                f"{size.slots} slots of {size.words} words take {size.memory} bytes; switch {self.name!r} "
                f"has {capacity.memory} bytes for slots, of which other jobs have {self.memory_used}"
            )
        if not besides_range and not self.allocator.smallest_hole(size.slots):
            return (
                f"{size.slots} slots asked for; {self.allocator.free_slots} of the {capacity.slots} of "
                f"switch {self.name!r} are free, {self.allocator.largest_free} of them in one range"
            )
        if capacity.groups is not None and len(self.ranges) >= capacity.groups:
            return f"all {capacity.groups} multicast groups of switch {self.name!r} are taken"
        return ""

    def take(self, size: JobSize) -> SlotRange:
        """Takes a range. The caller has made sure that there is no `obstacle`."""
        taken = SlotRange(self.name, self.allocator.allocate(size.slots), size.slots, size.words)
        self._add(taken)
        return taken

    def claim(self, slot_range: SlotRange) -> None:
        """Takes exactly this range, as after a restart. Raises `UsageError` if it is not free."""
        self.allocator.claim(slot_range.base, slot_range.slots)
        self._add(slot_range)

    def _add(self, slot_range: SlotRange) -> None:
        self.ranges[slot_range.base] = slot_range
        self.memory_used += slot_range.size.memory

    def release(self, slot_range: SlotRange) -> None:
        """Frees a range."""
        del self.ranges[slot_range.base]
        self.memory_used -= slot_range.size.memory
        self.allocator.free(slot_range.base)

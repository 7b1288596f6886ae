"""The slots that each job gets on one switch: aligned ranges of a power of two. No I/O and no clock.

A job's range of slots is aligned to its size, since the data plane finds a slot as base + (seq mod P) and
checks it under a mask. A buddy allocator hands out such ranges (Knuth, The Art of Computer Programming 1,
section 2.5, "buddy system"):

    free 0..15          allocate 4         allocate 8         free the 4
    [      16     ] ->  [A][4][   8  ] ->  [A][4][   B  ] ->  [   8  ][   B  ]

A range comes out of the smallest hole that it fits in: a large hole is broken only when no smaller one would
do, and small ranges share the leftovers of earlier ones. A freed range joins its buddy at once, so `allocate`
refuses only what no aligned range could give.
"""

from __future__ import annotations

from switchagg.errors import AdmissionError, UsageError


def is_power_of_two(value: int) -> bool:
    """Returns whether `value` is 1, 2, 4, 8, ..."""
    return value > 0 and value & (value - 1) == 0


class SlotAllocator:
    """Hands out aligned ranges of slots, lowest base first, and joins freed neighbours.

    `capacity` is in slots and need not be a power of two. Raises `UsageError` if it is under 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise UsageError(f"capacity is {capacity}; a switch has at least 1 slot")
        self.capacity = capacity
        self._free: dict[int, set[int]] = {}  # size -> bases
        self._taken: dict[int, int] = {}  # base -> size
        base = 0
        for order in reversed(range(capacity.bit_length())):
            if capacity >> order & 1:
                self._free.setdefault(1 << order, set()).add(base)
                base += 1 << order

    @property
    def free_slots(self) -> int:
        """Slots that are free."""
        return self.capacity - sum(self._taken.values())

    @property
    def largest_free(self) -> int:
        """The largest free range; 0 when everything is taken."""
        return max((size for size, bases in self._free.items() if bases), default=0)

    @property
    def ranges(self) -> dict[int, int]:
        """The ranges handed out, base -> slots, in order of their base."""
        return dict(sorted(self._taken.items()))

    def smallest_hole(self, slots: int) -> int:
        """Returns the size of the smallest free range that holds `slots`; 0 if there is none."""
        return min((size for size, bases in self._free.items() if bases and size >= slots), default=0)

    def claim(self, base: int, slots: int) -> None:
        """Takes the range at `base` for an owner that already has it, as after a restart.

        Raises `UsageError` if it is not free, or is no range that `allocate` could have returned.
        """
        if is_power_of_two(slots) and base >= 0 and base % slots == 0:
            size = slots
            while size <= self.capacity:
                start = base - base % size
                if start in self._free.get(size, ()):
                    self._free[size].remove(start)
                    while size > slots:
                        size //= 2
                        upper = base & size
                        self._free.setdefault(size, set()).add(start if upper else start + size)
                        start += upper
                    self._taken[base] = slots
                    return
                size *= 2
        raise UsageError(
            f"slots {base}..{base + slots - 1} are not free; ranges start at {list(self.ranges)}"
        )

    def allocate(self, slots: int) -> int:
        """Takes a range of `slots`, a power of two, and returns its base, a multiple of `slots`.

        Raises `AdmissionError`, code ``no_slots``, if no range of that size is free, and `UsageError` for a
        number that is no power of two.
        """
        if not is_power_of_two(slots):
            raise UsageError(f"slots is {slots}; accepted: a power of two")
        if slots > self.capacity:
            raise AdmissionError(f"{slots} slots asked for; the switch has {self.capacity}", "no_slots")
        size = self.smallest_hole(slots)
        if not size:
            raise AdmissionError(
                f"{slots} slots asked for; {self.free_slots} of the switch's {self.capacity} are free, "
                f"{self.largest_free} of them in one range",
                "no_slots",
            )
        base = min(self._free[size])
        self.claim(base, slots)
        return base

    def free(self, base: int) -> None:
        """Frees the range at `base`. Raises `UsageError` if no range starts there."""
        size = self._taken.pop(base, None)
        if size is None:
            raise UsageError(f"base is {base}; ranges start at {list(self.ranges)}")
        # The last piece of a capacity that is no power of two has its buddy outside, which is never free.
        while (buddy := base ^ size) in self._free.get(size, ()):
            self._free[size].remove(buddy)
            base = min(base, buddy)
            size *= 2
        self._free.setdefault(size, set()).add(base)

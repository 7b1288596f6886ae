"""The event log: what happened to jobs, members and switches, a sentence each. Bounded; no I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from switchagg.control.answers import EventView
from switchagg.control.jobs.effects import Note
from switchagg.control.jobs.records import Event, Tenant

IN_MEMORY: Final = 2000  # events
IN_STORE: Final = 10_000


class EventLog:
    """The latest events, numbered on from those of an earlier run."""

    def __init__(self, earlier: Iterable[Event] = ()) -> None:
        self._events: deque[Event] = deque(earlier, maxlen=IN_MEMORY)
        self._last = self._events[-1].number if self._events else 0
        self.counts: Counter[str] = Counter()
        """How many of each kind there were in this run."""

    @property
    def last(self) -> int:
        """The number of the newest event; 0 before there is one."""
        return self._last

    def add(self, note: Note, time: float) -> Event:
        """Enters an event. `time` is in unix seconds."""
        self._last += 1
        event = Event(self._last, time, note.kind, note.text, note.tenant, note.job, note.switch, note.rank)
        self._events.append(event)
        self.counts[note.kind.value] += 1
        return event

    def since(self, number: int, limit: int, tenant: Tenant) -> list[Event]:
        """Returns events that a tenant may see, oldest first.

        Args:
            number: those after this one; 0 for the newest.
            limit: at most so many.
        """
        events = (
            event
            for event in reversed(self._events)
            if event.number > number and (tenant.admin or event.tenant in (None, tenant.name))
        )
        if number == 0:
            return list(islice(events, limit))[::-1]
        return list(events)[::-1][:limit]


def describe(event: Event) -> EventView:
    """Returns an event as JSON's types."""
    return {
        "n": event.number,
        "time": round(event.time, 3),
        "kind": event.kind.value,
        "text": event.text,
        "tenant": event.tenant,
        "job": event.job,
        "switch": event.switch,
        "rank": event.rank,
    }

"""The event log. Bounded."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, astuple
from itertools import islice
from typing import cast

from switchagg.control.answers import EventView
from switchagg.control.jobs.effects import LogEvent
from switchagg.control.jobs.records import Event, Tenant
from switchagg.control.store import IN_MEMORY


class EventLog:
    """The latest events, numbered on from those of an earlier run."""

    def __init__(self, earlier: Iterable[Event] = ()) -> None:
        self._events: deque[Event] = deque(earlier, maxlen=IN_MEMORY)
        self.last = self._events[-1].number if self._events else 0
        self.counts: Counter[str] = Counter()  # events of this run, by kind

    def add(self, entry: LogEvent, time: float) -> Event:
        """Appends an event. `time` is in unix seconds."""
        self.last += 1
        event = Event(self.last, time, *astuple(entry))
        self._events.append(event)
        self.counts[entry.kind.value] += 1
        return event

    def since(self, number: int, limit: int, tenant: Tenant, job: str | None = None) -> list[Event]:
        """Returns up to `limit` events after `number`, oldest first, as a tenant may see; of 0 the newest.

        With `job` only those of jobs of this name.
        """
        events = (
            event
            for event in reversed(self._events)
            if event.number > number
            and (tenant.admin or event.tenant in (None, tenant.name))
            and job in (None, event.job)
        )
        if number == 0:
            return list(islice(events, limit))[::-1]
        return list(events)[::-1][:limit]


def describe(event: Event) -> EventView:
    """Returns an event as JSON's types."""
    shown = asdict(event)
    return cast(EventView, {"n": shown.pop("number"), **shown, "time": round(event.time, 3)})

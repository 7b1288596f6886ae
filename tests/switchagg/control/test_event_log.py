"""The event log: numbers, bounds, and who sees what."""

from __future__ import annotations

from switchagg.control.event_log import IN_MEMORY, EventLog, describe
from switchagg.control.jobs.effects import LogEvent
from switchagg.control.jobs.records import OPEN, EventKind, Tenant


def note(text: str, tenant: str | None = "a", kind: EventKind = EventKind.opened) -> LogEvent:
    return LogEvent(kind, text, tenant, "job", "s", 3)


def test_events_are_numbered_and_told_apart() -> None:
    log = EventLog()
    log.add(note("one"), 1.23456)
    log.add(note("two", "b"), 2.0)
    log.add(note("three", None, EventKind.switch_up), 3.0)

    def seen(tenant: Tenant, since: int = 0, limit: int = 10) -> list[str]:
        return [event.text for event in log.since(since, limit, tenant)]

    assert seen(OPEN) == ["one", "two", "three"]
    assert seen(Tenant("a")) == ["one", "three"]
    assert seen(OPEN, since=1) == ["two", "three"]
    assert seen(OPEN, since=1, limit=1) == ["two"]  # to go on from there
    assert seen(OPEN, limit=2) == ["two", "three"]  # the newest
    log.add(LogEvent(EventKind.lost, "other", "a", "another"), 4.0)
    assert [event.text for event in log.since(0, 10, OPEN, "job")] == ["one", "two", "three"]
    assert [event.text for event in log.since(0, 10, Tenant("a"), "another")] == ["other"]
    assert log.since(0, 10, Tenant("b"), "another") == []
    assert log.counts == {"opened": 2, "switch_up": 1, "lost": 1}
    assert describe(log.since(0, 9, OPEN)[0]) == {
        "n": 1,
        "time": 1.235,
        "kind": "opened",
        "text": "one",
        "tenant": "a",
        "job": "job",
        "switch": "s",
        "rank": 3,
    }


def test_the_log_is_bounded_and_goes_on_after_a_restart() -> None:
    log = EventLog()
    for number in range(IN_MEMORY + 10):
        log.add(note(str(number)), 0.0)
    kept = log.since(0, 10**6, OPEN)
    assert (len(kept), kept[0].number) == (IN_MEMORY, 11)
    again = EventLog(kept)
    assert again.add(note("new"), 0.0).number == IN_MEMORY + 11 == again.last

"""The table of jobs by name and id, and the clocks of members."""

from __future__ import annotations

from switchagg.control.jobs.job_table import JobTable, Liveness
from switchagg.rules.planner import SkipPolicy


def test_silence_for_longer_than_the_deadline() -> None:
    clocks = Liveness()
    clocks.watch(b"a", 10.0, 100.0)
    clocks.watch(b"b", 3.0, 100.0)
    assert clocks.overdue(102.9) == []
    clocks.heard(b"b", 102.9)
    assert clocks.overdue(105.8) == []
    assert clocks.overdue(106.0) == [(b"b", 106.0 - 102.9)]
    assert clocks.overdue(107.0) == []  # once
    clocks.heard(b"b", 107.0)
    assert (clocks.silent(b"a", 107.0), clocks.silent(b"b", 107.0)) == (7.0, None)
    clocks.forget(b"a")
    clocks.forget(b"a")
    assert clocks.overdue(1000.0) == []


def test_a_heartbeat_that_was_overtaken_changes_nothing() -> None:
    clocks = Liveness()
    clocks.watch(b"a", 5.0, 0.0)
    clocks.heard(b"a", 4.0)
    clocks.heard(b"a", 3.0)
    assert clocks.overdue(8.9) == []
    assert clocks.overdue(9.0)


def test_grace_is_for_the_first_time_only() -> None:
    clocks = Liveness()
    clocks.watch(b"a", 1.0, 0.0, grace=5.0)
    assert clocks.overdue(4.9) == []
    clocks.heard(b"a", 4.9)
    assert clocks.overdue(5.8) == []
    assert clocks.overdue(5.9) == [(b"a", 1.0)]


def test_who_could_not_listen_forgives() -> None:
    clocks = Liveness()
    clocks.watch(b"a", 2.0, 0.0)
    clocks.extend(60.0)
    assert clocks.overdue(61.9) == []
    assert clocks.overdue(62.0)


def test_jobs_are_found_by_name_and_id_until_they_are_removed() -> None:
    table = JobTable()
    first, second = (table.new("me", "a", 1, 0.0, SkipPolicy()) for _ in range(2))
    other = table.new("me", "b", 1, 0.0, SkipPolicy())
    for job in (first, second):
        table.assign_id(job)
    assert (first.number, second.number, other.number) == (1, 2, 3)
    assert table.jobs() == [first, second, other]
    assert (table.find("me", "a"), table.find("me", "a", first.id)) == (second, first)
    assert (table.by_id(second.id), table.find("you", "a")) == (second, None)
    table.remove(second)
    table.release_id(second.id)
    assert (table.find("me", "a"), table.by_id(second.id)) == (first, None)


def test_the_id_that_was_free_longest_comes_next() -> None:
    table = JobTable()
    first, second, third = (table.new("me", "a", 1, 0.0, SkipPolicy()) for _ in range(3))
    table.assign_id(first)
    table.last_id = 0xFFFF - 1
    table.assign_id(second)
    table.assign_id(third)
    assert (first.id, second.id, third.id) == (1, 0xFFFF, 2)

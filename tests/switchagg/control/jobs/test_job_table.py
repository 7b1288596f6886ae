"""The table of jobs by name and id."""

from __future__ import annotations

from switchagg.control.jobs.job_table import JobTable
from switchagg.rules.planner import SkipPolicy


def test_jobs_are_found_by_name_and_id_until_they_are_removed() -> None:
    table = JobTable()
    first, second = (table.new("me", "a", 1, 0.0, SkipPolicy()) for _ in range(2))
    other = table.new("me", "b", 1, 0.0, SkipPolicy())
    for job in (first, second):
        table.assign_id(job)
    assert (first.number, second.number, other.number) == (1, 2, 3)
    assert table.jobs() == [first, second, other]
    assert (table.find("me", "a"), table.find("me", "a", first.id)) == (second, first)
    assert (table.ids.get(second.id), table.find("you", "a")) == (second, None)
    table.remove(second)
    del table.ids[second.id]
    assert (table.find("me", "a"), table.ids.get(second.id)) == (first, None)


def test_the_id_that_was_free_longest_comes_next() -> None:
    table = JobTable()
    first, second, third = (table.new("me", "a", 1, 0.0, SkipPolicy()) for _ in range(3))
    table.assign_id(first)
    table.last_id = 0xFFFF - 1
    table.assign_id(second)
    table.assign_id(third)
    assert (first.id, second.id, third.id) == (1, 0xFFFF, 2)

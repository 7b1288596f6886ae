"""Making room: what moves, where to, and that a job which fits in what is free gets in."""

from __future__ import annotations

import random

from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.effects import SendEvent
from switchagg.control.jobs.job import Job, Member
from switchagg.control.jobs.records import JobState
from tests.seeds import seed_of_this_run
from tests.switchagg.control.job_books import book, carry_out, create, free, only, run, switch, told


def pause(jobs: JobBook, members: list[Member]) -> None:
    for member in members:
        jobs.changes.progress(member, 1)
    for member in members:
        jobs.changes.proceed(member, member.endpoint[0], member.ports)
    carry_out(jobs)


def scattered(jobs: JobBook) -> list[list[Member]]:
    """Eight jobs of 8 slots, of which every other one has left."""
    made = [run(jobs, f"j{number}") for number in range(8)]
    for members in made[::2]:
        for member in members:
            jobs.leave(member)
    jobs.poll()
    return made[1::2]


def test_small_jobs_move_aside_for_a_large_one() -> None:
    jobs = book()
    small = scattered(jobs)
    assert (free(jobs), jobs.pool.switches["s"].allocator.largest_free) == (32, 8)
    large = create(jobs, "large", slots=16)
    done = jobs.poll()
    asked = [members for members in small if told(done, members[0])]
    assert len(asked) == 1  # 8 slots are enough to move
    assert told(done, asked[0][0])[0]["why"] == f"making room for job {large.number}"
    assert large.state is JobState.queued
    create(jobs, "next", slots=8)
    assert only(jobs.poll(), SendEvent) == []  # one thing after the other
    pause(jobs, asked[0])
    assert large.state is JobState.created
    assert asked[0][0].job.state is JobState.running
    next_one = jobs.table.find("me", "next")
    assert next_one is not None
    assert next_one.state is JobState.created


def test_another_switch_may_take_them() -> None:
    jobs = book(switch("a"), switch("b", 32))
    small = scattered(jobs)
    assert {members[0].job.slot_range.switch for members in small if members[0].job.slot_range} == {"a", "b"}
    large = create(jobs, "large", slots=64)
    asked = [members for members in small if members[0].job.change is not None]
    assert len(asked) == 2
    for members in asked:
        pause(jobs, members)
        assert members[0].admission is not None
        assert members[0].admission.switch == "b"
    assert large.slot_range is not None
    assert large.slot_range.switch == "a"


def test_nothing_moves_where_it_would_not_help() -> None:
    jobs = book()
    small = scattered(jobs)
    create(jobs, "larger", slots=64)
    assert only(jobs.poll(), SendEvent) == []  # there are not that many free
    jobs.evict(jobs.table.jobs()[-1], "me")
    for members in small:  # each in a change of its own already
        jobs.changes.progress(members[0], 1)
    create(jobs, "large", slots=16)
    assert only(jobs.poll(), SendEvent) == []


def test_whoever_moves_may_be_gone_before() -> None:
    jobs = book()
    small = scattered(jobs)
    large = create(jobs, "large", slots=32)
    asked = [members for members in small if members[0].job.change is not None]
    assert len(asked) == 2
    for members in asked:
        jobs.lost(members, "its process ended")
    assert large.state is JobState.created
    jobs.close()
    assert free(jobs) == 64


def test_a_job_that_never_pauses_stands_in_nobodys_way() -> None:
    jobs = book()
    small = scattered(jobs)
    large = create(jobs, "large", slots=16)
    asked: list[Job] = []

    def after(seconds: float) -> None:
        for members in small:
            for member in members:
                jobs.heard(member.cookie, seconds)
        jobs.tick(seconds)

    for second in range(0, 200, 5):
        asked += [each[0].job for each in small if each[0].job.change and each[0].job not in asked]
        after(second)
    assert len(asked) == 4  # one after the other
    assert [members[0].job.change for members in small] == [None] * 4
    assert (free(jobs), large.state) == (32, JobState.queued)
    pause(jobs, small[0])  # late, but it does come
    assert small[0][0].job.state is JobState.running
    assert large.state is JobState.created
    jobs.close()
    assert free(jobs) == 64


def test_random_jobs_that_pause_leave_nobody_stranded() -> None:
    seed = seed_of_this_run()
    draw = random.Random(seed)
    moved = 0
    for _ in range(40):
        jobs = book(switch("a", 128), switch("b", 64))
        run(jobs, "filling b", 1, slots=64)
        running = [run(jobs, f"j{number}", 1, slots=draw.choice([4, 8])) for number in range(16)]
        for members in draw.sample(running, 9):
            jobs.leave(members[0])
            running.remove(members)
        large = create(jobs, "large", slots=64)
        for _ in range(20):
            paused = [each for each in running if each[0].job.change is not None]
            if not paused:
                break
            pause(jobs, draw.choice(paused))
            moved += 1
        assert large.state is JobState.created, jobs.pool.switches["a"].allocator.ranges
        assert free(jobs) == 128 - 64 - sum(each[0].job.slots or 0 for each in running)
    assert moved

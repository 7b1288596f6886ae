"""Jobs that wait for room: the order, quotas, and who gives up."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from switchagg.control.jobs.effects import AnswerJoin, Install, SaveJob
from switchagg.control.jobs.records import JobState, Tenant
from switchagg.control.jobs.scheduler import OVERTAKES
from switchagg.control.jobs.switch_resources import SwitchResources
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.switch import Capacity
from tests.seeds import seed_of_this_run
from tests.switchagg.control.job_books import (
    ME,
    book,
    carry_out,
    create,
    doing,
    free,
    generation,
    join,
    only,
    quota,
    refused,
    request,
    run,
    state,
    switch,
)


def test_a_created_job_has_its_slots_at_once() -> None:
    jobs = book()
    job = create(jobs, slots=16, words=100)
    assert (job.state, job.slot_range is not None, free(jobs)) == (JobState.created, True, 48)
    assert only(jobs.poll(), SaveJob)
    zero = join(jobs, "a", request(0))
    assert job.state is JobState.joining
    assert refused(jobs, "a", request(1, words=64)).code == "settings_mismatch"
    assert refused(jobs, "a", request(1, priority=7)).code == "settings_mismatch"
    assert "it was created for 2" in str(refused(jobs, "a", request(1, 3)))
    one = join(jobs, "a", request(1, words=100, slots=16, priority=5))
    carry_out(jobs)
    assert (job.state, zero.job is job, one.admission is not None) == (JobState.running, True, True)
    with pytest.raises(AdmissionError, match="there is a job 'a' already, which is running") as error:
        create(jobs)
    assert error.value.code == "name_taken"


def test_ranks_of_a_created_job_may_give_up_and_try_again() -> None:
    jobs = book()
    job = create(jobs)
    zero = join(jobs, "a", request(0, timeout=1.0))
    jobs.tick(1.0)
    assert zero.refusal is not None
    assert zero.refusal.code == "join_timeout"
    assert (job.state, free(jobs)) == (JobState.created, 56)
    jobs.lost([join(jobs, "a", request(1))], "its process ended")
    assert job.state is JobState.created
    members = [join(jobs, "a", request(rank)) for rank in range(2)]
    (install,) = only(jobs.poll(), Install)
    jobs.opening_failed(job, install.generation, SwitchError("table full"))
    assert [member.refusal is not None for member in members] == [True, True]
    assert (job.state, job.slot_range is not None) == (JobState.created, True)
    for rank in range(2):
        join(jobs, "a", request(rank))
    carry_out(jobs)
    assert job.state is JobState.running


def test_higher_priorities_first_then_the_older() -> None:
    jobs = book()
    first = run(jobs, "big", slots=64)
    waiting = [create(jobs, f"p{p}-{n}", slots=32, priority=p) for n in range(2) for p in (3, 7)]
    assert [job.name for job in jobs.scheduler.queue()] == ["p7-0", "p7-1", "p3-0", "p3-1"]
    assert all(job.state is JobState.queued for job in waiting)
    for member in first:
        jobs.leave(member)
    assert [job.name for job in jobs.scheduler.queue()] == ["p3-0", "p3-1"]
    jobs.evict(next(job for job in waiting if job.name == "p7-1"), "me")
    assert [job.name for job in jobs.scheduler.queue()] == ["p3-1"]


def test_a_job_that_fits_overtakes_one_that_does_not_but_not_for_ever() -> None:
    jobs = book(switch("a", 64), switch("b", 64, words=64, exact_words=64))
    half = run(jobs, "half", slots=32, words=100)
    large = create(jobs, "large", slots=64, words=100, priority=0)  # only a could
    create(jobs, "urgent", slots=64, words=100, priority=9)
    for number in range(OVERTAKES):
        create(jobs, f"other{number}", slots=4, switch="b")  # which large cannot use
    assert (large.overtaken, [job.name for job in jobs.scheduler.queue()]) == (0, ["urgent", "large"])
    small = [create(jobs, f"small{number}", slots=2, words=100) for number in range(OVERTAKES + 1)]
    assert {job.state for job in small[:-1]} == {JobState.created}
    assert [job.name for job in jobs.scheduler.queue()] == ["large", "urgent", f"small{OVERTAKES}"]
    assert large.overtaken == OVERTAKES
    for member in half:
        jobs.leave(member)
    for job in small[:-1]:
        assert (large.state, small[-1].state) == (JobState.queued, JobState.queued)  # kept for large
        jobs.evict(job, "me")
    assert large.state is JobState.created
    jobs.evict(large, "me")
    assert [job.name for job in jobs.scheduler.queue()] == [f"small{OVERTAKES}"]  # urgent was due too


def test_nobody_overtakes_a_job_for_which_others_make_room() -> None:
    jobs = book()
    members = [run(jobs, f"r{number}", slots=16, deadline=600.0)[0] for number in range(4)]
    for member in (members[1], members[3]):
        jobs.evict(member.job, "me")
        jobs.evict(member.job, "me")
    large = create(jobs, "large", slots=32)
    assert [member.job.change is not None for member in (members[0], members[2])].count(True) == 1
    small = create(jobs, "small", slots=8)
    assert (large.state, small.state, large.overtaken) == (JobState.queued, JobState.queued, 0)
    jobs.tick(0.0)
    for now in (31.0, 31.0, 62.0):  # nobody has paused: neither the first that was asked, nor the second
        jobs.tick(now)
    assert (large.state, small.state, large.overtaken) == (JobState.queued, JobState.created, 1)


@pytest.mark.parametrize("shift", range(4))
def test_nobody_starves_and_nobody_waits_for_room_that_is_there(shift: int) -> None:
    draw = random.Random(seed_of_this_run() + shift)
    jobs = book(switch("a", 64), switch("b", 32), switch("c", 32, words=64, exact_words=64))
    passed: Counter[int] = Counter()  # by number of a waiting job: younger ones that had slots it could use
    placed: set[int] = set()
    for turn in range(30_000):
        if turn > 3000 and max(passed.values()) == OVERTAKES:
            break
        held = [job for job in jobs.table.jobs() if job.placement is not None]
        if turn % 2 and draw.random() < 0.7:
            large = draw.random() < 0.2
            create(
                jobs, f"j{turn}", slots=draw.choice([32, 64]) if large else draw.choice([2, 4, 8]),
                words=100 if large else draw.choice([64, 100]), priority=draw.randrange(10),
            )  # fmt: skip
        elif held and draw.random() < 0.6:
            jobs.evict(draw.choice(held), "me")
        jobs.poll()
        now_placed = [job for job in jobs.table.jobs() if job.placement and job.number not in placed]
        placed |= {job.number for job in now_placed}
        kept: set[str] = set()
        for job in jobs.scheduler.queue():
            candidates = jobs.candidates.of_job(job)
            assert jobs.pool.take(candidates, without=kept) is None  # what it could have is not free
            usable = {name for each in candidates for name in each.switches}
            passed[job.number] += sum(
                job.number < each.number and not usable.isdisjoint(each.placement.switches)
                for each in now_placed
                if each.placement is not None
            )
            assert passed[job.number] <= OVERTAKES
            if passed[job.number] == OVERTAKES:
                kept |= usable
    assert len(placed) > 300
    assert max(passed.values()) == OVERTAKES


def test_a_job_that_joined_waits_for_room() -> None:
    jobs = book()
    first = run(jobs, "big", slots=64)
    members = [join(jobs, "a", request(rank)) for rank in range(2)]
    assert carry_out(jobs) == [] or members[0].job.state is JobState.queued
    assert members[0].job.state is JobState.queued
    jobs.lost([members[1]], "its process ended")
    assert members[0].job.state is JobState.joining
    members[1] = join(jobs, "a", request(1))
    for member in first:
        jobs.leave(member)
    carry_out(jobs)
    assert all(member.admission for member in members)


def test_a_job_that_finds_no_room_in_time_says_why() -> None:
    jobs = book()
    run(jobs, "big", slots=64)
    create(jobs, "before", slots=8)
    members = [join(jobs, "a", request(rank, timeout=3.0)) for rank in range(2)]
    jobs.poll()
    jobs.tick(3.0)
    assert doing(jobs) == [AnswerJoin(member) for member in members]
    for member in members:
        assert member.refusal is not None
        assert member.refusal.code == "no_slots"
        assert (
            "had no room within 3 seconds, and is number 2 in the queue, behind 'before': 8 slots asked for"
            in str(member.refusal)
        )
    assert jobs.table.find("me", "a") is None


def test_ranks_whose_patience_ends_one_after_another_hear_the_same() -> None:
    jobs = book()
    run(jobs, "big", slots=64)
    members = [join(jobs, "a", request(rank, timeout=3.0 + rank)) for rank in range(2)]
    jobs.poll()
    jobs.tick(3.0)
    jobs.tick(4.0)
    for member in members:
        assert member.refusal is not None
        assert member.refusal.code == "no_slots"
        assert "slots asked for; 0 of the 64" in str(member.refusal)


def test_no_memory_left() -> None:
    jobs = book(switch(memory=50_000))
    run(jobs, "big", slots=32)
    member = join(jobs, "a", request(0, 1, slots=8, timeout=1.0))
    jobs.tick(1.0)
    assert "of which other jobs have 46080" in str(member.refusal)


def test_quotas_refuse_and_do_not_queue() -> None:
    jobs = book(switch(slots=256))
    two = quota(jobs=2)
    run(jobs, "a", tenant=two)
    create(jobs, "b", tenant=two)
    before = state(jobs)
    with pytest.raises(AdmissionError, match="tenant 'poor' has 2 jobs; its quota is 2") as error:
        create(jobs, "c", tenant=two)
    assert error.value.code == "quota"
    assert refused(jobs, "c", request(0), two).code == "quota"
    assert state(jobs) == before
    run(jobs, "c", tenant=ME)  # others' quotas are theirs
    (job,) = (job for job in jobs.table.jobs() if job.name == "a")
    for member in job.joined():
        jobs.leave(member)
    create(jobs, "c", tenant=two)


def test_quotas_of_slots_and_memory() -> None:
    jobs = book(switch(slots=256))
    slots = quota(slots=24)
    create(jobs, "a", slots=16, tenant=slots)
    said = refused(jobs, "b", request(0, slots=16), slots)
    assert "16 slots (23040 bytes) asked for; tenant 'poor' has 16 (23040 bytes) in other jobs" in str(said)
    join(jobs, "b", request(0), tenant=slots)  # 8, while nobody asks for more
    assert refused(jobs, "b", request(1, slots=16), slots).code == "quota"
    memory = Tenant("small", quota=quota(memory=20_000).quota)
    assert refused(jobs, "a", request(0, slots=16), memory).code == "quota"
    join(jobs, "a", request(0, words=16, slots=16), tenant=memory)


def test_quotas_count_the_slots_of_ranks_that_share_them() -> None:
    jobs = book(SwitchResources("s", Capacity(4096, 16_372, 1 << 30), memory="here"))
    slots = quota(slots=128)
    assert refused(jobs, "b", request(0), slots).code == "quota"  # 256
    zero = join(jobs, "a", request(0, memory="here"), tenant=slots)
    assert refused(jobs, "a", request(1), slots).code == "quota"
    join(jobs, "a", request(1, memory="here"), tenant=slots)
    assert [each.slots for each in zero.job.ranges] == [128]


def test_draining_a_job() -> None:
    jobs = book()
    zero, one = run(jobs)
    jobs.drain(zero.job, "me")
    assert (zero.job.state, zero.job.shown) == (JobState.running, JobState.draining)
    jobs.leave(one)
    assert refused(jobs, "a", request(1)).code == "draining"
    there = generation(zero)
    jobs.leave(zero)
    assert only(jobs.poll())[-1].generation is there
    waiting = join(jobs, "b", request(0))
    jobs.drain(waiting.job, "me")
    assert waiting.refusal is not None
    assert waiting.refusal.code == "draining"
    assert jobs.table.jobs() == []


def test_evicting_jobs_in_every_state() -> None:
    jobs = book()
    create(jobs, "created")
    run(jobs, "running")
    waiting = join(jobs, "joining", request(0))
    opening = join(jobs, "opening", request(0, 1))
    failed = run(jobs, "failed")
    create(jobs, "queued", slots=64)
    jobs.lost([failed[0]], "its process ended")
    jobs.poll()
    assert {job.state for job in jobs.table.jobs()} >= {
        JobState.created,
        JobState.running,
        JobState.joining,
        JobState.queued,
        JobState.failed,
    }
    for job in jobs.table.jobs():
        jobs.evict(job, "me")
    assert {member.refusal.code for member in (waiting, opening) if member.refusal} <= {"evicted"}
    assert waiting.refusal is not None
    jobs.lost(
        [member for job in jobs.table.jobs() for member in job.joined()], "its process ended"
    )  # evicted members are told, and go
    assert (jobs.table.jobs(), free(jobs)) == ([], 64)
    saved = {effect.job for effect in only(jobs.poll(), SaveJob)}
    assert len([job for job in saved if job.state is JobState.ended]) >= 6


def test_random_jobs_leave_nothing_behind() -> None:
    seed = seed_of_this_run()
    draw = random.Random(seed)
    jobs = book(switch("a", 128), switch("b", 100), switch("c", 64, words=64, exact_words=64))
    opened = 0
    now = 0.0
    for turn in range(4000):
        now += draw.random()
        name = f"j{draw.randrange(12)}"
        try:
            match draw.randrange(6):
                case 0:
                    create(
                        jobs,
                        name,
                        draw.randint(1, 3),
                        slots=draw.choice([None, 4, 32, 64]),
                        words=draw.choice([None, 64]),
                        priority=draw.randrange(10),
                    )
                case 1 | 2 | 3:
                    size = draw.randint(1, 3)
                    join(jobs, name, request(draw.randrange(size), size, timeout=20.0), now)
                case 4:
                    there = [m for job in jobs.table.jobs() for m in job.joined() if job.name == name]
                    if there:
                        jobs.lost([draw.choice(there)], "its process ended")
                case 5 if turn % 3 == 0:
                    job = jobs.table.find("me", name)
                    if job is not None:
                        jobs.evict(job, "me")
        except AdmissionError:
            pass
        jobs.tick(now)
        opened += len(only(carry_out(jobs), Install))
        taken = [slot_range for each in jobs.pool.switches.values() for slot_range in each.ranges.values()]
        trees = [job.placement for job in jobs.table.jobs()] + [
            job.change.target for job in jobs.table.jobs() if job.change is not None
        ]
        kept = [slot_range for tree in trees if tree is not None for slot_range in tree.ranges]
        assert {id(slot_range) for slot_range in taken} == {id(slot_range) for slot_range in kept}
        assert sum(slot_range.slots for slot_range in taken) + free(jobs) == 292
        for waits in jobs.scheduler.queue()[:1]:  # the first in the queue: there is no room for it anywhere
            assert jobs.pool.obstacles(jobs.candidates.of_job(waits))
    assert opened > 50
    for job in jobs.table.jobs():
        jobs.evict(job, "me")
    for job in jobs.table.jobs():
        jobs.evict(job, "me")  # failed ones, whose members have not gone
    assert (jobs.table.jobs(), free(jobs), jobs.table.ids, jobs.table.cookies) == ([], 292, {}, {})

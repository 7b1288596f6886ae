"""Changes of membership: what is asked of whom, and that nothing is left over whatever goes wrong."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from switchagg.control.jobs.book import DOWN_PATIENCE, JobBook
from switchagg.control.jobs.effects import (
    AnswerJoin,
    AnswerStep,
    ChangeStep,
    Fence,
    Install,
    LogEvent,
    Remove,
)
from switchagg.control.jobs.job import Member
from switchagg.control.jobs.records import JobState, MemberState, OnLoss
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.switch import Reconciled
from tests.seeds import seed_of_this_run
from tests.switchagg.control.job_books import (
    answers,
    book,
    carry_out,
    create,
    free,
    generation,
    join,
    only,
    refused,
    request,
    run,
    switch,
    token,
    told,
)

SHRINK: dict[str, Any] = {"on_loss": OnLoss.shrink}


def proceed(jobs: JobBook, member: Member) -> None:
    jobs.changes.proceed(member, member.endpoint[0], member.ports)


def change(jobs: JobBook, members: list[Member], completed: int = 5) -> list[Any]:
    """Takes members through a change that has begun; returns all that was done."""
    done = list(jobs.poll())
    for member in members:
        jobs.changes.progress(member, completed)
    for member in members:
        proceed(jobs, member)
    return done + carry_out(jobs)


def test_others_go_on_without_a_rank_that_has_left_as_soon_as_one_needs_it() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3, **SHRINK)
    first_id = zero.job.id
    jobs.leave(one, begun=8, completed=8)
    done = jobs.poll()
    assert [event["event"] for event in told(done, zero)] == ["left"]
    assert zero.job.change is None  # nobody needs it yet
    jobs.changes.progress(zero, 6)
    done = jobs.poll()
    assert [(event["event"], event["ranks"], event["job"]) for event in told(done, two)] == [
        ("lost", [1], first_id)
    ]
    jobs.changes.progress(two, 7)
    # All complete what was complete at the one that has left.
    assert {rank: answer.complete_to for rank, answer in answers(jobs.poll()).items()} == {0: 8, 2: 8}
    for member in (zero, two):
        proceed(jobs, member)
    carry_out(jobs)
    assert zero.admission is not None
    assert (zero.admission.places, zero.admission.lost) == ((0, 2), ((1, "it left the job in order"),))


def test_a_job_that_does_not_shrink_waits_for_a_pause_also_of_a_rank_that_has_left() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3)
    jobs.leave(one, begun=8, completed=8)
    jobs.poll()
    jobs.changes.progress(zero, 6)
    assert told(jobs.poll(), two) == []


def test_a_lost_rank_is_shut_out_and_the_others_go_on() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3, **SHRINK)
    old, first_id = generation(zero), zero.job.id
    jobs.lost([one], "its process ended")
    done = jobs.poll()
    assert only(done, Fence, Remove, Install) == [Fence(old, 0b010)]
    event = {
        "event": "lost",
        "job": first_id,
        "ranks": [1],
        "why": "its process ended",
        "on_loss": "shrink",
    }
    assert [told(done, member) for member in (zero, one, two)] == [[event]] * 3
    assert zero.job.state is JobState.moving

    jobs.changes.progress(two, 7)
    assert answers(jobs.poll()) == {}  # rank 0 has not said yet
    jobs.changes.progress(zero, 6)
    done = jobs.poll()
    assert {rank: answer.complete_to for rank, answer in answers(done).items()} == {0: 7, 2: 7}
    proceed(jobs, two)
    assert only(jobs.poll(), Remove, Install) == []  # rank 0 still asks for results there
    jobs.changes.proceed(zero, "10.0.0.9", [5000])
    remove, install = only(jobs.poll(), Remove, Install)
    assert remove == Remove(old)
    new = install.generation
    assert new.id != first_id
    assert [(worker.bit, worker.ip, worker.port) for worker in new.entry.workers] == [
        (0, "10.0.0.9", 5000),
        (1, "10.0.0.1", 4002),
    ]
    assert {worker.token for worker in new.entry.workers}.isdisjoint(
        worker.token for worker in old.entry.workers
    )
    jobs.opened(install.job, new, 0.0)
    done = jobs.poll()
    assert {rank: answer.step for rank, answer in answers(done).items()} == {
        0: ChangeStep.proceed,
        2: ChangeStep.proceed,
    }
    assert two.admission is not None
    assert (two.admission.rank, two.admission.world_size, two.admission.places, two.admission.worker_bit) == (
        1,
        2,
        (0, 2),
        1,
    )
    assert zero.job.state is JobState.running
    for member in (zero, two):
        jobs.leave(member)
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs)) == ([], 64)


def test_losses_on_the_way_are_left_out() -> None:
    jobs = book()
    members = run(jobs, world_size=5, **SHRINK)
    jobs.lost(members[1:3], "its process ended")
    assert generation(members[0]).fenced == 0b00110
    for member in (members[0], members[3]):
        jobs.changes.progress(member, 4)
    jobs.poll()
    jobs.lost([members[4]], "silent for 10 s")  # the one that was waited for
    assert generation(members[0]).fenced == 0b10110
    done = jobs.poll()
    assert sorted(answers(done)) == [0, 3]
    proceed(jobs, members[0])
    jobs.lost([members[3]], "its process ended")  # before it proceeded
    (install,) = only(jobs.poll(), Install)
    assert install.generation.places == (0,)
    jobs.opened(install.job, install.generation, 0.0)
    assert members[0].admission is not None
    assert members[0].admission.world_size == 1
    jobs.lost([members[0]], "its process ended")
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs)) == ([], 64)


def test_a_loss_while_the_next_generation_opens_makes_another() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3, **SHRINK)
    jobs.lost([two], "its process ended")
    jobs.poll()
    for member in (zero, one):
        jobs.changes.progress(member, 1)
    for member in (zero, one):
        proceed(jobs, member)
    (install,) = only(jobs.poll(), Install)
    jobs.lost([one], "its process ended")
    remove, again = only(jobs.poll(), Remove, Install)
    assert remove == Remove(install.generation)
    assert again.generation.places == (0,)
    jobs.opened(install.job, install.generation, 0.0)  # too late: it is not that one any more
    assert answers(jobs.poll()) == {}
    jobs.opened(again.job, again.generation, 0.0)
    assert answers(jobs.poll())[0].step is ChangeStep.proceed
    assert free(jobs) == 64 - 8


def test_a_rank_comes_back_at_the_next_pause() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3, **SHRINK)
    jobs.lost([one], "its process ended")
    change(jobs, [zero, two])
    back = join(jobs, "a", request(1, 3, timeout=9.0))
    done = jobs.poll()
    pause = {"event": "pause", "job": zero.job.id, "why": "rank 1 is back"}
    assert [told(done, member) for member in (zero, two)] == [[pause], []]
    assert (back.admission, zero.job.state) == (None, JobState.running)
    assert refused(jobs, "a", request(1, 3)).code == "rank_taken"
    done = change(jobs, [two, zero], completed=12)
    assert only(done, AnswerJoin) == [AnswerJoin(back)]
    logged = [(note.kind.value, note.text) for note in only(done, LogEvent)]
    assert logged == [
        ("paused", "job 'a' pauses: rank 1 is back"),
        ("joined", "job 'a' goes on with ranks 0, 1, 2: rank 1 is back"),
    ]
    assert back.admission is not None
    assert (back.admission.places, back.admission.rank) == ((0, 1, 2), 1)
    assert zero.job.members[1] is back
    assert zero.job.ranks(MemberState.lost) == []


def test_who_comes_back_during_a_change_is_let_in_by_it() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3, **SHRINK)
    jobs.lost([one], "its process ended")
    back = join(jobs, "a", request(1, 3))
    done = change(jobs, [zero, two])
    assert [effect.generation.places for effect in only(done, Install)] == [(0, 1, 2)]
    assert back.admission is not None


def test_who_comes_back_while_the_next_generation_opens_waits_for_another() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3, **SHRINK)
    jobs.lost([one], "its process ended")
    jobs.poll()
    for member in (zero, two):
        jobs.changes.progress(member, 0)
    for member in (zero, two):
        proceed(jobs, member)
    (install,) = only(jobs.poll(), Install)
    back = join(jobs, "a", request(1, 3))
    jobs.opened(install.job, install.generation, 0.0)
    done = jobs.poll()
    assert [event["event"] for event in told(done, zero)] == ["pause"]
    change(jobs, [zero, two])
    assert back.admission is not None


def coming_back(jobs: JobBook, rank: int) -> tuple[Member, Member]:
    """Returns a member, and this rank that was lost and is in the generation that opens now."""
    members = run(jobs, **SHRINK)
    lost, stays = members[rank], members[1 - rank]
    jobs.lost([lost], "its process ended")
    change(jobs, [stays])
    back = join(jobs, "a", request(rank))
    jobs.poll()
    jobs.changes.progress(stays, 3)
    proceed(jobs, stays)
    (install,) = only(jobs.poll(), Install)
    assert install.generation.places == (0, 1)
    return stays, back


def test_who_came_back_and_is_lost_while_it_opens() -> None:
    jobs = book()
    zero, back = coming_back(jobs, 1)
    jobs.lost([back], "its process ended")
    done = jobs.poll()
    assert told(done, zero) == []  # it has been without rank 1 for long
    (again,) = only(done, Install)
    assert again.generation.places == (0,)
    jobs.opened(again.job, again.generation, 0.0)
    assert zero.job.state is JobState.running


def test_a_pause_that_does_not_come() -> None:
    jobs = book()
    zero, one = run(jobs, **SHRINK)
    jobs.lost([one], "its process ended")
    change(jobs, [zero])
    back = join(jobs, "a", request(1, timeout=5.0))
    jobs.tick(5.0)
    assert back.refusal is not None
    assert "did not come to a pause within 5 seconds" in str(back.refusal)
    done = change(jobs, [zero])  # it pauses later, for nobody
    assert [effect.generation.places for effect in only(done, Install)] == [(0,)]
    assert join(jobs, "a", request(1)).job is zero.job


def test_only_a_job_that_shrinks_takes_ranks_back() -> None:
    jobs = book()
    zero, one = run(jobs)
    jobs.lost([one], "its process ended")
    assert join(jobs, "a", request(1)).job is not zero.job
    other = run(jobs, "b", 3, **SHRINK)
    jobs.leave(other[2])
    assert join(jobs, "b", request(2, 3)).job is not other[0].job  # it left: the next job of that name
    jobs.lost([other[1]], "its process ended")
    newest = jobs.table.find("me", "b")
    assert newest is not other[0].job


def test_a_rank_that_comes_back_says_what_it_said() -> None:
    jobs = book()
    _, one = run(jobs, world_size=3, words=64, **SHRINK)[:2]
    jobs.lost([one], "its process ended")
    assert refused(jobs, "a", request(1, 2)).code == "world_size_mismatch"
    assert refused(jobs, "a", request(1, 3, words=32)).code == "settings_mismatch"
    assert refused(jobs, "a", request(1, 3, on_loss=OnLoss.fail)).code == "settings_mismatch"


def test_leaving_during_a_change() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3, **SHRINK)
    jobs.lost([one], "its process ended")
    jobs.poll()
    jobs.changes.progress(zero, 2)
    jobs.leave(two)  # the other one does not wait for it
    assert answers(jobs.poll())[0].complete_to == 2
    proceed(jobs, zero)
    done = carry_out(jobs)
    assert [effect.generation.places for effect in only(done, Install)] == [(0,)]


def test_a_job_that_must_not_lose_anybody_fails_in_a_change_too() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, one = pausing(jobs)
    jobs.changes.progress(zero, 1)
    jobs.poll()
    jobs.lost([one], "its process ended")
    done = jobs.poll()
    refused = {(a.step, a.refusal.code) for a in only(done, AnswerStep) if a.member is zero}
    assert refused == {(step, "failed") for step in ChangeStep}
    assert (zero.job.state, free(jobs)) == (JobState.failed, 128)


def pausing(jobs: JobBook) -> list[Member]:
    """Has a job pause to move from switch a, which is drained, to b, where there was no room before."""
    big = run(jobs, "big", slots=64)
    small = run(jobs, "small")
    assert [member.admission.switch for member in (*big, *small) if member.admission] == ["a"] * 2 + ["b"] * 2
    jobs.set_draining("b", True, "admin")
    for member in big:
        jobs.leave(member)
    return small


def test_a_job_moves_off_a_switch_that_is_drained() -> None:
    """At once, in the middle of a collective."""
    jobs = book(switch("a"), switch("b"))
    zero, one = run(jobs)
    there = generation(zero)
    jobs.set_draining("a", True, "admin")
    why = "switch 'a' is being drained by admin"
    assert told(jobs.poll(), zero) == [{"event": "failover", "job": there.id, "why": why}]
    assert free(jobs) == 128 - 16  # its place on b is kept
    for member, lowest in ((zero, 7), (one, 5)):
        jobs.failovers.report(member, token(member), [lowest], "10.0.0.1", [4100 + member.rank])
    done = carry_out(jobs)
    assert only(done, Remove) == [Remove(there)]
    assert jobs.pool.switches["a"].allocator.free_slots == 64
    for member in (zero, one):
        assert member.admission is not None
        assert (member.admission.switch, member.admission.first_packet) == ("b", 5)


def test_a_job_moves_on_from_a_switch_that_is_drained_while_it_goes_over_to_that() -> None:
    """At once too: its members may call nothing for a long time."""
    jobs = book(switch("a"), switch("b"))
    zero, one = run(jobs)
    jobs.set_draining("a", True, "admin")
    jobs.poll()
    for name, at in ("b", 4100), ("a", 4200):
        for member in (zero, one):
            jobs.failovers.report(member, token(member), [5], "10.0.0.1", [at + member.rank])
        if name == "b":
            jobs.set_draining("a", False, "admin")
            jobs.set_draining("b", True, "admin")
        done = carry_out(jobs)
        assert zero.admission is not None
        assert zero.admission.switch == name
        assert [event["event"] for event in told(done, zero)] == (["failover"] if name == "b" else [])
    assert jobs.pool.switches["b"].allocator.free_slots == 64


def gone_over() -> tuple[JobBook, list[Member]]:
    """A job of three ranks that was on switch a, and is on b."""
    jobs = book(switch("a"), switch("b"))
    members = run(jobs, world_size=3, **SHRINK)
    jobs.switch_down("a", "connection refused")
    for member in members:
        jobs.failovers.report(member, token(member), [5], "10.0.0.1", [4100 + member.rank])
    carry_out(jobs)
    return jobs, members


@pytest.mark.parametrize(
    ("completed", "replaying", "fails"),
    [
        pytest.param((4, 3), (True, True), True, id="nobody-knows"),
        pytest.param((4, 3), (False, True), False, id="who-holds-it-knows"),
        pytest.param((4, 3), (True, False), True, id="who-lacks-it-knows-less"),
        pytest.param((4, 4), (True, True), False, id="nobody-lacks-it"),
    ],
)
def test_a_rank_is_lost_after_a_failover_before_it_has_sent_again_what_another_lacks(
    completed: tuple[int, int], replaying: tuple[bool, bool], fails: bool
) -> None:
    """The new switch never gets it. Whoever lacks it would wait until its timeout, and the others go on."""
    jobs, (zero, one, two) = gone_over()
    assert zero.job.switches == ("b",)
    jobs.lost([two], "its process ended")
    for member, count, waits in zip((zero, one), completed, replaying, strict=True):
        jobs.changes.progress(member, count, replaying=waits)
    if fails:
        assert zero.job.state is JobState.failed
        assert (
            zero.job.why
            == "rank 1 lacks a collective that others hold: its switch and rank 2 were lost together"
        )
        return
    assert {rank: each.complete_to for rank, each in answers(jobs.poll()).items()} == {0: 4, 1: 4}


@pytest.mark.parametrize("known", [True, False])
def test_a_rank_that_has_left_vouches_only_for_what_the_switch_has(known: bool) -> None:
    """One that leaves before it has sent again what others lack does not say how far it is."""
    jobs, (zero, one, two) = gone_over()
    jobs.leave(two, begun=4, completed=4 if known else None)
    (event,) = told(jobs.poll(), zero)
    assert event["completed"] == [4 if known else None]
    for member, count in ((zero, 4), (one, 3)):
        jobs.changes.progress(member, count, replaying=True)
    if known:
        assert {rank: each.complete_to for rank, each in answers(jobs.poll()).items()} == {0: 4, 1: 4}
        return
    why = "rank 1 lacks a collective that others hold: its switch and rank 2 were lost together"
    assert (zero.job.state, zero.job.why) == (JobState.failed, why)
    done = jobs.poll()
    assert all(told(done, member)[-1]["event"] == "switch" for member in (zero, one))


@pytest.mark.parametrize("removed", [False, True], ids=["collecting", "opening"])
def test_a_rank_is_lost_while_its_job_leaves_a_drained_switch(removed: bool) -> None:
    """The old switch lives, and has what the others lack, until the job is removed from it."""
    jobs = book(switch("a"), switch("b"))
    zero, one, two = members = run(jobs, world_size=3, **SHRINK)
    there = generation(zero)
    jobs.set_draining("a", True, "admin")
    jobs.poll()
    for member in members if removed else members[:1]:
        jobs.failovers.report(member, token(member), [5], "10.0.0.1", [4100 + member.rank])
    jobs.lost([two], "its process ended")
    done = jobs.poll()
    assert removed == (Remove(there) in done)
    # The generation that they know: they have not heard of the next one.
    assert [(event["event"], event["job"]) for event in told(done, zero)] == [("lost", there.id)]
    (refused,) = (each for each in only(done, AnswerStep) if each.member is zero)
    assert (refused.step, refused.refusal.code) == (ChangeStep.replay, "switch")
    for member, completed in ((zero, 3), (one, 4)):
        jobs.changes.progress(member, completed)
    if removed:
        assert zero.job.state is JobState.failed
        assert "were lost together" in zero.job.why
        return
    assert {rank: each.complete_to for rank, each in answers(jobs.poll()).items()} == {0: 4, 1: 4}
    for member in (zero, one):
        proceed(jobs, member)
    (install,) = only(carry_out(jobs), Install)
    assert install.generation.places == (0, 1)
    assert install.generation.slot_range.switch == "b"
    assert free(jobs) == 128 - 8


def test_a_job_moves_at_a_pause_when_there_is_room_at_last() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, one = pausing(jobs)
    done = jobs.poll()
    assert told(done, zero) == [{"event": "pause", "job": zero.job.id, "why": "moving to switch a"}]
    assert free(jobs) == 128 - 16
    done = change(jobs, [zero, one])
    (install,) = only(done, Install)
    assert (install.generation.slot_range.switch, zero.job.state) == ("a", JobState.running)
    assert jobs.pool.switches["b"].allocator.free_slots == 64
    assert zero.admission is not None
    assert zero.admission.switch == "a"


def test_a_job_stays_where_no_other_switch_has_room() -> None:
    jobs = book(switch("a"), switch("b"))
    big = run(jobs, "big", slots=64)
    zero, _ = run(jobs, "small", slots=32)
    assert zero.job.slot_range is not None
    jobs.set_draining(zero.job.slot_range.switch, True, "admin")
    assert told(jobs.poll(), zero) == []
    for member in big:
        jobs.leave(member)
    assert [event["event"] for event in told(jobs.poll(), zero)] == ["pause"]  # now there is


def test_the_other_switch_goes_down_before_the_move() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, one = pausing(jobs)
    jobs.switch_down("a", "gone")
    done = change(jobs, [zero, one])
    assert [effect.generation.slot_range.switch for effect in only(done, Install)] == ["b"]
    assert free(jobs) == 128 - 8


def test_a_change_waits_for_a_switch_that_is_down() -> None:
    jobs = book()
    zero, one = run(jobs, **SHRINK)
    jobs.lost([one], "its process ended")
    jobs.switch_down("s", "gone")
    done = change(jobs, [zero])
    assert only(done, Install) == []
    jobs.switch_up("s", Reconciled(missing=(zero.job.id,)))  # it had restarted; nobody minds
    done = carry_out(jobs)
    assert [effect.generation.places for effect in only(done, Install)] == [(0,)]
    assert zero.job.state is JobState.running


def test_a_change_does_not_wait_for_ever_for_the_only_switch() -> None:
    jobs = book()
    zero, one = run(jobs, **SHRINK)
    jobs.lost([one], "its process ended")
    jobs.switch_down("s", "gone")
    change(jobs, [zero])
    jobs.tick(1.0)
    jobs.tick(0.9 + DOWN_PATIENCE)
    assert zero.job.state is JobState.moving
    jobs.tick(1.0 + DOWN_PATIENCE)
    done = jobs.poll()
    assert zero.job.state is JobState.failed
    (event,) = told(done, zero)
    assert event["event"] == "switch"
    assert event["why"].startswith("it has lost switch 's' in a change of its membership, and no other")
    assert {each.step for each in only(done, AnswerStep) if each.refusal.code == "failed"} >= {
        ChangeStep.proceed
    }
    assert free(jobs) == 64


def test_nothing_is_left_of_a_job_that_fails_when_only_one_that_comes_back_is_there() -> None:
    jobs = book()
    one, back = coming_back(jobs, 0)
    jobs.switch_down("s", "gone")
    jobs.leave(one)
    jobs.tick(1.0)
    assert back.refusal is None
    jobs.tick(1.0 + DOWN_PATIENCE)
    assert back.refusal is not None
    assert back.refusal.code == "failed"
    assert (jobs.table.jobs(), free(jobs), jobs.table.cookies) == ([], 64, {})


def test_a_change_waits_for_room_on_another_switch() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, one = run(jobs, **SHRINK)
    other = create(jobs, "other", switch="b", slots=64)
    jobs.lost([one], "its process ended")
    jobs.switch_down("a", "gone")
    change(jobs, [zero])
    jobs.tick(1.0)
    jobs.tick(2.0 + DOWN_PATIENCE)
    assert zero.job.state is JobState.moving
    jobs.evict(other, "me")
    jobs.tick(2.5 + DOWN_PATIENCE)
    (install,) = only(carry_out(jobs), Install)
    assert install.generation.slot_range.switch == "b"


def test_a_change_gives_up_when_all_switches_stay_down() -> None:
    """Also where another one could take the job, if it were up."""
    jobs = book(switch("a"), switch("b"))
    zero, one = run(jobs, **SHRINK)
    jobs.lost([one], "its process ended")
    for name in "ba":
        jobs.switch_down(name, "gone")
    change(jobs, [zero])
    for now in (0.0, 9.9):
        jobs.heard(zero.cookie, now)
        jobs.tick(now)
        assert zero.job.state is JobState.moving
    jobs.tick(10.0)
    assert zero.job.state is JobState.failed
    assert zero.job.why.startswith("it has lost switch 'a' in a change of its membership, and no other")


def test_who_comes_back_and_is_lost_before_a_switch_takes_the_job_is_left_out() -> None:
    jobs = book()
    zero, back = coming_back(jobs, 1)
    jobs.opening_failed(zero.job, generation(zero), SwitchError("no answer within 2 s"))
    jobs.tick(0.0)
    jobs.lost([back], "its process ended")
    jobs.tick(1.0)
    (install,) = only(carry_out(jobs), Install)
    assert install.generation.places == (0,)
    assert zero.job.state is JobState.running


def test_a_call_that_is_made_again_gets_its_answer_again_and_changes_nothing() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3, **SHRINK)
    old = token(zero)
    jobs.lost([two], "its process ended")
    change(jobs, [zero, one])
    opened = generation(zero)
    for another in ([], [one]):  # before another change, and in the middle of one
        jobs.lost(another, "its process ended")
        jobs.poll()
        jobs.changes.progress(zero, 5, old)
        assert answers(jobs.poll())[0] == AnswerStep(zero, ChangeStep.progress, 5)
        jobs.changes.proceed(zero, zero.endpoint[0], zero.ports, old)
        assert answers(jobs.poll())[0] == AnswerStep(zero, ChangeStep.proceed)
        assert generation(zero) is opened
        assert zero.job.state is (JobState.moving if another else JobState.running)
    jobs.changes.progress(zero, 0, token(zero))
    assert answers(jobs.poll())[0].complete_to == 0


def test_a_rank_that_leaves_in_a_change_has_begun_nothing_in_the_next_generation() -> None:
    for opened in (False, True):
        jobs = book()
        zero, one, two = run(jobs, world_size=3, **SHRINK)
        old = token(one)
        jobs.lost([two], "its process ended")
        for member in (zero, one):
            jobs.changes.progress(member, 5)
        for member in (zero, one):
            proceed(jobs, member)
        if opened:
            carry_out(jobs)
        jobs.poll()
        jobs.leave(one, 5, 5, None, old)
        (event,) = (event for event in told(jobs.poll(), zero) if event["event"] == "left")
        assert (event["job"], event["begun"], event["completed"]) == (zero.job.id, [0], [0])

        jobs = book()
        zero, one = run(jobs, **SHRINK)
        jobs.leave(one, 5, 4, None, token(one))
        (event,) = (event for event in told(jobs.poll(), zero) if event["event"] == "left")
        assert (event["begun"], event["completed"]) == ([5], [4])


def test_questions_out_of_turn() -> None:
    jobs = book()
    zero, one = run(jobs, **SHRINK)
    with pytest.raises(AdmissionError, match="its progress, and that of all others, comes first"):
        proceed(jobs, zero)
    with pytest.raises(AdmissionError, match="completed is -1; accepted: 0 and up"):
        jobs.changes.progress(zero, -1)
    jobs.changes.progress(zero, 3)  # a pause that this controller did not ask for, as after a restart
    jobs.changes.progress(zero, 3)
    with pytest.raises(AdmissionError, match="comes first"):
        proceed(jobs, zero)
    jobs.changes.progress(one, 3)
    with pytest.raises(AdmissionError, match="already rank 1"):
        jobs.changes.proceed(zero, one.endpoint[0], one.ports)
    with pytest.raises(AdmissionError, match="port is 0"):
        jobs.changes.proceed(zero, "10.0.0.1", [0])
    for member in (zero, one):
        proceed(jobs, member)
    carry_out(jobs)
    assert zero.job.state is JobState.running
    jobs.evict(zero.job, "me")
    for call in (lambda: jobs.changes.progress(zero, 1), lambda: proceed(jobs, zero)):
        with pytest.raises(AdmissionError, match="evicted by me") as error:
            call()
        assert error.value.code == "failed"


def test_eviction_during_a_change_answers_everybody() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3, **SHRINK)
    jobs.lost([two], "its process ended")
    jobs.poll()
    jobs.changes.progress(zero, 1)
    back = join(jobs, "a", request(2, 3))
    jobs.evict(zero.job, "admin")
    done = jobs.poll()
    assert only(done, AnswerJoin) == [AnswerJoin(back)]
    assert {answer.member.rank for answer in only(done, AnswerStep)} == {0, 1}
    assert [event["event"] for event in told(done, one)] == ["evicted"]
    assert free(jobs) == 64


def test_a_created_job_shrinks_too() -> None:
    jobs = book()
    create(jobs, world_size=3, on_loss=OnLoss.shrink)
    members = [join(jobs, "a", request(rank, 3)) for rank in range(3)]
    carry_out(jobs)
    jobs.lost([members[0]], "its process ended")
    change(jobs, members[1:])
    assert members[1].admission is not None
    assert members[1].admission.places == (1, 2)


_GOING_ON: Final = (JobState.running, JobState.moving)


def test_random_losses_leaves_and_returns() -> None:
    """Whatever happens, all that is free in the end is all there was, and no two generations overlap."""
    seed = seed_of_this_run()
    draw = random.Random(seed)
    changes = failovers = 0
    for _ in range(150):
        jobs = book(switch("a"), switch("b"))
        world = draw.randint(2, 5)
        members = {member.rank: member for member in run(jobs, world_size=world, **SHRINK)}
        job = members[0].job
        if draw.random() < 0.3:
            jobs.set_draining("a", True, "me")
        pending: list[Install] = []
        now = 0.0
        for _ in range(60):
            for effect in jobs.poll():
                if isinstance(effect, Install):
                    pending.append(effect)
            there = job.joined()
            admitted = [member for member in there if member.admission is not None]
            match draw.randrange(11):
                case 0 | 1 if pending:
                    install = pending.pop(0)
                    if draw.random() < 0.3:
                        jobs.opening_failed(install.job, install.generation, SwitchError("table full"))
                        continue
                    for packet in list(install.generation.pending.values()):
                        install.generation.echoed(packet)
                    jobs.opened(install.job, install.generation, 0.0)
                case 2 if there:
                    jobs.lost([draw.choice(there)], "its process ended")
                case 3 if job.state is JobState.running and draw.random() < 0.3 and there:
                    jobs.leave(draw.choice(there))
                case 4:
                    rank = draw.randrange(world)
                    try:
                        join(jobs, "a", request(rank, world))
                    except AdmissionError:
                        continue
                case 5 if job.failover is None and admitted and job.state in _GOING_ON:
                    jobs.changes.progress(draw.choice(admitted), draw.randrange(9))
                case 6 | 7 if job.change is not None and job.change.complete_to is not None:
                    waits = [m for m in admitted if m.rank not in job.change.proceeded]
                    if waits:
                        proceed(jobs, draw.choice(waits))
                        changes += 1
                case 8 if draw.random() < 0.2:
                    name = draw.choice(["a", "b"])
                    jobs.set_draining(name, draw.random() < 0.5, "me")
                case 9 if job.failover is not None and admitted:
                    for member in draw.sample(admitted, draw.randint(1, len(admitted))):
                        jobs.failovers.report(
                            member, token(member), [draw.randrange(9)], member.endpoint[0], member.ports
                        )
                        failovers += 1
                case 10:
                    now += draw.random()
                    for member in admitted:
                        jobs.heard(member.cookie, now)
                    jobs.tick(now)
            for each in jobs.pool.switches.values():
                taken = sum(each.allocator.ranges.values())
                assert taken + each.allocator.free_slots == each.capacity.slots
                assert len(each.ranges) == len(each.allocator.ranges)
            if job.state is JobState.ended:
                break
            last = token(admitted[0]) if admitted else 0
            assert last == 0 or jobs.table.member("me", "a", admitted[0].rank, last).rank == admitted[0].rank
        jobs.close()
        jobs.poll()
        assert (jobs.table.jobs(), free(jobs), jobs.table.cookies) == ([], 128, {})
    assert changes > 50
    assert failovers > 20


def test_a_rank_that_comes_back_hears_that_another_has_left_before_the_job_opened() -> None:
    jobs = book()
    zero, one = run(jobs, **SHRINK)
    jobs.lost([one], "its process ended")
    change(jobs, [zero])
    back = join(jobs, "a", request(1, **SHRINK))
    jobs.changes.progress(zero, 0)
    proceed(jobs, zero)
    jobs.leave(zero, 0, 0, None, token(zero))
    done = carry_out(jobs)
    event = {"event": "left", "ranks": [0], "begun": [0], "completed": [0], "job": back.job.id}
    assert told(done, back) == [event]
    kinds = [each for each in done if getattr(each, "member", None) is back]
    assert isinstance(kinds[0], AnswerJoin)

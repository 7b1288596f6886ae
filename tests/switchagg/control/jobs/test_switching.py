"""Switches that go, come back, forget, or are to be emptied."""

from __future__ import annotations

import pytest

from switchagg.control.jobs.book import DOWN_PATIENCE, JobBook
from switchagg.control.jobs.effects import AnswerStep, ChangeStep, Install, LogEvent, Remove
from switchagg.control.jobs.job import Generation, Member
from switchagg.control.jobs.records import (
    EventKind,
    JobState,
    JoinRequest,
    MemberState,
    OnLoss,
    SwitchState,
)
from switchagg.control.jobs.switch_resources import UNREACHED, SwitchResources
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.switch import Capacity, Reconciled
from switchagg.rules.wiring import Attachment, parse_hosts
from tests.switchagg.control.job_books import (
    book,
    carry_out,
    create,
    does_not_answer,
    free,
    generation,
    join,
    only,
    run,
    switch,
    token,
    told,
)


def test_nothing_is_put_on_a_switch_before_it_answers() -> None:
    jobs = book(up=False)
    job = create(jobs)
    assert job.state is JobState.queued
    assert jobs.pool.obstacles(jobs.candidates.of_job(job)) == "switch 's' is down: not reached yet"
    jobs.switch_up("s", Reconciled())
    assert job.state is JobState.created


def test_what_runs_on_a_switch_that_cannot_be_reached_goes_on() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, _ = run(jobs)
    jobs.switch_down("a", "connection refused")
    jobs.switch_down("a", "no answer within 5 s")
    assert jobs.pool.switches["a"].why == "no answer within 5 s"
    notes = [note for note in only(jobs.poll(), LogEvent) if note.kind is EventKind.switch_down]
    assert [note.text for note in notes] == ["switch 'a' is down: connection refused"]
    assert zero.job.state is JobState.running
    other = create(jobs, "other")
    assert other.slot_range is not None
    assert other.slot_range.switch == "b"
    jobs.switch_up("a", Reconciled(kept=(zero.job.id,)))
    assert zero.job.state is JobState.running
    assert jobs.pool.switches["a"].state is SwitchState.up


def test_a_job_leaves_a_switch_that_is_down_as_soon_as_another_is_up() -> None:
    """Its members may not notice: of a tree, the leaves' ports refuse nothing."""
    jobs = book(switch("a"), switch("b"))
    zero, _ = run(jobs)
    jobs.switch_down("b", "no answer within 5 s")
    jobs.switch_down("a", "connection refused")
    assert zero.job.failover is None
    jobs.switch_up("b", Reconciled())
    assert zero.job.failover is not None
    assert zero.job.failover.target.switches == ("b",)
    moving = [note.text for note in only(jobs.poll(), LogEvent) if note.kind is EventKind.moving]
    assert moving == ["job 'a' goes over to b: switch 'a' is down: connection refused"]


def test_a_job_leaves_a_switch_that_is_down_as_soon_as_another_has_room() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, _ = run(jobs)
    other = create(jobs, "other", switch="b", slots=64)
    assert other.state is JobState.created
    jobs.switch_down("a", "connection refused")
    assert zero.job.failover is None
    jobs.evict(other, "me")
    jobs.tick(0.0)
    assert zero.job.failover is not None


def going_over(jobs: JobBook, *, reported: int = 5) -> list[Member]:
    """Returns the members of a job whose switch a is gone, and which have reported."""
    members = run(jobs)
    assert members[0].job.switches == ("a",)
    jobs.switch_down("a", "connection refused")
    for member in members:
        jobs.failovers.report(member, token(member), [reported], "10.0.0.1", [4100 + member.rank])
    return members


def test_a_job_goes_to_the_next_switch_where_one_does_not_answer() -> None:
    jobs = book(switch("a"), switch("b"), switch("c"))
    zero, one = going_over(jobs)
    assert does_not_answer(jobs) == "b"
    carry_out(jobs)
    assert zero.job.state is JobState.running
    assert zero.job.switches == ("c",)
    for member in (zero, one):
        assert member.admission is not None
        assert (member.admission.switch, member.admission.first_packet) == ("c", 5)
        jobs.leave(member)
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs)) == ([], 192)


def test_a_job_waits_for_a_switch_that_does_not_answer() -> None:
    """Its ranks wait too, and it has the slots at most once."""
    jobs = book(switch("a"), switch("b"))
    zero, one = going_over(jobs)
    assert does_not_answer(jobs) == "b"
    done = jobs.poll()
    assert only(done, Install) == []
    (note,) = only(done, LogEvent)
    why = "switch 'b' did not take job 'a': no answer within 2 s"
    assert (note.kind, note.text) == (EventKind.moving, f"job 'a' waits for a switch, at most 10 s: {why}")
    assert told(done, zero) == []
    for now in (0.0, 0.9, 1.0, 1.1, 1.9):
        jobs.tick(now)
        if now == 1.0:
            assert does_not_answer(jobs) == "b"
        assert only(jobs.poll(), Install) == []  # not all the time
    jobs.tick(2.0)
    carry_out(jobs)
    assert zero.job.state is JobState.running
    for member in (zero, one):
        assert member.admission is not None
        assert (member.admission.switch, member.admission.first_packet) == ("b", 5)
    assert free(jobs) == 128 - 8


def test_a_job_that_no_switch_takes_goes_to_one_that_comes_back() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, _ = going_over(jobs)
    assert does_not_answer(jobs) == "b"
    jobs.tick(0.0)
    jobs.switch_down("b", "no answer within 2 s")
    jobs.switch_up("a", Reconciled())
    jobs.tick(1.0)
    carry_out(jobs)
    assert (zero.job.state, zero.job.switches) == (JobState.running, ("a",))
    assert free(jobs) == 128 - 8


def test_a_job_that_no_switch_takes_fails_after_its_deadline() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, one = going_over(jobs)
    does_not_answer(jobs)
    jobs.tick(0.0)
    for second in range(1, 10):
        for member in (zero, one):
            jobs.heard(member.cookie, float(second))
        jobs.tick(float(second))
        assert does_not_answer(jobs) == "b"
        assert zero.job.state is JobState.running
    jobs.tick(10.0)
    why = "switch 'b' did not take job 'a': no answer within 2 s; no switch has taken it for 10 s"
    assert (zero.job.state, zero.job.why) == (JobState.failed, why)
    assert {"event": "switch", "job": zero.job.id, "why": why} in told(jobs.poll(), zero)
    assert free(jobs) == 128


def test_each_switch_that_does_not_take_a_job_is_tried_once_a_second_and_none_that_it_has_left() -> None:
    jobs = book(switch("a"), switch("b"), switch("c"))
    zero, one = going_over(jobs)
    jobs.switch_up("a", Reconciled())  # its members do not reach it
    for second in range(10):
        assert {does_not_answer(jobs), does_not_answer(jobs)} == {"b", "c"}
        for now in (second, second + 0.9, second + 1.0):
            assert only(jobs.poll(), Install) == []
            for member in (zero, one):
                jobs.heard(member.cookie, now)
            assert zero.job.state is JobState.running
            jobs.tick(now)
    assert zero.job.state is JobState.failed
    assert zero.job.why.endswith("no answer within 2 s; no switch has taken it for 10 s")
    assert free(jobs) == 192


@pytest.mark.parametrize("shrinks", [False, True])
def test_a_rank_is_lost_while_its_job_waits_for_a_switch(shrinks: bool) -> None:
    jobs = book(switch("a"), switch("b"))
    zero, one = run(jobs, on_loss=OnLoss.shrink if shrinks else OnLoss.fail)
    jobs.switch_down("a", "connection refused")
    for member in (zero, one):
        jobs.failovers.report(member, token(member), [5], "10.0.0.1", [4100 + member.rank])
    does_not_answer(jobs)
    jobs.lost([one], "its process ended")
    jobs.tick(1.0)
    if shrinks:
        jobs.changes.progress(zero, 3)
        jobs.changes.proceed(zero, "10.0.0.1", [4200])
        carry_out(jobs)
        assert (zero.job.state, zero.job.switches) == (JobState.running, ("b",))
    else:
        assert zero.job.state is JobState.failed
    assert free(jobs) == 128 - 8 * shrinks


def proceeded(jobs: JobBook) -> list[Member]:
    """Returns the survivors of a job that has lost a rank; all have proceeded."""
    *survivors, last = run(jobs, world_size=3, on_loss=OnLoss.shrink)
    jobs.lost([last], "its process ended")
    for member in survivors:
        jobs.changes.progress(member, 1)
    for member in survivors:
        jobs.changes.proceed(member, member.endpoint[0], member.ports)
    return survivors


def test_a_switch_that_does_not_take_the_next_generation_is_left_for_another() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, one = proceeded(jobs)
    assert does_not_answer(jobs) == "a"
    remove, install = only(carry_out(jobs), Remove, Install)
    assert remove.generation.slot_range.switch == "a"
    assert install.generation.slot_range.switch == "b"
    for member in (zero, one):
        assert member.admission is not None
        assert (member.admission.switch, member.admission.places) == ("b", (0, 1))
        jobs.leave(member)
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs)) == ([], 128)


def test_so_is_one_that_restarts_after_it_was_installed_there() -> None:
    jobs = book(switch("a"), switch("b"))
    zero, _ = proceeded(jobs)
    (install,) = (each for each in jobs.poll() if isinstance(each, Install))
    jobs.switch_up("a", Reconciled(missing=(install.generation.id,)))
    carry_out(jobs)
    assert (zero.job.state, zero.job.switches, free(jobs)) == (JobState.running, ("b",), 128 - 8)


@pytest.mark.parametrize("names", [("a",), ("a", "b")], ids=["alone", "two"])
@pytest.mark.parametrize("takes", [True, False])
def test_each_switch_that_does_not_take_the_next_generation_is_tried_once_a_second(
    names: tuple[str, ...], takes: bool
) -> None:
    jobs = book(*map(switch, names))
    survivors = proceeded(jobs)
    job = survivors[0].job
    for second in range(10):
        assert {does_not_answer(jobs) for _ in names} == {*names}
        for now in (second, second + 0.9, second + 1.0):
            assert only(jobs.poll(), Install) == []
            for member in survivors:
                jobs.heard(member.cookie, now)
            assert job.state is JobState.moving
            jobs.tick(now)
        if takes:
            carry_out(jobs)
            assert (job.state, job.search, free(jobs)) == (JobState.running, None, 64 * len(names) - 8)
            return
    why = "did not take job 'a': no answer within 2 s; no switch has taken it for 10 s"
    assert job.state is JobState.failed
    assert job.why.endswith(why)
    done = jobs.poll()
    for member in survivors:
        assert [(each["event"], each["why"]) for each in told(done, member)] == [("switch", job.why)]
        assert AnswerStep(member, ChangeStep.proceed) not in done
    refusals = {(each.member.rank, each.step): each.refusal.code for each in only(done, AnswerStep)}
    assert [refusals[rank, ChangeStep.proceed] for rank in (0, 1)] == ["failed"] * 2
    assert free(jobs) == 64 * len(names)


def looked(jobs: JobBook, members: list[Member], now: float) -> JobState:
    """Returns the state of a job, whose members are heard, after a look at deadlines."""
    for member in members:
        jobs.heard(member.cookie, now)
    jobs.tick(now)
    return members[0].job.state


def test_a_switch_that_goes_down_after_it_did_not_take_the_job_has_two_seconds_from_then_on() -> None:
    jobs = book(switch("a"))
    survivors = proceeded(jobs)
    does_not_answer(jobs)
    looked(jobs, survivors, 0.0)
    looked(jobs, survivors, 1.0)
    does_not_answer(jobs)
    assert looked(jobs, survivors, 3.0) is JobState.moving
    jobs.switch_down("a", "gone")
    assert looked(jobs, survivors, 3.5) is JobState.moving
    assert looked(jobs, survivors, 3.25 + DOWN_PATIENCE) is JobState.moving
    assert looked(jobs, survivors, 3.5 + DOWN_PATIENCE) is JobState.failed
    assert survivors[0].job.why.startswith("it has lost switch 'a' in a change of its membership")


def test_a_switch_that_goes_down_twice_has_two_seconds_each_time() -> None:
    jobs = book(switch("a"))
    survivors = proceeded(jobs)
    for start in (0.0, 5.0):
        jobs.switch_down("a", "gone")
        assert looked(jobs, survivors, start) is JobState.moving
        assert looked(jobs, survivors, start + 1.9) is JobState.moving
        jobs.poll()
        jobs.switch_up("a", Reconciled())
        assert looked(jobs, survivors, start + 2.0) is JobState.moving
    does_not_answer(jobs)
    assert looked(jobs, survivors, 10.0) is JobState.failed  # the deadline goes on from the first time
    assert survivors[0].job.why.endswith("no answer within 2 s; no switch has taken it for 10 s")


def test_a_search_that_a_failover_ended_leaves_nothing_to_the_next() -> None:
    jobs = book(switch("a"), switch("b"))
    jobs.set_draining("b", True, "me")
    members = run(jobs)
    job = members[0].job

    def change() -> None:
        for member in members:
            jobs.changes.progress(member, 1)
        for member in members:
            jobs.changes.proceed(member, member.endpoint[0], member.ports)

    jobs.switch_down("a", "gone")
    change()
    assert looked(jobs, members, 1.0) is JobState.moving
    assert job.search is not None
    assert job.search.waits
    jobs.pool.switches["b"].draining = False  # not looked at since
    for member in members:
        jobs.failovers.report(member, token(member), [5], member.endpoint[0], member.ports)
    carry_out(jobs)
    assert (job.switches, job.failover) == (("b",), None)
    jobs.switch_down("b", "gone")
    assert looked(jobs, members, 10.0) is JobState.moving
    assert looked(jobs, members, 19.0) is JobState.moving
    change()
    assert looked(jobs, members, 20.0) is JobState.moving
    assert looked(jobs, members, 29.9) is JobState.moving
    assert looked(jobs, members, 30.0) is JobState.failed


LOST = "switch 's' restarted, and what its slots held is lost"


def test_jobs_of_a_switch_that_forgot_them_go_on_there() -> None:
    jobs = book()
    zero, one = run(jobs)
    other = run(jobs, "b")
    there, range_before = generation(zero), zero.job.slot_range
    jobs.switch_up("s", Reconciled(kept=(other[0].job.id,), missing=(zero.job.id,)))
    done = jobs.poll()
    event = {"event": "failover", "job": there.id, "why": LOST}
    assert [told(done, member) for member in (zero, one, other[0])] == [[event], [event], []]
    for member, lowest in ((zero, 7), (one, 5)):
        jobs.failovers.report(member, token(member), [lowest], "10.0.0.1", [4100 + member.rank])
    done = carry_out(jobs)
    assert [type(each) for each in only(done, Remove, Install)] == [Remove, Install]
    assert only(done, Remove) == [Remove(there)]
    assert zero.job.state is JobState.running
    assert zero.job.slot_range == range_before
    for member in (zero, one):
        assert member.admission is not None
        assert (member.admission.job, member.admission.first_packet) == (generation(zero).id, 5)
        assert member.admission.job != there.id
    for member in (zero, one, *other):
        jobs.leave(member)
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs)) == ([], 64)


def test_jobs_of_a_switch_that_forgot_them_fail_if_a_member_cannot_send_again() -> None:
    jobs = book()
    zero, one = run(jobs)
    there = generation(zero)
    jobs.leave(one)
    jobs.poll()
    jobs.switch_up("s", Reconciled(missing=(zero.job.id,)))
    done = jobs.poll()
    assert told(done, zero) == [{"event": "switch", "job": there.id, "why": LOST}]
    assert (zero.job.state, zero.job.why) == (JobState.failed, LOST)
    assert only(done, Remove) == [Remove(there)]
    jobs.lost([zero], "its process ended")
    again = run(jobs)
    assert again[0].job.state is JobState.running


def test_ranks_of_a_failed_job_join_the_next_one_while_the_old_members_are_still_there() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3)
    jobs.leave(two)
    jobs.switch_up("s", Reconciled(missing=(zero.job.id,)))
    again = run(jobs)
    assert again[0].job is not zero.job
    assert again[0].job.state is JobState.running
    assert zero.job.ranks(MemberState.joined) == [0, 1]
    jobs.lost([zero, one], "silent for 5 s")
    assert jobs.table.jobs() == [again[0].job]
    assert again[0].job.state is JobState.running


@pytest.mark.parametrize("reported", [False, True])
def test_nothing_is_left_of_a_job_whose_last_rank_leaves_in_a_failover(reported: bool) -> None:
    jobs = book(switch("a"), switch("b"))
    (alone,) = run(jobs, world_size=1)
    jobs.set_draining("a", True, "admin")
    assert alone.job.failover is not None
    if reported:
        jobs.failovers.report(alone, token(alone), [0], "10.0.0.1", [4100])
    jobs.leave(alone)
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs), jobs.table.cookies) == ([], 128, {})


def test_a_switch_that_is_not_what_was_expected_before_it_answered() -> None:
    jobs = book(up=False)
    here = jobs.pool.switches["s"]
    jobs.switch_measured("s", Capacity(1 << 15, 2000, 1 << 26))
    jobs.switch_up("s", Reconciled())
    assert here.allocator.free_slots == 1 << 15
    job = create(jobs, words=2000, slots=1 << 12)
    assert job.slot_range is not None
    jobs.switch_measured("s", Capacity(1 << 13, 2000, 1 << 26))
    assert here.allocator.free_slots == 1 << 12  # the job's range is still its own
    with pytest.raises(SwitchError, match=r"its jobs do not fit: words is 2000; accepted: 16\.\.364"):
        jobs.switch_measured("s", Capacity(1 << 13, 364, 1 << 26))
    with pytest.raises(SwitchError, match=r"its jobs do not fit: .*the switch has 8 in all; evict them"):
        jobs.switch_measured("s", Capacity(8, 2000, 1 << 26))
    assert (here.capacity.slots, here.capacity.words) == (1 << 13, 2000)


def test_draining_a_switch_moves_what_has_not_opened_at_once() -> None:
    jobs = book(switch("a"), switch("b", 128))
    job = create(jobs)
    pinned = create(jobs, "pinned", switch="a")
    jobs.set_draining("a", True, "admin")
    jobs.set_draining("a", True, "admin")
    assert job.slot_range is not None
    assert (job.slot_range.switch, job.state) == ("b", JobState.created)
    assert (pinned.slot_range, pinned.state) == (None, JobState.queued)
    assert jobs.pool.switches["a"].state is SwitchState.draining
    assert len([note for note in only(jobs.poll(), LogEvent) if note.kind is EventKind.drained]) == 1
    jobs.set_draining("a", False, "admin")
    assert pinned.slot_range is not None
    assert pinned.slot_range.switch == "a"
    assert jobs.pool.switches["a"].state is SwitchState.up


def test_a_job_that_opens_on_a_switch_that_is_drained_moves_when_it_runs() -> None:
    jobs = book(switch("a"), switch("b", 128))
    from tests.switchagg.control.job_books import join, request

    zero = join(jobs, "a", request(0, 1))
    jobs.set_draining("a", True, "admin")
    done = carry_out(jobs)
    assert [event["event"] for event in told(done, zero)] == ["pause"]
    assert free(jobs) == 192 - 16


def test_a_job_for_a_switch_that_there_is_not() -> None:
    with pytest.raises(AdmissionError, match="switch is 'x'; accepted: s"):
        create(book(), switch="x")


def test_a_job_leaves_a_dead_switch_when_another_comes_up() -> None:
    """Its members may not notice: where the root of a tree is gone, their leaves answer."""
    jobs = book(switch("s"), switch("t"), up=False)
    jobs.switch_up("s", Reconciled())
    member = run(jobs)[0]
    jobs.switch_down("s", "its connection has ended")
    assert member.job.failover is None
    jobs.switch_up("t", Reconciled())
    assert member.job.failover is not None
    assert member.job.failover.target.switches == ("t",)
    (event,) = told(jobs.poll(), member)
    assert event["event"] == "failover"


def restarted_with_a_leaf() -> tuple[JobBook, list[Member], Generation]:
    """A job on a tree, whose new controller has reached one leaf only, which has restarted too."""
    tree = {"root": Attachment(hosts=())}
    for rank, leaf in enumerate(("left", "right")):
        tree[leaf] = Attachment("root", parse_hosts("", [f"10.0.0.{rank}"]))
    size = Capacity(64, 364, 1 << 20)
    jobs = book(
        *(
            SwitchResources(name, size, slots=8, attachment=at, address=("10.0.1.1", 1000 + number))
            for number, (name, at) in enumerate(tree.items())
        )
    )
    members = [join(jobs, "a", JoinRequest(rank, 2, f"10.0.0.{rank}", 4000)) for rank in range(2)]
    carry_out(jobs)
    there = generation(members[0])
    assert there.leaves
    for each in jobs.pool.switches.values():
        each.up, each.why = False, UNREACHED
    jobs.switch_up("left", Reconciled(missing=(there.id,)))
    return jobs, members, there


def test_a_job_whose_leaf_and_controller_have_restarted_waits_for_the_other_switches() -> None:
    jobs, members, there = restarted_with_a_leaf()
    assert only(jobs.poll()) == []
    jobs.tick(0.1)
    jobs.switch_up("root", Reconciled(kept=(there.id,)))
    assert only(jobs.poll()) == []
    jobs.switch_up("right", Reconciled(kept=(there.id,)))
    done = jobs.poll()
    assert [[event["event"] for event in told(done, each)] for each in members] == [["failover"]] * 2
    jobs.tick(0.2)
    assert told(jobs.poll(), members[0]) == []  # once
    for member, lowest in zip(members, (7, 5), strict=True):
        jobs.failovers.report(member, token(member), [lowest], member.endpoint[0], member.ports)
    carry_out(jobs)
    assert members[0].job.state is JobState.running
    assert members[0].admission is not None
    assert members[0].admission.first_packet == 5


def test_such_a_job_fails_where_another_switch_is_gone() -> None:
    jobs, members, there = restarted_with_a_leaf()
    jobs.switch_up("right", Reconciled(kept=(there.id,)))
    jobs.poll()
    jobs.switch_down("root", "connection refused")
    jobs.tick(0.1)
    why = "switch 'left' restarted, and what its slots held is lost"
    assert (members[0].job.state, members[0].job.why) == (JobState.failed, why)
    assert [event["why"] for event in told(jobs.poll(), members[1])] == [why]


def test_such_a_job_fails_when_a_rank_is_lost_that_cannot_send_again() -> None:
    jobs, members, _ = restarted_with_a_leaf()
    jobs.leave(members[1])
    jobs.tick(0.1)
    assert members[0].job.state is JobState.failed

"""Jobs that are dealt to several switches: where they go, and what goes over when a switch is gone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from switchagg.control import job_codec
from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.effects import Fence, Install, Remove
from switchagg.control.jobs.job import Job, Member
from switchagg.control.jobs.records import JobState, JoinRequest, OnLoss, Quota, StripeAdmission, Tenant
from switchagg.control.jobs.switch_resources import UNREACHED, SwitchResources
from switchagg.errors import AdmissionError
from switchagg.rules.switch import Reconciled
from switchagg.rules.wiring import Attachment
from tests.switchagg.control.job_books import (
    book,
    carry_out,
    create,
    does_not_answer,
    free,
    generation,
    only,
    switch,
    token,
    told,
)

ME = Tenant("me")


def _join(
    jobs: JobBook, stripes: int = 2, name: str = "a", tenant: Tenant = ME, **options: object
) -> list[Member]:
    members = []
    for rank in range(2):
        more = tuple(5000 + 100 * stripe + rank for stripe in range(1, stripes))
        asked = JoinRequest(rank, 2, "10.0.0.1", 4000 + rank, more_ports=more, **options)  # type: ignore[arg-type]
        members.append(jobs.join(tenant, name, asked, 0.0))
    carry_out(jobs)
    return members


def _there(member: Member) -> tuple[StripeAdmission, ...]:
    assert member.admission is not None
    return member.admission.stripes


def _switches(job: Job) -> tuple[str, ...]:
    return job.switches


def _report(jobs: JobBook, members: list[Member], lowest: list[list[int]], stripe: int = 0) -> None:
    for member, each in zip(members, lowest, strict=True):
        ports = [6000 + 10 * number + member.rank for number in range(len(each))]
        jobs.failovers.report(member, token(member), each, "10.0.0.1", ports, stripe=stripe)


def test_a_job_gets_a_range_on_each_of_as_many_switches_or_none() -> None:
    jobs = book(switch("a"), switch("b"), switch("c"))
    create(jobs, "full", switch="b", slots=64)
    members = _join(jobs)
    job = members[0].job
    assert job.state is JobState.running
    assert set(_switches(job)) == {"a", "c"}
    assert [len(part.entry.workers) for part in generation(members[0]).parts] == [2, 2]
    for stripe, (part, ports) in enumerate(
        zip(generation(members[0]).parts, ([4000, 4001], [5100, 5101]), strict=True)
    ):
        assert [worker.port for worker in part.entry.workers] == ports
        for bit, member in enumerate(members):
            at = _there(member)[stripe]
            assert (at.switch, at.base) == (part.slot_range.switch, part.slot_range.base)
            assert (at.job, at.token, at.result_token) == (
                part.id,
                part.entry.workers[bit].token,
                part.entry.result_token,
            )
            assert (at.first_seq, at.first_packet) == (part.first_seq, 0)
    waiting = _join(jobs, 3, "b")
    assert waiting[0].job.state is JobState.queued
    assert "switch 'b' are free" in jobs.scheduler.waiting_for(waiting[0].job)
    for member in members:
        jobs.leave(member)
    assert free(jobs) == 128


def _linked(name: str, gigabits: float) -> SwitchResources:
    made = switch(name)
    made.attachment = Attachment(bandwidth=gigabits * 1e9)
    return made


def test_a_job_gets_the_switches_with_most_bandwidth_free_and_weights_in_proportion() -> None:
    jobs = book(_linked("a", 10), _linked("b", 40), _linked("c", 20), _linked("d", 8), _linked("e", 0.1))
    create(jobs, "there", switch="b")
    members = _join(jobs, 3)
    first = members[0].job
    assert first.placement is not None
    assert list(zip(first.switches, first.placement.weights, strict=True)) == [
        ("b", 32), ("c", 32), ("a", 16)
    ]  # fmt: skip
    for member in members:
        assert [each.weight for each in _there(member)] == [32, 32, 16]
    second = _join(jobs, 3, "second")[0].job
    assert second.placement is not None
    assert list(zip(second.switches, second.placement.weights, strict=True)) == [
        ("b", 32), ("c", 24), ("d", 19)
    ]  # fmt: skip
    jobs.switch_down("c", "gone")
    _report(jobs, members, [[1, 2, 3]] * 2, stripe=1)
    carry_out(jobs)
    assert [(each.switch, each.weight) for each in _there(members[0])] == [("b", 32), ("d", 10), ("a", 16)]
    third = _join(jobs, 4, "third")[0].job
    assert third.placement is not None
    assert third.placement.weights[-1] == 1  # of a link that is far slower
    assert third.switches[-1] == "e"


def test_too_few_switches_are_named_at_the_join() -> None:
    jobs = book(switch("a"), switch("b"), switch("c", exact_words=64))
    said = (
        r"stripes is 3; accepted: 1\.\.2, the number of switches .* take P = 8, K = 100: a, b \(words is 100;"
    )
    with pytest.raises(AdmissionError, match=said) as caught:
        _join(jobs, 3, words=100)
    assert caught.value.code == "no_switch"
    assert jobs.table.jobs() == []


def test_what_the_ranks_of_a_job_in_stripes_may_not_ask_for() -> None:
    jobs = book(switch("a"), switch("b"))
    first = JoinRequest(0, 2, "10.0.0.1", 4000, more_ports=(5000,))
    jobs.join(ME, "a", first, 0.0)
    with pytest.raises(AdmissionError, match=r"rank 1 asks for 1 stripes in job 'a'; ranks \[0\] have 2"):
        jobs.join(ME, "a", JoinRequest(1, 2, "10.0.0.1", 4001), 0.0)
    with pytest.raises(AdmissionError, match=r"10\.0\.0\.1:5000 is already rank 0"):
        jobs.join(ME, "a", JoinRequest(1, 2, "10.0.0.1", 5000, more_ports=(4009,)), 0.0)
    create(jobs, "ordered")
    with pytest.raises(AdmissionError, match="asks for 2 stripes in job 'ordered'; it was created with 1"):
        jobs.join(ME, "ordered", first, 0.0)
    with pytest.raises(AdmissionError, match="another one for each stripe"):
        replace(first, more_ports=(4000,))
    with pytest.raises(AdmissionError, match=r"stripes is 17; accepted: 1\.\.16"):
        replace(first, more_ports=tuple(range(5000, 5016)))
    tenant = Tenant("poor", quota=Quota(slots=15))
    with pytest.raises(AdmissionError, match=r"16 slots .* its quota is 15 slots"):
        jobs.join(tenant, "b", first, 0.0)


def test_a_stripe_whose_switch_is_gone_goes_over_alone() -> None:
    jobs = book(switch("a"), switch("b"), switch("c"))
    members = _join(jobs)
    job, before = members[0].job, generation(members[0])
    stays, gone = _switches(job)
    (spare,) = {"a", "b", "c"} - {stays, gone}
    ids, was, old = job.id, [_there(member) for member in members], [token(member) for member in members]
    jobs.switch_down(gone, "connection refused")
    event = {
        "event": "failover",
        "job": ids,
        "why": f"switch {gone!r} is down: connection refused",
        "stripe": 1,
    }
    assert told(jobs.poll(), members[0]) == [event]
    _report(jobs, members, [[70, 40], [90, 38]], stripe=1)
    done = carry_out(jobs)
    assert only(done, Remove) == [Remove(before.stripes[0])]
    assert [effect.generation.slot_range.switch for effect in only(done, Install)] == [spare]
    assert _switches(job) == (stays, spare)
    assert job.id != ids
    for bit, (member, earlier) in enumerate(zip(members, was, strict=True)):
        kept, moved = _there(member)
        assert kept == earlier[0]
        assert moved.job == job.id
        assert moved.token != earlier[1].token
        assert moved.first_packet == 38
        part = generation(member).stripes[0]
        assert part.entry.workers[bit].port == 6010 + member.rank
        assert (moved.first_seq + 38) % 2**32 == part.first_seq
        assert token(member) != old[bit]
        assert member.admission is not None
        assert member.admission.job == job.id
    assert set(jobs.table.ids) == {before.id, job.id}
    assert {part.id for part in jobs.table.on_switch(stays)} == {before.id}
    jobs.switch_up(gone, Reconciled())
    for member in members:
        jobs.leave(member)
    carry_out(jobs)
    assert (jobs.table.ids, free(jobs)) == ({}, 192)


def test_two_switches_that_are_gone_are_both_replaced() -> None:
    jobs = book(*map(switch, "abcd"))
    members = _join(jobs)
    job = members[0].job
    first, second = _switches(job)
    jobs.switch_down(first, "gone")
    _report(jobs, members[:1], [[7, 9]])
    jobs.switch_down(second, "gone too")
    _report(jobs, members[1:], [[8, 5]])
    done = carry_out(jobs)
    assert len(only(done, Install)) == 2
    assert set(_switches(job)) == {"a", "b", "c", "d"} - {first, second}
    assert [each.first_packet for each in _there(members[0])] == [7, 5]
    assert {each.job for each in _there(members[0])} == {job.id}


def test_a_switch_that_forgot_its_stripe_takes_it_again() -> None:
    jobs = book(switch("a"), switch("b"))
    members = _join(jobs)
    job, before = members[0].job, generation(members[0])
    ranges, kept = job.ranges, _there(members[0])[0]
    jobs.switch_up(_switches(job)[1], Reconciled(missing=(before.stripes[0].id,)))
    _report(jobs, members, [[3, 3], [4, 2]], stripe=1)
    done = carry_out(jobs)
    assert [type(each) for each in only(done, Remove, Install)] == [Remove, Install]
    assert job.ranges == ranges
    assert _there(members[0])[0] == kept
    assert _there(members[0])[1].first_packet == 2


def _restarted(jobs: JobBook, members: list[Member], stripes: list[int]) -> None:
    """The switches of these stripes are found empty, in this order."""
    parts = [generation(members[0]).parts[stripe] for stripe in stripes]
    for part in parts:
        jobs.switch_up(part.slot_range.switch, Reconciled(missing=(part.id,)))


@pytest.mark.parametrize("stripes", [[0, 1], [1, 0]])
@pytest.mark.parametrize("restart", [True, False], ids=["and-the-controller", "alone"])
def test_two_switches_that_forgot_their_stripes_take_them_again(stripes: list[int], restart: bool) -> None:
    jobs = book(switch("a"), switch("b"))
    members = _join(jobs)
    job, before = members[0].job, generation(members[0])
    ranges = job.ranges
    if restart:
        for each in jobs.pool.switches.values():
            each.up, each.why = False, UNREACHED
    _restarted(jobs, members, stripes)
    assert [event["event"] for event in told(jobs.poll(), members[0])] == ["failover"]
    jobs.tick(0.1)
    _report(jobs, members, [[3, 5], [4, 2]], stripe=stripes[restart])
    done = carry_out(jobs)
    assert [each.generation for each in only(done, Remove)] == list(before.parts)
    assert {each.generation.slot_range for each in only(done, Install)} == set(ranges)
    assert job.ranges == ranges
    assert [each.first_packet for each in _there(members[0])] == [3, 2]
    jobs.tick(0.2)
    assert job.failover is None
    for member in members:
        jobs.leave(member)
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs)) == ([], 128)


def test_a_stripe_that_is_forgotten_while_another_opens_is_installed_too() -> None:
    jobs = book(switch("a"), switch("b"))
    members = _join(jobs)
    job, (kept, lost) = members[0].job, generation(members[0]).parts
    _restarted(jobs, members, [1])
    _report(jobs, members, [[3, 5], [4, 2]], stripe=1)
    (install,) = only(jobs.poll(), Install)
    jobs.switch_up(kept.slot_range.switch, Reconciled(missing=(kept.id,)))
    jobs.opened(install.job, install.generation, 0.0)
    assert job.failover is not None
    installed = only(carry_out(jobs), Install)
    assert {each.generation.slot_range for each in installed} == {kept.slot_range, lost.slot_range}
    assert job.failover is None
    assert [each.first_packet for each in _there(members[0])] == [3, 2]
    for member in members:
        jobs.leave(member)
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs)) == ([], 128)


def test_a_stripe_that_was_forgotten_goes_over_with_one_that_a_member_cannot_reach() -> None:
    """The controller has restarted, and not reached the other switch yet; a third one is up."""
    jobs = book(*map(switch, "abc"))
    members = _join(jobs)
    job, (first, second) = members[0].job, members[0].job.switches
    (spare,) = {"a", "b", "c"} - {first, second}
    full = create(jobs, "full", switch=spare, slots=64)
    for each in jobs.pool.switches.values():
        each.up, each.why = False, UNREACHED
    _restarted(jobs, members, [0])
    jobs.switch_up(spare, Reconciled())
    assert job.failover is None
    jobs.evict(full, "admin")
    _report(jobs, members, [[3, 5], [4, 2]], stripe=1)
    done = carry_out(jobs)
    assert [each.generation.slot_range.switch for each in only(done, Install)] == [first, spare]
    assert job.switches == (first, spare)


def test_a_drain_does_not_count_as_planned_once_another_stripe_was_forgotten() -> None:
    jobs = book(*map(switch, "abc"))
    members = _join(jobs, on_loss="shrink")
    job = members[0].job
    jobs.set_draining(job.switches[0], True, "admin")
    _restarted(jobs, members, [1])
    jobs.lost([members[1]], "silent")
    assert job.change is not None
    assert job.change.stranded


def test_without_another_switch_the_job_stays_until_a_member_cannot_reach_it() -> None:
    jobs = book(switch("a"), switch("b"))
    members = _join(jobs)
    gone = _switches(members[0].job)[1]
    jobs.switch_down(gone, "connection refused")
    assert members[0].job.failover is None
    with pytest.raises(AdmissionError, match=f"has lost switch '{gone}', and no other has room") as caught:
        _report(jobs, members, [[3, 3], [4, 2]], stripe=1)
    assert caught.value.code == "no_switch"


@pytest.mark.parametrize(
    ("lowest", "ports", "stripe"), [([1], [7000, 7001], 0), ([1, 2], [7000], 0), ([1, 2], [7000, 7001], 2)]
)
def test_a_report_that_does_not_fit_the_job_is_refused(
    lowest: list[int], ports: list[int], stripe: int
) -> None:
    jobs = book(switch("a"), switch("b"), switch("c"))
    members = _join(jobs)
    with pytest.raises(AdmissionError) as caught:
        jobs.failovers.report(members[0], token(members[0]), lowest, "10.0.0.1", ports, stripe=stripe)
    assert caught.value.code == "bad_request"
    assert members[0].job.failover is None


def test_a_lost_rank_is_fenced_at_every_stripe() -> None:
    jobs = book(switch("a"), switch("b"))
    members = _join(jobs, on_loss="shrink")
    parts = generation(members[0]).parts
    jobs.lost([members[1]], "silent")
    assert [(each.generation, each.bits) for each in only(jobs.poll(), Fence)] == [
        (part, 2) for part in parts
    ]
    jobs.changes.progress(members[0], 3)
    jobs.changes.proceed(members[0], "10.0.0.1", [4100, 4200])
    carry_out(jobs)
    assert members[0].job.state is JobState.running
    assert [[worker.port for worker in part.entry.workers] for part in generation(members[0]).parts] == [
        [4100],
        [4200],
    ]


def test_a_stripe_whose_switch_does_not_take_the_next_generation_is_elsewhere_in_it() -> None:
    jobs = book(switch("a"), switch("b"), switch("c"))
    zero, one = _join(jobs, on_loss=OnLoss.shrink)
    assert _switches(zero.job) == ("a", "b")
    jobs.lost([one], "its process ended")
    jobs.changes.progress(zero, 1)
    jobs.changes.proceed(zero, zero.endpoint[0], zero.ports)
    assert does_not_answer(jobs) == "a"
    done = carry_out(jobs)
    assert {each.generation.slot_range.switch for each in only(done, Remove)} == {"a", "b"}
    assert [each.switch for each in _there(zero)] == ["c", "b"]
    assert (zero.job.state, free(jobs)) == (JobState.running, 3 * 64 - 2 * 8)


def test_a_job_survives_a_restart_of_the_controller() -> None:
    jobs = book(switch("a"), switch("b"), switch("c"))
    members = _join(jobs)
    jobs.switch_down(_switches(members[0].job)[0], "gone")
    _report(jobs, members, [[7, 9], [6, 9]])
    carry_out(jobs)
    job = members[0].job
    loaded = job_codec.load(json.loads(json.dumps(job_codec.dump(job, 0.0))), 0.0)
    assert loaded.placement == job.placement
    assert loaded.stripes == 2
    assert loaded.generation is not None
    assert loaded.generation.known_as == job.id
    for part, mine in zip(loaded.generation.parts, generation(members[0]).parts, strict=True):
        assert (part.entry, part.first_seq, part.first_packet) == (
            mine.entry,
            mine.first_seq,
            mine.first_packet,
        )
    for rank, member in enumerate(members):
        assert loaded.members[rank].ports == member.ports
        assert member.admission is not None
        assert loaded.members[rank].admission == member.admission
    again = book(switch("a"), switch("b"), switch("c"))
    again.restore(loaded, 0.0)
    assert set(again.table.ids) == set(jobs.table.ids)


def test_a_stripe_moves_at_a_pause_and_every_range_is_freed_once() -> None:
    """As where a switch has room only after another was drained."""
    jobs = book(switch("a"), switch("b"), switch("c"))
    full = create(jobs, "full", switch="c", slots=64)
    members = _join(jobs)
    job = members[0].job
    gone, stays = job.switches
    assert {gone, stays} == {"a", "b"}
    jobs.set_draining(gone, True, "admin")
    assert job.failover is None
    jobs.evict(full, "admin")
    assert job.change is not None
    for member in members:
        jobs.changes.progress(member, 3)
    for member in members:
        jobs.changes.proceed(member, "10.0.0.1", [7000 + member.rank, 7100 + member.rank])
    carry_out(jobs)
    assert job.state is JobState.running
    assert set(job.switches) == {"c", stays}
    for member in members:
        jobs.leave(member)
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs)) == ([], 192)

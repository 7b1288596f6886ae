"""The life of jobs on a tree of switches, from the book's point of view."""

from __future__ import annotations

import dataclasses
import ipaddress
import random
from typing import Any

import pytest

from switchagg.control import job_codec
from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.effects import Fence, Install, Remove
from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.records import JobSpec, JobState, JoinRequest, MemberState, OnLoss, Quota, Tenant
from switchagg.control.jobs.scheduler import OVERTAKES
from switchagg.control.jobs.switch_resources import SwitchResources
from switchagg.errors import AdmissionError, SwitchError
from switchagg.rules.slots import ParentEntry
from switchagg.rules.switch import Capacity, Reconciled
from switchagg.rules.wiring import Attachment
from tests.seeds import seed_of_this_run
from tests.switchagg.control.job_books import ME, answers, book, carry_out, free, only, told

FREE = 4 * 64  # slots on all switches of `racks`


def switch(name: str, parent: str | None = None, hosts: str = "", **more: Any) -> SwitchResources:
    networks = tuple(ipaddress.IPv4Network(each) for each in filter(None, hosts.split(",")))
    number = ["root", "a", "b", "c", "alone"].index(name) + 1
    return SwitchResources(
        name,
        Capacity(64, 364, 1 << 20, **more),
        slots=8,
        attachment=Attachment(parent, networks),
        address=(f"10.9.0.{number}", 48879),
    )


def rooms() -> list[SwitchResources]:
    return [switch("root"), *(switch("abc"[n], "root", f"10.0.{n}.0/24") for n in range(3))]


def racks(**options: Any) -> JobBook:
    """A root, and leaves a, b and c with the workers of 10.0.0.0/24, 10.0.1.0/24 and 10.0.2.0/24."""
    return book(*rooms(), **options)


def ask(rank: int, world_size: int, rack: int, **options: Any) -> JoinRequest:
    return JoinRequest(rank, world_size, f"10.0.{rack}.1", 4000 + rank, **options)


def run(jobs: JobBook, *at: int, name: str = "j", **options: Any) -> list[Member]:
    """A job whose rank r is in rack at[r], and runs."""
    members = [jobs.join(ME, name, ask(rank, len(at), rack, **options), 0.0) for rank, rack in enumerate(at)]
    carry_out(jobs)
    assert all(member.admission for member in members)
    return members


def generation(job: Job) -> Generation:
    assert job.generation is not None
    return job.generation


def switches(job: Job) -> tuple[str, ...]:
    assert job.placement is not None
    return job.placement.switches


def test_entries_of_a_job_on_a_tree() -> None:
    jobs = racks()
    zero, one, two = run(jobs, 1, 0, 1)
    job = zero.job
    root, a, b = generation(job).parts
    assert [part.slot_range.switch for part in (root, a, b)] == ["root", "a", "b"]
    assert {part.id for part in (root, a, b)} == {job.id}
    assert {part.first_seq for part in (root, a, b)} == {root.first_seq}
    assert [(each.bit, each.ip, each.port) for each in root.entry.workers] == [
        (0, "10.9.0.2", 48879),
        (1, "10.9.0.3", 48879),
    ]
    assert root.entry.parent is None
    for leaf, entry in zip((a, b), root.entry.workers, strict=True):
        assert leaf.entry.parent == ParentEntry(
            "10.9.0.1", 48879, entry.token, root.slot_range.base, root.entry.result_token
        )
    assert [(each.bit, each.address, each.token) for each in b.entry.workers] == [
        (0, ("10.0.1.1", 4000), zero.token),
        (1, ("10.0.1.1", 4002), two.token),
    ]
    assert [each.address for each in a.entry.workers] == [("10.0.0.1", 4001)]
    secrets = [
        *(each.token for part in (root, a, b) for each in part.entry.workers),
        *(part.entry.result_token for part in (root, a, b)),
    ]
    assert len(set(secrets)) == len(secrets)
    for rank, (member, leaf, bit) in enumerate(((zero, b, 0), (one, a, 0), (two, b, 1))):
        told = member.admission
        assert told is not None
        assert (told.switch, told.worker_bit, told.senders) == (leaf.slot_range.switch, bit, len(leaf.places))
        assert (told.rank, told.world_size, told.places) == (rank, 3, (0, 1, 2))
        assert (told.token, told.result_token) == (member.token, leaf.entry.result_token)
        assert (told.base, told.slots, told.words) == (
            leaf.slot_range.base,
            leaf.slot_range.slots,
            leaf.slot_range.words,
        )


def test_it_opens_when_every_switch_has_it() -> None:
    jobs = racks()
    members = [jobs.join(ME, "j", ask(rank, 2, rank), 0.0) for rank in range(2)]
    installs = only(jobs.poll(), Install)
    job = members[0].job
    assert [install.generation.slot_range.switch for install in installs] == ["root", "a", "b"]
    for install in installs:
        assert job.state is JobState.opening
        assert len(install.generation.pending) == 8
        for packet in list(install.generation.pending.values()):
            install.generation.echoed(packet)
        assert jobs.table.on_switch(install.generation.slot_range.switch) == []
        jobs.opened(job, install.generation, 0.0)
        assert jobs.table.on_switch(install.generation.slot_range.switch) == [install.generation]
    assert job.state is JobState.running
    assert all(member.admission for member in members)


@pytest.mark.parametrize("failing", range(3))
def test_a_switch_that_does_not_take_it(failing: int) -> None:
    jobs = racks()
    members = [jobs.join(ME, "j", ask(rank, 2, rank), 0.0) for rank in range(2)]
    installs = only(jobs.poll(), Install)
    for number, install in enumerate(installs):
        if number == failing:
            jobs.opening_failed(install.job, install.generation, SwitchError("table full"))
        else:
            jobs.opened(install.job, install.generation, 0.0)
    name = installs[failing].generation.slot_range.switch
    for member in members:
        assert f"switch {name!r} did not take job 'j': table full" in str(member.refusal)
    assert only(jobs.poll(), Remove) == [Remove(install.generation) for install in installs]
    assert (jobs.table.jobs(), free(jobs), jobs.table.ids) == ([], FREE, {})


def test_a_switch_that_restarts_while_the_job_opens() -> None:
    jobs = racks()
    members = [jobs.join(ME, "j", ask(rank, 2, rank), 0.0) for rank in range(2)]
    root, a, _ = only(jobs.poll(), Install)
    jobs.opened(root.job, root.generation, 0.0)
    jobs.opened(a.job, a.generation, 0.0)
    jobs.switch_down("a", "gone")
    jobs.switch_up("a", Reconciled(missing=(a.generation.id,)))
    assert "switch 'a' did not take job 'j': it restarted" in str(members[0].refusal)
    assert free(jobs) == FREE


def test_one_rack_is_one_leaf() -> None:
    jobs = racks()
    zero, _ = run(jobs, 1, 1)
    assert switches(zero.job) == ("b",)
    assert generation(zero.job).entry.parent is None
    assert free(jobs) == FREE - 8


def test_an_order_waits_for_its_members() -> None:
    jobs = racks()
    job = jobs.create(ME, JobSpec("j", 2), 0.0)
    assert (job.state, job.placement, jobs.scheduler.queue()) == (JobState.created, None, [])
    jobs.join(ME, "j", ask(0, 2, 0), 0.0)
    assert (job.state, job.placement) == (JobState.joining, None)
    jobs.join(ME, "j", ask(1, 2, 2), 0.0)
    carry_out(jobs)
    assert (job.state, switches(job)) == (JobState.running, ("root", "a", "c"))


def test_an_order_that_names_its_switch() -> None:
    jobs = racks()
    leaf = jobs.create(ME, JobSpec("leaf", 2, switch="b"), 0.0)
    assert (leaf.state, switches(leaf)) == (JobState.created, ("b",))
    with pytest.raises(
        AdmissionError, match=r"rank 0 at 10.0.0.1 attaches to no switch of those of switch 'b'"
    ):
        jobs.join(ME, "leaf", ask(0, 2, 0), 0.0)
    jobs.join(ME, "leaf", ask(0, 2, 1), 0.0)
    jobs.join(ME, "leaf", ask(1, 2, 1), 0.0)
    below = jobs.create(ME, JobSpec("below", 2, switch="root"), 0.0)
    assert (below.state, below.placement) == (JobState.created, None)
    jobs.join(ME, "below", ask(0, 2, 1), 0.0)
    jobs.join(ME, "below", ask(1, 2, 2), 0.0)
    carry_out(jobs)
    assert (leaf.state, switches(leaf)) == (JobState.running, ("b",))
    assert (below.state, switches(below)) == (JobState.running, ("root", "b", "c"))


def test_a_members_own_wish() -> None:
    jobs = book(
        switch("root"),
        *(dataclasses.replace(switch(name, "root"), attachment=Attachment("root")) for name in "ab"),
    )
    wishes = ["b", "a", "b"]
    for rank, wish in enumerate(wishes):
        jobs.join(ME, "j", JoinRequest(rank, 3, "127.0.0.1", 4000 + rank, switch=wish), 0.0)
    carry_out(jobs)
    (job,) = jobs.table.jobs()
    assert [leaf.places for leaf in generation(job).leaves] == [(1,), (0, 2)]
    with pytest.raises(AdmissionError, match="rank 0 asks for switch 'x'; accepted: root, a, b"):
        jobs.join(ME, "k", JoinRequest(0, 3, "127.0.0.1", 4000, switch="x"), 0.0)
    with pytest.raises(AdmissionError, match="attaches to no switch, and asks for switch 'root'"):
        jobs.join(ME, "k", JoinRequest(0, 3, "127.0.0.1", 4000, switch="root"), 0.0)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("10.7.0.1", "rank 1 at 10.7.0.1 attaches to no switch"),
        ("10.5.0.1", "rank 1 attaches to 'alone', which is not below switch 'root'"),
    ],
)
def test_a_rank_that_cannot_be_in(address: str, message: str) -> None:
    jobs = book(*rooms(), switch("alone", None, "10.5.0.0/16"))
    jobs.join(ME, "j", ask(0, 3, 0), 0.0)
    before = jobs.table.jobs()[0].members.copy()
    with pytest.raises(AdmissionError, match=message) as error:
        jobs.join(ME, "j", JoinRequest(1, 3, address, 5000), 0.0)
    assert error.value.code == "no_switch"
    assert jobs.table.jobs()[0].members == before
    jobs.join(ME, "j", ask(1, 3, 1), 0.0)
    jobs.join(ME, "j", ask(2, 3, 2), 0.0)
    carry_out(jobs)
    assert jobs.table.jobs()[0].state is JobState.running


def test_the_thirty_third_on_a_leaf() -> None:
    jobs = racks()
    for rank in range(32):
        jobs.join(ME, "j", ask(rank, 64, 0), 0.0)
    with pytest.raises(AdmissionError, match="33 workers attach to switch 'a', which takes 32") as error:
        jobs.join(ME, "j", ask(32, 64, 0), 0.0)
    assert error.value.code == "world_size"
    for rank in range(32, 64):
        jobs.join(ME, "j", ask(rank, 64, 1), 0.0)
    carry_out(jobs)
    (job,) = jobs.table.jobs()
    assert (job.state, [len(leaf.places) for leaf in generation(job).leaves]) == (JobState.running, [32, 32])
    with pytest.raises(AdmissionError, match=r"world_size is 97; accepted: 1..96"):
        jobs.join(ME, "k", ask(0, 97, 0), 0.0)


def test_a_tree_that_has_no_room_is_waited_for() -> None:
    jobs = racks()
    first = jobs.create(ME, JobSpec("first", 1, slots=64, switch="a"), 0.0)
    for rank in range(2):
        jobs.join(ME, "j", ask(rank, 2, rank), 0.0)
    (job,) = jobs.scheduler.queue()
    assert jobs.pool.obstacles(jobs.candidates.of_job(job)).startswith(
        "8 slots asked for; 0 of the 64 of switch 'a'"
    )
    assert free(jobs) == FREE - 64
    small = jobs.join(
        ME, "small", ask(0, 1, 2), 0.0
    )  # it could not use c alone, but its tree does not need it
    assert small.job.placement is not None
    assert job.overtaken == 0
    for number in range(OVERTAKES):  # on b, for which that one waits too
        assert jobs.join(ME, f"b{number}", ask(0, 1, 1, slots=2), 0.0).job.state is JobState.opening
    assert job.overtaken == OVERTAKES
    kept_out = jobs.join(ME, "kept out", ask(0, 1, 1, slots=2), 0.0)
    assert kept_out.job.state is JobState.queued
    jobs.evict(first, "me")
    carry_out(jobs)
    assert (job.state, kept_out.job.state) == (JobState.running, JobState.running)
    assert switches(job) == ("root", "a", "b")


def test_a_root_that_is_down_is_named() -> None:
    jobs = racks()
    jobs.switch_down("root", "no answer")
    member = jobs.join(ME, "j", ask(0, 2, 0, timeout=5.0), 0.0)
    jobs.join(ME, "j", ask(1, 2, 1, timeout=5.0), 0.0)
    jobs.tick(6.0)
    assert "switch 'root' is down: no answer" in str(member.refusal)
    assert free(jobs) == FREE


def test_quotas_count_every_switch() -> None:
    jobs = racks()
    poor = Tenant("poor", quota=Quota(slots=16))
    for rank in range(2):
        jobs.join(poor, "j", ask(rank, 2, 0), 0.0)
    carry_out(jobs)
    jobs.join(poor, "k", ask(0, 2, 0), 0.0)
    with pytest.raises(AdmissionError, match=r"24 slots .* asked for; tenant 'poor' has 8"):
        jobs.join(poor, "k", ask(1, 2, 1), 0.0)
    rich = Tenant("rich", quota=Quota(slots=24))
    for rank in range(2):
        jobs.join(rich, "j", ask(rank, 2, rank), 0.0)
    carry_out(jobs)
    with pytest.raises(AdmissionError, match="tenant 'rich' has 24"):
        jobs.join(rich, "k", ask(0, 2, 0), 0.0)


def pause(jobs: JobBook, *members: Member) -> list[Any]:
    done = []
    for member in members:
        jobs.changes.progress(member, 3)
    done += carry_out(jobs)
    for member in members:
        jobs.changes.proceed(member, member.endpoint[0], member.ports)
    return done + carry_out(jobs)


def test_a_lost_worker_is_shut_out_at_its_leaf_and_the_others_go_on() -> None:
    jobs = racks()
    zero, one, two, three = run(jobs, 0, 1, 1, 2, on_loss=OnLoss.shrink)
    root, a, b, c = generation(zero.job).parts
    jobs.lost([two], "its process ended")
    assert only(jobs.poll(), Fence) == [Fence(b, 0b10)]
    assert (root.fenced, b.fenced) == (0, 0b10)
    done = pause(jobs, zero, one, three)
    assert only(done, Remove) == [Remove(part) for part in (root, a, b, c)]
    assert [leaf.places for leaf in generation(zero.job).leaves] == [(0,), (1,), (3,)]
    assert answers(done).keys() == {0, 1, 3}
    jobs.lost([one, three], "its process ended")
    carry_out(jobs)
    pause(jobs, zero)
    assert switches(zero.job) == ("a",)  # who is left is in one rack
    assert generation(zero.job).leaves == ()
    assert free(jobs) == FREE - 8
    back = jobs.join(ME, "j", ask(3, 4, 2), 1.0)
    carry_out(jobs)
    pause(jobs, zero)
    assert switches(zero.job) == ("root", "a", "c")
    assert back.admission is not None
    assert (back.admission.rank, back.admission.switch) == (1, "c")
    for member in (zero, back):
        jobs.leave(member)
    carry_out(jobs)
    assert (jobs.table.jobs(), free(jobs)) == ([], FREE)


def test_a_job_goes_on_when_its_lost_leaf_is_back_empty() -> None:
    jobs = racks()
    members = run(jobs, 0, 1)
    job, before = members[0].job, switches(members[0].job)
    jobs.switch_down("b", "gone")
    jobs.switch_up("b", Reconciled(missing=(job.id,)))
    for member in members:
        assert member.admission is not None
        jobs.failovers.report(member, member.admission.token, [3], "10.0.9.1", [4100 + member.rank])
    done = carry_out(jobs)
    assert len(only(done, Remove)) == len(only(done, Install)) == 3
    assert (job.state, switches(job)) == (JobState.running, before)


def test_a_lost_leaf_ends_a_job_that_a_member_has_left_when_it_is_back_empty() -> None:
    jobs = racks()
    members = run(jobs, 0, 1, 1)
    job = members[0].job
    jobs.leave(members[2])
    carry_out(jobs)
    jobs.switch_down("b", "gone")
    assert job.state is JobState.running
    jobs.switch_up("b", Reconciled(missing=(job.id,)))
    done = carry_out(jobs)
    assert job.state is JobState.failed
    assert told(done, members[0]) == [
        {"event": "switch", "why": "switch 'b' restarted, and what its slots held is lost", "job": job.id}
    ]
    assert len(only(done, Remove)) == 3
    assert free(jobs) == FREE


def test_a_leaf_that_takes_anybody_is_drained() -> None:
    jobs = book(
        switch("root"),
        *(dataclasses.replace(switch(name, "root"), attachment=Attachment("root")) for name in "abc"),
    )
    members = [jobs.join(ME, "j", ask(rank, 40, 0), 0.0) for rank in range(40)]
    carry_out(jobs)
    job = members[0].job
    assert switches(job) == ("root", "a", "b", "c")
    jobs.set_draining("b", True, "me")
    (asked,) = told(jobs.poll(), members[0])
    assert (asked["event"], asked["why"]) == ("failover", "switch 'b' is being drained by me")
    for member in members:
        assert member.admission is not None
        jobs.failovers.report(member, member.admission.token, [3], member.endpoint[0], member.ports)
    carry_out(jobs)
    assert (job.state, switches(job)) == (JobState.running, ("root", "a", "c"))
    assert free(jobs) == FREE - 3 * 8
    assert jobs.pool.switches["b"].memory_used == 0


def test_a_leaf_with_hosts_of_its_own_cannot_be_left() -> None:
    jobs = racks()
    members = run(jobs, 0, 1)
    jobs.set_draining("a", True, "me")
    assert members[0].job.change is None
    pause(jobs, *members)  # for whatever reason: it stays where its members are
    assert switches(members[0].job) == ("root", "a", "b")
    assert members[0].job.state is JobState.running


def test_a_leaf_that_is_down_when_the_next_generation_is_made() -> None:
    jobs = racks()
    zero, one = run(jobs, 0, 1, on_loss=OnLoss.shrink)[:2]
    jobs.switch_down("b", "gone")
    pause(jobs, zero, one)
    assert zero.job.state is JobState.moving
    assert free(jobs) == FREE - 3 * 8  # what it had it keeps
    jobs.switch_up("b", Reconciled())
    carry_out(jobs)
    assert zero.job.state is JobState.running


def test_a_member_that_comes_from_nowhere_in_the_next_generation() -> None:
    jobs = racks()
    zero, one = run(jobs, 0, 1)
    for member in (zero, one):
        jobs.changes.progress(member, 0)
    with pytest.raises(AdmissionError, match=r"rank 0 at 10.7.0.1 attaches to no switch"):
        jobs.changes.proceed(zero, "10.7.0.1", [5000])
    jobs.changes.proceed(zero, "10.0.2.9", [5000])  # another rack is fine
    jobs.changes.proceed(one, one.endpoint[0], one.ports)
    carry_out(jobs)
    assert switches(zero.job) == ("root", "b", "c")


def test_a_restart_of_the_controller() -> None:
    jobs = racks()
    members = run(jobs, 0, 1, 1)
    job = members[0].job
    jobs.lost([], "")
    ordered = jobs.create(ME, JobSpec("ordered", 2), 0.0)
    documents = [job_codec.dump(each, 100.0) for each in (job, ordered)]
    again = racks(up=False)
    for document in documents:
        again.restore(job_codec.load(document, 100.0), 0.0)
    copy, waiting = again.table.find("me", "j"), again.table.find("me", "ordered")
    assert copy is not None
    assert waiting is not None
    assert copy.placement == job.placement
    for mine, theirs in zip(generation(copy).parts, generation(job).parts, strict=True):
        assert (mine.entry, mine.places, mine.senders, mine.slot_range) == (
            theirs.entry,
            theirs.places,
            theirs.senders,
            theirs.slot_range,
        )
        assert again.table.on_switch(mine.slot_range.switch) == [mine]
    assert free(again) == FREE - 3 * 8
    assert copy.members[2].admission == members[2].admission
    assert (waiting.state, again.scheduler.queue()) == (JobState.created, [])
    for saved in documents[0]["members"]:
        assert saved["admission"].pop("tree") == ("root", "a", "b")  # as of an earlier controller
    smaller = book(*rooms()[:3], up=False)
    smaller.restore(job_codec.load(documents[0], 100.0), 0.0)
    copy = smaller.table.find("me", "j")
    assert copy is not None  # c was not needed
    assert copy.members[2].admission == members[2].admission
    none = book(*rooms()[:2], up=False)
    none.restore(job_codec.load(documents[0], 100.0), 0.0)
    assert none.table.find("me", "j") is None
    assert free(none) == 2 * 64


def test_everybody_gone_leaves_nothing() -> None:
    jobs = racks()
    for end in ("leave", "lost", "evict", "drain"):
        members = run(jobs, 0, 1, 2, name=end)
        job = members[0].job
        match end:
            case "leave":
                for member in members:
                    jobs.leave(member)
            case "lost":
                jobs.lost(members, "gone")
            case "evict":
                jobs.evict(job, "me")
            case _:
                jobs.drain(job, "me")
                for member in members:
                    jobs.leave(member)
        assert len(only(carry_out(jobs), Remove)) == 4
        assert (free(jobs), jobs.table.ids) == (FREE, {})
        assert all(member.state is not MemberState.joined for member in members) or end == "evict"


def test_random_jobs_on_trees_leave_nothing_behind() -> None:
    draw = random.Random(seed_of_this_run())
    jobs = racks()
    names = list(jobs.pool.switches)
    spread = 0
    now = 0.0
    for _ in range(2500):
        now += draw.random()
        name = f"j{draw.randrange(8)}"
        try:
            match draw.choices(range(8), weights=[2, 8, 8, 8, 1, 2, 2, 1])[0]:
                case 0:
                    jobs.create(
                        ME,
                        JobSpec(
                            name,
                            draw.randint(1, 4),
                            slots=draw.choice([None, 16, 32]),
                            on_loss=draw.choice(list(OnLoss)),
                            switch=draw.choice([None, None, *names]),
                        ),
                        now,
                    )
                case 1 | 2 | 3:
                    job = jobs.table.find("me", name)
                    size = draw.randint(1, 4) if job is None else job.world_size
                    asked = ask(draw.randrange(size), size, draw.randrange(3), timeout=20.0)
                    jobs.join(ME, name, asked, now)
                case 4:
                    there = [each for job in jobs.table.jobs() for each in job.joined() if job.name == name]
                    if there:
                        jobs.lost([draw.choice(there)], "its process ended")
                case 5:
                    job = jobs.table.find("me", name)
                    if job is not None and job.state in (JobState.running, JobState.moving):
                        pause(jobs, *(each for each in job.joined() if each.admission is not None))
                case 6:
                    switch_name = draw.choice(names)
                    if jobs.pool.switches[switch_name].draining:
                        jobs.set_draining(switch_name, False, "me")
                    elif jobs.pool.switches[switch_name].up and draw.random() < 0.4:
                        if draw.random() < 0.5:
                            jobs.set_draining(switch_name, True, "me")
                        else:
                            jobs.switch_down(switch_name, "me")
                    else:
                        lost = [each.id for each in jobs.table.on_switch(switch_name) if draw.random() < 0.3]
                        jobs.switch_up(switch_name, Reconciled(missing=tuple(lost)))
                case _:
                    job = jobs.table.find("me", name)
                    if job is not None and draw.random() < 0.3:
                        jobs.evict(job, "me")
        except AdmissionError:
            pass
        jobs.tick(now)
        for member in (each for job in jobs.table.jobs() for each in job.joined()):
            jobs.heard(member.cookie, now)
        spread += sum(bool(install.generation.leaves) for install in only(carry_out(jobs), Install))
        trees = [job.placement for job in jobs.table.jobs()] + [
            job.change.target for job in jobs.table.jobs() if job.change is not None
        ]
        held = {each for tree in trees if tree is not None for each in tree.ranges}
        assert held == {taken for each in jobs.pool.switches.values() for taken in each.ranges.values()}
        for job in jobs.table.jobs():
            if job.generation is not None and job.placement is not None:
                assert tuple(part.slot_range for part in job.generation.parts) == job.placement.ranges
                seated = [
                    rank for part in job.generation.parts for rank in part.senders if isinstance(rank, int)
                ]
                assert sorted(seated) == sorted(job.generation.places)
    assert spread > 10
    for name in names:
        jobs.switch_up(name, Reconciled())
    for _ in range(2):  # the second time those that have failed, whose members have not gone
        for job in jobs.table.jobs():
            jobs.evict(job, "me")
    assert (jobs.table.jobs(), free(jobs), jobs.table.ids, jobs.table.cookies) == ([], FREE, {}, {})

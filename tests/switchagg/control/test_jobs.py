"""The life cycle of jobs, step by step, with no switch, socket or clock."""

from __future__ import annotations

import itertools

import pytest

from switchagg.control.drivers.base import Capacity
from switchagg.control.jobs import (
    Action,
    Install,
    Job,
    JobBook,
    Member,
    Remove,
    Settle,
)
from switchagg.control.records import JobState, JoinRequest, MemberState
from switchagg.errors import AdmissionError, SwitchError, UsageError
from switchagg.wire import Header, Op


def book(slots: int = 64, words: int = 364, memory: int = 1 << 20, **options: object) -> JobBook:
    options.setdefault("slots", 8)
    return JobBook(Capacity(slots, words, memory), **options)  # type: ignore[arg-type]


def request(rank: int, world_size: int = 2, **options: object) -> JoinRequest:
    return JoinRequest(rank, world_size, "10.0.0.1", 4000 + rank, **options)  # type: ignore[arg-type]


def carry_out(jobs: JobBook) -> list[Action]:
    """A switch that does everything at once."""
    done = []
    while actions := jobs.poll():
        for action in actions:
            done.append(action)
            if isinstance(action, Install):
                for packet in action.job.pending_inits():
                    action.job.echoed(packet)
                jobs.opened(action.job)
    return done


def run(jobs: JobBook, name: str = "a", world_size: int = 2, **options: object) -> list[Member]:
    """A job that runs."""
    members = [jobs.join(name, request(rank, world_size, **options), 0.0) for rank in range(world_size)]
    carry_out(jobs)
    assert all(member.admission for member in members)
    return members


def refused(jobs: JobBook, name: str, asked: JoinRequest) -> AdmissionError:
    before = [(job.name, job.state, sorted(job.members)) for job in jobs.jobs()]
    with pytest.raises(AdmissionError) as error:
        jobs.join(name, asked, 0.0)
    assert [(job.name, job.state, sorted(job.members)) for job in jobs.jobs()] == before
    assert jobs.poll() == []
    return error.value


def token(member: Member) -> int:
    assert member.admission is not None
    return member.admission.token


def test_the_last_rank_opens_the_job() -> None:
    jobs = book()
    one = jobs.join("a", request(1), 0.0)
    assert jobs.poll() == []
    assert (one.job.state, one.job.missing) == (JobState.joining, [0])
    zero = jobs.join("a", request(0), 1.0)
    (action,) = jobs.poll()
    assert isinstance(action, Install)
    entry = action.job.entry
    assert entry is not None
    assert (entry.base, entry.slots, entry.words, entry.touch) == (0, 8, 352, True)
    assert [(w.bit, w.ip, w.port) for w in entry.workers] == [(0, "10.0.0.1", 4000), (1, "10.0.0.1", 4001)]
    tokens = [entry.result_token, *(worker.token for worker in entry.workers)]
    assert len(set(tokens)) == 3
    assert 0 not in tokens

    packets = action.job.pending_inits()
    assert len(packets) == 8
    action.job.echoed(b"nonsense")
    action.job.echoed(packets[0][:-1] + b"\xff")
    assert len(action.job.pending_inits()) == 8
    for packet in packets[:5]:
        action.job.echoed(packet)
        action.job.echoed(packet)
    assert action.job.pending_inits() == packets[5:]
    assert zero.admission is None
    for packet in packets[5:]:
        action.job.echoed(packet)
    jobs.opened(action.job)
    assert jobs.poll() == [Settle(one), Settle(zero)]
    assert action.job.state is JobState.running
    assert zero.admission is not None
    assert one.admission is not None
    assert (zero.admission.token, one.admission.token) == tuple(tokens[1:])
    assert (one.admission.worker_bit, one.admission.policy.block, one.admission.policy.dense) == (
        1,
        64,
        False,
    )


@pytest.mark.parametrize("first_seq", [0, 1, 7, 8, 12345, 2**32 - 1, 2**32 - 8, 2**32 - 5])
def test_inits_make_exactly_the_first_packet_of_each_slot_fresh(first_seq: int) -> None:
    numbers = itertools.chain([11, 12, 13, 14, 15, 16, first_seq], itertools.count(100))
    jobs = book(draw=lambda: next(numbers))
    run(jobs, "other", slots=16)  # takes 11 to 14
    jobs.join("a", request(0), 0.0)
    jobs.join("a", request(1), 0.0)
    (job,) = [job for job in jobs.jobs() if job.name == "a"]
    entry = job.entry
    assert entry is not None
    assert job.first_seq == first_seq
    seqs = {}
    for packet in job.pending_inits():
        header = Header.unpack(packet)
        assert (header.op, header.flags, header.job, header.reply, len(packet)) == (
            Op.INIT,
            0,
            entry.job,
            0,
            16,
        )
        seqs[header.slot] = header.seq
    assert set(seqs) == set(range(entry.base, entry.base + entry.slots))
    for position in range(entry.slots):
        seq = (first_seq + position) % 2**32
        assert seqs[entry.base + seq % entry.slots] == (seq - entry.slots) % 2**32


def test_sequence_numbers_are_drawn() -> None:
    numbers = iter(
        [5, 0, 5, 6, 2**32 - 3, 0, 7]
    )  # tokens 5 and 6, the first seq, result token 7: no 0, none twice
    jobs = book(draw=lambda: next(numbers))
    members = run(jobs)
    admissions = [member.admission for member in members]
    assert [a and (a.token, a.result_token, a.first_seq) for a in admissions] == [
        (5, 7, 2**32 - 3),
        (6, 7, 2**32 - 3),
    ]
    assert next(numbers, None) is None


def test_everybody_leaves_and_everything_is_free() -> None:
    jobs = book()
    zero, one = run(jobs)
    jobs.leave("a", 0, token(zero))
    assert (zero.job.state, zero.state) == (JobState.running, MemberState.left)
    jobs.leave("a", 0, token(zero))  # again: nothing
    jobs.lost(zero)  # its connection closes after the leave: nothing
    assert zero.state is MemberState.left
    assert jobs.poll() == []
    jobs.leave("a", 1, token(one))
    assert jobs.poll() == [Remove(one.job)]
    assert one.job.state is JobState.ended
    assert jobs.jobs() == []
    assert (jobs.allocator.free_slots, jobs.memory_used) == (64, 0)
    again = run(jobs)
    assert again[0].job.id != one.job.id


def test_a_lost_rank_fails_the_job_until_all_are_gone() -> None:
    jobs = book()
    zero, one = run(jobs)
    jobs.lost(one)
    assert (one.job.state, one.job.ranks(MemberState.lost)) == (JobState.failed, [1])
    jobs.leave("a", 0, token(zero))
    assert jobs.poll() == [Remove(one.job)]
    assert jobs.jobs() == []


def test_leave_needs_the_token() -> None:
    jobs = book()
    zero, one = run(jobs)
    for rank, given, code in ((0, token(one), "wrong_token"), (0, 0, "wrong_token"), (2, 0, "not_found")):
        with pytest.raises(AdmissionError) as error:
            jobs.leave("a", rank, given)
        assert error.value.code == code
    with pytest.raises(AdmissionError, match="no job 'b' with a rank 0"):
        jobs.leave("b", 0, token(zero))
    assert zero.state is MemberState.joined
    waiting = jobs.join("c", request(0), 0.0)
    with pytest.raises(AdmissionError, match="no job 'c' with a rank 0 is running"):
        jobs.leave("c", 0, waiting.token)


def test_a_rank_that_waits_and_is_lost_can_join_again() -> None:
    jobs = book()
    zero = jobs.join("a", request(0, words=64), 0.0)
    jobs.lost(zero)
    assert jobs.jobs() == []
    jobs.lost(zero)
    run(jobs, words=128)


def test_who_left_while_joining_no_longer_decides() -> None:
    jobs = book()
    first = jobs.join("a", request(0, 3, words=64), 0.0)
    jobs.join("a", request(1, 3), 0.0)
    jobs.lost(first)
    jobs.join("a", request(0, 3, words=128), 0.0)
    last = jobs.join("a", request(2, 3), 0.0)
    carry_out(jobs)
    assert last.admission is not None
    assert last.admission.words == 128


def test_a_join_times_out_and_names_who_is_missing() -> None:
    jobs = book()
    zero = jobs.join("a", request(0, 4, timeout=10.0), 0.0)
    two = jobs.join("a", request(2, 4, timeout=2.5), 1.0)
    jobs.expire(3.4)
    assert jobs.poll() == []
    jobs.expire(3.5)
    assert jobs.poll() == [Settle(two)]
    assert two.refusal is not None
    assert two.refusal.code == "join_timeout"
    assert "ranks 1, 3 of job 'a' did not join within 2.5 seconds (2 of 4 were there)" in str(two.refusal)
    assert zero.job.missing == [1, 2, 3]
    jobs.join("a", request(2, 4), 4.0)
    jobs.expire(10.0)
    assert jobs.poll() == [Settle(zero)]
    assert "ranks 1, 3" in str(zero.refusal)
    jobs.expire(1e9)
    assert len(jobs.poll()) == 1
    assert jobs.jobs() == []


def test_a_rank_is_taken_until_it_is_gone() -> None:
    jobs = book()
    jobs.join("a", request(0), 0.0)
    error = refused(jobs, "a", request(0))
    assert error.code == "rank_taken"
    assert "rank 0 of job 'a' is taken by 10.0.0.1:4000" in str(error)
    jobs.join("a", request(1), 0.0)
    carry_out(jobs)
    assert refused(jobs, "a", request(0)).code == "rank_taken"
    assert refused(jobs, "a", request(2, 3)).code == "world_size_mismatch"


def test_who_left_joins_the_next_job_of_that_name() -> None:
    jobs = book()
    old = run(jobs)
    jobs.leave("a", 0, token(old[0]))
    zero = jobs.join("a", request(0), 0.0)
    assert refused(jobs, "a", request(0)).code == "rank_taken"
    assert refused(jobs, "a", request(1)).code == "rank_taken"  # the old rank 1 is still there
    jobs.leave("a", 1, token(old[1]))
    assert carry_out(jobs) == [Remove(old[0].job)]
    one = jobs.join("a", request(1), 0.0)
    carry_out(jobs)
    assert zero.job is one.job
    assert one.job.state is JobState.running
    assert one.job is jobs.find("a")
    with pytest.raises(AdmissionError, match="not the token"):
        jobs.leave("a", 1, token(old[1]))


def test_a_lost_rank_comes_back_into_the_next_job() -> None:
    jobs = book()
    old = run(jobs)
    jobs.lost(old[1])
    one = jobs.join("a", request(1), 0.0)
    assert jobs.find("a") is one.job
    assert jobs.find("a", old[0].job.id) is old[0].job
    jobs.leave("a", 0, token(old[0]))
    jobs.join("a", request(0), 0.0)
    carry_out(jobs)
    assert one.job.state is JobState.running
    assert len(jobs.jobs()) == 1


@pytest.mark.parametrize(
    ("first", "second", "code", "said"),
    [
        ({}, {"world_size": 3}, "world_size_mismatch", "has 3 workers; ranks [0] say 2"),
        (
            {"words": 64},
            {"words": 128},
            "settings_mismatch",
            "asks for 128 words in job 'a'; ranks [0] have 64",
        ),
        ({"slots": 16}, {"slots": 8}, "settings_mismatch", "asks for 8 slots in job 'a'; ranks [0] have 16"),
        ({}, {"touch": False}, "settings_mismatch", "touch=False"),
    ],
)
def test_ranks_that_disagree(first: dict[str, int], second: dict[str, int], code: str, said: str) -> None:
    jobs = book()
    jobs.join("a", request(0, **first), 0.0)
    error = refused(jobs, "a", request(1, **second))
    assert (error.code, said in str(error)) == (code, True), error


def test_a_rank_without_an_opinion_takes_the_others() -> None:
    jobs = book()
    jobs.join("a", request(0), 0.0)
    one = jobs.join("a", request(1, words=100, slots=32), 0.0)
    carry_out(jobs)
    assert one.admission is not None
    assert (one.admission.words, one.admission.slots) == (100, 32)


def test_two_ranks_at_one_port() -> None:
    jobs = book()
    jobs.join("a", request(0), 0.0)
    error = refused(jobs, "a", JoinRequest(1, 2, "10.0.0.1", 4000))
    assert error.code == "address_taken"


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"world_size": 33}, "world_size", "world_size is 33; a job has 1..32 workers"),
        ({"world_size": 0}, "world_size", "world_size is 0"),
        ({"rank": 2}, "rank_out_of_range", "rank is 2; with world_size 2 ranks are 0..1"),
        ({"rank": -1}, "rank_out_of_range", "rank is -1"),
        ({"address": "::1"}, "bad_request", "address is '::1'"),
        ({"address": "0.0.0.0"}, "bad_request", "address is 0.0.0.0"),
        ({"port": 0}, "bad_request", "port is 0"),
        ({"port": 65536}, "bad_request", "port is 65536"),
        ({"timeout": 0.0}, "bad_request", "timeout is 0"),
        ({"timeout": float("nan")}, "bad_request", "timeout is nan"),
    ],
)
def test_what_no_job_could_have(asked: dict[str, object], code: str, said: str) -> None:
    values: dict[str, object] = {"rank": 0, "world_size": 2, "address": "10.0.0.1", "port": 4000, **asked}
    with pytest.raises(AdmissionError) as error:
        JoinRequest(**values)  # type: ignore[arg-type]
    assert (error.value.code, said in str(error.value)) == (code, True), error.value


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"words": 365}, "bad_request", "words is 365; accepted: 16..364"),
        ({"words": 15}, "bad_request", "words is 15"),
        ({"slots": 12}, "bad_request", "slots is 12; accepted: a power of two"),
        ({"slots": 1}, "bad_request", "slots is 1; accepted: a power of two, at least 2"),
        ({"slots": 128}, "no_slots", "slots is 128; the switch has 64 in all"),
        ({"slots": 64, "words": 364}, "no_memory", "64 slots of 364 words take 95232 bytes"),
    ],
)
def test_what_this_switch_cannot_give(asked: dict[str, int], code: str, said: str) -> None:
    error = refused(book(memory=90_000), "a", request(0, **asked))
    assert (error.code, said in str(error)) == (code, True), error


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
def test_names(name: str) -> None:
    assert refused(book(), name, request(0)).code == "bad_request"


def test_no_slots_left_refuses_all_ranks_of_the_job() -> None:
    jobs = book(slots=64)
    first = run(jobs, "big", slots=64)
    members = [jobs.join("a", request(rank), 0.0) for rank in range(2)]
    assert carry_out(jobs) == [Settle(member) for member in members]
    for member in members:
        assert member.refusal is not None
        assert member.refusal.code == "no_slots"
    assert [job.name for job in jobs.jobs()] == ["big"]
    for member in first:
        jobs.lost(member)
    run(jobs, "a")


def test_no_memory_left() -> None:
    jobs = book(slots=64, memory=50_000)
    run(jobs, "big", slots=32)
    members = [jobs.join("a", request(rank, slots=8), 0.0) for rank in range(2)]
    carry_out(jobs)
    assert members[0].refusal is not None
    assert members[0].refusal.code == "no_memory"
    assert "of which other jobs have 46080" in str(members[0].refusal)


def test_a_switch_that_refuses() -> None:
    jobs = book()
    members = [jobs.join("a", request(rank), 0.0) for rank in range(2)]
    (install,) = jobs.poll()
    assert isinstance(install, Install)
    jobs.opening_failed(install.job, SwitchError("table full"))
    assert jobs.poll() == [Settle(members[0]), Settle(members[1]), Remove(install.job)]
    assert str(members[1].refusal) == "the switch did not take job 'a': table full"
    assert jobs.allocator.free_slots == 64
    jobs.opened(install.job)
    assert members[0].admission is None


def test_a_rank_lost_while_the_job_opens() -> None:
    jobs = book()
    zero, one = (jobs.join("a", request(rank), 0.0) for rank in range(2))
    (install,) = jobs.poll()
    jobs.lost(one)
    assert isinstance(install, Install)
    jobs.opened(install.job)
    assert zero.job.state is JobState.failed
    jobs.leave("a", 0, token(zero))
    assert jobs.jobs() == []


def test_close_refuses_who_waits_and_ends_what_runs() -> None:
    jobs = book()
    running = run(jobs)
    waiting = jobs.join("b", request(0), 0.0)
    jobs.close()
    assert jobs.poll() == [Remove(running[0].job), Settle(waiting)]
    assert waiting.refusal is not None
    assert waiting.refusal.code == "stopping"
    assert jobs.jobs() == []


def test_defaults_fit_the_switch() -> None:
    small = JobBook(Capacity(slots=600, words=64, memory=1 << 20))
    assert (small.default_words, small.default_slots) == (64, 512)
    ethernet = JobBook(Capacity(slots=65536, words=364, memory=1 << 30))
    assert (ethernet.default_words, ethernet.default_slots) == (352, 512)
    loopback = JobBook(Capacity(slots=65536, words=16000, memory=1 << 30))
    assert (loopback.default_words, loopback.default_slots) == (2032, 128)
    with pytest.raises(UsageError, match="words is 365"):
        JobBook(Capacity(64, 364, 1 << 20), words=365)
    with pytest.raises(UsageError, match="slots is 7"):
        JobBook(Capacity(64, 364, 1 << 20), slots=7)


def test_ids_of_ended_jobs_are_not_given_out_again_soon() -> None:
    jobs = book()
    stays = run(jobs, "stays")[0].job.id
    seen = set()
    for _ in range(500):
        members = run(jobs)
        assert members[0].job.id not in seen
        seen.add(members[0].job.id)
        for member in members:
            jobs.leave("a", member.rank, token(member))
        carry_out(jobs)
    jobs._last_id = 0xFFFF
    assert run(jobs)[0].job.id not in {0, stays}


def test_a_job_of_one_and_of_thirty_two() -> None:
    jobs = book()
    assert run(jobs, "one", 1)[0].job.state is JobState.running
    assert len({token(member) for member in run(jobs, "many", 32)}) == 32


def test_a_described_job_is_found() -> None:
    jobs = book()
    assert jobs.find("a") is None
    job: Job = run(jobs)[0].job
    assert jobs.find("a", job.id) is job
    assert jobs.find("a", job.id + 1) is None

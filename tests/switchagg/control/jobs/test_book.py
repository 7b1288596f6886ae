"""The life cycle of jobs, step by step, with no switch, socket or clock."""

from __future__ import annotations

import itertools

import pytest

from switchagg.control.jobs.effects import AnswerJoin, Install, LogEvent, Remove
from switchagg.control.jobs.job import Job
from switchagg.control.jobs.records import JobState, JoinRequest, MemberState, OnLoss
from switchagg.control.jobs.switch_resources import SwitchResources
from switchagg.errors import AdmissionError, SwitchError, UsageError
from switchagg.rules.switch import Capacity
from switchagg.wire.header import Header, Op
from tests.switchagg.control.job_books import (
    book,
    carry_out,
    doing,
    free,
    generation,
    join,
    leave,
    only,
    refused,
    request,
    run,
    switch,
    token,
    told,
)


def test_the_last_rank_opens_the_job() -> None:
    jobs = book()
    one = join(jobs, "a", request(1), 0.0)
    assert doing(jobs) == []
    assert (one.job.state, one.job.missing) == (JobState.joining, [0])
    zero = join(jobs, "a", request(0), 1.0)
    (effect,) = doing(jobs)
    assert isinstance(effect, Install)
    entry = effect.generation.entry
    assert (entry.base, entry.slots, entry.words, entry.touch) == (0, 8, 352, True)
    assert [(w.bit, w.ip, w.port) for w in entry.workers] == [(0, "10.0.0.1", 4000), (1, "10.0.0.1", 4001)]
    tokens = [entry.result_token, *(worker.token for worker in entry.workers)]
    assert len(set(tokens)) == 3
    assert 0 not in tokens

    packets = list(effect.generation.pending.values())
    assert len(packets) == 8
    effect.generation.echoed(b"nonsense")
    effect.generation.echoed(packets[0][:-1] + b"\xff")
    assert len(effect.generation.pending) == 8
    for packet in packets[:5]:
        effect.generation.echoed(packet)
        effect.generation.echoed(packet)
    assert list(effect.generation.pending.values()) == packets[5:]
    assert zero.admission is None
    for packet in packets[5:]:
        effect.generation.echoed(packet)
    jobs.opened(effect.job, effect.generation, 0.0)
    assert doing(jobs) == [AnswerJoin(zero), AnswerJoin(one)]
    assert effect.job.state is JobState.running
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
    join(jobs, "a", request(0), 0.0)
    join(jobs, "a", request(1), 0.0)
    (job,) = [job for job in jobs.table.jobs() if job.name == "a"]
    assert job.generation is not None
    entry = job.generation.entry
    assert job.generation.first_seq == first_seq
    seqs = {}
    for packet in list(job.generation.pending.values()):
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
    leave(jobs, "a", 0, token(zero))
    assert (zero.job.state, zero.state) == (JobState.running, MemberState.left)
    leave(jobs, "a", 0, token(zero))  # again: nothing
    jobs.lost([zero], "its process ended")  # its connection closes after the leave: nothing
    assert zero.state is MemberState.left
    assert doing(jobs) == []
    there = generation(one)
    leave(jobs, "a", 1, token(one))
    assert doing(jobs) == [Remove(there)]
    assert one.job.state is JobState.ended
    assert jobs.table.jobs() == []
    assert (free(jobs), jobs.pool.switches["s"].memory_used) == (64, 0)
    again = run(jobs)
    assert again[0].job.id != one.job.id


def test_a_lost_rank_fails_the_job_until_all_are_gone() -> None:
    jobs = book()
    zero, one = run(jobs)
    there, job_id = generation(one), one.job.id
    jobs.lost([one], "its process ended")
    assert (one.job.state, one.job.ranks(MemberState.lost)) == (JobState.failed, [1])
    done = jobs.poll()
    assert only(done) == [Remove(there)]  # at once: nothing that comes late changes a slot
    assert (free(jobs), one.job.why) == (64, "rank 1 is lost: its process ended")
    event = {"event": "lost", "job": job_id, "ranks": [1], "why": "its process ended", "on_loss": "fail"}
    assert told(done, zero) == [event]
    assert jobs.table.find("me", "a", job_id) is one.job
    leave(jobs, "a", 0, token(zero))
    assert doing(jobs) == []
    assert jobs.table.jobs() == []


def test_who_left_is_named_to_the_others() -> None:
    jobs = book()
    zero, one, two = run(jobs, world_size=3)
    jobs.leave(one, begun=7, completed=6)
    done = jobs.poll()
    event = {"event": "left", "job": one.job.id, "ranks": [1], "begun": [7], "completed": [6]}
    assert [told(done, member) for member in (zero, one, two)] == [[event], [], [event]]
    assert one.job.state is JobState.running


def test_an_exception_that_ends_a_rank_is_told_to_the_others() -> None:
    jobs = book()
    zero, one = run(jobs)
    jobs.leave(one, 7, why="ValueError: bad batch")
    why = "it ended with ValueError: bad batch"
    counts = {"begun": [7], "completed": [None]}
    event = {"event": "left", "job": one.job.id, "ranks": [1], **counts, "why": why}
    done = jobs.poll()
    assert told(done, zero) == [event]
    assert [each.text for each in only(done, LogEvent)] == [f"rank 1 of job 'a' has failed: {why}"]
    assert (one.state, one.why, one.job.state) == (MemberState.left, why, JobState.running)
    again = {"event": "admitted"}
    jobs.attached(zero, again, 0.0)
    assert told(jobs.poll(), zero) == [again, event]


def test_a_job_that_shrinks_has_lost_a_rank_that_an_exception_ended() -> None:
    jobs = book()
    zero, one = run(jobs, on_loss=OnLoss.shrink)
    jobs.leave(one, 7, why="ValueError: bad batch")
    why = "it ended with ValueError: bad batch"
    assert (one.state, one.why, one.job.state) == (MemberState.lost, why, JobState.moving)
    (event,) = told(jobs.poll(), zero)
    assert (event["event"], event["ranks"], event["why"]) == ("lost", [1], why)


def test_leave_needs_the_token() -> None:
    jobs = book()
    zero, one = run(jobs)
    for rank, given, code in ((0, token(one), "wrong_token"), (0, 0, "wrong_token"), (2, 0, "not_found")):
        with pytest.raises(AdmissionError) as error:
            leave(jobs, "a", rank, given)
        assert error.value.code == code
    with pytest.raises(AdmissionError, match="no job 'b' with a rank 0"):
        leave(jobs, "b", 0, token(zero))
    assert zero.state is MemberState.joined
    waiting = join(jobs, "c", request(0), 0.0)
    with pytest.raises(AdmissionError, match="no job 'c' with a rank 0 is running"):
        leave(jobs, "c", 0, waiting.token)


def test_a_rank_that_waits_and_is_lost_can_join_again() -> None:
    jobs = book()
    zero = join(jobs, "a", request(0, words=64), 0.0)
    jobs.lost([zero], "its process ended")
    assert jobs.table.jobs() == []
    jobs.lost([zero], "its process ended")
    run(jobs, words=128)


def test_who_left_while_joining_no_longer_decides() -> None:
    jobs = book()
    first = join(jobs, "a", request(0, 3, words=64), 0.0)
    join(jobs, "a", request(1, 3), 0.0)
    jobs.lost([first], "its process ended")
    join(jobs, "a", request(0, 3, words=128), 0.0)
    last = join(jobs, "a", request(2, 3), 0.0)
    carry_out(jobs)
    assert last.admission is not None
    assert last.admission.words == 128


def test_a_join_times_out_and_names_who_is_missing() -> None:
    jobs = book()
    zero = join(jobs, "a", request(0, 4, timeout=10.0), 0.0)
    two = join(jobs, "a", request(2, 4, timeout=2.5), 1.0)
    jobs.tick(3.4)
    assert doing(jobs) == []
    jobs.tick(3.5)
    assert doing(jobs) == [AnswerJoin(two)]
    assert two.refusal is not None
    assert two.refusal.code == "join_timeout"
    assert "ranks 1, 3 of job 'a' did not join within 2.5 seconds (2 of 4 were there)" in str(two.refusal)
    assert zero.job.missing == [1, 2, 3]
    join(jobs, "a", request(2, 4), 4.0)
    jobs.tick(10.0)
    assert doing(jobs) == [AnswerJoin(zero)]
    assert "ranks 1, 3" in str(zero.refusal)
    jobs.tick(1e9)
    assert len(doing(jobs)) == 1
    assert jobs.table.jobs() == []


def test_a_rank_is_taken_until_it_is_gone() -> None:
    jobs = book()
    join(jobs, "a", request(0), 0.0)
    error = refused(jobs, "a", request(0))
    assert error.code == "rank_taken"
    assert "rank 0 of job 'a' is taken by 10.0.0.1:4000" in str(error)
    join(jobs, "a", request(1), 0.0)
    carry_out(jobs)
    assert refused(jobs, "a", request(0)).code == "rank_taken"
    assert refused(jobs, "a", request(2, 3)).code == "world_size_mismatch"


def test_who_left_joins_the_next_job_of_that_name() -> None:
    jobs = book()
    old = run(jobs)
    leave(jobs, "a", 0, token(old[0]))
    zero = join(jobs, "a", request(0), 0.0)
    assert refused(jobs, "a", request(0)).code == "rank_taken"
    assert refused(jobs, "a", request(1)).code == "rank_taken"  # the old rank 1 is still there
    there = generation(old[0])
    leave(jobs, "a", 1, token(old[1]))
    assert only(carry_out(jobs)) == [Remove(there)]
    one = join(jobs, "a", request(1), 0.0)
    carry_out(jobs)
    assert zero.job is one.job
    assert one.job.state is JobState.running
    assert one.job is jobs.table.find("me", "a")
    with pytest.raises(AdmissionError, match="not the token"):
        leave(jobs, "a", 1, token(old[1]))


def test_a_lost_rank_comes_back_into_the_next_job() -> None:
    jobs = book()
    old = run(jobs)
    jobs.lost([old[1]], "its process ended")
    one = join(jobs, "a", request(1), 0.0)
    assert jobs.table.find("me", "a") is one.job
    assert jobs.table.find("me", "a", old[0].job.id) is old[0].job
    leave(jobs, "a", 0, token(old[0]))
    join(jobs, "a", request(0), 0.0)
    carry_out(jobs)
    assert one.job.state is JobState.running
    assert len(jobs.table.jobs()) == 1


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
    join(jobs, "a", request(0, **first), 0.0)
    error = refused(jobs, "a", request(1, **second))
    assert (error.code, said in str(error)) == (code, True), error


def test_a_rank_without_an_opinion_takes_the_others() -> None:
    jobs = book()
    join(jobs, "a", request(0), 0.0)
    one = join(jobs, "a", request(1, words=100, slots=32), 0.0)
    carry_out(jobs)
    assert one.admission is not None
    assert (one.admission.words, one.admission.slots) == (100, 32)


def test_two_ranks_at_one_port() -> None:
    jobs = book()
    join(jobs, "a", request(0), 0.0)
    error = refused(jobs, "a", JoinRequest(1, 2, "10.0.0.1", 4000))
    assert error.code == "address_taken"


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"world_size": 257}, "world_size", "world_size is 257; a job has 1..256 workers"),
        ({"world_size": 0}, "world_size", "world_size is 0"),
        ({"rank": 2}, "rank_out_of_range", "rank is 2; with world_size 2 ranks are 0..1"),
        ({"rank": -1}, "rank_out_of_range", "rank is -1"),
        ({"address": "fe80::1"}, "bad_request", "address is 'fe80::1'"),
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
    error = refused(book(switch(memory=90_000)), "a", request(0, **asked))
    assert (error.code, said in str(error)) == (code, True), error


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
def test_names(name: str) -> None:
    assert refused(book(), name, request(0)).code == "bad_request"


def test_a_switch_that_refuses() -> None:
    jobs = book()
    members = [join(jobs, "a", request(rank)) for rank in range(2)]
    (install,) = doing(jobs)
    assert isinstance(install, Install)
    jobs.opening_failed(install.job, install.generation, SwitchError("table full"))
    assert doing(jobs) == [AnswerJoin(members[0]), AnswerJoin(members[1]), Remove(install.generation)]
    assert str(members[1].refusal) == "the switch did not take job 'a': table full"
    assert free(jobs) == 64
    jobs.opened(install.job, install.generation, 0.0)
    assert members[0].admission is None
    assert jobs.table.jobs() == []


def test_a_rank_lost_while_the_job_opens_is_waited_for() -> None:
    jobs = book()
    zero, one = (join(jobs, "a", request(rank)) for rank in range(2))
    (install,) = doing(jobs)
    jobs.lost([one], "its process ended")
    assert doing(jobs) == [Remove(install.generation)]
    assert (zero.job.state, zero.job.missing, free(jobs)) == (JobState.joining, [1], 64)
    jobs.opened(install.job, install.generation, 0.0)  # too late
    assert zero.admission is None
    back = join(jobs, "a", request(1))
    carry_out(jobs)
    assert (zero.job.state, zero.admission is not None, back.admission is not None) == (
        JobState.running,
        True,
        True,
    )


def test_close_refuses_who_waits_and_ends_what_runs() -> None:
    jobs = book()
    running = run(jobs)
    there = generation(running[0])
    waiting = join(jobs, "b", request(0), 0.0)
    jobs.close()
    done = jobs.poll()
    assert only(done) == [Remove(there), AnswerJoin(waiting)]
    assert told(done, running[0]) == [{"event": "stopping", "jobs": "end"}]
    assert waiting.refusal is not None
    assert waiting.refusal.code == "stopping"
    assert jobs.table.jobs() == []


def test_defaults_fit_the_switch() -> None:
    def defaults(capacity: Capacity, words: int | None = None, slots: int | None = None) -> object:
        found = SwitchResources("s", capacity, words, slots).default
        return found.words, found.slots

    assert defaults(Capacity(slots=600, words=64, memory=1 << 20)) == (64, 512)
    assert defaults(Capacity(slots=65536, words=364, memory=1 << 30)) == (352, 512)
    assert defaults(Capacity(slots=65536, words=16000, memory=1 << 30)) == (2032, 256)
    assert defaults(Capacity(slots=4096, words=64, memory=1 << 30, exact_words=64)) == (64, 512)
    large = Capacity(slots=65536, words=16000, memory=1 << 30)
    sizes = [SwitchResources("s", large).job_size(None, None, n).slots for n in (2, 15, 16, 32)]
    assert sizes == [256, 256, 128, 128]
    assert SwitchResources("s", large).job_size(None, 512, 16).slots == 512
    assert SwitchResources("s", large).job_size(352, None, 16).slots == 256
    assert SwitchResources("s", large, slots=512).job_size(None, None, 16).slots == 512
    with pytest.raises(UsageError, match="words is 365"):
        defaults(Capacity(64, 364, 1 << 20), words=365)
    with pytest.raises(UsageError, match="slots is 7"):
        defaults(Capacity(64, 364, 1 << 20), slots=7)


def test_ids_of_ended_jobs_are_not_given_out_again_soon() -> None:
    jobs = book()
    stays = run(jobs, "stays")[0].job.id
    seen = set()
    for _ in range(500):
        members = run(jobs)
        assert members[0].job.id not in seen
        seen.add(members[0].job.id)
        for member in members:
            leave(jobs, "a", member.rank, token(member))
        carry_out(jobs)
    jobs.table.last_id = 0xFFFF
    assert run(jobs)[0].job.id not in {0, stays}


def test_a_job_of_one_and_of_thirty_two() -> None:
    jobs = book()
    assert run(jobs, "one", 1)[0].job.state is JobState.running
    assert len({token(member) for member in run(jobs, "many", 32)}) == 32


def test_a_described_job_is_found() -> None:
    jobs = book()
    assert jobs.table.find("me", "a") is None
    job: Job = run(jobs)[0].job
    assert jobs.table.find("me", "a", job.id) is job
    assert jobs.table.find("me", "a", job.id + 1) is None


def test_a_member_hears_of_its_admission_before_its_silence_counts() -> None:
    """The store may take seconds to keep that the job runs; the members are told then."""
    jobs = book()
    members = run(jobs, on_loss=OnLoss.fail, deadline=1.0)
    jobs.tick(3.0)
    assert [member.state for member in members] == [MemberState.joined] * 2
    for member in members:
        jobs.heard(member.cookie, 3.5)
    jobs.tick(4.4)
    assert [member.state for member in members] == [MemberState.joined] * 2
    jobs.tick(4.6)
    assert [member.state for member in members] == [MemberState.lost] * 2

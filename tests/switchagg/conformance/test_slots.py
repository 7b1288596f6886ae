"""Every rule at the head of `switchagg.rules.slots`, one scenario at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from switchagg.errors import UsageError
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import COUNTERS, DropReason, Flag, Header, Op, encode

from .engines import ENGINES, Engine, SharedSlots
from .scenario import RESULT_TOKEN, Job, words, workers

# Contributions


def test_two_workers_byte_for_byte(engine: Engine) -> None:
    engine.add_job(JobEntry(7, 8, 4, 16, RESULT_TOKEN, workers(2)))
    init = bytes.fromhex("13 00 0007 00000000 fffffffd 0009 0000")
    assert engine.receive(init, None) == [(None, init)]
    one = bytes.fromhex("10 01 0007 a0000000 00000001 0009 0000" + "00000001 fffffffe" * 8)
    two = bytes.fromhex("10 01 0007 a0000001 00000001 0009 0000" + "01020304 00000003" * 8)
    result = bytes.fromhex("12 01 0007 feedf00d 00000001 0009 0000" + "01020305 00000001" * 8)
    assert engine.receive(one, ("10.0.0.1", 4000)) == []
    assert engine.receive(two, ("10.0.0.2", 4001)) == [
        (("10.0.0.1", 4000), result),
        (("10.0.0.2", 4001), result),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 32])
def test_the_last_of_n_workers_completes_the_sum(engine: Engine, count: int) -> None:
    job = Job(engine, count)
    for worker in range(count - 1):
        assert job.send(worker, 2, words(worker + 1, 100)) == []
    total = words(count * (count + 1) // 2, 100 * count)
    assert job.send(count - 1, 2, words(count, 100)) == job.multicast(seq=2, slot=10, payload=total)


def test_bits_need_not_be_dense_and_results_go_out_in_bit_order(engine: Engine) -> None:
    low, high = WorkerEntry(3, "10.0.0.9", 9, 1), WorkerEntry(31, "10.0.0.1", 1, 2)
    engine.add_job(JobEntry(7, 8, 4, 16, RESULT_TOKEN, (high, low)))
    engine.receive(encode(Header(Op.INIT, 0, 7, 0, 2**32 - 4, 8)), None)
    assert engine.receive(encode(Header(Op.SUM, 0, 7, 2, 0, 8)), high.address) == []
    assert engine.slot(8).seen == 1 << 31
    result = encode(Header(Op.RESULT, 0, 7, RESULT_TOKEN, 0, 8))
    outs = engine.receive(encode(Header(Op.SUM, 0, 7, 1, 0, 8)), low.address)
    assert outs == [(low.address, result), (high.address, result)]


def test_sum_wraps(engine: Engine) -> None:
    job = Job(engine, 3)
    job.send(0, 0, words(0xFFFFFFFF, 0x80000000))
    job.send(1, 0, words(2, 0x80000000))
    out = job.send(2, 0, words(0xFFFFFFFF, 5))
    assert out == job.multicast(seq=0, slot=8, payload=words(0, 5))


def test_or(engine: Engine) -> None:
    job = Job(engine, 3)
    job.send(0, 0, words(0x80000001, 0xF0), Op.OR)
    job.send(1, 0, words(0x80000002, 0x0F), Op.OR)
    out = job.send(2, 0, words(0x00000004, 0), Op.OR)
    assert out == job.multicast(seq=0, slot=8, payload=words(0x80000007, 0xFF))


def test_each_packet_brings_its_own_op(engine: Engine) -> None:
    job = Job(engine, 3)
    job.send(0, 0, words(3), Op.OR)
    job.send(1, 0, words(3), Op.SUM)
    assert job.send(2, 0, words(1), Op.OR) == job.multicast(seq=0, slot=8, payload=words(7))


@pytest.mark.parametrize("size", [16, 17, 31, 364, 2239])
def test_any_k(engine: Engine, size: int) -> None:
    rng = np.random.default_rng(size)
    contributions = rng.integers(0, 2**32, (3, size), np.uint32)
    job = Job(engine, 3, size=size)
    job.send(0, 0, contributions[0])
    job.send(1, 0, contributions[1])
    total = contributions.sum(axis=0, dtype=np.uint32)
    assert job.send(2, 0, contributions[2]) == job.multicast(seq=0, slot=8, payload=total)


def test_other_flag_bits_are_ignored(engine: Engine) -> None:
    job = Job(engine, 1)
    packet = bytearray(encode(job.header(0, 0), words(5)))
    packet[1] |= 0xE4
    assert engine.receive(bytes(packet), ("10.0.0.1", 4000)) == job.multicast(seq=0, slot=8, payload=words(5))


def test_reply_does_not_matter_before_a_slot_is_full(engine: Engine) -> None:
    job = Job(engine)
    job.send(0, 0, words(1), reply=9)
    assert job.send(1, 0, words(2), reply=5) == job.multicast(seq=0, slot=8, payload=words(3))


# ECN

MARKED = Flag.CE | Flag.ECT


@pytest.mark.parametrize("marked", [0, 1, 2])
@pytest.mark.parametrize("size", [None, 16])
def test_a_marked_contribution_makes_a_marked_result_and_repeats(
    engine: Engine, marked: int, size: int | None
) -> None:
    if isinstance(engine, SharedSlots):
        pytest.skip("no queue is before shared slots")
    job = Job(engine, 3)
    payload, total = (words(7), words(21)) if size else (None, None)
    for worker in range(3):
        outs = job.send(worker, 0, payload, ecn=MARKED if worker == marked else Flag.ECT)
    assert outs == job.multicast(seq=0, slot=8, payload=total, ecn=MARKED)
    assert job.send(1, 0, payload, again=True, reply=9) == job.unicast(
        1, seq=0, slot=8, payload=total, reply=9, ecn=MARKED
    )
    assert job.send(1, 0, payload, again=True) == job.unicast(1, seq=0, slot=8, payload=total, ecn=MARKED)
    for worker in range(3):  # the next block in the slot
        outs = job.send(worker, 4, payload, ecn=Flag.ECT)
    assert outs == job.multicast(seq=4, slot=8, payload=total, ecn=Flag.ECT)
    for worker in range(3):
        outs = job.send(worker, 8, payload)
    assert outs == job.multicast(seq=8, slot=8, payload=total)


def test_a_mark_of_a_round_that_one_worker_completes_ends_with_it(engine: Engine) -> None:
    if isinstance(engine, SharedSlots):
        pytest.skip("no queue is before shared slots")
    job = Job(engine, 1)
    assert job.send(0, 0, words(1), ecn=MARKED) == job.multicast(seq=0, slot=8, payload=words(1), ecn=MARKED)
    assert job.send(0, 4, words(2)) == job.multicast(seq=4, slot=8, payload=words(2))
    assert engine.receive(job.init(4), None) == [(None, job.init(4))]
    assert job.send(0, 8) == job.multicast(seq=8, slot=8, payload=None)


def test_the_answer_to_a_marked_retransmission_is_marked_and_no_other_one(engine: Engine) -> None:
    if isinstance(engine, SharedSlots):
        pytest.skip("no queue is before shared slots")
    job = Job(engine)
    job.send(0, 0, words(1))
    job.send(0, 0, words(1), again=True, ecn=MARKED)  # dropped
    assert job.send(1, 0, words(2)) == job.multicast(seq=0, slot=8, payload=words(3))
    for reply in (0, 5):
        for ecn in (MARKED, 0):
            assert job.send(0, 0, words(1), again=True, reply=reply, ecn=ecn) == job.unicast(
                0, seq=0, slot=8, payload=words(3), reply=reply, ecn=ecn
            )


def test_a_bare_result_has_the_mark_too(engine: Engine) -> None:
    if isinstance(engine, SharedSlots):
        pytest.skip("no queue is before shared slots")
    job = Job(engine)
    job.send(0, 0, words(1), ecn=MARKED)
    outs = job.send(1, 0, words(2), directed=True, reply=1)
    assert outs == job.directed(0, seq=0, slot=8, payload=words(3), ecn=MARKED)


# SKIPs


@pytest.mark.parametrize("skipping", [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}])
def test_skips_first_in_the_middle_and_last(engine: Engine, skipping: set[int]) -> None:
    job = Job(engine, 3)
    values = [1, 20, 300]
    outs = [job.send(worker, 0, None if worker in skipping else words(values[worker])) for worker in range(3)]
    total = sum(value for worker, value in enumerate(values) if worker not in skipping)
    assert outs == [[], [], job.multicast(seq=0, slot=8, payload=words(total))]


def test_all_skip_gives_a_result_without_payload(engine: Engine) -> None:
    job = Job(engine)
    assert job.send(0, 3) == []
    result = bytes.fromhex("12 00 0007 feedf00d 00000003 000b 0000")
    assert job.send(1, 3) == [(("10.0.0.1", 4000), result), (("10.0.0.2", 4001), result)]
    assert job.send(0, 3, again=True) == [(("10.0.0.1", 4000), result)]


def test_a_skip_does_not_see_the_words_of_an_earlier_round(engine: Engine) -> None:
    job = Job(engine)
    job.send(0, 0, words(1))
    job.send(1, 0, words(2))
    assert job.send(0, 4) == []
    assert job.send(1, 4, words(50)) == job.multicast(seq=4, slot=8, payload=words(50))
    job.send(0, 8)
    assert job.send(1, 8) == job.multicast(seq=8, slot=8, payload=None)


# Repeats


def test_a_duplicate_before_completion_is_dropped(engine: Engine) -> None:
    job = Job(engine, 3)
    job.send(0, 0, words(1))
    job.send(1, 0)
    before = job.state()
    assert job.send(0, 0, words(1), again=True) == []
    assert job.send(1, 0, words(7)) == []  # not even with words that the SKIP had not
    assert job.state() == before
    assert engine.counters()["duplicate"] == 2
    assert job.send(2, 0, words(10)) == job.multicast(seq=0, slot=8, payload=words(11))


def test_a_duplicate_after_completion_is_answered_to_its_sender_alone(engine: Engine) -> None:
    job = Job(engine)
    job.send(0, 0, words(1))
    job.send(1, 0, words(2))
    before = job.state()
    assert job.send(0, 0, words(1), again=True) == job.unicast(0, seq=0, slot=8, payload=words(3))
    assert job.send(1, 0, words(99)) == job.unicast(1, seq=0, slot=8, payload=words(3))
    assert job.state() == before
    assert engine.counters()["duplicates_answered"] == 2
    assert engine.counters()["retransmissions"] == 1


# Directed contributions


def test_a_directed_result_byte_for_byte(engine: Engine) -> None:
    job = Job(engine)
    job.send(0, 1, words(1, 2), reply=2, directed=True)
    two = bytes.fromhex("10 05 0007 a0000001 00000001 0009 0002" + "00000001 00000003" * 8)
    outs = engine.receive(two, ("10.0.0.2", 4001))
    bare = bytes.fromhex("12 04 0007 feedf00d 00000001 0009 0000")
    full = bytes.fromhex("12 01 0007 feedf00d 00000001 0009 0000" + "00000002 00000005" * 8)
    assert outs == [(("10.0.0.1", 4000), bare), (("10.0.0.2", 4001), full)]


def test_the_packet_that_completes_a_round_says_who_gets_the_words(engine: Engine) -> None:
    job = Job(engine, 3)
    for seq, (flag, reply) in enumerate([(True, 3), (False, 3), (True, 0), (True, 9)]):
        job.send(0, seq, words(1), reply=1, directed=True)
        job.send(1, seq, words(2), reply=2, directed=True)
        outs = job.send(2, seq, words(4), reply=reply, directed=flag)
        where = {"seq": seq, "slot": 8 + seq, "payload": words(7)}
        if not flag or not reply:
            assert outs == job.multicast(**where)
        else:  # bit 8 is nobody's, so nobody gets the words until he asks
            assert outs == job.directed(reply - 1, **where)
        assert job.send(1, seq, words(2), again=True, reply=77) == job.unicast(1, reply=77, **where)


def test_words_go_to_all_where_a_repeat_completes_the_round(engine: Engine) -> None:
    job = Job(engine)
    job.send(0, 0, words(1), reply=1, directed=True)
    outs = job.send(1, 0, words(2), again=True, reply=1, directed=True)
    assert outs == job.multicast(seq=0, slot=8, payload=words(3))


def test_an_empty_round_is_not_bare(engine: Engine) -> None:
    job = Job(engine)
    job.send(0, 0, reply=1, directed=True)
    assert job.send(1, 0, reply=1, directed=True) == job.multicast(seq=0, slot=8, payload=None)
    job.send(0, 1, words(5), reply=1, directed=True)
    assert job.send(1, 1, reply=1, directed=True) == job.directed(0, seq=1, slot=9, payload=words(5))


def test_an_answer_echoes_reply(engine: Engine) -> None:
    job = Job(engine)
    job.send(0, 0, words(1))
    job.send(1, 0, words(2))
    answer = job.send(1, 0, words(2), again=True, reply=0x1234)
    assert answer == job.unicast(1, seq=0, slot=8, payload=words(3), reply=0x1234)
    assert job.send(0, 0) == job.unicast(0, seq=0, slot=8, payload=words(3))  # and does not keep it


@pytest.mark.parametrize("jump", [-4, 8, 12, 400, 2**31, -(2**31) + 4])
def test_stale_and_nonsense_seqs_change_nothing(engine: Engine, jump: int) -> None:
    job = Job(engine, first_seq=4)
    job.send(0, 4, words(1))
    job.send(1, 4, words(1))
    job.send(0, 8, words(5))
    before = job.state()
    assert job.send(1, (8 + jump) % 2**32, words(9)) == []
    assert job.state() == before
    assert engine.counters()["stale"] == 1
    assert job.send(1, 8, words(6)) == job.multicast(seq=8, slot=8, payload=words(11))


# Rounds


def test_a_slot_is_used_again_and_again(engine: Engine) -> None:
    job = Job(engine)
    for seq, slot in [(0, 8), (1, 9), (2, 10), (3, 11), (4, 8), (5, 9), (6, 10), (7, 11), (8, 8)]:
        first, second = (0, 1) if seq % 3 else (1, 0)
        assert job.send(first, seq, words(seq, 1)) == []
        assert job.send(second, seq, words(1000, 1)) == job.multicast(
            seq=seq, slot=slot, payload=words(seq + 1000, 2)
        )


def test_slots_do_not_touch_each_other(engine: Engine) -> None:
    job = Job(engine)
    for seq in range(4):
        job.send(0, seq, words(seq))
    for seq, slot in [(2, 10), (0, 8), (3, 11), (1, 9)]:
        assert job.send(1, seq, words(10)) == job.multicast(seq=seq, slot=slot, payload=words(seq + 10))


def test_retransmissions_interleave_with_the_next_round(engine: Engine) -> None:
    """Worker 1 loses the RESULT of seq 0; worker 0 runs on to the edge of its window, P/2 ahead."""
    job = Job(engine)
    job.send(0, 0, words(1))
    job.send(1, 0, words(2))
    assert job.send(1, 1, words(20)) == []
    assert job.send(0, 1, words(10)) == job.multicast(seq=1, slot=9, payload=words(30))
    assert job.send(0, 2, words(100)) == []
    assert job.send(0, 3, words(1000)) == []
    assert job.send(1, 0, words(2), again=True) == job.unicast(1, seq=0, slot=8, payload=words(3))
    assert job.send(1, 2, words(200)) == job.multicast(seq=2, slot=10, payload=words(300))
    # Both now hold 0..2. Seq 4 takes slot 8 again; what is left of seq 0 on the way comes too late.
    assert job.send(0, 4, words(7)) == []
    assert job.send(1, 0, words(2), again=True) == []
    assert job.send(0, 0, words(1), again=True) == []
    assert job.send(0, 4, words(7), again=True) == []
    assert job.send(1, 4, words(8)) == job.multicast(seq=4, slot=8, payload=words(15))
    assert job.send(1, 3, words(2000)) == job.multicast(seq=3, slot=11, payload=words(3000))
    counters = engine.counters()
    assert (counters["stale"], counters["duplicate"], counters["duplicates_answered"]) == (2, 1, 1)


def test_seq_wraps_around(engine: Engine) -> None:
    job = Job(engine, first_seq=2**32 - 6)
    seqs = [2**32 - 6, 2**32 - 5, 2**32 - 4, 2**32 - 3, 2**32 - 2, 2**32 - 1, 0, 1, 2, 3]
    for seq, slot in zip(seqs, [10, 11, 8, 9, 10, 11, 8, 9, 10, 11], strict=True):
        job.send(0, seq, words(1))
        assert job.send(1, seq, words(2)) == job.multicast(seq=seq, slot=slot, payload=words(3))
    assert job.send(0, 2**32 - 2, words(1)) == []
    assert engine.counters()["stale"] == 1


def test_the_smallest_and_the_largest_job() -> None:
    for make in ENGINES.values():
        engine = make(65536)
        job = Job(engine, base=0, slots=65536, first_seq=65535, initialise=False)
        init = job.init(65535 - 65536)
        assert engine.receive(init, None) == [(None, init)]
        job.send(0, 65535, words(1))
        assert job.send(1, 65535, words(2)) == job.multicast(seq=65535, slot=65535, payload=words(3))
        engine = make(2)
        job = Job(engine, 1, base=0, slots=2)
        assert job.send(0, 1, words(2)) == job.multicast(seq=1, slot=1, payload=words(2))


# Packets that are not admitted


def _patched(packet: bytes, at: int, value: int) -> bytes:
    return packet[:at] + bytes([value]) + packet[at + 1 :]


GOOD = encode(Header(Op.SUM, 0, 7, 0xA0000000, 4, 8), words(1))
SKIP = encode(Header(Op.SUM, 0, 7, 0xA0000000, 4, 8))
ME = ("10.0.0.1", 4000)
FOREIGN: dict[str, tuple[bytes, tuple[str, int] | None, DropReason]] = {
    "empty": (b"", ME, DropReason.truncated),
    "15 bytes": (GOOD[:15], ME, DropReason.truncated),
    "version 0": (_patched(GOOD, 0, 0x00), ME, DropReason.version),
    "version 2": (_patched(GOOD, 0, 0x20), ME, DropReason.version),
    "version 15": (_patched(GOOD, 0, 0xF0), ME, DropReason.version),
    "RESULT from a worker": (_patched(GOOD, 0, 0x12), ME, DropReason.op),
    "INIT from a worker": (_patched(SKIP, 0, 0x13), ME, DropReason.op),
    "op 4": (_patched(GOOD, 0, 0x14), ME, DropReason.op),
    "op 15": (_patched(GOOD, 0, 0x1F), ME, DropReason.op),
    "SUM from the controller": (SKIP, None, DropReason.op),
    "flag without payload": (_patched(SKIP, 1, 1), ME, DropReason.length),
    "payload without flag": (_patched(GOOD, 1, 0), ME, DropReason.length),
    "padded SKIP": (SKIP + bytes(2), ME, DropReason.length),
    "one word": (GOOD[:20], ME, DropReason.length),
    "15 words": (GOOD[:-4], ME, DropReason.length),
    "broken word": (GOOD[:-1], ME, DropReason.length),
    "one byte more": (GOOD + bytes(1), ME, DropReason.length),
    "one word more": (GOOD + bytes(4), ME, DropReason.length),
    "oversized": (GOOD + bytes(65507 - len(GOOD) - 3), ME, DropReason.length),
    "INIT with payload": (_patched(GOOD, 0, 0x13), None, DropReason.length),
    "job 8": (_patched(GOOD, 3, 8), ME, DropReason.job),
    "job 0xff07": (_patched(GOOD, 2, 0xFF), ME, DropReason.job),
    "INIT of job 8": (_patched(_patched(SKIP, 0, 0x13), 3, 8), None, DropReason.job),
    "other host": (GOOD, ("10.0.0.3", 4000), DropReason.source),
    "other port": (GOOD, ("10.0.0.1", 4001), DropReason.source),
    "other worker's token": (GOOD, ("10.0.0.2", 4001), DropReason.token),
    "token + 1": (_patched(GOOD, 7, 1), ME, DropReason.token),
    "token, first byte": (_patched(GOOD, 4, 0xA1), ME, DropReason.token),
    "result token": (GOOD[:4] + bytes.fromhex("feedf00d") + GOOD[8:], ME, DropReason.token),
    "slot 9": (_patched(GOOD, 13, 9), ME, DropReason.slot),
    "slot 4": (_patched(GOOD, 13, 4), ME, DropReason.slot),
    "slot 12": (_patched(GOOD, 13, 12), ME, DropReason.slot),
    "slot 0x0108": (_patched(GOOD, 12, 1), ME, DropReason.slot),
    "seq of another slot": (_patched(GOOD, 11, 5), ME, DropReason.slot),
    "INIT of another slot": (_patched(_patched(SKIP, 0, 0x13), 13, 12), None, DropReason.slot),
    # Wrong in two ways: the first check counts it.
    "short and version 2": (_patched(GOOD, 0, 0x20)[:10], ME, DropReason.truncated),
    "version 2 and op 4": (_patched(GOOD, 0, 0x24), ME, DropReason.version),
    "op 4 and one word": (_patched(GOOD, 0, 0x14)[:20], ME, DropReason.op),
    "broken word and job 8": (_patched(GOOD, 3, 8)[:-1], ME, DropReason.length),
    "wrong K and job 8": (_patched(GOOD, 3, 8) + bytes(4), ME, DropReason.job),
    "wrong K and other host": (GOOD + bytes(4), ("10.0.0.3", 1), DropReason.length),
    "other host and token + 1": (_patched(GOOD, 7, 1), ("10.0.0.3", 1), DropReason.source),
    "token + 1 and slot 9": (_patched(_patched(GOOD, 7, 1), 13, 9), ME, DropReason.token),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_not_admitted_is_counted_and_changes_nothing(engine: Engine, name: str) -> None:
    packet, source, reason = FOREIGN[name]
    job = Job(engine)
    for worker in (0, 1):
        job.send(worker, 0, words(1))
    job.send(1, 4, words(2))
    state, before, job_before = job.state(), engine.counters(), engine.job_counters(7)
    assert engine.receive(packet, source) == []
    assert job.state() == state
    assert _changes(before, engine.counters()) == {"received": 1, reason: 1}
    known = name in ("INIT of another slot", "one word more", "oversized", "wrong K and other host")
    known = known or reason in (DropReason.source, DropReason.token, DropReason.slot)
    assert _changes(job_before, engine.job_counters(7)) == ({"received": 1, reason: 1} if known else {})


def _changes(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def test_spoofed_sources_leave_admitted_ones_alone(engine: Engine) -> None:
    job = Job(engine, 32)
    for i in range(3000):
        address = f"10.{i % 7}.{i % 251}.{i % 253 + 1}", 1 + i * 7 % 65535
        if address not in [worker.address for worker in job.entry.workers]:
            assert engine.receive(GOOD, address) == []
    for worker in range(31):
        assert job.send(worker, 0, words(1)) == []
    assert job.send(31, 0, words(1)) == job.multicast(seq=0, slot=8, payload=words(32))


# INIT


def test_init_sets_a_slot_from_any_state(engine: Engine) -> None:
    job = Job(engine)
    job.send(0, 0, words(1))
    init = job.init(1000 - 4)
    assert engine.receive(init, None) == [(None, init)]
    assert engine.receive(init, None) == [(None, init)]
    assert job.state()[0] == (996, 0b11, False, None)
    assert job.send(1, 0, words(2)) == []
    assert engine.counters()["stale"] == 1
    assert job.send(0, 996) == job.unicast(0, seq=996, slot=8, payload=None)
    job.send(0, 1000, words(1))
    assert job.send(1, 1000, words(2)) == job.multicast(seq=1000, slot=8, payload=words(3))


def test_init_is_echoed_to_the_byte(engine: Engine) -> None:
    Job(engine)
    init = bytes.fromhex("13 fe 0007 12345678 000003e8 0008 4321")
    assert engine.receive(init, None) == [(None, init)]


def test_the_slots_of_a_new_job_hold_zeros(engine: Engine) -> None:
    job = Job(engine, initialise=False)
    assert job.state() == [(0, 0, False, None)] * 4
    assert job.send(0, 1, words(1)) == []  # neither 0 nor 4
    assert engine.counters()["stale"] == 1


# Jobs


def test_two_jobs_at_once(engine: Engine) -> None:
    """The same workers in both, with slots side by side, another K, another P and the same seqs."""
    one, two = Job(engine, 2), Job(engine, 3, job=0xFFFF, base=16, slots=8, size=20)
    assert one.send(0, 1, words(1)) == []
    assert two.send(0, 1, words(10, count=20)) == []
    assert two.send(2, 1, words(20, count=20)) == []
    assert one.send(0, 1, words(1, count=20)) == []  # the other job's K
    assert one.send(1, 1, words(2)) == one.multicast(seq=1, slot=9, payload=words(3))
    assert two.send(1, 1, words(30, count=20)) == two.multicast(seq=1, slot=17, payload=words(60, count=20))
    assert one.send(1, 1) == one.unicast(1, seq=1, slot=9, payload=words(3))
    first, second, total = engine.job_counters(7), engine.job_counters(0xFFFF), engine.counters()
    assert (first["worker_0_packets"], first["worker_1_packets"]) == (1, 2)
    assert (second["worker_0_packets"], second["worker_1_packets"], second["worker_2_packets"]) == (1, 1, 1)
    assert all(total[name] == first[name] + second[name] for name in COUNTERS)


def test_a_job_that_is_gone_is_not_known_and_its_place_is_free(engine: Engine) -> None:
    job = Job(engine)
    job.send(0, 0, words(1))
    counters = engine.counters()
    engine.remove_job(7)
    assert engine.counters() == counters
    assert job.send(1, 0, words(2)) == []
    assert engine.counters()["job"] == 1
    again = Job(engine, 2, job=9, base=8, slots=2, first_seq=100)
    again.send(0, 100, words(1))
    assert again.send(1, 100, words(5)) == again.multicast(seq=100, slot=8, payload=words(6))
    assert engine.job_counters(9)["results"] == 1


def test_a_fenced_worker_changes_nothing_any_more(engine: Engine) -> None:
    job = Job(engine, 3)
    job.send(2, 0, words(1))
    job.send(0, 1, words(1))
    state = job.state()
    engine.fence(7, 0b100)
    before = engine.job_counters(7)
    assert job.send(2, 0, words(1), again=True) == []
    assert job.send(2, 1, words(9)) == []
    assert job.send(2, 2) == []
    assert job.state() == state
    after = engine.job_counters(7)
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {
        "received": 3,
        "source": 3,
    }
    # Its packets of before count, and the other workers of the job are not touched.
    job.send(0, 0, words(2))
    assert job.send(1, 0, words(3)) == job.multicast(seq=0, slot=8, payload=words(6))
    assert job.send(1, 0, words(3), again=True) == job.unicast(1, seq=0, slot=8, payload=words(6))
    assert job.send(1, 1, words(2)) == []
    assert job.state()[1] == (1, 0b011, True, [3] * 16)


def test_a_fence_holds_for_a_worker_that_has_everything_wrong_too(engine: Engine) -> None:
    job = Job(engine)
    engine.fence(7, 0b01)
    wrong = replace(job.header(0, 0), token=1, slot=11)
    assert engine.receive(encode(wrong, words(1)), job.entry.workers[0].address) == []
    counters = engine.job_counters(7)
    assert (counters["source"], counters["token"], counters["slot"]) == (1, 0, 0)


def test_fencing_twice_is_fencing_once_and_can_be_taken_back(engine: Engine) -> None:
    job = Job(engine, 3)
    engine.fence(7, 0b011)
    engine.fence(7, 0b110)
    assert [job.send(worker, 0, words(1)) for worker in range(3)] == [[], [], []]
    assert engine.job_counters(7)["source"] == 3
    engine.admit(7, 0b111)
    job.send(0, 0, words(1))
    job.send(1, 0, words(1))
    assert job.send(2, 0, words(1)) == job.multicast(seq=0, slot=8, payload=words(3))


def test_a_new_job_of_the_same_id_is_not_fenced(engine: Engine) -> None:
    Job(engine)
    engine.fence(7, 0b11)
    engine.remove_job(7)
    job = Job(engine)
    job.send(0, 0, words(1))
    assert job.send(1, 0, words(1)) == job.multicast(seq=0, slot=8, payload=words(2))


def test_a_fence_is_for_workers_that_are_there(engine: Engine) -> None:
    job = Job(engine, 2)
    with pytest.raises(UsageError, match="there is no job 8"):
        engine.fence(8, 1)
    for change in (engine.fence, engine.admit):
        with pytest.raises(UsageError, match=r"bits is 0x5; the workers of job 7 have 0x3"):
            change(7, 0b101)
    job.send(0, 0, words(1))
    assert job.send(1, 0, words(1)) == job.multicast(seq=0, slot=8, payload=words(2))


def test_the_floor_leaves_words_untouched(engine: Engine) -> None:
    job = Job(engine, touch=False)
    job.send(0, 0, words(1))
    assert job.send(1, 0, words(2)) == job.multicast(seq=0, slot=8, payload=words(0))
    assert job.send(0, 4) == []
    assert job.send(1, 4) == job.multicast(seq=4, slot=8, payload=None)


def test_what_a_table_refuses(engine: Engine) -> None:
    Job(engine)
    entry = JobEntry(1, 0, 8, 16, 0, workers(1))
    with pytest.raises(UsageError, match="job 7 is already in the table"):
        engine.add_job(replace(entry, job=7))
    for base, slots in [(8, 2), (10, 2), (8, 4), (8, 8), (0, 16)]:
        with pytest.raises(UsageError, match="overlap those of job 7"):
            engine.add_job(replace(entry, base=base, slots=slots))
    with pytest.raises(UsageError, match=r"slots 64\.\.71 are outside the switch's 64"):
        engine.add_job(replace(entry, base=64))
    with pytest.raises(UsageError, match="there is no job 1"):
        engine.remove_job(1)
    with pytest.raises(UsageError, match="there is no job 70000"):
        engine.job_counters(70000)
    for index in (0, 12, 64, -1):
        with pytest.raises(UsageError):
            engine.slot(index)
    engine.add_job(entry)
    engine.add_job(replace(entry, job=2, base=12, slots=4))


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_capacity_is_checked(name: str) -> None:
    for capacity in (0, 65537, -1):
        with pytest.raises(UsageError, match=str(capacity)):
            ENGINES[name](capacity)


WORKER = WorkerEntry(0, "10.0.0.1", 4000, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": 3}, "slots is 3; accepted: a power of two"),
        ({"slots": 1}, "slots is 1; accepted: 2..65536"),
        ({"base": 2}, "base is 2; accepted: a multiple of the job's 4 slots"),
        ({"words": 15}, "words is 15; accepted: 16..16372"),
        ({"job": 65536}, "job is 65536"),
        ({"result_token": 2**32}, "result_token is"),
        ({"workers": ()}, r"0 workers; accepted: 1..32"),
        ({"workers": (*workers(32), replace(WORKER, port=5000))}, "33 workers"),
        ({"workers": (WORKER, replace(WORKER, port=1))}, "same bit"),
        ({"workers": (WORKER, replace(WORKER, bit=1))}, "same address and port"),
    ],
)
def test_what_a_job_entry_refuses(change: dict[str, object], message: str) -> None:
    good = JobEntry(1, 0, 4, 16, 0, (WORKER,))
    with pytest.raises(UsageError, match=message):
        replace(good, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"bit": 32}, {"port": 0}, {"token": -1}, {"ip": "worker1"}, {"ip": "fe80::1%lo"}]
)
def test_what_a_worker_entry_refuses(change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(change))} is"):
        replace(WORKER, **change)  # type: ignore[arg-type]


# Counters


def test_every_packet_is_counted_once(engine: Engine) -> None:
    job = Job(engine, 3)
    job.send(0, 0, words(1))
    job.send(1, 0, words(1))
    job.send(1, 0, words(1), again=True)
    job.send(2, 0, words(1), Op.OR)
    job.send(2, 0, words(1), again=True)
    for worker in range(3):
        job.send(worker, 1)
    job.send(2, 8, words(1))
    engine.receive(b"", ME)
    expected = dict.fromkeys(COUNTERS, 0) | {
        "received": 14,
        "inits": 4,
        "accepted": 6,
        "fresh": 2,
        "stored": 1,
        "added": 1,
        "ored": 1,
        "skips": 3,
        "retransmissions": 2,
        "duplicates_answered": 1,
        "results": 2,
        "empty_results": 1,
        "duplicate": 1,
        "stale": 1,
        "truncated": 1,
    }
    assert engine.counters() == expected
    packets = {"worker_0_packets": 2, "worker_1_packets": 3, "worker_2_packets": 4}
    assert engine.job_counters(7) == expected | {"received": 13, "truncated": 0} | packets

"""The window's rules, and the native window against the readable one on random events."""

from __future__ import annotations

import heapq
import math
import os
import random
from collections import defaultdict
from itertools import count, pairwise

import pytest

from tests.reference.window import RTO_CEILING_NS, RTO_FLOOR_NS, RTO_INITIAL_NS, Window
from tests.seeds import seed_of_this_run
from worker_lib import _native

MS = 1_000_000


@pytest.fixture(params=[Window, _native.Window], ids=["python", "native"])
def make(request: pytest.FixtureRequest):
    return request.param


def results(window, positions, now, *, marked=()):
    accepted = [q for q in positions if window.on_result(q)]
    for q in marked:
        window.on_ce(q, now)
    window.acknowledge(accepted, now)
    return accepted


def test_no_position_is_sent_before_the_result_half_a_pool_back(make):
    w = make(16, 4, 1000)
    assert w.room() == 8
    w.sent(8, 0)
    assert w.room() == 0
    results(w, [1, 2, 3, 4, 5, 6, 7], MS)  # all but the first
    assert w.base == 0
    assert w.room() == 0, "position 8 needs the RESULT of position 0"
    results(w, [0], MS)
    assert w.base == 8
    assert w.room() == 8


def test_results_outside_the_window_or_twice_are_refused(make):
    w = make(16, 4, 8)
    w.sent(4, 0)
    assert not w.on_result(4), "not sent yet"
    assert results(w, [0, 0, 2, 2], MS) == [0, 2]
    assert w.base == 1
    assert not w.on_result(0), "already passed"


def test_timer_starts_at_the_initial_value_doubles_and_stops_at_the_ceiling(make):
    w = make(16, 4, 8)
    w.sent(1, 0)
    assert w.loss_timer() == RTO_INITIAL_NS
    assert w.detect_lost(RTO_INITIAL_NS - 1) == []
    now, waits = 0, []
    for _ in range(6):
        later = w.loss_timer()
        waits.append(later - now)
        now = later
        assert w.detect_lost(now) == [0]
    assert waits == [10 * MS, 20 * MS, 40 * MS, 50 * MS, 50 * MS, 50 * MS]
    assert waits[-1] == RTO_CEILING_NS


def test_estimator_follows_rfc_6298_with_a_floor(make):
    w = make(64, 4, 32)
    w.sent(1, 0)
    results(w, [0], 8 * MS)
    assert (w.srtt, w.rttvar, w.rto) == (8 * MS, 4 * MS, 24 * MS)
    w.sent(1, 8 * MS)
    results(w, [1], 24 * MS)  # 16 ms: |8-16| = 8
    assert (w.srtt, w.rttvar, w.rto) == (9 * MS, 5 * MS, 29 * MS)
    for q in range(2, 200):
        w.sent(1, 0)
        results(w, [q], 1000)
    assert w.rto == RTO_FLOOR_NS


def test_a_repeated_position_gives_no_sample(make):
    w = make(64, 4, 32)
    w.sent(1, 0)
    assert w.detect_lost(RTO_INITIAL_NS) == [0]
    results(w, [0], RTO_INITIAL_NS + 10)
    assert w.srtt == 0


def test_a_position_that_waits_for_other_ranks_gives_no_sample(make):
    w = make(64, 4, 32)
    w.sent(1, 0, timed=False)
    results(w, [0], 8 * MS)
    assert w.srtt == 0


def test_waits_for_others_do_not_raise_a_timer_without_limit(make):
    """A rank that loses nothing itself sees only that RESULTs are late."""
    w = make(2, 1, 1)
    now = 0
    for q in range(64):
        w.sent(1, now)
        now += MS // 10 if q % 4 else 40 * MS << q // 4
        results(w, [q], now)
        assert w.rto <= max(RTO_INITIAL_NS, RTO_CEILING_NS) or q == 0
    w.sent(1, now)
    now += 1000 * MS
    results(w, [64], now)
    for q in range(65, 200):  # a path that is this long
        w.sent(1, now)
        now += 1000 * MS
        results(w, [q], now)
    assert w.rto > 1000 * MS


@pytest.mark.parametrize(
    ("slots", "batch", "threshold"),
    [
        pytest.param(1024, 46, 64, id="at-most-64"),
        pytest.param(1024, 13, 26, id="two-batches"),
        pytest.param(1024, 8, 16, id="at-least-16"),
        pytest.param(512, 1, 16, id="without-batches"),
    ],
)
def test_a_packet_lost_by_the_reordering_threshold_is_resent_at_once_and_not_again_before_news(
    make, slots, batch, threshold
):
    w = make(slots, batch, slots // 2)
    w.sent(200, 0)
    results(w, range(1, threshold), MS // 4)
    assert w.detect_lost(MS // 4) == [], "one later result too few"
    results(w, [threshold], MS // 4)
    assert w.detect_lost(MS // 4) == [0]
    results(w, range(threshold + 1, 200), MS // 4)
    assert w.detect_lost(MS // 4) == [], "all of these were sent before the repeat"
    w.sent(threshold, MS // 4)
    results(w, range(200, 200 + threshold - 1), MS // 2)
    assert w.detect_lost(MS // 2) == [], "one too few of these"
    results(w, [200 + threshold - 1], MS // 2)
    assert w.detect_lost(MS // 2) == [0], "these were sent after it"
    assert w.retransmissions == 2


def test_results_of_one_thread_are_no_sign_of_loss_at_another(make):
    """Sequence numbers from 1,000 on; 64 slots at a time are one of two threads'."""
    w = make(1024, 45, 512, threads=2, first_seq=1000)
    first, second = [[q for q in range(512) if (1000 + q) % 1024 // 64 % 2 == t] for t in (0, 1)]
    w.sent(512, 0)
    results(w, first, MS // 4)
    assert w.detect_lost(MS // 4) == [], "the second thread does not run"
    results(w, second[:5], MS // 4)
    assert w.detect_lost(MS // 4) == [], "now it does"
    results(w, second[10:20], MS // 4)
    assert w.detect_lost(MS // 4) == second[5:10], "it has passed these"


@pytest.mark.parametrize(("slots", "threads"), [(128, 2), (512, 3), (512, 8), (1024, 64)])
def test_a_loss_is_found_as_soon_with_any_number_of_threads(make, slots, threads):
    """Unless it is the last of a block."""
    w = make(slots, 45, slots, threads=threads)
    w.sent(slots // 2, 0)
    results(w, range(62), MS // 4)
    w.sent(w.room(), MS // 4)
    threshold = min(64, slots // 8)
    results(w, range(63, 62 + threshold), MS // 4)
    assert w.detect_lost(MS // 4) == [], "one later result too few"
    results(w, [62 + threshold], MS // 4)
    assert w.detect_lost(MS // 4) == [62]


def test_time_outs_that_nothing_follows_repeat_fewer_packets_down_to_the_oldest(make):
    w = make(128, 8, 64)
    w.sent(1, 0)
    assert results(w, [0], MS) == [0]
    w.sent(8, MS)
    repeats, times = [], [MS]
    for _ in range(9):
        times.append(w.loss_timer())
        repeats.append(w.detect_lost(times[-1]))
    assert [len(each) for each in repeats] == [8, 8, 8, 8, 4, 2, 1, 1, 1]
    assert repeats[4:8] == [[1, 2, 3, 4], [5, 6], [7], [8]]
    assert all(later - earlier >= MS for earlier, later in pairwise(times)), "a round trip between two"
    assert results(w, [1], times[-1]) == [1]
    assert len(w.detect_lost(times[-1] + 1000 * MS)) == 7, "after a RESULT, a batch again"


def test_congestion_window_shrinks_once_a_round_trip_and_keeps_a_batch(make):
    w = make(1024, 46, 512)
    w.sent(512, 0)
    results(w, range(100, 300), 2 * MS)
    before = w.cwnd
    assert w.detect_lost(2 * MS) != []
    assert w.cwnd == before * 7 // 8
    shrunk = w.cwnd
    w.detect_lost(2 * MS + 1)
    assert w.cwnd == shrunk, "the same round trip"
    now = 2 * MS
    for _ in range(40):
        now = max(w.loss_timer(), now + 300 * MS)
        w.detect_lost(now)
    assert w.cwnd == 46


def test_congestion_window_grows_by_a_quarter_or_a_batch_a_round_trip_up_to_the_limit(make):
    w = make(1024, 46, 512)
    w.sent(1, 0)
    for _ in range(20):  # time-outs take it down to a batch
        w.detect_lost(w.loss_timer())
    assert w.cwnd == 46
    results(w, [0], w.loss_timer())
    q, seen = 1, [w.cwnd]
    for _ in range(20):
        n = w.room()
        w.sent(n, 0)
        results(w, range(q, q + n), MS)
        q += n
        seen.append(w.cwnd)
    assert seen[1] == seen[0] + 46
    assert seen[-1] == 512
    assert all(b <= a + max(46, a // 4) + 1 for a, b in pairwise(seen))
    assert any(b == a + a // 4 for a, b in pairwise(seen) if a >= 4 * 46)


def flight(w, now, lost=0):
    """A window of packets, whose RESULTs but for the first come after a millisecond; returns the first."""
    count, first = w.room(), w.next
    w.sent(count, now)
    results(w, range(first + lost, first + count), now + MS)
    return first


def opened(w, least):
    """Sends without loss until the congestion window is at least so large; returns the time then."""
    now = 0
    while w.cwnd < least:
        flight(w, now)
        now += MS
    return now


def test_on_shared_links_a_loss_cuts_the_window_once_a_round_trip_and_it_grows_by_half_a_packet(make):
    w = make(1024, 46, 512, shared=True)
    assert w.cwnd == 10
    now = 0
    while w.cwnd < 100:  # by a quarter a round trip
        before = w.cwnd
        flight(w, now)
        now += MS
        assert before < w.cwnd <= before + before // 4 + 1
    lost = [flight(w, now, lost=1)]
    now += MS
    before = w.cwnd
    assert w.detect_lost(now) == lost
    assert w.cwnd == before // 2
    w.sent(90, now)
    results(w, range(w.next - 89, w.next), now + 1)
    lost.append(w.next - 90)
    before = w.cwnd
    assert w.detect_lost(now + 1) == lost, "the repetition too"
    assert w.cwnd == before, "the same round trip"
    results(w, lost, now + MS)
    seen = [w.cwnd]
    for _ in range(6):
        now += 2 * MS
        flight(w, now)
        seen.append(w.cwnd)
    assert all(later - here <= 1 for here, later in pairwise(seen))
    assert seen[-1] == seen[0] + 3


def test_on_shared_links_a_mark_cuts_the_window_to_seven_tenths_once_for_what_was_sent_before(make):
    w = make(1024, 46, 512, shared=True)
    now = opened(w, 100)
    before, count, first = w.cwnd, w.room(), w.next
    w.sent(count, now)
    results(w, [first], now + MS, marked=[first])
    assert w.cwnd == before * 7 // 10
    later = range(first + 1, first + count)
    results(w, later, now + 5 * MS, marked=later)
    assert w.cwnd - before * 7 // 10 <= 2, "sent before the cut"
    before = w.cwnd
    for _ in range(4):
        now += 10 * MS
        flight(w, now)
    assert w.cwnd == before + 2, "no longer by a quarter"
    first = flight(w, now + 2 * MS, lost=1)
    before = w.cwnd
    results(w, [first], now + 4 * MS, marked=[first])
    assert w.cwnd == before * 7 // 10


def test_elsewhere_marks_change_nothing(make):
    w = make(1024, 46, 512)
    w.sent(10, 0)
    results(w, range(10), MS, marked=range(10))
    assert w.cwnd == 512


def test_on_shared_links_a_threads_results_do_not_halve_the_window_for_another(make):
    w = make(1024, 46, 512, shared=True, threads=2)
    now = opened(w, 512)
    w.sent(64 - w.next % 64, now)
    results(w, range(w.base, w.next), now + 1)
    first = w.next
    w.sent(128, now)
    results(w, range(first + 64, first + 128), now + 1)
    assert first in w.detect_lost(w.loss_timer())
    assert w.cwnd == 512 * 3 // 4, "the other ranks may be late"


def test_on_shared_links_a_silent_timer_cuts_once_a_packet_and_the_window_opens_fast(make):
    w = make(1024, 46, 512, shared=True)
    now = opened(w, 512)
    first = w.next
    w.sent(1, now)
    for _ in range(40):
        now = w.loss_timer()
        assert w.detect_lost(now) == [first]
        assert w.cwnd == 512 * 3 // 4, "the others may be late"
    results(w, [first], now)
    for _ in range(3):
        flight(w, now)
        now += MS
    assert w.cwnd == 512
    w.sent(1, now, timed=False)
    for _ in range(40):
        w.detect_lost(w.loss_timer())
    assert w.cwnd == 512, "it waited for ranks, not for the network"


def test_on_shared_links_small_windows_send_few_packets_at_once_and_need_few_results(make):
    w = make(1024, 46, 512, shared=True)
    assert w.train == 2
    w.sent(10, 0)
    results(w, range(1, 5), MS)
    assert w.detect_lost(MS) == []
    results(w, [5], MS)
    assert w.detect_lost(MS) == [0], "half of the window suffices"
    results(w, [0, *range(6, 10)], 2 * MS)
    for _ in range(12):
        w.sent(1, 2 * MS)
        w.detect_lost(w.loss_timer())
    assert (w.cwnd, w.train) == (2, 1)


@pytest.mark.parametrize("case", range(40))
def test_native_and_python_windows_are_the_same_machine(case):
    seed = int(os.environ.get("SWITCHAGG_TEST_SEED", "20211")) + case
    print("seed", seed)
    rng = random.Random(seed)
    slots = 2 ** rng.randint(1, 10)
    batch, limit, shared = rng.randint(1, 64), rng.randint(1, 600), case % 2 == 1
    threads, first_seq = rng.choice([1, 2, 3, 4, 8]), rng.randrange(1 << 32)
    pair = [kind(slots, batch, limit, shared, threads, first_seq) for kind in (Window, _native.Window)]
    now = 0
    in_flight: list[tuple[int, int]] = []
    loss = rng.choice([0.0, 0.01, 0.2])
    repeats = 0
    for _ in range(400):
        now += rng.choice([1, 1000, 50_000, 900_000, 30 * MS])
        room = pair[0].room()
        assert room == pair[1].room()
        n = rng.randint(0, room)
        first = pair[0].next
        timed = rng.random() < 0.8
        for w in pair:
            w.sent(n, now, timed)
        in_flight += [
            (q, now + rng.randint(1, 3 * MS)) for q in range(first, first + n) if rng.random() >= loss
        ]
        rng.shuffle(in_flight)
        here = [q for q, at in in_flight if at <= now]
        in_flight = [(q, at) for q, at in in_flight if at > now]
        if rng.random() < 0.1:
            here.append(rng.randint(0, first + n + 5))
        accepted = [[q for q in here if w.on_result(q)] for w in pair]
        for q in accepted[0]:
            if rng.random() < 0.02:
                for w in pair:
                    w.on_ce(q, now)
        if accepted[0] and rng.random() < loss:
            stamp = Window.stamp(now - rng.randint(0, 5 * MS))
            is_new = rng.random() < 0.5
            for w in pair:
                w.answered(stamp, is_new, now)
        for w in pair:
            w.acknowledge(accepted[0], now)
        assert accepted[0] == accepted[1]
        due = [w.detect_lost(now) for w in pair]
        assert due[0] == due[1]
        repeats += len(due[0])
        in_flight += [(q, now + rng.randint(1, 3 * MS)) for q in due[0] if rng.random() >= loss]
        state = [
            (
                w.base,
                w.next,
                w.cwnd,
                w.train,
                w.srtt,
                w.rttvar,
                w.rto,
                w.retransmissions,
                w.outstanding,
                w.loss_timer(),
            )
            for w in pair
        ]
        assert state[0] == state[1]
    assert pair[0].base > 0
    assert loss == 0.0 or slots < 8 or repeats > 0


class SimulatedJob:
    """Ranks with native windows around one switch, in virtual time; every packet may be lost, each way.

    With `each`, contributions of all `jobs` share a link that takes so many nanoseconds for one, behind a
    queue that holds `room` of them, and marks those that find `mark` in it; `shared`: the windows follow
    losses and marks.
    """

    def __init__(
        self, ranks: int, slots: int, loss: float, rng: random.Random, jobs: int = 1, each: int = 0,
        room: int = 0, shared: bool = False, mark: int | None = None,
    ) -> None:  # fmt: skip
        self.windows = [_native.Window(slots, 64, slots, shared) for _ in range(jobs * ranks)]
        self.ranks, self.each, self.room, self.free = ranks, each, room, 0
        self.mark, self.marked = mark, set[tuple[int, int]]()
        self.loss, self.rng = loss, rng
        self.path = MS // 10  # to the switch and back
        self.transmitted = 0
        self.events: list[tuple[int, int, str, int, int, int]] = []
        self.seen: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.wakes: list[float] = [math.inf] * len(self.windows)
        self.numbers = count()

    def post(self, at: int, kind: str, rank: int, q: int = 0, reply: int = 0) -> None:
        heapq.heappush(self.events, (at, next(self.numbers), kind, rank, q, reply))

    def transmit(self, now: int, kind: str, rank: int, q: int, reply: int = 0) -> None:
        self.transmitted += 1
        if kind == "contribution" and self.each:
            if self.free - now > self.room * self.each:
                return
            if self.mark is not None and self.free - now > self.mark * self.each:
                self.marked.add((rank // self.ranks, q))
            now = self.free = max(self.free, now) + self.each
        if self.rng.random() >= self.loss:
            self.post(now + self.path // 2, kind, rank, q, reply)

    def contribute(self, now: int, rank: int, q: int, reply: int) -> None:
        job = rank // self.ranks
        seen = self.seen[job, q]
        if len(seen) == self.ranks:
            self.transmit(now, "result", rank, q, reply)
            return
        seen.add(rank)
        if len(seen) == self.ranks:
            for to in range(job * self.ranks, (job + 1) * self.ranks):
                self.transmit(now, "result", to, q)

    def act(self, now: int, rank: int, total: int) -> None:
        window = self.windows[rank]
        for q in window.detect_lost(now):
            self.transmit(now, "contribution", rank, q, window.stamp(now))
        new = min(window.room(), total - window.next)
        first = window.next
        window.sent(new, now)
        for q in range(first, first + new):
            self.transmit(now, "contribution", rank, q)
        timer = window.loss_timer()
        if timer is not None and timer < self.wakes[rank]:
            self.wakes[rank] = timer
            self.post(timer, "timer", rank)

    def done(self) -> list[int]:
        """Packet numbers that are over, of each job."""
        bases = [w.base for w in self.windows]
        return [min(bases[k : k + self.ranks]) for k in range(0, len(bases), self.ranks)]

    def run(self, total: int, limit: int, now: int = 0) -> tuple[int, int]:
        """Until a job's ranks hold `total` RESULTs; returns when, and the longest RTO in the second half."""
        for rank in range(len(self.windows)):
            self.post(now + rank, "timer", rank)
        longest = 0
        while self.events and max(self.done()) < total:
            now, _, kind, rank, q, reply = heapq.heappop(self.events)
            assert now < limit, f"not done after {now / 1e9} s: {[w.base for w in self.windows]}"
            if kind == "contribution":
                self.contribute(now, rank, q, reply)
                continue
            window = self.windows[rank]
            if kind == "result":
                is_new = window.on_result(q)
                if is_new and (rank // self.ranks, q) in self.marked:
                    window.on_ce(q, now)
                if reply:
                    window.answered(reply, is_new, now)
                if is_new:
                    window.acknowledge([q], now)
            else:
                self.wakes[rank] = math.inf
            self.act(now, rank, total)
            if window.base > total // 2:
                longest = max(longest, window.rto)
        return now, longest


@pytest.mark.parametrize(
    ("ranks", "slots", "loss"),
    [pytest.param(16, 64, 0.05, id="16-ranks-5%"), pytest.param(32, 64, 0.1, id="32-ranks-10%"),
     pytest.param(4, 8, 0.2, id="4-ranks-8-slots-20%"), pytest.param(16, 512, 0.1, id="16-ranks-512-slots")],
)  # fmt: skip
def test_timers_of_ranks_do_not_raise_each_other_under_loss(ranks, slots, loss):
    """A rank that waits for its timer delays its next packets, and so the samples of all others."""
    rng = random.Random(seed_of_this_run())
    job = SimulatedJob(ranks, slots, loss, rng)
    total = 2500
    now, longest = job.run(total, limit=60_000 * MS)
    print(f"{total} packets a rank in {now / MS:.1f} ms of virtual time, RTO at most {longest / MS:.2f} ms")
    assert longest <= 16 * job.path


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05])
def test_timers_follow_a_path_that_becomes_slow_under_loss(loss):
    """Otherwise every packet would be sent again before its RESULT can be there, for ever."""
    job = SimulatedJob(4, 64, loss, random.Random(seed_of_this_run()))
    now, _ = job.run(2000, limit=60_000 * MS)
    assert max(w.rto for w in job.windows) < 2 * MS
    job.path = 5 * MS
    now, _ = job.run(3000, limit=60_000 * MS, now=now)
    assert min(w.rto for w in job.windows) > 5 * MS
    before = job.transmitted
    job.run(5000, limit=120_000 * MS, now=now)
    sent = (job.transmitted - before) / (2000 * 4)  # RESULTs too
    print(f"{sent:.2f} packets for each that is needed twice")
    assert sent < 4


@pytest.mark.parametrize(
    ("mark", "jobs", "ranks"),
    [(None, 2, 2), (None, 4, 2), (None, 1, 16), (20, 2, 2), (20, 4, 2), (20, 1, 16)],
)
def test_on_a_full_link_windows_that_follow_losses_share_it_and_send_little_again(mark, jobs, ranks):
    """Otherwise a full link loses most packets, and they are sent twice or thrice."""
    job = SimulatedJob(
        ranks, 512, 0.0, random.Random(seed_of_this_run()), jobs, MS // 8, room=100, shared=True, mark=mark
    )
    total = 4000 // ranks
    now, _ = job.run(total, limit=60_000 * MS)
    before, done = job.transmitted, job.done()
    job.run(2 * total, limit=120_000 * MS, now=now)
    shares = [here - then for here, then in zip(job.done(), done, strict=True)]
    sent = (job.transmitted - before) / (2 * ranks * sum(shares))
    print(f"{shares} of {jobs} jobs, {sent:.2f} packets for each that is needed")
    assert sent < (1.25 if mark is None else 1.01)
    assert sum(shares) ** 2 >= 0.85 * jobs * sum(each**2 for each in shares)

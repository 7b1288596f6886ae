"""The sender's window: packets that may be sent, those to send again, and the time for it. No clock.

A *packet number* counts a worker's packets in the job from 0; the sequence number on the wire is (first_seq +
packet number) mod 2^32 and its slot is base + (seq mod P). The rules that this file enforces:

* Packets are sent in order the first time, and packet q only when every RESULT up to q - P/2 is held.
  This is what makes it safe for the switch to overwrite a slot (docs/protocol.md, "Window").
* Every outstanding packet has a timer: RFC 6298's estimator with a floor of 0.5 ms; a packet that was
  retransmitted gives no round-trip sample (Karn's rule). Timers double, up to 50 ms, while they run out and
  no RESULT comes at all; they fall back with the first that does, so that random loss of a packet and its
  retransmissions does not add up to long waits. One sample is taken a flight, since many samples a round
  trip would make the estimator forget (RFC 7323, appendix G): its lower quartile, since a RESULT also waits
  for other workers' retransmissions, which are no property of the network. Packets that wait for other ranks
  to arrive, not for the network (plans), are never sampled. At most one batch is retransmitted for its
  timers in a round trip: a peer that is only late does not need the whole window once more.
* While packets are lost, a rank that waits for its timer delays what it sends next, and so every sample of
  all others: timers would raise each other without limit. So after a loss, known by the reordering threshold
  or because a RESULT came as the answer to a retransmission, and for 64 to 128 flights, the timeout is what
  the same estimator says of such answers, which wait for nobody; before the first one, at most 8 times the
  least round trip of those flights, since whoever is the last to send waits for nobody either. Without a
  loss the timeout is no less than these say: where every packet is sent again too early, no other sample
  comes. It is never more than 50 ms and 8 times the least round trip: a rank that loses nothing itself does
  not see that others do.
* A packet is lost by the reordering threshold when RESULTs of so many later packets are held (two batches,
  16 to 64, P/8 at most). It is retransmitted at once; after that, only RESULTs of packets first sent after
  the retransmission count. Of a switch with several threads, to which blocks of slots are dealt in turn, one
  of these must be of the packet's thread: each keeps the order of what it gets, and may be any time behind
  the others.
* The congestion window counts outstanding packets. It shrinks at most once a round trip (to 7/8 for a packet
  lost by the threshold, to 3/4 for a timer that ran out), never under one batch, and grows by a quarter of
  itself a round trip, at least a batch, up to `limit`. `limit` is what the socket buffers hold, so the
  window guards against unforeseen congestion, and random loss alone does not close it.
* With `shared` it follows losses and marks, as TCP's does. It starts at 10 packets, shrinks to half for a
  packet whose RESULT is missing while a later one's of its thread is held, which every rank has sent then,
  and to 3/4 for the timer of a packet that waits for nobody, both when it was sent once only; never under 2;
  and grows by half a packet a round trip, or by a quarter up to where the last such loss left it. At most a
  quarter of it is sent at once (a *train*), and half of it, 3 at least, suffices as reordering threshold. A
  timer is no less than twice what answers to retransmissions take: a queue makes other ranks late too. A
  RESULT that a queue has marked (ECN) shrinks it to 7/10, at most once a round trip, if its packet was sent
  after the window shrank last; from there it grows by half a packet a round trip.

`switchagg/native/worker/window.cpp` does the same in the engine; tests drive both with the same events.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from switchagg.wire.header import BLOCK_SLOTS

RTO_FLOOR_NS = 500_000
WHOLE_BATCHES = 3  # time-outs in a row without a RESULT, before repeats are fewer
RTO_CEILING_NS = 50_000_000
RTO_INITIAL_NS = 10_000_000
RTO_ROUND_TRIPS = 8
EPOCH_FLIGHTS = 64
STAMP_NS = 4096
REORDERING_LEAST = 16
REORDERING_MOST = 64
SHARED_INITIAL = 10
SHARED_LEAST = 2
SHARED_REORDERING_LEAST = 3


@dataclass(slots=True)
class _Outstanding:
    sent_at: int
    deadline: int
    mark: int  # RESULTs of packets from here on count towards the threshold
    timed: bool  # sent once, and its RESULT is a measure of the round trip
    done: bool = False


@dataclass(slots=True)
class RoundTrip:
    """The estimator of RFC 6298. `srtt` is 0 before the first sample."""

    srtt: int = 0
    rttvar: int = 0

    def add(self, rtt: int) -> None:
        """Takes in a sample."""
        if self.srtt == 0:
            self.srtt = max(rtt, 1)
            self.rttvar = rtt // 2
        else:
            self.rttvar += (abs(self.srtt - rtt) - self.rttvar) // 4
            self.srtt = max(self.srtt + (rtt - self.srtt) // 8, 1)

    @property
    def rto(self) -> int:
        """The timeout without floor and ceiling."""
        return self.srtt + 4 * self.rttvar


@dataclass(slots=True)
class _Epoch:
    """Of some flights: the least round trip, and whether a packet is known to be lost in one."""

    least: float = math.inf
    lossy: bool = False


class Window:
    """Sender state of one worker in one job. Times are integers in nanoseconds from any fixed start.

    Args:
        slots: P, the job's slots; a power of two, at least 2.
        batch: packets that one batch of datagrams holds; the congestion window never falls under it.
        limit: most outstanding packets that the socket buffers hold; capped at P/2.
        shared: the congestion window follows losses and marks.
        threads: those of the switch, to which blocks of slots are dealt in turn.
        first_seq: the sequence number of packet 0.
    """

    def __init__(
        self, slots: int, batch: int, limit: int, shared: bool = False, threads: int = 1, first_seq: int = 0
    ) -> None:
        self.span = slots // 2
        self._threads = max(1, min(threads, slots // BLOCK_SLOTS))  # no more have slots of this job
        self._first_seq = first_seq
        self.limit = max(1, min(limit, self.span))
        self.batch = max(1, min(batch, self.limit))
        wanted = max(2 * batch, REORDERING_LEAST)
        self.reordering_threshold = max(1, min(wanted, REORDERING_MOST, self.span // 4))
        self.base = 0
        self.next = 0
        self.shared = shared
        self.cwnd = min(SHARED_INITIAL, self.limit) if shared else self.limit
        self._least_cwnd = min(SHARED_LEAST, self.limit) if shared else self.batch
        self._fast_below = self.limit  # shared: the window after the last loss
        self._measured = RoundTrip()  # of flights
        self._path = RoundTrip()  # of answers to retransmissions
        self._estimate = RTO_INITIAL_NS
        self.retransmissions = 0
        self._credit = 0
        self._samples: list[int] = []  # round trips of this flight
        self._flight_end = 0
        self._present = _Epoch()
        self._last = _Epoch()
        self._flights = 0  # of the present epoch
        self._timers_held_until = 0
        self._backoff = 0
        self._unanswered = 0  # time-outs in a row after which no RESULT came
        self._backed_off_at = 0
        self._progress = False  # has a RESULT come since the last time-out?
        self._shrunk_at: int | None = None
        self._held = 0
        self._high = 0  # one past the highest packet number whose RESULT is held
        self._entries: dict[int, _Outstanding] = {}

    @property
    def outstanding(self) -> int:
        """Packets sent whose RESULT is not held."""
        return self.next - self.base - self._held

    @property
    def train(self) -> int:
        """Packets that may be sent at once."""
        return min(max(self.cwnd // 4, 1), self.batch) if self.shared else self.batch

    @property
    def srtt(self) -> int:
        """The smoothed round trip; 0 before the first sample."""
        return self._measured.srtt

    @property
    def rttvar(self) -> int:
        """Its variation."""
        return self._measured.rttvar

    @property
    def rto(self) -> int:
        """The retransmission timeout: the estimate, under loss that of the path alone."""
        lossy = self._present.lossy or self._last.lossy
        least = min(self._present.least, self._last.least)
        most = max(RTO_ROUND_TRIPS * least, RTO_FLOOR_NS if lossy else RTO_CEILING_NS)
        rto = int(min(self._estimate, most))
        if not self._path.srtt:
            return rto
        behind = 2 * self._path.srtt if self.shared else 0
        return max(self._path.rto, RTO_FLOOR_NS, 0 if lossy else rto, behind)

    @property
    def round_trip(self) -> int:
        """Time between two retransmissions by timer, and between two shrinkings of the window."""
        return min(self.srtt, self.rto) if self.srtt else self.rto

    @property
    def timeout(self) -> int:
        """The time that a timer that starts now is set to."""
        return min(self.rto << self._backoff, max(self.rto, RTO_CEILING_NS))

    def room(self) -> int:
        """The number of new packets that may be sent now."""
        return max(0, min(self.span - (self.next - self.base), self.cwnd - self.outstanding))

    def sent(self, count: int, now: int, timed: bool = True) -> None:
        """Packets next .. next + count - 1 have been sent for the first time.

        `timed`: they give round-trip samples."""
        for q in range(self.next, self.next + count):
            self._entries[q] = _Outstanding(now, now + self.timeout, q + 1, timed)
        self.next += count

    def on_result(self, packet_number: int) -> bool:
        """Marks a RESULT as held. False if it is outside the window or already held: to be ignored."""
        entry = self._entries.get(packet_number)
        if entry is None or entry.done:
            return False
        entry.done = True
        self._progress = True
        self._held += 1
        self._high = max(self._high, packet_number + 1)
        return True

    def on_ce(self, packet_number: int, now: int) -> None:
        """The RESULT of a packet number, just held, says that a queue has marked packets."""
        sent_at = self._entries[packet_number].sent_at
        later = self._shrunk_at is None or sent_at > self._shrunk_at
        if self.shared and later and self._shrink(7, 10, now):
            self._fast_below = self.cwnd

    @staticmethod
    def stamp(now: int) -> int:
        """The `reply` of a retransmission: the time in steps of 4.1 us, 1 to 65,535 and then again."""
        return now // STAMP_NS % 0xFFFF + 1

    def answered(self, stamp: int, is_new: bool, now: int) -> None:
        """A RESULT came as the answer to a retransmission of that time. If it is new, that for all was lost.

        It is a measure of the path: nobody was waited for.
        """
        self._present.lossy |= is_new
        self._path.add(((self.stamp(now) - stamp) % 0xFFFF + 1) * STAMP_NS)  # stamps are cut off

    def acknowledge(self, accepted: Iterable[int], now: int) -> None:
        """Takes in one batch of accepted packets: one round-trip sample, window growth, new base."""
        count = 0
        for q in accepted:
            entry = self._entries[q]
            count += 1
            if entry.timed:
                self._samples.append(now - entry.sent_at)
        self._grow(count)
        while self.base < self.next and self._entries[self.base].done:
            del self._entries[self.base]
            self.base += 1
            self._held -= 1
        if self.base < self._flight_end:
            return
        if self._samples:
            ordered = sorted(self._samples)
            self._present.least = min(self._present.least, ordered[0])
            self._sample(ordered[(len(ordered) - 1) // 4])
            self._samples.clear()
        self._flight_end = self.next
        self._flights += 1
        if self._flights == EPOCH_FLIGHTS:
            if not self._present.lossy:
                self._path = RoundTrip()
            self._last, self._present, self._flights = self._present, _Epoch(), 0

    def detect_lost(self, now: int) -> list[int]:
        """Packets to send again now, lowest first; their timers are set anew.

        At most one train. After `WHOLE_BATCHES` time-outs in a row that no RESULT followed, half of it, then
        half of that, down to one packet: where only the first packets of a batch ever arrive, and each rank
        sends others first, ranks would lose the rest again and again.
        """
        out: list[int] = []
        held = [q for q in range(self.base, self._high) if self._entries[q].done]
        loss = timer = missing = silent = False
        most, enough = self.train, self.reordering_threshold
        if self.shared:
            enough = min(enough, max(SHARED_REORDERING_LEAST, self.cwnd // 2))
        for q in range(self.base, self.next):
            if len(out) >= most:
                break
            entry = self._entries[q]
            if entry.done:
                continue
            later = held[bisect_left(held, entry.mark) :]
            passed = any(self.thread_of(each) == self.thread_of(q) for each in reversed(later))
            if now >= max(entry.deadline, self._timers_held_until):
                if not timer:
                    self._back_off(now)
                    most = max(1, self.train >> max(0, self._unanswered - WHOLE_BATCHES))
                timer = True
            elif len(later) >= enough and passed:
                loss = True
            else:
                continue
            missing |= passed and entry.mark == q + 1
            silent |= not passed and entry.timed
            entry.timed = False
            entry.mark = self.next
            entry.deadline = now + self.timeout
            out.append(q)
        self.retransmissions += len(out)
        if timer:
            self._timers_held_until = now + self.round_trip
        if self.shared:
            if missing and self._shrink(1, 2, now):
                self._fast_below = self.cwnd
            if silent:
                self._shrink(3, 4, now)
        elif timer:
            self._shrink(3, 4, now)
        elif loss:
            self._shrink(7, 8, now)
        self._present.lossy |= loss
        return out

    def loss_timer(self) -> int | None:
        """Time at which the earliest timer runs out; None with nothing outstanding."""
        earliest = min((e.deadline for e in self._entries.values() if not e.done), default=None)
        return None if earliest is None else max(earliest, self._timers_held_until)

    def thread_of(self, packet_number: int) -> int:
        """The switch's thread that has the packet's slot, counted from that of the job's first slot."""
        slot = (self._first_seq + packet_number) % (2 * self.span)
        return slot // BLOCK_SLOTS % self._threads

    def _sample(self, rtt: int) -> None:
        self._measured.add(rtt)
        self._estimate = max(self._measured.rto, RTO_FLOOR_NS)

    def _back_off(self, now: int) -> None:
        self._unanswered = 0 if self._progress else self._unanswered + 1
        if self._progress:
            self._backoff = 0
        elif now - self._backed_off_at >= self.timeout < RTO_CEILING_NS:
            self._backoff += 1
        else:
            return
        self._progress = False
        self._backed_off_at = now

    def _grow(self, count: int) -> None:
        halves = 2 * max(self.batch, self.cwnd // 4)
        if self.shared:
            halves = 2 * max(1, self.cwnd // 4) if self.cwnd < self._fast_below else 1
        self._credit += count * halves
        steps, self._credit = divmod(self._credit, 2 * self.cwnd)
        self.cwnd = min(self.cwnd + steps, self.limit)

    def _shrink(self, numerator: int, denominator: int, now: int) -> bool:
        if self._shrunk_at is not None and now - self._shrunk_at < self.round_trip:
            return False
        self._shrunk_at = now
        self.cwnd = max(self.cwnd * numerator // denominator, self._least_cwnd)
        return True

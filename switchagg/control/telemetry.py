"""The counts in a job's heartbeats, as a history of rates and as input of its skip tuner. No I/O, no clock.

Heartbeats carry counts since the member's admission. Once a second the history gets a point: of each member,
the difference between its latest count and the one that the previous point was made from, over the time
between these two. So a heartbeat that comes a little late makes no dent. A member that has sent no heartbeat
for STALE seconds counts as idle. The history is bounded to ten minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from switchagg.control.answers import RatesView
from switchagg.control.jobs.job import Job, Member
from switchagg.rules.policy import Decision, SkipTuner
from switchagg.wire.heartbeat import FIELDS, Report

INTERVAL: Final = 1.0  # seconds
POINTS: Final = 600
RECENT: Final = 3  # points that the current rates are the mean of
STALE: Final = 2.5  # seconds


@dataclass(slots=True)
class _Track:
    """The counts of one member."""

    anchor: Mapping[str, int]
    anchored: float
    latest: Mapping[str, int]
    heard: float
    rates: dict[str, float] = field(default_factory=dict)

    def advance(self, now: float) -> None:
        elapsed = self.heard - self.anchored
        if elapsed > 0:
            self.rates = {
                name: _grown(self.anchor.get(name, 0), value) / elapsed for name, value in self.latest.items()
            }
            self.anchor, self.anchored = self.latest, self.heard
        elif now - self.heard > STALE:
            self.rates = {}


@dataclass(frozen=True, slots=True)
class Point:
    """One second of a job. Ratios are None if their denominator is 0."""

    t: float  # unix seconds
    GBps: float  # 1e9 bytes of tensors that a member reduced in a second, on average over the members
    packets_per_s: float  # sent by all members
    loss: float | None  # retransmissions over packets sent
    skip_ratio: float | None  # the share of blocks that no member sent
    density: float | None  # the share of blocks that are not zero at a member
    retransmissions: float  # per second, of all members
    collectives: float  # per second, of one member on average
    rtt_us: float | None  # mean round trip in microseconds
    exact: float | None  # the share of elements that are summed exactly
    bounded: float | None  # the share in bounded sums
    refined: float | None  # of these, the share that takes more words


class History:
    """The points of one job, of its latest ten minutes."""

    def __init__(self) -> None:
        self._tracks: dict[bytes, _Track] = {}
        self._points: deque[Point] = deque(maxlen=POINTS)

    def heard(self, member: bytes, fields: Mapping[str, int], now: float) -> None:
        """Takes the counts of a heartbeat, from the member with this cookie."""
        track = self._tracks.get(member)
        if track is None:
            self._tracks[member] = _Track(fields, now, fields, now)
        else:
            track.latest, track.heard = fields, now

    def forget(self, member: bytes) -> None:
        """Drops a member that has left or is lost."""
        self._tracks.pop(member, None)

    def sample(self, now: float, unix: float) -> None:
        """Appends a point, once a second; nothing before the first heartbeat."""
        if not self._tracks:
            return
        for track in self._tracks.values():
            track.advance(now)
        rates = [track.rates for track in self._tracks.values()]

        def total(name: str) -> float:
            return sum(rate.get(name, 0.0) for rate in rates)

        sent, blocks = total("packets_sent"), total("blocks_total")

        def share(name: str, of: str) -> float | None:
            whole = total(of)
            return min(1.0, total(name) / whole) if whole else None

        trips = [trip for track in self._tracks.values() if (trip := track.latest.get("rtt_ns", 0)) > 0]
        self._points.append(
            Point(
                t=unix,
                GBps=total("bytes_reduced") / len(rates) / 1e9,
                packets_per_s=total("packets_sent"),
                loss=min(1.0, total("retransmissions") / sent) if sent else None,
                skip_ratio=max(0.0, 1 - total("blocks_union") / blocks) if blocks else None,
                density=min(1.0, total("blocks_own") / blocks) if blocks else None,
                retransmissions=total("retransmissions"),
                collectives=total("collectives") / len(rates),
                rtt_us=sum(trips) / len(trips) / 1000 if trips else None,
                exact=share("exact_elements", "elements"),
                bounded=share("bounded_elements", "elements"),
                refined=share("refined_elements", "bounded_elements"),
            )
        )

    def rates(self) -> RatesView | None:
        """Returns the means of the last seconds; None before the first point."""
        recent = list(self._points)[-RECENT:]
        if not recent:
            return None
        names = RatesView.__annotations__
        return cast(RatesView, {name: _mean([getattr(point, name) for point in recent]) for name in names})

    def points(self) -> list[dict[str, Any]]:
        """Returns the points, oldest first, as JSON's types."""
        return [{name: _rounded(getattr(point, name)) for name in Point.__slots__} for point in self._points]


class Tuning:
    """Feeds the skip tuner of one job (`switchagg.rules.policy`) with counts since the previous heartbeat.

    A generation with another number of workers gets a new tuner, which starts with the job's policy.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._first = True
        self._workers = 0
        self._tuner: SkipTuner | None = None
        self._last: dict[int, Report] = {}  # by the rank in the generation

    def heard(self, job: Job, member: Member, counts: Mapping[str, int], now: float) -> Decision | None:
        """Takes a member's counts. Returns the policy to announce, if there is one to announce."""
        generation = job.generation
        if generation is None or not generation.open or member.rank not in generation.places:
            return None
        if generation.id != self._generation:
            self._first = self._generation == 0
            self._generation = generation.id
            self._last = {}
            if self._tuner is None or self._workers != len(generation.places):
                self._workers = len(generation.places)
                self._tuner = SkipTuner(self._workers, job.policy)
        assert self._tuner is not None
        rank = generation.places.index(member.rank)
        report = Report(**{name: counts.get(name, 0) for name in FIELDS})
        before = self._last.get(rank, Report() if self._first else None)
        self._last[rank] = report
        # In a later generation, the first counts may still be of the one before.
        return None if before is None else self._tuner.observe(now, {rank: report.since(before)})


class Telemetry:
    """The histories of all jobs; with `tuned`, their skip policies are tuned too."""

    def __init__(self, *, tuned: bool) -> None:
        self._tuned = tuned
        self._histories: dict[int, History] = {}  # by the number of the job
        self._tunings: dict[int, Tuning] = {}

    def heard(self, member: Member, counts: Mapping[str, int], now: float) -> Decision | None:
        """Takes the counts of a heartbeat. Returns the skip policy to announce, if there is one."""
        job = member.job
        self._histories.setdefault(job.number, History()).heard(member.cookie, counts, now)
        if not self._tuned:
            return None
        return self._tunings.setdefault(job.number, Tuning()).heard(job, member, counts, now)

    def history(self, job: Job) -> History | None:
        """Returns a job's history; None before its first heartbeat."""
        return self._histories.get(job.number)

    def sample(self, now: float, unix: float) -> None:
        """Appends a point to every history."""
        for history in self._histories.values():
            history.sample(now, unix)

    def forget_member(self, member: Member) -> None:
        """Drops a member that has left or is lost."""
        if (history := self.history(member.job)) is not None:
            history.forget(member.cookie)

    def forget_job(self, job: Job) -> None:
        """Drops a job that has ended."""
        self._histories.pop(job.number, None)
        self._tunings.pop(job.number, None)


def _grown(before: int, after: int) -> int:
    return after - before if after >= before else after  # a new admission counts from 0


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return _rounded(sum(there) / len(there)) if there else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}") if abs(value) < 1e6 else round(value, 3)

"""What a job did, second by second, from its members' heartbeats. Bounded: ten minutes. No I/O and no clock.

Heartbeats carry counts since the admission. A point is made once a second from the difference of each
member's latest count and the one that the last point was made from, divided by the time between these two,
so that a heartbeat that comes a little late makes no dent. A member that has said nothing new for STALE
seconds does nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from switchagg.control.answers import RatesView

INTERVAL: Final = 1.0  # seconds
POINTS: Final = 600
RECENT: Final = 3  # points that the rates shown now are the mean of
STALE: Final = 2.5  # seconds


@dataclass(slots=True)
class _Track:
    """One member's counts."""

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
    """One second of a job. Ratios are None where there was nothing to take them of.

    Attributes:
        t: unix seconds.
        GBps: 1e9 bytes of tensors that a member reduced in a second, on average over the members.
        packets_per_s: that all members sent.
        loss: retransmissions over packets sent.
        skip_ratio: blocks that nobody sent, of all.
        density: blocks that a member had anything in, of all.
        retransmissions, collectives: in a second; all members' and a member's.
        rtt_us: mean round trip in microseconds.
    """

    t: float
    GBps: float
    packets_per_s: float
    loss: float | None
    skip_ratio: float | None
    density: float | None
    retransmissions: float
    collectives: float
    rtt_us: float | None


class History:
    """One job's points."""

    def __init__(self) -> None:
        self._tracks: dict[bytes, _Track] = {}
        self._points: deque[Point] = deque(maxlen=POINTS)

    def heard(self, member: bytes, fields: Mapping[str, int], now: float) -> None:
        """Takes the counts of a member's heartbeat."""
        track = self._tracks.get(member)
        if track is None:
            self._tracks[member] = _Track(fields, now, fields, now)
        else:
            track.latest, track.heard = fields, now

    def forget(self, member: bytes) -> None:
        """A member is gone."""
        self._tracks.pop(member, None)

    def sample(self, now: float, unix: float) -> None:
        """Makes a point; called once a second. Does nothing before the first heartbeat."""
        if not self._tracks:
            return
        for track in self._tracks.values():
            track.advance(now)
        rates = [track.rates for track in self._tracks.values()]

        def total(name: str) -> float:
            return sum(rate.get(name, 0.0) for rate in rates)

        sent, blocks = total("packets_sent"), total("blocks_total")
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
            )
        )

    def rates(self) -> RatesView | None:
        """Returns the means of the last seconds; None before there was a point."""
        recent = list(self._points)[-RECENT:]
        if not recent:
            return None
        return {
            "GBps": _mean([point.GBps for point in recent]),
            "packets_per_s": _mean([point.packets_per_s for point in recent]),
            "loss": _mean([point.loss for point in recent]),
            "skip_ratio": _mean([point.skip_ratio for point in recent]),
            "density": _mean([point.density for point in recent]),
            "rtt_us": _mean([point.rtt_us for point in recent]),
        }

    def points(self) -> list[dict[str, Any]]:
        """Returns the points, oldest first, as JSON's types."""
        return [{name: _rounded(getattr(point, name)) for name in Point.__slots__} for point in self._points]


def _grown(before: int, after: int) -> int:
    return after - before if after >= before else after  # counted from 0 again: it was admitted anew


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return _rounded(sum(there) / len(there)) if there else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}") if abs(value) < 1e6 else round(value, 3)

"""Histories of jobs, made from heartbeats."""

from __future__ import annotations

import pytest

from switchagg.control.telemetry import POINTS, History

A, B = b"a" * 16, b"b" * 16


def beat(history: History, member: bytes, now: float, scale: int, **more: int) -> None:
    counts = {
        "bytes_reduced": 10**9,
        "packets_sent": 1000,
        "retransmissions": 10,
        "blocks_total": 100,
        "blocks_own": 25,
        "blocks_union": 40,
        "collectives": 2,
    }
    history.heard(member, {name: scale * value for name, value in counts.items()} | more, now)


def test_rates_are_of_the_time_between_heartbeats() -> None:
    history = History()
    history.sample(0.0, 1000.0)
    assert (history.points(), history.rates()) == ([], None)
    for member in (A, B):
        beat(history, member, 0.0, 0)
    for second in range(1, 5):
        for member in (A, B):
            beat(history, member, second - 0.3 * (second % 2), second, rtt_ns=80_000)  # early and late
        history.sample(float(second), 1000.0 + second)
    rates = history.rates()
    assert rates is not None
    assert rates["GBps"] == pytest.approx(1.0, rel=0.3)
    assert rates["packets_per_s"] == pytest.approx(2000, rel=0.3)
    assert {name: rates[name] for name in ("loss", "density", "skip_ratio", "rtt_us")} == pytest.approx(
        {"loss": 0.01, "density": 0.25, "skip_ratio": 0.6, "rtt_us": 80.0}, rel=1e-5
    )
    assert [point["t"] for point in history.points()] == [1001.0, 1002.0, 1003.0, 1004.0]


def test_a_silent_member_does_nothing_and_a_new_admission_counts_from_zero() -> None:
    history = History()
    beat(history, A, 0.0, 0)
    beat(history, A, 1.0, 5)
    history.sample(1.0, 0.0)
    assert history.points()[-1]["GBps"] == pytest.approx(5.0)
    history.sample(2.0, 0.0)
    assert history.points()[-1]["GBps"] == pytest.approx(5.0)  # late, perhaps
    history.sample(4.0, 0.0)
    last = history.points()[-1]
    assert (last["GBps"], last["loss"], last["density"]) == (0.0, None, None)
    beat(history, A, 5.0, 1)  # less than 5: counted anew
    history.sample(5.0, 0.0)
    assert history.points()[-1]["GBps"] == pytest.approx(0.25)
    history.forget(A)
    history.forget(A)
    history.sample(6.0, 0.0)
    assert len(history.points()) == 4


def test_ten_minutes_are_kept() -> None:
    history = History()
    for second in range(POINTS + 50):
        beat(history, A, float(second), second)
        history.sample(float(second), float(second))
    points = history.points()
    assert (len(points), points[0]["t"], points[-1]["t"]) == (POINTS, 50.0, POINTS + 49.0)

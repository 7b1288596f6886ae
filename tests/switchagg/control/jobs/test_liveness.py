"""The clocks of members."""

from __future__ import annotations

from switchagg.control.jobs.liveness import Liveness


def test_silence_for_longer_than_the_deadline() -> None:
    clocks = Liveness()
    clocks.watch(b"a", 10.0, 100.0)
    clocks.watch(b"b", 3.0, 100.0)
    assert clocks.overdue(102.9) == []
    clocks.heard(b"b", 102.9)
    assert clocks.overdue(105.8) == []
    assert clocks.overdue(106.0) == [(b"b", 106.0 - 102.9)]
    assert clocks.overdue(107.0) == []  # once
    clocks.heard(b"b", 107.0)
    assert (clocks.silent(b"a", 107.0), clocks.silent(b"b", 107.0)) == (7.0, None)
    clocks.forget(b"a")
    clocks.forget(b"a")
    assert clocks.overdue(1000.0) == []


def test_a_heartbeat_that_was_overtaken_changes_nothing() -> None:
    clocks = Liveness()
    clocks.watch(b"a", 5.0, 0.0)
    clocks.heard(b"a", 4.0)
    clocks.heard(b"a", 3.0)
    assert clocks.overdue(8.9) == []
    assert clocks.overdue(9.0)


def test_a_clock_that_is_hurried_runs_out_sooner_unless_the_member_is_heard() -> None:
    clocks = Liveness()
    for cookie in (b"a", b"b"):
        clocks.watch(cookie, 10.0, 0.0)
        clocks.hurry(cookie, 6.0)
        clocks.hurry(cookie, 8.0)  # never later
    clocks.hurry(b"c", 1.0)  # not watched
    clocks.heard(b"b", 3.0)
    assert clocks.overdue(5.9) == []
    assert clocks.overdue(6.0) == [(b"a", 6.0)]
    assert clocks.overdue(12.9) == []
    assert clocks.overdue(13.0) == [(b"b", 10.0)]


def test_grace_is_for_the_first_time_only() -> None:
    clocks = Liveness()
    clocks.watch(b"a", 1.0, 0.0, grace=5.0)
    assert clocks.overdue(4.9) == []
    clocks.heard(b"a", 4.9)
    assert clocks.overdue(5.8) == []
    assert clocks.overdue(5.9) == [(b"a", 1.0)]
    clocks.watch(b"b", 1.0, 10.0, grace=5.0)
    clocks.heard(b"b", 10.5)
    assert clocks.overdue(11.5) == [(b"b", 1.0)]


def test_who_could_not_listen_forgives() -> None:
    clocks = Liveness()
    clocks.watch(b"a", 2.0, 0.0)
    clocks.extend(60.0)
    assert clocks.overdue(61.9) == []
    assert clocks.overdue(62.0)

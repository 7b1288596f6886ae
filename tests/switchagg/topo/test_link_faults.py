"""Faults of one direction of a link."""

from __future__ import annotations

import pytest

from switchagg.errors import UsageError
from switchagg.topo.link_faults import LinkDirection, LinkFaults, link_faults, seconds


def test_a_link_without_faults_is_a_cable() -> None:
    way = LinkDirection(LinkFaults(), "0 forth")
    assert [way.offer(size, 5.0) for size in (60, 1514, 9014)] == [5.0, 5.0, 5.0]
    assert (way.counts.frames, way.counts.bytes, way.counts.lost) == (3, 10588, 0)


def test_loss_is_as_likely_as_said_and_the_same_again() -> None:
    faults = LinkFaults(loss=0.1, seed=7)
    ways = [LinkDirection(faults, stream) for stream in ("0 forth", "0 forth", "0 back")]
    fates = [[way.offer(100, 0.0) is None for _ in range(5000)] for way in ways]
    assert fates[0] == fates[1] != fates[2]
    for way, fate in zip(ways, fates, strict=True):
        assert way.counts.lost == sum(fate)
        assert 400 < sum(fate) < 600  # 7 standard deviations


def test_a_rate_is_that_of_the_wire() -> None:
    # 1,226 bytes and 24 of framing are 10,000 bits; small frames are filled up to 60 bytes.
    way = LinkDirection(LinkFaults(rate=10.0), "0")
    assert [way.offer(1226, 0.0) for _ in range(3)] == pytest.approx([0.001, 0.002, 0.003])
    assert way.offer(1226, 10.0) == pytest.approx(10.001)
    assert way.offer(14, 20.0) == pytest.approx(20 + 84 * 8 / 10e6)


def test_what_comes_when_the_queue_is_full_is_dropped() -> None:
    way = LinkDirection(LinkFaults(rate=10.0, queue=2), "0")
    assert way.offer(1226, 0.0) is not None
    assert way.offer(1226, 0.0) is not None
    assert way.offer(1226, 0.0005) is None
    assert way.offer(1226, 0.0015) == pytest.approx(0.003)
    assert (way.counts.frames, way.counts.overflowed, way.counts.lost) == (3, 1, 0)


def test_delay_and_jitter() -> None:
    way = LinkDirection(LinkFaults(delay=0.02, jitter=0.01), "0")
    late = [way.offer(100, 1.0) or 0.0 for _ in range(200)]
    assert all(1.02 <= each < 1.03 for each in late)
    assert late != sorted(late)


def test_other_faults_hold_from_now_on() -> None:
    way = LinkDirection(LinkFaults(loss=1.0), "0")
    assert way.offer(100, 0.0) is None
    way.change(LinkFaults())
    assert way.offer(100, 1.0) == 1.0
    assert way.counts.lost == 1


def test_words() -> None:
    given = link_faults(delay="5ms", jitter="200us", rate="100", loss="0.01", queue="9", seed=3)
    assert given == LinkFaults(loss=0.01, delay=5 * 1e-3, jitter=200 * 1e-6, rate=100.0, queue=9, seed=3)
    assert seconds("0.1s") == seconds(0.1) == seconds("0.1") == 0.1
    assert not LinkFaults(seed=4).any
    assert LinkFaults(rate=1.0).any


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"loss": 1.5}, "loss is 1.5; accepted: a probability"),
        ({"loss": "often"}, "loss is 'often'; accepted: a number"),
        ({"delay": "5 min"}, "delay is '5 min'; accepted: seconds such as 5ms"),
        ({"delay": 11}, "delay is 11.0; accepted: 0 to 10 seconds"),
        ({"rate": -1}, "rate is -1.0; accepted"),
        ({"rate": float("nan")}, "rate is nan; accepted"),
        ({"queue": 0}, "queue is 0; accepted"),
        ({"seed": -1}, "seed is -1; accepted"),
        ({"speed": 1}, "a link has no 'speed'; accepted: delay, jitter, loss, queue, rate, seed"),
    ],
)
def test_what_no_link_can_do(given: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError) as raised:
        link_faults(**given)
    assert named in str(raised.value)

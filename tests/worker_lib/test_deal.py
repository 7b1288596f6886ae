"""The engine's dealing of packets to stripes against the reference, and the weights that it comes to."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from switchagg.wire.header import MAX_STRIPES, MAX_WEIGHT
from tests.reference import deal as reference
from tests.seeds import seed_of_this_run
from worker_lib import _native


def test_packets_are_dealt_as_in_the_reference() -> None:
    """Through changes of weights; packets of the last P numbers of each stripe are found again."""
    rng = random.Random(seed_of_this_run())
    for _ in range(20):
        count, kept = rng.randint(2, MAX_STRIPES), rng.choice([2, 16, 64])
        weights = [rng.randint(1, MAX_WEIGHT) for _ in range(count)]
        native, right = _native.Deal(weights, kept), reference.Deal(weights)
        at, before = 0, [0] * count
        for _ in range(12):
            end = at + rng.choice([1, 2, 50, 400])
            for q in range(at, end):
                stripe, number = right.place(q)
                assert native.place(q) == (stripe, number)
                assert number == before[stripe]
                before[stripe] += 1
            for q in range(end):
                stripe, number = right.place(q)
                if number >= before[stripe] - kept:
                    assert native.packet_number(stripe, number) == q
            change = rng.randint(0, count), rng.randint(0, MAX_WEIGHT + 1)  # some cannot be
            native.change(end, *change)
            right.change(end, *change)
            assert list(native.weights) == right.weights
            at = end


def test_equal_weights_deal_in_turn() -> None:
    deal = _native.Deal([MAX_WEIGHT] * 3, 64)
    assert [deal.place(q) for q in range(200)] == [(q % 3, q // 3) for q in range(200)]


def test_rates_are_as_in_the_reference() -> None:
    rng = random.Random(seed_of_this_run())
    for _ in range(200):
        count = rng.randint(2, MAX_STRIPES)
        weights = [rng.randint(1, MAX_WEIGHT) for _ in range(count)]
        both = _native.StripeRates(weights, 100), reference.StripeRates(weights, 100)
        now = 0
        for _ in range(60):
            packets, waits = rng.randint(0, 99), rng.choice([None, rng.randrange(count)])
            for each in both:
                each.begin(now, packets, waits)
            now += rng.choice([0, 10, 1000, 1_000_000])
            for each in both:
                each.end(now)
            if rng.random() < 0.5:
                (stripe, weight), right = (each.next(weights) for each in both)
                assert (stripe, weight) == right
                assert weight <= MAX_WEIGHT
                if weight:
                    weights[stripe] = weight


def _time(rates: Sequence[float], weights: Sequence[int]) -> list[float]:
    """The time that each stripe needs for its share of a packet."""
    return [weight / sum(weights) / rate for rate, weight in zip(rates, weights, strict=True)]


@pytest.mark.parametrize("rates", [(2.0, 1.0), (1.0, 1.0), (1.0, 8.0), (3.0, 2.0), (4.0, 4.0, 1.0, 2.0)])
def test_weights_come_to_suit_the_rates(rates: tuple[float, ...]) -> None:
    """And stay near them: others wait for the slowest only."""
    weights, best = [MAX_WEIGHT] * len(rates), 1 / sum(rates)
    measured, now, times = _native.StripeRates(weights, 1000), 0, []
    for _ in range(40):
        each = _time(rates, weights)
        slowest = max(each)
        # Windows are full at first, and so nobody waits in a part of the time; nor if all are as slow.
        waits = each.index(slowest) if slowest > 1.05 * sorted(each)[-2] or len(set(each)) > 2 else None
        for share, stripe in ((0.3, None), (0.7, waits)):
            measured.begin(now, 500, stripe)
            now += int(share * 1000 * slowest * 1e6)
            measured.end(now)
        for _ in rates:
            stripe, weight = measured.next(weights)
            if weight:
                weights[stripe] = weight
        times.append(max(_time(rates, weights)))
    assert max(times[25:]) < 1.35 * best, times
    assert sorted(times)[20] < 1.1 * best, times

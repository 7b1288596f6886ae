"""Packet numbers dealt to several switches by weights, and the weights that suit their rates.

Packet numbers are dealt by smooth weighted round-robin: each stripe gets its weight as credit, the one with
the most credit gets the packet, and pays the sum of all weights. From the packet after a header on, one
stripe may have another weight; then the credits begin anew.

    weights 2, 1        q   0 1 2 3 4 5 6         stripe 0 has numbers 0 (q 0), 1 (q 2), 2 (q 3), 3 (q 5) ...
                   stripe   0 1 0 0 1 0 0         stripe 1 has numbers 0 (q 1), 1 (q 4) ...

docs/protocol.md, section 16, has the rules. `switchagg/native/worker/deal.cpp` does the same in the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from switchagg.wire.header import MAX_WEIGHT

FIRST_GROWTH: Final = 8
MOST_GROWTH: Final = 16


def turns(weights: Sequence[int]) -> Iterator[int]:
    """Yields the stripe of each packet."""
    credit = [0] * len(weights)
    while True:
        credit = [had + weight for had, weight in zip(credit, weights, strict=True)]
        stripe = credit.index(max(credit))
        credit[stripe] -= sum(weights)
        yield stripe


class Deal:
    """The stripes of all packets so far, by packet number."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = list(weights)
        self._dealt: list[tuple[int, int]] = []  # each packet's stripe, and its number there
        self._numbers = [0] * len(weights)
        self._next = turns(self.weights)

    def change(self, first: int, stripe: int, weight: int) -> None:
        """Gives a stripe another weight from packet number `first` on; not where one of them cannot be."""
        if 0 < weight <= MAX_WEIGHT and stripe < len(self.weights) and weight != self.weights[stripe]:
            self._deal_to(first)
            self.weights[stripe] = weight
            self._next = turns(self.weights)

    def place(self, packet_number: int) -> tuple[int, int]:
        """Returns a packet's stripe, and its number there."""
        self._deal_to(packet_number + 1)
        return self._dealt[packet_number]

    def _deal_to(self, end: int) -> None:
        while len(self._dealt) < end:
            stripe = next(self._next)
            self._dealt.append((stripe, self._numbers[stripe]))
            self._numbers[stripe] += 1


class StripeRates:
    """The measurements of rank 0, and the weights that follow.

    Packets are built in order, so that all stripes go as fast as the one that others wait for. The rate of
    that one is known. Others are at least as fast as they went; they are tried with more, and each time with
    twice as much more.
    """

    def __init__(self, weights: Sequence[int], period: int) -> None:
        self.period = period
        self.wanted = list(weights)
        self.rates = [0] * len(weights)  # 0: not known
        self.growth = [FIRST_GROWTH] * len(weights)  # 32nds
        self._spans: list[tuple[int, int | None]] = []  # nanoseconds, and the stripe that others waited for
        self._packets = 0
        self._begun: tuple[int, int | None] | None = None

    def begin(self, now: int, packets: int, waits: int | None = None) -> None:
        """So many packets were sent, and there are more, which may wait for room in a stripe."""
        self._packets += packets
        self._begun = now, waits

    def end(self, now: int) -> None:
        """Ends what `begin` has begun."""
        if self._begun is not None:
            since, waits = self._begun
            self._spans.append((now - since, waits))
        self._begun = None

    def next(self, weights: Sequence[int]) -> tuple[int, int]:
        """Returns a stripe and its weight, if one is to change; else (0, 0)."""
        if self._packets >= self.period:
            self._decide(weights)
        for stripe, (now, then) in enumerate(zip(weights, self.wanted, strict=True)):
            if now != then:
                self._packets, self._spans = 0, []
                return stripe, then
        return 0, 0

    def _decide(self, weights: Sequence[int]) -> None:
        spent = sum(span for span, _ in self._spans)
        waited = [
            sum(span for span, waits in self._spans if waits == stripe) for stripe in range(len(weights))
        ]
        more = [each - min(waited) for each in waited]  # than for the one that is waited for least
        slow = [each > 0 and 8 * each >= spent for each in more]
        if any(slow):
            for stripe, weight in enumerate(weights):
                pace = (min(self._packets, 1 << 28) * weight << 30) // (sum(weights) * spent)
                rate, growth = self.rates[stripe], self.growth[stripe]
                if slow[stripe]:
                    self.rates[stripe] = (rate + pace) // 2 if rate else pace
                    self.growth[stripe] = 1
                else:
                    self.rates[stripe] = max(rate, pace + pace * growth // 32)
                    self.growth[stripe] = min(2 * growth, MOST_GROWTH)
            most = max(1, *self.rates)
            self.wanted = [max(1, (MAX_WEIGHT * rate + most // 2) // most) for rate in self.rates]
        self._packets, self._spans = 0, []

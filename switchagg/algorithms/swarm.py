"""SwarmSGD: random pairs average their models, quantized, while both go on with local steps.

G. Nadiradze, A. Sabour, P. Davies, S. Li, D. Alistarh: *Asynchronous Decentralized SGD with Quantized and
Local Updates*, NeurIPS 2021, arXiv 1910.12308.

    step    y = x;  pair up;  q = y in units of the grid, rounded at random
            sum of q (mod 2^bits) through the pair's own slots | meanwhile: local steps on x
            d = theirs - mine, from the sum;  x += unit d / 2

A pair is a group with slots of its own. In one collective of all workers a slot would wait for everybody, and
each would be sent every pair's sum; a pair's slot is full after two packets, and its RESULT goes to two
ranks, so that no pair waits for a third rank in a meeting.

**Not as in the paper.** There, meetings happen at the times of a Poisson process and a worker averages with
whoever is there, so that nobody waits. Here they go in rounds whose pairs are drawn from the seed beforehand,
because slots are given to a pair in advance: the partner of a slow worker waits for it, and the partner's
next partner in turn.

A pair's models are near each other, not near zero, so their difference needs few bits: coordinates are sent
modulo 2^bits and decoded next to one's own model (as in the paper, after Davies et al., arXiv 2002.09268).
That is right while no coordinate is farther apart than `spread`. Check words tell a pair if one is: both find
out alike, and average in full precision instead. As both move by the same d, one up and one down, rounding
does not move the mean of all models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from switchagg.algorithms.base import Array, Log, Problem, checked_at_least, checked_batch, checked_start
from switchagg.algorithms.chain import group_for
from switchagg.errors import require
from worker_lib.compress import lanes

if TYPE_CHECKING:
    from worker_lib.session import Session
    from worker_lib.work import Work

BITS: Final = (4, 8, 16)
_FULL_BITS: Final = 64


@dataclass(slots=True)
class Meetings:
    """The averagings of a run at this worker.

    Attributes:
        pairs: number of averagings.
        misses: the number done in full precision because models were too far apart.
    """

    pairs: int = 0
    misses: int = 0


class PairCodec:
    """A pair's messages: coordinates modulo 2^bits in lanes, with checks (`worker_lib.compress.lanes`).

    Both ranks have the same `bits`, `unit` and number of coordinates.

    Args:
        size: number of coordinates.
        bits: width of a coordinate on the wire: 4, 8 or 16.
        unit: distance of the grid.

    Raises:
        UsageError: bits or unit out of range.
    """

    def __init__(self, size: int, bits: int, unit: float) -> None:
        require(bits in BITS, "bits", repr(bits), f"{', '.join(map(str, BITS))}, or None for float64")
        require(0 < unit < np.inf, "unit", repr(unit), "greater than 0, finite")
        self.size, self.bits, self.unit = size, bits, unit

    @property
    def reach(self) -> int:
        """The largest distance of two coordinates, in units, that a pair can tell."""
        return (1 << (self.bits - 1)) - 1

    @property
    def payload_bits(self) -> int:
        """Bits of one message."""
        return self.bits * self.size + 32 * -(-self.size // lanes.CHECK_BLOCK)

    def encode(self, y: Array, random: np.random.Generator) -> tuple[Array, npt.NDArray[np.int32]]:
        """Returns y rounded at random to the grid, in units and unbiased; and its words."""
        key = lanes.new_key(random)
        words, _ = lanes.to_residues(y, self.unit, self.bits, key)
        return np.rint(lanes.own_values(y, self.unit, key) / self.unit), words

    def difference(self, places: Array, total: npt.NDArray[np.int32]) -> Array | None:
        """Returns the other rank's places less one's own, in units.

        Args:
            places: one's own, from `encode`.
            total: the sum of both ranks' words.

        Returns:
            None if some coordinate is more than `reach` apart; then both ranks get None.
        """
        dtype = np.dtype(np.float64)
        found = lanes.to_sums(total, self.unit, self.bits, places * self.unit, 2, dtype)
        if found.wrong.size or found.farthest > self.reach:
            return None
        return np.asarray(np.rint(found.sums / self.unit) - 2 * places)


def run(
    problem: Problem,
    session: Session,
    *,
    steps: int,
    rate: float,
    local_steps: int = 1,
    batch: int | None = None,
    bits: int | None = 8,
    spread: float | None = None,
    non_blocking: bool = True,
    seed: int = 0,
    log: Log | None = None,
    x0: ArrayLike | None = None,
    meetings: Meetings | None = None,
) -> Array:
    """Runs SwarmSGD. Every worker calls it.

    Args:
        problem: f_i; convex or not. A regularizer R is not looked at.
        session: of all workers; pairs take slots of their own.
        steps: rounds. In each the workers are paired at random, the same way at all (with an odd number one
            goes without), and take `local_steps` steps.
        rate: of a local step, over 0.
        local_steps: steps between two averagings, 1 and up.
        batch: samples of a step's gradient, drawn with `seed` and the rank; None for all.
        bits: width of a coordinate on the wire, 4, 8 or 16; None for float64, with no grid.
        spread: the largest distance of a coordinate of two models; the grid's unit is this over
            2^(bits - 1) - 1. By default 4 * rate * local_steps * the mean over workers of the largest
            coordinate of their first gradient.
        non_blocking: models are sent as they are before the local steps, which go on meanwhile; otherwise as
            they are after them.
        log: of this worker's model. All steps are taken, whatever its target.
        x0: start, the same at all workers.
        meetings: counts the averagings.

    Returns:
        The mean of all workers' models, the same to the bit at every worker.

    Raises:
        UsageError: an argument is out of range; nothing was sent.
        SwitchError: the switch has no room for the groups.
    """
    checked_at_least("steps", steps, 1)
    checked_at_least("local_steps", local_steps, 1)
    require(0 < rate < np.inf, "rate", repr(rate), "greater than 0, finite")
    checked_batch(batch, problem.samples)
    if bits is not None:
        PairCodec(1, bits, 1.0)
    require(spread is None or 0 < spread < np.inf, "spread", repr(spread), "greater than 0, finite")
    x = checked_start(problem, x0)
    random = np.random.default_rng((seed, 3, session.rank))
    worker = _Worker(problem, x, rate, local_steps, batch, random)
    if log is not None:
        log.begin(x, session)
    codec = None
    if bits is not None:
        codec = PairCodec(x.size, bits, worker.unit(session, bits, spread))
    swarm = _Swarm(session, steps, seed, codec, x.size, log, meetings or Meetings())
    try:
        for step in range(1, steps + 1):
            if not non_blocking:
                worker.walk()
            pending = swarm.send(step, worker.x)
            if non_blocking:
                worker.walk()
            worker.x = worker.x + swarm.move(pending)
            if log is not None:
                log.step(step, worker.x, last=step == steps)
    finally:
        swarm.close()
    return np.asarray(session.allreduce(worker.x.copy(), op="avg"))


@dataclass(slots=True)
class _Worker:
    """One worker's model and its steps."""

    problem: Problem
    x: Array
    rate: float
    local_steps: int
    batch: int | None
    random: np.random.Generator

    def unit(self, session: Session, bits: int, spread: float | None) -> float:
        """Returns the unit of the grid, the same at all workers."""
        if spread is None:
            largest = np.array([np.abs(self._slope()).max()])
            mean = float(session.allreduce(largest, op="avg")[0])
            spread = 4 * self.rate * self.local_steps * mean
        return max(spread, 1e-300) / ((1 << (bits - 1)) - 1)

    def walk(self) -> None:
        for _ in range(self.local_steps):
            self.x = self.x - self.rate * self._slope()

    def _slope(self) -> Array:
        if self.batch is None:
            return self.problem.gradient(self.x)
        indices = self.random.choice(self.problem.samples, self.batch, replace=False)
        return self.problem.batch_gradient(self.x, indices)


@dataclass(slots=True)
class _Pending:
    """An averaging on its way."""

    group: Session
    work: Work
    y: Array
    places: Array | None = None


class _Swarm:
    """The pairings of a run, and their exchanges."""

    def __init__(
        self,
        session: Session,
        steps: int,
        seed: int,
        codec: PairCodec | None,
        size: int,
        log: Log | None,
        meetings: Meetings,
    ) -> None:
        self._codec, self._log, self._meetings = codec, log, meetings
        self._random = np.random.default_rng((seed, 4, session.rank))
        shared = np.random.default_rng((seed, 5))
        n = session.world_size
        self._partners: list[int | None] = []
        pairs: dict[tuple[int, int], None] = {}  # of all workers, in the order in which they first meet
        for _ in range(steps):
            order = shared.permutation(n)
            met = [(int(min(p)), int(max(p))) for p in zip(order[: n // 2 * 2 : 2], order[1::2], strict=True)]
            pairs.update(dict.fromkeys(sorted(met)))
            mine = [pair for pair in met if session.rank in pair]
            self._partners.append(sum(mine[0]) - session.rank if mine else None)
        nbytes = size * 8 if codec is None else codec.payload_bits // 8
        self._groups: dict[int, Session] = {}
        for pair in pairs:
            group = group_for(session, pair, nbytes)
            if group is not None:
                self._groups[sum(pair) - session.rank] = group
                if log is not None:
                    log.watch(group)

    def send(self, step: int, y: Array) -> _Pending | None:
        """Starts the averaging of a step; returns None without a partner."""
        partner = self._partners[step - 1]
        if partner is None:
            return None
        self._meetings.pairs += 1
        group = self._groups[partner]
        if self._codec is None:
            self._sent(_FULL_BITS * y.size)
            return _Pending(group, group.allreduce_async(y.copy(), op="avg"), y)
        places, words = self._codec.encode(y, self._random)
        self._sent(self._codec.payload_bits)
        return _Pending(group, group.allreduce_async(words, blocks="dense"), y, places)

    def move(self, pending: _Pending | None) -> Array | float:
        """Returns the averaging's change of this worker's model."""
        if pending is None:
            return 0.0
        total = pending.work.wait()
        if self._codec is None or pending.places is None:
            return np.asarray(total - pending.y)
        apart = self._codec.difference(pending.places, total)
        if apart is None:
            self._meetings.misses += 1
            self._sent(_FULL_BITS * pending.y.size)
            return np.asarray(pending.group.allreduce(pending.y.copy(), op="avg") - pending.y)
        return np.asarray(self._codec.unit / 2 * apart)

    def close(self) -> None:
        for group in self._groups.values():
            group.close()

    def _sent(self, bits: int) -> None:
        if self._log is not None:
            self._log.payload(bits)

"""Gradient descent that sends, at every step, the level that promises most progress for its cost.

Khirirat, Magnusson, Aytekin, Johansson, "A flexible framework for communication-efficient machine learning"
(arXiv 2003.06377); `levels` has its rules, `cost` the models. There each worker picks the level and the
support from its own gradient. A switch would then have to carry the union of all supports. So here all
workers pick alike, and without a message, from what they all know: the last aggregate of each block.

    believed energy of block j = ||last aggregate of j||^2 + c ||x - x then||^2

x then is where x was when block j was last sent. c is learned: how much blocks turned out to have changed,
for the way that x had gone meanwhile. A block that was quiet is thus looked at again once x has moved on, and
every step is a step of block descent along fresh gradients:

    x_U <- x_U - gamma mean (grad f_i)_U            U: the level's blocks, gamma: its step

which cannot increase F but for lanes' rounding. The first step sends everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from switchagg.algorithms import levels
from switchagg.algorithms.base import Array, Problem, checked_at_least, checked_start, constants, runner
from switchagg.algorithms.blocks import checked_block
from switchagg.algorithms.cost import CostModel
from switchagg.algorithms.levels import Blocks, Level
from switchagg.errors import UsageError, require

if TYPE_CHECKING:
    from worker_lib.session import Session

VARIANTS: Final = ("sparse", "quantized", "stochastic")
_LANES: Final = (32, 16, 8)
_LEARN: Final = 0.1  # weight of a step in what is learned of blocks' change


class Adaptive:
    """One worker's part.

    Args:
        problem: smooth.
        cost: the price of a level, such as `cost.SwitchCost.measured(session)`; the same at all workers.
        variant: ``"sparse"``: the largest blocks; ``"quantized"``: the same in lanes of 32, 16 or 8 bits,
            chosen with the level; ``"stochastic"``: blocks at random, the larger the likelier.
        block: elements a block.
        level: send always so many blocks (for comparison), instead of choosing.
        seed: of random blocks.

    Attributes:
        x: the iterate, the same to the bit at all workers.
        level: of the last step.
        counts: blocks sent, step by step.
    """

    def __init__(
        self,
        problem: Problem,
        session: Session,
        *,
        cost: CostModel,
        variant: str = "sparse",
        block: int = 16,
        level: int | None = None,
        seed: int = 0,
        x0: ArrayLike | None = None,
    ) -> None:
        require(variant in VARIANTS, "variant", repr(variant), ", ".join(map(repr, VARIANTS)))
        if getattr(problem, "l1", 0.0):
            raise UsageError("the problem has an l1 term, which this method does not treat; use DIANA")
        self.x = checked_start(problem, x0)
        self._problem, self._session = problem, session
        self._cost, self._variant = cost, variant
        self._block = checked_block(block)
        m = -(-problem.dim // block)
        if level is not None and checked_at_least("level", level, 1) > m:
            raise UsageError(f"level is {level}; accepted: 1 to {m}, the blocks of {problem.dim} elements")
        self._levels = None if level is None else (level,)
        checked_at_least("seed", seed, 0)
        self._rng = np.random.default_rng((seed, 0))
        sizes = np.full(m, block, np.int64)
        sizes[-1] = problem.dim - (m - 1) * block
        total = constants(problem, session).mean_smoothness
        along = np.minimum(_along_blocks(problem, session, block, total, m), total)
        self._blocks = Blocks(sizes, along, total)
        self._starts = np.arange(m) * block
        self._energies = np.full(m, np.inf)  # of the last aggregate of each block
        self._last = np.zeros(problem.dim)  # the last aggregates
        self._gone = np.zeros(m)  # ||x - x then||^2, as if steps were at right angles
        self._restless = 0.0  # c
        self._extra = int(variant == "quantized")  # elements that travel behind the blocks
        self._largest = 0.0  # the mean over workers of their largest magnitude in the last message
        self.level = self._everything = Level(m, 32, 0.0, 1 / total, 0.0)
        self.counts: list[int] = []

    def step(self) -> int:
        """One step; one collective."""
        chosen, probability, level = self._choose()
        inside = np.repeat(chosen, self._blocks.sizes)
        mine = self._problem.gradient(self.x)[inside]
        mean = self._average(mine, level.bits)
        self._look(chosen, inside, mean, self._noise()[level.bits])
        move = np.zeros_like(self.x)
        move[inside] = mean
        if probability is not None:
            move /= np.repeat(probability, self._blocks.sizes)
        move *= level.step
        self.x = self.x - move
        self._gone += float(np.square(move).sum())
        self.level = level
        self.counts.append(int(np.count_nonzero(chosen)))
        return (mine.size + self._extra) * level.bits

    def _average(self, mine: Array, bits: int) -> Array:
        """The mean of these elements over all workers; behind them, for the quantized variant, that of their
        largest magnitudes."""
        vector = np.zeros(mine.size + self._extra, np.float32)
        vector[: mine.size] = mine
        vector[mine.size :] = np.abs(mine).max(initial=0.0)
        self._session.allreduce(vector, op="avg", bits=bits, blocks="dense")
        if self._extra:
            self._largest = max(float(vector[-1]), 0.0)
        return vector[: mine.size].astype(np.float64)

    def _choose(self) -> tuple[NDArray[np.bool_], Array | None, Level]:
        """Blocks, their probabilities where they are drawn, and the level."""
        m = self._blocks.count
        if np.isinf(self._energies).any():
            return np.ones(m, np.bool_), None, self._everything
        believed = self._energies + self._restless * self._gone
        if not believed.sum() > 0:
            return np.ones(m, np.bool_), None, self._everything
        chosen = np.zeros(m, np.bool_)
        if self._variant == "stochastic":
            level, p = levels.stochastic(believed, self._blocks, self._cost, counts=self._levels)
            chosen = self._rng.random(m) < p
            if not chosen.any():
                chosen[levels.largest(p)[0]] = True
            return chosen, p, level
        if self._variant == "quantized":
            level = levels.quantized(
                believed, self._blocks, self._cost, self._noise(), counts=self._levels, extra=self._extra
            )
        else:
            level = levels.sparse(believed, self._blocks, self._cost, counts=self._levels)
        chosen[levels.largest(believed)[: level.count]] = True
        return chosen, None, level

    def _noise(self) -> dict[int, float]:
        """Expected squared error of an element of the mean, by lanes: a quarter of a unit squared at most,
        averaged over n workers (docs/protocol.md, section 6, with X twice the largest magnitude)."""
        n = self._session.world_size
        out = {}
        for bits in _LANES:
            steps = (2 ** (bits - 1) - 1) // n
            if bits == 32 or steps >= 1:
                out[bits] = 0.0 if bits == 32 else (2 * self._largest / steps) ** 2 / (4 * n)
        return out

    def _look(self, chosen: NDArray[np.bool_], inside: NDArray[np.bool_], mean: Array, noise: float) -> None:
        """Takes note of fresh aggregates, whose elements have squared errors of `noise`, and learns how much
        they had changed for the way gone."""
        before = np.zeros_like(self._last)
        before[inside] = self._last[inside] - mean
        self._last[inside] = mean
        # Energy that only rounding has added is no gradient, and would keep the lanes narrow for ever.
        fresh = np.add.reduceat(np.square(self._last), self._starts) - self._blocks.sizes * noise
        fresh = np.maximum(fresh, 0.0)
        if not np.isinf(self._energies).any():
            changed = np.add.reduceat(np.square(before), self._starts)[chosen]
            gone = self._gone[chosen]
            if gone.sum() > 0:
                seen = float(changed.sum() / gone.sum())
                self._restless += _LEARN * (seen - self._restless)
        else:  # before anything is known: all of the gradient may turn, with each block having its part
            self._restless = self._blocks.total**2 / chosen.size
        self._energies[chosen] = fresh[chosen]
        self._gone[chosen] = 0.0


def _along_blocks(problem: Problem, session: Session, block: int, total: float, count: int) -> Array:
    """L_j of F, at most the mean of the workers'; `total` where the problem knows none. One collective."""
    find = getattr(problem, "block_smoothness", None)
    parts = np.full(count, total) if find is None else np.array(find(block), np.float64)
    session.allreduce(parts, op="avg")
    return parts


run = runner(Adaptive)

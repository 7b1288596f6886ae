"""The number of blocks to send: the level that promises most progress for its cost. No I/O.

Khirirat, Magnusson, Aytekin, Johansson (arXiv 2003.06377). A step along a compressed gradient Q of level T is
certain (or, for random Q, expected) to gain F(x) - F(x+) >= gain(T) / 2:

    sparse       the T largest blocks U:  gain = E_U / L_U,  step 1 / L_U
    quantized    the same, rounded at random in lanes of b bits, with noise N in all:
                 gain = E_U^2 / ((E_U + N) L_U),  step E_U / (E_U + N) / L_U
    stochastic   block j with probability p_j, divided by it; T = sum p_j expected blocks:
                 gain = E^2 / V,  step E / V,  V = sum_j e_j (L_j (1/p_j - 1) + L)

and the level maximizes gain / cost. e_j is the energy (squared norm) of block j of the gradient, E the sum of
all and E_U of those sent. L_j is F's smoothness along block j, L along all, and L_U = min(L, sum of U's L_j)
along U. The paper has L throughout, which is what comes of L_j = L; with the L_j known, few blocks may take
longer steps. The functions here take energies as they are believed to be, the same at all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from switchagg.algorithms.base import Array
from switchagg.algorithms.cost import CostModel

_LEAST: Final = 1e-3  # of the mean energy: no block is believed to be so empty that it is never sent
_GRID: Final = 24  # levels of stochastic sparsification that are tried


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A vector in m blocks, and the smoothness of F along them.

    Attributes:
        sizes: elements of each block, (m,).
        smoothness: L_j, (m,); at most `total` each.
        total: L.
    """

    sizes: NDArray[np.int64]
    smoothness: Array
    total: float

    @property
    def count(self) -> int:
        """m."""
        return int(self.sizes.size)


@dataclass(frozen=True, slots=True)
class Level:
    """A decision.

    Attributes:
        count: T, blocks (for stochastic levels, expected).
        bits: width of the lanes.
        gain: twice the decrease of F that is promised.
        step: the step size that it is promised for.
        cost: by the model.
    """

    count: int
    bits: int
    gain: float
    step: float
    cost: float


def largest(energies: Array) -> NDArray[np.int64]:
    """Returns blocks by falling energy; equal ones by number, so that all workers agree."""
    return np.argsort(-energies, kind="stable")


def sparse(
    energies: Array, blocks: Blocks, cost: CostModel, *, bits: int = 32, counts: Sequence[int] | None = None
) -> Level:
    """The best level of sparsification.

    Args:
        energies: e, (m,), not all zero.
        cost: the cost of a level.
        bits: lanes, wide enough for their rounding not to matter.
        counts: levels to choose from; all of 1 to m by default.
    """
    return quantized(energies, blocks, cost, {bits: 0.0}, counts=counts)


def quantized(
    energies: Array,
    blocks: Blocks,
    cost: CostModel,
    noise: dict[int, float],
    *,
    counts: Sequence[int] | None = None,
    extra: int = 0,
) -> Level:
    """The best level of sparsification with quantization, and the best lanes.

    Args:
        noise: by width of lanes, the expected squared error of an element of the average.
        extra: elements that travel with the blocks.

    See `sparse` for the others.
    """
    order = largest(energies)
    chosen = np.arange(1, blocks.count + 1) if counts is None else np.asarray(counts, np.int64)
    energy = np.cumsum(energies[order])[chosen - 1]
    elements = np.cumsum(blocks.sizes[order])[chosen - 1]
    smoothness = np.minimum(blocks.total, np.cumsum(blocks.smoothness[order])[chosen - 1])
    best: Level | None = None
    for bits, each in noise.items():
        step = energy / (energy + elements * each) / smoothness
        gain, price = energy * step, cost.cost(elements + extra, chosen, bits)
        at = int(np.argmax(gain / price))
        found = Level(int(chosen[at]), bits, float(gain[at]), float(step[at]), float(price[at]))
        if best is None or found.gain / found.cost > best.gain / best.cost:
            best = found
    assert best is not None
    return best


def stochastic(
    energies: Array, blocks: Blocks, cost: CostModel, *, bits: int = 32, counts: Sequence[int] | None = None
) -> tuple[Level, Array]:
    """The best level of stochastic sparsification, and every block's probability.

    The cost is that of the expected number of elements, rounded up.
    """
    e = np.maximum(energies, _LEAST * energies.mean())
    if counts is None:  # gains change little from one level to the next
        counts = np.unique(np.geomspace(1, blocks.count, _GRID).round().astype(np.int64)).tolist()
    best: tuple[Level, Array] | None = None
    for count in counts:
        p = probabilities(e * blocks.smoothness, count)
        total = float(e.sum())
        step = total / float((e * (blocks.smoothness * (1 / p - 1) + blocks.total)).sum())
        expected = np.ceil(float((p * blocks.sizes).sum()))
        level = Level(count, bits, total * step, step, float(cost.cost(expected, count, bits)))
        if best is None or level.gain / level.cost > best[0].gain / best[0].cost:
            best = level, p
    assert best is not None
    return best


def probabilities(weights: Array, count: int) -> Array:
    """Returns p_j = min(1, c sqrt(w_j)) with sum `count`, which minimize sum w_j / p_j.

    Args:
        weights: all greater than 0.
        count: 1 to m.
    """
    order = largest(weights)
    norms = np.sqrt(weights[order])
    rest = np.cumsum(norms[::-1])[::-1]  # sums of what is not larger
    # With the i largest certain, c = (count - i) / rest[i]; the first i at which no other exceeds 1.
    fits = (count - np.arange(norms.size)) * norms <= rest
    sure = int(np.argmax(fits)) if fits.any() else norms.size
    p = np.ones(norms.size)
    if sure < norms.size:
        p[sure:] = np.minimum(1.0, (count - sure) * norms[sure:] / rest[sure])
    out = np.empty_like(p)
    out[order] = p
    return out

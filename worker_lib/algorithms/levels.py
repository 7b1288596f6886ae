"""How many blocks to send: the level that promises most progress for its cost. No I/O.

Khirirat, Magnusson, Aytekin, Johansson (arXiv 2003.06377). For an L-smooth f, a step along a compressed
gradient Q of level T is certain (or, for random Q, expected) to gain

    f(x) - f(x+) >= share(T) ||grad f||^2 / (2 L)

    sparse       the T largest blocks; share(T) = their part of the energy                     (section 3)
    quantized    the same, rounded at random in lanes of b bits, with noise N:
                 share(T, b) = E_T^2 / ((E_T + N) E), at the step E_T / (E_T + N) / L          (section 4)
    stochastic   block j with probability p_j, divided by it; T = sum p_j expected blocks:
                 share(T) = E / (sum_j e_j / p_j), at the step share(T) / L                    (section 5)

e_j is the energy (squared norm) of block j, E their sum, E_T that of those sent. The level maximizes
share / cost. The functions here take energies as they are believed to be, the same at all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker_lib.algorithms.base import Array
from worker_lib.algorithms.cost import CostModel

_LEAST: Final = 1e-3  # of the mean energy: no block is believed to be so empty that it is never sent


@dataclass(frozen=True, slots=True)
class Level:
    """A decision.

    Attributes:
        count: T, blocks (for stochastic levels, expected).
        bits: width of the lanes.
        share: of the gain of a full gradient step that is promised, 0 to 1.
        scale: of the step size 1 / L.
        cost: by the model.
    """

    count: int
    bits: int
    share: float
    scale: float
    cost: float


def largest(energies: Array) -> NDArray[np.int64]:
    """Blocks by falling energy; equal ones by number, so that all workers agree."""
    return np.argsort(-energies, kind="stable")


def sparse(
    energies: Array,
    sizes: NDArray[np.int64],
    cost: CostModel,
    *,
    bits: int = 32,
    counts: Sequence[int] | None = None,
) -> Level:
    """The best level of sparsification.

    Args:
        energies: e, (m,), not all zero.
        sizes: elements of each block, (m,).
        cost: what a level costs.
        bits: lanes, wide enough for their rounding not to matter.
        counts: levels to choose from; all of 1 to m by default.
    """
    gained, elements, chosen = _prefixes(energies, sizes, counts)
    share = gained / energies.sum()
    price = cost.cost(elements, chosen, bits)
    best = int(np.argmax(share / price))
    return Level(int(chosen[best]), bits, float(share[best]), 1.0, float(price[best]))


def quantized(
    energies: Array,
    sizes: NDArray[np.int64],
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
    gained, elements, chosen = _prefixes(energies, sizes, counts)
    total = float(energies.sum())
    best: Level | None = None
    for bits, each in noise.items():
        scale = gained / (gained + elements * each)
        share = gained * scale / total
        price = cost.cost(elements + extra, chosen, bits)
        at = int(np.argmax(share / price))
        found = Level(int(chosen[at]), bits, float(share[at]), float(scale[at]), float(price[at]))
        if best is None or found.share / found.cost > best.share / best.cost:
            best = found
    assert best is not None
    return best


def stochastic(
    energies: Array,
    sizes: NDArray[np.int64],
    cost: CostModel,
    *,
    bits: int = 32,
    counts: Sequence[int] | None = None,
) -> tuple[Level, Array]:
    """The best level of stochastic sparsification, and every block's probability.

    The cost is that of the expected number of blocks, rounded up.
    """
    e = np.maximum(energies, _LEAST * energies.mean())
    chosen = np.arange(1, e.size + 1) if counts is None else np.asarray(counts, np.int64)
    # A short grid is enough: shares change little from one level to the next.
    if counts is None and chosen.size > 64:
        chosen = np.unique(np.geomspace(1, e.size, 64).round().astype(np.int64))
    best: tuple[Level, Array] | None = None
    mean_size = float(sizes.mean())
    for count in chosen.tolist():
        p = probabilities(e, count)
        share = float(e.sum() / (e / p).sum())
        price = float(cost.cost(np.ceil(mean_size * count), count, bits))
        if best is None or share / price > best[0].share / best[0].cost:
            best = Level(count, bits, share, share, price), p
    assert best is not None
    return best


def probabilities(energies: Array, count: int) -> Array:
    """p_j = min(1, c sqrt(e_j)) with sum `count`: what makes sum e_j / p_j least.

    Args:
        energies: all greater than 0.
        count: 1 to m.
    """
    order = largest(energies)
    norms = np.sqrt(energies[order])
    rest = np.cumsum(norms[::-1])[::-1]  # sums of what is not larger
    # With the i largest certain, c = (count - i) / rest[i]; the first i at which no other exceeds 1.
    i = np.arange(norms.size)
    fits = (count - i) * norms <= rest
    sure = int(np.argmax(fits)) if fits.any() else norms.size
    p = np.ones(norms.size)
    if sure < norms.size:
        p[sure:] = np.minimum(1.0, (count - sure) * norms[sure:] / rest[sure])
    out = np.empty_like(p)
    out[order] = p
    return out


def _prefixes(
    energies: Array, sizes: NDArray[np.int64], counts: Sequence[int] | None
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """For each level: energy, elements and number of the largest blocks."""
    order = largest(energies)
    chosen = np.arange(1, energies.size + 1) if counts is None else np.asarray(counts, np.int64)
    gained, elements = np.cumsum(energies[order]), np.cumsum(sizes[order])
    return gained[chosen - 1], elements[chosen - 1], chosen

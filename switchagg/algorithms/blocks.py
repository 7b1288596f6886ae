"""Random blocks of a vector: which ones, and how they are averaged through the switch.

shared       one draw for all workers: the chosen blocks travel as a short dense vector, no bitmap
independent  a draw for each worker: the plan carries bitmaps, and the union comes back
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from switchagg.algorithms.base import Array, checked_at_least, checked_share
from switchagg.errors import require
from switchagg.rules.planner import MAX_BLOCK

if TYPE_CHECKING:
    from worker_lib.session import Session

DRAWS: Final = ("shared", "independent")
LANES: Final = (64, 32)


class BlockDraws:
    """Draws k of the m blocks of a vector, uniformly and without putting back.

    Args:
        dim: d, elements of the vector.
        block: elements a block.
        tau: share of the blocks to draw, in (0, 1]; k = max(1, round(tau m)).
        draw: ``"shared"`` or ``"independent"``.
        seed: the same at all workers.
        rank: of this worker.

    Attributes:
        blocks: m.
        chosen: k.
        tau: k / m, which is what the methods reckon with.
    """

    def __init__(self, dim: int, *, block: int, tau: float, draw: str, seed: int, rank: int) -> None:
        checked_share("tau", tau)
        require(draw in DRAWS, "draw", repr(draw), ", ".join(map(repr, DRAWS)))
        self.dim, self.block = dim, checked_block(block)
        self.blocks = -(-dim // block)
        self.chosen = max(1, round(tau * self.blocks))
        self.tau = self.chosen / self.blocks
        self.shared = draw == "shared"
        checked_at_least("seed", seed, 0)
        self._rng = np.random.default_rng((seed, 0 if self.shared else 1 + rank))

    @property
    def omega(self) -> float:
        """Variance of the unbiased x_U / tau: m / k - 1."""
        return self.blocks / self.chosen - 1

    def next(self) -> NDArray[np.bool_]:
        """The next draw; bool, one a block."""
        mask = np.zeros(self.blocks, np.bool_)
        mask[self._rng.permutation(self.blocks)[: self.chosen]] = True
        return mask

    def elements(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns a mask of the elements in those blocks; bool, shape (d,)."""
        return np.repeat(mask, self.block)[: self.dim]


def checked_block(block: int) -> int:
    """Elements a block that a plan can carry."""
    require(checked_at_least("block", block, 1) <= MAX_BLOCK, "block", block, f"1 to {MAX_BLOCK} elements")
    return block


def checked_lanes(bits: int) -> int:
    """Lanes that round to nearest, so that small differences are not lost in noise."""
    require(bits in LANES, "bits", repr(bits), ", ".join(map(str, LANES)))
    return bits


def mean_of_blocks(
    session: Session, x: Array, mask: NDArray[np.bool_], block: int, *, shared: bool, bits: int = 64
) -> tuple[Array, int]:
    """The mean over all workers of their x's, each with nothing outside the blocks of its mask.

    Args:
        x: (d,), float64; it is not changed.
        mask: bool, one a block. With `shared`, the same at all workers.
        bits: lanes, 64 or 32.

    Returns:
        The mean, (d,), and the bits of this worker's message: its lanes, and its bitmap where there is one.
    """
    inside = np.repeat(mask, block)[: x.size]
    bits_sent = int(np.count_nonzero(inside)) * bits
    if shared:
        packed = x[inside]
        session.allreduce(packed, op="avg", bits=bits, blocks="dense")
        out = np.zeros_like(x)
        out[inside] = packed
        return out, bits_sent
    out = np.where(inside, x, 0.0)
    session.allreduce(out, op="avg", bits=bits, blocks=mask, block_size=block)
    return out, bits_sent + mask.size

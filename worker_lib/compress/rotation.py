"""Rotation and clipping: THC's way to levels that can be added, whatever the distribution of the values.

    1. each rank: the Euclidean norm of each block; OR over ranks: the largest, M, as in `dithering`
    2. signs at random, the same at all ranks; Hadamard transform: y = H (signs * x) / sqrt(B)
    3. q = floor(y / unit + u), |q| <= s, with unit = t M / (sqrt(B) s); lanes hold n s; the switch adds them
    4. sum = signs * H (unit * sum of q) / sqrt(B)

After the rotation an element is nearly normal with deviation |x| / sqrt(B), also where a few elements had
nearly all of the norm, so that levels up to a few deviations t are enough: what lies beyond is clipped.

Li, Ben Basat, Vargaftik, Lao, Xu, Mitzenmacher, Yu: THC: Accelerating Distributed Deep Learning Using Tensor
Homomorphic Compression, NSDI 2024, arXiv 2302.08545. There a worker sends an index of 4
bits, and the switch looks up its level in a table before it adds. Ours adds what it gets, so lanes hold the
levels themselves. Levels of a table are some of a lane's uniform levels; so here all of these are used.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib import _native
from worker_lib.compress import lanes
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words
from worker_lib.compress.lanes import Key, from_words, new_key, to_words
from worker_lib.compress.shared_norms import SharedNorms

_WIDTHS: Final = (2, 4, 8, 16)  # that divide a word, so that blocks are whole words
_CLIPS: Final = tuple(i / 16 for i in range(8, 97))  # of deviations


@cache
def best_clip(levels: int, workers: int) -> float:
    """Returns the clip point, in deviations, of the least squared error of a mean of normal values.

    Rounding errors are independent, with variance up to (t / s)^2 / 6 for one worker; clipping errors of
    workers that have the same gradient add up, so they are taken not to average out:

        t^2 / (6 s^2 n) + E max(|z| - t, 0)^2,     E = 2 ((1 + t^2) P(z > t) - t phi(t))

    Args:
        levels: s, values each way.
        workers: n.
    """

    def error(t: float) -> float:
        beyond = math.erfc(t / math.sqrt(2)) / 2
        density = math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
        return t * t / (6 * levels**2 * workers) + 2 * ((1 + t * t) * beyond - t * density)

    return min(_CLIPS, key=error)


def rotate(x: Floats, block: int, key: Key) -> Floats:
    """Returns the randomized Hadamard transform of each block, orthonormal.

    Args:
        x: float32 or float64; zeros are appended to fill the last block.
        block: elements, a power of two from 2.
        key: of the signs.
    """
    x = np.ascontiguousarray(x)
    out = np.empty(-(-x.size // block) * block, x.dtype)
    _native.rotate_blocks(
        x.ctypes.data, x.size, x.dtype == np.float64, block, 1 / math.sqrt(block), *key, out.ctypes.data
    )
    return out


def unrotate(y: Floats, count: int, block: int, key: Key) -> Floats:
    """Returns the first `count` elements of what `rotate` made y of."""
    y = np.ascontiguousarray(y)
    x = np.empty(count, y.dtype)
    _native.unrotate_blocks(
        y.ctypes.data, count, y.dtype == np.float64, block, 1 / math.sqrt(block), *key, x.ctypes.data
    )
    return x


class Rotation(Compressor):
    """Randomized rotation, then random rounding to s levels each way, clipped at t deviations.

    The rounding is right on average, the clipping is not: some 10^-4 of the elements lose a little. Inside
    `ErrorFeedback` nothing is lost. A block with NaN or Inf at any rank is NaN at every rank; one that is
    zero at all ranks stays zero and is not sent. One OR round before the sum; no state.

    E|Q(x) - x|^2 <= (t^2 / (4 s^2) + 4 e^(-t^2 / 2) / t^2) M^2 whatever x is, M being the largest norm of any
    rank: with random signs each element is sub-Gaussian with deviation |x| / sqrt(B) (Hoeffding), and what
    lies beyond t deviations has a mean square of at most 4 e^(-t^2 / 2) / t^2 of them.

    Args:
        bits: width of lanes: 2, 4, 8 or 16. With n workers s is floor((2^(bits-1) - 1) / n), so that lanes of
            4 bits serve up to 7.
        block: elements that are rotated together, a power of two.
        clip: t; by default the one of the least error for normal values, `best_clip`.
        norm_bits: mantissa bits of a shared norm; see `Dithering`.
        seed: see `Compressor`.

    Raises:
        UsageError: parameters that cannot work.
    """

    draws_shared = True
    parameters = ("bits", "block", "clip", "norm_bits", "seed")

    def __init__(
        self,
        bits: int = 8,
        block: int = 1024,
        clip: float | None = None,
        norm_bits: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        if isinstance(bits, bool) or bits not in _WIDTHS:
            raise UsageError(f"bits is {bits!r}; accepted: {', '.join(map(str, _WIDTHS))}")
        powers = isinstance(block, int) and 32 <= block <= 1 << 20 and block & (block - 1) == 0
        if isinstance(block, bool) or not powers:
            raise UsageError(f"block is {block!r}; accepted: a power of two from 32 to 2^20")
        if clip is not None and (not isinstance(clip, int | float) or not 0 < clip < math.inf):
            raise UsageError(f"clip is {clip!r}; accepted: deviations, a number greater than 0, or None")
        self._norms = SharedNorms(2.0, block, norm_bits)
        self.bits, self.block, self.norm_bits = bits, block, norm_bits
        self.clip = None if clip is None else float(clip)

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if this number of ranks cannot share the lanes."""
        lanes.top(self.bits, round.world_size)

    def share(self, x: Floats, round: Round) -> Words | None:
        """Returns one bit for each block's norm, of 2^(8 + norm_bits)."""
        return self._norms.words(x)

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns packed levels of the rotated blocks."""
        units = self._units(shared, round, x.dtype)
        signs = self._signs()
        if np.isnan(units).any():  # of these blocks nothing is sent, and NaN would be cast to integers
            x = np.where(np.repeat(np.isnan(units), self.block)[: x.size], x.dtype.type(0), x)
        top, key = lanes.top(self.bits, round.world_size), new_key(self._private_draws(round))
        words, _ = to_words(rotate(x, self.block, signs), units, self.block, self.bits, top, key)
        return Message(words, kept=(x.size, signs, units))

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns this rank's addend; 0 in blocks that are NaN in the sum."""
        size, signs, units = message.kept
        return self._values(message.values, size, signs, np.where(np.isnan(units), 0, units))

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the sums of levels, rotated back."""
        result = self._values(total, *message.kept)
        self._done(result.size)
        return result

    def delta(self, size: int, workers: int = 1) -> float | None:
        """Returns 1 less the bound above, for the rank of the largest norm; None if that is not positive."""
        levels = lanes.top(self.bits, workers)
        t = self._clip(levels, workers)
        slack = 1 + 2.0**-self.norm_bits
        # A clip point of t deviations of M is one of more deviations for a rank of a smaller norm.
        lost = slack**2 * t * t / (4 * levels**2) + 4 * math.exp(-t * t / 2) / t**2
        return 1 - lost if lost < 1 else None

    # ------------------------------------------------------------------ inside

    def _clip(self, levels: int, workers: int) -> float:
        return best_clip(levels, workers) if self.clip is None else self.clip

    def _units(self, shared: Words | None, round: Round, dtype: np.dtype[Any]) -> Floats:
        """Returns each block's t M / (sqrt(B) s)."""
        levels = lanes.top(self.bits, round.world_size)
        deviations = math.sqrt(self.block) * levels / self._clip(levels, round.world_size)
        return self._norms.of(shared, deviations, dtype)

    def _signs(self) -> Key:
        first = int(self._shared_keys(1)[0])
        return first & 0xFFFFFFFF, first >> 32

    def _values(self, words: npt.NDArray[Any], size: int, signs: Key, units: Floats) -> Floats:
        y = from_words(words, units.size * self.block, self.bits, units, self.block)
        return unrotate(y, size, self.block, signs)

"""DIANA's memory: each rank compresses the difference to what the others already know of it.

    worker i:  d_i = Q(x_i - h_i) is sent,            h_i += alpha d_i
    everyone:  the sum is H + sum of d_i,             H   += alpha (sum of d_i),       H = sum of h_i

As gradients settle, differences go to zero, and with them what compression scatters (Mishchenko et al.,
Distributed Learning with Compressed Gradient Differences, arXiv 1901.09269, Algorithm 1; any unbiased Q:
Horvath et al., arXiv 1904.05115, Algorithm 1). H is kept by every rank, from the same sums, so it is equal
everywhere to the bit and never sent.
"""

from __future__ import annotations

from switchagg.errors import UsageError
from worker_lib.compress.base import Compressor, Round
from worker_lib.compress.memory import Following


class Differences(Following):
    """Compressed differences to a memory, around any unbiased compressor. State: as `Following`'s.

    Args:
        inner: unbiased.
        alpha: how far memories move, in (0, 1 / (1 + omega)] where the inner compressor's omega is known,
            which is the bound of arXiv 1904.05115, Theorem 1; that bound by default.

    Raises:
        UsageError: `inner` is biased, or alpha is not positive. Alpha over its bound is refused in the first
            round, when omega is known.
    """

    def __init__(self, inner: Compressor, alpha: float | None = None) -> None:
        super().__init__(inner)
        if not inner.unbiased:
            raise UsageError(
                f"inner is {inner.describe()}, which is biased; differences need an unbiased compressor "
                "(for a contraction there is EF21)"
            )
        if alpha is not None and (not isinstance(alpha, int | float) or not 0 < alpha <= 1):
            raise UsageError(f"alpha is {alpha!r}; accepted: greater than 0, at most 1 / (1 + omega)")
        self.alpha = alpha

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """As the inner compressor."""
        return True

    def rate(self, size: int, workers: int) -> float:
        """alpha for vectors of this size.

        Raises:
            UsageError: it is over its bound, or the inner compressor has none and it is not given.
        """
        omega = self.inner.omega(size, workers)
        if omega is None:
            if self.alpha is None:
                raise UsageError(f"alpha is not given, and {self.inner.describe()} has no omega to set it by")
            return float(self.alpha)
        bound = 1 / (1 + omega)
        if self.alpha is None:
            return bound
        if self.alpha > bound * (1 + 1e-12):
            raise UsageError(
                f"alpha is {self.alpha:g}; accepted: at most 1 / (1 + omega) = {bound:.6g}, where omega is "
                f"{omega:.6g} for {self.inner.describe()} on {size} elements and {workers} workers"
            )
        return float(self.alpha)

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` where alpha is over its bound or the inner compressor cannot."""
        super().check(size, round)
        self.rate(size, round.world_size)

    def describe(self) -> str:
        """Name and what is inside."""
        alpha = "" if self.alpha is None else f", alpha={self.alpha:g}"
        return f"Differences({self.inner.describe()}{alpha})"

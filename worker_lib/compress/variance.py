"""How far random rounding to a grid can scatter: the omega of quantizers."""

from __future__ import annotations

import math


def dithering_variance(size: int, levels: int, p: float, slack: float) -> float:
    """omega of rounding |x| / M at random to multiples of 1 / levels.

    A value of v units varies by f (1 - f) units^2, f being v's fraction, which is at most min(1/4, |v|). With
    units of M / s, summed over d elements: at most min(d M^2 / (4 s^2), M |x|_1 / s). What |x|_1 can be for
    given |x|_2 = 1 gives omega (Alistarh et al., QSGD, NeurIPS 2017, Lemma 3.1, has 1/s for the 1/4).

    Args:
        size: d, elements under one norm.
        levels: s.
        p: of the norm, 2 or infinity.
        slack: M over the largest norm of any rank, at least 1.
    """
    if math.isinf(p):
        # |x|_inf |x|_1 <= (1 + sqrt d) / 2 |x|_2^2, with equality at (1 + sqrt d, 1, ..., 1) / norm.
        return min(size * slack**2 / (4 * levels**2), slack * (1 + math.sqrt(size)) / (2 * levels))
    return min(size * slack**2 / (4 * levels**2), slack * math.sqrt(size) / levels)

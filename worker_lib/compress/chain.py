"""Compressors one after the other: blocks are chosen, then what is in them is quantized."""

from __future__ import annotations

from switchagg.errors import UsageError
from worker_lib.compress.base import Compressor
from worker_lib.compress.sparsifier import Sparsifier


def chain(*parts: Compressor) -> Compressor:
    """One compressor of several: each sparsifier's blocks go through what follows it.

    chain(RandomBlocks(tau=0.1), Dithering(levels=8)). Memories (`ErrorFeedback`, `EF21`, `Differences`) go
    round the whole: ErrorFeedback(chain(...)).

    Raises:
        UsageError: no parts, or another than the last is not a sparsifier.
    """
    if not parts:
        raise UsageError("chain of nothing; accepted: sparsifiers, then at most one other compressor")
    *before, last = parts
    for part in reversed(before):
        if not isinstance(part, Sparsifier):
            raise UsageError(
                f"{type(part).__name__} comes before {type(last).__name__}; accepted: sparsifiers "
                "(RandomBlocks, TopBlocks, Threshold), then at most one other compressor"
            )
        last = part.through(last)
    return last

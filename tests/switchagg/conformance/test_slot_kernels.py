"""Every instruction set that this processor has gives the same words, at every length and alignment."""

from __future__ import annotations

import numpy as np
import pytest

from switchagg.emulator import _native


@pytest.mark.parametrize("level", _native.kernel_levels())
@pytest.mark.parametrize("kernel", ["copy", "add", "or_words", "add_all", "or_all"])
def test_a_kernel_is_numpys(level: str, kernel: str) -> None:
    rng = np.random.default_rng(7)
    for count in [*range(70), 364, 2239]:
        to, source = (rng.integers(0, 2**32, count, np.uint32) for _ in range(2))
        expected = {
            "copy": source,
            "add": to + source,
            "or_words": to | source,
            "add_all": to + source + source,  # of three runs of words, two of them the same
            "or_all": to | source,
        }[kernel]
        got = _native.run_kernel(level, kernel, to.astype(">u4").tobytes(), source.astype(">u4").tobytes())
        assert got == expected.astype(">u4").tobytes()

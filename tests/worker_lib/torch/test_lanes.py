"""Narrow lanes in PyTorch's operations against the reference, to the bit; on a GPU where there is one."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
import torch

from tests.reference import plan
from tests.reference import quantize as reference
from tests.seeds import seed_of_this_run
from worker_lib.plan import DType, ReduceOp
from worker_lib.quantize import dither_key
from worker_lib.torch import lanes

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")),
]


def drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    style = rng.integers(4)
    if style == 0:
        x = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)  # any bits, NaN and Inf too
        return np.where(np.isnan(x) & (rng.random(count) < 0.9995), np.float32(1), x)
    x = rng.standard_normal(count).astype(np.float32) * np.float32([1, 1e-42, 1e37, 1e-3][int(style)])
    x[: count // 3] = 0
    return x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", [16, 8])
def test_the_codecs_bits(bits: int, device: str) -> None:
    seed = seed_of_this_run()
    for case in range(40):
        rng = np.random.default_rng((seed, bits, case))
        count, n = int(rng.choice([1, 1023, 1024, 5000])), int(rng.integers(1, 33))
        xs = [drawn(rng, count) for _ in range(n)]
        with np.errstate(all="ignore"):
            scans = [reference.scan(x, DType.F32, 1024, 1024) for x in xs]
        words = [lanes.one_hot(torch.from_numpy(x).to(device)) for x in xs]
        for mine, s in zip(words, scans, strict=True):
            wanted = plan.pack_exponents(s.exponents, DType.F32, s.special)
            assert np.array_equal(mine.cpu().numpy().view(np.uint32).reshape(-1), wanted)
        agreed = np.max([s.exponents for s in scans], axis=0)
        exponent, special = lanes.agreed(reduce(torch.bitwise_or, words))
        assert np.array_equal(exponent.cpu().numpy(), agreed)
        chunks = np.flatnonzero(np.any([s.special for s in scans], axis=0))
        assert np.array_equal(special.cpu().numpy(), chunks)
        both = reduce(
            torch.bitwise_or, [lanes.special_words(torch.from_numpy(x).to(device), special) for x in xs]
        )
        of_chunks = [
            np.bitwise_or.reduce([reference.special_words(x[1024 * c :][:1024], DType.F32, 1024) for x in xs])
            for c in chunks
        ]
        assert np.array_equal(both.cpu().numpy().view(np.uint32).reshape(-1), np.ravel(of_chunks))
        xs = [np.where(np.isfinite(x), x, np.float32(0)) for x in xs]

        spread = np.repeat(agreed, 1024)[:count].astype(np.int16)
        width = -(-count // (32 // bits))
        total, sums = np.zeros(width, np.uint32), torch.zeros(width, dtype=torch.int32, device=device)
        for rank, x in enumerate(xs):
            key = dither_key(case, rank)
            with np.errstate(all="ignore"):
                q = reference.quantize(
                    x, spread, dtype=DType.F32, bits=bits, workers=n, index=np.arange(count), key=key
                )
            mine = lanes.quantize(torch.from_numpy(x).to(device), exponent, bits=bits, workers=n, key=key)
            assert np.array_equal(mine.cpu().numpy(), q), f"case {case}, rank {rank}"
            padded = np.zeros(width * 32 // bits, np.int32)
            padded[:count] = q
            total += reference.pack(padded, bits, width)
            sums += lanes.pack(mine, bits)
        assert np.array_equal(sums.cpu().numpy().view(np.uint32), total)
        lanes_of_all = reference.unpack(total, bits)[:count]
        sums_of_lanes = lanes.unpack(sums, bits, count)
        assert np.array_equal(sums_of_lanes.cpu().numpy(), lanes_of_all)
        for average in (False, True):
            op = ReduceOp.AVG if average else ReduceOp.SUM
            with np.errstate(all="ignore"):
                expected = reference.dequantize(
                    lanes_of_all, spread, dtype=DType.F32, bits=bits, workers=n, op=op
                )
            got = lanes.dequantize(sums_of_lanes, exponent, bits=bits, workers=n, average=average)
            lanes.write_specials(got, special, both)
            for c, of_chunk in zip(chunks, of_chunks, strict=True):
                reference.write_specials(expected[1024 * c :][:1024], of_chunk, DType.F32)
            assert np.array_equal(got.cpu().numpy(), expected, equal_nan=True), f"case {case}, {op}"

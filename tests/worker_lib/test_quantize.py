"""The codec, checked against exact arithmetic: scan, quantize, lanes, dequantize, and the proved bound."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from switchagg.errors import UsageError
from switchagg.rules.planner import elements_per_packet
from tests.reference import quantize as codec
from tests.seeds import seed_of_this_run
from worker_lib.plan import NARROW_CHUNK, WIDE_CHUNK, DType, ReduceOp
from worker_lib.quantize import STORAGE, dither_key, error_bound, lane_top, narrow, widen

Array = npt.NDArray[Any]

FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16)
LANES = [(dtype, bits) for dtype in FLOATS for bits in dtype.lanes]
GROUPS = (1, 2, 7, 30, 32)
MANY_GROUPS = (1, 2, 3, 4, 5, 7, 8, 14, 15, 16, 28, 30, 31, 32)  # powers of two, and where 1/n rounds up
TREES = (33, 64, 127, 128, 129, 255, 256)  # workers on several switches
WORDS = 48
SIGN = {DType.F32: 1 << 31, DType.F64: 1 << 63, DType.F16: 1 << 15, DType.BF16: 1 << 15}


@pytest.fixture
def rng() -> np.random.Generator:
    seed = seed_of_this_run()
    return np.random.default_rng(seed)


# ---------------------------------------------------------------------- a whole reduction


def patterns(x: Array) -> Array:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def from_patterns(bits: Array, dtype: DType) -> Array:
    return bits.astype(f"u{np.dtype(STORAGE[dtype]).itemsize}").view(STORAGE[dtype])


def largest(dtype: DType) -> int:
    """Bit pattern of the largest finite value."""
    return {DType.F32: 0x7F7FFFFF, DType.F64: 0x7FEFFFFFFFFFFFFF, DType.F16: 0x7BFF, DType.BF16: 0x7F7F}[
        dtype
    ]


def chunk_of(bits: int) -> int:
    return WIDE_CHUNK if bits >= 32 else NARROW_CHUNK


def agreed_exponents(xs: Array, dtype: DType, chunk: int) -> npt.NDArray[np.int16]:
    """Of each element; the maximum over ranks, as the plan's OR gives it."""
    each = np.max([codec.scan(x, dtype, 64, chunk).exponents for x in xs], axis=0)
    return np.repeat(each, chunk)[: xs.shape[1]]


def contributions(
    xs: Array, exponents: npt.NDArray[np.int16], dtype: DType, bits: int, position: int = 5
) -> Array:
    index = np.arange(xs.shape[1])
    return np.stack(
        [
            codec.quantize(
                x,
                exponents,
                dtype=dtype,
                bits=bits,
                workers=len(xs),
                index=index,
                key=dither_key(position, r),
            )
            for r, x in enumerate(xs)
        ]
    )


def packed(q: Array, bits: int) -> Array:
    """All packets of one rank, (packets, WORDS)."""
    each = elements_per_packet(WORDS, bits)
    lanes = np.zeros((-(-q.size // each), each), q.dtype)
    lanes.reshape(-1)[: q.size] = q
    return codec.pack(lanes, bits, WORDS)


def reduce(
    xs: Array, dtype: DType, bits: int, op: ReduceOp = ReduceOp.SUM, chunk: int | None = None
) -> tuple[Array, npt.NDArray[np.int16]]:
    """The result, and every element's agreed exponent."""
    exponents = agreed_exponents(xs, dtype, chunk or chunk_of(bits))
    words = np.zeros_like(packed(np.zeros(xs.shape[1], np.int64 if bits == 64 else np.int32), bits))
    for q in contributions(xs, exponents, dtype, bits):
        words += packed(q, bits)
    total = codec.unpack(words, bits).reshape(-1)[: xs.shape[1]]
    return codec.dequantize(total, exponents, dtype=dtype, bits=bits, workers=len(xs), op=op), exponents


def long_bound(dtype: DType, bits: int, n: int, exponent: int, op: ReduceOp) -> np.longdouble:
    if exponent == -1:
        return np.longdouble(0)
    power = max(exponent, 1) - (1023 if dtype is DType.F64 else 127)
    scaled = float(error_bound(dtype, bits, n, exponent, op) / Fraction(2) ** power)
    return np.longdouble(np.ldexp(np.longdouble(scaled), power))


def check(xs: Array, dtype: DType, bits: int, op: ReduceOp, chunk: int | None = None) -> None:
    """Every element within the proved bound of the exact sum or average of `xs`, shape (n, N)."""
    result, exponents = reduce(xs, dtype, bits, op, chunk)
    n = len(xs)
    exact = np.stack([widen(x, dtype) for x in xs]).astype(np.longdouble).sum(axis=0)
    if op is ReduceOp.AVG:
        exact = exact / n
    got = widen(result, dtype).astype(np.longdouble)
    limits = {int(e): long_bound(dtype, bits, n, int(e), op) for e in np.unique(exponents)}
    bound = np.array([limits[int(e)] for e in exponents], np.longdouble)
    bound *= 1 + np.longdouble(2) ** (
        -8 if dtype is DType.F64 else -30
    )  # the check's own arithmetic rounds too
    top = widen(from_patterns(np.array([largest(dtype)]), dtype), dtype).astype(np.longdouble)[0]
    assert not np.isnan(got).any()
    infinite = np.isinf(got)
    if op is ReduceOp.AVG:
        assert not infinite.any()
    may_overflow = np.abs(exact) + bound > top
    assert not (infinite & ~may_overflow).any()
    certain = infinite & (np.abs(exact) > bound)  # within the bound of zero, either sign is right
    assert (np.sign(got[certain]) == np.sign(exact[certain])).all()
    error = np.abs(got - exact)
    wrong = ~infinite & (error > bound)
    where = np.flatnonzero(wrong)[:3]
    assert not wrong.any(), (
        dtype.label,
        bits,
        n,
        op,
        xs[:, where],
        result[where],
        exact[where],
        bound[where],
    )


def normal(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Array:
    return narrowed(rng.normal(size=shape), dtype)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Array:
    return narrowed(rng.standard_cauchy(shape) * np.exp(rng.normal(size=shape)), dtype)


def narrowed(x: Array, dtype: DType) -> Array:
    if dtype is DType.F64:
        return x
    return narrow(np.clip(x, -60000, 60000).astype(np.float32), dtype)


def any_finite(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Array:
    """Every finite bit pattern alike: all exponents, subnormals too."""
    bits = rng.integers(0, largest(dtype), shape, dtype=np.uint64, endpoint=True)
    sign = rng.integers(0, 2, shape, dtype=np.uint64) * np.uint64(SIGN[dtype])
    return from_patterns(bits | sign, dtype)


def subnormal(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Array:
    smallest_normal = {DType.F32: 1 << 23, DType.F64: 1 << 52, DType.F16: 1 << 10, DType.BF16: 1 << 7}[dtype]
    bits = rng.integers(0, smallest_normal, shape, dtype=np.uint64)
    return from_patterns(bits | rng.integers(0, 2, shape, dtype=np.uint64) * np.uint64(SIGN[dtype]), dtype)


def edges(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Array:
    """Zeros, the smallest and largest subnormal and normal values, and neighbours of powers of two."""
    one = {DType.F32: 0x3F800000, DType.F64: 0x3FF << 52, DType.F16: 0x3C00, DType.BF16: 0x3F80}[dtype]
    step = {DType.F32: 1 << 23, DType.F64: 1 << 52, DType.F16: 1 << 10, DType.BF16: 1 << 7}[dtype]
    values = [0, 1, 2, step - 1, step, step + 1, one - 1, one, one + 1, largest(dtype) - 1, largest(dtype)]
    bits = rng.choice(np.array(values, np.uint64), shape)
    return from_patterns(bits | rng.integers(0, 2, shape, dtype=np.uint64) * np.uint64(SIGN[dtype]), dtype)


def near_the_top(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> Array:
    bits = np.uint64(largest(dtype)) - rng.integers(0, 4, shape, dtype=np.uint64)
    few = rng.random(shape) < 0.3
    sign = rng.integers(0, 2, shape, dtype=np.uint64) * np.uint64(SIGN[dtype])
    return from_patterns(np.where(few, bits | sign, np.uint64(0)), dtype)


SOURCES = (normal, heavy_tailed, any_finite, subnormal, edges, near_the_top)


# ---------------------------------------------------------------------- the bound


@pytest.mark.parametrize(("dtype", "bits"), LANES, ids=lambda v: getattr(v, "label", v))
@pytest.mark.parametrize("source", SOURCES, ids=lambda f: f.__name__)
def test_results_are_within_the_bound(
    rng: np.random.Generator,
    dtype: DType,
    bits: int,
    source: Callable[[np.random.Generator, tuple[int, int], DType], Array],
) -> None:
    for n in (*GROUPS, 127, 256 if bits > 8 else 100):
        xs = source(rng, (n, 1500 if n <= 32 else 100), dtype)
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            check(xs, dtype, bits, op)


@pytest.mark.parametrize(("dtype", "bits"), LANES, ids=lambda v: getattr(v, "label", v))
def test_all_ranks_at_the_same_extreme(dtype: DType, bits: int) -> None:
    step = {DType.F32: 23, DType.F64: 52, DType.F16: 10, DType.BF16: 7}[dtype]
    powers = [e << step for e in (1, 2, 3, 60 if dtype is DType.BF16 else 20, largest(dtype) >> step)]
    around = [p + d for p in powers for d in (-1, 0, 1)] + [1, 2, largest(dtype), largest(dtype) - 1]
    x = from_patterns(np.array([p | sign for p in around for sign in (0, SIGN[dtype])], np.uint64), dtype)
    for n in [*MANY_GROUPS, *(n for n in TREES if bits != 8 or n <= 127)]:
        alone = np.stack([x] + [np.zeros_like(x)] * (n - 1))
        for xs in (np.stack([x] * n), alone):
            for op in (ReduceOp.SUM, ReduceOp.AVG):
                check(xs, dtype, bits, op, chunk=1)  # each element with a scale of its own


@pytest.mark.parametrize(("dtype", "bits"), LANES, ids=lambda v: getattr(v, "label", v))
def test_the_bound_holds_in_exact_arithmetic(rng: np.random.Generator, dtype: DType, bits: int) -> None:
    for source, n in itertools.product((normal, any_finite, edges), (2, 5, 32)):
        xs = source(rng, (n, 40), dtype)
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            result, exponents = reduce(xs, dtype, bits, op)
            wide, got = [widen(x, dtype) for x in xs], widen(result, dtype)
            for i in np.flatnonzero(np.isfinite(got)):
                exact = sum((Fraction(float(x[i])) for x in wide), Fraction(0)) / (
                    n if op is ReduceOp.AVG else 1
                )
                bound = error_bound(dtype, bits, n, int(exponents[i]), op)
                assert abs(Fraction(float(got[i])) - exact) <= bound


def test_the_bound_is_what_the_docs_say() -> None:
    eta = Fraction(1, 2**150)
    four = error_bound(DType.F32, 32, 4, 127)  # |x| < 2
    assert four == 4 * Fraction(1, 2**29) + 8 * Fraction(1, 2**24) + eta
    assert float(error_bound(DType.F32, 16, 4, 127)) == pytest.approx(4 * 2 / 8191, rel=0.01)
    assert float(error_bound(DType.F32, 8, 4, 127)) == pytest.approx(4 * 2 / 31, rel=0.001)
    assert error_bound(DType.I32, 32, 4, 0) == error_bound(DType.F32, 32, 4, -1) == 0
    with pytest.raises(UsageError, match="that of a finite value"):
        error_bound(DType.F32, 32, 4, 255)


# ---------------------------------------------------------------------- integers


@pytest.mark.parametrize(
    ("dtype", "bits"), [(d, b) for d, b in LANES if b >= 32], ids=lambda v: getattr(v, "label", v)
)
def test_wide_lanes_hold_the_nearest_integer(rng: np.random.Generator, dtype: DType, bits: int) -> None:
    for n in (1, 2, 3, 8, 32, 128, 129, 255, 256):
        room = {128: 7, 129: 8, 255: 8, 256: 9}.get(n, (n - 1).bit_length())
        s = bits - 2 - room
        top = (1 << (31 - room)) - 1 if dtype is DType.F64 and bits == 32 else None
        for source in (normal, any_finite, subnormal, edges):
            x = source(rng, (1, 60), dtype)
            exponents = agreed_exponents(x, dtype, chunk_of(bits))
            q = contributions(np.repeat(x, n, axis=0), exponents, dtype, bits)[0]
            for value, e, got in zip(widen(x[0], dtype), exponents, q, strict=True):
                if e == -1:
                    continue
                power = s - (max(int(e), 1) - (1023 if dtype is DType.F64 else 127))
                expected = round(Fraction(float(value)) * Fraction(2) ** power)  # halves to even
                assert int(got) == (expected if top is None else max(-top, min(top, expected)))
                assert n * abs(int(got)) < 1 << (bits - 1)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda v: v.label)
def test_narrow_lanes_are_rounded_to_a_neighbour(rng: np.random.Generator, dtype: DType, bits: int) -> None:
    eps = Fraction(1, 2 ** (53 if dtype is DType.F64 else 24))
    for n in (1, 2, 3, 32, 127):
        top = lane_top(bits, n)
        for source in (normal, any_finite, edges):
            xs = source(rng, (n, 50), dtype)
            exponents = agreed_exponents(xs, dtype, chunk_of(bits))
            q = contributions(xs, exponents, dtype, bits)
            assert np.abs(q).max() <= top
            for x, row in zip(xs, q, strict=True):
                for value, e, got in zip(widen(x, dtype), exponents, row, strict=True):
                    if e == -1:
                        continue
                    power = max(int(e), 1) - (1023 if dtype is DType.F64 else 127) + 1
                    v = Fraction(float(value)) / Fraction(2) ** power * top
                    assert abs(int(got) - v) < 1 + eps * (top + 1)
                    assert value != 0 or got == 0


def test_dither_is_the_documented_hash() -> None:
    def mixed(index: int, key: int) -> int:
        h = (index * 0x9E3779B1 + key) % 2**32
        h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
        return h >> 16

    def key_of(position: int, rank: int) -> int:
        k = (position * 0x9E3779B1) % 2**32 ^ ((rank + 1) * 0x7FEB352D) % 2**32
        k = (k ^ k >> 15) * 0x846CA68B % 2**32
        return k ^ k >> 16

    index = np.array([0, 1, 2, 1000, 2**31, 2**32 - 1, 2**32, 2**40 + 7])
    for position, rank in ((0, 0), (1, 0), (0, 1), (2**32 - 1, 31), (2**33 + 5, 3)):
        key = dither_key(position, rank)
        assert key == key_of(position, rank)
        assert codec.dither(index, key).tolist() == [mixed(int(i), key) for i in index]
    assert dither_key(0, 0) == 0x688990C0
    assert codec.dither(np.arange(4), 0x688990C0).tolist() == [26519, 15427, 10175, 65275]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda v: v.label)
@pytest.mark.parametrize(("bits", "n"), [(16, 2), (16, 32), (8, 2), (8, 32)])
def test_stochastic_rounding_is_unbiased(dtype: DType, bits: int, n: int) -> None:
    """Means over 200,000 draws, six standard deviations wide, with fixed keys: it passes always or never."""
    draws = 200_000
    top = lane_top(bits, n)
    real = STORAGE[dtype]
    exponents = np.full(draws, 1023 if dtype is DType.F64 else 127, np.int16)  # |x| < 2
    for lane in (0.001, 0.25, 0.5, 0.9, -0.1, -0.5, 1.3, top - 0.7, -top + 0.4):
        x = np.full(draws, lane * 2 / top, real)
        v = float(x[0]) * top / 2
        for rank in range(2):
            q = codec.quantize(
                x,
                exponents,
                dtype=dtype,
                bits=bits,
                workers=n,
                index=np.arange(draws),
                key=dither_key(3, rank),
            )
            share = v - np.floor(v)
            six_sigma = 6 * np.sqrt(max(share * (1 - share), 1e-3) / draws)
            assert abs(q.mean() - v) < six_sigma + top * 2**-24 + 2**-17


def test_errors_of_ranks_cancel_as_independent_ones_would() -> None:
    """Over 12 collectives of 8 ranks with the same data; fixed keys: it passes always or never."""
    index, n = np.arange(1 << 15), 8
    draws = np.stack([[codec.dither(index, dither_key(p, r)) for r in range(n)] for p in range(12)])
    u = (draws + 0.5) / 65536
    for share in (0.1, 0.5):
        total = (u + share >= 1).sum(axis=1)
        assert total.var(axis=1) / (n * share * (1 - share)) == pytest.approx(1, abs=0.05)
        assert total.mean(axis=1) == pytest.approx(n * share, abs=0.05)
    correlation = np.corrcoef(u.reshape(-1, index.size)) - np.eye(12 * n)
    assert np.sqrt((correlation**2).mean()) < 1.5 / np.sqrt(index.size)  # of independent draws: 1
    assert np.abs(correlation).max() < 0.2  # a cheap hash: single pairs of keys may be related


# ---------------------------------------------------------------------- lanes


@pytest.mark.parametrize("bits", [16, 8])
def test_lanes_at_their_worst_do_not_overflow(rng: np.random.Generator, bits: int) -> None:
    each = elements_per_packet(WORDS, bits)
    for n in (*range(1, 33), *(n for n in TREES if bits > 8 or n <= 127)):
        top = lane_top(bits, n)
        assert n * top < 1 << (bits - 1)
        for signs in (np.ones(each), -np.ones(each), rng.choice([-1, 1], each), np.resize([1, -1], each)):
            q = (signs * top).astype(np.int32)
            words = codec.pack(q, bits, WORDS)
            total = np.zeros(WORDS, np.uint32)
            for _ in range(n):
                total += words
            assert np.array_equal(codec.unpack(total, bits), n * q)


@pytest.mark.parametrize("bits", [32, 16, 8, 64])
def test_sums_of_words_are_sums_of_lanes_in_any_order(rng: np.random.Generator, bits: int) -> None:
    each = elements_per_packet(WORDS, bits)
    for n in (*range(1, 33), 127, 256):
        if bits == 8 and n > 127:
            continue
        if bits == 64:
            q = rng.integers(-(2**63), 2**63 - 1, (n, 3, each), dtype=np.int64, endpoint=True)
        else:
            top = lane_top(bits, n) if bits < 32 else 2**31 - 1
            q = rng.integers(-top, top, (n, 3, each), endpoint=True).astype(np.int32)
        words = codec.pack(q, bits, WORDS)
        orders = list(itertools.permutations(range(n))) if n <= 4 else [rng.permutation(n) for _ in range(3)]
        sums = []
        for order in orders:
            total = np.zeros((3, WORDS), np.uint32)
            for r in order:
                total += words[r]
            sums.append(total)
        assert all(np.array_equal(s, sums[0]) for s in sums)
        assert np.array_equal(codec.unpack(sums[0], bits), q.sum(axis=0, dtype=q.dtype))  # modulo 2^32, 2^64


def test_limbs_are_exact_at_the_ends_of_the_range() -> None:
    ends = [0, 1, -1, 2**22 - 1, 2**22, 2**44 - 1, 2**44, 2**63 - 1, -(2**63), -(2**22), -(2**44)]
    q = np.resize(np.array(ends, np.int64), 16)
    words = codec.pack(q, 64, 50)  # 50 = 3 * 16 + 2
    assert words[:48].max() < 1 << 22
    assert words[48:].tolist() == [0, 0]
    for n in (*range(1, 33), 255, 256):
        total = np.zeros(50, np.uint32)
        for _ in range(n):
            total += words
        expected = np.array([(n * int(v) + 2**63) % 2**64 - 2**63 for v in q], np.int64)
        assert np.array_equal(codec.unpack(total, 64), expected)


def test_known_words() -> None:
    q16 = np.array([1, -1, *[0] * 14, -1, 2, *[0] * 14], np.int32)
    assert codec.pack(q16, 16, 16)[:3].tolist() == [0xFFFF0001, 0x0001FFFF, 0]
    q8 = np.zeros(64, np.int32)
    q8[[0, 16, 32, 48]] = [-1, 2, -3, 4]
    assert codec.pack(q8, 8, 16)[0] == (4 * 2**24 - 3 * 2**16 + 2 * 2**8 - 1) % 2**32
    q64 = np.array([-1, 0, 0, 0, 0], np.int64)
    assert codec.pack(q64, 64, 16).tolist() == [
        0x3FFFFF,
        0,
        0,
        0,
        0,
        0x3FFFFF,
        0,
        0,
        0,
        0,
        0xFFFFF,
        0,
        0,
        0,
        0,
        0,
    ]
    with pytest.raises(UsageError, match="30 lanes of 16 bits do not fill 16 words"):
        codec.pack(np.zeros(30, np.int32), 16, 16)


def test_words_on_the_wire() -> None:
    words = np.array([0x01020304, 5], np.uint32)
    assert codec.payload(words, DType.F32) == bytes([1, 2, 3, 4, 0, 0, 0, 5])
    assert codec.payload(np.frombuffer(b"abcdefgh", np.uint32), DType.RAW) == b"abcdefgh"
    for dtype in (DType.F32, DType.RAW):
        assert np.array_equal(codec.from_payload(codec.payload(words, dtype), dtype), words)


def test_a_lane_too_narrow_is_refused() -> None:
    assert [lane_top(8, n) for n in (1, 2, 32, 127)] == [127, 63, 3, 1]
    with pytest.raises(UsageError, match="128 workers cannot share lanes so narrow; accepted: up to 127"):
        lane_top(8, 128)
    assert lane_top(16, 256) == 127


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64], ids=lambda v: v.label)
def test_integers_are_exact(rng: np.random.Generator, dtype: DType) -> None:
    bits = dtype.lanes[0]
    info = np.iinfo(STORAGE[dtype])  # type: ignore[type-var]
    for n in (1, 2, 7, 32, 256):
        xs = rng.integers(info.min, info.max, (n, 500), dtype=info.dtype, endpoint=True)
        xs[:, 0], xs[:, 1] = info.max, info.min
        none = np.empty(0, np.int16)
        words = np.zeros_like(packed(xs[0], bits))
        for x in xs:
            words += packed(codec.quantize(x, none, dtype=dtype, bits=bits, workers=n), bits)
        total = codec.unpack(words, bits).reshape(-1)[:500]
        result = codec.dequantize(total, np.empty(0, np.int16), dtype=dtype, bits=bits, workers=n)
        assert result.dtype == xs.dtype
        assert np.array_equal(result, xs.sum(axis=0, dtype=xs.dtype))


# ---------------------------------------------------------------------- scan, special values, conversions


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda v: v.label)
def test_scan_of_floats(rng: np.random.Generator, dtype: DType) -> None:
    for count, block, chunk in (
        (0, 64, 1024),
        (1, 64, 1024),
        (1000, 7, 100),
        (5000, 64, 1024),
        (3000, 2048, 1024),
    ):
        x = any_finite(rng, (1, count), dtype)[0]
        x[rng.random(count) < 0.9] = 0
        keep = np.repeat(rng.random(-(-count // block)) < 0.5, block)[:count]
        x = np.where(keep, x, x.dtype.type(0))
        wide = widen(x, dtype)
        found = codec.scan(x, dtype, block, chunk)
        assert found.bitmap.tolist() == [
            bool((wide[at : at + block] != 0).any()) for at in range(0, count, block)
        ]
        shift, wide_bits = (52, np.uint64) if dtype is DType.F64 else (23, np.uint32)
        expected = []
        for at in range(0, count, chunk):
            top = np.abs(wide[at : at + chunk]).max()
            expected.append(-1 if top == 0 else int(np.array(top).view(wide_bits)) >> shift)
        assert found.exponents.tolist() == expected


def test_scan_of_known_values() -> None:
    x = np.array([0, 0, 1.0, 0, 0, -3.0, 1e-45, 0, 0, 0], np.float32)
    found = codec.scan(x, DType.F32, 2, 6)
    assert found.bitmap.tolist() == [False, True, True, True, False]
    assert found.exponents.tolist() == [128, 0]
    assert not found.negative_zero
    masked = codec.scan(x, DType.F32, 2, 6, np.array([1, 1, 0, 0, 1], np.bool_))
    assert masked.bitmap.tolist() == [False, True, False, False, False]
    assert masked.exponents.tolist() == [127, -1]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda v: v.label)
def test_negative_zero_is_zero_and_noticed(dtype: DType) -> None:
    x = from_patterns(np.zeros(8, np.uint64), dtype)
    assert not codec.scan(x, dtype, 4, 1024).negative_zero
    patterns(x)[1] = SIGN[dtype]
    found = codec.scan(x, dtype, 4, 1024)
    assert not found.bitmap.any()
    assert (found.exponents.tolist(), found.negative_zero) == ([-1], True)
    patterns(x)[2] = 1  # now its block is sent, and the result has no negative zero anyway
    found = codec.scan(x, dtype, 4, 1024)
    assert (found.bitmap.tolist(), found.negative_zero) == ([True, False], False)
    for bits in dtype.lanes:
        result, _ = reduce(np.stack([x, x]), dtype, bits)
        assert patterns(result)[[0, 1, 3, 4]].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.RAW], ids=lambda v: v.label)
def test_scan_of_integers(dtype: DType) -> None:
    x = np.zeros(10, STORAGE[dtype])
    x[7] = 5
    found = codec.scan(x, dtype, 4)
    assert (found.bitmap.tolist(), found.exponents.size) == ([False, True, False], 0)


def test_scan_refuses_another_type() -> None:
    with pytest.raises(UsageError, match="needed for bfloat16: uint16"):
        codec.scan(np.zeros(4, np.float32), DType.BF16, 64)


@pytest.mark.parametrize(("dtype", "bits"), LANES, ids=lambda v: getattr(v, "label", v))
def test_nan_and_infinity_change_nothing_but_themselves(
    rng: np.random.Generator, dtype: DType, bits: int
) -> None:
    chunk = chunk_of(bits)
    infinity = largest(dtype) + 1
    for bad in (infinity, infinity | SIGN[dtype], infinity + 1, largest(dtype) | SIGN[dtype] | infinity):
        xs = normal(rng, (3, 2 * chunk + 10), dtype)
        patterns(xs)[1, chunk + 3] = 0
        expected, _ = reduce(xs, dtype, bits)
        patterns(xs)[1, chunk + 3] = bad
        result, _ = reduce(xs, dtype, bits)
        assert result.tobytes() == expected.tobytes()
        found = codec.scan(xs[1], dtype, 64, chunk)
        assert found.special.tolist() == [False, True, False]
        words = [codec.special_words(x[chunk : 2 * chunk], dtype, chunk) for x in xs]
        codec.write_specials(result[chunk : 2 * chunk], np.bitwise_or.reduce(words), dtype)
        at = patterns(result)[chunk + 3]
        assert at == bad if bad & ~SIGN[dtype] == infinity else np.isnan(widen(result, dtype)[chunk + 3])
        result[chunk + 3] = expected[chunk + 3]
        assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=lambda v: v.label)
def test_conversions_agree_with_others(rng: np.random.Generator, dtype: DType) -> None:
    other = np.dtype(np.float16) if dtype is DType.F16 else np.dtype(ml_dtypes.bfloat16)
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = widen(from_patterns(every, dtype), dtype)
    expected = every.view(other).astype(np.float32)
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(wide), ~number)
    assert np.array_equal(wide[number].view(np.uint32), expected[number].view(np.uint32))
    bits = rng.integers(0, 1 << 32, 500_000, dtype=np.uint64).astype(np.uint32)
    near = (every.astype(np.uint32) << 16) + rng.choice(
        np.array([0, 0x7FFF, 0x8000, 0x8001], np.uint32), every.size
    )
    y = np.concatenate([bits, near]).view(np.float32)
    y = y[~np.isnan(y)]
    with np.errstate(over="ignore"):
        assert np.array_equal(patterns(narrow(y, dtype)), y.astype(other).view(np.uint16))
    assert patterns(narrow(np.array([np.nan], np.float32), dtype))[0] in (0x7E00, 0x7FC0)


@pytest.mark.parametrize(("dtype", "bits"), LANES, ids=lambda v: getattr(v, "label", v))
def test_one_large_value_is_not_made_infinite(dtype: DType, bits: int) -> None:
    for n in MANY_GROUPS:
        for sign in (0, SIGN[dtype]):
            xs = from_patterns(np.zeros((n, 3), np.uint64), dtype)
            patterns(xs)[0, 0] = largest(dtype) | sign
            patterns(xs)[:, 1] = largest(dtype) | sign
            alone, _ = reduce(xs, dtype, bits)
            average, _ = reduce(xs, dtype, bits, ReduceOp.AVG)
            assert np.isfinite(widen(alone, dtype)[0])
            assert np.isfinite(widen(average, dtype)).all()
            if n > 1:
                assert np.isinf(widen(alone, dtype)[1])

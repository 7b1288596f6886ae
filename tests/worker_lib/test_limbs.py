"""Exact sums of the native stream against Python's integers, to the bit. No network."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.reference import exact
from tests.seeds import seed_of_this_run
from worker_lib import _native
from worker_lib.plan import DType, Kind, ReduceOp, pack_bitmap
from worker_lib.quantize import STORAGE, Values

FLOATS = (DType.F32, DType.F64, DType.F16, DType.BF16)
INFINITY = {DType.F32: 0x7F800000, DType.F64: 0x7FF0000000000000, DType.F16: 0x7C00, DType.BF16: 0x7F80}
EXACT, BOUNDED = 0, 1  # in place of a lane's bits
BOUND = {DType.F32: 12, DType.F64: 51, DType.F16: 10, DType.BF16: 7}
LARGEST = {
    d: np.array([i - 1], np.dtype(f"u{np.dtype(STORAGE[d]).itemsize}")).view(STORAGE[d])
    for d, i in INFINITY.items()
}
CASES = int(os.environ.get("SWITCHAGG_SUMS", "60")) // 4  # of each element type


def from_float64(x: np.ndarray[Any, Any], dtype: DType) -> Values:
    """Values of the type near these; the largest finite one where they are too large."""
    if dtype is DType.BF16:
        largest = np.float32(np.finfo(np.float32).max)
        narrow = np.clip(x, -float(largest), float(largest)).astype(np.float32)
        return (narrow.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    top = float(np.finfo(STORAGE[dtype]).max)
    return np.clip(x, -top, top).astype(STORAGE[dtype])


def any_values(rng: np.random.Generator, dtype: DType, count: int) -> Values:
    """Normal data, heavy tails, mixed magnitudes, any bit pattern, subnormals, small integers, or zeros."""
    style = rng.integers(8)
    if style == 0:
        return from_float64(rng.standard_normal(count), dtype)
    if style == 1:
        return from_float64(rng.standard_t(1.5, count) * 10.0 ** rng.integers(-3, 4), dtype)
    if style == 2:
        return from_float64(rng.choice([0.3512, 5e7, 1e-30, 1.0, 3e38, -7.0], count), dtype)
    if style == 3:
        unsigned = np.dtype(f"u{np.dtype(STORAGE[dtype]).itemsize}")
        bits = rng.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True)
        finite = (bits & unsigned.type(INFINITY[dtype])) != INFINITY[dtype]
        return np.where(finite, bits, unsigned.type(1)).view(STORAGE[dtype])
    if style == 4:
        return from_float64(rng.integers(-50, 50, count) * {DType.F64: 5e-324}.get(dtype, 1.5e-45), dtype)
    if style == 5:
        return from_float64(rng.integers(-9, 10, count).astype(np.float64), dtype)
    if style == 6:
        return from_float64(rng.choice([0.0, -0.0], count), dtype)
    return from_float64(np.ldexp(rng.standard_normal(count), rng.integers(-400, 400, count)), dtype)


def through_switch(
    xs: list[Values],
    dtype: DType,
    bits: int,
    op: ReduceOp,
    words: int,
    *,
    block: int = 64,
    sparse: bool = True,
    masks: list[np.ndarray[Any, Any]] | None = None,
    outs: tuple[int, int] | None = None,
    in_place: bool = False,
    order: np.random.Generator | None = None,
    part: int = 0,
) -> list[Values]:
    """Every rank's result of a collective whose packets are summed here, in any order.

    `part` elements are for one rank: a RESULT of its elements alone has words for others by accident only.
    """
    n, count = len(xs), xs[0].size
    ranges = [outs or (0, count)] * n
    if part:
        ranges = [(min(rank * part, count), min((rank + 1) * part, count)) for rank in range(n)]
    if in_place:
        xs = [x.copy() for x in xs]
    results = [
        x[begin:end] if in_place else np.full(end - begin, 1, x.dtype)
        for x, (begin, end) in zip(xs, ranges, strict=True)
    ]
    packed = [None if masks is None else pack_bitmap(mask) for mask in masks or [None] * n]
    codecs = []
    for rank, (x, result, mask) in enumerate(zip(xs, results, packed, strict=True)):
        call = _native.Call(
            kind=Kind.ALLREDUCE, op=op, dtype=dtype, bits=bits, sparse=sparse, block=block, count=count,
            fingerprint_count=count, workers=n, rank=rank, input=x.ctypes.data, in_end=count,
            output=result.ctypes.data, out_begin=ranges[rank][0], out_end=ranges[rank][1], zero_fill=True,
            mask=0 if mask is None else mask.ctypes.data, part=part,
        )  # fmt: skip
        call.directed = part > 0
        codecs.append(_native.Codec(call, 7, words))

    def summed(packets: list[bytes | None], ufunc: np.ufunc) -> bytes | None:
        there = [np.frombuffer(p, ">u4").astype(np.uint32) for p in packets if p is not None]
        return bytes(ufunc.reduce(there).astype(">u4").tobytes()) if there else None

    for p in range(codecs[0].plan_packets):
        total = summed([c.plan_packet(p) for c in codecs], np.bitwise_or)
        for c in codecs:
            c.plan_result(p, total)
    while True:
        (packets,) = {c.next_step() for c in codecs}
        if packets is None:
            break
        totals = [
            summed([c.encode(p) for c in codecs], np.bitwise_or if codecs[0].is_or(p) else np.add)
            for p in range(packets)
        ]
        for p in range(packets) if order is None else order.permutation(packets):
            reader, more = codecs[0].reader(int(p)), order is not None and order.random() < 0.1
            for rank, c in enumerate(codecs):
                c.decode(int(p), totals[int(p)] if more or reader in (None, rank) else None)
    for c in codecs:
        c.finish()
    return results


@dataclass
class Case:
    """Inputs of a collective, and its settings."""

    xs: list[Values]
    op: ReduceOp
    words: int
    block: int
    sparse: bool
    masks: list[np.ndarray[Any, Any]] | None
    outs: tuple[int, int] | None
    in_place: bool

    def checked(self, rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Elements of the tensor that the oracle is asked for, all or some; and their places in a result."""
        begin, end = self.outs or (0, self.xs[0].size)
        if end - begin <= 5000:
            return np.arange(begin, end), np.arange(end - begin)
        some = np.unique(rng.integers(begin, end, 500))
        return some, some - begin

    def run(self, dtype: DType, bits: int, rng: np.random.Generator) -> list[Values]:
        return through_switch(
            self.xs, dtype, bits, self.op, self.words, block=self.block, sparse=self.sparse,
            masks=self.masks, outs=self.outs, in_place=self.in_place, order=rng,
        )  # fmt: skip


def any_case(rng: np.random.Generator, dtype: DType) -> Case:
    n = int(rng.choice([2, 3, 4, 5, 8, 13, 16]))
    if rng.random() < 0.03:
        n = int(rng.choice([129, 256]))
    count = int(rng.choice([1, 2, 100, 1023, 1024, 1025, 3000, 4095, 4097, 9000])) if n <= 16 else 40
    block = int(rng.choice([1, 7, 64, 100, 1024]))
    words, density = int(rng.choice([16, 17, 31, 64, 364, 2239])), 0.5
    if rng.random() < 0.03:  # exponents come later where zero blocks are skipped
        n, count, words = int(rng.choice([2, 3, 4, 7])), int(10 ** rng.uniform(4.52, 6)), 2239
        density = float(rng.choice([0.02, 0.3, 0.9, 1.0]))
    xs = [any_values(rng, dtype, count) for _ in range(n)]
    sign = exact.bits_of(xs[0]).dtype.type(1 << (8 * xs[0].itemsize - 1))
    if rng.random() < 0.3:  # cancellation
        xs[1] = (exact.bits_of(xs[0]) ^ sign).view(xs[0].dtype)
    if rng.random() < 0.5:
        for x in xs:
            x[np.repeat(rng.random(-(-count // block)) >= density, block)[:count]] = 0
    if rng.random() < 0.2:
        for x in xs:
            kinds = rng.choice([INFINITY[dtype], INFINITY[dtype] + 1, int(sign) | INFINITY[dtype]], 3)
            exact.bits_of(x)[rng.integers(count, size=3)] = kinds
    sparse, masks = bool(rng.random() < 0.7), None
    if sparse and rng.random() < 0.3:
        masks = [rng.random(-(-count // block)) < 0.7 for _ in xs]
        for x, mask in zip(xs, masks, strict=True):
            x[~np.repeat(mask, block)[:count]] = 0
    return Case(
        xs,
        ReduceOp.AVG if rng.random() < 0.4 else ReduceOp.SUM,
        words,
        block,
        sparse,
        masks,
        (count // 3, count - count // 4) if rng.random() < 0.2 else None,
        bool(rng.random() < 0.5),
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.label)
def test_exact_sums_are_rounded_once(dtype: DType) -> None:
    seed = seed_of_this_run()
    for number in range(CASES):
        rng = np.random.default_rng((seed, dtype, number))
        case = any_case(rng, dtype)
        elements, places = case.checked(rng)
        wanted = exact.reduce([x[elements] for x in case.xs], dtype, case.op)
        first, *others = case.run(dtype, EXACT, rng)
        for other in others:
            assert other.tobytes() == first.tobytes(), f"seed {seed}, case {number}: ranks differ"
        wrong = np.flatnonzero(exact.bits_of(first[places]) != exact.bits_of(wanted))
        if wrong.size:
            i = int(wrong[0])
            raise AssertionError(
                f"seed {seed}, case {number}, element {elements[i]}: {first[places][i]}, not {wanted[i]}; "
                f"of {[x[elements[i]] for x in case.xs]}, {case.op.name}, K={case.words}, "
                f"block={case.block}, {case.outs=}"
            )


def check_bound(first: Values, xs: list[Values], dtype: DType, op: ReduceOp, where: str) -> None:
    """Holds results of the default against the bound of each, and NaN and Inf against exact sums."""
    rounded = exact.reduce(xs, dtype, op)
    divisor = len(xs) if op is ReduceOp.AVG else 1
    columns = list(zip(*(exact.integers(x, dtype) for x in xs), strict=True))
    infinity = exact.bits_of(first).dtype.type(INFINITY[dtype])
    given = np.stack([exact.bits_of(x) for x in xs])
    special = ((given & infinity) == infinity).any(axis=0)
    assert first[special].tobytes() == rounded[special].tobytes(), where
    got = exact.integers(first, dtype)
    for i, column in enumerate(columns):
        if special[i] or exact.bits_of(first)[i] == exact.bits_of(rounded)[i]:
            continue
        if (exact.bits_of(first)[i] & infinity) == infinity:  # the next number after the largest
            got[i] = 1 << (exact.integers(LARGEST[dtype], dtype)[0].bit_length())
        # |D - S| <= 2^-t sum |x| / divisor + 1/2, in smallest subnormals; times 2^(t+1).
        error = abs(abs(got[i]) * divisor - abs(sum(column))) << BOUND[dtype] + 1
        allowed = 2 * sum(map(abs, column)) + (divisor << BOUND[dtype])
        assert error <= allowed, f"{where}, element {i}: {first[i]!r} of {column}"


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.label)
def test_the_default_is_within_its_bound_for_each_element_by_itself(dtype: DType) -> None:
    seed = seed_of_this_run()
    for number in range(CASES):
        rng = np.random.default_rng((seed, dtype, number, 1))
        case = any_case(rng, dtype)
        elements, places = case.checked(rng)
        first, *others = case.run(dtype, BOUNDED, rng)
        for other in others:
            assert other.tobytes() == first.tobytes(), f"seed {seed}, case {number}: ranks differ"
        xs = [x[elements] for x in case.xs]
        check_bound(first[places], xs, dtype, case.op, f"seed {seed}, case {number}")


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.label)
def test_parts_that_one_rank_gets_are_exact_or_within_the_bound(dtype: DType) -> None:
    seed = seed_of_this_run()
    for number in range(CASES):
        rng = np.random.default_rng((seed, dtype, number, 2))
        case = any_case(rng, dtype)
        part = -(-case.xs[0].size // len(case.xs))
        settings: dict[str, Any] = {"block": case.block, "sparse": case.sparse, "masks": case.masks}
        whole = through_switch(case.xs, dtype, EXACT, case.op, case.words, **settings)[0]
        settings |= {"in_place": case.in_place, "order": rng, "part": part}
        for bits in (EXACT, BOUNDED):
            parts = through_switch(case.xs, dtype, bits, case.op, case.words, **settings)
            got = np.concatenate(parts)
            if bits == EXACT:
                assert got.tobytes() == whole.tobytes(), f"seed {seed}, case {number}"
            else:
                some = case.checked(rng)[0] if case.outs is None else np.arange(min(whole.size, 500))
                check_bound(
                    got[some], [x[some] for x in case.xs], dtype, case.op, f"seed {seed}, case {number}"
                )


@pytest.mark.parametrize("count", [5000, 40_000])
def test_blocks_and_what_is_skipped_change_no_bit(count: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [any_values(rng, DType.F32, count) for _ in range(3)]
    for x in xs:
        x[np.repeat(rng.random(-(-count // 64)) < 0.7, 64)[:count]] = 0
    for bits in (EXACT, BOUNDED):
        found = {
            through_switch(xs, DType.F32, bits, ReduceOp.SUM, 64, block=block, sparse=sparse)[0].tobytes()
            for block, sparse in ((64, True), (1, True), (4096, True), (64, False))
        }
        assert len(found) == 1

"""The native codec against the reference, to the bit: plan packets, stream packets, results. No
network."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from tests.reference import plan, stream
from tests.reference.plan import Call
from tests.reference.quantize import from_payload, payload, scan
from tests.seeds import seed_of_this_run
from worker_lib import _native
from worker_lib.plan import DType, Kind, ReduceOp
from worker_lib.quantize import STORAGE, Values, error_bound, widen

CASES = 60  # of each element type
EDGE = 19  # elements about a result that nobody may touch
Payload = bytes | None
Words = npt.NDArray[np.uint32]


@dataclass
class Rank:
    """One rank of a call: its tensor, twice, and the native codec on one of them."""

    x: Values
    result: Values
    codec: _native.Codec
    mask: npt.NDArray[np.bool_] | None
    packed: Words | None
    edges: tuple[Values, Values]  # before and behind the result: ones


def open_rank(
    call: Call,
    x: Values,
    rank: int,
    n: int,
    words: int,
    *,
    mask: npt.NDArray[np.bool_] | None,
    memory: npt.NDArray[np.float32] | None = None,
    in_place: bool = False,
) -> Rank:
    # A result at any element of a line of cache, and every other rank's written past the cache.
    spare = np.full(x.size + 2 * EDGE, 1, x.dtype)
    first = rank % EDGE
    result = x if in_place else spare[first:][: x.size]
    packed = None if mask is None else plan.pack_bitmap(mask).astype(np.uint32)
    code = _native.Call(
        kind=call.kind, op=call.op, dtype=call.dtype, bits=call.bits, root=call.root, sparse=call.sparse,
        block=call.block, count=call.count, fingerprint_count=call.count,
        shape_crc=zlib.crc32(repr(tuple(call.shape)).encode()), workers=n, rank=rank, policy=0,
        input=x.ctypes.data, in_begin=0, in_end=call.count,
        output=result.ctypes.data, out_begin=0, out_end=call.count,
        mask=0 if packed is None else packed.ctypes.data, zero_fill=True,
        auto_zeros=call.auto_zeros, auto_block=call.auto_block, auto_lanes=call.auto_lanes,
        memory=0 if memory is None else memory.ctypes.data,
    )  # fmt: skip
    code.nontemporal = rank % 2 == 1
    return Rank(
        x,
        result,
        _native.Codec(code, call.position, words),
        mask,
        packed,
        (spare[:first], spare[first + x.size :]),
    )


def random_values(rng: np.random.Generator, dtype: DType, count: int) -> Values:
    """Elements of any magnitude, some of them special."""
    storage = STORAGE[dtype]
    if not dtype.is_float:
        info = np.iinfo(storage)
        return rng.integers(info.min, info.max, count, dtype=storage, endpoint=True)
    pattern = np.uint16 if dtype is DType.BF16 else np.dtype(f"u{np.dtype(storage).itemsize}").type
    style = rng.integers(4)
    if style == 0:  # any finite bit pattern
        x = rng.integers(0, np.iinfo(pattern).max, count, dtype=pattern, endpoint=True)
        magnitude = x & pattern(np.iinfo(pattern).max >> 1)
        return np.where(magnitude < infinity(dtype), x, pattern(3)).view(storage)
    scale = 10.0 ** rng.integers(-6, 5) if style == 1 else 2.0**-149 * 40 if style == 2 else 1.0
    x = rng.standard_normal(count) * scale
    if dtype is DType.BF16:
        return (x.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    with np.errstate(over="ignore"):
        x = x.astype(storage)
    return np.where(np.isfinite(x), x, storage(1)).astype(storage)


def infinity(dtype: DType) -> int:
    return {DType.F32: 0x7F800000, DType.F64: 0x7FF0000000000000, DType.F16: 0x7C00, DType.BF16: 0x7F80}[
        dtype
    ]


def sparsify(rng: np.random.Generator, x: Values, block: int, density: float) -> Values:
    keep = np.repeat(rng.random(-(-x.size // block)) < density, block)[: x.size]
    zero = np.zeros_like(x)
    if rng.random() < 0.3 and x.dtype.kind == "f":
        zero = -zero
    return np.where(keep, x, zero)


def reduced(packets: list[Payload], op: ReduceOp, dtype: DType) -> Payload:
    """Returns a switch's results for them."""
    data = [from_payload(p, dtype) for p in packets if p is not None]
    if not data:
        return None
    ufunc = np.bitwise_or if op is ReduceOp.OR else np.add
    return payload(ufunc.reduce(data).astype(np.uint32), dtype)


def as_words(packet: Payload, dtype: DType) -> Words | None:
    return None if packet is None else from_payload(packet, dtype)


def as_payload(packet: Words | None, dtype: DType) -> Payload:
    return None if packet is None else payload(packet, dtype)


@pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.label)
def test_native_and_reference_agree(dtype: DType) -> None:
    seed = seed_of_this_run()
    for case in range(CASES):
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and Inf are among the values
            one_case(np.random.default_rng((seed, dtype, case)), dtype, f"seed {seed}, case {case}")


def test_elements_that_are_not_finite_leave_other_lanes_alone() -> None:
    seed = seed_of_this_run()
    for case in range(20):
        with np.errstate(invalid="ignore", over="ignore"):
            one_case(np.random.default_rng((seed, case)), DType.F32, f"seed {seed}, case {case}", full=True)


def one_case(rng: np.random.Generator, dtype: DType, label: str, *, full: bool = False) -> None:
    """`full`: of packets whose narrow lanes are full, with an element at each rank that is not finite."""
    bits = int(rng.choice(dtype.lanes))
    n = int(rng.choice([1, 2, 3, 4, 5, 8, 16, 31, 32], p=[0.1, 0.25, 0.15, 0.2, 0.1, 0.1, 0.04, 0.03, 0.03]))
    if rng.random() < 0.05:
        n = int(rng.choice([100, 129, 256] if bits > 8 else [100, 127]))
    words = int(rng.choice([16, 17, 32, 64, 352, 1030]))
    count = int(rng.choice([0, 1, words, 3 * words + 1, 5000, 70000], p=[0.05, 0.1, 0.15, 0.3, 0.37, 0.03]))
    if n > 32:
        count = min(count, 3 * words + 1)
    block = int(rng.choice([1, 7, 16, 48, 64, 100, 1024, 65536]))
    op = ReduceOp.OR if dtype is DType.RAW else ReduceOp.SUM
    if dtype.is_float and rng.random() < 0.4:
        op = ReduceOp.AVG
    sparse = bool(rng.random() < 0.75) and not full
    if full:
        bits, n, words, count = int(rng.choice([8, 16])), 3, 352, 5000
    left = {"auto_zeros": bool(rng.random() < 0.5), "auto_block": bool(rng.random() < 0.5)}
    call = Call(Kind.ALLREDUCE, op, dtype, bits, count, (count,), position=int(rng.integers(2**32)),
                sparse=sparse, block=block, auto_lanes=int(rng.choice([0, 8, 16, 32])), **left)  # fmt: skip
    density = 1.0 if full else float(rng.choice([0.0, 0.05, 0.5, 1.0]))
    masked = sparse and rng.random() < 0.3
    label = (
        f"{label}: {call}, n={n}, K={words}, block={block}, density={density}, sparse={sparse}, mask={masked}"
    )

    ranks = []
    for r in range(n):
        x = sparsify(rng, random_values(rng, dtype, count), block, density)
        if dtype.is_float and count and (full or rng.random() < 0.05):
            x.view(np.dtype(f"u{x.itemsize}"))[rng.integers(count)] = infinity(dtype) + int(rng.integers(2))
        mask = rng.random(call.blocks) < 0.7 if masked else None
        ranks.append(open_rank(call, x, r, n, words, mask=mask))

    # The plan.
    scans = [scan(r.x, dtype, block, call.chunk, r.mask) for r in ranks]
    for r, s in zip(ranks, scans, strict=True):
        exponents = s.exponents if call.scaled else np.empty(0, np.int16)
        encoded = plan.encode(call, words, s.bitmap, exponents, special=s.special if call.scaled else None)
        wanted = [as_payload(p, DType.F32) for p in encoded]
        assert r.codec.plan_packets == len(wanted), label
        got = [r.codec.plan_packet(p) for p in range(len(wanted))]
        assert got == wanted, f"plan of {label}"
    plan_packets = ranks[0].codec.plan_packets
    results = [
        reduced([r.codec.plan_packet(p) for r in ranks], ReduceOp.OR, DType.F32) for p in range(plan_packets)
    ]
    for r in ranks:
        for p, result in enumerate(results):
            r.codec.plan_result(p, result)
    agreed = plan.decode(call, [as_words(p, DType.F32) for p in results])

    # The stream.
    packets = {r.codec.next_step() for r in ranks}
    sent: list[list[Payload]] = []
    for number, (r, s) in enumerate(zip(ranks, scans, strict=True)):
        expected = stream.encode(call, agreed, r.x, s.bitmap, words=words, workers=n, rank=number)
        assert packets == {len(expected)}, label
        sent.append([r.codec.encode(p) for p in range(len(expected))])
        for p, (mine, wanted_words) in enumerate(zip(sent[-1], expected, strict=True)):
            if mine is None or wanted_words is None:
                # A whole packet may be left out where it is zero; the sum is the same.
                assert mine is None or not any(mine), f"rank {number}, packet {p} of {label}"
                assert wanted_words is None or not wanted_words.any(), f"rank {number}, packet {p} of {label}"
            else:
                assert mine == payload(wanted_words, dtype), f"rank {number}, packet {p} of {label}"
    firsts = stream.special_packets(call, agreed, words)
    assert [ranks[0].codec.is_or(p) for p in range(firsts)] == [True] * firsts
    totals = [
        reduced(list(of_all), ReduceOp.OR if p < firsts else op, dtype)
        for p, of_all in enumerate(zip(*sent, strict=True))
    ]
    order = rng.permutation(len(totals))
    for r in ranks:
        for p in order:
            r.codec.decode(int(p), totals[p])
        r.codec.finish()
    wanted_result = stream.decode(call, agreed, [as_words(t, dtype) for t in totals], words=words, workers=n)
    for number, r in enumerate(ranks):
        if r.result.tobytes() != wanted_result.tobytes():
            bad = np.flatnonzero(r.result.view(f"u{r.x.itemsize}") != wanted_result.view(f"u{r.x.itemsize}"))
            i = int(bad[0])
            raise AssertionError(
                f"rank {number}, {bad.size} elements, first {i}: native {r.result[i]!r}, expected "
                f"{wanted_result[i]!r}; {label}"
            )
        assert all((edge == 1).all() for edge in r.edges), f"rank {number} wrote beside its result; {label}"
    if call.scaled:
        check_bound(call, agreed, ranks, wanted_result, n, label)


def check_bound(
    call: Call, agreed: plan.Agreed, ranks: list[Rank], result: Values, n: int, label: str
) -> None:
    """Every finite result is as near to the exact one as `error_bound` says."""
    looked_at = [
        np.where(np.repeat(r.mask, call.block)[: call.count], r.x, r.x.dtype.type(0))
        if r.mask is not None
        else r.x
        for r in ranks
    ]
    wide = np.stack([widen(x, call.dtype).astype(np.longdouble) for x in looked_at])
    exact = wide.sum(axis=0) / (n if call.op is ReduceOp.AVG else 1)
    got = widen(result, call.dtype).astype(np.longdouble)
    for c in range(call.chunks):
        part = slice(c * call.chunk, (c + 1) * call.chunk)
        exponent = int(agreed.exponents[c])
        bound = np.longdouble(float_above(error_bound(call.dtype, call.bits, n, exponent, call.op)))
        bound *= np.longdouble(1 + 1e-15)
        finite = np.isfinite(got[part])
        special = ~np.isfinite(exact[part])
        assert (np.isnan(got[part][special]) == np.isnan(exact[part][special])).all(), label
        assert (
            got[part][special & ~np.isnan(exact[part])] == exact[part][special & ~np.isnan(exact[part])]
        ).all()
        assert (np.abs(got[part] - exact[part])[finite] <= bound).all(), label


def float_above(x: object) -> float:
    try:
        return math.nextafter(float(x), math.inf)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf

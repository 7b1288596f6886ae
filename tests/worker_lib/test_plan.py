"""Plans: the words of known calls, what an OR of several ranks' plans says, what a disagreement is called."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from functools import reduce

import numpy as np
import pytest

from switchagg.errors import UsageError
from switchagg.rules.planner import SkipPolicy
from tests.reference import plan
from tests.reference.plan import Call
from tests.seeds import seed_of_this_run
from worker_lib.plan import DType, Kind, ReduceOp, Words, differing_fields


@pytest.fixture
def rng() -> np.random.Generator:
    seed = seed_of_this_run()
    return np.random.default_rng(seed)


def call(count: int = 1000, **changes: object) -> Call:
    base = Call(Kind.ALLREDUCE, ReduceOp.SUM, DType.F32, 32, count, (count,))
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def or_of(packets: Sequence[Words | None]) -> Words | None:
    filled = [p for p in packets if p is not None]
    return reduce(np.bitwise_or, filled) if filled else None


def test_codes_are_those_of_the_protocol() -> None:
    assert [k.value for k in (Kind.ALLREDUCE, Kind.BROADCAST, Kind.ALLGATHER, Kind.REDUCE_SCATTER)] == [
        0,
        1,
        2,
        3,
    ]
    assert [d.value for d in DType] == [0, 1, 2, 3, 4, 5, 6]
    assert (Kind.BARRIER, ReduceOp.SUM, ReduceOp.AVG, ReduceOp.OR) == (4, 0, 1, 2)


def test_what_is_left_to_the_policy_stands_in_the_fingerprint() -> None:
    left = call(auto_zeros=True, auto_block=True, auto_lanes=16)
    assert left.fingerprint()[4] == 1 << 22 | 1 << 21 | 1 << 20 | 2 << 17 | 64
    assert left.fingerprint()[:4] == call().fingerprint()[:4]


@pytest.mark.parametrize(
    ("dtype", "floor", "bits", "lanes"),
    [
        (DType.F32, 16, None, 32), (DType.F32, 16, 8, 16), (DType.F32, 8, 8, 8), (DType.F32, 64, 8, 32),
        (DType.F64, 8, None, 64), (DType.F64, 8, 32, 32), (DType.F64, 64, 16, 64),
        (DType.I32, 8, 8, 32), (DType.I64, 8, 8, 64), (DType.BF16, 16, 32, 32),
    ],
)  # fmt: skip
def test_lanes_under_a_policy(dtype: DType, floor: int, bits: int | None, lanes: int) -> None:
    under = call(dtype=dtype, bits=dtype.lanes[0], auto_lanes=floor).under(SkipPolicy(bits=bits))
    assert under.bits == lanes
    assert (under.sparse, under.block) == (True, 64)


def test_a_policy_settles_only_what_is_left_to_it() -> None:
    policy = SkipPolicy(256, dense=True, bits=8)
    assert call().under(policy) == call()
    assert call(auto_zeros=True).under(policy) == call(auto_zeros=True, sparse=False)
    assert call(auto_block=True).under(policy) == call(auto_block=True, block=256)


def test_header_of_a_known_call() -> None:
    known = call(
        1000, kind=Kind.REDUCE_SCATTER, op=ReduceOp.AVG, dtype=DType.F64, bits=64, shape=(10, 100),
        position=7, root=3, block=0x10000,
    )  # fmt: skip
    words = plan.header_words(known, policy=SkipPolicy(64).word())
    crc = zlib.crc32(b"(10, 100)")
    first = [0x33010140, 7, 1000, crc, 0x03110000]
    assert words.tolist() == [*first, *(w ^ 0xFFFFFFFF for w in first), 0x80000040, 0]
    header = plan.parse_header(words)
    assert (header.kind, header.op, header.dtype, header.bits) == (
        Kind.REDUCE_SCATTER,
        ReduceOp.AVG,
        DType.F64,
        64,
    )
    assert (header.position, header.count, header.shape_crc) == (7, 1000, crc)
    assert (header.root, header.sparse, header.block, header.policy) == (3, True, 65536, 0x80000040)


def test_a_rank_of_another_version_is_told_so() -> None:
    words = plan.header_words(call())
    before = words.copy()  # before plans had a version
    before[0], before[5] = words[0] & 0x0FFFFFFF, ~(words[0] & np.uint32(0x0FFFFFFF))
    assert differing_fields(plan.difference(words | before)) == ["version of the plan"]


def test_shape_is_hashed_the_same_for_numpys_integers() -> None:
    shape = tuple(np.array([3, 4]))
    assert call(12, shape=shape).fingerprint() == call(12, shape=(3, 4)).fingerprint()


def test_exact_moves_tell_element_types_apart() -> None:
    a = call(10, kind=Kind.BROADCAST, op=ReduceOp.OR, dtype=DType.RAW, element_type="bool", input_count=40)
    b = dataclasses.replace(a, element_type="int8")
    assert a.fingerprint()[2] == 40
    assert [x == y for x, y in zip(a.fingerprint(), b.fingerprint(), strict=True)] == [
        True,
        True,
        True,
        False,
        True,
    ]
    assert str(a) == "broadcast(bool, shape=(10,), root=0)"


def test_parse_refuses_nonsense() -> None:
    with pytest.raises(UsageError, match="at least 12"):
        plan.parse_header(np.zeros(11, np.uint32))
    words = plan.header_words(call())
    words[0] = 0xFF000020
    with pytest.raises(UsageError, match="0xff000020"):
        plan.parse_header(words)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 64}, "bits is 64; accepted for float32: 32, 16, 8"),
        ({"dtype": DType.I32, "op": ReduceOp.AVG}, "average of int32"),
        ({"block": 0}, "block is 0"),
        ({"block": 65537}, "block is 65537"),
        ({"root": 256}, "root is 256"),
        ({"count": -1}, "count is -1"),
    ],
)
def test_calls_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(**{"count": 1000, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 0, "shape": (0,)}, 12),
        ({"count": 1}, 12 + 1 + 8),
        ({"count": 64 * 32}, 12 + 1 + 8),
        ({"count": 64 * 32 + 1}, 12 + 2 + 8),
        ({"count": 65537, "sparse": False}, 12 + 2 * 8),
        ({"count": 65537, "sparse": False, "bits": 16}, 12 + 65 * 8),
        ({"count": 65537, "sparse": False, "dtype": DType.F64, "bits": 64}, 12 + 2 * 64),
        ({"count": 65537, "sparse": False, "dtype": DType.I32}, 12),
        ({"count": 65537, "op": ReduceOp.OR, "dtype": DType.RAW, "block": 65536}, 12 + 1),
    ],
)
def test_sizes(changes: dict[str, object], words: int) -> None:
    sized = call(**changes)  # type: ignore[arg-type]
    assert sized.plan_words == words
    for k in (16, 20, 21, 352, 2200):
        expected = 1 if words <= k else 1 + -(-(words - 12) // k)
        assert sized.plan_packets(k) == expected


@pytest.mark.parametrize("k", [16, 64, 352])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.BF16])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_or_of_plans_is_union_and_maximum(
    rng: np.random.Generator, k: int, dtype: DType, sparse: bool
) -> None:
    for count in (0, 1, 70, 5_000, 150_000):
        bits = dtype.lanes[-1] if dtype is DType.BF16 else dtype.lanes[0]
        c = call(
            count, dtype=dtype, bits=bits, sparse=sparse, block=int(rng.choice([1, 7, 64])), shape=(count,)
        )
        n = int(rng.integers(1, 6))
        bitmaps = rng.random((n, c.blocks)) < 0.01
        exponents = rng.integers(-1, c.dtype.exponent_bits - 1, (n, c.chunks)).astype(np.int16)
        exponents[:, ::3] = -1
        special = rng.random((n, c.chunks)) < 0.1
        policy = SkipPolicy(128).word()
        plans = [
            plan.encode(c, k, bitmaps[r], exponents[r], policy if r == 0 else 0, special[r]) for r in range(n)
        ]
        assert all(len(p) == c.plan_packets(k) for p in plans)
        assert all(packet is None or packet.shape == (k,) for p in plans for packet in p)
        results = [or_of(packets) for packets in zip(*plans, strict=True)]
        first = results[0]
        assert first is not None
        assert not any(plan.difference(first))
        agreed = plan.decode(c, results)
        assert agreed.policy == policy
        assert np.array_equal(agreed.union, bitmaps.any(axis=0) if sparse else np.ones(c.blocks, np.bool_))
        assert np.array_equal(agreed.exponents, exponents.max(axis=0))
        assert np.array_equal(agreed.special, special.any(axis=0))


def test_empty_plan_packets_are_skips() -> None:
    c = call(100_000)
    packets = plan.encode(c, 16, np.zeros(c.blocks, np.bool_), np.full(c.chunks, -1, np.int16))
    assert packets[0] is not None
    assert len(packets) > 1
    assert packets[1:] == [None] * (len(packets) - 1)
    agreed = plan.decode(c, packets)
    assert not agreed.union.any()
    assert (agreed.exponents == -1).all()


def test_where_the_bits_are() -> None:
    bitmap = np.zeros(40, np.bool_)
    bitmap[[0, 33, 39]] = True
    assert plan.pack_bitmap(bitmap).tolist() == [1, 1 << 1 | 1 << 7]
    special = np.array([False, True, False])
    words = plan.pack_exponents(np.array([254, -1, 33], np.int16), DType.F32, special).reshape(3, 8)
    assert words[0, 7] == 1 << 30
    assert words[1].tolist() == [0] * 7 + [1 << 31]
    assert words[2, 1] == 2


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"kind": Kind.BROADCAST}, "operation"),
        ({"op": ReduceOp.AVG}, "reduction"),
        ({"dtype": DType.BF16}, "dtype"),
        ({"bits": 16}, "bits"),
        ({"position": 6}, "position in the job"),
        ({"count": 999, "shape": (999,)}, "number of elements, shape"),
        ({"shape": (10, 100)}, "shape"),
        ({"root": 1}, "root"),
        ({"sparse": False}, "whether zero blocks are skipped"),
        ({"block": 128}, "block size"),
        ({"dtype": DType.F16, "shape": (1, 1000)}, "dtype, shape"),
    ],
)
def test_every_disagreement_is_seen_by_all_and_named(changes: dict[str, object], fields: str) -> None:
    one, other = call(), call(**{"count": 1000, **changes})  # type: ignore[arg-type]
    result = plan.header_words(one) | plan.header_words(other) | plan.header_words(one)
    differing = plan.difference(result)
    assert ", ".join(differing_fields(differing)) == fields


def test_wrong_arrays_are_refused() -> None:
    c = call()
    with pytest.raises(UsageError, match="bitmap has shape"):
        plan.encode(c, 352, np.zeros(3, np.bool_), np.zeros(1, np.int16))
    with pytest.raises(UsageError, match="exponents have shape"):
        plan.encode(c, 352, np.zeros(c.blocks, np.bool_), np.zeros(2, np.int16))
    with pytest.raises(UsageError, match="0 results"):
        plan.decode(c, [])

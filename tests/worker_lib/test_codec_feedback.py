"""Error feedback in the codec against the reference, to the bit: plan, packets, results, what is left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.reference import plan, stream
from tests.reference.plan import Call
from tests.reference.quantize import payload, remembered, scan
from tests.seeds import seed_of_this_run
from tests.worker_lib.test_codec import (
    as_payload,
    as_words,
    infinity,
    open_rank,
    random_values,
    reduced,
    sparsify,
)
from worker_lib.plan import DType, Kind, ReduceOp

CASES = 40
TYPES = [DType.F32, DType.F16, DType.BF16]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.label)
def test_native_and_reference_feedback_agree(dtype: DType) -> None:
    seed = seed_of_this_run()
    for case in range(CASES):
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and Inf are among the values
            one_case(np.random.default_rng((seed, dtype, case)), dtype, f"seed {seed}, case {case}")


def one_case(rng: np.random.Generator, dtype: DType, label: str) -> None:
    bits, n, words = int(rng.choice([8, 16, 32])), int(rng.integers(2, 6)), int(rng.choice([16, 64, 352]))
    count, block = int(rng.choice([1, 300, 5000, 9001])), int(rng.choice([1, 7, 64, 1024]))
    sparse = bool(rng.random() < 0.7)
    op = ReduceOp.AVG if rng.random() < 0.5 else ReduceOp.SUM
    call = Call(
        Kind.ALLREDUCE, op, dtype, bits, count, (count,), position=int(rng.integers(2**32)),
        sparse=sparse, block=block,
    )  # fmt: skip
    wide = replace(call, dtype=DType.F32)  # what is sent is float32, whatever the tensor is
    in_place, masked = bool(rng.random() < 0.5), sparse and rng.random() < 0.4
    label = f"{label}: {call}, n={n}, K={words}, masked={masked}, in place={in_place}"

    density = float(rng.choice([0.1, 1.0]))
    ranks, memories, sums = [], [], []
    for r in range(n):
        x = sparsify(rng, random_values(rng, dtype, count), block, density)
        memory = sparsify(rng, random_values(rng, DType.F32, count) * np.float32(0.01), block, density)
        memory = memory.astype(np.float32)
        here = rng.random(count) < 0.1
        memory[here] = -np.asarray(remembered(x, np.zeros(count, np.float32), dtype))[here]  # sums that are 0
        if rng.random() < 0.1:
            x.view(np.dtype(f"u{x.itemsize}"))[rng.integers(count)] = infinity(dtype)
        mask = rng.random(call.blocks) < 0.7 if masked else None
        sums.append(remembered(x, memory, dtype))
        memories.append(memory)
        ranks.append(open_rank(call, x, r, n, words, mask=mask, memory=memory, in_place=in_place))

    scans = [scan(v, DType.F32, block, call.chunk, r.mask) for r, v in zip(ranks, sums, strict=True)]
    for r, s in zip(ranks, scans, strict=True):
        encoded = plan.encode(call, words, s.bitmap, s.exponents, special=s.special)
        wanted = [as_payload(p, DType.F32) for p in encoded]
        assert [r.codec.plan_packet(p) for p in range(r.codec.plan_packets)] == wanted, f"plan of {label}"
    results = [
        reduced([r.codec.plan_packet(p) for r in ranks], ReduceOp.OR, DType.F32)
        for p in range(ranks[0].codec.plan_packets)
    ]
    for r in ranks:
        for p, result in enumerate(results):
            r.codec.plan_result(p, result)
    agreed = plan.decode(call, [as_words(p, DType.F32) for p in results])

    sent = []
    for number, (r, s, v) in enumerate(zip(ranks, scans, sums, strict=True)):
        expected = stream.encode(wide, agreed, v, s.bitmap, words=words, workers=n, rank=number)
        assert r.codec.next_step() == len(expected), label
        sent.append([r.codec.encode(p) for p in range(len(expected))])
        for mine, theirs in zip(sent[-1], expected, strict=True):
            if mine is None or theirs is None:
                assert mine is None or not any(mine), label
                assert theirs is None or not theirs.any(), label
            else:
                assert mine == payload(theirs, dtype), f"rank {number} of {label}"
    firsts = stream.special_packets(call, agreed, words)
    totals = [
        reduced(list(of_all), ReduceOp.OR if p < firsts else op, dtype)
        for p, of_all in enumerate(zip(*sent, strict=True))
    ]
    expected = stream.decode(call, agreed, [as_words(t, dtype) for t in totals], words=words, workers=n)
    for number, (r, s, v) in enumerate(zip(ranks, scans, sums, strict=True)):
        for p in rng.permutation(len(totals)):
            r.codec.decode(int(p), totals[p])
        r.codec.finish()
        assert r.result.tobytes() == expected.tobytes(), f"rank {number} of {label}"
        left = stream.left_out(call, agreed, v, s.bitmap, workers=n, rank=number)
        assert np.array_equal(left, memories[number]), f"rank {number}, memory of {label}"

"""Results of an all-reduce over real sockets: exact integers, floats within the bound, the same bits
everywhere."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run
from worker_lib import Session
from worker_lib.plan import DType, ReduceOp
from worker_lib.quantize import error_bound

from .harness import together

pytestmark = pytest.mark.usefixtures("both_transports")

Array = npt.NDArray[Any]
FLOATS = {
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
}
LANES = [(dtype, bits) for dtype in FLOATS for bits in dtype.lanes]


def ids(value: object) -> str:
    return value.label if isinstance(value, DType) else str(value)


def allreduce(url: str, inputs: list[Array], **arguments: Any) -> Array:
    """The result of one all-reduce, which must be the same to the bit at every rank."""

    def call(session: Session) -> Array:
        x = inputs[session.rank].copy()
        assert session.allreduce(x, **arguments) is x
        return x

    results = together(url, len(inputs), call)
    for rank, result in enumerate(results):
        assert result.tobytes() == results[0].tobytes(), f"rank {rank} has other bits than rank 0"
    first: Array = results[0]
    return first


def chunk_exponents(inputs: list[Array], dtype: DType, chunk: int) -> list[int]:
    """The largest biased exponent of any rank, chunk by chunk; -1 where all are zero."""
    wide = np.float64 if dtype is DType.F64 else np.float32
    magnitude = np.max([np.abs(x.astype(wide)).reshape(-1) for x in inputs], axis=0)
    pattern = np.uint64 if dtype is DType.F64 else np.uint32
    field = magnitude.view(pattern) >> pattern(52 if dtype is DType.F64 else 23)
    out = []
    for at in range(0, magnitude.size, chunk):
        part = slice(at, at + chunk)
        out.append(int(field[part].max()) if magnitude[part].any() else -1)
    return out


def assert_within_bound(result: Array, inputs: list[Array], dtype: DType, bits: int, op: ReduceOp) -> None:
    n = len(inputs)
    chunk = 65536 if bits >= 32 else 1024
    exact = np.sum([x.astype(np.longdouble).reshape(-1) for x in inputs], axis=0)
    if op is ReduceOp.AVG:
        exact /= n
    got = result.astype(np.longdouble).reshape(-1)
    for c, exponent in enumerate(chunk_exponents(inputs, dtype, chunk)):
        part = slice(c * chunk, (c + 1) * chunk)
        bound = error_bound(dtype, bits, n, exponent, op)
        # float64's own bound is finer than long double adds up; one unit there covers that.
        slack = np.abs(exact[part]).max() * np.longdouble(2) ** -61
        error = np.abs(got[part] - exact[part]).max()
        assert error <= np.longdouble(float(bound)) + slack, (
            f"chunk {c}: off by {error}, bound {float(bound)}"
        )


# ---------------------------------------------------------------------- integers


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.uint64])
def test_integers_are_numpys_wrapping_sums(host: EmbeddedController, kind: type[np.generic]) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    info = np.iinfo(kind)
    inputs = [rng.integers(info.min, info.max, 5000, dtype=kind, endpoint=True) for _ in range(4)]
    for x in inputs:
        x[:3] = info.max, info.min, info.max
    with np.errstate(over="ignore"):
        expected = np.sum(inputs, axis=0, dtype=kind)
    assert np.array_equal(allreduce(host.url, inputs), expected)


def test_sums_of_small_integers_in_floats_are_exact(host: EmbeddedController) -> None:
    inputs = [np.arange(3000, dtype=np.float32) * (rank + 1) for rank in range(3)]
    assert np.array_equal(allreduce(host.url, inputs), np.sum(inputs, axis=0))


# ---------------------------------------------------------------------- floats


@pytest.mark.parametrize(("dtype", "bits"), LANES, ids=ids)
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_floats_are_within_the_documented_bound(
    host: EmbeddedController, dtype: DType, bits: int, op: str
) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    # Chunks of very different magnitude, one of them all zero.
    size = 5000 if bits < 32 else 140_000
    scale = np.repeat(10.0 ** rng.integers(-3, 3, size // 1000 + 1), 1000)[:size]
    inputs = [(rng.standard_normal(size) * scale).astype(FLOATS[dtype]) for _ in range(3)]
    for x in inputs:
        x[-1024:] = 0
    result = allreduce(host.url, inputs, op=op, bits=bits)
    assert_within_bound(result, inputs, dtype, bits, ReduceOp.AVG if op == "avg" else ReduceOp.SUM)


@pytest.mark.parametrize(("dtype", "bits"), LANES, ids=ids)
def test_from_the_smallest_subnormal_to_the_largest_finite(
    host: EmbeddedController, dtype: DType, bits: int
) -> None:
    info = ml_dtypes.finfo(FLOATS[dtype])
    smallest, largest = info.smallest_subnormal, info.max
    chunk = 65536 if bits >= 32 else 1024
    x = np.zeros(3 * chunk, FLOATS[dtype])
    x[0], x[1] = smallest, -smallest  # a chunk of subnormals
    x[chunk], x[chunk + 1] = largest, -largest  # the largest finite values, at one rank only
    x[2 * chunk] = info.smallest_normal
    inputs = [x, np.zeros_like(x), np.zeros_like(x)]
    result = allreduce(host.url, inputs, bits=bits)
    assert np.isfinite(result.astype(np.float64)).all()
    assert_within_bound(result, inputs, dtype, bits, ReduceOp.SUM)
    if bits >= 32 and (dtype, bits) != (DType.F64, 32):  # where a lane holds all digits of the largest
        assert result.tobytes() == np.where(x == 0, np.zeros_like(x), x).tobytes()

    # All ranks have the smallest: n of them. All ranks have the largest: the average is the largest, or next
    # to it.
    average = allreduce(host.url, [x, x, x], op="avg", bits=bits)
    assert np.isfinite(average.astype(np.float64)).all()
    assert_within_bound(average, [x, x, x], dtype, bits, ReduceOp.AVG)
    if bits >= 32 and (dtype, bits) != (DType.F64, 32):
        subnormals = allreduce(host.url, [x[:2], x[:2], x[:2]], bits=bits)
        assert subnormals[0] == 3 * float(smallest)
        assert subnormals[1] == -3 * float(smallest)


def test_float64_near_a_power_of_two_does_not_wrap(host: EmbeddedController) -> None:
    just_under = np.full(100, np.nextafter(2.0, 0))
    inputs = [just_under, just_under, just_under, just_under]
    result = allreduce(host.url, inputs, bits=32)
    assert_within_bound(result, inputs, DType.F64, 32, ReduceOp.SUM)


@pytest.mark.parametrize("dtype", FLOATS, ids=ids)
@pytest.mark.parametrize("blocks", ["auto", "dense"])
def test_negative_zeros_come_out_positive(host: EmbeddedController, dtype: DType, blocks: str) -> None:
    x = np.zeros(300, FLOATS[dtype])
    x[100:] = -x[100:]
    x[200] = 1
    result = allreduce(host.url, [x, x], blocks=blocks)
    assert not np.signbit(result.astype(np.float32)).any()
    assert result[200] == 2


@pytest.mark.parametrize(("dtype", "bits"), LANES, ids=ids)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_no_other_element(
    host: EmbeddedController, dtype: DType, bits: int, bad: float
) -> None:
    chunk = 65536 if bits >= 32 else 1024
    size = 2 * chunk + 500
    inputs = [np.ones(size, FLOATS[dtype]) for _ in range(3)]
    inputs[1][:] = 0  # also where that rank has nothing else to send
    inputs[1][chunk + 7] = bad
    result = allreduce(host.url, inputs, bits=bits).astype(np.float32)
    np.testing.assert_equal(result[chunk + 7], np.float32(bad))
    others = np.delete(result, chunk + 7)
    assert np.isfinite(others).all()
    assert np.abs(others - 2).max() <= (1e-6 if bits >= 32 else 3 * 2 / (2 ** (bits - 1) // 3 - 1))


def test_torch_tensors_of_every_type(host: EmbeddedController) -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):

        def call(session: Session, kind: Any = kind) -> Any:
            x = (torch.arange(1000) % 64).to(kind)
            assert session.allreduce(x) is x
            gathered = session.allgather(x[:3])
            assert isinstance(gathered, torch.Tensor)
            assert torch.equal(gathered, torch.stack([x[:3], x[:3]]))
            return x

        for x in together(host.url, 2, call):
            assert torch.equal(x, (torch.arange(1000) % 64 * 2).to(kind))


# ---------------------------------------------------------------------- the same bits, always

_FAULTS = [
    Faults(),
    Faults(duplicate=0.05, reorder=0.05),
    Faults(loss=0.01, duplicate=0.05, reorder=0.05),
    Faults(loss=0.10, duplicate=0.05, reorder=0.05),
]


def digest_of_a_session(session: Session, seed: int) -> str:
    """A few collectives of every kind, the same in every run; a hash of all their results."""
    rng = np.random.default_rng((seed, session.rank))
    digest = hashlib.sha256()
    dense = rng.standard_normal(8_000)
    sparse = np.where(np.repeat(rng.random(250) < 0.1, 64), rng.standard_normal(16_000), 0).astype(np.float32)
    for bits in (32, 16, 8):
        digest.update(session.allreduce(dense.astype(np.float32), bits=bits))
        digest.update(session.allreduce(sparse.copy(), op="avg", bits=bits))
    digest.update(session.allreduce(dense[:3000].copy()))
    digest.update(session.allreduce(rng.integers(-(2**62), 2**62, 3000)))
    digest.update(session.broadcast(dense[:999].copy(), root=2))
    digest.update(session.allgather(dense[:99].copy()))
    session.barrier()
    return digest.hexdigest()


def test_the_same_bits_at_every_rank_in_every_run_whatever_the_network_does() -> None:
    seed = seed_of_this_run()
    digests: set[str] = set()
    for faults in _FAULTS:
        with EmbeddedController(faults=faults) as host:
            for words, slots in ((352, 1024), (352, 64), (64, 1024), (100, 256), (200, 128)):
                # Other packets and other windows; the arithmetic is the same.
                digests.update(
                    together(host.url, 4, digest_of_a_session, seed, words=words, slots=slots, timeout=40.0)
                )
            if faults.loss:
                counters = host.switch.counters()
                assert counters["duplicates_answered"] > 0
    assert len(digests) == 1


@pytest.mark.parametrize("loss", [0.01, 0.10])
def test_exact_under_loss(loss: float) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    inputs = [rng.integers(-(2**31), 2**31, 200_000, dtype=np.int32) for _ in range(3)]
    with EmbeddedController(faults=Faults(loss=loss, duplicate=0.05, reorder=0.05)) as host:
        result = allreduce(host.url, inputs)
    assert np.array_equal(result, np.sum(inputs, axis=0, dtype=np.int32))

"""Sparse tensors: the union of rows, what travels for it, and embeddings under DDP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.seeds import seed_of_this_run
from tests.worker_lib.torch.models import train
from tests.worker_lib.torch.test_ddp import STEPS, wrapped
from tests.worker_lib.torch.worlds import run
from worker_lib import _native
from worker_lib.torch import State, allreduce_hook
from worker_lib.torch.sparse import _ADDED, fits

SHAPES = [  # sparse shape, dense shape
    ((1000,), ()),
    ((9001,), (2,)),  # rows are far from each other
    ((500,), (7,)),
    ((20, 30), (4, 5)),
    ((6, 5, 4), ()),
    ((3,), (70_000,)),  # a row is more than a block can be
    ((1,), (3,)),
]


def drawn(rows: tuple[int, ...], dense: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Some rows, a few of them twice, in no order; values of small whole numbers, none zero."""
    generator = torch.Generator().manual_seed(seed + 77 * dist.get_rank())
    count = int(torch.randint(0, 12, (), generator=generator))
    indices = torch.stack([torch.randint(0, size, (count,), generator=generator) for size in rows])
    values = torch.randint(1, 5, (count, *dense), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (*rows, *dense))


def _sums(seed: int) -> None:
    n = dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    for round_, (rows, dense) in enumerate(SHAPES * 2):  # the second time with used tables
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
            x = drawn(rows, dense, dtype, seed + round_)
            expected = x.to_dense()
            dist.all_reduce(expected, group=gloo)
            there = (x.coalesce().to_dense() != 0).to(torch.float32)
            dist.all_reduce(there, group=gloo)
            y = x.clone()
            work = dist.all_reduce(y, async_op=round_ % 2 == 1)
            if work is not None:
                work.wait()
            assert y.is_coalesced()
            assert torch.equal(y.to_dense(), expected)
            wanted = there.reshape(*rows, -1).any(-1).nonzero().t()
            assert torch.equal(y.indices(), wanted)  # the union of rows, in order
            if dtype.is_floating_point:
                dist.all_reduce(x, op=dist.ReduceOp.AVG)
                assert torch.allclose(x.to_dense().float(), expected.float() / n, rtol=0.01)


def test_sums_and_the_union_of_rows() -> None:
    run(3, _sums, seed_of_this_run() % 2**31)


def _saved() -> None:
    x = torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))
    scale = torch.ones(4, 3, requires_grad=True)
    product = (x * scale).to_dense().sum()
    before = x._version
    dist.all_reduce(x)
    assert x._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():
        y = torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))  # has no version
        dist.all_reduce(y)
        assert y.to_dense().sum() == 6 * dist.get_world_size()


@pytest.mark.parametrize("ranks", [1, 2])
def test_autograd_sees_that_a_saved_tensor_was_reduced(ranks: int) -> None:
    run(ranks, _saved)


def _packets() -> tuple[int, int]:
    """The packets of a table of 100,000 rows, of which each rank has 50, and the rows of the result."""
    session = dist.group.WORLD.session
    generator = torch.Generator().manual_seed(dist.get_rank())
    rows = torch.randint(0, 100_000, (1, 50), generator=generator)
    x = torch.sparse_coo_tensor(rows, torch.ones(50, 64), (100_000, 64))
    before = session.stats()["packets_data"]
    dist.all_reduce(x)
    return session.stats()["packets_data"] - before, x.indices().shape[1]


def test_the_table_does_not_travel() -> None:
    for packets, rows in run(2, _packets):
        assert rows > 50
        # 13 segments, each a packet of plan and one or two of rows; the table has 25.6 MB.
        assert packets < 80


def _not_finite() -> None:
    for turn in range(3):
        x = torch.sparse_coo_tensor([[5 * dist.get_rank() + 1, 40]], torch.ones(2, 8), (100, 8))
        if turn == 1 and dist.get_rank() == 1:
            x.coalesce().values()[0, 0] = 1
            values = torch.ones(2, 8)
            values[0, 3] = torch.inf
            x = torch.sparse_coo_tensor(x.coalesce().indices(), values, (100, 8))
        dist.all_reduce(x)
        assert x.indices().tolist() == [[1, 6, 40]]
        assert bool(x.values().isfinite().all()) == (turn != 1)
        if turn != 1:
            assert x.to_dense().sum() == 2 * 8 + 2 * 8


def test_an_inf_is_seen_by_all_and_gone_with_the_next() -> None:
    run(2, _not_finite)


def test_an_index_outside_the_shape_is_refused() -> None:
    """PyTorch checks indices only where it is asked to."""
    table, bits = np.zeros((6, 4), np.float32), np.zeros(1, np.uint32)
    values = np.ones((2, 4), np.float32)
    for wrong in (-1, 3):
        rows = np.array([[0, 1], [2, wrong]])
        with pytest.raises(IndexError, match=f"is {wrong}; accepted: 0 to 2"):
            _native.put_rows(
                rows.ctypes.data, 2, [2, 3], values.ctypes.data, table.ctypes.data, 16, 1, bits.ctypes.data, 1
            )
    assert not table.any()
    assert not bits.any()


@pytest.mark.parametrize("count", [500, 40_000])
def test_rows_of_one_number_are_added_up_as_coalesce_does(count: int) -> None:
    generator = torch.Generator().manual_seed(seed_of_this_run() % 2**31)
    rows = count // 12
    for dtype, adds in _ADDED.items():
        indices = torch.randint(0, rows, (1, count), generator=generator)
        values = (1e6 * torch.randn(count, 3, generator=generator)).to(dtype)
        table, bits = torch.zeros(2, rows, 3, dtype=dtype), np.zeros((2, -(-rows // 32)), np.uint32)
        for time in range(2):
            _native.put_rows(
                indices.data_ptr(), count, [rows], values.data_ptr(), table[time].data_ptr(),
                3 * dtype.itemsize, 1, bits[time].ctypes.data, adds,
            )  # fmt: skip
        assert torch.equal(table[0], table[1])
        whole = torch.sparse_coo_tensor(indices, values, (rows, 3), check_invariants=True).coalesce()
        if count < 32_768 or not dtype.is_floating_point:
            assert torch.equal(table[0], whole.to_dense())
        else:  # in another order: both within the bound of any order
            sizes = torch.zeros(rows, 3, dtype=dtype).index_add_(0, indices[0], values.abs())
            bound = 2 * int(indices[0].bincount().max()) * torch.finfo(dtype).eps * sizes
            assert ((table[0] - whole.to_dense()).abs() <= bound).all()
        there = np.unpackbits(bits[0].view(np.uint8), bitorder="little").nonzero()[0]
        assert there.tolist() == whole.indices()[0].tolist()


def test_what_fits() -> None:
    def empty(*shape: int, dense: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        sparse_dims = len(shape) - dense
        return torch.sparse_coo_tensor(
            torch.empty(sparse_dims, 0, dtype=torch.long),
            torch.empty(0, *shape[sparse_dims:], dtype=dtype),
            shape,
        )

    assert fits(empty(2**26, 64, dense=1))
    assert not fits(empty(2**26 + 1, 64, dense=1))  # more than 2^32 elements
    assert not fits(empty(5, dtype=torch.int8))
    assert not fits(empty(0, 4, dense=1))
    assert not fits(empty(5, 1_000_003, dense=1))  # a prime number of elements a row, over a block's limit
    assert not fits(torch.ones(3))


def _embeddings() -> None:
    gloo = dist.new_group(backend="gloo")
    ours = train("recommender-sparse", wrapped("recommender-sparse"), STEPS, check=gloo)
    theirs = train("recommender-sparse", wrapped("recommender-sparse", gloo), STEPS)
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_sparse_embeddings_train_as_with_gloo() -> None:
    run(3, _embeddings)


def _hooked(options: dict[str, Any]) -> None:
    model = wrapped("recommender-sparse")
    with State(model, **options) as state:
        model.register_comm_hook(state, allreduce_hook)
        ours = train("recommender-sparse", model, STEPS, check=dist.group.WORLD)
    theirs = train("recommender-sparse", wrapped("recommender-sparse"), STEPS)
    assert ours == pytest.approx(theirs, rel=1e-3 if not options else 0.05)


@pytest.mark.parametrize("options", [{}, {"bits": 16}])
def test_sparse_embeddings_through_the_hook(options: dict[str, Any]) -> None:
    run(2, _hooked, options, backend="gloo")

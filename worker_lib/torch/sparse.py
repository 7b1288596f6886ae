"""Sparse tensors (COO): rows are blocks, and only rows that some rank has are sent.

    indices, values  --scatter-->  table of zeros  --all-reduce, rows as blocks-->  table
                                                                                      |
    indices, values  <--gather the rows of the union, and zero them again-------------+

The plan's bitmap has a bit a row, so the union of the ranks' rows costs no message of its own. The table has
the dense shape, but pages that no row touches take no memory, and a table is used again. Rows that are zero
on every rank are not in the result.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from switchagg.rules.planner import MAX_BLOCK
from worker_lib import _native
from worker_lib.arguments import SUMMABLE, PackedMask, torch_name
from worker_lib.plan import Words
from worker_lib.session import Session
from worker_lib.work import Work

MAX_ELEMENTS: Final = 2**32  # of the dense shape: what a plan's fingerprint can count
_SPARE: Final = 8  # tables of a size that are kept


def fits(tensor: object) -> bool:
    """True if a tensor can be reduced here: sparse COO, on the CPU, of a type and size that blocks can carry.

    It depends on type and shape alone, so it is the same on all ranks.
    """
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout == torch.sparse_coo
        and tensor.is_cpu
        and torch_name(tensor.dtype) in SUMMABLE
        and _layout(tensor.shape, tensor.sparse_dim()) is not None
    )


class _Layout(NamedTuple):
    """A dense shape as rows, and these as blocks: elements a row and in all, blocks a row and in all."""

    width: int
    elements: int
    row_blocks: int
    blocks: int


@lru_cache(maxsize=256)
def _layout(shape: torch.Size, dims: int) -> _Layout | None:
    """The layout of a shape with so many sparse dimensions; None where blocks cannot carry it."""
    width, elements = math.prod(shape[dims:]), math.prod(shape)
    block = _block(width)
    if dims < 1 or block is None or not 0 < elements <= MAX_ELEMENTS:
        return None
    return _Layout(width, elements, width // block, elements // block)


class Table(NamedTuple):
    """A table of zeros, and words for bitmaps of its blocks: this rank's, zero too, and the union's."""

    flat: torch.Tensor
    mask: Words
    union: Words


class Tables:
    """Tables, to be used again; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: dict[tuple[int, torch.dtype, int], list[Table]] = {}

    def take(self, elements: int, dtype: torch.dtype, blocks: int) -> Table:
        """A table that nobody else uses."""
        with self._lock:
            if spare := self._spare.get((elements, dtype, blocks)):
                return spare.pop()
        # NumPy takes zeros from the kernel, which backs a page when it is first touched.
        flat = torch.from_numpy(np.zeros(elements * dtype.itemsize, np.uint8)).view(dtype)
        return Table(flat, *np.zeros((2, -(-blocks // 32)), np.uint32))

    def give_back(self, table: Table, blocks: int) -> None:
        """Takes back a table that is all zeros again."""
        with self._lock:
            spare = self._spare.setdefault((table.flat.numel(), table.flat.dtype, blocks), [])
            if len(spare) < _SPARE:
                spare.append(table)


def start(
    session: Session,
    tensor: torch.Tensor,
    op: str,
    bits: int | str | None,
    min_bits: int | None,
    tables: Tables,
    *,
    timeout: float | None,
    background: bool,
    lazy: bool = False,
) -> tuple[list[Work], Callable[[], None]]:
    """Starts the reduction of a tensor that `fits`.

    Returns:
        The collectives, and a function that then makes `tensor` the result: coalesced, with the union of all
        ranks' rows.

    Raises:
        IndexError: an index is outside the tensor's shape; nothing was sent.
    """
    x = tensor.detach().coalesce()
    shape = x.shape
    dims = x.sparse_dim()
    if session.world_size == 1:
        return [], lambda: _replace(tensor, x)
    layout = _layout(shape, dims)
    assert layout is not None
    rows, (width, elements, row_blocks, blocks) = shape[:dims], layout
    table = tables.take(elements, x.dtype, blocks)
    flat, mask, union = table
    numbers, values = x._indices().contiguous(), x._values().contiguous()
    at = flat.data_ptr(), width * flat.itemsize, row_blocks
    there = _native.address(union)
    _native.put_rows(
        numbers.data_ptr(), numbers.shape[1], rows, values.data_ptr(), *at, _native.address(mask)
    )
    work = session._allreduce(
        flat, op, bits, PackedMask(mask), block_size=width // row_blocks, timeout=timeout,
        min_bits=min_bits, union=union, background=background, lazy=lazy,
    )  # fmt: skip

    def finish() -> None:
        count = _native.count_rows(there, blocks, row_blocks)
        values, indices = flat.new_empty((count, *shape[dims:])), numbers.new_empty((dims, count))
        _native.take_rows(there, blocks, rows, *at, values.data_ptr(), indices.data_ptr(), count)
        mask.fill(0)
        tables.give_back(table, blocks)
        result = torch.sparse_coo_tensor(
            indices, values, shape, device="cpu", is_coalesced=True, check_invariants=False
        )
        _replace(tensor, result)

    return [work], finish


def _block(width: int) -> int | None:
    """Elements a block for rows of this width: the row, or its largest equal part that a plan can carry."""
    if width < 1:
        return None
    parts = next((n for n in range(-(-width // MAX_BLOCK), 1025) if width % n == 0), None)
    return None if parts is None else width // parts


def _replace(tensor: torch.Tensor, result: Any) -> None:
    tensor.data = result  # without a copy, and unknown to autograd
    if not tensor.is_inference():  # those have no version
        torch.autograd.graph.increment_version(tensor)

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
from worker_lib.arguments import SUMMABLE, PackedMask, SumOptions, torch_name
from worker_lib.calls import RepeatedSum
from worker_lib.session import Session
from worker_lib.work import Work

MAX_ELEMENTS: Final = 2**32  # of the dense shape: what a plan's fingerprint can count
_SPARE: Final = 8  # tables of a size that are kept
# Types whose rows of one number native code adds up as `coalesce` does, by the kind of the addition.
_ADDED: Final = {torch.float32: 1, torch.float64: 2, torch.int32: 3, torch.int64: 4}
_DISTINCT: Final = 0


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


class Table:
    """A table of zeros, bitmaps of its blocks (this rank's, zero too, and the union's), and a sum of it.

    Args:
        layout: of the table.
        dtype: of its elements.
        options: of the sum, but for mask and union.
    """

    def __init__(self, layout: _Layout, dtype: torch.dtype, options: SumOptions) -> None:
        # NumPy takes zeros from the kernel, which backs a page when it is first touched.
        zeros = np.zeros(layout.elements * dtype.itemsize, np.uint8)
        self.flat = torch.from_numpy(zeros).view(dtype)
        mask, union = np.zeros((2, -(-layout.blocks // 32)), np.uint32)
        self.address, self.mask, self.union = self.flat.data_ptr(), mask.ctypes.data, union.ctypes.data
        self.sum = RepeatedSum(options._replace(blocks=PackedMask(mask), union=union))


class Tables:
    """Tables, to be used again; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: dict[Any, list[Table]] = {}

    def take(self, layout: _Layout, dtype: torch.dtype, options: SumOptions) -> Table:
        """A table that nobody else uses."""
        with self._lock:
            if spare := self._spare.get((layout, dtype, options)):
                return spare.pop()
        return Table(layout, dtype, options)

    def give_back(self, table: Table, layout: _Layout, dtype: torch.dtype, options: SumOptions) -> None:
        """Takes back a table that is all zeros again."""
        with self._lock:
            spare = self._spare.setdefault((layout, dtype, options), [])
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
    shape, dims, dtype = tensor.shape, tensor.sparse_dim(), tensor.dtype
    if session.world_size == 1:
        x = tensor.detach().coalesce()
        return [], lambda: _replace(tensor, x)
    layout = _layout(shape, dims)
    assert layout is not None
    rows, (width, _, row_blocks, blocks) = shape[:dims], layout
    options = SumOptions(op, bits, min_bits, block_size=width // row_blocks)
    row_bytes = width * dtype.itemsize
    added = None if tensor.is_coalesced() else _ADDED.get(dtype)
    whole = tensor if added is not None else tensor.detach().coalesce()
    numbers, values = whole._indices().contiguous(), whole._values().contiguous()
    table = tables.take(layout, dtype, options)
    at = table.address, row_bytes, row_blocks
    _native.put_rows(
        numbers.data_ptr(), numbers.shape[1], rows, values.data_ptr(), *at, table.mask, added or _DISTINCT
    )
    work = session._repeat(table.sum, table.flat, timeout, background=background, lazy=lazy)

    def finish() -> None:
        count = _native.count_rows(table.union, blocks, row_blocks)
        values, indices = table.flat.new_empty((count, *shape[dims:])), numbers.new_empty((dims, count))
        to = values.data_ptr(), indices.data_ptr(), count
        _native.take_rows(table.union, blocks, rows, *at, *to, table.mask)
        tables.give_back(table, layout, dtype, options)
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

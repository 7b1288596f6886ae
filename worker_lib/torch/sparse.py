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
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from switchagg.rules.planner import MAX_BLOCK
from worker_lib import _native
from worker_lib.arguments import SUMMABLE, PackedMask, SumOptions, torch_name
from worker_lib.calls import repeated
from worker_lib.session import Session
from worker_lib.torch.options import Options
from worker_lib.work import Work

MAX_ELEMENTS: Final = 2**32  # of the dense shape: what a plan's fingerprint can count
_SPARE: Final = 8  # tables of a size that are kept
# Types whose rows of one number native code adds up, by the kind of the addition. `coalesce` may add floats
# up in another order.
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


class Kind:
    """Sums that take one kind of tables: of tensors alike in type, shape and sparse dimensions.

    Attributes:
        shape, dims, dtype: of the tensors; `dims` are sparse.
        op, bits, min_bits: of the sum.
        spare: tables that nobody uses, all zeros. For any thread.
    """

    __slots__ = ("bits", "dims", "dtype", "layout", "min_bits", "op", "shape", "spare")

    def __init__(self, tensor: torch.Tensor, layout: _Layout, op: str, settings: Options) -> None:
        self.shape, self.dims, self.dtype = tensor.shape, tensor.sparse_dim(), tensor.dtype
        self.layout, self.op = layout, op
        self.bits, self.min_bits = settings.lanes(tensor)
        self.spare: list[Table] = []


class Table:
    """A table of zeros, bitmaps of its blocks (this rank's, zero too, and the union's), and a sum of it."""

    def __init__(self, kind: Kind) -> None:
        layout = kind.layout
        # NumPy takes zeros from the kernel, which backs a page when it is first touched.
        zeros = np.zeros(layout.elements * kind.dtype.itemsize, np.uint8)
        self.flat = torch.from_numpy(zeros).view(kind.dtype)
        mask, union = np.zeros((2, -(-layout.blocks // 32)), np.uint32)
        self.mask, self.union = mask.ctypes.data, union.ctypes.data
        self.rows, self.row, self.blocks = kind.shape[: kind.dims], kind.shape[kind.dims :], layout.blocks
        self.at = self.flat.data_ptr(), layout.width * kind.dtype.itemsize, layout.row_blocks
        block = layout.width // layout.row_blocks
        options = SumOptions(kind.op, kind.bits, kind.min_bits, PackedMask(mask), block, union=union)
        self.sum = repeated(self.flat, options)


class Kinds:
    """The kinds of sums that there have been, with their tables; for any thread.

    Args:
        settings: of all sums.
    """

    def __init__(self, settings: Options) -> None:
        self._settings = settings
        self._known: dict[Any, Kind] = {}

    def of(self, tensor: Any, op: str) -> Kind | None:
        """The kind of a tensor's sum; None for one that does not fit: see `fits`."""
        if not tensor.is_sparse:
            return None
        key = tensor.shape, tensor.dtype, tensor.sparse_dim(), tensor.is_cpu, op
        kind = self._known.get(key)
        if kind is None and fits(tensor):
            layout = _layout(tensor.shape, tensor.sparse_dim())
            assert layout is not None
            kind = self._known.setdefault(key, Kind(tensor, layout, op, self._settings))
        return kind


def start(
    session: Session,
    tensor: torch.Tensor,
    kind: Kind,
    *,
    timeout: float | None,
    background: bool,
    lazy: bool = False,
) -> tuple[list[Work], Callable[[], None]]:
    """Starts the reduction of a tensor of a kind.

    Returns:
        The collectives that are not done yet, and a function that then makes `tensor` the result: coalesced,
        with the union of all ranks' rows.

    Raises:
        IndexError: an index is outside the tensor's shape; nothing was sent.
    """
    if session.world_size == 1:
        x = tensor.detach().coalesce()
        return [], lambda: _replace(tensor, x)
    added = None if tensor.is_coalesced() else _ADDED.get(kind.dtype)
    whole = tensor if added is not None else tensor.detach().coalesce()
    numbers, values = whole._indices().contiguous(), whole._values().contiguous()
    table = _table(kind)
    _native.put_rows(
        numbers.data_ptr(), numbers.shape[1], table.rows, values.data_ptr(), *table.at, table.mask,
        added or _DISTINCT,
    )  # fmt: skip
    work = session._repeat(table.sum, table.flat, timeout, background=background, lazy=lazy)

    def finish() -> None:
        count = _native.count_rows(table.union, table.blocks, table.at[2])
        values, indices = table.flat.new_empty((count, *table.row)), numbers.new_empty((kind.dims, count))
        to = values.data_ptr(), indices.data_ptr(), count
        _native.take_rows(table.union, table.blocks, table.rows, *table.at, *to, table.mask)
        if len(kind.spare) < _SPARE:
            kind.spare.append(table)
        result = torch.sparse_coo_tensor(
            indices, values, kind.shape, device="cpu", is_coalesced=True, check_invariants=False
        )
        _replace(tensor, result)

    return [] if work is None else [work], finish


def _table(kind: Kind) -> Table:
    """A table that nobody else uses."""
    try:
        return kind.spare.pop()
    except IndexError:
        return Table(kind)


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

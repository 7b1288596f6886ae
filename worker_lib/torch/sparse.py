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
from typing import Any, Final

import numpy as np
import torch

from switchagg.rules.planner import MAX_BLOCK
from worker_lib import _native
from worker_lib.arguments import SUMMABLE, PackedMask, torch_name
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
        and tensor.device.type == "cpu"
        and torch_name(tensor.dtype) in SUMMABLE
        and tensor.sparse_dim() > 0
        and 0 < math.prod(tensor.shape) <= MAX_ELEMENTS
        and _block(math.prod(tensor.shape[tensor.sparse_dim() :])) is not None
    )


class Tables:
    """Tables of zeros, to be used again; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}

    def take(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A table of zeros, flat, that nobody else uses."""
        with self._lock:
            if spare := self._spare.get((elements, dtype)):
                return spare.pop()
        # NumPy takes zeros from the kernel, which backs a page when it is first touched.
        return torch.from_numpy(np.zeros(elements * dtype.itemsize, np.uint8)).view(dtype)

    def give_back(self, table: torch.Tensor) -> None:
        """Takes back a table that is all zeros again."""
        with self._lock:
            spare = self._spare.setdefault((table.numel(), table.dtype), [])
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
    own = tensor.detach()
    shape = own.shape
    dims = own.sparse_dim()
    x = own.coalesce()
    if session.world_size == 1:
        return [], lambda: _replace(tensor, x)
    rows, width = shape[:dims], math.prod(shape[dims:])
    block = _block(width)
    assert block is not None
    elements = math.prod(shape)
    blocks = elements // block
    mask, union = np.zeros((2, -(-blocks // 32)), np.uint32)
    indices, values = x.indices().contiguous(), x.values().contiguous()
    table = tables.take(elements, x.dtype)
    at = table.data_ptr(), width * table.itemsize, width // block
    _native.put_rows(
        indices.data_ptr(), indices.shape[1], rows, values.data_ptr(), *at, _native.address(mask)
    )
    work = session._allreduce(
        table, op, bits, PackedMask(mask), block_size=block, timeout=timeout,
        min_bits=min_bits, union=union, background=background, lazy=lazy,
    )  # fmt: skip

    def finish() -> None:
        count = _native.count_rows(_native.address(union), blocks, width // block)
        values = torch.empty((count, *shape[dims:]), dtype=x.dtype, device="cpu")
        indices = torch.empty((dims, count), dtype=torch.int64, device="cpu")
        _native.take_rows(
            _native.address(union), blocks, rows, *at, values.data_ptr(), indices.data_ptr(), count
        )
        tables.give_back(table)
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
    with torch.no_grad():
        tensor.copy_(result)

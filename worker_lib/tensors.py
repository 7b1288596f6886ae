"""What a user's array looks like to the engine: address, type, count; and whether the engine may use it at
all.

NumPy arrays and CPU torch tensors are taken as they lie in memory, never copied here. torch is not imported:
a tensor can only exist where its caller has imported it.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from switchagg.errors import UsageError
from worker_lib.plan import DType

# What can be summed, by name; torch and NumPy (with ml_dtypes for bfloat16) use the same names.
SUMMABLE: Final[dict[str, DType]] = {
    "float32": DType.F32,
    "float64": DType.F64,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "int32": DType.I32,
    "int64": DType.I64,
    "uint32": DType.I32,  # sums mod 2^32 and 2^64 are the same for both signs
    "uint64": DType.I64,
}


class TensorView(NamedTuple):
    """One contiguous array in this process's memory.

    Attributes:
        owner: the array itself; whoever uses `address` holds on to it.
        address: of its first byte.
        dtype: name of its element type, such as ``float32``.
        shape: as the user sees it.
        elements: their number.
        nbytes: its size in bytes.
    """

    owner: Any
    address: int
    dtype: str
    shape: tuple[int, ...]
    elements: int
    nbytes: int

    @property
    def summable(self) -> DType | None:
        """The code of this element type for sums; None if it can only be moved."""
        return SUMMABLE.get(self.dtype)

    def like(self, shape: tuple[int, ...]) -> Any:
        """A new uninitialised array of the same library and element type."""
        if isinstance(self.owner, np.ndarray):
            return np.empty(shape, dtype=self.owner.dtype)
        return self.owner.new_empty(shape)

    def overlaps(self, other: TensorView) -> bool:
        """Whether the two share any byte."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


def view(x: Any, name: str, *, write: bool) -> TensorView:
    """Looks at an array without copying it.

    Args:
        x: a C-contiguous NumPy array or CPU torch tensor.
        name: what to call it in messages.
        write: whether the engine will write to it.

    Raises:
        UsageError: it is neither, on a GPU, not contiguous, or read-only where it would be written.
    """
    if isinstance(x, np.ndarray):
        return _numpy_view(x, name, write=write)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch_view(x, name, write=write)
    raise UsageError(
        f"{name} is a {type(x).__name__}; accepted: a NumPy array or a CPU torch tensor (for a number: "
        "np.array([value]))"
    )


def _numpy_view(x: np.ndarray[Any, Any], name: str, *, write: bool) -> TensorView:
    flags = x.flags
    if x.dtype.hasobject:
        raise UsageError(
            f"{name} holds Python objects (dtype {x.dtype}); accepted: plain numbers, bool or bytes"
        )
    if not x.dtype.isnative:
        raise UsageError(
            f"{name} has byte order {x.dtype.byteorder!r}; pass {name}.astype({name}.dtype.newbyteorder('='))"
        )
    if not flags.c_contiguous:
        raise UsageError(
            f"{name} is not contiguous (shape {x.shape}, strides {x.strides}); pass "
            f"np.ascontiguousarray({name}) "
            "and copy the result back"
        )
    if write and not flags.writeable:
        raise UsageError(f"{name} is read-only; pass a copy, or out= with a writable array")
    address: int = x.__array_interface__["data"][0]
    return TensorView(x, address, _name_of(x.dtype), x.shape, x.size, x.nbytes)


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    """NumPy makes the name anew every time, which a small collective would feel."""
    return dtype.name


def _torch_view(x: Any, name: str, *, write: bool) -> TensorView:
    if x.device.type != "cpu":
        raise UsageError(
            f"{name} is on {x.device}; accepted: CPU tensors. Pass {name}.cpu() and copy the result back"
        )
    if str(x.layout) != "torch.strided":
        raise UsageError(
            f"{name} has layout {x.layout}; accepted: dense (torch.strided) tensors, such as "
            f"{name}.to_dense()"
        )
    if not x.is_contiguous():
        raise UsageError(
            f"{name} is not contiguous (shape {tuple(x.shape)}, strides {x.stride()}); pass "
            f"{name}.contiguous() "
            "and copy the result back"
        )
    if write and x.requires_grad and x.is_leaf:
        raise UsageError(
            f"{name} is a leaf that requires grad and cannot be written in place; pass {name}.data or "
            f"{name}.grad"
        )
    shape = tuple(x.shape)
    count = math.prod(shape)
    return TensorView(
        x, x.data_ptr(), str(x.dtype).removeprefix("torch."), shape, count, count * x.element_size()
    )

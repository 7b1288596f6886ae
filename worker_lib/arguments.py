"""Arguments of a collective: arrays as the engine sees them, and checks of the settings.

NumPy arrays and CPU torch tensors are taken as they lie in memory, never copied here. torch is not imported:
a tensor can only exist where its caller has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from switchagg.errors import UsageError
from switchagg.rules.planner import LANE_BITS, MAX_BLOCK
from worker_lib import _native
from worker_lib.plan import DType, Kind, pack_bitmap

# Types that can be summed, by name; torch and NumPy (with ml_dtypes for bfloat16) use the same names.
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


ACCURACIES: Final = ("bounded", "exact")
# Sums of so many floats are exact by default: there words cost nothing beside the round trips. (4 workers and
# K = 2,239: with 4,096 elements it takes 3 % longer through shared memory, 7 % over UDP.)
EXACT_ELEMENTS: Final = 2048
DEFAULT_MIN_BITS: Final = 16  # bits: a policy makes lanes this narrow where a call says "auto" and no more


class PackedMask(NamedTuple):
    """A mask of blocks as words of a bitmap, a bit a block; for `SumOptions.blocks`."""

    words: np.ndarray[Any, Any]


class SumOptions(NamedTuple):
    """Options of a reduction; see `Session.allreduce`.

    Attributes:
        kind: all-reduce, reduce or reduce-scatter.
        root: of a reduce.
        union: words of a bitmap, for the union of all ranks' blocks; shape (ceil(blocks / 32),).
        tag: meaning of x, for messages to ranks that disagree on it.
        public: of an OR: what it says is no secret, also in a sealed job.
        key: stands for the arrays and all other options among the calls that a session knows; None: made from
            them, where that can be.
    """

    op: str
    bits: int | str | None = None
    min_bits: int | None = None
    blocks: Any = "auto"
    block_size: int | None = None
    memory: Any = None
    union: np.ndarray[Any, Any] | None = None
    tag: str = ""
    kind: Kind = Kind.ALLREDUCE
    root: int = 0
    public: bool = False
    key: Hashable = None

    def given(self) -> dict[str, Any]:
        """Arguments that sums and averages alone have, but for `blocks`, by the names that callers use."""
        bits = "accuracy" if self.bits in ACCURACIES else "bits"
        return {
            bits: self.bits, "min_bits": self.min_bits, "block_size": self.block_size, "memory": self.memory
        }  # fmt: skip


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
        """True if the two share any byte."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


def view(x: Any, name: str, *, write: bool) -> TensorView:
    """Looks at an array without copying it.

    Args:
        x: a C-contiguous NumPy array or CPU torch tensor.
        name: what to call it in messages.
        write: true if the engine will write to it.

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
    dtype = _name_of(x.dtype)
    if dtype is None:
        raise _unusable(x.dtype, name)
    flags = x.flags
    if not flags.c_contiguous:
        raise UsageError(
            f"{name} is not contiguous (shape {x.shape}, strides {x.strides}); pass "
            f"np.ascontiguousarray({name}) and copy the result back"
        )
    if write and not flags.writeable:
        raise UsageError(f"{name} is read-only; pass a copy, or out= with a writable array")
    return TensorView(x, _native.address(x), dtype, x.shape, x.size, x.nbytes)


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str | None:
    """The name of a type that the engine can move, otherwise None. NumPy makes names anew every time."""
    return None if dtype.hasobject or not dtype.isnative else dtype.name


@lru_cache(maxsize=64)
def torch_name(dtype: Any) -> str:
    """The name of a torch.dtype, such as ``float32``. torch makes it anew every time."""
    return str(dtype).removeprefix("torch.")


def _unusable(dtype: np.dtype[Any], name: str) -> UsageError:
    if dtype.hasobject:
        return UsageError(
            f"{name} holds Python objects (dtype {dtype}); accepted: plain numbers, bool or bytes"
        )
    return UsageError(
        f"{name} has byte order {dtype.byteorder!r}; pass {name}.astype({name}.dtype.newbyteorder('='))"
    )


def _torch_view(x: Any, name: str, *, write: bool) -> TensorView:
    if not x.is_cpu:
        raise UsageError(
            f"{name} is on {x.device}; accepted: CPU tensors. Pass {name}.cpu() and copy the result back"
        )
    if x.layout is not sys.modules["torch"].strided:
        raise UsageError(
            f"{name} has layout {x.layout}; accepted: dense (torch.strided) tensors, such as "
            f"{name}.to_dense()"
        )
    if x.is_neg() or x._is_zerotensor():
        raise UsageError(
            f"{name} is a lazy view whose memory holds other numbers; pass {name}.resolve_neg().clone()"
        )
    if not x.is_contiguous():
        raise UsageError(
            f"{name} is not contiguous (shape {tuple(x.shape)}, strides {x.stride()}); pass "
            f"{name}.contiguous() and copy the result back"
        )
    if write and x.requires_grad and x.is_leaf:
        raise UsageError(
            f"{name} is a leaf that requires grad and cannot be written in place; pass {name}.data or "
            f"{name}.grad"
        )
    return TensorView(x, x.data_ptr(), torch_name(x.dtype), tuple(x.shape), x.numel(), x.nbytes)


def checked_out(
    out: Any, x: TensorView, shape: tuple[int, ...], at: int = 0, own: str = "x itself"
) -> TensorView:
    """Views `out`, for a result of x's type and this shape, in place or apart from x.

    Args:
        at: bytes from x to `out` in place.
        own: in messages, what to pass in order to work in place.
    """
    o = view(out, "out", write=True)
    if o.dtype != x.dtype or o.shape != shape:
        raise UsageError(f"out is {o.dtype} of shape {o.shape}; needed: {x.dtype} of shape {shape}")
    if o.overlaps(x) and o.address != x.address + at:
        raise UsageError(f"out overlaps x; pass {own} to work in place, or an array of its own")
    return o


def checked_memory(memory: Any, x: TensorView, dtype: DType) -> TensorView:
    """Views the memory of error feedback: float32 of x's shape, apart from x."""
    if dtype not in (DType.F32, DType.F16, DType.BF16):
        raise UsageError(f"memory is for float32, float16 and bfloat16; this is {x.dtype}")
    m = view(memory, "memory", write=True)
    if m.dtype != "float32" or m.shape != x.shape:
        raise UsageError(f"memory is {m.dtype} of shape {m.shape}; needed: float32 of shape {x.shape}")
    if m.overlaps(x):
        raise UsageError("memory overlaps x; pass an array of its own")
    return m


def remembered(x: TensorView, out: TensorView, memory: Any) -> None:
    """`out` = x + memory, and nothing is left: error feedback where there is nobody to send to."""
    if isinstance(x.owner, np.ndarray):
        total = x.owner.astype(np.float32) + np.asarray(memory)
        out.owner[...] = total.astype(x.owner.dtype)
        memory[...] = 0
        return
    import torch

    with torch.no_grad():
        out.owner.copy_(x.owner.float() + torch.as_tensor(memory, device="cpu"))
    memory[...] = 0


def checked_block(block_size: int) -> int:
    """A block size that a plan can carry."""
    if not isinstance(block_size, int) or not 1 <= block_size <= MAX_BLOCK:
        raise UsageError(f"block_size is {block_size!r}; accepted: 1 to {MAX_BLOCK} elements")
    return block_size


def checked_accuracy(bits: Any, accuracy: Any) -> Any:
    """Returns `bits`, or `accuracy` where that is given."""
    if accuracy is None:
        return bits
    if accuracy not in ACCURACIES:
        raise UsageError(f"accuracy is {accuracy!r}; accepted: 'bounded', 'exact', or None")
    if bits is not None:
        raise UsageError(f"bits is {bits!r} with accuracy={accuracy!r}, which takes the bits that it needs")
    return accuracy


def checked_min_bits(bits: Any, min_bits: Any) -> int:
    """The narrowest lanes that the job's policy may choose where a call leaves them to it."""
    if bits != "auto":
        if isinstance(bits, str):
            raise UsageError(f"bits is {bits!r}; accepted: a width, or 'auto'")
        raise UsageError(f"min_bits is {min_bits!r} with bits={bits!r}; it goes with bits='auto'")
    narrowest = DEFAULT_MIN_BITS if min_bits is None else min_bits
    if narrowest not in LANE_BITS:
        widths = ", ".join(map(str, sorted(LANE_BITS)))
        raise UsageError(f"min_bits is {min_bits!r}; accepted: {widths}")
    return int(narrowest)


def checked_blocks(blocks: Any, count: int, block: int) -> tuple[bool | None, np.ndarray[Any, Any] | None]:
    """Checks `blocks` of a call.

    Returns True where zero blocks are skipped (None: the job decides), and the caller's mask as words, a bit
    a block.
    """
    if isinstance(blocks, PackedMask):
        return True, blocks.words
    if isinstance(blocks, str):
        if blocks not in ("auto", "dense", "sparse"):
            raise UsageError(
                f"blocks is {blocks!r}; accepted: 'auto', 'dense', 'sparse', or a bool array with one entry "
                "a block"
            )
        return {"auto": None, "dense": False, "sparse": True}[blocks], None
    flags = np.asarray(blocks)
    needed = -(-count // block)
    if flags.dtype != np.bool_ or flags.shape != (needed,):
        raise UsageError(
            f"blocks is {flags.dtype} of shape {flags.shape}; needed: bool of shape ({needed},), one "
            f"entry for each {block} elements"
        )
    return True, pack_bitmap(flags)


def checked_bitwise(v: TensorView, blocks: Any, given: dict[str, Any]) -> bool | None:
    """Checks the arguments of an OR; returns True where zero blocks are skipped (None: the job decides).

    Args:
        given: arguments that only sums have, by name.
    """
    if not v.dtype.startswith(("bool", "int", "uint")):
        raise UsageError(f"x has type {v.dtype} with op='or'; accepted: bool, and integers of any width")
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} is {value!r} with op='or'; it has a meaning only for sums and averages")
    if not isinstance(blocks, str):
        raise UsageError("blocks is a mask with op='or'; accepted: 'auto', 'dense', 'sparse'")
    return checked_blocks(blocks, 0, 1)[0]


def raw_bytes(v: TensorView) -> np.ndarray[Any, Any]:
    """The array's bytes, flat, without a copy."""
    if isinstance(v.owner, np.ndarray):
        return v.owner.reshape(-1).view(np.uint8)
    import torch

    flat: np.ndarray[Any, Any] = v.owner.detach().reshape(-1).view(torch.uint8).numpy()
    return flat


def copier(result: Any, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> Callable[[], Any]:
    """Returns a function that copies `source` to `target` and returns `result`."""

    def copy() -> Any:
        target[...] = source
        return result

    return copy

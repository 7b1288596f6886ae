"""What the arguments of a collective must be, and small views of their bytes; see `worker_lib.session`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from switchagg.errors import UsageError
from switchagg.rules.planner import LANE_BITS, MAX_BLOCK
from worker_lib.plan import DType, pack_bitmap
from worker_lib.tensors import TensorView, view

DEFAULT_FLOOR: Final = 16  # bits: a policy makes lanes this narrow where a call says "auto" and no more


def checked_out(out: Any, x: TensorView, shape: tuple[int, ...]) -> TensorView:
    """`out` as the place for a result of x's type and this shape, in place or apart from x."""
    o = view(out, "out", write=True)
    if o.dtype != x.dtype or o.shape != shape:
        raise UsageError(f"out is {o.dtype} of shape {o.shape}; needed: {x.dtype} of shape {shape}")
    in_place = o.address == x.address and o.shape == x.shape
    if o.overlaps(x) and not in_place:
        raise UsageError("out overlaps x; pass x itself to work in place, or an array of its own")
    return o


def checked_residual(residual: Any, x: TensorView, dtype: DType, bits: int) -> TensorView:
    """`residual` as the place for what lanes of this width leave out of x."""
    if bits > 16 or dtype not in (DType.F32, DType.F16, DType.BF16):
        raise UsageError(
            f"residual is for 16- and 8-bit lanes of float32, float16 and bfloat16; this is {x.dtype} in "
            f"{bits}-bit lanes"
        )
    r = view(residual, "residual", write=True)
    if r.dtype != "float32" or r.shape != x.shape:
        raise UsageError(f"residual is {r.dtype} of shape {r.shape}; needed: float32 of shape {x.shape}")
    if r.overlaps(x):
        raise UsageError("residual overlaps x; pass an array of its own")
    return r


def checked_memory(memory: Any, residual: Any, x: TensorView, dtype: DType) -> TensorView:
    """`memory` as what error feedback adds to x, and where it leaves what does not travel."""
    if residual is not None:
        raise UsageError("both residual and memory are given; memory does what residual does")
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
        out.owner.copy_(x.owner.float() + torch.as_tensor(memory))
    memory[...] = 0


def checked_block(block_size: int) -> int:
    """A block size that a plan can carry."""
    if not isinstance(block_size, int) or not 1 <= block_size <= MAX_BLOCK:
        raise UsageError(f"block_size is {block_size!r}; accepted: 1 to {MAX_BLOCK} elements")
    return block_size


def checked_floor(bits: Any, min_bits: Any) -> int:
    """The narrowest lanes that the job's policy may choose where a call leaves them to it."""
    if bits != "auto":
        if isinstance(bits, str):
            raise UsageError(f"bits is {bits!r}; accepted: a width, or 'auto'")
        raise UsageError(f"min_bits is {min_bits!r} with bits={bits!r}; it goes with bits='auto'")
    floor = DEFAULT_FLOOR if min_bits is None else min_bits
    if floor not in LANE_BITS:
        widths = ", ".join(map(str, sorted(LANE_BITS)))
        raise UsageError(f"min_bits is {min_bits!r}; accepted: {widths}")
    return int(floor)


def checked_blocks(blocks: Any, count: int, block: int) -> tuple[bool | None, np.ndarray[Any, Any] | None]:
    """Whether zero blocks are skipped (None: the job decides), and the caller's mask as a bit a block
    (little-endian words)."""
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
    """Whether an OR skips zero blocks (None: the job decides), where x and the other arguments allow an OR.

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


def bytes_of(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory as bytes."""
    return words.view(np.uint8)


def copier(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> Callable[[], None]:
    """What copies `source` to `target` when it is called."""

    def copy() -> None:
        target[...] = source

    return copy

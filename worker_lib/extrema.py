"""Maximum and minimum over ranks, which a switch that adds and ORs does not have.

    gathered   all ranks' elements come, and each rank takes the extremum: n elements each, one round trip
    searched   for many ranks and large arrays: one bit of eight for each digit of an element, most
               significant first; the switch ORs them, and a rank whose digit is not the highest is out. A
               byte and a round trip for each three bits of an element; only where a caller waits

Floats are compared as integers of the same order: -0 is less than +0, and NaN, whatever its sign and payload,
comes out as the quiet NaN (as in NumPy's maximum, and torch's). Nothing is rounded.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.arguments import SumOptions, TensorView, raw_bytes, view
from worker_lib.calls import collected, prepared, reduction
from worker_lib.plan import Kind
from worker_lib.session_state import SessionState
from worker_lib.work import MembershipChanged, Prepared, Work

Keys = npt.NDArray[Any]

OPS: Final = ("max", "min")
# Past both of these an array is searched. Gathered, it takes n words an element on every rank's link, and
# memory for n arrays; a search takes 2.75 words of a float32, eleven round trips, and more processor time.
GATHERED_RANKS: Final = 16
GATHERED_BYTES: Final = 1 << 18
_DIGIT: Final = 3  # bits, so that a digit's eight values are a byte's bits
_HIGHEST: Final = np.array([max(byte.bit_length() - 1, 0) for byte in range(256)], np.uint8)

# Bits of the mantissa of types that are compared as integers.
_MANTISSA: Final = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
_SIZES: Final = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_INTEGERS: Final = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
COMPARABLE: Final = (*_MANTISSA, *_INTEGERS, "bool")


def start(
    state: SessionState, x: Any, out: Any, options: SumOptions, timeout: float | None, *, background: bool
) -> Work:
    """Starts a gathered maximum or minimum; the arguments are those of `Session.allreduce` and the like."""
    return Work(state, lambda: _prepare(state, x, out, options), timeout, background=background)


def run(state: SessionState, x: Any, out: Any, options: SumOptions, timeout: float | None) -> Any:
    """Returns a maximum or minimum, gathered or searched for; called by all ranks, which wait for it."""
    while True:
        state.check_open()
        v, o, begin, end = _looked_at(state, x, out, options)
        try:
            if not searched(state.world_size, v.nbytes, sealed=state.sealed):
                return Work(
                    state, partial(_gathered, state, x, out, options), timeout, background=False
                ).wait()
            keys = _search(state, v, options, timeout)
        except MembershipChanged:
            continue
        if o is None:
            return None
        _store(o, keys[begin:end], v.dtype)
        return o.owner


def _gathered(state: SessionState, x: Any, out: Any, options: SumOptions) -> Prepared:
    """Prepares a gathering; raises `MembershipChanged` where the ranks are so many now that they search."""
    if searched(state.world_size, view(x, "x", write=False).nbytes, sealed=state.sealed):
        raise MembershipChanged
    return _prepare(state, x, out, options)


def searched(world_size: int, nbytes: int, *, sealed: bool = False) -> bool:
    """True if a call that waits searches for the extrema of arrays of this size; else they are gathered.

    A search is an OR, which cannot be sealed.
    """
    return world_size > GATHERED_RANKS and nbytes > GATHERED_BYTES and not sealed


def _looked_at(
    state: SessionState, x: Any, out: Any, options: SumOptions
) -> tuple[TensorView, TensorView | None, int, int]:
    v, o, begin, end = reduction(state, x, out, options)
    if v.dtype not in COMPARABLE:
        raise UsageError(
            f"x has type {v.dtype} with op={options.op!r}; accepted: float16, bfloat16, float32, float64, "
            "bool, and integers of 8 to 64 bits"
        )
    given = options.given()
    given["blocks"] = None if isinstance(options.blocks, str) and options.blocks == "auto" else options.blocks
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} is {value!r} with op={options.op!r}; it has a meaning only for sums and averages"
            )
    return v, o, begin, end


def _prepare(state: SessionState, x: Any, out: Any, options: SumOptions) -> Prepared:
    v, o, begin, end = _looked_at(state, x, out, options)
    if state.world_size == 1 and o is not None:
        _store(o, ordered(v, options.op), v.dtype)
        return Prepared(None, o.owner, (options.kind.name.lower(), v.dtype, v.shape, options.op))
    keys = ordered(v, options.op)
    rows, then = None, None
    if o is not None:
        rows = np.empty((state.world_size, v.elements), keys.dtype)
        then = partial(_reduce, o, rows[:, begin:end], v.dtype, options.op)
    return collected(
        state, Kind.EXTREMUM, view(keys, "x", write=False),
        None if rows is None else view(rows, "rows", write=True), [v.nbytes] * state.world_size,
        called=v, root=options.root, then=then, keep=(x, None if o is None else o.owner),
        tag=f"{options.kind.name} {options.op}", name=options.kind.name.lower(), how=options.op,
    )  # fmt: skip


def _reduce(o: TensorView, rows: Keys, dtype: str, op: str) -> Any:
    _store(o, (np.maximum if op == "max" else np.minimum).reduce(rows, axis=0), dtype)
    return o.owner


# ---------------------------------------------------------------------- keys


def ordered(v: TensorView, op: str) -> Keys:
    """Integers in the order of the elements, NaN being the one that wins; shape (elements,).

    Of floats signed ones in new memory; of integers the array itself.
    """
    if v.dtype not in _MANTISSA:
        return raw_bytes(v).view(np.uint8 if v.dtype == "bool" else v.dtype)
    bits = raw_bytes(v).view(f"i{_SIZES[v.dtype]}").copy()
    magnitudes, infinity = _fields(v.dtype)
    nan = infinity | (infinity & -infinity) >> 1  # above all others; with a sign, below all others
    bits[(bits & magnitudes) > infinity] = nan if op == "max" else nan | ~magnitudes
    return _folded(bits, magnitudes)


def _store(o: TensorView, keys: Keys, dtype: str) -> None:
    """Writes the elements of which these are keys."""
    if dtype in _MANTISSA:
        magnitudes, infinity = _fields(dtype)
        keys = _folded(keys, magnitudes)
        nan = (keys & magnitudes) > infinity
        if nan.any():
            keys[nan] &= magnitudes  # without a sign
    raw_bytes(o).view(keys.dtype)[...] = keys


def _folded(bits: Keys, magnitudes: Any) -> Keys:
    """Maps floats' bits, in place, to integers of the same order; and back."""
    bits ^= (bits >> (8 * bits.itemsize - 1)) & magnitudes
    return bits


def _fields(dtype: str) -> tuple[Any, Any]:
    """The bits of a float beside its sign, and those of infinity, as integers of its size."""
    kind = np.dtype(f"i{_SIZES[dtype]}").type
    magnitudes, mantissa = np.iinfo(kind).max, _MANTISSA[dtype]
    return kind(magnitudes), kind(magnitudes >> mantissa << mantissa)


# ---------------------------------------------------------------------- the search


def _search(state: SessionState, v: TensorView, options: SumOptions, timeout: float | None) -> Keys:
    """The extrema's keys, shape (elements,).

    Raises:
        MembershipChanged: the number of ranks has changed meanwhile, or this rank's.
    """
    membership = state.rank, state.world_size
    keys = ordered(v, options.op)
    kind = keys.dtype
    top = kind.type(np.iinfo(kind).min)  # turns the order of signed integers into that of unsigned ones
    flip = top if options.op == "max" else ~top
    unsigned = np.dtype(f"u{kind.itemsize}")
    mine = (keys ^ flip).view(unsigned)
    found = np.zeros(keys.size, unsigned)
    alive = np.ones(keys.size, np.bool_)
    ored = np.zeros(-(-keys.size // 4) * 4, np.uint8)  # whole words
    for low in range((8 * kind.itemsize - 1) // _DIGIT * _DIGIT, -1, -_DIGIT):
        digit = ((mine >> unsigned.type(low)) & unsigned.type(7)).astype(np.uint8)
        np.left_shift(alive.view(np.uint8), digit, out=ored[: keys.size])
        one = partial(_round, state, membership, v, ored, options, low)
        Work(state, one, timeout, background=False).wait()
        highest = _HIGHEST[ored[: keys.size]]
        alive &= digit == highest
        found |= highest.astype(unsigned) << unsigned.type(low)
    return found.view(kind) ^ flip  # type: ignore[no-any-return]


def _round(
    state: SessionState, membership: tuple[int, int], v: TensorView, ored: Keys, options: SumOptions, low: int
) -> Prepared:
    """Prepares the OR of one digit, in place."""
    if (state.rank, state.world_size) != membership:
        raise MembershipChanged
    words = ored.size // 4
    return prepared(state, Kind.EXTREMUM, v, None, (ored,), {
        "root": options.root, "sparse": False, "count": words, "input": ored.ctypes.data, "in_end": words,
        "output": ored.ctypes.data, "out_end": words,
    }, tag=f"{options.kind.name} {options.op}, bits from {low}", name=options.kind.name.lower(),
        how=options.op)  # fmt: skip

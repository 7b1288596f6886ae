"""The engine's call of one collective, for the present membership: the elements that a rank sends and keeps.

    Session, extrema, sized --prepare_...(state, arrays, options)--> Prepared --Work--> native engine

The tensor that the switch reduces is the same at all ranks; each sends a range of it and keeps a range. So an
all-gather sends one row and keeps all of them, a reduce-scatter sends everything and keeps one part, and a
reduce keeps everything at the root, nothing elsewhere. Bytes move as 32-bit words; arrays that are no whole
number of words go through padded copies.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from switchagg.errors import UsageError
from worker_lib import _native
from worker_lib.arguments import (
    ACCURACIES,
    EXACT_ELEMENTS,
    SUMMABLE,
    PackedMask,
    SumOptions,
    TensorView,
    checked_bitwise,
    checked_block,
    checked_blocks,
    checked_memory,
    checked_min_bits,
    checked_out,
    copier,
    raw_bytes,
    remembered,
    view,
)
from worker_lib.plan import BOUNDED, EXACT, DType, Kind, ReduceOp
from worker_lib.session_state import SessionState
from worker_lib.work import How, Prepared, name_of_call

_KNOWN: Final = 1024  # calls that a session keeps
_PLAIN: Final = {str, int, type(None)}
_NAMES: Final = [kind.name.lower() for kind in Kind]


def prepared(
    state: SessionState,
    kind: Kind,
    v: TensorView,
    result: Any,
    keep: tuple[Any, ...],
    fields: dict[str, Any],
    *,
    op: ReduceOp = ReduceOp.OR,
    dtype: DType = DType.RAW,
    bits: int = 32,
    auto_lanes: int = 0,
    tag: str = "",
    name: str = "",
    how: How = (),
    finish: Callable[[], Any] | None = None,
) -> Prepared:
    """Makes the engine's call; `fields` are those of `_native.Call`, beside what every call has.

    They come as a dict: binding them one by one to `**fields` costs 2 us, a tenth of a short call.

    Args:
        v: the array as ranks must agree on it: element type, shape, number of elements.
        tag: whatever else they must agree on.
        name, how: the call in messages, its kind by default, and the reduction.
    """
    label = (name or _NAMES[kind], v.dtype, v.shape, how)
    if state.world_size == 1:
        return Prepared(None, result, label)
    # For exact moves the engine sees only words, so the element type is part of the shape's fingerprint.
    shape: tuple[Any, ...] = (v.dtype, *v.shape) if op is ReduceOp.OR else v.shape
    assert state.engine is not None
    fields.setdefault("block", state.admitted.block)
    call = _native.Call(
        kind, op, dtype, bits, auto_lanes=auto_lanes, fingerprint_count=v.elements,
        shape_crc=shape_fingerprint((tag, *shape) if tag else shape), workers=state.world_size,
        rank=state.rank, **fields,
    )  # fmt: skip
    return Prepared(call, result, label, (*keep, v.owner), finish)


@lru_cache(maxsize=256)
def shape_fingerprint(shape: tuple[Any, ...]) -> int:
    """The plan's word for a shape, and for exact moves the type."""
    return zlib.crc32(repr(shape).encode())


def checked_root(state: SessionState, root: Any) -> int:
    """A rank of the present membership."""
    if not isinstance(root, int) or not 0 <= root < state.world_size:
        raise UsageError(f"root is {root!r}; accepted: a rank, 0 to {state.world_size - 1}")
    return root


# ---------------------------------------------------------------------- sums


def reduction(
    state: SessionState, x: Any, out: Any, options: SumOptions
) -> tuple[TensorView, TensorView | None, int, int]:
    """Looks at the arrays of an all-reduce, reduce or reduce-scatter.

    Returns:
        x; the array for the result, None on a rank that gets none; the elements of the reduced tensor that it
        gets, from and to.
    """
    scattered = options.kind is Kind.REDUCE_SCATTER
    if options.kind is Kind.REDUCE and checked_root(state, options.root) != state.rank:
        return view(x, "x", write=False), None, 0, 0
    v = view(x, "x", write=out is None and not scattered)
    if not scattered:
        return v, v if out is None else checked_out(out, v, v.shape), 0, v.elements
    n, rank = state.world_size, state.rank
    if not v.shape or v.shape[0] % n:
        raise UsageError(
            f"x has shape {v.shape}; reduce_scatter over {n} ranks needs a first dimension divisible by {n}"
        )
    rows, part = v.shape[0] // n, v.elements // n
    shape = (rows, *v.shape[1:])
    if out is None:
        out = v.like(shape)
    own = f"this rank's part of x, x[{rank * rows}:{(rank + 1) * rows}],"
    return v, checked_out(out, v, shape, rank * (v.nbytes // n), own), rank * part, (rank + 1) * part


def prepare_sum(state: SessionState, x: Any, out: Any, options: SumOptions) -> Prepared:
    """Prepares a sum, average or OR; see `Session.allreduce`."""
    generation = state.generation  # first: if it changes meanwhile, what is made here is not used
    key = options.key
    known = state.known_calls.get(key)
    if known is None or known.generation != generation:
        v, o, begin, end = reduction(state, x, out, options)
        if options.op == "or":
            return _prepare_or(state, v, o, begin, end, options)
        if key is None and (key := _key(v, o, options)) is not None:
            known = state.known_calls.get(key)
    if known is not None and known.generation == generation:
        return Prepared(known.call, x if out is None else out, known.label, (x, out, options))
    dtype, width, floor, reduce = sum_lanes(state, v, options.op, options.bits, options.min_bits)
    memory = None if options.memory is None else checked_memory(options.memory, v, dtype)
    size = options.block_size
    block = state.admitted.block if size is None else checked_block(size)
    sparse, mask = checked_blocks(options.blocks, v.elements, block)
    if memory is not None and o is not None and memory.overlaps(o):
        raise UsageError("memory overlaps the result; pass an array of its own")
    if state.world_size == 1 and o is not None:
        if memory is not None:
            remembered(v, o, options.memory)
        elif o is not v:
            raw_bytes(o)[:] = raw_bytes(v)
    keep = (x, out, None if o is None else o.owner, mask, options.memory, options.union)
    sum_ = prepared(state, options.kind, v, None if o is None else o.owner, keep, {
        "root": options.root, **_readers(state, options, v.elements),
        "sparse": sparse is not False, "auto_zeros": sparse is None,
        "block": block, "auto_block": size is None and mask is None,
        "count": v.elements, "input": v.address, "in_end": v.elements,
        "output": 0 if o is None else o.address, "out_begin": begin, "out_end": end, "zero_fill": o is not v,
        "mask": 0 if mask is None else _native.address(mask),
        "memory": 0 if memory is None else memory.address,
        "union_out": 0 if options.union is None else _native.address(options.union),
    }, op=reduce, dtype=dtype, bits=width, auto_lanes=floor, tag=options.tag,
        name=f"allreduce through {options.tag}" if options.tag else "",
        how=(reduce, "auto" if floor else width))  # fmt: skip
    if key is not None and sum_.call is not None:
        if len(state.known_calls) >= _KNOWN:
            state.known_calls.clear()
        named = partial(name_of_call, sum_.label)
        state.known_calls[key] = _native.KnownCall(generation, sum_.call, sum_.label, named)
    return sum_


def repeated(x: Any, options: SumOptions) -> SumOptions:
    """Options of an all-reduce in place that is called again and again, of an array that stays where it is.

    Its arguments are looked at once for each membership, as long as the session knows the call.
    """
    return options._replace(key=_key(view(x, "x", write=True), None, options))


def _key(v: TensorView, o: TensorView | None, options: SumOptions) -> tuple[Any, ...] | None:
    """All that the call of an all-reduce depends on; None where it is made each time."""
    op, bits, min_bits, blocks, block_size, memory, union, tag, kind, _root, _public, _none = options
    if kind is not Kind.ALLREDUCE or memory is not None:
        return None
    if not {type(op), type(bits), type(min_bits), type(block_size)} <= _PLAIN:
        return None  # some of them are refused
    if isinstance(blocks, PackedMask):
        blocks = _native.address(blocks.words)
    elif not isinstance(blocks, str):
        return None
    to = None if o is None or o is v else o.address
    at = None if union is None else _native.address(union)
    return v.address, to, v.dtype, v.shape, op, bits, min_bits, blocks, block_size, tag, at


def _prepare_or(
    state: SessionState, v: TensorView, o: TensorView | None, begin: int, end: int, options: SumOptions
) -> Prepared:
    sparse = checked_bitwise(v, options.blocks, options.given())
    if state.sealed and not options.public:
        raise UsageError(
            f"{f'{options.tag} needs' if options.tag else 'op is'} 'or' in a sealed job, where only sums can "
            "be hidden; accepted: 'sum', 'avg', 'max', 'min'"
        )
    each = v.nbytes // max(v.elements, 1)
    first, last = begin * each, end * each
    if state.world_size == 1 and o is not None and o is not v:
        raw_bytes(o)[:] = raw_bytes(v)
    words, padded = -(-v.nbytes // 4), None
    source, target, finish = v.address, 0 if o is None else o.address, None
    if (v.nbytes % 4 or first % 4 or last % 4) and state.world_size > 1:
        padded = _padded(v)
        source = padded.ctypes.data
        target = 0 if o is None else source
        if o is not None:
            finish = copier(o.owner, raw_bytes(o), padded.view(np.uint8)[first:last])
            first, last = 0, 4 * words
    result = None if o is None else o.owner
    # Parts of a padded copy begin within words, so every rank gets all of it.
    readers = {} if padded is not None else _readers(state, options, words)
    return prepared(state, options.kind, v, result, (result, padded), {
        "root": options.root, **readers, "auto_block": True,
        "sparse": sparse is not False, "auto_zeros": sparse is None,
        "count": words, "input": source, "in_end": words,
        "output": target, "out_begin": first // 4, "out_end": last // 4, "zero_fill": source != target,
    }, tag=options.tag, name=f"allreduce through {options.tag}" if options.tag else "",
        how=(ReduceOp.OR, 32), finish=finish)  # fmt: skip


def _readers(state: SessionState, options: SumOptions, elements: int) -> dict[str, int]:
    """Says which rank alone reads which elements of the reduced tensor; nothing where all read all."""
    if options.kind is Kind.REDUCE:
        return {"part": elements, "reader": options.root}
    return {"part": elements // state.world_size} if options.kind is Kind.REDUCE_SCATTER else {}


def sum_lanes(
    state: SessionState, v: TensorView, op: str, bits: int | str | None, min_bits: int | None = None
) -> tuple[DType, int, int, ReduceOp]:
    """Checks op, bits (or an accuracy) and min_bits of a sum.

    Returns the element type, the lanes' width (or `EXACT`, `BOUNDED`), the narrowest that the policy may
    choose (0: none), and the reduction.
    """
    if op in ("prod", "product", "mul"):
        raise UsageError(
            f"op is {op!r}: a switch adds and ORs, it does not multiply; accepted: 'sum', 'avg', 'or', "
            "'max', 'min'. For a product: np.prod(session.allgather(x), axis=0)"
        )
    if op not in ("sum", "avg"):
        raise UsageError(
            f"op is {op!r}; accepted: 'sum', 'avg' (and 'or', 'max', 'min' in allreduce, reduce and "
            "reduce_scatter)"
        )
    dtype = v.summable
    if dtype is None:
        raise UsageError(
            f"x has type {v.dtype}, which cannot be summed; accepted: {', '.join(SUMMABLE)} "
            "(any type can be broadcast and gathered)"
        )
    if op == "avg" and dtype in (DType.I32, DType.I64):
        raise UsageError(
            f"op is 'avg' on {v.dtype}; an average of integers is not an integer: sum them and divide"
        )
    reduce = ReduceOp.AVG if op == "avg" else ReduceOp.SUM
    accepted = dtype.lanes
    if bits is None and min_bits is None and dtype.is_float:
        return dtype, EXACT if v.elements <= EXACT_ELEMENTS else BOUNDED, 0, reduce
    if bits in ACCURACIES:
        if min_bits is not None:
            raise UsageError(f"min_bits is {min_bits!r} with accuracy={bits!r}; it goes with bits='auto'")
        width = EXACT if bits == "exact" else BOUNDED
        return dtype, width if dtype.is_float else accepted[0], 0, reduce
    if isinstance(bits, str) or min_bits is not None:
        return dtype, accepted[0], checked_min_bits(bits, min_bits), reduce
    width = accepted[0] if bits is None else bits
    if width not in accepted:
        widths = ", ".join(map(str, accepted))
        raise UsageError(f"bits is {bits!r}; accepted for {v.dtype}: {widths}, or 'auto'")
    most = 2 ** (width - 1) - 1
    if width < 32 and state.world_size > most:
        raise UsageError(
            f"bits is {width}: {state.world_size} workers cannot share lanes so narrow; accepted: up to "
            f"{most} workers, or more bits"
        )
    return dtype, width, 0, reduce


# ---------------------------------------------------------------------- exact moves


def prepare_broadcast(state: SessionState, x: Any, root: Any, tag: str = "", name: str = "") -> Prepared:
    """Prepares `Session.broadcast`; `tag` and `name` are those of `prepared`."""
    here = state.rank == checked_root(state, root)
    v = view(x, "x", write=not here)
    words, padded, finish = -(-v.nbytes // 4), None, None
    address = v.address
    if v.nbytes % 4 and state.world_size > 1:
        padded = _padded(v)
        address = padded.ctypes.data
        if not here:
            finish = copier(x, raw_bytes(v), padded.view(np.uint8)[: v.nbytes])
    return prepared(state, Kind.BROADCAST, v, x, (x, padded), {
        "root": root, "count": words, "input": address, "in_end": words if here else 0,
        "output": address, "out_end": 0 if here else words, "zero_fill": not here,
    }, tag=tag, name=name, finish=finish)  # fmt: skip


def prepare_allgather(state: SessionState, x: Any, out: Any) -> Prepared:
    """Prepares `Session.allgather`."""
    v = view(x, "x", write=False)
    return collected(state, Kind.ALLGATHER, v, _rows(state, v, out), [v.nbytes] * state.world_size)


def prepare_gather(state: SessionState, x: Any, root: Any, out: Any) -> Prepared:
    """Prepares `Session.gather`."""
    v = view(x, "x", write=False)
    o = _rows(state, v, out) if checked_root(state, root) == state.rank else None
    return collected(state, Kind.GATHER, v, o, [v.nbytes] * state.world_size, root=root)


def prepare_all_to_all(state: SessionState, x: Any, out: Any) -> Prepared:
    """Prepares `Session.all_to_all`: all ranks' arrays come, and the parts for this rank are kept."""
    v = view(x, "x", write=False)
    n, rank = state.world_size, state.rank
    if not v.shape or v.shape[0] % n:
        raise UsageError(
            f"x has shape {v.shape}; all_to_all among {n} ranks needs a first dimension divisible by {n}"
        )
    o = checked_out(v.like(v.shape) if out is None else out, v, v.shape)
    rows = np.empty((n, v.nbytes), np.uint8)

    def pick() -> Any:
        raw_bytes(o).reshape(n, v.nbytes // n)[...] = rows.reshape(n, n, v.nbytes // n)[:, rank]
        return o.owner

    return collected(
        state, Kind.ALL_TO_ALL, v, view(rows, "rows", write=True), [v.nbytes] * n, then=pick, keep=(o.owner,)
    )


def prepare_scatter(state: SessionState, x: Any, root: Any, out: Any) -> Prepared:
    """Prepares `Session.scatter`."""
    n, rank = state.world_size, state.rank
    here = rank == checked_root(state, root)
    v = None
    if here:
        v = view(x, "x", write=False)
        if not v.shape or v.shape[0] != n:
            raise UsageError(f"x has shape {v.shape}; scatter needs a row for each of {n} ranks")
        if out is None:
            out = v.like(v.shape[1:])
        o = checked_out(out, v, v.shape[1:], rank * (v.nbytes // n), f"x[{rank}]")
    elif out is None:
        raise UsageError(f"out is None on rank {rank}; accepted: an array for what rank {root} sends here")
    else:
        o = view(out, "out", write=True)
    if v is not None and n == 1:
        raw_bytes(o)[:] = raw_bytes(v)
    each, source, target = -(-o.nbytes // 4), 0 if v is None else v.address, o.address
    rows = part = finish = None
    if o.nbytes % 4:
        part = np.empty(each, np.uint32)
        target = part.ctypes.data
        finish = copier(out, raw_bytes(o), part.view(np.uint8)[: o.nbytes])
        if v is not None:
            rows = np.zeros((n, 4 * each), np.uint8)
            rows[:, : o.nbytes] = raw_bytes(v).reshape(n, o.nbytes)
            source = rows.ctypes.data
    return prepared(state, Kind.SCATTER, o, out, (x, part, rows), {
        "root": root, "part": each, "count": n * each, "input": source, "in_end": n * each if here else 0,
        "output": target, "out_begin": rank * each, "out_end": (rank + 1) * each, "zero_fill": True,
    }, finish=finish)  # fmt: skip


def prepare_barrier(state: SessionState, marks: str = "") -> Prepared:
    """Prepares `Session.barrier`; ranks that name different `marks` get a `MismatchError`."""
    v = TensorView(None, 0, marks or "uint32", (0,), 0, 0)
    call = prepared(state, Kind.BARRIER, v, None, (), {})
    call.label = (marks or "barrier()", "", (), ())
    return call


def prepare_no_op(state: SessionState, nbytes: int) -> Prepared:
    """Prepares the benchmark's no-op baseline."""
    v = TensorView(None, 0, "untouched", (nbytes,), nbytes, nbytes)
    fields = {"sparse": False, "count": -(-nbytes // 4)}
    return prepared(state, Kind.NO_OP, v, None, (), fields, op=ReduceOp.SUM, how=(ReduceOp.SUM, 32))


def collected(
    state: SessionState,
    kind: Kind,
    v: TensorView,
    o: TensorView | None,
    sizes: Sequence[int],
    *,
    called: TensorView | None = None,
    root: int = 0,
    then: Callable[[], Any] | None = None,
    keep: tuple[Any, ...] = (),
    tag: str = "",
    name: str = "",
    how: How = (),
) -> Prepared:
    """Prepares a call that brings all ranks' bytes together, end to end.

    Args:
        v: this rank's array.
        o: for all of them; may hold `v` at its place. None: nothing is kept here.
        sizes: bytes of each rank's.
        called: the array on which ranks must agree; `v` if None.
        then: makes the result once `o` is there; that is the result otherwise.
        tag, name, how: as in `prepared`.
    """
    words = [-(-size // 4) for size in sizes]
    begin, total = sum(words[: state.rank]), sum(words)
    called, result = called or v, None if o is None else o.owner
    if state.world_size == 1 and o is not None:
        raw_bytes(o)[:] = raw_bytes(v)
        result = then() if then is not None else result
    part = _padded(v) if v.nbytes % 4 else None
    whole, finish = None, then
    if o is not None and any(size % 4 for size in sizes):
        whole, finish = np.empty(total, np.uint32), lambda: unpad(o)

    def unpad(o: TensorView) -> Any:
        assert whole is not None
        source, target, at, to = whole.view(np.uint8), raw_bytes(o), 0, 0
        for size, count in zip(sizes, words, strict=True):
            target[to : to + size] = source[at : at + size]
            at, to = at + 4 * count, to + size
        return o.owner if then is None else then()

    target = o if whole is None else view(whole, "whole", write=True)
    ends = np.cumsum(words, dtype=np.uint64) if state.sealed else None
    return prepared(state, kind, called, result, (v.owner, result, part, whole, ends, *keep), {
        "root": root, "count": total, "zero_fill": True,
        "part": total if kind is Kind.GATHER else 0, "reader": root,
        "owner_ends": 0 if ends is None else ends.ctypes.data,
        "input": v.address if part is None else part.ctypes.data,
        "in_begin": begin, "in_end": begin + words[state.rank],
        "output": 0 if target is None else target.address, "out_end": 0 if target is None else total,
    }, tag=tag, name=name, how=how, finish=finish)  # fmt: skip


def _rows(state: SessionState, v: TensorView, out: Any) -> TensorView:
    """The array for a row of every rank; made if None. `v` may be this rank's row of it."""
    shape, rank = (state.world_size, *v.shape), state.rank
    if out is None:
        out = v.like(shape)
    return checked_out(out, v, shape, -rank * v.nbytes, f"x = out[{rank}]")


def _padded(v: TensorView) -> np.ndarray[Any, Any]:
    """A copy of the bytes, filled up with zeros to whole words."""
    padded = np.zeros(-(-v.nbytes // 4), np.uint32)
    padded.view(np.uint8)[: v.nbytes] = raw_bytes(v)
    return padded

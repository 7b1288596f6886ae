"""Collectives of arrays whose sizes ranks do not know of each other: all-gathers of rows, and objects.

    sizes, one of each rank --> all know where each rank's bytes lie --> the bytes, end to end

Two collectives, unless the caller knows the sizes. The asynchronous form waits for the sizes at once: ranks
must agree on the order of their collectives, and the bytes cannot be sent before their places are known.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from switchagg.errors import UsageError
from worker_lib.arguments import checked_out, view
from worker_lib.calls import checked_root, collected, prepare_broadcast
from worker_lib.plan import Kind
from worker_lib.session_state import SessionState
from worker_lib.work import Prepared, Retry, Work


class _AnotherRoot(Exception):
    """Raised where a change of membership has made another rank the root."""


def prepare_allgatherv(
    state: SessionState,
    x: Any,
    counts: Sequence[int] | None,
    out: Any,
    timeout: float | None,
    name: str = "allgatherv",
) -> Prepared:
    """Prepares `Session.allgatherv`; with `counts` None after a collective that gets them."""
    v = view(x, "x", write=False)
    if not v.shape:
        raise UsageError("x has shape (); allgatherv needs a first dimension, which may differ between ranks")
    row = v.shape[1:]
    if counts is None:
        given = _sizes(state, v.shape[0], f"{name} of {v.dtype}, rows of shape {row}", timeout)
    else:
        given = [int(count) for count in counts]
    generation, rank, n = state.generation, state.rank, state.world_size
    if counts is None and len(given) != n:
        raise Retry
    if len(given) != n or min(given) < 0 or given[rank] != v.shape[0]:
        raise UsageError(
            f"counts is {given}, and x has {v.shape[0]} rows on rank {rank}; accepted: the number of rows of "
            f"each of {n} ranks"
        )
    whole = (sum(given), *row)
    each = v.nbytes // v.shape[0] if v.shape[0] else view(v.like((1, *row)), "x", write=False).nbytes
    before = sum(given[:rank])
    if out is None:
        out = v.like(whole)
    own = f"x = out[{before}:{before + given[rank]}]"
    o = checked_out(out, v, whole, -before * each, own)

    def split() -> list[Any]:
        ends = np.cumsum([0, *given]).tolist()
        return [o.owner[a:b] for a, b in pairwise(ends)]

    call = collected(
        state, Kind.ALLGATHERV, v, o, [count * each for count in given],
        called=o, then=split, tag=f"{name} {given}", name=name,
    )  # fmt: skip
    return replace(call, generation=generation)


def prepare_allgather_object(state: SessionState, item: Any, timeout: float | None) -> Prepared:
    """Prepares `Session.allgather_object`, after a collective that gets the sizes."""
    call = prepare_allgatherv(state, _pickled(item), None, None, timeout, "allgather_object")

    def load(parts: list[Any]) -> list[Any]:
        return [_unpickled(part, rank) for rank, part in enumerate(parts)]

    if call.call is None:
        return replace(call, result=load(call.result))
    finish = call.finish
    assert finish is not None
    return replace(call, finish=lambda: load(finish()))


def prepare_broadcast_object(state: SessionState, item: Any, root: Any, timeout: float | None) -> Prepared:
    """Prepares `Session.broadcast_object`, after a collective that tells the size."""
    here, name = state.rank == checked_root(state, root), "broadcast_object"
    data = _pickled(item) if here else np.empty(0, np.uint8)
    size = np.array([data.size])

    def prepare() -> Prepared:
        if here != (state.rank == root):
            raise _AnotherRoot
        return prepare_broadcast(state, size, root, f"{name}, its size", name)

    try:
        Work(state, prepare, timeout, background=False).wait()
    except _AnotherRoot:
        raise Retry from None
    generation = state.generation
    if not here:
        data = np.empty(int(size[0]), np.uint8)
    call = prepare_broadcast(state, data, root, name, name)
    if here:
        return replace(call, result=item, finish=None, generation=generation)
    move = call.finish

    def load() -> Any:
        if move is not None:
            move()
        return _unpickled(data, root)

    return replace(call, finish=load, generation=generation)


def _sizes(state: SessionState, size: int, tag: str, timeout: float | None) -> list[int]:
    """The sizes of all ranks, in order; a collective. Ranks must agree on `tag`."""
    mine = np.array([size])

    def prepare() -> Prepared:
        o = view(np.empty(state.world_size, np.int64), "sizes", write=True)
        name = tag.partition(" ")[0]
        sizes = [mine.nbytes] * state.world_size
        return collected(
            state, Kind.ALLGATHERV, view(mine, "size", write=False), o, sizes, tag=tag, name=name
        )

    found: list[int] = Work(state, prepare, timeout, background=False).wait().tolist()
    return found


def _pickled(item: Any) -> np.ndarray[Any, Any]:
    try:
        return np.frombuffer(pickle.dumps(item, pickle.HIGHEST_PROTOCOL), np.uint8)
    except Exception as error:
        raise UsageError(f"the object, a {type(item).__name__}, cannot be pickled: {error}") from error


def _unpickled(data: np.ndarray[Any, Any], rank: int) -> Any:
    try:
        return pickle.loads(data.data)
    except Exception as error:
        raise UsageError(f"rank {rank}'s object cannot be unpickled here: {error!r}") from error

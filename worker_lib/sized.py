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
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.arguments import TensorView, checked_out, view
from worker_lib.calls import checked_root, collected, prepare_broadcast
from worker_lib.plan import Kind
from worker_lib.session_state import SessionState
from worker_lib.work import Agreed, MembershipChanged, Prepared, Retry, Work

Data = npt.NDArray[np.uint8]


def prepare_allgatherv(
    state: SessionState,
    x: Any,
    counts: Sequence[int] | None,
    out: Any,
    timeout: float | None,
    agreed: Agreed,
    name: str = "allgatherv",
) -> Prepared:
    """Prepares `Session.allgatherv`; with `counts` None after a collective that gets them."""
    v = view(x, "x", write=False)
    if not v.shape:
        raise UsageError("x has shape (); allgatherv needs a first dimension, which may differ between ranks")
    row = v.shape[1:]
    if counts is None:
        given = agreed.get(state, lambda: _sizes(state, v, name, timeout))
    else:
        given = [int(count) for count in counts]
    generation, rank, n = state.generation, state.rank, state.world_size
    if len(given) != n or min(given) < 0 or given[rank] != v.shape[0]:
        raise UsageError(
            f"counts is {given}, and x has {v.shape[0]} rows on rank {rank}; accepted: the number of rows of "
            f"each of {n} ranks"
        )
    whole, before = (sum(given), *row), sum(given[:rank])
    each = view(v.like((1, *row)), "x", write=False).nbytes
    if out is None:
        out = v.like(whole)
    o = checked_out(out, v, whole, -before * each, f"x = out[{before}:{before + given[rank]}]")

    def split() -> list[Any]:
        return [o.owner[a:b] for a, b in pairwise(np.cumsum([0, *given]).tolist())]

    call = collected(
        state, Kind.ALLGATHERV, v, o, [count * each for count in given],
        called=o, then=split, tag=f"{name} {given}", name=name,
    )  # fmt: skip
    return replace(call, generation=generation)


def prepare_allgather_object(
    state: SessionState, data: Data, timeout: float | None, agreed: Agreed
) -> Prepared:
    """Prepares `Session.allgather_object`, of a pickled object, after a collective that gets the sizes."""
    call = prepare_allgatherv(state, data, None, None, timeout, agreed, "allgather_object")

    def load(parts: list[Any]) -> list[Any]:
        return [_unpickled(part, rank) for rank, part in enumerate(parts)]

    finish = call.finish
    if finish is None:
        return replace(call, result=load(call.result))
    return replace(call, finish=lambda: load(finish()))


def prepare_broadcast_object(
    state: SessionState, item: Any, root: Any, timeout: float | None, agreed: Agreed
) -> Prepared:
    """Prepares `Session.broadcast_object`, after a collective that tells the size."""
    name = "broadcast_object"

    def ask() -> Data:
        here = state.rank == checked_root(state, root)
        data = pickled(item) if here else np.empty(0, np.uint8)
        size = np.array([data.size])

        def prepare() -> Prepared:
            if here != (state.rank == root):
                raise MembershipChanged
            return prepare_broadcast(state, size, root, f"{name}, its size", name)

        Work(state, prepare, timeout, background=False).wait()
        return data if here else np.empty(int(size[0]), np.uint8)

    try:
        data = agreed.get(state, ask)
    except MembershipChanged:
        raise Retry from None
    generation = state.generation
    call = prepare_broadcast(state, data, root, name, name)
    if state.rank == root:
        return replace(call, result=item, generation=generation)
    move = call.finish

    def load() -> Any:
        if move is not None:
            move()
        return _unpickled(data, root)

    return replace(call, finish=load, generation=generation)


def _sizes(state: SessionState, v: TensorView, name: str, timeout: float | None) -> list[int]:
    """The number of rows of each rank's array; a collective. Ranks must agree on type and row."""
    mine = view(np.array([v.shape[0]]), "rows", write=False)
    rows = v._replace(shape=(-1, *v.shape[1:]), elements=0)

    def prepare() -> Prepared:
        n = state.world_size
        o = view(np.empty(n, np.int64), "rows", write=True)
        sizes = [mine.nbytes] * n
        return collected(state, Kind.ALLGATHERV, mine, o, sizes, called=rows, tag=f"{name}, rows", name=name)

    found: list[int] = Work(state, prepare, timeout, background=False).wait().tolist()
    return found


def pickled(item: Any) -> Data:
    """The bytes of an object.

    Raises:
        UsageError: it cannot be pickled.
    """
    try:
        return np.frombuffer(pickle.dumps(item, pickle.HIGHEST_PROTOCOL), np.uint8)
    except Exception as error:
        raise UsageError(f"the object, a {type(item).__name__}, cannot be pickled: {error}") from error


def _unpickled(data: Data, rank: int) -> Any:
    try:
        return pickle.loads(data.data)
    except Exception as error:
        raise UsageError(f"rank {rank}'s object cannot be unpickled here: {error!r}") from error

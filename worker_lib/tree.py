"""Reduces and broadcasts lists, tuples and dicts of arrays as one.

    from worker_lib import tree

    tree.broadcast(session, parameters)              # {"weight": ..., "layers": [..., ...]}
    tree.allreduce(session, gradients, op="avg")     # in place, one all-reduce for each element type

Arrays may have any strides. The ranks first compare what their trees are made of, by a digest of keys, shapes
and types: a short collective more, without which ranks with other orders of equal sizes would sum what does
not belong together.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from switchagg.errors import MismatchError, UsageError
from worker_lib.session import Session

Group = list[np.ndarray[Any, Any]]


def allreduce(session: Session, tree: Any, op: str = "sum", **options: Any) -> Any:
    """Reduces every array of a tree over all ranks, in place.

    Args:
        tree: lists, tuples and dicts (with keys that are strings, in any order) of NumPy arrays and CPU torch
            tensors, of any strides, nested as you like; or one array.
        op, options: as `Session.allreduce` takes them, except blocks, out, memory, compressor and async_op.

    Returns:
        `tree`.

    Raises:
        UsageError: something else is in the tree, or an option cannot work.
        MismatchError: ranks have trees of other keys, shapes or types.
        WorkerLostError, CollectiveTimeout, SwitchError, SessionBrokenError: see `Work.wait`.

    After an error every array is as it was.
    """
    if unknown := set(options) & {"blocks", "out", "memory", "compressor", "async_op"}:
        raise UsageError(
            f"{min(unknown)} is of one array; accepted in a tree: bits, min_bits, accuracy, timeout"
        )
    groups = _groups(session, tree)
    sums = [session.allreduce(_flat(group), op=op, **options) for group in groups]
    _put(groups, sums)
    return tree


def broadcast(session: Session, tree: Any, root: int = 0, timeout: float | None = None) -> Any:
    """Copies rank `root`'s arrays to all ranks, byte for byte, in place.

    Args:
        tree: as in `allreduce`.
        root: rank whose contents win.
        timeout: seconds; the session's setting by default.

    Returns:
        `tree`.

    Raises: as `allreduce`.
    """
    groups = _groups(session, tree)
    _put(groups, [session.broadcast(_flat(group), root=root, timeout=timeout) for group in groups])
    return tree


def _flat(group: Group) -> np.ndarray[Any, Any]:
    return np.concatenate([leaf.reshape(-1) for leaf in group])


def _put(groups: list[Group], results: list[np.ndarray[Any, Any]]) -> None:
    """Writes results back. Only now, so that an error leaves every array as it was."""
    for group, result in zip(groups, results, strict=True):
        at = 0
        for leaf in group:
            leaf[...] = result[at : at + leaf.size].reshape(leaf.shape)
            at += leaf.size


def _groups(session: Session, tree: Any) -> list[Group]:
    """Returns the arrays of a tree by element type, once all ranks have said that they have the same."""
    leaves = list(_leaves(tree, ""))
    require_alike(session, [(path, str(leaf.dtype), leaf.shape) for path, leaf in leaves])
    groups: dict[Any, Group] = {}
    for _, leaf in leaves:
        if leaf.size:
            groups.setdefault(leaf.dtype, []).append(leaf)
    return list(groups.values())


def require_alike(session: Session, parts: list[tuple[Any, ...]]) -> None:
    """Compares what the ranks are about to exchange, by a digest: names, types and shapes, in order.

    Raises `MismatchError` at all ranks where any rank has other parts.
    """
    said = repr(parts)
    digest = hashlib.sha256(said.encode()).hexdigest()
    others = session.allgather_object(digest)
    if len(set(others)) > 1:
        ranks = [rank for rank, each in enumerate(others) if each != digest]
        raise MismatchError(
            f"ranks {ranks} have trees of other keys, shapes or types than rank {session.rank}, whose begins "
            f"with {said[:120]}"
        )


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the arrays of a tree with their paths; those of dicts by the order of their keys."""
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str):
                raise UsageError(f"key {key!r} at {path or 'the top'} is no string")
        for key in sorted(tree):
            yield from _leaves(tree[key], f"{path}/{key!r}")
    elif isinstance(tree, list | tuple):
        for number, each in enumerate(tree):
            yield from _leaves(each, f"{path}/{number}")
    else:
        yield path, _array(tree, path)


def _array(x: Any, path: str) -> np.ndarray[Any, Any]:
    """Returns an array, or a view of a tensor's memory as one."""
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and isinstance(x, torch.Tensor)
        and x.device.type == "cpu"
        and x.layout is torch.strided
    ):
        try:
            x = x.detach().numpy()
        except TypeError as error:
            raise UsageError(f"{path or 'the tree'} is a tensor that NumPy cannot see: {error}") from None
    if not isinstance(x, np.ndarray):
        raise UsageError(
            f"{path or 'the tree'} is a {type(x).__name__}; accepted: lists, tuples and dicts of NumPy "
            "arrays and CPU torch tensors"
        )
    if not x.flags.writeable:
        raise UsageError(f"{path or 'the tree'} is read-only; accepted: arrays that can be written to")
    return x

"""A compressor for each of DDP's buckets, whose memories follow the parameters.

    prototype --fork--> one compressor a bucket;   DDP cuts its buckets anew --> so are the memories

DDP decides on its buckets before the first step, and again after it; a checkpoint may be read under another
cut. What is remembered for each element (residuals, what is known of a rank's gradients) belongs to a
parameter and moves with it. What is remembered for a bucket as a whole (a scale) is found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from switchagg.errors import UsageError
from worker_lib.compress.base import Compressor

_Memories = list[dict[str, npt.NDArray[Any]]]  # of a compressor and of all that it is made of, in order


class BucketCompressors:
    """The compressors of one model's gradients on this rank.

    Args:
        prototype: what each bucket gets a fork of.
        names: of the model's parameters.
    """

    def __init__(self, prototype: Compressor, names: Mapping[torch.nn.Parameter, str]) -> None:
        if not isinstance(prototype, Compressor):
            raise UsageError(
                f"compressor is a {type(prototype).__name__}; accepted: a worker_lib.compress.Compressor"
            )
        self._prototype = prototype
        self._names = names
        self._sizes = {name: parameter.numel() for parameter, name in names.items()}
        self._made = 0
        self._of: dict[tuple[str, ...], Compressor] = {}
        self._where: dict[str, tuple[tuple[str, ...], Compressor, int]] = {}  # and from which element on

    def of(self, parameters: Sequence[torch.nn.Parameter]) -> Compressor:
        """The compressor of the bucket that holds these parameters, in this order.

        Raises:
            UsageError: some are not of the model.
        """
        unknown = [tuple(p.shape) for p in parameters if p not in self._names]
        if unknown:
            raise UsageError(f"gradients of shape {unknown[0]} are not of the model that State was made for")
        names = tuple(self._names[p] for p in parameters)
        if names not in self._of:
            self._take(names, self._cut(names, self._fork()))
        return self._of[names]

    def state_dict(self) -> list[dict[str, Any]]:
        """For each bucket, its parameters and its compressor's state."""
        return [
            {"parameters": list(names), "state": compressor.state_dict()}
            for names, compressor in self._of.items()
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Takes up where `state_dict` was called.

        Raises:
            UsageError: it is of another model or of other compressors; nothing was changed.
        """
        loaded = []
        for bucket in state:
            names = tuple(bucket["parameters"])
            missing = [name for name in names if name not in self._sizes]
            if missing:
                raise UsageError(f"state has a compressor for {missing[0]!r}; here: no such parameter")
            compressor = self._prototype.fork(0)
            compressor.load_state_dict(bucket["state"])
            size = sum(self._sizes[name] for name in names)
            for memories in _memories(compressor):
                for name, memory in memories.items():
                    if memory.size != size:
                        raise UsageError(
                            f"state has {memory.size} elements of {name!r} for {names}; here: {size}"
                        )
            loaded.append((names, compressor))
        self._of.clear()
        self._where.clear()
        for names, compressor in loaded:
            self._take(names, compressor)
        self._made = max((c.stream for _, c in loaded), default=0)

    # ------------------------------------------------------------------ inside

    def _fork(self) -> Compressor:
        self._made += 1
        return self._prototype.fork(self._made)

    def _take(self, names: tuple[str, ...], compressor: Compressor) -> None:
        """From here on these parameters are this compressor's."""
        mine = set(names)
        self._of = {key: kept for key, kept in self._of.items() if not mine & set(key)}
        self._of[names] = compressor
        at = 0
        for name in names:
            self._where[name] = names, compressor, at
            at += self._sizes[name]

    def _cut(self, names: tuple[str, ...], compressor: Compressor) -> Compressor:
        """Gives a new compressor what is remembered of its parameters."""
        parts = list(_walk(compressor))
        before = {
            id(old): (old, _memories(old))
            for name in names
            if name in self._where
            for old in [self._where[name][1]]
        }
        if not before:
            return compressor
        for i, part in enumerate(parts):
            kinds = {
                kind: memory.dtype for _, memories in before.values() for kind, memory in memories[i].items()
            }
            if kinds:
                part.restore_memories(
                    {kind: self._gathered(names, before, i, kind, dtype) for kind, dtype in kinds.items()}
                )
            part.step = max(list(_walk(old))[i].step for old, _ in before.values())
        return compressor

    def _gathered(
        self,
        names: tuple[str, ...],
        before: Mapping[int, tuple[Compressor, _Memories]],
        part: int,
        kind: str,
        dtype: Any,
    ) -> npt.NDArray[Any]:
        pieces = []
        for name in names:
            size = self._sizes[name]
            piece = np.zeros(size, dtype)
            if name in self._where:
                _, old, at = self._where[name]
                memory = before[id(old)][1][part].get(kind)
                if memory is not None:
                    piece[:] = memory[at : at + size]
            pieces.append(piece)
        return np.concatenate(pieces)


def _walk(compressor: Compressor) -> Iterator[Compressor]:
    yield compressor
    for part in compressor.parts():
        yield from _walk(part)


def _memories(compressor: Compressor) -> _Memories:
    return [part.memories() for part in _walk(compressor)]

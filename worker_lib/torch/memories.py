"""Memories of error feedback under DDP, which belong to parameters and are used by bucket.

DDP decides on its buckets before the first step, and again after it; a checkpoint may be read under other
buckets. A memory with a number for each element moves with its parameter. The state of a whole bucket, such
as a scale, starts anew.

BucketMemories      flat float32 tensors, one a bucket, for sums in narrow lanes or of some blocks
BucketCompressors   a compressor of `worker_lib.compress` for each bucket, with memories of its own
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from switchagg.errors import UsageError
from worker_lib.compress.base import Compressor

Names = Mapping[torch.nn.Parameter, str]


def names_of(model: torch.nn.Module | None) -> dict[torch.nn.Parameter, str]:
    """The parameters' names in the module that DDP wraps, which do not depend on the wrapping."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    return {} if model is None else {parameter: name for name, parameter in model.named_parameters()}


def _names_in(names: Names, parameters: Sequence[torch.nn.Parameter]) -> tuple[str, ...]:
    """The names of a bucket's parameters, in its order."""
    for parameter in parameters:
        if parameter not in names:
            shape = tuple(parameter.shape)
            raise UsageError(f"gradients of shape {shape} are not of the model that State was made for")
    return tuple(names[parameter] for parameter in parameters)


class BucketMemories:
    """This rank's memories, each flat and laid out as its bucket; a parameter's part is a view of it.

    Args:
        names: of the model's parameters.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._memory: dict[str, torch.Tensor] = {}  # by parameter: views of the buckets' memories
        self._buckets: dict[tuple[str, ...], torch.Tensor] = {}

    def of(
        self, parameters: Sequence[torch.nn.Parameter], device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """The memory of a bucket, float32 of as many elements as its buffer, on a device.

        Args:
            parameters: of the bucket, in its order.

        Raises:
            UsageError: some are not of the model.
        """
        names = _names_in(self._names, parameters)
        if names in self._buckets and self._buckets[names].device == torch.device(device):
            return self._buckets[names]
        flat = torch.zeros(sum(p.numel() for p in parameters), device=device)
        at = 0
        for name, parameter in zip(names, parameters, strict=True):
            view = flat[at : at + parameter.numel()].view(parameter.shape)
            if (before := self._memory.get(name)) is not None:
                view.copy_(before)
            self._memory[name] = view
            at += parameter.numel()
        self._buckets = {key: kept for key, kept in self._buckets.items() if set(names).isdisjoint(key)}
        self._buckets[names] = flat
        return flat

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies, by parameter."""
        return {name: memory.clone() for name, memory in self._memory.items()}

    def load(self, memories: Mapping[str, torch.Tensor]) -> None:
        """Continues from a `state_dict`.

        Raises:
            UsageError: it is of another model; nothing was changed.
        """
        shapes = {name: parameter.shape for parameter, name in self._names.items()}
        for name, memory in memories.items():
            if name not in shapes or memory.shape != shapes[name]:
                there = tuple(shapes[name]) if name in shapes else "no such parameter"
                raise UsageError(f"state has a residual of {name!r}, {tuple(memory.shape)}; here: {there}")
        self._buckets.clear()
        self._memory = {name: memory.detach().clone().float() for name, memory in memories.items()}


class BucketCompressors:
    """The compressors of one model's gradients on this rank.

    Args:
        prototype: each bucket gets a fork of it.
        names: of the model's parameters.
    """

    def __init__(self, prototype: Compressor, names: Names) -> None:
        if not isinstance(prototype, Compressor):
            raise UsageError(
                f"compressor is a {type(prototype).__name__}; accepted: a worker_lib.compress.Compressor"
            )
        self._prototype = prototype
        self._names = names
        self._sizes = {name: parameter.numel() for parameter, name in names.items()}
        self._of: dict[tuple[str, ...], Compressor] = {}
        self._where: dict[str, tuple[Compressor, int]] = {}  # a parameter's, and its first element there

    def of(self, parameters: Sequence[torch.nn.Parameter]) -> Compressor:
        """The compressor of the bucket that holds these parameters, in this order.

        Raises:
            UsageError: some are not of the model.
        """
        names = _names_in(self._names, parameters)
        if names not in self._of:
            # A rank that comes later has seen fewer buckets: the stream is that of the names alone.
            compressor = self._prototype.fork(zlib.crc32("\0".join(names).encode()))
            compressor.lay_out([tuple(parameter.shape) for parameter in parameters])
            self._hand_over(names, compressor)
            self._put(names, compressor)
        return self._of[names]

    def state_dict(self) -> list[dict[str, Any]]:
        """For each bucket, its parameters and its compressor's state."""
        return [
            {"parameters": list(names), "state": compressor.state_dict()}
            for names, compressor in self._of.items()
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Continues from a `state_dict`.

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
            for part in compressor.with_parts():
                for name, memory in part.memories().items():
                    if memory.size != size:
                        raise UsageError(
                            f"state has {memory.size} elements of {name!r} for {names}; here: {size}"
                        )
            loaded.append((names, compressor))
        self._of.clear()
        self._where.clear()
        for names, compressor in loaded:
            self._put(names, compressor)

    def _put(self, names: tuple[str, ...], compressor: Compressor) -> None:
        """Makes it the compressor of these parameters, from here on."""
        self._of = {key: kept for key, kept in self._of.items() if set(names).isdisjoint(key)}
        self._of[names] = compressor
        at = 0
        for name in names:
            self._where[name] = compressor, at
            at += self._sizes[name]

    def _hand_over(self, names: tuple[str, ...], compressor: Compressor) -> None:
        """Copies the memories of these parameters to a new compressor, from those that had them."""
        owners = [self._where[name][0] for name in names if name in self._where]
        before = {id(owner): list(owner.with_parts()) for owner in owners}
        if not before:
            return
        for i, part in enumerate(compressor.with_parts()):
            memories = {key: parts[i].memories() for key, parts in before.items()}
            kinds = {kind: memory.dtype for each in memories.values() for kind, memory in each.items()}
            if kinds:
                part.restore_memories(
                    {
                        kind: np.concatenate([self._memory_of(name, memories, kind, dtype) for name in names])
                        for kind, dtype in kinds.items()
                    }
                )
            part.step = max(parts[i].step for parts in before.values())
        compressor.follow(owners[0])

    def _memory_of(
        self, name: str, memories: Mapping[int, Mapping[str, npt.NDArray[Any]]], kind: str, dtype: Any
    ) -> npt.NDArray[Any]:
        """A parameter's part of the memories, which are by compressor; zeros where there is none."""
        part = np.zeros(self._sizes[name], dtype)
        if name in self._where:
            old, at = self._where[name]
            if (memory := memories[id(old)].get(kind)) is not None:
                part[:] = memory[at : at + part.size]
        return part

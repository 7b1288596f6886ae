"""What error feedback remembers under DDP: one flat float32 memory a bucket, kept by parameter.

A bucket's gradients lie in one buffer, and the engine adds one memory to it; but DDP cuts its buckets anew
after the first step, and checkpoints go by parameter. So a memory is flat, laid out as the bucket, and each
parameter's part is a view of it, which moves to a new memory when the buckets change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from switchagg.errors import UsageError


class Residuals:
    """This rank's memories.

    Args:
        model: whose parameters they belong to; None remembers nothing.
    """

    def __init__(self, model: torch.nn.Module | None) -> None:
        self._names = names_of(model)
        self._memory: dict[str, torch.Tensor] = {}  # by parameter: views of the buckets' memories
        self._buckets: dict[tuple[str, ...], torch.Tensor] = {}

    def of(self, bucket: Any, device: torch.device | str = "cpu") -> torch.Tensor:
        """The flat memory of a bucket, float32 of as many elements as its buffer, on a device.

        Raises `UsageError` for parameters of another model.
        """
        parameters = bucket.parameters()
        unknown = [tuple(p.shape) for p in parameters if p not in self._names]
        if unknown:
            raise UsageError(f"gradients of shape {unknown[0]} are not of the model that State was made for")
        names = tuple(self._names[p] for p in parameters)
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
        mine = set(names)
        self._buckets = {key: kept for key, kept in self._buckets.items() if not mine & set(key)}
        self._buckets[names] = flat
        return flat

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies, by parameter."""
        return {name: left.clone() for name, left in self._memory.items()}

    def load(self, residuals: Mapping[str, torch.Tensor]) -> None:
        """Takes up what `state_dict` gave.

        Raises `UsageError` if it is of another model; nothing has changed then.
        """
        shapes = {name: parameter.shape for parameter, name in self._names.items()}
        for name, left in residuals.items():
            if name not in shapes or left.shape != shapes[name]:
                there = tuple(shapes[name]) if name in shapes else "no such parameter"
                raise UsageError(f"state has a residual of {name!r}, {tuple(left.shape)}; here: {there}")
        self._buckets.clear()
        self._memory = {name: left.detach().clone().float() for name, left in residuals.items()}


def names_of(model: torch.nn.Module | None) -> dict[torch.nn.Parameter, str]:
    """The parameters' names in the module that DDP wraps, which do not depend on the wrapping."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    return {} if model is None else {parameter: name for name, parameter in model.named_parameters()}

"""Which operations of a process group are staged: those of tensors on a GPU, and what comes after them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from switchagg.errors import UsageError
from worker_lib.torch import staging
from worker_lib.torch.work import SwitchWork

if TYPE_CHECKING:
    from worker_lib.torch.group import SwitchGroup

Method = Callable[..., Any]


def staged(*, fresh: bool = False) -> Callable[[Method], Method]:
    """Lets a method of a group that takes CPU tensors take those of a GPU.

    Args:
        fresh: its first argument is for results alone, else it is in place. The second one is only read.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(group: SwitchGroup, *args: Any, **kwargs: Any) -> Any:
            tensors = [t for arg in args[:2] for t in _tensors(arg)]
            away = next((t for t in tensors if staging.elsewhere(t)), None)
            if away is None and not group.feeder.busy():
                for tensor in tensors:
                    _refuse(tensor)
                return method(group, *args, **kwargs)
            return _stage(group, method, args, kwargs, away, fresh=fresh)

        return call

    return decorate


def _stage(
    group: SwitchGroup,
    method: Method,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    away: torch.Tensor | None,
    *,
    fresh: bool,
) -> SwitchWork:
    _ = group.session  # says so here, and not in the feeder, if the group is destroyed
    start: Callable[[], Any]
    finish: Callable[[], None] | None = None
    bus = group.bus(away.device) if away is not None else None
    lanes = group.lanes_elsewhere(method.__name__, bus, args, kwargs) if bus is not None else None
    if lanes is not None:
        start = lanes
    else:
        readies: list[Callable[[], None]] = []
        back: list[tuple[torch.Tensor, torch.Tensor]] = []

        def twin(tensor: torch.Tensor, first: bool) -> torch.Tensor:
            _refuse(tensor)
            if bus is None or not staging.elsewhere(tensor):
                return tensor
            host, ready = bus.to_host(tensor, copy=not (first and fresh))
            readies.append(ready)
            if first:
                back.append((host, tensor))
            return host

        hosts = list(args)
        for i, arg in enumerate(args[:2]):
            hosts[i] = _mapped(arg, functools.partial(twin, first=i == 0))

        def start() -> Any:
            for ready in readies:
                ready()
            return method(group, *hosts, **kwargs)

        def finish() -> None:
            for host, tensor in back:
                assert bus is not None
                bus.to_device(host, tensor)

    part = group.feeder.add(start)
    results = [t for arg in args[:1] for t in _tensors(arg)]
    return group.follow(method.__name__, part, results, finish)


def _refuse(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu" and not staging.elsewhere(tensor):
        raise UsageError(f"a tensor is on {tensor.device}; accepted: tensors on the CPU or a CUDA device")


def _tensors(arg: Any) -> list[torch.Tensor]:
    if isinstance(arg, torch.Tensor):
        return [arg]
    return [t for each in arg for t in _tensors(each)] if isinstance(arg, list | tuple) else []


def _mapped(arg: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(arg, torch.Tensor):
        return change(arg)
    return [_mapped(each, change) for each in arg] if isinstance(arg, list | tuple) else arg

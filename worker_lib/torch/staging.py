"""Tensors as the engine wants them: dense, on the CPU, contiguous, without autograd; and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def devices() -> list[str]:
    """Kinds of devices whose tensors a group takes here."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def elsewhere(tensor: torch.Tensor) -> bool:
    """Whether it lies on a device whose tensors are staged through this process's memory."""
    return bool(tensor.device.type == "cuda")


def dense(tensor: object) -> bool:
    """Whether it is a tensor whose elements lie in this process's memory."""
    return isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"


def alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all are dense and have the same shape and type."""
    first = tensors[0]
    return all(dense(t) and t.shape == first.shape and t.dtype == first.dtype for t in tensors)


def contiguous(
    tensor: torch.Tensor, *, write: bool = False, copied: bool = False
) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """The tensor itself where it lies in memory as it looks, else a copy.

    Args:
        write: whether a result will be written to it.
        copied: a copy in any case.

    Returns:
        The tensor for the engine, and what copies the result back; None if there is nothing to copy.
    """
    own = tensor.detach()
    if own.is_contiguous() and not own.is_conj() and not own.is_neg():
        if not copied:
            return own, None
        copy = own.clone()
    else:
        copy = own.resolve_conj().resolve_neg().contiguous()
    return copy, (lambda: _copy(own, copy)) if write else None


def copy_rows(rows: Sequence[torch.Tensor], whole: torch.Tensor) -> Callable[[], None]:
    """What copies each row of `whole` to its tensor."""

    def copy() -> None:
        for row, source in zip(rows, whole, strict=True):
            _copy(row.detach(), source)

    return copy


def both(steps: Sequence[Callable[[], None] | None]) -> Callable[[], None] | None:
    """One step that takes all that there are; None where there is none."""
    there = [step for step in steps if step is not None]
    if not there:
        return None

    def run() -> None:
        for step in there:
            step()

    return run


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)

"""Settings of a process group: the argument of `init_process_group(..., pg_options=Options(...))`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from switchagg.errors import UsageError
from worker_lib.arguments import SUMMABLE, checked_accuracy, checked_block, checked_min_bits, torch_name
from worker_lib.transport import checked_congestion, checked_transport

FALLBACKS: Final = ("error", "gloo")
LANES: Final = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one process group, the same on all its ranks.

    Attributes:
        bits: width of the lanes in which floats are summed: 32, 16 or 8 (64 for float64). None, and types
            that do not have the width: as `accuracy` says. ``"auto"``: the width that the job's policy finds
            fastest, no narrower than `min_bits`.
        min_bits: with ``bits="auto"``, the narrowest lanes allowed: 8, 16 (the default) or 32.
        accuracy: of sums and averages of floats: ``"exact"``, ``"bounded"``, or by default exact up to 2,048
            elements and bounded above, as in `Session.allreduce`; without `bits`.
        blocks: ``"sparse"`` finds blocks that are zero on all ranks and does not send them; ``"dense"`` sends
            everything without looking; ``"auto"`` leaves it to the job's policy.
        block_size: elements a block; None leaves it to the controller.
        transport: ``"slots"``, ``"shm"``, ``"udp"`` or ``"auto"``, as in `worker_lib.connect`.
        congestion: ``"dedicated"`` or ``"shared"``, as in `worker_lib.connect`.
        check: sums are checked, as `worker_lib.connect` says.
        seal: sums are sealed: the same.
        fallback: when the switch is lost: ``"error"`` raises, ``"gloo"`` goes on through gloo; see
            `worker_lib.torch.fallback` for the cost of that.

    Raises:
        UsageError: a value that cannot work.
    """

    bits: int | str | None = None
    min_bits: int | None = None
    accuracy: str | None = None
    blocks: str = "auto"
    block_size: int | None = None
    transport: str | None = None
    congestion: str | None = None
    check: bool | None = None
    seal: bool | str | None = None
    fallback: str = "error"

    def __post_init__(self) -> None:
        if self.bits is not None and self.bits != "auto" and self.bits not in LANES:
            raise UsageError(
                f"bits is {self.bits!r}; accepted: {', '.join(map(str, LANES))}, 'auto', or None"
            )
        checked_accuracy(self.bits, self.accuracy)
        if self.bits == "auto" or self.min_bits is not None:
            checked_min_bits(self.bits, self.min_bits)
        if self.blocks not in ("auto", "sparse", "dense"):
            raise UsageError(f"blocks is {self.blocks!r}; accepted: 'auto', 'sparse', 'dense'")
        if self.block_size is not None:
            checked_block(self.block_size)
        checked_transport(self.transport)
        checked_congestion(self.congestion)
        if self.fallback not in FALLBACKS:
            raise UsageError(f"fallback is {self.fallback!r}; accepted: {', '.join(map(repr, FALLBACKS))}")

    def lanes(self, tensor: torch.Tensor) -> tuple[int | str | None, int | None]:
        """The arguments `bits` and `min_bits` of `Session.allreduce` for a sum of this tensor."""
        known = SUMMABLE.get(torch_name(tensor.dtype))
        if known is None or not tensor.is_floating_point():
            return None, None
        if tensor.dtype == torch.float64 and self.bits == "auto":
            return None, None
        if self.accuracy is not None:
            return self.accuracy, None
        if self.bits == "auto":
            return "auto", self.min_bits
        return (self.bits if self.bits in known.lanes else None), None

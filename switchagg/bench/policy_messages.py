"""What the policy benchmark's parent and a rank's process say to each other, pickled over a Unix socket.

A module of its own for the reason that `messages.py` is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Layout(StrEnum):
    """How non-zero elements lie in a tensor."""

    RANDOM = "random"  # pieces of 64 elements, independent on every rank
    CLUSTERED = "clustered"  # pieces of 4,096

    @property
    def grain(self) -> int:
        """Elements in a piece."""
        return 64 if self is Layout.RANDOM else 4096


@dataclass(frozen=True, slots=True)
class Setting:
    """A fixed one: what every call names. `block` is 0 for dense."""

    block: int

    @property
    def name(self) -> str:
        """For people and JSON."""
        return f"sparse {self.block}" if self.block else "dense"


@dataclass(frozen=True, slots=True)
class Prepare:
    """Write a tensor of so many float32, of which a share is non-zero, for the phase to come."""

    elements: int
    layout: Layout
    density: float
    seed: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """All-reduce it so often, from `start` of the monotonic clock on; without a setting, as the job's policy
    says."""

    setting: Setting | None
    calls: int
    start: float


@dataclass(frozen=True, slots=True)
class Took:
    """What a rank saw of that.

    Attributes:
        seconds: from the common start until the last call returned.
        cpu_seconds: processor time of this process meanwhile.
        policies: in force after a call, where it changed: (call from 0, seconds since the start, policy).
    """

    seconds: float
    cpu_seconds: float
    policies: tuple[tuple[int, float, str], ...]

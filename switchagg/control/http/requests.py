"""The bodies of requests, as OpenAPI shows them, and failures. Checks are strict: no number from a string, no
unknown field. The other answers are described in `switchagg.control.answers`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from switchagg.control.jobs.records import (
    DEFAULT_DEADLINE,
    DEFAULT_PRIORITY,
    MAX_NAME,
    MAX_PRIORITY,
    MAX_TIMEOUT,
    MAX_WHY,
)
from switchagg.wire.header import MAX_STRIPES, MAX_TREE_WORKERS, MAX_WORKERS, MIN_WORDS
from switchagg.wire.heartbeat import FIELDS, MAX_DEADLINE, MIN_DEADLINE

_U32: Final = 2**32 - 1
_COUNT: Final = 2**63  # exact in a float64, for JavaScript clients
_POWERS: Final = tuple(1 << exponent for exponent in range(1, 17))


def _digits(value: Any) -> Any:
    # int() and pydantic would take blanks, signs, underscores and other scripts' digits.
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) <= 20):
        raise ValueError("accepted: digits")
    return value


def _segment(value: Any) -> Any:
    """Decodes a path segment: routes see the path as it was sent."""
    if isinstance(value, str):
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise ValueError("accepted: percent-encoded UTF-8") from None
    return value


def _power_of_two(value: int) -> int:
    if value not in _POWERS:
        raise ValueError(f"a power of two, {_POWERS[0]}..{_POWERS[-1]}")
    return value


Digits: Final = BeforeValidator(_digits)
Segment: Final = BeforeValidator(_segment)

JobName = Annotated[str, Field(min_length=1, max_length=MAX_NAME, description="Printable characters.")]
_WORLD_SIZE: Final = f"Workers of the job; more than {MAX_WORKERS} only on a tree of switches."
WorldSize = Annotated[int, Field(ge=1, le=MAX_TREE_WORKERS, description=_WORLD_SIZE)]
Words = Annotated[
    int,
    Field(ge=MIN_WORDS, le=65535, description="K, the 32-bit words of a packet; the switch has a limit too."),
]
Slots = Annotated[
    int,
    Field(description="P, the slots of the job.", json_schema_extra={"enum": list(_POWERS)}),
    AfterValidator(_power_of_two),
]
Deadline = Annotated[
    float,
    Field(ge=MIN_DEADLINE, le=MAX_DEADLINE, description="Seconds of silence after which a worker is lost."),
]
Priority = Annotated[int, Field(ge=0, le=MAX_PRIORITY, description="Higher ones leave the queue first.")]
OnLossName = Annotated[
    Literal["fail", "shrink"],
    Field(description="Whether the job fails or goes on without a worker that it loses."),
]
Token = Annotated[int, Field(ge=0, le=_U32, description="The member's secret, from its admission.")]
Address = Annotated[
    str, Field(max_length=45, examples=["10.0.0.1"], description="IP address that the packets come from.")
]
Port = Annotated[int, Field(ge=1, le=65535)]
MorePorts = Annotated[
    list[Port],
    Field(
        max_length=MAX_STRIPES - 1, description="Towards the second and further switches of a job in stripes."
    ),
]
Count = Annotated[int, Field(ge=0, le=_COUNT)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class JobOrder(_Body):
    """A job as its tenant orders it."""

    name: JobName
    world_size: WorldSize
    words: Words | None = None
    slots: Slots | None = None
    priority: Priority = DEFAULT_PRIORITY
    deadline: Deadline = DEFAULT_DEADLINE
    on_loss: OnLossName = "fail"
    switch: str | None = Field(
        None, max_length=MAX_NAME, description="Run on this one, or below this root; null: on any."
    )
    touch: bool = Field(True, description="False: payloads are neither stored nor added.")


class Join(_Body):
    """The request of a rank. A setting that it leaves out is as the other ranks want it, or the default."""

    rank: int = Field(ge=0, le=MAX_TREE_WORKERS - 1, description="Less than world_size.")
    world_size: WorldSize
    address: Address
    port: Port
    words: Words | None = None
    slots: Slots | None = None
    timeout: float = Field(30.0, gt=0, le=MAX_TIMEOUT, description="Seconds to wait for the others.")
    touch: bool | None = None
    deadline: Deadline | None = None
    on_loss: OnLossName | None = None
    priority: Priority | None = None
    switch: str | None = Field(
        None, max_length=MAX_NAME, description="The switch that it attaches to; null: by its address."
    )
    memory: str = Field(
        "", max_length=200, description="Equal for processes that can share memory; empty: it shares none."
    )
    more_ports: MorePorts = []


class Bearing(_Body):
    """A member shows its token."""

    token: Token


class Leaving(Bearing):
    """A member leaves."""

    begun: Count | None = Field(
        None, description="Collectives that it has begun since its admission; others learn of it."
    )
    completed: Count | None = Field(
        None,
        description="Of these, how many are complete on it; likewise. "
        "Null: not known, or the switch may lack what it had contributed to them.",
    )
    why: str | None = Field(
        None,
        max_length=MAX_WHY,
        description="The exception that ends it, which others learn of; null: it leaves in order.",
        examples=["ValueError: bad batch"],
    )


class Beat(Bearing):
    """A heartbeat, for members that send no datagrams."""

    report: dict[Literal[FIELDS], Count] | None = Field(  # type: ignore[valid-type]
        None, description="Counts since its admission; see switchagg.wire.heartbeat.Report."
    )


class Progress(Bearing):
    """A member's progress when the membership changes."""

    completed: int = Field(ge=0, le=_COUNT, description="Collectives complete, as a prefix in call order.")
    replaying: bool = Field(
        False,
        description="It lacks RESULTs of the present switch, of collectives that it has completed.",
    )


class Proceed(Bearing):
    """A member goes over to the new generation, from this address."""

    address: Address
    port: Port
    more_ports: MorePorts = []

    @property
    def ports(self) -> list[int]:
        """All ports, by stripe."""
        return [self.port, *self.more_ports]


class Replay(Proceed):
    """A member whose switch is gone, or gives wrong sums, goes over to another one, from this address."""

    lowest: int = Field(ge=0, le=_COUNT, description="The lowest packet number whose RESULT it lacks.")
    more_lowest: list[Count] = Field(
        [], max_length=MAX_STRIPES - 1, description="The same of the second and further stripes."
    )
    stripe: int = Field(0, ge=0, lt=MAX_STRIPES, description="The one whose switch it is.")
    damaged: bool = Field(
        default=False, description="The switch is there, but a RESULT is not the sum; it may be taken again."
    )


class Problem(BaseModel):
    """An error."""

    code: str = Field(description="For programs.", examples=["rank_taken"])
    message: str = Field(description="For people: the wrong value, and what is accepted.")


class Failure(BaseModel):
    """The answer to a call that failed."""

    error: Problem

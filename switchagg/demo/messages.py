"""Messages of the demo's processes to their parent: one JSON object a line on standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, get_args


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost of one collective to one worker: the growth of `Session.stats()` over the call.

    Attributes:
        bytes_sent, bytes_received: UDP payload: headers of this protocol, plans, data and retransmissions.
        retransmissions: packets sent again.
        blocks_total, blocks_union: blocks of the tensor; those that are non-zero at any worker.
        seconds: time by activity of the worker: scan, quantize, wire, wait, decode.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    retransmissions: int = 0
    blocks_total: int = 0
    blocks_union: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


USAGE_SECONDS: Final = ("scan", "quantize", "wire", "wait", "decode")
_USAGE_COUNTS: Final = ("bytes_sent", "bytes_received", "retransmissions", "blocks_total", "blocks_union")


def usage(before: Mapping[str, Any], after: Mapping[str, Any]) -> Usage:
    """The difference of two `Session.stats()`."""
    counts = {name: int(after.get(name, 0)) - int(before.get(name, 0)) for name in _USAGE_COUNTS}
    first, last = before.get("seconds", {}), after.get("seconds", {})
    seconds = {name: float(last.get(name, 0.0)) - float(first.get(name, 0.0)) for name in USAGE_SECONDS}
    return Usage(**counts, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker is in the job and holds the initial weights."""

    rank: int


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step of one rank.

    Attributes:
        loss: mean over this rank's share of the batch.
        touched: share of the gradient's elements that the batch could make non-zero at this rank.
        compute, reduce, update: seconds in the gradient, in the all-reduce call, and in Adagrad.
        usage: cost of the all-reduce.
    """

    rank: int
    step: int
    loss: float
    touched: float = 0.0
    compute: float = 0.0
    reduce: float = 0.0
    update: float = 0.0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Digest:
    """SHA-256 of all parameters of a rank after a step."""

    rank: int
    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Mean loss, after a step, on text that is never trained on."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One gradient summed with zero-skip and once more dense. `equal`: both results have the same values."""

    rank: int
    sparse: Usage
    dense: Usage
    equal: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """Text from the trained model: ranks of words, the first `given` of them from the held-out text."""

    words: list[int]
    given: int


@dataclass(frozen=True, slots=True)
class Done:
    """The process has sent everything and is about to end well."""

    rank: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The process ends because of an error."""

    rank: int
    message: str


Message = Ready | Step | Digest | HeldOut | Comparison | Sample | Done | Failed
_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> str:
    """One line of JSON, without the line break."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)})


def decode(line: str) -> Message:
    """The inverse of `encode`.

    Raises:
        ValueError: the line is no such message.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict) or fields.get("kind") not in _KINDS:
        raise ValueError(f"not a message of the demo: {line[:200]!r}")
    kind = _KINDS[fields.pop("kind")]
    fields |= {name: Usage(**fields[name]) for name in ("usage", "sparse", "dense") if name in fields}
    message: Message = kind(**fields)
    return message


def emit(message: Message) -> None:
    """Sends a message to the parent."""
    print(encode(message), flush=True)

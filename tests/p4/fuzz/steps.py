"""Steps of fuzzing a switch, as records that can be kept, left out and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass

from switchagg.p4program.program import JobPlace
from switchagg.rules.slots import Address, JobEntry
from switchagg.wire.header import WireError, decode


@dataclass(frozen=True, slots=True)
class Admit:
    """A job's entries are written, and its slots initialised by INITs at once.

    In one step, since what a slot holds before its INIT is not the same on every engine.
    """

    job: JobEntry
    place: JobPlace
    first_seq: int


@dataclass(frozen=True, slots=True)
class Remove:
    """A job's entries are removed, where it is there."""

    job: int


@dataclass(frozen=True, slots=True)
class Send:
    """A packet comes in.

    Attributes:
        payload: of the UDP datagram.
        source: whom the datagram claims to be from; None for the controller.
        port: where it comes in; of no meaning for the controller's.
    """

    payload: bytes
    source: Address | None
    port: int = 0


@dataclass(frozen=True, slots=True)
class Connect:
    """A station is behind a port from now on."""

    mac: int
    port: int


@dataclass(frozen=True, slots=True)
class Cross:
    """A frame that is none of the protocol's comes in."""

    frame: bytes
    port: int


Step = Admit | Remove | Send | Connect | Cross


def show(step: Step) -> str:
    """Returns the expression that makes a step."""
    if isinstance(step, Send):
        return f"Send({_payload(step.payload)}, {step.source!r}, {step.port})"
    if isinstance(step, Cross):
        return f'Cross(bytes.fromhex("{step.frame.hex()}"), {step.port})'
    return _expression(step)


def _expression(value: object) -> str:
    """Python source of a value. Unlike its repr it shows secrets, without which a job is none."""
    if isinstance(value, tuple):
        return f"({''.join(f'{_expression(each)}, ' for each in value)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_expression(each)}' for key, each in value.items())}}}"
    if is_dataclass(value):
        shown = ", ".join(f"{each.name}={_expression(getattr(value, each.name))}" for each in fields(value))
        return f"{type(value).__name__}({shown})"
    return repr(value)


def _payload(payload: bytes) -> str:
    plain = f'bytes.fromhex("{payload.hex()}")'
    try:
        header, words = decode(payload)
    except WireError:
        return plain
    made = (
        f"Op.{header.op.name}, {header.flags}, {header.job}, {header.token:#x}, {header.seq}, {header.slot}"
    )
    shown = f"Header({made}, {header.reply})"
    if words is None:
        return f"encode({shown})"
    if words.min() == words.max():
        return f"encode({shown}, np.full({words.size}, {words[0]}, np.uint32))"
    return plain


def as_test(dut: str, steps: list[Step], what: str, seed: str) -> str:
    """Returns a test case that fails as long as a device differs.

    Args:
        dut: the call that opens it.
        what: the difference.
    """
    lines = "\n".join(f"        {show(step)}," for step in steps)
    comments = "\n".join(f"    # {line}" for line in what.splitlines())
    return f"""def test_found_by_fuzzing(tmp_path: Path) -> None:
    # Seed {seed}.
{comments}
    steps: list[Step] = [
{lines}
    ]
    with {dut} as dut:
        assert replay(dut, steps) is None
"""

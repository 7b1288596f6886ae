"""Outer steps over local training: local SGD, DiLoCo, its streaming form, sparse ones. One sum in H steps.

    each rank   H steps of its own optimizer on its own parameters x, from the anchor a that all ranks have
    then        d = a - x,  the pseudo-gradient;  mean of all d through the switch, compressed or not
                m <- beta m + mean d,   a <- a - rate (mean d + beta m)      Nesterov; without, - rate m
                x <- a

local SGD      rate 1, momentum 0: models are averaged (Stich, ICLR 2019, arXiv 1805.09767)
DiLoCo         rate 0.7, Nesterov momentum 0.9 (Douillard et al., arXiv 2311.08105, Algorithm 1)
streaming      the parameters in fragments that are sent one after the other; a fragment's mean arrives some
               steps later and is mixed with what the rank has by then (Douillard et al., arXiv 2501.18512),
               so that the link carries a fragment while the ranks compute
SparseLoCo     rate 1, momentum 0, and as compressor error feedback that decays, round a sparsifier and few
               bits, in place of the momentum (Sarfi et al., arXiv 2508.15706)

Anchors follow from the sums, so they are the same to the bit at all ranks. Between two sums, x differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError, require
from worker_lib.arguments import raw_bytes, view
from worker_lib.compress.base import Compressor
from worker_lib.session import Session
from worker_lib.work import Work

Floats = npt.NDArray[Any]


@dataclass(slots=True)
class _Fragment:
    """Some of the parameters.

    Attributes:
        arrays: flat views of them.
        anchor, velocity: end to end.
        compressor: of its pseudo-gradients.
        pending: the sum on its way, the pseudo-gradient that it becomes, and the step in which it is due.
        sent: the step in which it was sent last.
    """

    arrays: list[Floats]
    anchor: Floats
    velocity: Floats
    compressor: Compressor | None
    pending: tuple[Work, Floats, int] | None = None
    sent: int = 0


class OuterSteps:
    """Averages what ranks have learned in H steps of their own. Every rank makes it, with equal arguments.

    Call `step` after each step of the local optimizer, and `finish` at the end or before a checkpoint: then
    the parameters are the anchors, the same to the bit at all ranks. It begins with rank 0's parameters.

    Args:
        session: of all ranks.
        parameters: float32 arrays, or CPU tensors such as ``model.parameters()``; changed in place.
        every: H, local steps between two sums of a fragment.
        rate, momentum, nesterov: of the outer step. Local SGD has 1 and 0.
        compressor: of pseudo-gradients; each fragment gets a fork. None: the session's lanes.
        bits: width of these lanes, 32, 16 or 8; None: as exact as `Session.allreduce`.
        fragments: parts of about equal size, at most as many as there are parameters. They are sent
            every / fragments steps after each other.
        overlap: local steps that go on while a fragment is on its way, 0 to every - 1.
        mixing: share of the rank's own parameters that stays when a fragment arrives, in [0, 1); by default 0
            without overlap, else 1/2.

    Attributes:
        steps: local steps so far.

    Raises:
        UsageError: an argument cannot work; the message has what is accepted.
    """

    def __init__(
        self,
        session: Session,
        parameters: Iterable[Any],
        *,
        every: int,
        rate: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
        compressor: Compressor | None = None,
        bits: int | None = None,
        fragments: int = 1,
        overlap: int = 0,
        mixing: float | None = None,
    ) -> None:
        arrays, shapes = flat_parameters(parameters)
        _whole("every", every, 1, None)
        _whole("fragments", fragments, 1, min(len(arrays), every))
        _whole("overlap", overlap, 0, every - 1)
        require(0 < rate < np.inf, "rate", repr(rate), "greater than 0")
        require(0 <= momentum < 1, "momentum", repr(momentum), "0 and up, under 1")
        share = (0.5 if overlap else 0.0) if mixing is None else mixing
        require(0 <= share < 1, "mixing", repr(mixing), "0 and up, under 1")
        if compressor is not None and bits is not None:
            raise UsageError(f"bits is {bits} beside a compressor, which sets its lanes itself; give one")
        self._session, self._every, self._overlap = session, every, overlap
        self._rate, self._momentum, self._nesterov = np.float32(rate), np.float32(momentum), nesterov
        self._mixing, self._bits = np.float32(share), bits
        self.steps = 0
        self._fragments: list[_Fragment] = []
        ends = np.cumsum([a.size for a in arrays])
        # A parameter belongs to the fragment in which its middle lies.
        middles = (ends - [a.size / 2 for a in arrays]) * fragments / max(int(ends[-1]), 1)
        for number in range(fragments):
            chosen = [i for i, at in enumerate(middles) if int(at) == number]
            own = [arrays[i] for i in chosen]
            if own:
                anchor = np.concatenate(own)
                session.broadcast(anchor, root=0)
                fork = None if compressor is None else compressor.fork(number)
                made = _Fragment(own, anchor, np.zeros_like(anchor), fork)
                if fork is not None:
                    fork.lay_out([shapes[i] for i in chosen])
                self._fragments.append(made)
                put(own, anchor)

    def step(self) -> None:
        """Counts a local step; sends fragments that are due, and takes in those that have arrived.

        Raises:
            RangeError: a compressor's; see there.
        """
        self.steps += 1
        for number, fragment in enumerate(self._fragments):
            if fragment.pending is not None and self.steps >= fragment.pending[2]:
                self._take(fragment)
            offset = number * self._every // len(self._fragments)
            if (self.steps - offset) % self._every == 0 and self.steps > offset:
                self._send(fragment)
                if not self._overlap:
                    self._take(fragment)

    def finish(self) -> None:
        """Waits for what is on its way, sums what ranks have learned since, and sets all to the anchors."""
        for fragment in self._fragments:
            if fragment.pending is not None:
                self._take(fragment)
            if self.steps > fragment.sent:
                self._send(fragment)
                self._take(fragment)
            put(fragment.arrays, fragment.anchor)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, of a moment at which nothing is on its way.

        Raises:
            UsageError: something is; call `finish` first.
        """
        if any(fragment.pending is not None for fragment in self._fragments):
            raise UsageError("a fragment is on its way; call finish() before a checkpoint")
        return {
            "steps": self.steps,
            "anchors": [fragment.anchor.copy() for fragment in self._fragments],
            "velocities": [fragment.velocity.copy() for fragment in self._fragments],
            "compressors": [
                None if fragment.compressor is None else fragment.compressor.state_dict()
                for fragment in self._fragments
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state_dict`; the parameters become the anchors.

        Raises:
            UsageError: it is of other parameters or fragments; nothing was changed.
        """
        sizes = [anchor.size for anchor in state["anchors"]]
        if sizes != [fragment.anchor.size for fragment in self._fragments]:
            here = [fragment.anchor.size for fragment in self._fragments]
            raise UsageError(f"state has fragments of {sizes} elements; here: {here}")
        if any((kept is None) != (f.compressor is None) for kept, f in self._with(state["compressors"])):
            raise UsageError("state is of outer steps with a compressor, and here is none, or the reverse")
        for kept, fragment in self._with(state["compressors"]):
            if fragment.compressor is not None:
                fragment.compressor.load_state_dict(kept)
        self.steps = int(state["steps"])
        for (anchor, fragment), velocity in zip(
            self._with(state["anchors"]), state["velocities"], strict=True
        ):
            fragment.anchor[:], fragment.velocity[:] = anchor, velocity
            fragment.sent = self.steps
            put(fragment.arrays, fragment.anchor)

    # ------------------------------------------------------------------ inside

    def _with(self, values: Iterable[Any]) -> list[tuple[Any, _Fragment]]:
        return list(zip(values, self._fragments, strict=True))

    def _send(self, fragment: _Fragment) -> None:
        moved = fragment.anchor - np.concatenate(fragment.arrays)
        how: dict[str, Any] = {"bits": self._bits}
        if fragment.compressor is not None:
            how = {"compressor": fragment.compressor}
        work = self._session.allreduce_async(moved, op="avg", **how)
        fragment.pending, fragment.sent = (work, moved, self.steps + self._overlap), self.steps

    def _take(self, fragment: _Fragment) -> None:
        assert fragment.pending is not None
        work, mean, _ = fragment.pending
        fragment.pending = None
        work.wait()
        fragment.velocity *= self._momentum
        fragment.velocity += mean
        ahead = mean + self._momentum * fragment.velocity if self._nesterov else fragment.velocity
        fragment.anchor -= self._rate * ahead
        if self._mixing:
            mine = np.concatenate(fragment.arrays)
            put(fragment.arrays, self._mixing * mine + (1 - self._mixing) * fragment.anchor)
        else:
            put(fragment.arrays, fragment.anchor)


def flat_parameters(parameters: Iterable[Any]) -> tuple[list[Floats], list[tuple[int, ...]]]:
    """Returns flat views of the parameters' memory, and their shapes.

    Raises:
        UsageError: there are none, or as `flat_parameter`.
    """
    flats = [flat_parameter(each, f"parameter {i}") for i, each in enumerate(parameters)]
    if not flats:
        raise UsageError("there are no parameters")
    return [flat for flat, _ in flats], [shape for _, shape in flats]


def flat_parameter(x: Any, name: str, *, write: bool = True) -> tuple[Floats, tuple[int, ...]]:
    """Returns a flat view of a float32 array's or tensor's memory, and its shape.

    Raises:
        UsageError: it is not float32, or cannot be written where it is to be; the message has its name.
    """
    seen = view(x.detach() if hasattr(x, "detach") else x, name, write=write)
    if seen.dtype != "float32":
        raise UsageError(f"{name} has type {seen.dtype}; accepted: float32")
    return raw_bytes(seen).view(np.float32), seen.shape


def put(arrays: list[Floats], values: Floats) -> None:
    """Writes values, which stand end to end, into arrays."""
    at = 0
    for array in arrays:
        array[:] = values[at : at + array.size]
        at += array.size


def _whole(name: str, value: Any, least: int, most: int | None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    accepted = f"a whole number from {least}" + ("" if most is None else f" to {most}")
    require(whole and value >= least and (most is None or value <= most), name, repr(value), accepted)

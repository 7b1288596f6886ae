"""One packet through a switch with two pipelines: what waits for ingress, what waits for egress, what is out.

    process ─► arrivals ─► ingress ─► departures ─► egress ─► out
                  ▲           │                        │
                  └───────────┴── resubmitted, recirculated

Departures go first, so that a packet is through before what it sent round again begins. An architecture says
what its ingress and egress do with one packet.
"""

from __future__ import annotations

import abc
from collections import deque
from typing import Any, Final, Generic, Protocol, TypeVar

from switchagg.p4model import ir
from switchagg.p4model.runtime.switch import ModelError, ModelSwitch

MAX_PASSES: Final = 4096

ArrivalT = TypeVar("ArrivalT")
DepartureT = TypeVar("DepartureT")


class State(Protocol):
    """What an architecture's externs share while a packet is under way."""

    now: float
    digests: list[tuple[str, dict[str, Any]]]


class TwoPipelineSwitch(ModelSwitch, Generic[ArrivalT, DepartureT]):
    """A `ModelSwitch` with ingress and egress. An architecture sets `_state`, which its externs use."""

    _state: State

    def __init__(self, program: ir.Program, *, seed: int = 0, traced: bool = False) -> None:
        super().__init__(program, seed=seed, traced=traced)
        self._out: list[tuple[int, bytes]] = []
        self._arrivals: deque[ArrivalT] = deque()
        self._departures: deque[DepartureT] = deque()

    @property
    def digests(self) -> list[tuple[str, dict[str, Any]]]:
        """The digests since this list was last cleared: (name, values)."""
        return self._state.digests

    def process(self, port: int, data: bytes, now: float = 0.0) -> list[tuple[int, bytes]]:
        """Runs one packet; see `ModelSwitch.process`."""
        self.now = self._state.now = now
        self._out = []
        self._arrivals = deque([self._arrival(port, data)])
        self._departures = deque()
        if self.traced:
            self.trace.events.clear()
        for _ in range(MAX_PASSES):
            if self._departures:
                self._run_egress(self._departures.popleft())
            elif self._arrivals:
                self._run_ingress(self._arrivals.popleft())
            else:
                return self._out
        raise ModelError(f"{self.program.path}: one packet went through more than {MAX_PASSES} passes")

    @abc.abstractmethod
    def _arrival(self, port: int, data: bytes) -> ArrivalT:
        """A packet that comes in from outside."""

    @abc.abstractmethod
    def _run_ingress(self, arrival: ArrivalT) -> None:
        """Parser to traffic manager."""

    @abc.abstractmethod
    def _run_egress(self, packet: DepartureT) -> None:
        """Traffic manager to port."""

    def _note(self, kind: str, text: str) -> None:
        if self.traced:
            self.trace.add(kind, text)

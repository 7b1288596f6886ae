"""The process of one rank of the policy benchmark: `python -m switchagg.bench.policy_rank CONFIG`."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.bench.messages import Digest, Show
from switchagg.bench.policy_messages import Prepare, Reduce, Took
from switchagg.bench.rank import serve
from switchagg.processor_time import own_seconds
from switchagg.rules.planner import SkipPolicy


class PolicyRank:
    """Carries out the parent's commands on one session."""

    def __init__(self, rank: int, endpoint: Any) -> None:
        self._rank = rank
        self._session = endpoint.session
        self._x: NDArray[np.float32] = np.empty(0, np.float32)
        self._out = self._x

    def carry_out(self, command: object) -> object:
        """Do one command and return the reply."""
        match command:
            case Prepare():
                self._prepare(command)
                return None
            case Reduce():
                return self._reduce(command)
            case Show():
                return Digest.of([self._out])
            case _:
                raise TypeError(f"no such command: {command!r}")

    def _prepare(self, command: Prepare) -> None:
        grain = command.layout.grain
        pieces = -(-command.elements // grain)
        rng = np.random.default_rng((command.seed, self._rank, round(command.density * 1e6)))
        count = round(command.density * pieces)
        there = np.ones(pieces, np.bool_)
        if count < pieces:
            there[:] = False
            there[rng.choice(pieces, count, replace=False)] = True
        if self._x.size != command.elements:
            self._x, self._out = (np.empty(command.elements, np.float32) for _ in range(2))
            self._out.fill(0)
        values = rng.standard_normal(grain).astype(np.float32) + np.float32(4)
        for at in range(0, pieces, 1024):  # a slab at a time: no second tensor
            part = self._x[at * grain : (at + 1024) * grain]
            part[:] = (there[at : at + 1024, None] * values).reshape(-1)[: part.size]

    def _reduce(self, command: Reduce) -> Took:
        session, x, out = self._session, self._x, self._out
        arguments: dict[str, Any] = {}
        if command.setting is not None:
            block = command.setting.block
            arguments = {"blocks": "sparse", "block_size": block} if block else {"blocks": "dense"}
        policies: list[tuple[int, float, str]] = []
        last: SkipPolicy | None = None
        time.sleep(max(0.0, command.start - time.monotonic()))
        cpu = own_seconds()
        for call in range(command.calls):
            session.allreduce(x, out=out, **arguments)
            if command.setting is None and (policy := session.policy) != last:
                last = policy
                policies.append((call, time.monotonic() - command.start, str(policy)))
        seconds = time.monotonic() - command.start
        return Took(seconds, own_seconds() - cpu, tuple(policies))


if __name__ == "__main__":
    serve(sys.argv[1], PolicyRank)

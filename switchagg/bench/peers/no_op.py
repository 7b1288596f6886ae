"""The no-op baseline `udp-floor`: switchagg's processes, datagrams, window and GSO batches, words untouched.

Nothing is quantized, added or decoded, so its time is the cost of the kernel's UDP. It carries the bytes of
the blocks that are non-zero at any worker, as data from every worker: at density 1 exactly what a 32-bit
all-reduce carries; below it more, because a worker sends no data for blocks that are zero at itself.
"""

from __future__ import annotations

from typing import Any

from switchagg.bench.grid import Settings
from switchagg.bench.peers.peer import RankConfig, Work
from switchagg.bench.peers.switchagg import SwitchaggEndpoint, SwitchaggPeer
from worker_lib.connect import _join
from worker_lib.secret import Secret


class NoOpPeer(SwitchaggPeer):
    """A switch of its own that loses nothing, whose job leaves the words alone."""

    name = "no_op"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, transport="udp")


class NoOpEndpoint(SwitchaggEndpoint):
    """A rank's session in a job whose payloads the switch neither stores nor adds."""

    def _connect(self, config: RankConfig) -> Any:
        # No user asks for such a job, so the public connect() has no word for it.
        return _join(
            config.options["controller"],
            "bench",
            config.rank,
            config.workers,
            timeout=config.timeout,
            patience=config.timeout,
            words=config.options["words"],
            slots=config.options["slots"],
            transport=config.options["transport"],
            stripes=1,
            shares=False,
            check=False,
            secret=Secret(bytearray()),
            may_group=False,
            touch=False,
        )

    def reduce(self, work: Work, call: int) -> None:
        self.session._no_op(work.union_bytes[call])


open_endpoint = NoOpEndpoint

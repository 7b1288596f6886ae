"""The sum is the same to the bit on every worker, whatever the network loses."""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np

from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.table import Table

WORKERS: Final = 4
LOSSES: Final = (0.0, 0.001, 0.01, 0.05)


def reduce_often(session: Any, given: dict[str, Any]) -> dict[str, Any]:
    """One rank: sums tensors of its own; returns a digest of the results and what they cost."""
    random = np.random.default_rng((given["seed"], session.rank))
    x = np.empty(given["elements"], np.float32)
    digest = 0
    before = session.stats()
    for _ in range(given["calls"]):
        random.standard_normal(out=x, dtype=np.float32)
        session.allreduce(x, bits=given["bits"])
        digest = zlib.crc32(x.view(np.uint8).data, digest)
    after = session.stats()
    return {
        "digest": digest,
        "packets": after["packets_sent"] - before["packets_sent"],
        "resent": after["retransmissions"] - before["retransmissions"],
    }


def run(runner: Runner) -> Outcome:
    """Sums the same tensors under several rates of loss."""
    rows: list[tuple[Any, ...]] = []
    digests: dict[int, set[int]] = {}
    elements, calls = (20_000, 4) if runner.quick else (200_000, 10)
    for bits in (8,) if runner.quick else (32, 8):
        for loss in LOSSES[:: 3 if runner.quick else 1]:
            runner.say(f"{bits}-bit lanes, {loss:.1%} of packets lost")
            given = {"seed": runner.seed, "elements": elements, "calls": calls, "bits": bits}
            arguments = ["--loss", str(loss), "--seed", str(runner.seed)] if loss else []
            ran = runner.ranks(reduce_often, WORKERS, given, arguments=arguments)
            found = {result["digest"] for result in ran.results}
            digests.setdefault(bits, set()).update(found)
            sent, resent = (sum(result[name] for result in ran.results) for name in ("packets", "resent"))
            rows.append((bits, 100 * loss, sent, resent, f"{min(found):08x}", len(found)))
    return Outcome(
        checks=[
            Check(
                f"{bits}-bit lanes: the same bits on {WORKERS} workers at every rate of loss",
                len(found) == 1,
                ("all equal" if len(found) == 1 else f"{len(found)} different results")
                + f" in {calls} sums of {elements:,} floats",
            )
            for bits, found in digests.items()
        ],
        tables=[
            Table(
                f"{calls} sums of {elements:,} float32",
                (
                    "lanes", "loss, %", "packets sent", "of them again", "CRC-32 of the sums",
                    "different results",
                ),
                rows,
            )
        ],
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="same-bits",
    title="The same bits on every worker, whatever is lost",
    claim="Integer sums in a switch do not depend on the order of packets, and slots with a shadow copy "
    "survive loss: every worker holds the same result, bit for bit, and the same as without loss.",
    source="Sapio et al., Scaling Distributed Machine Learning with In-Network Aggregation, NSDI 2021, "
    "on packet loss",
    run=run,
    order=0,
)

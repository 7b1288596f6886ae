"""Training the demo's model to a given loss, with each way of reducing gradients, at several link speeds."""

from __future__ import annotations

import os
from dataclasses import asdict
from itertools import pairwise
from typing import Any, Final

from switchagg.experiments.base import Check, Experiment, Outcome, Plot, Series, Table
from switchagg.experiments.runner import Lab, Ran
from switchagg.experiments.training import COMPRESSORS, METHODS, train_all

RATES: Final = {"10Gbit": 1e10, "1Gbit": 1e9, "100Mbit": 1e8}
DENSE: Final = "dense, 32 bit"
WORDS: Final = 352  # a packet of an MTU of 1,500, as on real links

Runs = dict[str, dict[str, dict[str, Any]]]  # by rate and method, rank 0's


def run(lab: Lab) -> Outcome:
    """Trains with every method at every speed, the fastest links first."""
    from switchagg.demo.settings import Settings

    workers = 2 if lab.quick else 4
    settings = Settings(
        workers=workers,
        seed=lab.seed,
        rows=2048 if lab.quick else 16_384,
        dimension=16 if lab.quick else 32,
        hidden=64,
        vocabulary=512,
        batch=16 if lab.quick else 32,
        corpus_bytes=200_000 if lab.quick else 1_500_000,
    )
    steps = 6 if lab.quick else 60
    rates = {name: RATES[name] for name in (("1Gbit", "100Mbit") if lab.quick else RATES)}
    methods = [DENSE, "zero-skip, 8 bit", "top blocks, 5 %, EF"] if lab.quick else list(METHODS)
    given = {
        "settings": asdict(settings),
        "target": None,
        "steps": steps,
        "limit": 3 * steps,
        "every": 2,
        "thin": 2,
    }
    found: dict[str, Ran] = {}
    runs: Runs = {}
    for rate in rates:
        lab.say(f"links of {rate}")
        ran = lab.ranks(
            train_all,
            workers,
            {**given, "methods": methods},
            arguments=["--rate", rate],
            connect={"words": WORDS},
        )
        found[rate] = ran
        runs[rate] = ran.results[0]["runs"]
        given["target"] = ran.results[0]["target"]
        # How many steps a method takes does not depend on the links: one that fails once fails always.
        methods = [name for name in methods if runs[rate][name]["reached"]]
    return _outcome(found, runs, rates, steps)


def _seconds(runs: Runs, rate: str, method: str) -> float | None:
    """On the clock until the loss was reached; None where it was not."""
    one = runs[rate].get(method)
    return float(one["reached"][1]) if one and one["reached"] else None


def _gain(runs: Runs, rate: str, method: str) -> float:
    """How many times as fast as dense float32; 0 where the loss was not reached."""
    dense, seconds = _seconds(runs, rate, DENSE), _seconds(runs, rate, method)
    return dense / seconds if dense and seconds else 0.0


def _outcome(found: dict[str, Ran], runs: Runs, rates: dict[str, float], steps: int) -> Outcome:
    names = list(next(iter(runs.values())))
    first = next(iter(found.values())).results[0]
    fastest, slowest = max(rates, key=lambda name: rates[name]), min(rates, key=lambda name: rates[name])
    winners = {rate: max(names, key=lambda name, at=rate: _gain(runs, at, name)) for rate in rates}  # type: ignore[misc]
    return Outcome(
        checks=_checks(found, runs, rates, fastest, slowest),
        tables=[
            Table(
                f"Seconds to a held-out loss of {first['target']:.3f} nats a word, by speed of the links",
                ("method", *rates, *(f"x dense, {rate}" for rate in rates)),
                [
                    (
                        name,
                        *(_seconds(runs, rate, name) for rate in rates),
                        *(_gain(runs, rate, name) or None for rate in rates),
                    )
                    for name in names
                ],
                "First: "
                + "; ".join(
                    f"at {rate} {winner}, {_gain(runs, rate, winner):.1f} times as fast as dense float32"
                    for rate, winner in winners.items()
                )
                + ".",
            ),
            *(_costs(found, runs, rate, bits) for rate, bits in rates.items()),
        ],
        plots=[
            Plot(
                "seconds",
                f"Time to a loss of {first['target']:.2f}",
                "",
                "seconds",
                [
                    Series(f"links of {rate}", list(times), list(times.values()))
                    for rate in rates
                    if (times := {n: s for n in names if (s := _seconds(runs, rate, n)) is not None})
                ],
                kind="bars",
                log_y=True,
            ),
            *(
                Plot(
                    f"loss-{rate.lower()}",
                    f"Held-out loss by time, links of {rate}",
                    "seconds",
                    "nats a word",
                    [
                        Series(name, [x[1] for x in one["losses"][1:]], [x[2] for x in one["losses"][1:]])
                        for name, one in runs[rate].items()
                    ],
                    log_x=True,
                    lines=[("target", first["target"])],
                )
                for rate in (fastest, slowest)
            ),
        ],
        numbers={
            "parameters": first["parameters"],
            "target": first["target"],
            "winners": winners,
            "runs": runs,
        },
        notes=[
            f"The model has {first['parameters']:,} parameters; the target is what dense float32 has after "
            f"{steps} steps. All methods start from the same weights, see the same batches and use Adagrad "
            "with the same learning rate. The clock stands still while the loss is looked at.",
            "Dense and zero-skip are the session's own lanes; the other methods compress before the session "
            "does, in worker_lib.compress. Here all workers and the switch share "
            f"{len(os.sched_getaffinity(0))} cores. Where cores are busy and links are not, the cores "
            "decide.",
            *(_bound(runs, rate, bits) for rate, bits in rates.items()),
        ],
    )


def _busy(one: dict[str, Any], bits: float) -> float:
    """Share of the clock's time that a rank's link needs, in the direction that has more to carry."""
    return float(8 * max(one["wire_sent"], one["wire_received"]) / bits / one["seconds"])


def _bound(runs: Runs, rate: str, bits: float) -> str:
    """Who set the pace."""
    busy = {name: _busy(one, bits) for name, one in runs[rate].items()}
    seconds = sum(one["seconds"] for one in runs[rate].values())
    carried = sum(busy[name] * one["seconds"] for name, one in runs[rate].items())
    return (
        f"At {rate} the links carried packets for {carried / seconds:.0%} of all methods' time, and for "
        f"{busy[DENSE]:.0%} of dense float32's. For the rest of it the cores set the pace, or round trips."
    )


def _checks(
    found: dict[str, Ran], runs: Runs, rates: dict[str, float], fastest: str, slowest: str
) -> list[Check]:
    compressors = [name for name in COMPRESSORS if name in runs[fastest]]
    at_fastest = {name: _gain(runs, fastest, name) for name in compressors}
    slower = [name for name, gain in at_fastest.items() if gain < 1]
    best = max(compressors, key=lambda name: _gain(runs, slowest, name))
    gains = {rate: max(_gain(runs, rate, name) for name in compressors) for rate in rates}
    ordered = [gains[rate] for rate in sorted(rates, key=lambda name: rates[name])]
    unequal = [
        (rate, name)
        for rate, ran in found.items()
        for name in runs[rate]
        if len({result["runs"][name]["weights"] for result in ran.results}) > 1
    ]
    steps_differ = [
        name
        for name in runs[slowest]
        if len({runs[rate][name]["reached"][0] for rate in rates if runs[rate][name]["reached"]}) > 1
    ]
    return [
        Check(
            f"at {slowest} a compressor reaches the loss sooner than dense float32",
            gains[slowest] > 1,
            f"{best}: {gains[slowest]:.2f} times as fast",
        ),
        Check(
            f"at {fastest} most compressors reach it later than dense float32: compressing takes longer than "
            "it saves",
            2 * len(slower) > len(compressors),
            f"{len(slower)} of {len(compressors)} are slower, the best is {max(at_fastest.values()):.2f} "
            "times as fast",
        ),
        Check(
            "the faster the links, the less the best compressor gains",
            all(one > other for one, other in pairwise(ordered)),
            ", ".join(f"{gains[rate]:.2f} times at {rate}" for rate in rates),
        ),
        Check(
            "the links' speed changes no result: equal weights on all workers, equal steps at all speeds",
            not unequal and not steps_differ,
            "so it is" if not unequal and not steps_differ else f"weights {unequal}, steps {steps_differ}",
        ),
    ]


def _costs(found: dict[str, Ran], runs: Runs, rate: str, bits: float) -> Table:
    cores = len(os.sched_getaffinity(0))
    rows: list[tuple[Any, ...]] = []
    for name, one in runs[rate].items():
        steps, seconds = one["steps"], one["seconds"]
        cpu = sum(result["runs"][name]["cpu_seconds"] for result in found[rate].results)
        rows.append(
            (
                name,
                one["reached"][0] if one["reached"] else None,
                1e3 * seconds / steps,
                *(1e3 * one[part] / steps for part in ("compute", "compress", "network", "update")),
                max(one["wire_sent"], one["wire_received"]) / steps / 1e3,
                100 * _busy(one, bits),
                100 * cpu / seconds / cores,
            )
        )
    return Table(
        f"Links of {rate}: where a step's time goes at rank 0",
        (
            "method", "steps to loss", "ms a step", "gradient", "compress", "network", "Adagrad",
            "kB on a link", "link busy, %", "cores busy, %",
        ),
        rows,
        "Compress is all that a reduction takes besides sending, receiving and waiting (for packets, other "
        "ranks and a processor). kB: on a worker's link in the busier direction, a step, as Ethernet "
        "counts. Cores: by this run's processes, which may have had to share them.",
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="link-speeds",
    title="Which way of reducing gradients trains fastest, at which speed of links",
    claim="Compressing gradients shortens training where links are slow. At the speeds of a data centre it "
    "mostly does not, since compressing takes time too.",
    source="Agarwal, Wang, Venkataraman, Papailiopoulos, On the Utility of Gradient Compression in "
    "Distributed Training Systems, MLSys 2022, arXiv 2103.00543",
    run=run,
    order=300,
)

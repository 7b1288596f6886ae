"""Throughput of each way of reducing gradients of the demo's model, at several link speeds.

Most ways take the same few steps to the loss, at one learning rate for all, so this compares times of steps;
`race` has each way at its own rate, steps by several seeds, and a dense model. Most rows of
the gradient here are zero, and compressors skip them too: so like for like they compare with the session's
own narrow lanes with zero-skip, as one of the checks does.

    in every rank, for every way:
    clock on -> [batch, gradient, reduce, Adagrad] x `every` -> clock off -> rank 0: held-out loss; enough?

All ways start from the same weights and see the same batches. The first one, at the first speed, runs for a
set number of steps; its loss is then the target of all others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.demo import corpus, model
from switchagg.demo.settings import Settings
from switchagg.demo.worker import digest, held_out_batch
from switchagg.emulator.rates import wire_bytes
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.rank import say, switch_cpu_seconds
from switchagg.experiments.runner import RanksResult, Runner
from switchagg.processor_time import own_seconds
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

RATES: Final = {"10Gbit": 1e10, "1Gbit": 1e9, "100Mbit": 1e8}
DENSE: Final = "dense, 32 bit"
SKIPPING: Final = "zero-skip, 8 bit"
WORDS: Final = 352  # a packet of an MTU of 1,500, as on real links
_NETWORK: Final = ("wire", "wait")
_HEADERS: Final = wire_bytes(1000) - 1000

Floats = npt.NDArray[np.float32]
Reduce = Callable[[Any, Floats], None]
Runs = dict[str, dict[str, dict[str, Any]]]  # by rate and method, rank 0's


def _lanes(bits: int, blocks: str) -> Callable[[int], Reduce]:
    def reduce(session: Any, gradient: Floats) -> None:
        session.allreduce(gradient, op="avg", bits=bits, blocks=blocks)

    return lambda _: reduce


def _compressed(make: Callable[[Any, int], Any]) -> Callable[[int], Reduce]:
    def prepared(seed: int) -> Reduce:
        from worker_lib import compress

        compressor = make(compress, seed)

        def reduce(session: Any, gradient: Floats) -> None:
            try:
                session.allreduce(gradient, op="avg", compressor=compressor)
            except compress.RangeError:  # at all ranks alike; what comes next goes in full
                session.allreduce(gradient, op="avg", compressor=compressor)

        return reduce

    return prepared


METHODS: Final[Mapping[str, Callable[[int], Reduce]]] = {
    "dense, 32 bit": _lanes(32, "dense"),
    "dense, 16 bit": _lanes(16, "dense"),
    "dense, 8 bit": _lanes(8, "dense"),
    "zero-skip, 32 bit": _lanes(32, "sparse"),
    "zero-skip, 16 bit": _lanes(16, "sparse"),
    "zero-skip, 8 bit": _lanes(8, "sparse"),
    "dithering, 8-bit lanes": _compressed(lambda c, seed: c.Dithering(bits=8, block=1024, seed=seed)),
    "IntSGD, 8-bit lanes": _compressed(lambda c, seed: c.IntSGD(bits=8, seed=seed)),
    "modular, 8-bit lanes": _compressed(lambda c, seed: c.Modular(bits=8, seed=seed)),
    "top blocks, 5 %, EF": _compressed(lambda c, seed: c.ErrorFeedback(c.TopBlocks(tau=0.05, seed=seed))),
    "random blocks, 20 %, EF": _compressed(
        lambda c, seed: c.ErrorFeedback(c.RandomBlocks(tau=0.2, scaled=False, seed=seed))
    ),
    "top blocks, 5 %, 8 bit, EF": _compressed(
        lambda c, seed: c.ErrorFeedback(c.chain(c.TopBlocks(tau=0.05, seed=seed), c.SharedExponent(bits=8)))
    ),
}
"""Functions that make a way of reducing a gradient from a seed, by its name in the report."""

COMPRESSORS: Final = tuple(name for name in METHODS if not name.startswith(("dense", "zero-skip")))
"""The ways that compress before the session does."""


@dataclass(slots=True)
class Run:
    """One training of one rank.

    Attributes:
        losses: what rank 0 saw at each look, from step 0 on: step, seconds on the clock, held-out loss.
        reached: the first of them at or under the target; None: none was.
        steps: that were run.
        seconds: on the clock.
        compute, compress, network, update: seconds of these on this rank. Compress is all that a reduction
            takes besides sending, receiving and waiting.
        wire_sent, wire_received: bytes as Ethernet counts them.
        cpu_seconds: processor time of this rank; at rank 0 the switch's too.
        weights: digest of the weights at the end, which is to be the same on all ranks.
    """

    losses: list[tuple[int, float, float]] = field(default_factory=list)
    reached: tuple[int, float, float] | None = None
    steps: int = 0
    seconds: float = 0.0
    compute: float = 0.0
    compress: float = 0.0
    network: float = 0.0
    update: float = 0.0
    wire_sent: int = 0
    wire_received: int = 0
    cpu_seconds: float = 0.0
    weights: str = ""


def train_all(session: Any, given: dict[str, Any]) -> dict[str, Any]:
    """One rank: trains with every method of ``given["methods"]``; returns a `Run` of each as a dictionary.

    Args:
        given: settings (of the demo), methods, target (None: what the first method has after `steps`),
            steps, limit (steps after which a method has failed), every (steps between two looks), thin (one
            in so many held-out examples is looked at).
    """
    settings = Settings(**given["settings"])
    text = corpus.load(settings.corpus_bytes)
    held_out = held_out_batch(text.tokens, text.training, settings)
    held_out = model.Batch(held_out.rows[:: given["thin"]], held_out.targets[:: given["thin"]])
    target = given["target"]
    runs: dict[str, Any] = {}
    # The session learns how long its links' round trips are before the clock is ever on: whoever comes first
    # would pay for that.
    for _ in range(2):
        session.allreduce(np.ones(model.parameter_count(settings), np.float32), blocks="dense")
    for name in given["methods"]:
        limit = given["steps"] if target is None else given["limit"]
        run = _train(session, settings, text, held_out, name, target, limit, given["every"])
        if target is None:
            target = run.losses[-1][2] if session.rank == 0 else 0.0  # rank 0 is who looks
        if session.rank == 0:
            run.reached = next((look for look in run.losses if look[2] <= target), None)
            outcome = f"step {run.reached[0]}" if run.reached else f"not within {run.steps} steps"
            say(f"{name}: {outcome}, {run.seconds:.2f} s")
        runs[name] = asdict(run)
    return {"runs": runs, "target": target, "parameters": model.parameter_count(settings)}


def _train(
    session: Any,
    settings: Settings,
    text: corpus.Corpus,
    held_out: model.Batch,
    name: str,
    target: float | None,
    limit: int,
    every: int,
) -> Run:
    reduce = METHODS[name](settings.seed)
    flat = model.initial_parameters(settings)
    flat_gradient = np.zeros_like(flat)
    parameters, gradient = model.views(flat, settings), model.views(flat_gradient, settings)
    optimizer = model.Adagrad(settings)
    run = Run()
    first = session.rank * settings.batch

    def look() -> bool:
        """Looks at the loss, off the clock; returns True once rank 0 has seen enough."""
        enough = np.zeros(1, np.int32)
        if session.rank == 0:
            loss = model.loss(parameters, held_out)
            run.losses.append((run.steps, run.seconds, loss))
            enough[0] = target is not None and loss <= target
        session.broadcast(enough, root=0)
        return bool(enough[0])

    look()
    while run.steps < limit:
        session.barrier()
        before = session.stats()
        processor = own_seconds() + (switch_cpu_seconds() if session.rank == 0 else 0.0)
        began = time.perf_counter()
        reducing = 0.0
        for _ in range(min(every, limit - run.steps)):
            started = time.perf_counter()
            ends = model.global_batch(text.tokens, text.training, run.steps + 1, settings)
            batch = model.examples(text.tokens, ends[first : first + settings.batch], settings)
            model.loss_and_gradient(parameters, batch, gradient)
            computed = time.perf_counter()
            reduce(session, flat_gradient)
            reduced = time.perf_counter()
            optimizer.step(parameters, gradient)
            run.update += time.perf_counter() - reduced
            run.compute += computed - started
            reducing += reduced - computed
            run.steps += 1
        run.seconds += time.perf_counter() - began
        processor = own_seconds() + (switch_cpu_seconds() if session.rank == 0 else 0.0) - processor
        run.cpu_seconds += processor
        _account(run, before, session.stats(), reducing)
        if look():
            break
    run.weights = digest(flat)
    return run


def _account(run: Run, before: Mapping[str, Any], after: Mapping[str, Any], reducing: float) -> None:
    """Adds what the session counted between two looks."""
    network = sum(after["seconds"][part] - before["seconds"][part] for part in _NETWORK)
    run.network += network
    run.compress += reducing - network
    for way in ("sent", "received"):
        payload = after[f"bytes_{way}"] - before[f"bytes_{way}"]
        packets = after[f"packets_{way}"] - before[f"packets_{way}"]
        total = getattr(run, f"wire_{way}") + payload + packets * _HEADERS
        setattr(run, f"wire_{way}", total)


def run(runner: Runner) -> Outcome:
    """Trains with every method at every speed, the fastest links first."""
    workers = 2 if runner.quick else 4
    settings = Settings(
        workers=workers,
        seed=runner.seed,
        rows=2048 if runner.quick else 16_384,
        dimension=16 if runner.quick else 32,
        hidden=64,
        vocabulary=512,
        batch=16 if runner.quick else 32,
        corpus_bytes=200_000 if runner.quick else 1_500_000,
    )
    steps = 6 if runner.quick else 60
    rates = {name: RATES[name] for name in (("1Gbit", "100Mbit") if runner.quick else RATES)}
    methods = [DENSE, "zero-skip, 8 bit", "top blocks, 5 %, EF"] if runner.quick else list(METHODS)
    given = {
        "settings": asdict(settings),
        "target": None,
        "steps": steps,
        "limit": 3 * steps,
        "every": 2,
        "thin": 2,
    }
    found: dict[str, RanksResult] = {}
    runs: Runs = {}
    for rate in rates:
        runner.say(f"links of {rate}")
        ran = runner.ranks(
            train_all,
            workers,
            {**given, "methods": methods},
            arguments=["--rate", rate],
            connect={"words": WORDS},
        )
        found[rate] = ran
        runs[rate] = ran.results[0]["runs"]
        given["target"] = ran.results[0]["target"]
        # A method's number of steps does not depend on the links: one that fails once fails always.
        methods = [name for name in methods if runs[rate][name]["reached"]]
    return _outcome(found, runs, rates, steps)


def _seconds(runs: Runs, rate: str, method: str) -> float | None:
    """On the clock until the loss was reached; None where it was not."""
    one = runs[rate].get(method)
    return float(one["reached"][1]) if one and one["reached"] else None


def _gain(runs: Runs, rate: str, method: str) -> float:
    """Speed as a multiple of dense float32's; 0 where the loss was not reached."""
    dense, seconds = _seconds(runs, rate, DENSE), _seconds(runs, rate, method)
    return dense / seconds if dense and seconds else 0.0


def _outcome(found: dict[str, RanksResult], runs: Runs, rates: dict[str, float], steps: int) -> Outcome:
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
    """A sentence on the resource that was the limit: links, or cores."""
    busy = {name: _busy(one, bits) for name, one in runs[rate].items()}
    seconds = sum(one["seconds"] for one in runs[rate].values())
    carried = sum(busy[name] * one["seconds"] for name, one in runs[rate].items())
    return (
        f"At {rate} the links carried packets for {carried / seconds:.0%} of all methods' time, and for "
        f"{busy[DENSE]:.0%} of dense float32's. For the rest of it the cores set the pace, or round trips."
    )


def _checks(
    found: dict[str, RanksResult], runs: Runs, rates: dict[str, float], fastest: str, slowest: str
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
            f"like for like: at some speed a compressor reaches it sooner than {SKIPPING}, which skips the "
            "same "
            "zeros",
            any(
                _gain(runs, rate, name) > _gain(runs, rate, SKIPPING)
                for rate in rates
                for name in compressors
            ),
            ", ".join(
                f"{gains[rate] / max(_gain(runs, rate, SKIPPING), 1e-9):.2f} times as fast at {rate}"
                for rate in rates
            ),
        ),
        Check(
            "the links' speed changes no result: equal weights on all workers, equal steps at all speeds",
            not unequal and not steps_differ,
            "so it is" if not unequal and not steps_differ else f"weights {unequal}, steps {steps_differ}",
        ),
    ]


def _costs(found: dict[str, RanksResult], runs: Runs, rate: str, bits: float) -> Table:
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
    "mostly does not, since compressing takes time too. Here also: against narrow lanes that skip zeros.",
    source="Agarwal, Wang, Venkataraman, Papailiopoulos, On the Utility of Gradient Compression in "
    "Distributed Training Systems, MLSys 2022, arXiv 2103.00543",
    run=run,
    order=300,
)

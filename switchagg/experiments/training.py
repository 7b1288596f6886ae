"""Trains the demo's model in a rank's process, once for each way of reducing its gradients, to a given loss.

    clock on -> [batch, gradient, reduce, Adagrad] x `every` -> clock off -> rank 0: held-out loss; enough?

All ways start from the same weights and see the same batches. The first one, when no target is given, runs
for a set number of steps; the loss that it has then is the target of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.demo import corpus, model
from switchagg.demo.settings import Settings
from switchagg.demo.worker import digest, held_out_batch
from switchagg.emulator.rates import wire_bytes
from switchagg.experiments.rank_api import say, switch_cpu_seconds
from switchagg.processor_time import own_seconds

Floats = npt.NDArray[np.float32]
Reduce = Callable[[Any, Floats], None]

_NETWORK: Final = ("wire", "wait")
_HEADERS: Final = wire_bytes(1000) - 1000


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
"""Ways of reducing a gradient, by the name that is shown: from a seed to what does it."""

COMPRESSORS: Final = tuple(name for name in METHODS if not name.startswith(("dense", "zero-skip")))
"""Those that compress before the session does."""


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
        """Off the clock: whether rank 0 has seen enough."""
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

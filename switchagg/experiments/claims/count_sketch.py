"""FetchSGD: gradients as count sketches, which a switch adds as it adds vectors, with all state in the sum.

    worker i    S_i = sketch of its gradient: each element, with a random sign, in a bucket of each row
    switch      S = mean of S_i, an ordinary sum, since a sketch is linear
    everyone    V <- 0.9 V + S,   E <- E + rate V               momentum and error, as sketches
                D = the k largest of what E says of each element, the median over rows
                x <- x - D;  V and E are zeroed in the buckets of D's elements

The paper's case: many clients with a few samples of one class each, of which some take part in a step, and
so seldom that none can keep a memory. There local top-k has no error feedback, and FedAvg sees one class.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.experiments.claims.race import Dense
from switchagg.experiments.claims.training import SEEDS, Curve, Floats, Sums, Tuned, rates_note, tuned_ways
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

CLIENTS: Final = 10  # that take part in a step
EACH: Final = 5  # samples of a client
STEPS: Final = 600
LOOK: Final = 60  # steps between two looks at the loss
MOMENTUM: Final = 0.9
ROWS: Final = 3
SHARES: Final = (0.2, 0.1, 0.05)  # of a vector's numbers: the size of a sketch
PARTS: Final = (1.0, 2.0)  # k, as multiples of a row's buckets
LOCAL: Final = 2  # steps of FedAvg's clients
RATES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
WORKERS: Final = 4  # of the part through the switch
LOST: Final = 0.02
NEAR: Final = 1e-6  # what lanes of 32 bits may differ by, of the largest number


class Clients(Dense):
    """Digits spread over clients, each with five images of one digit; in a step ten take part."""

    title = "clients"
    sizes = (64, 128, 10)

    def __init__(self) -> None:
        super().__init__()
        order = np.argsort(self._train[1], kind="stable")
        self._clients = order[: len(order) // EACH * EACH].reshape(-1, EACH)

    def members(self, seed: int, step: int) -> npt.NDArray[np.int64]:
        """Returns the samples of a step's clients, one row each."""
        rng = np.random.default_rng((seed, 1, step))
        return self._clients[rng.choice(len(self._clients), CLIENTS, replace=False)]


Step = Callable[[Floats, int, float], float]
"""A step of a way of training: moves x, by the step's number and a rate; returns the bits that are sent."""
Make = Callable[[Clients, int], Step]


class CountSketch:
    """Sketches of vectors: three rows of buckets; an element is added to one in each row, with a sign.

    Attributes:
        size: numbers of a sketch.
        buckets: of each row and element, as indices into a sketch.
    """

    def __init__(self, elements: int, columns: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.size = ROWS * columns
        self.buckets = rng.integers(0, columns, (ROWS, elements)) + columns * np.arange(ROWS)[:, None]
        self._signs = rng.choice(np.array([-1, 1], np.float32), (ROWS, elements))

    def of(self, x: Floats) -> Floats:
        """Returns the sketch of a vector."""
        found = np.bincount(self.buckets.reshape(-1), (self._signs * x).reshape(-1), self.size)
        return found.astype(np.float32)

    def estimate(self, sketch: Floats) -> Floats:
        """Returns what a sketch says of each element: the median over rows."""
        a, b, c = sketch[self.buckets] * self._signs
        median: Floats = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
        return median


class FetchSGD:
    """Momentum and error as sketches, which follow from the sums and so are the same at all workers.

    Args:
        k: elements that move in a step.
    """

    def __init__(self, sketch: CountSketch, k: int) -> None:
        self._sketch, self._k = sketch, k
        self._momentum, self._error = (np.zeros(sketch.size, np.float32) for _ in range(2))

    def step(self, x: Floats, mean: Floats, rate: float) -> None:
        """Moves x, by the mean of the workers' sketches."""
        self._momentum = np.float32(MOMENTUM) * self._momentum + mean
        self._error += np.float32(rate) * self._momentum
        found = self._sketch.estimate(self._error)
        largest = np.argpartition(np.abs(found), -self._k)[-self._k :]
        x[largest] -= found[largest]
        for each in (self._momentum, self._error):
            each[self._sketch.buckets[:, largest]] = 0


def server_of(task: Clients, share: float, part: float, seed: int) -> tuple[CountSketch, FetchSGD]:
    """Returns a sketch of this share of a vector's numbers, and FetchSGD, k being part of its columns."""
    columns = round(share * task.dim / ROWS)
    sketch = CountSketch(task.dim, columns, seed)
    return sketch, FetchSGD(sketch, round(part * columns))


def fetched(share: float, part: float) -> Make:
    """FetchSGD. The mean of sketches is the sketch of the mean, which takes less time to find."""

    def make(task: Clients, seed: int) -> Step:
        sketch, server = server_of(task, share, part, seed)

        def step(x: Floats, number: int, rate: float) -> float:
            mean = task.gradient_of(x, task.members(seed, number).reshape(-1))
            server.step(x, sketch.of(mean), rate)
            return 32.0 * sketch.size

        return step

    return make


def summed(reducer: Callable[[Clients], Callable[[Floats], tuple[Floats, float]]]) -> Make:
    """Momentum SGD on means of gradients; the reducer returns a mean and what a client sends, in bits."""

    def make(task: Clients, seed: int) -> Step:
        reduce, velocity = reducer(task), np.zeros(task.dim, np.float32)

        def step(x: Floats, number: int, rate: float) -> float:
            mean, bits = reduce(task.gradient_of(x, task.members(seed, number)))
            velocity[:] = np.float32(MOMENTUM) * velocity + mean
            x -= np.float32(rate) * velocity
            return bits

        return step

    return make


def largest(share: float) -> Callable[[Clients], Callable[[Floats], tuple[Floats, float]]]:
    """Local top-k without a memory, of this share of the numbers; a switch sends what any client chose."""

    def reducer(task: Clients) -> Callable[[Floats], tuple[Floats, float]]:
        k = round(share * task.dim)

        def reduce(gradients: Floats) -> tuple[Floats, float]:
            sizes = np.abs(gradients)
            gradients *= sizes >= np.partition(sizes, -k, axis=1)[:, -k, None]
            return gradients.mean(axis=0), 32.0 * np.count_nonzero(gradients.any(axis=0))

        return reduce

    return reducer


def compressed(
    make: Callable[[], Any] | None,
) -> Callable[[Clients], Callable[[Floats], tuple[Floats, float]]]:
    """A compressor of the library with its memory, if any, at each of the ten workers; None: exact means."""

    def reducer(task: Clients) -> Callable[[Floats], tuple[Floats, float]]:
        sums = Sums(make, task.shapes, CLIENTS)

        def reduce(gradients: Floats) -> tuple[Floats, float]:
            before = sums.bits
            return sums.mean(gradients), sums.bits - before

        return reduce

    return reducer


def averaged(share: float) -> Make:
    """FedAvg: local steps, an outer momentum, and as many fewer rounds as clients send this share."""

    def make(task: Clients, seed: int) -> Step:
        velocity = np.zeros(task.dim, np.float32)

        def step(x: Floats, number: int, rate: float) -> float:
            if number % round(1 / share):
                return 0.0
            ends = []
            for samples in task.members(seed, number):
                y = x.copy()
                for _ in range(LOCAL):
                    y -= np.float32(rate) * task.gradient_of(y, samples)
                ends.append(y)
            velocity[:] = np.float32(MOMENTUM) * velocity + (x - np.mean(ends, axis=0))
            x -= velocity
            return 32.0 * task.dim

        return step

    return make


def train(task: Clients, rate: float, seed: int, make: Make, steps: int) -> tuple[Curve, float]:
    """Trains, the rate falling to 0; returns the held-out losses, and the bits a step that a client sends."""
    x, step = task.start(seed), make(task, seed)
    curve, bits = [(0, task.loss(x))], 0.0
    for number in range(1, steps + 1):
        bits += step(x, number, rate * (1 - (number - 1) / steps))
        if number % min(LOOK, steps) == 0:
            curve.append((number, task.loss(x)))
    return curve, bits / steps


def through_switch(session: Any, given: dict[str, Any]) -> dict[str, Any]:
    """FetchSGD with a client a rank, its sketches summed by the session."""
    task, seed = Clients(), given["seed"]
    x = task.start(seed)
    sketch, server = server_of(task, SHARES[0], 1.0, seed)
    off = 0.0
    for number in range(given["steps"]):
        samples = task.members(seed, number)[: session.world_size]
        mean = sketch.of(task.gradient_of(x, samples[session.rank]))
        session.allreduce(mean, op="avg")
        expected = sketch.of(task.gradient_of(x, samples.reshape(-1)))
        off = max(off, float(np.abs(mean - expected).max() / np.abs(expected).max()))
        server.step(x, mean, 0.1)
    return {"crc": zlib.crc32(x.tobytes()), "off": off, "loss": task.loss(x)}


def _low_rank() -> Any:
    from worker_lib.compress import PowerSGD

    return PowerSGD(rank=2)


def _low_rank_fed_back() -> Any:
    from worker_lib.compress import ErrorFeedback

    return ErrorFeedback(_low_rank())


EXACT: Final = "exact sums"
FEWER: Final[dict[str, Make]] = {
    "local top-k, 2%": summed(largest(0.02)),
    "local top-k, 0.5%": summed(largest(0.005)),
}
"""Local top-k that sends about as much as a sketch through a switch, where what any client chose is sent."""
POWER: Final[dict[str, Make]] = {
    "PowerSGD, rank 2": summed(compressed(_low_rank)),
    "PowerSGD, rank 2, EF": summed(compressed(_low_rank_fed_back)),
}


def _names(shares: tuple[float, ...]) -> dict[str, dict[float, list[str]]]:
    return {
        "FetchSGD": {s: [f"FetchSGD, {s:.0%}, k = {p:g} columns" for p in PARTS] for s in shares},
        "local top-k": {s: [f"local top-k, {s:.0%}"] for s in shares},
        "FedAvg": {s: [f"FedAvg, {s:.0%}"] for s in shares},
    }


def run(runner: Runner) -> Outcome:
    """Every way at its best rate, by size of what a client sends; then sketches through the switch."""
    steps, seeds = (30, 1) if runner.quick else (STEPS, SEEDS)
    shares = SHARES[:1] if runner.quick else SHARES
    names = _names(shares)
    makes: dict[str, Make] = {EXACT: summed(compressed(None))}
    for share in shares:
        for name, part in zip(names["FetchSGD"][share], PARTS, strict=True):
            makes[name] = fetched(share, part)
        makes[names["local top-k"][share][0]] = summed(largest(share))
        makes[names["FedAvg"][share][0]] = averaged(share)
    makes |= FEWER | POWER
    ways = {name: partial(train, make=make, steps=steps) for name, make in makes.items()}
    found = tuned_ways(runner, ways, RATES[2:3] if runner.quick else RATES, seeds, Clients)
    best = {
        method: {share: min((found[n] for n in each), key=_loss) for share, each in by_share.items()}
        for method, by_share in names.items()
    }
    size = found[EXACT].bits / 32
    sent = {name: share for each in names.values() for share, those in each.items() for name in those}
    checks = [
        Check(
            f"{share:.0%} of the numbers: FetchSGD ends at a lower loss than {other} that sends as many",
            _loss(best["FetchSGD"][share]) < _loss(best[other][share]),
            f"{best['FetchSGD'][share].loss:.4f} and {best[other][share].loss:.4f}",
        )
        for share in shares
        for other in ("local top-k", "FedAvg")
    ]
    tops = [each for name, each in found.items() if name.startswith("local top-k")]
    for other, rivals in (("local top-k", tops), ("PowerSGD", [found[name] for name in POWER])):
        told = [f"{each.loss:.4f} ({each.bits / size:.2f} bits)" for each in rivals]
        own = [f"{each.loss:.4f} ({each.bits / size:.2f} bits)" for each in best["FetchSGD"].values()]
        checks.append(
            Check(
                f"Counted through a switch, at some size it ends lower than {other} that sends no more (this "
                "is ours)",
                any(_beats(each, rivals) for each in best["FetchSGD"].values()),
                f"{', '.join(own)} against {', '.join(told)}",
            )
        )
    ran = runner.ranks(
        through_switch,
        WORKERS,
        {"seed": runner.seed, "steps": 3 if runner.quick else 20},
        arguments=["--loss", str(LOST)],
    ).results
    checks.append(
        Check(
            f"Through a switch with {LOST:.0%} loss the mean of {WORKERS} ranks' sketches is the sketch of "
            f"their mean, within {NEAR:g}, and weights are the same to the bit",
            len({each["crc"] for each in ran}) == 1 and max(each["off"] for each in ran) <= NEAR,
            f"{max(each['off'] for each in ran):.1e} of the largest number",
        )
    )
    return Outcome(
        checks=checks,
        tables=[
            Table(
                f"Perceptron on digits, {CLIENTS} clients a step, each of {EACH} images of one digit, "
                f"{steps} steps",
                ("way", "rate", "held-out loss, mean", "by seed", "share of the numbers", "bits, switch"),
                [
                    (name, e.rate, e.loss, e.spread, sent.get(name), e.bits / size)
                    for name, e in found.items()
                ],
                "Share of the numbers that a client sends, by the paper's count: the places of the largest "
                "are free. Bits an element and step through a switch: of what is not zero at all clients, "
                "norms included, bitmaps not.",
            )
        ],
        plots=[
            Plot(
                "loss-by-bits",
                "Held-out loss at the end by what a client sends",
                "bits an element and step",
                "nats",
                [
                    Series(
                        f"{method}, by the paper's count",
                        [32 * share for share in by_share],
                        [each.loss for each in by_share.values()],
                    )
                    for method, by_share in best.items()
                ]
                + [
                    Series(f"{name}, switch", [found[name].bits / size], [found[name].loss], style="points")
                    for name in (EXACT, *FEWER, *POWER)
                ],
                log_x=True,
                log_y=True,
            )
        ],
        numbers={name: {"loss": each.loss, "bits": each.bits} for name, each in found.items()},
        notes=[
            "But for the last statement all workers are in one process; nothing is sent. Rates fall to 0 "
            "over the run.",
            f"{rates_note('way', RATES)}; of FetchSGD's k, the best is compared. FedAvg's rounds are as many "
            f"fewer as it sends, each of {LOCAL} local steps.",
            "EF: a memory at each of the ten workers, whichever client it has; a client, which takes part in "
            "a step of 27, could not keep one.",
        ],
    )


def _loss(way: Tuned) -> float:
    return way.loss if np.isfinite(way.loss) else np.inf


def _beats(way: Tuned, rivals: list[Tuned]) -> bool:
    """True if some rivals send no more, and all of these end at a higher loss."""
    losses = [_loss(each) for each in rivals if each.bits <= way.bits]
    return bool(losses) and _loss(way) < min(losses)


EXPERIMENT = Experiment(
    name="count-sketch",
    title="Count sketches instead of gradients",
    claim="Where clients with few samples of one class take part too seldom to keep a memory, FetchSGD, "
    "whose momentum and error are in the sum of count sketches, trains to a better model than local top-k "
    "and FedAvg with as many bytes.",
    source="Rothchild et al., FetchSGD: Communication-Efficient Federated Learning with Sketching, ICML "
    "2020, arXiv 2007.07682, Algorithm 1",
    run=run,
    needs=("sklearn",),
    order=245,
)

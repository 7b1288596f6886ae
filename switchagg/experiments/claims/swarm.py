"""SwarmSGD: pairs that average in 8 bits after local steps reach the accuracy of all-reduce at every step."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

WORKERS: Final = 6
LOCAL_STEPS: Final = 4
RATE: Final = 0.2
BATCH: Final = 16
HIDDEN: Final = 32
MARGIN: Final = 0.01  # of accuracy that counts as the same
WORDS: Final = 128  # a packet
EVALUATIONS: Final = 15

METHODS: Final[dict[str, dict[str, Any]]] = {
    "all-reduce, float32": {},
    "SwarmSGD, float64": {"bits": None, "non_blocking": True},
    "SwarmSGD, 8 bits": {"bits": 8, "non_blocking": True},
    "SwarmSGD, 8 bits, blocking": {"bits": 8, "non_blocking": False},
}
CLAIMED: Final = "SwarmSGD, 8 bits"
BASELINE: Final = "all-reduce, float32"


class Perceptron:
    """64 pixels, one hidden layer of tanh, 10 digits, cross-entropy: `switchagg.algorithms.base.Problem`'s
    parts that a stochastic method asks for."""

    def __init__(self, pixels: Any, digits: Any) -> None:
        self.pixels, self.digits = pixels, digits
        self.sizes = [(pixels.shape[1], HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
        self.dim = sum(int(np.prod(size)) for size in self.sizes)
        self.samples = len(pixels)

    def parts(self, x: Any) -> list[Any]:
        cuts = np.cumsum([int(np.prod(size)) for size in self.sizes])[:-1]
        return [part.reshape(size) for part, size in zip(np.split(x, cuts), self.sizes, strict=True)]

    def start(self, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        parts = [rng.standard_normal(size) / np.sqrt(size[0]) * (len(size) == 2) for size in self.sizes]
        return np.concatenate([part.reshape(-1) for part in parts])

    def batch_gradient(self, x: Any, indices: Any) -> Any:
        first, offset, second, last = self.parts(x)
        pixels, digits = self.pixels[indices], self.digits[indices]
        hidden = np.tanh(pixels @ first + offset)
        scores = hidden @ second + last
        scores -= scores.max(axis=1, keepdims=True)
        slope = np.exp(scores)
        slope /= slope.sum(axis=1, keepdims=True)
        slope[np.arange(len(digits)), digits] -= 1
        slope /= len(digits)
        back = slope @ second.T * (1 - hidden**2)
        grads = [pixels.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]
        return np.concatenate([grad.reshape(-1) for grad in grads])

    def error(self, x: Any, pixels: Any, digits: Any) -> float:
        """Share of images that are taken for another digit."""
        first, offset, second, last = self.parts(x)
        return float(((np.tanh(pixels @ first + offset) @ second + last).argmax(axis=1) != digits).mean())


def train(session: Any, given: dict[str, Any]) -> dict[str, Any]:
    """One rank: every method with every seed; accuracies on images that nobody trains with, and traffic."""
    from sklearn.datasets import load_digits

    from switchagg.algorithms.base import Log
    from switchagg.algorithms.swarm import Meetings
    from switchagg.experiments.rank import say

    images = load_digits()
    out: dict[str, Any] = {name: [] for name in METHODS}
    for seed in given["seeds"]:
        places = np.random.default_rng(seed).permutation(len(images.target))
        pixels, digits = images.data[places] / 16.0, images.target[places]
        test = len(places) // 4
        mine = np.array_split(np.arange(test, len(places)), session.world_size)[session.rank]
        problem = Perceptron(pixels[mine], digits[mine])
        for name, settings in METHODS.items():
            if session.rank == 0:
                say(f"seed {seed}: {name}")
            log = Log(
                every=max(1, given["rounds"] // EVALUATIONS),
                objective=partial(problem.error, pixels=pixels[:test], digits=digits[:test]),
            )
            met = Meetings()
            mean = _run(problem, session, given["rounds"], seed, log, settings, met)
            last = log.records[-1]
            out[name].append(
                {
                    "accuracy": 1 - problem.error(mean, pixels[:test], digits[:test]),
                    "curve": [(r.step, 1 - (r.loss or 0.0)) for r in log.records],
                    "payload": last.payload_bits,
                    "wire": last.wire_bytes_sent,
                    "seconds": last.seconds,
                    "pairs": met.pairs,
                    "misses": met.misses,
                }
            )
    return out


def _run(
    problem: Any, session: Any, rounds: int, seed: int, log: Any, settings: dict[str, Any], met: Any
) -> Any:
    from switchagg.algorithms import swarm

    x = problem.start(seed)
    if settings:
        return swarm.run(
            problem, session, steps=rounds, rate=RATE, local_steps=LOCAL_STEPS, batch=BATCH, seed=seed,
            spread=0.5, log=log, x0=x, meetings=met, **settings,
        )  # fmt: skip
    random = np.random.default_rng((seed, 3, session.rank))
    log.begin(x, session)
    for step in range(1, rounds + 1):
        for _ in range(LOCAL_STEPS):
            slope = problem.batch_gradient(x, random.choice(problem.samples, BATCH, replace=False))
            x = x - RATE * session.allreduce(slope.astype(np.float32), op="avg", blocks="dense")
            log.payload(32 * x.size)
        log.step(step, x, last=step == rounds)
    return x


def run(runner: Runner) -> Outcome:
    """Trains with all methods and seeds, and compares the means."""
    seeds = [runner.seed + i for i in range(1 if runner.quick else 3)]
    rounds = 10 if runner.quick else 300
    given = {"seeds": seeds, "rounds": rounds}
    results = runner.ranks(train, WORKERS, given, connect={"words": WORDS}).results
    means = {name: float(np.mean([run["accuracy"] for run in results[0][name]])) for name in METHODS}
    rows: list[tuple[Any, ...]] = []
    series: list[Series] = []
    for name in METHODS:
        runs = [run for result in results for run in result[name]]
        pairs = sum(run["pairs"] for run in runs)
        rows.append(
            (
                name,
                100 * means[name],
                100 * min(run["accuracy"] for run in runs),
                sum(run["payload"] for run in runs) / len(runs) / 8e3,
                sum(run["wire"] for run in runs) / len(runs) / 1e3,
                100 * sum(run["misses"] for run in runs) / pairs if pairs else None,
            )
        )
        curves = np.array([[point[1] for point in run["curve"]] for run in runs])
        steps = [point[0] * LOCAL_STEPS for point in runs[0]["curve"]]
        series.append(Series(name, steps, curves.mean(axis=0).tolist()))
    apart = means[CLAIMED] - means[BASELINE]
    return Outcome(
        checks=[
            Check(
                f"{CLAIMED}, with {LOCAL_STEPS} local steps: accuracy within {100 * MARGIN:g} point of "
                "all-reduce's, or better",
                apart >= -MARGIN,
                f"{means[CLAIMED]:.2%} against {means[BASELINE]:.2%}, mean of {len(seeds)} seeds",
            )
        ],
        tables=[
            Table(
                f"Digits, {WORKERS} workers, {rounds * LOCAL_STEPS} steps of batches of {BATCH}",
                (
                    "method",
                    "accuracy, %",
                    "worst seed, %",
                    "kB sent by a worker",
                    "kB on the wire, up",
                    "averagings in full, %",
                ),
                rows,
                "Accuracy of the mean model on a quarter of the images, which nobody trains with. Averagings "
                "in full: of pairs too far apart for their lanes.",
            )
        ],
        plots=[
            Plot(
                "accuracy",
                "Accuracy of a worker's own model, mean of workers and seeds",
                "gradient steps",
                "accuracy on images not trained with",
                series,
            )
        ],
    )


EXPERIMENT = Experiment(
    name="swarm",
    title="Random pairs that average in 8 bits",
    claim="SwarmSGD, in which random pairs average their quantized models after some local steps and nobody "
    "waits, matches the accuracy of training with full-precision all-reduce at every step.",
    source="Nadiradze et al., Asynchronous Decentralized SGD with Quantized and Local Updates, NeurIPS 2021, "
    "arXiv 1910.12308, experiments",
    run=run,
    needs=("sklearn",),
    order=210,
)

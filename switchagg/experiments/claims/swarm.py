"""SwarmSGD: pairs that average in 8 bits after local steps reach the accuracy of all-reduce at every step.

Both sides take the best of some rates, found in one process, on a seed of their own. Data are shuffled, as in
the paper, and sorted. A worker that is slow shows what waits for it: pairs are drawn before the run, so that
a partner of the slow one waits, and the partner's next partner. In the paper nobody waits, as a worker takes
whoever is there.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

import numpy as np

from switchagg.experiments import data
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

WORKERS: Final = 6
LOCAL_STEPS: Final = 4
RATES: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
SLOW: Final = 0.004  # seconds that the slow worker's gradient takes longer
SLOW_ROUNDS: Final = 60
ORDERS: Final = ("shuffled", "sorted")
BATCH: Final = 16
HIDDEN: Final = 32
MARGIN: Final = 0.01  # of accuracy that counts as the same
WORDS: Final = 128  # a packet
EVALUATIONS: Final = 15

ALONE: Final = "averaged once, at the end"
TOGETHER: Final = "averaged by all, every round"
LINK: Final = ["--rate", "100Mbit", "--delay", "0.005"]
LINK_NAME: Final = "links of 0.1 Gb/s, 10 ms away"
PACE_ROUNDS: Final = 24
METHODS: Final[dict[str, dict[str, Any]]] = {
    "all-reduce, float32": {},
    "SwarmSGD, float64": {"bits": None, "non_blocking": True},
    "SwarmSGD, 8 bits": {"bits": 8, "non_blocking": True},
    "SwarmSGD, 8 bits, blocking": {"bits": 8, "non_blocking": False},
    TOGETHER: {},
    ALONE: {},
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
        return parts_of(self.sizes, x)

    def start(self, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        parts = [rng.standard_normal(size) / np.sqrt(size[0]) * (len(size) == 2) for size in self.sizes]
        return np.concatenate([part.reshape(-1) for part in parts])

    def batch_gradient(self, x: Any, indices: Any) -> Any:
        return gradients(self.sizes, x, self.pixels[indices], self.digits[indices])

    def error(self, x: Any, pixels: Any, digits: Any) -> float:
        """Share of images that are taken for another digit."""
        first, offset, second, last = self.parts(x)
        return float(((np.tanh(pixels @ first + offset) @ second + last).argmax(axis=1) != digits).mean())


def parts_of(sizes: Any, x: Any) -> list[Any]:
    """Returns a model's tensors, or those of several models: shapes (*x.shape[:-1], *size)."""
    cuts = np.cumsum([int(np.prod(size)) for size in sizes])[:-1]
    pieces = np.split(x, cuts, axis=-1)
    return [p.reshape(*x.shape[:-1], *size) for p, size in zip(pieces, sizes, strict=True)]


def gradients(sizes: Any, x: Any, pixels: Any, digits: Any) -> Any:
    """Returns the gradient of a batch, or of several models each with a batch of its own.

    Args:
        sizes: of the model's tensors.
        x: shape (d,) or (n, d).
        pixels: shape (batch, 64) or (n, batch, 64).
        digits: shape (batch,) or (n, batch).
    """
    first, offset, second, last = parts_of(sizes, x)
    hidden = np.tanh(pixels @ first + offset[..., None, :])
    scores = hidden @ second + last[..., None, :]
    scores -= scores.max(axis=-1, keepdims=True)
    slope = np.exp(scores)
    slope /= slope.sum(axis=-1, keepdims=True)
    slope -= np.eye(scores.shape[-1])[digits]
    slope /= digits.shape[-1]
    back = slope @ second.swapaxes(-1, -2) * (1 - hidden**2)
    grads = [
        pixels.swapaxes(-1, -2) @ back,
        back.sum(axis=-2),
        hidden.swapaxes(-1, -2) @ slope,
        slope.sum(axis=-2),
    ]
    return np.concatenate([grad.reshape(*x.shape[:-1], -1) for grad in grads], axis=-1)


class Slow:
    """A problem whose gradients take longer."""

    def __init__(self, problem: Perceptron) -> None:
        self.dim, self.samples = problem.dim, problem.samples
        self._problem = problem

    def batch_gradient(self, x: Any, indices: Any) -> Any:
        time.sleep(SLOW)
        return self._problem.batch_gradient(x, indices)


def shares(seed: int, order: str, workers: int) -> tuple[list[Perceptron], Any, Any]:
    """Returns every worker's problem, and pixels and digits that nobody trains with.

    Args:
        order: ``"shuffled"``, or ``"sorted"``: each worker has two or three digits.
    """
    pixels, digits = data.digits()
    places = np.random.default_rng(seed).permutation(len(digits))
    test = len(places) // 4
    rest = places[test:]
    if order == "sorted":
        rest = rest[np.argsort(digits[rest], kind="stable")]
    pixels = pixels / 16.0
    parts = [Perceptron(pixels[mine], digits[mine]) for mine in np.array_split(rest, workers)]
    return parts, pixels[places[:test]], digits[places[:test]]


def best_rate(kind: str, order: str, rounds: int, seed: int, workers: int) -> float:
    """Returns the rate of the best accuracy in one process: all workers in turns, models in full precision.

    Args:
        kind: ``"all-reduce"``, ``"swarm"``, ``"together"`` or ``"alone"``.
    """
    parts, pixels, digits = shares(seed, order, workers)
    sizes = parts[0].sizes

    def accuracy(rate: float) -> float:
        random = np.random.default_rng(seed)
        xs = np.stack([parts[0].start(seed)] * workers)
        for _ in range(rounds):
            before = xs.copy()
            for _ in range(LOCAL_STEPS):
                chosen = [random.choice(part.samples, BATCH, replace=False) for part in parts]
                batches = [(part.pixels[i], part.digits[i]) for part, i in zip(parts, chosen, strict=True)]
                slopes = gradients(sizes, xs, *map(np.stack, zip(*batches, strict=True)))
                xs = xs - rate * (slopes.mean(axis=0) if kind == "all-reduce" else slopes)
            if kind == "together":
                xs[:] = xs.mean(axis=0)
            if kind == "swarm":  # models travel as they were before the local steps
                order = random.permutation(workers)
                for one, other in zip(order[0::2], order[1::2], strict=False):
                    half = (before[other] - before[one]) / 2
                    xs[one] += half
                    xs[other] -= half
        return 1 - parts[0].error(xs.mean(axis=0), pixels, digits)

    return max(RATES, key=accuracy)


def train(session: Any, given: dict[str, Any]) -> dict[str, Any]:
    """One rank: every method with every seed and order; accuracies on other images, traffic, and times."""
    from switchagg.algorithms.base import Log
    from switchagg.algorithms.swarm import Meetings
    from switchagg.experiments.rank import say

    out: dict[str, Any] = {}
    for order in given["orders"]:
        for seed in given["seeds"]:
            parts, pixels, digits = shares(seed, order, session.world_size)
            problem = parts[session.rank]
            for name, settings in METHODS.items():
                if session.rank == 0:
                    say(f"{order}, seed {seed}: {name}")
                log = Log(
                    every=max(1, given["rounds"] // EVALUATIONS),
                    objective=partial(problem.error, pixels=pixels, digits=digits),
                )
                met = Meetings()
                rate = given["rates"][f"{kind_of(name)}, {order}"]
                mean = _run(problem, session, given["rounds"], seed, log, name, settings, met, rate)
                last = log.records[-1]
                out.setdefault(f"{name}, {order}", []).append(
                    {
                        "accuracy": 1 - problem.error(mean, pixels, digits),
                        "curve": [(r.step, 1 - (r.loss or 0.0)) for r in log.records],
                        "payload": last.payload_bits,
                        "wire": last.wire_bytes_sent,
                        "pairs": met.pairs,
                        "misses": met.misses,
                    }
                )
    parts, _, _ = shares(given["seeds"][0], "shuffled", session.world_size)
    times: dict[str, list[float]] = {}
    for name in (BASELINE, CLAIMED):
        for slow in (False, True):
            plain = parts[session.rank]
            problem = Slow(plain) if slow and session.rank == 0 else plain
            log = Log(every=given["slow_rounds"])
            session.barrier()
            _run(
                problem, session, given["slow_rounds"], 1, log, name, METHODS[name], Meetings(), 0.1,
                start=plain.start(1),
            )  # fmt: skip
            times.setdefault(name, []).append(log.records[-1].seconds)
    out["times"] = times
    return out


def kind_of(name: str) -> str:
    """Returns whose rate a method takes."""
    return {BASELINE: "all-reduce", TOGETHER: "together", ALONE: "alone"}.get(name, "swarm")


def pace(session: Any, given: dict[str, Any]) -> dict[str, float]:
    """One rank: seconds of a round of every method."""
    from switchagg.algorithms.base import Log
    from switchagg.algorithms.swarm import Meetings
    from switchagg.experiments.rank import say

    parts, _, _ = shares(given["seed"], "shuffled", session.world_size)
    plain, out = parts[session.rank], {}
    for name, settings in METHODS.items():
        if name == ALONE:
            continue
        log, half = Log(every=1), given["rounds"] // 2
        session.barrier()
        _run(plain, session, given["rounds"], 1, log, name, settings, Meetings(), 0.1, start=plain.start(1))
        times = [record.seconds for record in log.records]
        out[name] = (times[-1] - times[half]) / (
            given["rounds"] - half
        )  # links' round trips are known by then
        if session.rank == 0:
            say(f"{name}: {1e3 * out[name]:.1f} ms a round")
    return out


def _run(
    problem: Any,
    session: Any,
    rounds: int,
    seed: int,
    log: Any,
    name: str,
    settings: dict[str, Any],
    met: Any,
    rate: float,
    start: Any = None,
) -> Any:
    from switchagg.algorithms import swarm

    x = problem.start(seed) if start is None else start
    if settings:
        return swarm.run(
            problem, session, steps=rounds, rate=rate, local_steps=LOCAL_STEPS, batch=BATCH, seed=seed,
            spread=0.5, log=log, x0=x, meetings=met, **settings,
        )  # fmt: skip
    random = np.random.default_rng((seed, 3, session.rank))
    log.begin(x, session)
    for step in range(1, rounds + 1):
        for _ in range(LOCAL_STEPS):
            slope = problem.batch_gradient(x, random.choice(problem.samples, BATCH, replace=False))
            if name == BASELINE:
                slope = session.allreduce(slope.astype(np.float32), op="avg", blocks="dense")
                log.payload(32 * x.size)
            x = x - rate * slope
        if name == TOGETHER or (name == ALONE and step == rounds):
            x = session.allreduce(x, op="avg", blocks="dense")
            log.payload(64 * x.size)
        log.step(step, x, last=step == rounds)
    return x


def run(runner: Runner) -> Outcome:
    """Trains with all methods and seeds, and compares the means."""
    seeds = [runner.seed + i for i in range(1 if runner.quick else 3)]
    rounds = 10 if runner.quick else 300
    orders = ORDERS[:1] if runner.quick else ORDERS
    rates = {
        f"{kind}, {order}": best_rate(kind, order, rounds, runner.seed + 1000, WORKERS)
        for kind in ("all-reduce", "swarm", "together", "alone")
        for order in orders
    }
    runner.say(f"rates: {rates}")
    given = {
        "seeds": seeds, "rounds": rounds, "orders": orders, "rates": rates,
        "slow_rounds": 5 if runner.quick else SLOW_ROUNDS,
    }  # fmt: skip
    results = runner.ranks(train, WORKERS, given, connect={"words": WORDS}).results
    names = [name for name in results[0] if name != "times"]
    runner.say(LINK_NAME)
    paced = runner.ranks(
        pace, WORKERS, {"seed": runner.seed, "rounds": 4 if runner.quick else PACE_ROUNDS}, arguments=LINK,
        connect={"words": WORDS},
    ).results  # fmt: skip
    a_round = {name: float(np.mean([result[name] for result in paced])) for name in paced[0]}
    means = {name: float(np.mean([run["accuracy"] for run in results[0][name]])) for name in names}
    rows: list[tuple[Any, ...]] = []
    series: list[Series] = []
    for name in names:
        runs = [run for result in results for run in result[name]]
        pairs = sum(run["pairs"] for run in runs)
        method, order = name.rsplit(", ", 1)
        rows.append(
            (
                method,
                order,
                rates[f"{kind_of(method)}, {order}"],
                100 * means[name],
                100 * min(run["accuracy"] for run in runs),
                sum(run["payload"] for run in runs) / len(runs) / 8e3,
                sum(run["wire"] for run in runs) / len(runs) / 1e3,
                100 * sum(run["misses"] for run in runs) / pairs if pairs else None,
            )
        )
        curve = np.mean([[point[1] for point in run["curve"]] for run in runs], axis=0).tolist()
        steps = [point[0] * LOCAL_STEPS for point in runs[0]["curve"]]
        series.append(Series(name, steps, curve, "solid" if order == "shuffled" else "dashed"))
    goal = means[f"{BASELINE}, shuffled"] - MARGIN
    clock: dict[str, tuple[int | None, float, float | None]] = {}
    for name, seconds in a_round.items():
        found = next(each for each in series if each.label == f"{name}, shuffled")
        there = [x for x, y in zip(steps, found.y, strict=True) if y >= goal]
        total = there[0] / LOCAL_STEPS * seconds if there else None
        clock[name] = (there[0] if there else None, seconds, total)
    sooner = {name: clock[name][2] or np.inf for name in (CLAIMED, BASELINE, TOGETHER)}
    slowed = [
        (
            name,
            *(float(np.mean([r["times"][name][slow] for r in results[1:]])) for slow in (0, 1)),
            results[0]["times"][name][1],
        )
        for name in (BASELINE, CLAIMED)
    ]
    return Outcome(
        checks=[
            Check(
                f"{order} data: {CLAIMED}, with {LOCAL_STEPS} local steps: accuracy within {100 * MARGIN:g} "
                "point of all-reduce's, or better",
                means[f"{CLAIMED}, {order}"] - means[f"{BASELINE}, {order}"] >= -MARGIN,
                f"{means[f'{CLAIMED}, {order}']:.2%} against {means[f'{BASELINE}, {order}']:.2%} (averaged "
                "once: "
                f"{means[f'{ALONE}, {order}']:.2%}), mean of {len(seeds)} seeds",
            )
            for order in orders
        ]
        + [
            Check(
                f"shuffled data, {LINK_NAME}: {CLAIMED} is within {100 * MARGIN:g} point of all-reduce's "
                f"accuracy sooner than {other}",
                sooner[CLAIMED] < sooner[other],
                f"{_seconds(clock[CLAIMED][2])} against {_seconds(clock[other][2])}",
            )
            for other in (BASELINE, TOGETHER)
        ],
        tables=[
            Table(
                f"Digits, {WORKERS} workers, {rounds * LOCAL_STEPS} steps of batches of {BATCH}",
                (
                    "method",
                    "data",
                    "rate",
                    "accuracy, %",
                    "worst seed, %",
                    "kB sent by a worker",
                    "kB on the wire, up",
                    "averagings in full, %",
                ),
                rows,
                "Accuracy of the mean model on a quarter of the images, which nobody trains with. Averagings "
                "in full: of pairs too far apart for their lanes. Sorted: each worker has two or three "
                "digits.",
            ),
            Table(
                f"Wall clock, {LINK_NAME}, shuffled data: to {goal:.2%}, mean of workers and seeds",
                ("method", "steps", "ms a round", "seconds"),
                [(name, steps, 1e3 * each, total) for name, (steps, each, total) in clock.items()],
                f"Steps at looks {rounds * LOCAL_STEPS // EVALUATIONS} apart; a round has {LOCAL_STEPS}. "
                "Seconds: one times the other.",
            ),
            Table(
                f"A worker whose gradients take {1e3 * SLOW:g} ms longer: seconds for "
                f"{given['slow_rounds']} rounds of {LOCAL_STEPS} steps",
                ("method", "the others, nobody slow", "the others, one slow", "the slow one"),
                slowed,
                "With all-reduce all wait in every step. Pairs are drawn beforehand, so partners of the slow "
                "worker wait, and theirs in turn: the others get ahead of it by a few rounds at most.",
            ),
        ],
        plots=[
            Plot(
                "accuracy",
                "Accuracy of a worker's own model, mean of workers and seeds",
                "gradient steps",
                "accuracy on images not trained with",
                series,
            ),
            Plot(
                "wall-clock",
                f"Seconds to {goal:.1%}, {LINK_NAME}",
                "",
                "seconds",
                [
                    Series(
                        "seconds", [n for n in clock if clock[n][2]], [c[2] for c in clock.values() if c[2]]
                    )
                ],
                kind="bars",
            ),
        ],
        notes=[
            f"Every method takes the best of the rates {', '.join(map('{:g}'.format, RATES))} for each order "
            "of the data, found with another seed.",
            "In the paper steps and meetings happen at rates of a Poisson process, and a worker averages "
            "with whoever is there. Here they go in rounds whose pairs are drawn beforehand, since a "
            "switch's slots are given to a pair in advance.",
        ],
        numbers={"rates": rates, "means": means, "clock": clock, "times": [r["times"] for r in results]},
    )


def _seconds(found: float | None) -> str:
    return "not reached" if found is None else f"{found:.1f} s"


EXPERIMENT = Experiment(
    name="swarm",
    title="Random pairs that average in 8 bits",
    claim="SwarmSGD, in which random pairs average their quantized models after some local steps, matches "
    "the accuracy of training with full-precision all-reduce at every step, and takes less time than "
    "methods in which workers wait for all others.",
    source="Nadiradze et al., Asynchronous Decentralized SGD with Quantized and Local Updates, NeurIPS 2021, "
    "arXiv 1910.12308, experiments",
    run=run,
    needs=("sklearn",),
    order=210,
)

"""The race: time to a fixed loss of every way of reducing gradients, each at its own best rate, by link.

    steps    all workers in one process (`lockstep`): a rate for each way by one seed, then steps to the loss
             by others; they do not depend on the network, as sums are the same to the bit
    times    real ranks through the switch: median of steps with gradient, reduction and update, on each link
    result   steps x time a step

Two models: the demo's language model, of whose gradient a batch leaves most rows zero, and a perceptron on
digits, whose gradient is dense.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.demo import corpus, model
from switchagg.demo.settings import Settings
from switchagg.demo.worker import held_out_batch
from switchagg.experiments import data
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.lockstep import Lockstep, best_of
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

Floats = npt.NDArray[np.float32]

WORKERS: Final = 4
WORDS: Final = 352  # a packet of an MTU of 1,500
SEEDS: Final = 3
LOOK: Final = 10  # steps between two looks at the held-out loss
TIMED: Final = 32  # steps of each method on each link
_FURTHER: Final = 2  # rates past an end of the given ones
DENSE: Final = "dense, 32 bit"
SKIP8: Final = "zero-skip, 8 bit"
KINDS: Final = ("the session's lanes", "compressors", "fewer sums")
LINKS: Final[dict[str, list[str]]] = {
    "10 Gb/s": ["--rate", "10Gbit"],
    "1 Gb/s": ["--rate", "1Gbit"],
    "0.1 Gb/s": ["--rate", "100Mbit"],
    "0.1 Gb/s, 100 ms away": ["--rate", "100Mbit", "--delay", "0.05"],
}


@dataclass(frozen=True, slots=True)
class Way:
    """A way of reducing.

    Attributes:
        lanes: of the session itself, with `blocks`; for steps `make` or, without one, exact sums stand in.
        make: makes a compressor from `worker_lib.compress` and a seed; with `every`, of pseudo-gradients.
        every: local steps between two sums; 1 for gradients.
        outer: rate and momentum of the outer step.
        momentum: of the dense model's update; 0 where what is summed has it already.
    """

    lanes: int | None = None
    blocks: str = "dense"
    make: Callable[[Any, int], Any] | None = None
    every: int = 1
    outer: tuple[float, float] = (1.0, 0.0)
    momentum: float = 0.9


def _dithered(c: Any, seed: int) -> Any:
    """Rounds as the session's lanes of 8 bits do: under the largest exponent of 1,024 neighbours."""
    return c.Dithering(bits=8, block=1024, norm_bits=0, seed=seed)


def _top(c: Any, seed: int) -> Any:
    return c.ErrorFeedback(c.chain(c.TopBlocks(tau=0.05, block=16), c.Dithering(bits=8, block=64, seed=seed)))


def _filtered(c: Any, seed: int) -> Any:
    return c.EF21SGDM(
        c.chain(c.TopBlocks(tau=0.05, block=16), c.Dithering(bits=8, block=64, seed=seed)), eta=0.1
    )


def _few(c: Any, seed: int) -> Any:
    """SparseLoCo: 3 % of the elements in two bits, with error feedback that fades."""
    return c.ErrorFeedback(
        c.chain(c.TopBlocks(tau=0.03, block=1), c.Dithering(levels=1, block=1024, seed=seed)), decay=0.95
    )


WAYS: Final[dict[str, Way]] = {
    DENSE: Way(lanes=32),
    "dense, 8 bit": Way(lanes=8, make=_dithered),
    "zero-skip, 32 bit": Way(lanes=32, blocks="sparse"),
    SKIP8: Way(lanes=8, blocks="sparse", make=_dithered),
    "IntSGD, 8 bit": Way(make=lambda c, seed: c.IntSGD(bits=8, seed=seed)),
    "rotation, 8 bit": Way(make=lambda c, seed: c.Rotation(bits=8, seed=seed)),
    "rotation, 4 bit, EF": Way(make=lambda c, seed: c.ErrorFeedback(c.Rotation(bits=4, seed=seed))),
    "PowerSGD, rank 2, EF": Way(make=lambda c, seed: c.ErrorFeedback(c.PowerSGD(rank=2, seed=seed))),
    "top blocks, 5 %, 8 bit, EF": Way(make=_top),
    "top blocks, 5 %, 8 bit, EF21-SGDM": Way(make=_filtered, momentum=0.0),
    "random blocks, 5 %, 8 bit, EF": Way(
        make=lambda c, seed: c.ErrorFeedback(
            c.chain(
                c.RandomBlocks(tau=0.05, block=16, scaled=False, seed=seed), c.Dithering(bits=8, seed=seed)
            )
        )
    ),
    "local SGD, 8 steps": Way(every=8),
    "local SGD, 8 steps, 8 bit": Way(lanes=8, make=_dithered, every=8),
    "SparseLoCo, 16 steps": Way(make=_few, every=16),
    "DiLoCo, 16 steps": Way(every=16, outer=(0.7, 0.9)),
}


class Dense:
    """A perceptron of two hidden layers on scikit-learn's digits, with momentum: every gradient is dense."""

    title = "dense model"
    rates = (0.02, 0.05, 0.1, 0.2, 0.4)
    steps = 300
    sizes: tuple[int, ...] = (64, 256, 128, 10)
    batch = 16

    def __init__(self) -> None:
        pixels, digits = data.digits()
        places = np.random.default_rng(0).permutation(len(digits))
        shuffled = (pixels[places] / 16.0).astype(np.float32)
        held = len(places) // 4
        self._held = shuffled[:held], digits[places[:held]]
        self._train = shuffled[held:], digits[places[held:]]
        self.shapes = [s for a, b in zip(self.sizes, self.sizes[1:], strict=False) for s in ((a, b), (b,))]
        self.dim = sum(int(np.prod(shape)) for shape in self.shapes)

    def start(self, seed: int) -> Floats:
        rng = np.random.default_rng((seed, 0))
        parts = [
            rng.standard_normal(s).reshape(-1) / np.sqrt(s[0]) if len(s) > 1 else np.zeros(s)
            for s in self.shapes
        ]
        return np.concatenate(parts).astype(np.float32)

    def _layers(self, x: Floats) -> list[Floats]:
        cuts = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(x, cuts), self.shapes, strict=True)]

    def _forward(self, x: Floats, pixels: Floats) -> list[Floats]:
        layers, seen = self._layers(x), [pixels]
        for i in range(0, len(layers), 2):
            out = seen[-1] @ layers[i] + layers[i + 1]
            seen.append(out if i == len(layers) - 2 else np.tanh(out))
        return seen

    def loss(self, x: Floats) -> float:
        pixels, digits = self._held
        scores = self._forward(x, pixels)[-1].astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        return float((np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(digits)), digits]).mean())

    def gradient(self, x: Floats, seed: int, step: int, rank: int) -> Floats:
        rng = np.random.default_rng((seed, 1, step, rank))
        return self.gradient_of(x, rng.integers(0, len(self._train[1]), self.batch))

    def gradient_of(self, x: Floats, chosen: npt.NDArray[np.int64]) -> Floats:
        """Returns the gradient of a batch of samples; of several, shape (..., samples), one each."""
        pixels, digits = self._train[0][chosen], self._train[1][chosen]
        layers, seen = self._layers(x), self._forward(x, pixels)
        scores = seen[-1] - seen[-1].max(axis=-1, keepdims=True)
        slope = np.exp(scores)
        slope /= slope.sum(axis=-1, keepdims=True)
        slope -= np.eye(slope.shape[-1], dtype=slope.dtype)[digits]
        slope /= chosen.shape[-1]
        parts: list[Floats] = []
        for i in range(len(layers) - 2, -1, -2):
            weights = seen[i // 2].swapaxes(-1, -2) @ slope
            parts[:0] = [weights.reshape(*chosen.shape[:-1], -1), slope.sum(axis=-2)]
            slope = (slope @ layers[i].T) * (1 - seen[i // 2] ** 2)
        return np.concatenate(parts, axis=-1)

    def update(
        self, x: Floats, gradient: Floats, state: dict[str, Floats], rate: float, momentum: float
    ) -> None:
        velocity = state.setdefault("velocity", np.zeros_like(x))
        velocity *= np.float32(momentum)
        velocity += gradient
        x -= np.float32(rate) * velocity


class Sparse:
    """The demo's language model in small, with Adagrad: a batch leaves most rows of its gradient zero."""

    title = "sparse model"
    rates = (0.025, 0.05, 0.1, 0.2, 0.4)
    steps = 150

    def __init__(self) -> None:
        self._settings = Settings(
            workers=WORKERS,
            rows=8192,
            dimension=16,
            hidden=32,
            vocabulary=256,
            batch=32,
            corpus_bytes=1_000_000,
        )
        text = self._text = corpus.load(self._settings.corpus_bytes)
        held = held_out_batch(text.tokens, text.training, self._settings)
        self._held = model.Batch(held.rows[::2], held.targets[::2])
        self.dim = model.parameter_count(self._settings)
        made = model.views(np.zeros(self.dim, np.float32), self._settings)
        self.shapes = [
            t.shape for t in (made.embedding, made.hidden, made.hidden_bias, made.output, made.output_bias)
        ]

    def _of(self, seed: int) -> Settings:
        return replace(self._settings, seed=seed)

    def start(self, seed: int) -> Floats:
        return model.initial_parameters(self._of(seed))

    def loss(self, x: Floats) -> float:
        return model.loss(model.views(x, self._settings), self._held)

    def gradient(self, x: Floats, seed: int, step: int, rank: int) -> Floats:
        s = self._of(seed)
        ends = model.global_batch(self._text.tokens, self._text.training, step, s)
        batch = model.examples(self._text.tokens, ends[rank * s.batch : (rank + 1) * s.batch], s)
        out = np.zeros(self.dim, np.float32)
        model.loss_and_gradient(model.views(x, s), batch, model.views(out, s))
        return out

    def update(
        self,
        x: Floats,
        gradient: Floats,
        state: dict[str, Floats],
        rate: float,
        momentum: float,  # noqa: ARG002
    ) -> None:
        sums = state.setdefault("sums", np.full_like(x, model.ADAGRAD_START))
        sums += gradient * gradient
        x -= np.float32(rate) * gradient / np.sqrt(sums)


MODELS: Final[dict[str, type[Dense] | type[Sparse]]] = {"dense": Dense, "sparse": Sparse}


def steps_to(
    task: Any, way: Way, rate: float, seed: int, target: float | None, limit: int
) -> tuple[int | None, float]:
    """Trains all workers in one process.

    Returns:
        Steps to the first look at or under the target, or None; and the last loss seen.
    """
    from worker_lib import compress

    workers = None
    if way.make is not None:
        make = way.make

        def made() -> Any:
            compressor = make(compress, seed)
            compressor.lay_out(task.shapes)
            return compressor

        workers = Lockstep(made, WORKERS)
    anchor = task.start(seed)
    velocity = np.zeros_like(anchor)
    local = way.every > 1
    xs = [anchor.copy() for _ in range(WORKERS if local else 1)]
    states: list[dict[str, Floats]] = [{} for _ in xs]
    found = task.loss(anchor)
    for step in range(1, limit + 1):
        gradients = [task.gradient(xs[r if local else 0], seed, step, r) for r in range(WORKERS)]
        if local:
            for x, state, gradient in zip(xs, states, gradients, strict=True):
                task.update(x, gradient, state, rate, way.momentum)
            if step % way.every == 0:
                moved = (
                    anchor - np.mean(xs, axis=0, dtype=np.float32)
                    if workers is None
                    else workers.mean([anchor - x for x in xs])
                )
                outer, momentum = (np.float32(v) for v in way.outer)
                velocity = momentum * velocity + moved
                anchor = anchor - outer * (moved + momentum * velocity)
                for x in xs:
                    x[:] = anchor
        else:
            mean = (
                np.mean(gradients, axis=0, dtype=np.float32) if workers is None else workers.mean(gradients)
            )
            task.update(xs[0], mean.astype(np.float32, copy=False), states[0], rate, way.momentum)
        if step % (way.every if local else LOOK) == 0:
            found = task.loss(anchor if local else xs[0])
            if not np.isfinite(found):
                return None, found
            if target is not None and found <= target:
                return step, found
    return None, found


def _tuned(task: Any, way: Way, seed: int, target: float, rate: float, limit: int) -> int | None:
    return steps_to(task, way, rate, seed, target, limit)[0]


def tune(rates: Sequence[float], steps: Callable[[float, int], int | None], limit: int) -> float | None:
    """Returns the rate with the fewest steps; where that is an end of `rates`, it tries further ones.

    Args:
        steps: called with a rate and the most steps that can still be the fewest.
    """
    tried = sorted(rates)
    best = best_of(tried, steps, limit)
    for _ in range(_FURTHER):
        if best is None or best not in (tried[0], tried[-1]):
            break
        more = best / 2 if best == tried[0] else best * 2
        tried = sorted([*tried, more])
        # The one that is best so far goes first, so that the other one has to be faster.
        best = best_of((best, more), steps, limit)
    return best


def find_steps(runner: Runner, name: str, names: Sequence[str], steps: int, seeds: int) -> dict[str, Any]:
    """Returns the target of a model, and of each way its best rate and its steps by seed (None: not reached).

    The target is what exact sums at their best rate have after `steps` steps, with the seed of the tuning;
    ways may take three times as many.
    """
    task: Any = MODELS[name]()
    rates = task.rates[1:3] if len(names) < len(WAYS) else task.rates
    tuning = runner.seed + 1000

    def lowest() -> float:
        return min(steps_to(task, WAYS[DENSE], rate, tuning, None, steps)[1] for rate in rates)

    target = runner.part(f"{name}: target", lowest)

    def steps_of(way_name: str) -> dict[str, Any]:
        way = WAYS[way_name]
        best = tune(rates, partial(_tuned, task, way, tuning, target), 3 * steps)
        each = [
            None if best is None else steps_to(task, way, best, runner.seed + i, target, 3 * steps)[0]
            for i in range(seeds)
        ]
        runner.say(f"{task.title}: {way_name}: rate {best}, steps {each}")
        return {"rate": best, "steps": each}

    found: dict[str, Any] = {"target": target, "dim": task.dim, "ways": {}}
    known: dict[Way | str, dict[str, Any]] = {}
    for way_name in names:
        way = WAYS[way_name]
        # Ways that differ in what is skipped take the same steps.
        alike = replace(way, lanes=None, blocks="") if way.lanes else way_name
        if alike not in known:
            known[alike] = runner.part(f"{name}: steps: {way_name}", partial(steps_of, way_name))
        found["ways"][way_name] = known[alike]
    return found


def timed(session: Any, given: dict[str, Any]) -> dict[str, list[float]]:
    """One rank: seconds of each step, with gradient, reduction and update, of every way."""
    from switchagg.experiments.rank import say
    from worker_lib import compress
    from worker_lib.outer import OuterSteps

    task: Any = MODELS[given["model"]]()
    out: dict[str, list[float]] = {}
    for name in given["ways"]:
        way = WAYS[name]
        x = task.start(0)
        state: dict[str, Floats] = {}
        compressor: Any = None
        if way.make is not None and way.lanes is None:
            compressor = way.make(compress, 0)
            compressor.lay_out(task.shapes)
        outer = None
        if way.every > 1:
            rate, momentum = way.outer
            bits = None if compressor else way.lanes or 32
            outer = OuterSteps(
                session,
                [x],
                every=way.every,
                rate=rate,
                momentum=momentum,
                compressor=compressor,
                bits=bits,
            )
        times = []
        for step in range(given["warm"] * way.every + given["steps"]):
            session.barrier() if way.every == 1 else None
            began = time.perf_counter()
            gradient = task.gradient(x, 0, step, session.rank)
            if outer is None:
                how = {"compressor": compressor} if compressor else {"bits": way.lanes, "blocks": way.blocks}
                session.allreduce(gradient, op="avg", **how)
            task.update(x, gradient, state, 0.01, way.momentum)
            if outer is not None:
                outer.step()
            if step >= given["warm"] * way.every:
                times.append(time.perf_counter() - began)
        out[name] = times
        if session.rank == 0:
            say(f"{given['model']}: {name}: {1e3 * _a_step(way, times):.2f} ms")
    return out


def _a_step(way: Way, times: Sequence[float]) -> float:
    """Seconds of a step: the median; where every H-th has a sum, the mean of the H positions' medians."""
    rows = np.array(times[: len(times) // way.every * way.every]).reshape(-1, way.every)
    return float(np.median(rows, axis=0).mean())


def measure(runner: Runner, name: str, names: Sequence[str], link: str, steps: int) -> dict[str, Any]:
    """Returns seconds of a step of each way on a link: median and quartiles, of the slowest rank."""
    runner.say(f"{name} model, links of {link}")
    given = {"model": name, "ways": list(names), "steps": steps, "warm": 2}
    ran = runner.ranks(timed, WORKERS, given, arguments=LINKS[link], connect={"words": WORDS})
    out: dict[str, Any] = {}
    for way in names:
        slowest = max((result[way] for result in ran.results), key=lambda t, w=way: _a_step(WAYS[w], t))  # type: ignore[misc]
        low, high = (float(np.percentile(slowest, q)) for q in (25, 75))
        out[way] = {"seconds": _a_step(WAYS[way], slowest), "low": low, "high": high}
    return out


def run(runner: Runner) -> Outcome:
    """Steps of both models, then times on every link."""
    names = [DENSE, SKIP8, "rotation, 8 bit", "local SGD, 8 steps"] if runner.quick else list(WAYS)
    links = list(LINKS)[1:3] if runner.quick else list(LINKS)
    models = ["dense"] if runner.quick else list(MODELS)
    steps = {
        name: find_steps(
            runner, name, names, 30 if runner.quick else MODELS[name].steps, 1 if runner.quick else SEEDS
        )
        for name in models
    }
    times = {
        name: {
            link: runner.part(
                f"{name}: times of {', '.join(names)}: {link}",
                partial(measure, runner, name, names, link, 8 if runner.quick else TIMED),
            )
            for link in links
        }
        for name in models
    }
    return outcome(steps, times)


def kind_of(name: str) -> str:
    """Returns the one of `KINDS` that a way is."""
    way = WAYS[name]
    return KINDS[2] if way.every > 1 else KINDS[0] if way.lanes is not None else KINDS[1]


def _use(gains: Mapping[str, Mapping[str, float]]) -> Plot:
    """The best way of each kind, by model and link."""
    series = []
    for kind in KINDS:
        with_it = {at: of[kind] for at, of in gains.items() if kind in of}
        series.append(Series(f"best of {kind}", list(with_it), list(with_it.values())))
    return Plot(
        "use",
        "What to use: times as fast to the loss as dense float32",
        "",
        "times as fast",
        [each for each in series if each.y],
        kind="bars",
        log_y=True,
        lines=[("dense float32", 1.0)],
    )


def outcome(steps: Mapping[str, Any], times: Mapping[str, Any]) -> Outcome:
    """Puts steps and times together."""
    checks, tables, plots = [], [], []
    best: dict[str, dict[str, str]] = {}
    gains: dict[str, dict[str, float]] = {}
    for name, found in steps.items():
        task = MODELS[name]
        links = list(times[name])
        totals: dict[str, dict[str, float]] = {link: {} for link in links}
        rows: list[tuple[Any, ...]] = []
        for way, each in found["ways"].items():
            reached = [s for s in each["steps"] if s is not None]
            all_seeds = len(reached) == len(each["steps"]) > 0
            seconds = []
            for link in links:
                if all_seeds:
                    totals[link][way] = float(np.mean(reached)) * times[name][link][way]["seconds"]
                seconds.append(totals[link].get(way))
            spread = f"{min(reached)} to {max(reached)}" if reached else None
            rows.append(
                (
                    way,
                    each["rate"],
                    float(np.mean(reached)) if all_seeds else None,
                    spread if all_seeds else "not by all seeds",
                    *seconds,
                )
            )
        best[name] = {link: min(of, key=lambda w, o=of: o[w]) for link, of in totals.items() if of}  # type: ignore[misc]
        for link in links:
            of = totals[link]
            if DENSE in of:
                kinds = {kind: [of[way] for way in of if kind_of(way) == kind] for kind in KINDS}
                gains[f"{name}, {link}"] = {kind: of[DENSE] / min(t) for kind, t in kinds.items() if t}
            own = [w for w in of if kind_of(w) == KINDS[0]]
            others = [w for w in of if kind_of(w) != KINDS[0]]
            if not own or not others:
                continue
            first, other = min(own, key=lambda w, o=of: o[w]), min(others, key=lambda w, o=of: o[w])  # type: ignore[misc]
            checks.append(
                Check(
                    f"{task.title}, {link}: a compressor or fewer sums reach the loss sooner than the best "
                    "of "
                    "the session's own lanes",
                    of[other] < of[first],
                    f"{other} {of[other]:.2f} s, {first} {of[first]:.2f} s",
                )
            )
        tables.append(
            Table(
                f"{task.title}, {found['dim']:,} parameters, {WORKERS} workers: seconds to a held-out loss "
                "of "
                f"{found['target']:.3f}",
                ("way", "rate", "steps, mean", "steps by seed", *links),
                rows,
                "First: " + "; ".join(f"{link}: {way}" for link, way in best[name].items()) + ".",
            )
        )
        plots.append(
            Plot(
                f"seconds-{name}",
                f"{task.title}: time to the loss",
                "",
                "seconds",
                [Series(link, list(of), list(of.values())) for link, of in totals.items() if of],
                kind="bars",
                log_y=True,
            )
        )
    return Outcome(
        checks=checks,
        tables=tables,
        plots=[_use(gains), *plots],
        numbers={"steps": dict(steps), "times": dict(times), "best": best},
        notes=[
            "Every way takes the rate with the fewest steps for one seed, of five that differ by a factor "
            f"of 2 and, where the best is the first or last, of up to {_FURTHER} beyond it; steps are then "
            f"those of {SEEDS} others. The target is what exact sums have after "
            + " and ".join(f"{MODELS[name].steps} ({MODELS[name].title})" for name in steps)
            + " steps at their best rate. Steps are counted with all workers in one process. There, rounding "
            "under the largest exponent of 1,024 neighbours stands for the session's lanes of 8 bits.",
            f"A step's time is the median of {TIMED}, through the switch, of the slowest rank. Where a "
            "step has "
            "no sum, as in local SGD, it is the mean over a period.",
        ],
    )


EXPERIMENT = Experiment(
    name="race",
    title="Time to a loss, each way at its own best rate",
    claim="Compressing gradients, or summing seldom, shortens training where links are slow or far away, "
    "also against narrow lanes that skip zeros.",
    source="Agarwal, Wang, Venkataraman, Papailiopoulos, On the Utility of Gradient Compression in "
    "Distributed Training Systems, MLSys 2022, arXiv 2103.00543; the like-for-like baseline is ours",
    run=run,
    needs=("sklearn",),
    order=310,
    in_all=False,
)

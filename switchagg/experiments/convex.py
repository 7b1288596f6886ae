"""Runs of convex methods for the claims: a problem and a list of runs as JSON values, run by all ranks.

make_task(...)   the problem, its shares and its optimum, which the parent finds by Newton's method
solve(runner, [(task, [{"name": ..., "method": ...}, ...])], 4)
  └─ solve_in_rank, in each rank: its share from a file, the runs, records of the log, a digest of x
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from switchagg.algorithms.base import Array, Log, constants, drive, mean_gradient
from switchagg.algorithms.problems import (
    LogisticRegression,
    Regression,
    RidgeRegression,
    optimum,
    sharing_minimizer,
    split,
)
from switchagg.experiments import data
from switchagg.experiments.experiment import Check
from switchagg.experiments.lockstep import Lockstep, best_of
from switchagg.report.plots import Plot, Series

if TYPE_CHECKING:
    from switchagg.experiments.runner import Runner
    from worker_lib.compress import Compressor

OPTIMUM_TOLERANCE: Final = 1e-10
PATIENCE: Final = 200  # steps after which a run that is no nearer than at its start is given up
_POINTS: Final = 60  # records of a run


@dataclass(frozen=True, slots=True)
class Task:
    """A problem, shared out, with its optimum.

    Attributes:
        parts: every worker's problem.
        optimum: x*.
        scale: ||x*||, the distance from the starting point.
        heterogeneity: root mean square over workers of ||grad f_i(x*)||.
        condition: L / mu of F.
        dim: d.
    """

    parts: list[Regression]
    optimum: Array
    scale: float
    heterogeneity: float
    condition: float
    dim: int


@dataclass(frozen=True, slots=True)
class Solution:
    """One run, seen from rank 0.

    Attributes:
        records: of its log.
        same: whether x is the same to the bit at all ranks.
        reached: whether its target was reached.
        extra: further figures of the method, by name.
        scale: distances are given as multiples of it.
    """

    records: Sequence[Mapping[str, Any]]
    same: bool
    reached: bool
    extra: Mapping[str, Any]
    scale: float = 1.0

    @property
    def last(self) -> Mapping[str, Any]:
        """The last record."""
        return self.records[-1]

    @property
    def distances(self) -> list[float]:
        """The distance from the optimum at each record."""
        return [float(record["distance"]) / self.scale for record in self.records]

    def per_step(self, field: str) -> float:
        """The mean growth of a field in a step."""
        return float(self.last[field]) / max(1, int(self.last["step"]))

    def plateau(self) -> float:
        """The median distance over the second half of the run, where a run that stalls stays."""
        half = sorted(self.distances[len(self.records) // 2 :])
        return half[len(half) // 2]


def same_x(solutions: Iterable[Solution], more: str = "") -> Check:
    """A check that every run ended with the same x at all workers; `more` ends its statement."""
    same = [each.same for each in solutions]
    statement = f"x is the same to the bit at all workers, in every run{more}"
    return Check(statement, all(same), f"{sum(same)} of {len(same)} runs")


def distance_plot(name: str, title: str, solutions: Mapping[str, Solution], x: str = "step") -> Plot:
    """The distance of each solution, by its label, over a field of the records."""
    titles = {
        "step": "steps",
        "payload_bits": "payload bits of a worker",
        "wire_bytes": "bytes on the wire of a worker, both ways",
    }
    curves = [
        Series(label, [float(r[x]) for r in each.records], [max(d, 1e-16) for d in each.distances])
        for label, each in solutions.items()
    ]
    log_x = x == "wire_bytes"
    return Plot(name, title, titles[x], "distance (of the first)", curves, log_x=log_x, log_y=True)


def make_task(
    problem: Mapping[str, Any], workers: int, order: str, *, shared_minimizer: bool = False, seed: int = 0
) -> Task:
    """A data set as a problem of `workers` workers, with its optimum.

    Args:
        problem: arguments of `data.problem`.
        order: of the split of samples; see `problems.split`. ``"half"``: every other sample as with
            ``"sorted"``, the rest at random.
        shared_minimizer: give every worker the same minimizer, by targets made to fit.
        seed: of splits and of that minimizer.
    """
    parts = _parts(problem, order, workers, shared_minimizer, seed)
    # A shared minimizer is known by construction; Newton's method finds the others.
    x = _hidden(parts[0].dim, seed) if shared_minimizer else optimum(parts, tolerance=OPTIMUM_TOLERANCE)
    if shared_minimizer:
        assert np.linalg.norm(mean_gradient(parts, x)) < OPTIMUM_TOLERANCE
    spread = float(np.sqrt(np.mean([np.square(p.gradient(x)).sum() for p in parts])))
    smooth = float(np.mean([p.smoothness for p in parts]))
    convex = float(np.mean([p.strong_convexity for p in parts]))
    return Task(parts, x, float(np.linalg.norm(x)), spread, smooth / convex, parts[0].dim)


def tuned(
    task: Task, spec: Mapping[str, Any], candidates: Iterable[float], accuracy: float, limit: int
) -> float | None:
    """Returns the step size, in units of 1 / L, with which DIANA takes the fewest steps to an accuracy.

    Args:
        task: of the problem.
        spec: of the compressor.
        candidates: step sizes in units of 1 / L.
        accuracy: of the first distance.
        limit: the most steps; None is returned where no candidate needs fewer.
    """
    from worker_lib.compress import Differences

    smoothness = max(p.smoothness for p in task.parts)

    def steps(candidate: float, most: int) -> int | None:
        workers = Lockstep(lambda: Differences(_compressor(spec)), len(task.parts))
        x = np.zeros(task.dim)
        for step in range(1, most + 1):
            x = x - candidate / smoothness * workers.mean([p.gradient(x) for p in task.parts])
            distance = float(np.linalg.norm(x - task.optimum)) / task.scale
            if distance <= accuracy:
                return step
            if not distance < (10 if step < PATIENCE else 1):
                return None
        return None

    return best_of(sorted(candidates, reverse=True), steps, limit)


def solve_in_rank(session: Any, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Carries out, in a rank, all runs of all tasks, one after the other."""
    from switchagg.experiments.rank import say

    found = []
    for task in given["tasks"]:
        with np.load(Path(given["folder"]) / f"{task['file']}-{session.rank}.npz") as held:
            kind = RidgeRegression if task["ridge"] else LogisticRegression
            center = held["center"] if held["center"].size else None
            problem = kind(held["features"], held["targets"], task["l2"], task["l1"], center)
            best = held["optimum"]
        for plan in task["runs"]:
            log = Log(every=max(1, plan["steps"] // _POINTS), optimum=best, target=plan.get("target"))
            session.barrier()
            x, extra = _run(plan, problem, session, log)
            if session.rank == 0:
                say(f"{plan['name']}: {log.records[-1].step} steps")
            found.append(
                {
                    "digest": zlib.crc32(np.ascontiguousarray(x).view(np.uint8).data),
                    "records": json.loads(log.to_json()) if session.rank == 0 else [],
                    "reached": log.reached,
                    "extra": extra,
                }
            )
    return found


def solve(
    runner: Runner, tasks: Sequence[tuple[Task, Sequence[Mapping[str, Any]]]], workers: int, *, words: int
) -> list[dict[str, Solution]]:
    """Carries out all runs of all tasks in one set of ranks; returns for each task its solutions by name."""
    count = sum(len(runs) for _, runs in tasks)
    runner.say(f"{count} runs on {tasks[0][0].dim} unknowns, {workers} workers")
    with tempfile.TemporaryDirectory(prefix="swexperiment-") as folder:
        given = {
            "folder": folder,
            "tasks": [{**_stored(folder, i, task), "runs": [*runs]} for i, (task, runs) in enumerate(tasks)],
        }
        ran = runner.ranks(solve_in_rank, workers, given, connect={"words": words})
    out, at = [], 0
    for task, runs in tasks:
        names = {}
        for run in runs:
            of_ranks = [result[at] for result in ran.results]
            names[str(run["name"])] = Solution(
                of_ranks[0]["records"],
                len({each["digest"] for each in of_ranks}) == 1,
                bool(of_ranks[0]["reached"]),
                of_ranks[0]["extra"],
                task.scale,
            )
            at += 1
        out.append(names)
    return out


def _stored(folder: str, number: int, task: Task) -> dict[str, Any]:
    """Writes each worker's data to a file, so that no rank loads all of it; returns the rest."""
    for rank, part in enumerate(task.parts):
        np.savez(
            Path(folder) / f"{number}-{rank}.npz",
            features=part.features,
            targets=part.targets,
            center=np.empty(0) if part.center is None else part.center,
            optimum=task.optimum,
        )
    first = task.parts[0]
    return {"file": number, "ridge": isinstance(first, RidgeRegression), "l2": first.l2, "l1": first.l1}


def _parts(
    problem: Mapping[str, Any], order: str, workers: int, shared_minimizer: bool, seed: int
) -> list[Regression]:
    whole = data.problem(**problem)
    if shared_minimizer:
        assert isinstance(whole, RidgeRegression)
        whole = sharing_minimizer(whole, _hidden(whole.dim, seed))
    if order != "half":
        return split(whole, workers, order=order, seed=seed)
    by_target = np.argsort(whole.targets, kind="stable")
    rest = np.random.default_rng(1 + seed).permutation(by_target[1::2])
    pieces = zip(np.array_split(by_target[::2], workers), np.array_split(rest, workers), strict=True)
    return [
        replace(whole, features=whole.features[i], targets=whole.targets[i])
        for i in (np.concatenate(pair) for pair in pieces)
    ]


def _hidden(dim: int, seed: int) -> Array:
    """The minimizer that all workers share."""
    return np.random.default_rng(1 + seed).standard_normal(dim)


def _run(
    plan: Mapping[str, Any], problem: Regression, session: Any, log: Any
) -> tuple[Array, dict[str, Any]]:
    """Carries out one run; returns x, and further figures of the method."""
    from switchagg.algorithms import ibcd, isega
    from switchagg.algorithms.diana import Diana
    from switchagg.algorithms.vr_diana import VrDiana

    arguments = dict(plan.get("arguments", {}))
    method: Any
    match plan["method"]:
        case "ibcd":
            method = ibcd.Ibcd(problem, session, **{"bits": 32, **arguments})
        case "isega":
            method = isega.Isega(problem, session, **arguments)
        case "diana" | "vr-diana":
            compressor = _compressor(plan["compressor"])
            if (rule := arguments.pop("rule", None)) is not None:
                known = constants(problem, session)
                omega = compressor.mean_omega(problem.dim, session.world_size)
                assert omega is not None
                arguments["step"] = rule / (known.smoothness * (1 + omega))
            if (times := arguments.pop("step_times_l", None)) is not None:
                arguments["step"] = times / constants(problem, session).smoothness
            diana = Diana if plan["method"] == "diana" else VrDiana
            method = diana(problem, session, compressor=compressor, **arguments)
        case other:
            raise ValueError(f"no method {other!r}")
    x = drive(method, session, plan["steps"], log)
    extra: dict[str, Any] = {}
    if hasattr(method, "gamma"):
        extra = {"gamma": method.gamma, "bound": method.gamma_bound}
    return x, extra


def _compressor(spec: Mapping[str, Any]) -> Compressor:
    from worker_lib.compress import Dithering, RandomBlocks, SharedExponent, chain

    parts: list[Compressor] = []
    if spec.get("tau", 1) < 1:
        parts.append(RandomBlocks(tau=spec["tau"], block=spec["block"], seed=spec["seed"]))
    if "levels" in spec:
        parts.append(Dithering(levels=spec["levels"], norm_bits=0, seed=spec["seed"]))
    else:
        parts.append(SharedExponent(bits=32))
    return chain(*parts)

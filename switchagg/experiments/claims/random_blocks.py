"""One n-th of the blocks is enough if minimizers are shared or differences are sent; drawn apart or alike."""

from __future__ import annotations

from typing import Any, Final

from switchagg.algorithms.blocks import BlockDraws
from switchagg.experiments import convex
from switchagg.experiments.convex import Solution, Task
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.table import Table

WORKERS: Final = 4
WORDS: Final = 64
BLOCK: Final = 16
NEAR: Final = 1e-3  # of the first distance
NEARER: Final = 1e-6
PROBLEM: Final = {"name": "digits", "loss": "ridge", "l2": 0.01, "pairs": 450}


def run(runner: Runner) -> Outcome:
    """The same features with a shared minimizer and without."""
    tau = 1 / WORKERS
    steps = 60 if runner.quick else 4000
    problem = {**PROBLEM, "seed": runner.seed, **({"pairs": 60} if runner.quick else {})}
    shared = convex.make_task(problem, WORKERS, "sorted", shared_minimizer=True, seed=runner.seed)
    apart = convex.make_task(problem, WORKERS, "sorted", seed=runner.seed)

    def plan(
        name: str, method: str, tau: float, draw: str, bits: int, target: float | None
    ) -> dict[str, Any]:
        arguments = {"tau": tau, "block": BLOCK, "draw": draw, "seed": runner.seed, "bits": bits}
        made = {"name": name, "method": method, "steps": steps, "arguments": arguments}
        return made if target is None else {**made, "target": target}

    near = NEAR * shared.scale
    of_shared = [
        plan("all blocks", "ibcd", 1.0, "independent", 32, near),
        plan("independent", "ibcd", tau, "independent", 32, near),
        plan("shared seed", "ibcd", tau, "shared", 32, near),
        plan("shared seed, the independent ones' step", "ibcd", tau, "shared", 32, near),
    ]
    draws = BlockDraws(shared.dim, block=BLOCK, tau=tau, draw="independent", seed=0, rank=0)
    smoothness = max(part.smoothness for part in shared.parts)
    equal = WORKERS / ((draws.tau * WORKERS + 1 - draws.tau) * smoothness)
    of_shared[-1]["arguments"]["step"] = equal
    nearer = NEARER * apart.scale
    of_apart = [
        {**plan("IBCD, independent", "ibcd", tau, "independent", 64, None), "steps": min(steps, 1000)},
        plan("ISEGA, independent", "isega", tau, "independent", 64, nearer),
        plan("ISEGA, all blocks", "isega", 1.0, "independent", 64, nearer),
        plan("ISEGA, shared seed", "isega", tau, "shared", 64, NEAR * apart.scale),
        plan("IBCD, shared seed", "ibcd", tau, "shared", 64, nearer),
    ]
    first, second = convex.solve(runner, [(shared, of_shared), (apart, of_apart)], WORKERS, words=WORDS)
    ratio = first["independent"].last["step"] / first["all blocks"].last["step"]
    predicted = 2 - 1 / WORKERS
    stalled = second["IBCD, independent"].plateau()
    per_step = [first[name].per_step("wire_bytes") for name in ("shared seed", "independent")]
    to_near = [first[name].last["wire_bytes"] for name in ("shared seed", "independent")]
    steps_to_near = [
        first[name].last["step"]
        for name in ("shared seed", "shared seed, the independent ones' step", "independent")
    ]
    to_nearer = [second[name].last["wire_bytes"] for name in ("IBCD, shared seed", "ISEGA, independent")]
    return Outcome(
        checks=[
            Check(
                f"Shared minimizer: tau = 1/{WORKERS} takes at most twice the steps of all blocks",
                _both(first, "independent", "all blocks") and ratio <= 2.0,
                f"{first['independent'].last['step']} steps for {first['all blocks'].last['step']}, "
                f"{ratio:.2f} times as many; the bound says {predicted:.2f}",
            ),
            Check(
                "Without a shared minimizer IBCD stalls",
                stalled > 100 * NEARER and not second["IBCD, independent"].reached,
                f"at {stalled:.2g} of the first distance",
            ),
            Check(
                f"ISEGA does not: it reaches {NEARER:g}",
                second["ISEGA, independent"].reached,
                f"{second['ISEGA, independent'].distances[-1]:.2g} after "
                f"{second['ISEGA, independent'].last['step']} steps",
            ),
            Check(
                "A step with blocks from a shared seed takes fewer bytes than one with independent blocks",
                per_step[0] < per_step[1],
                f"{per_step[0]:,.0f} to {per_step[1]:,.0f} bytes both ways, {per_step[1] / per_step[0]:.2f} "
                "times as many",
            ),
            Check(
                f"And so does the way to {NEAR:g}, with a shared minimizer (IBCD both, each with its largest "
                "proved step)",
                _both(first, "shared seed", "independent") and to_near[0] < to_near[1],
                f"{to_near[0]:,} to {to_near[1]:,} bytes, {to_near[1] / to_near[0]:.2f} times as many: "
                f"{per_step[1] / per_step[0]:.2f} by the bytes of a step, "
                f"{steps_to_near[2] / steps_to_near[0]:.2f} by the number of steps, since shared blocks may "
                f"take a longer one ({steps_to_near[1]} and {steps_to_near[2]} steps at the same step size)",
            ),
            Check(
                f"And to {NEARER:g} without one (block descent with a shared seed, ISEGA with "
                "independent blocks)",
                _both(second, "IBCD, shared seed", "ISEGA, independent") and to_nearer[0] < to_nearer[1],
                f"{to_nearer[0]:,} to {to_nearer[1]:,} bytes, {to_nearer[1] / to_nearer[0]:.2f} "
                "times as many",
            ),
            convex.same_x([*first.values(), *second.values()]),
        ],
        tables=[
            _table(f"A minimizer shared by all, to {NEAR:g}", first, shared),
            _table(f"Each worker with its own, to {NEARER:g}", second, apart),
        ],
        plots=[
            convex.distance_plot("shared", "A minimizer shared by all", first),
            convex.distance_plot("own", "Each worker with its own minimizer", second),
            convex.distance_plot("bytes", "The same, over bytes on the wire", second, "wire_bytes"),
        ],
        numbers={"steps_ratio": ratio, "bytes_a_step": per_step, "bytes_to_near": to_near},
        notes=[
            f"The optimum was found by Newton's method to {convex.OPTIMUM_TOLERANCE:g}, or is known by "
            "construction.",
            f"Independent blocks cost {to_near[1] / first['all blocks'].last['wire_bytes']:.2f} times the "
            f"bytes of sending all blocks, to {NEAR:g} with a shared minimizer: a worker sends few, but "
            "the union comes back, with bitmaps.",
            "Every run takes the largest step size with a guarantee. With a shared seed IBCD is "
            "block descent "
            "on F: it needs no shared minimizer, and its step can go by F's smoothness along blocks.",
            "Lanes have 32 bits in the first table, and 64, three words, in the second, since ISEGA's "
            "memories have to agree. ISEGA with a shared seed has no averaging over workers to help it; it "
            f"is run to {NEAR:g} only.",
        ],
    )


def _both(found: dict[str, Solution], *names: str) -> bool:
    return all(found[name].reached for name in names)


def _table(title: str, found: dict[str, Solution], task: Task) -> Table:
    return Table.of(
        f"{title}: ridge regression on digits, {task.dim} unknowns, condition {task.condition:.0f}, "
        f"{WORKERS} workers, blocks of {BLOCK}",
        found,
        {
            "blocks": lambda name: name,
            "steps": lambda name: found[name].last["step"],
            "distance (of the first)": lambda name: found[name].distances[-1],
            "payload bits a step": lambda name: found[name].per_step("payload_bits"),
            "bytes sent a step": lambda name: found[name].per_step("wire_bytes_sent"),
            "bytes a step, both ways": lambda name: found[name].per_step("wire_bytes"),
            "bytes in all": lambda name: found[name].last["wire_bytes"],
        },
    )


EXPERIMENT = Experiment(
    name="random-blocks",
    title="One n-th of the blocks, drawn by each worker or by all",
    claim="With shared minimizers, sending tau = 1/n of the blocks costs little; without, IBCD stalls and "
    "ISEGA does not. On a switch, blocks from a shared seed beat independent ones in bytes on the wire.",
    source="Mishchenko, Hanzely, Richtarik, 99% of Worker-Master Communication in Distributed Optimization "
    "Is Not Needed, arXiv 1901.09437; the second half is ours",
    run=run,
    needs=("sklearn",),
    order=120,
)

"""Makes a failing schedule smaller, and tells it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tests.simulation.schedule import Fault, Plan, draw, timed
from tests.simulation.system import Outcome, run

_RUNS = 300
_T = TypeVar("_T")


def shrink(seed: int, folder: Path) -> list[str]:
    """Returns lines for people; leaves `timeline.txt` and `packets.pcap` in the folder."""
    plan = draw(seed)
    calm = run(plan.undisturbed())
    if calm.failure:
        plan = plan.undisturbed()
    plan = timed(plan, calm.seconds)
    failed = run(plan, expected=calm.results)
    if not failed.failure:
        return [f"seed {seed} is all right"]
    left = _RUNS
    expected = {(plan.steps, plan.depth): calm.results}

    def bits(plan: Plan) -> dict[tuple[int, int], str]:
        """Those of the undisturbed run of a plan that was changed."""
        key = plan.steps, plan.depth
        if key not in expected:
            expected[key] = run(plan.undisturbed()).results
        return expected[key]

    def fails(plan: Plan, faults: Sequence[Fault], only: Sequence[int]) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            return False
        found = run(replace(plan, faults=tuple(faults)), only=only, expected=bits(plan))
        return _kind(found.failure) == _kind(failed.failure)

    faults, only = list(plan.faults), sorted(set(failed.met))
    faults = _fewer(faults, lambda some: fails(plan, some, only))
    only = _fewer(only, lambda some: fails(plan, faults, some))
    while plan.steps > 1 and fails(replace(plan, steps=plan.steps - 1), faults, only):
        plan = replace(plan, steps=plan.steps - 1)
    for simpler in ({"depth": 1}, {"think": 0.0}, {"init_loss": 0.0}):
        if fails(other := replace(plan, **simpler), faults, only):  # type: ignore[arg-type]
            plan = other
    plan = replace(plan, faults=tuple(faults))
    last: Outcome = run(
        plan,
        only=only,
        expected=bits(plan),
        timeline=folder / "timeline.txt",
        capture=folder / "packets.pcap",
    )
    hosts = [f"{number}: switch {name!r}" for number, (name, _) in enumerate(plan.switches)]
    return [
        f"seed {seed}: {failed.failure}",
        f"smaller: {last.failure or 'right, with these faults alone'}",
        f"{plan.workers} workers, {plan.steps} steps, P = {plan.slots}, K = {plan.words}, "
        f"{'shrink' if plan.shrink else 'fail'}, deadline {plan.deadline:g} s",
        f"hosts {', '.join(hosts)}; {len(plan.switches)}: controller; then three for each rank",
        f"{len(only)} of {len(set(failed.met))} faults of packets, and:",
        *(f"  {fault}" for fault in plan.faults),
        f"timeline and packets: {folder}",
    ]


def _kind(failure: str) -> str:
    """The first words of a failure, without numbers."""
    return re.sub(r"\d+", "", failure)[:24]


def _fewer(items: Sequence[_T], fails: Callable[[Sequence[_T]], bool]) -> list[_T]:
    """Returns the items without runs of them, shorter and shorter, that are not needed to fail."""
    kept = list(items)
    length = max(1, len(kept) // 2)
    while kept:
        at = 0
        while at < len(kept):
            fewer = kept[:at] + kept[at + length :]
            if fails(fewer):
                kept = fewer
            else:
                at += length
        if length == 1:
            break
        length //= 2
    return kept

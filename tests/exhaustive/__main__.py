"""Searches all configurations, and for each mistake; prints the tables of docs/verification.md."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ProcessPoolExecutor

from tests.exhaustive.change_mistakes import CHANGE_MISTAKES, SPARE
from tests.exhaustive.membership import Bounds, Membership
from tests.exhaustive.mistakes import MISTAKES
from tests.exhaustive.one_switch import OneSwitch
from tests.exhaustive.search import Searched, Wrong, search
from tests.exhaustive.tree import Tree

SYSTEMS = [
    ("2 workers, P = 2", 12, lambda packets: OneSwitch(2, 2, packets)),
    ("2 workers, P = 4", 12, lambda packets: OneSwitch(2, 4, packets)),
    ("2 workers, P = 8", 24, lambda packets: OneSwitch(2, 8, packets)),
    ("3 workers, P = 2", 12, lambda packets: OneSwitch(3, 2, packets)),
    ("3 workers, P = 4", 12, lambda packets: OneSwitch(3, 4, packets)),
    ("4 workers, P = 4", 12, lambda packets: OneSwitch(4, 4, packets)),
    ("leaves of 1 and 1, P = 2", 6, lambda packets: Tree((1, 1), 2, packets)),
    ("leaves of 2 and 1, P = 2", 6, lambda packets: Tree((2, 1), 2, packets)),
    ("leaves of 2 and 2, P = 2", 6, lambda packets: Tree((2, 2), 2, packets)),
    ("leaves of 1, 1 and 1, P = 2", 6, lambda packets: Tree((1, 1, 1), 2, packets)),
    ("leaves of 1 and 1, P = 4", 12, lambda packets: Tree((1, 1), 4, packets)),
    ("leaves of 2 and 1, P = 4", 12, lambda packets: Tree((2, 1), 4, packets)),
]
CHANGES = [
    (2, 2, Bounds(losses=1)),
    (2, 2, Bounds(losses=1, leaves=1, repeats=1, returns=1)),
    (2, 4, Bounds(losses=1, leaves=1, repeats=1, returns=1)),
    (3, 2, Bounds(losses=1)),
    (3, 2, Bounds(losses=2)),
    (3, 2, Bounds(losses=1, leaves=1)),
    (3, 2, Bounds(losses=1, repeats=1)),
    (3, 2, Bounds(losses=1, returns=1)),
]


def _system(index: int) -> str:
    name, packets, make = SYSTEMS[index]
    return f"| {name} | {packets} | {_counts(search(make(packets)))}"


def _change(index: int) -> str:
    workers, slots, bounds = CHANGES[index]
    found = search(Membership(workers, bounds, slots=slots))
    return f"| {workers} | {slots} | {' | '.join(map(str, bounds))} | {_counts(found)}"


def _spare(name: str) -> Searched:
    return search(SPARE[name]())


def _mistake(name: str) -> str:
    try:
        search({**MISTAKES, **CHANGE_MISTAKES}[name]())
    except Wrong as wrong:
        return f"| {name} | {len(str(wrong).splitlines()) - 1} steps |"
    raise SystemExit(f"{name} was not found")


def _counts(found: Searched) -> str:
    return f"{found.states:,} | {found.steps:,} | {found.depth} | {found.seconds:.1f} |"


def main() -> None:
    """Searches on all processors, and prints."""
    begun = time.perf_counter()
    # States are millions of tuples without cycles, so the collector would only cost time.
    with ProcessPoolExecutor(initializer=gc.disable) as pool:
        systems = pool.map(_system, range(len(SYSTEMS)))
        changes = pool.map(_change, range(len(CHANGES)))
        spare = pool.map(_spare, SPARE)
        mistakes = pool.map(_mistake, [*MISTAKES, *CHANGE_MISTAKES])
        print("| system | packets | states | steps | depth | seconds |")
        print("| --- | --- | --- | --- | --- | --- |")
        for line in systems:
            print(line, flush=True)
        print("\n| workers | P | lost | left | asked again | back | states | steps | depth | seconds |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for line in changes:
            print(line, flush=True)
        list(spare)
        print("\n| mistake | found after |\n| --- | --- |")
        for line in mistakes:
            print(line, flush=True)
    print(f"\n{time.perf_counter() - begun:.0f} seconds")


if __name__ == "__main__":
    main()

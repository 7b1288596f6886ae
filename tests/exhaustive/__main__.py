"""Searches all configurations, and for each mistake; prints the tables of docs/verification.md."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ProcessPoolExecutor

from tests.exhaustive import failover
from tests.exhaustive.change_mistakes import CHANGE_MISTAKES, SPARE
from tests.exhaustive.failover import Failover
from tests.exhaustive.failover_mistakes import FAILOVER_MISTAKES
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
# Workers, P, packets, switches, and how often each may happen.
FAILOVERS = [
    (2, 2, 4, "1", failover.Bounds(deaths=1, returns=1)),
    (2, 2, 6, "2", failover.Bounds(deaths=1)),
    (2, 2, 4, "2", failover.Bounds(alarms=1)),
    (2, 2, 4, "2", failover.Bounds(deaths=1, returns=1, repeats=1)),
    (2, 2, 4, "2", failover.Bounds(deaths=2, returns=1)),
    (2, 2, 4, "2", failover.Bounds(deaths=1, returns=1, alarms=1)),
    (2, 2, 2, "2 roots", failover.Bounds(deaths=1, alarms=1)),
    (2, 4, 4, "2", failover.Bounds(deaths=1)),
    (3, 2, 3, "2", failover.Bounds(deaths=1)),
]
_MISTAKES = {**MISTAKES, **CHANGE_MISTAKES, **FAILOVER_MISTAKES}


def _system(index: int) -> str:
    name, packets, make = SYSTEMS[index]
    return f"| {name} | {packets} | {_counts(search(make(packets)))}"


def _change(index: int) -> str:
    workers, slots, bounds = CHANGES[index]
    found = search(Membership(workers, bounds, slots=slots))
    return f"| {workers} | {slots} | {' | '.join(map(str, bounds))} | {_counts(found)}"


def _failover(index: int) -> str:
    workers, slots, packets, switches, bounds = FAILOVERS[index]
    count, roots = int(switches[0]), switches.endswith("roots")
    found = search(Failover(workers, slots, packets, bounds, switches=count, roots=roots))
    sizes = (workers, slots, packets, switches, *bounds)
    return f"| {' | '.join(map(str, sizes))} | {_counts(found)}"


def _spare(name: str) -> Searched:
    return search(SPARE[name]())


def _mistake(name: str) -> str:
    try:
        search(_MISTAKES[name]())
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
        failovers = pool.map(_failover, range(len(FAILOVERS)))
        spare = pool.map(_spare, SPARE)
        mistakes = pool.map(_mistake, _MISTAKES)
        print("| system | packets | states | steps | depth | seconds |")
        print("| --- " * 6 + "|")
        for line in systems:
            print(line, flush=True)
        print("\n| workers | P | lost | left | asked again | back | states | steps | depth | seconds |")
        print("| --- " * 10 + "|")
        for line in changes:
            print(line, flush=True)
        print(
            "\n| workers | P | packets | switches | dies | comes back | taken for dead | asked again "
            "| states | steps | depth | seconds |"
        )
        print("| --- " * 12 + "|")
        for line in failovers:
            print(line, flush=True)
        list(spare)
        print("\n| mistake | found after |\n| --- | --- |")
        for line in mistakes:
            print(line, flush=True)
    print(f"\n{time.perf_counter() - begun:.0f} seconds")


if __name__ == "__main__":
    main()

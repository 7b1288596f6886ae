"""Runs schedules and prints what they met, or finds mistakes that are put into the product."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.native.building import ROOT
from tests.native.simulation.build import build
from tests.native.simulation.cells import EMPTY, FAULTS, STATES, table
from tests.native.simulation.mistakes import MISTAKES

_FOLDER: Final = ROOT / "build" / "simulation"
_AT_ONCE: Final = 1000  # schedules a process
# Schedules, after which every cell has something. The rarest was met once in 331,000: an empty RESULT to a
# leaf whose inbox is full.
_ENOUGH: Final = 1_000_000


def run(program: Path, seed: int, count: int, *options: str) -> tuple[bool, str]:
    """Runs the schedules of `count` seeds; returns True if all were right, and what was printed."""
    words = [program, str(seed), str(count), *options]
    found = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if found.returncode not in (0, 1):
        return False, f"failed {seed}: status {found.returncode} {found.stderr}"
    return found.returncode == 0, found.stdout


def counts_of(printed: str) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Returns counts by name, and by state and fault, of what `simulation` has printed."""
    counts: Counter[str] = Counter()
    cells: Counter[tuple[str, str]] = Counter()
    for line in printed.splitlines():
        if line.startswith("cell "):
            state, fault, count = line[5:].split("\t")
            cells[state, fault] += int(count)
        elif not line.startswith("hash"):
            name, value = line.split()
            counts[name] += float(value)  # type: ignore[assignment]
    return counts, cells


def simulate(seed: int, schedules: int, processes: int) -> int:
    """Runs schedules and prints a report; returns 1 if one was wrong, or a cell is empty without a reason."""
    program = build(_FOLDER)
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    print(f"seed {seed}, commit {commit.stdout.strip() or 'unknown'}", flush=True)
    begun = time.monotonic()
    parts = [(seed + at, min(_AT_ONCE, schedules - at)) for at in range(0, schedules, _AT_ONCE)]
    counts: Counter[str] = Counter()
    cells: Counter[tuple[str, str]] = Counter()
    with ThreadPoolExecutor(processes) as pool:
        for right, printed in pool.map(lambda part: run(program, *part), parts):
            if not right:
                pool.shutdown(wait=False, cancel_futures=True)
                print(printed.splitlines()[0])
                return explain(program, int(printed.split()[1].rstrip(":")))
            more, met = counts_of(printed)
            counts.update(more)
            cells += met
    has = {name: f"{count:,.0f}" for name, count in counts.items()}
    print(
        f"{has['schedules']} schedules ({has['small']} of under 300 packets, {has['trees']} with leaves, "
        f"{has['crashes']} in which a worker dies): {has['packets']} packets, {has['workers']} workers, "
        f"{has['faults']} faults, {has['virtual_seconds']} s of virtual time; all right"
    )
    a_second = {name: f"{counts[name] / counts['seconds']:,.0f}" for name in ("schedules", "packets")}
    print(
        f"{time.monotonic() - begun:.1f} s in {processes} processes; a second of each: "
        f"{a_second['schedules']} schedules, {a_second['packets']} packets"
    )
    print(table(cells))
    wrong = [f"has a reason to be empty, and is not: {cell}" for cell in EMPTY if cells[cell]]
    if schedules >= _ENOUGH:
        every = {(state, fault) for state in STATES for fault in FAULTS} - EMPTY.keys()
        wrong += [f"empty without a reason: {cell}" for cell in sorted(every) if not cells[cell]]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


def explain(program: Path, seed: int) -> int:
    """Makes a failing schedule smaller and says where its timeline and its packets are; returns 1."""
    folder = _FOLDER / f"failed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    _, printed = run(program, seed, 1, "--explain", str(folder))
    print(printed, end="")
    print(f"again: python -m tests.native.simulation --seed {seed} --schedules 1; see {folder}")
    return 1


def find_mistakes(seed: int, most: int) -> int:
    """Prints how many seeds each mistake takes; returns 1 if one is not found in `most`."""
    status = 0
    print(f"seed {seed}")
    for mistake in MISTAKES:
        right, printed = run(build(_FOLDER, mistake), seed, most, *mistake.options)
        status |= right
        words = printed.splitlines()[0].split(maxsplit=4)
        found = ("not found", "") if right else (words[3].rstrip(":"), words[4])
        print(f"| {mistake.name} | {' | '.join(found)} |", flush=True)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where a schedule was wrong or a mistake was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**40), help="of the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at once (%(default)s)")
    parser.add_argument("--mistakes", action="store_true", help="find mistakes that are put into the product")
    options = parser.parse_args(arguments)
    if options.mistakes:
        return find_mistakes(options.seed, options.schedules)
    return simulate(options.seed, options.schedules, options.processes)


if __name__ == "__main__":
    sys.exit(main())

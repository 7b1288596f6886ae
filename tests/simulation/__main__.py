"""Runs schedules of whole systems and prints what they met, or finds mistakes that are put into the product.

python -m tests.simulation --schedules 1000 [--seed N] [--processes 2]
python -m tests.simulation --explain SEED       one schedule: made smaller, with a timeline and a capture
python -m tests.simulation --mistakes           how many seeds each mistake takes
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import secrets
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.native.building import ROOT
from tests.native.simulation.build import build
from tests.simulation.cells import REASONS, STATES, table
from tests.simulation.mistakes import MISTAKES, Mistake, put_in
from tests.simulation.schedule import KINDS

FOLDER: Final = ROOT / "build" / "simulation"
_AT_ONCE: Final = 100  # schedules a process
_ENOUGH: Final = 50_000  # schedules, after which every cell has something
_STUCK: Final = 60  # seconds of real time that one schedule may take


def run_seeds(library: Path, seed: int, count: int, mistake: str = "", stuck: int = _STUCK) -> dict[str, Any]:
    """Runs `count` schedules from a seed on, in a process of its own; returns what it prints.

    A schedule may take `stuck` seconds of real time.
    """
    words = [sys.executable, "-m", "tests.simulation", "--child", str(library), "--seed", str(seed)]
    words += ["--schedules", str(count), "--mistake", mistake, "--stuck", str(stuck)]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode:  # `after` is 0, since this is no schedule's own judgement
        seed = int(lines[-1]) if lines else seed
        why = f"no end after {stuck} s of real time: " if "Timeout" in done.stderr else ""
        return {
            "failed": seed,
            "after": 0,
            "failure": f"{why}status {done.returncode}: {done.stderr}",
        }
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _child(library: Path, seed: int, count: int, mistake: str, stuck: int) -> dict[str, Any]:
    """Runs the schedules in this process, up to the first that fails."""
    each = seed
    try:
        put_in(mistake)
        from tests.simulation import library as binding
        from tests.simulation import schedule, system

        binding.library.load(library)
        logging.disable(logging.CRITICAL)
        begun = time.process_time()
        found: Counter[str] = Counter()
        cells: Counter[tuple[str, str]] = Counter()
        hashes = []
        for each in range(seed, seed + count):
            print(each, flush=True)
            faulthandler.dump_traceback_later(stuck, exit=True)  # also where C code does not return
            outcome = system.run_both(schedule.draw(each))
            faulthandler.cancel_dump_traceback_later()
            found.update(
                schedules=1, packets=outcome.packets, workers=outcome.workers, collectives=outcome.done,
                threads=outcome.switches, faults=sum(outcome.timed.values()), packet_faults=len(outcome.met),
                virtual_ms=round(outcome.seconds * 1000),
            )  # fmt: skip
            cells.update(outcome.timed)
            hashes.append(outcome.hash)
            if outcome.failure:
                return {"failed": each, "after": each - seed + 1, "failure": outcome.failure}
        return {
            **found,
            "seconds": time.process_time() - begun,
            "cells": [[kind, state, number] for (kind, state), number in cells.items()],
            "hash": hashes,
        }
    except Exception as error:  # of the simulation itself; it comes first, since a log may cut off the rest
        return {"failed": each, "after": 0, "failure": f"{error!r}\n{traceback.format_exc()}"}


def _all(library: Path, seed: int, schedules: int, processes: int) -> Iterator[dict[str, Any]]:
    parts = [(seed + at, min(_AT_ONCE, schedules - at)) for at in range(0, schedules, _AT_ONCE)]
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(lambda part: run_seeds(library, *part), parts)


def simulate(seed: int, schedules: int, processes: int) -> int:
    """Runs schedules and prints a report; returns 1 if one was wrong, or a cell is empty without a reason."""
    library = build(FOLDER, system=True)
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    print(f"seed {seed}, commit {commit.stdout.strip() or 'unknown'}", flush=True)
    total: Counter[str] = Counter()
    cells: Counter[tuple[str, str]] = Counter()
    for part in _all(library, seed, schedules, processes):
        if "failed" in part:
            print(f"failed {part['failed']}: {part['failure']}")
            print(f"again: python -m tests.simulation --explain {part['failed']}")
            return 1
        cells.update({(kind, state): count for kind, state, count in part["cells"]})
        total.update({name: value for name, value in part.items() if name not in ("cells", "hash")})
    each = total["seconds"] / max(1, total["schedules"])
    print(
        f"{total['schedules']:,} schedules: {total['packets']:,} packets, {total['workers']:,} workers, "
        f"{total['collectives']:,} collectives, {total['faults']:,} faults of processes and links, "
        f"{total['packet_faults']:,} of packets, {total['virtual_ms'] / 1000:,.0f} virtual s; all right"
    )
    print(
        f"{total['seconds']:.1f} s of processor time: {1 / each:.1f} schedules a second and core, "
        f"{1e6 * total['seconds'] / max(1, total['packets']):.1f} us a packet, "
        f"{1e3 * total['seconds'] / max(1, total['workers']):.2f} ms a worker"
    )
    print(table(cells))
    empty = [
        (kind, state)
        for kind in KINDS
        for state in STATES
        if not cells[kind, state] and (kind, state) not in REASONS
    ]
    if schedules >= _ENOUGH and empty:
        print("empty without a reason:", *empty, sep="\n")
        return 1
    return 0


def explain(library: Path, seed: int, mistake: str, folder: Path) -> int:
    """Makes a failing schedule smaller, and leaves its timeline and its packets; returns 1 if it fails."""
    put_in(mistake)
    from tests.simulation import library as binding
    from tests.simulation.shrink import shrink

    binding.library.load(library)
    logging.disable(logging.CRITICAL)
    folder.mkdir(parents=True, exist_ok=True)
    print("\n".join(shrink(seed, folder)))
    return 1


def find_mistakes(seed: int, most: int, names: Sequence[str]) -> int:
    """Prints how many seeds each mistake takes; returns 1 if one is not found in `most`."""
    status = 0
    print(f"seed {seed}")
    for mistake in MISTAKES:
        if names and mistake.name not in names:
            continue
        after, failure = find(mistake, seed, most)
        status |= not after
        print(f"| {mistake.name} | {after or 'not found'} | {failure} |", flush=True)
    return status


def find(mistake: Mistake, seed: int, most: int, folder: Path = FOLDER) -> tuple[int, str]:
    """Returns how many seeds a mistake takes, 0 if more than `most`, and what was wrong then."""
    library = build(folder, system=True)
    for at in range(0, most, _AT_ONCE):
        part = run_seeds(library, seed + at, min(_AT_ONCE, most - at), mistake.name)
        if "failed" in part:
            if not part["after"]:
                raise RuntimeError(part["failure"])  # of the simulation's process, not of a schedule
            return at + part["after"], str(part["failure"])[:100]
    return 0, ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where a schedule was wrong or a mistake was not found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=100_000, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**40), help="of the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at once (%(default)s)")
    parser.add_argument("--explain", type=int, metavar="SEED")
    parser.add_argument("--mistakes", nargs="*", metavar="NAME", help="find these, or all")
    parser.add_argument("--mistake", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="for the timeline and the capture of --explain")
    parser.add_argument("--stuck", type=int, default=_STUCK, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None and options.explain is None:
        print(
            json.dumps(_child(options.child, options.seed, options.schedules, options.mistake, options.stuck))
        )
        return 0
    if options.explain is not None:
        if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of names must not differ
            os.environ["PYTHONHASHSEED"] = "0"
            os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
        library = options.child or build(FOLDER, system=True)
        folder = options.folder or FOLDER / f"failed-{options.explain}"
        return explain(library, options.explain, options.mistake, folder)
    if options.mistakes is not None:
        return find_mistakes(options.seed, options.schedules, options.mistakes)
    return simulate(options.seed, options.schedules, options.processes)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of schedules that were cut off have nothing to say any more

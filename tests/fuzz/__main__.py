"""Runs targets one after another: for each distinct failure, its execution and traceback."""

from __future__ import annotations

import argparse
import resource
import secrets
import signal
import sys
import tempfile
import traceback
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.fuzz import TARGETS

CPU_SECONDS: Final = 20.0  # of one execution
MEMORY: Final = 3 << 30  # bytes of address space of this process
_STACK_SHOWN: Final = 12  # frames


class Hung(BaseException):
    """An execution has taken too much processor time."""


def main() -> int:
    """Returns 1 where an execution has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--executions", type=int, default=1000, help="of each target (%(default)s)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="one of them; all by default")
    parser.add_argument("--first", type=int, default=0, help="number of the first execution (%(default)s)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _hung)
    print(f"seed {options.seed}", flush=True)
    failed = 0
    for name in options.target or TARGETS:
        found = run(name, options.seed, range(options.first, options.first + options.executions))
        print(f"{name}: {options.executions} executions, {found} distinct failures", flush=True)
        failed += found
    return min(failed, 1)


def run(name: str, seed: int, executions: range) -> int:
    """Executes a target. Returns the number of distinct failures, which it prints."""
    seen: set[tuple[str, str, int]] = set()
    with tempfile.TemporaryDirectory(prefix="switchagg-fuzz-") as folder:
        target: AbstractContextManager[Any] = import_module(f"tests.fuzz.{TARGETS[name]}").target(
            Path(folder)
        )
        with target as execute:
            for number in executions:
                signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
                try:
                    execute(Random(f"{seed}/{name}/{number}"))
                except (Exception, Hung, SystemExit) as error:
                    signal.setitimer(signal.ITIMER_PROF, 0)
                    frame = traceback.extract_tb(error.__traceback__)[-1]
                    known = type(error).__name__, frame.filename, frame.lineno or 0
                    if known not in seen:
                        seen.add(known)
                        again = f"--target {name} --seed {seed} --first {number} --executions 1"
                        print(f"{name} has failed; once more: {again}")
                        traceback.print_exception(error, limit=-_STACK_SHOWN, file=sys.stdout)
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)
    return len(seen)


def _hung(*_: object) -> None:
    raise Hung(f"more than {CPU_SECONDS:g} seconds of the processor")


if __name__ == "__main__":
    sys.exit(main())

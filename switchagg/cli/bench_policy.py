"""`switchagg bench policy`: a drifting density, tuned by the controller, against every fixed setting."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from switchagg.errors import UsageError
from switchagg.launch.signals import sigterm_exits

_EPILOG = """\
In each phase the job's calls name nothing, and the controller chooses block size and sparse or dense; the
same calls are timed with each fixed setting on the same tensors. Times are milliseconds a call; * marks the
best fixed setting of a phase. Without options the run takes about seven minutes. Exit status: 0 measured and
every result the same to the bit, 1 something failed, 2 a parameter that cannot work.
"""


def add_parser(kinds: Any) -> None:
    """Add `policy` to what `bench` measures."""
    parser = kinds.add_parser(
        "policy",
        help="the skip policy that the controller tunes, against fixed ones",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=4, help="worker processes, 2 to 32 (%(default)s)")
    parser.add_argument("--size", default="64M", help="bytes of a worker's tensor (%(default)s)")
    parser.add_argument(
        "--density",
        default="1,0.5,0.1,0.03,0.01,0.03,0.1,0.5,1",
        help="of the phases, one after the other (%(default)s)",
    )
    parser.add_argument(
        "--layout", default="random,clustered", help="of non-zero elements: random, clustered (%(default)s)"
    )
    parser.add_argument(
        "--blocks", default="16,64,256,1024", help="block sizes of the fixed settings (%(default)s)"
    )
    parser.add_argument(
        "--phase-seconds",
        type=float,
        default=8.0,
        help="that a phase takes under its best fixed setting (%(default)s)",
    )
    parser.add_argument(
        "--share",
        type=float,
        default=0.25,
        help="of a phase's calls with which each fixed setting is measured (%(default)s)",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=2.5,
        help="of the job, seconds; heartbeats come at a fifth of it, at most a second (%(default)s)",
    )
    parser.add_argument("--transport", default="shm", help="shm or udp (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the data (%(default)s)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one call (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON; the exit status as the command's help says it.

    Raises:
        UsageError: a parameter that cannot work.
    """
    from switchagg.bench import policy
    from switchagg.bench.grid import parse_list, parse_size
    from switchagg.bench.policy_messages import Layout
    from switchagg.bench.report import machine

    settings = policy.PolicySettings(
        workers=args.workers,
        size=parse_list(args.size, "size", parse_size)[0],
        densities=_numbers(args.density, "density"),
        layouts=parse_list(args.layout, "layout (accepted are random, clustered)", Layout),
        blocks=parse_list(args.blocks, "blocks", int),
        seconds=args.phase_seconds,
        share=args.share,
        deadline=args.deadline,
        transport=args.transport,
        seed=args.seed,
        timeout=args.timeout,
    )
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise UsageError(f"json {args.json}: there is no folder {args.json.absolute().parent}")

    def say(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    with sigterm_exits():
        outcome = policy.run(settings, say)
    print(policy.table(outcome))
    if args.json is not None:
        args.json.write_text(json.dumps(policy.to_json(settings, outcome, machine()), indent=1) + "\n")
        print(f"Figures in {args.json}")
    if not outcome.exact:
        print("results differed between settings or ranks", file=sys.stderr)
    return 0 if outcome.exact else 1


def _numbers(text: str, name: str) -> tuple[float, ...]:
    """A list in which numbers may come twice."""
    try:
        return tuple(float(item) for item in text.split(","))
    except ValueError:
        raise UsageError(f"{name} is {text!r}; accepted: numbers such as 1,0.1,0.01") from None

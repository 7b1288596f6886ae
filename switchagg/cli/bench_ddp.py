"""`switchagg bench ddp`: steps a second and time in communication, under DDP, through the switch and gloo."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from switchagg.errors import UsageError
from switchagg.launch.signals import sigterm_exits


def add_parser(kinds: Any) -> None:
    """Adds `ddp` to the benchmarks of an argparse parser."""
    from switchagg.bench.ddp.settings import MODELS, SYSTEMS, DdpSettings

    default = DdpSettings()
    parser = kinds.add_parser(
        "ddp",
        help="training under PyTorch's DistributedDataParallel",
        description=__doc__,
        epilog="Every system trains the same models on the same batches, in turns, in the same processes. "
        "Exit status: 0 all measured, ranks the same; 1 something failed; 2 a parameter that cannot work.",
    )
    parser.add_argument("--workers", default=",".join(map(str, default.workers)), help="list (%(default)s)")
    parser.add_argument("--model", default=",".join(MODELS), help="list (%(default)s)")
    parser.add_argument(
        "--system", default=",".join(default.systems), help=f"list of {', '.join(SYSTEMS)} (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=default.steps, help="a round (%(default)s)")
    parser.add_argument("--repeat", type=int, default=default.repeat, help="timed rounds (%(default)s)")
    parser.add_argument("--warmup", type=int, default=default.warmup, help="rounds before (%(default)s)")
    parser.add_argument(
        "--parameters", type=int, default=default.parameters, help="of a model, about (%(default)s)"
    )
    parser.add_argument("--batch", type=int, default=default.batch, help="samples a rank (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=default.timeout, help="seconds for a step (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")


def run(args: argparse.Namespace) -> int:
    """Measures, prints the table, writes the JSON.

    Raises:
        UsageError: a parameter that cannot work. SwitchAggError: a rank failed.
    """
    from switchagg.bench.ddp import report
    from switchagg.bench.ddp.run import run as measure
    from switchagg.bench.ddp.settings import DdpSettings, Figures
    from switchagg.bench.grid import parse_list

    settings = DdpSettings(
        workers=parse_list(args.workers, "workers", int),
        models=parse_list(args.model, "model", str),
        systems=parse_list(args.system, "system", str),
        steps=args.steps,
        repeat=args.repeat,
        warmup=args.warmup,
        parameters=args.parameters,
        batch=args.batch,
        timeout=args.timeout,
    )
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise UsageError(f"json {args.json}: there is no folder {args.json.absolute().parent}")

    def progress(figures: Figures) -> None:
        if sys.stderr.isatty():
            print(f"{figures.workers} ranks, {figures.model}, {figures.system}: measured", file=sys.stderr)

    with sigterm_exits():
        found = measure(settings, progress)
    print(report.table(found))
    print()
    print(report.LEGEND)
    if args.json is not None:
        args.json.write_text(json.dumps(report.to_json(settings, found), indent=1) + "\n")
        print(f"Figures in {args.json}")
    return 0 if all(figures.same is not False for figures in found) else 1

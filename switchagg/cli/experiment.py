"""`switchagg experiment`: checks claims of the field through the real switch, and writes a report."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchagg.errors import UsageError
from switchagg.launch.processes import ONE_THREAD
from switchagg.launch.signals import stop_signals_exit

if TYPE_CHECKING:
    from switchagg.experiments.runner import Record

_EPILOG = """\
Exit status: 0 every experiment ran, whether its claim held or not; 1 one broke off, or needs something that
is not installed; 2 an option that cannot work, 130 interrupted.

  switchagg experiment --list
  switchagg experiment same-bits
  switchagg experiment all --out report
  switchagg experiment race --out report --resume
"""


def add_parser(subparsers: Any) -> None:
    option = subparsers.add_parser(
        "experiment",
        description="Runs each claim through the software switch with real processes, prints what was found "
        "and whether the claim holds here, and writes a page with plots and a JSON file.",
        epilog=_EPILOG,
    ).add_argument
    option("names", nargs="*", metavar="NAME", help="experiments, or all")
    option("--list", action="store_true", help="list them")
    option("--quick", action="store_true", help="a short run, to see that everything works")
    option("--seed", type=int, default=0, help="of all that is random (%(default)s)")
    option(
        "--resume",
        action="store_true",
        help="take over what an interrupted run of this version, seed and form left in --out (race)",
    )
    option("--json", action="store_true", help="print the results as JSON, and no text")
    option(
        "--out",
        type=Path,
        default=Path("experiments-report"),
        metavar="DIR",
        help="folder of the report (./%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the experiments. Returns the exit status of the command's help.

    Raises:
        UsageError: no such experiment, or an option that cannot work.
    """
    if args.list:
        return _list(args)
    # Before NumPy is there: on matrices this small threads of BLAS cost more than they do, ten times on busy
    # cores, where they wait for each other.
    os.environ |= ONE_THREAD
    from switchagg.experiments import catalogue, report, runner
    from switchagg.report.page import PLOTS_HINT, check_folder

    experiments = catalogue.chosen(args.names)
    if not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed}: a whole number from 0 to {2**32 - 1}")
    check_folder(args.out)
    if len(experiments) == 1 and (reason := experiments[0].missing()) is not None:
        raise UsageError(f"{experiments[0].name}: {reason}")
    parts = args.out / "parts"
    for path in [] if args.resume else [p for each in experiments for p in parts.glob(f"{each.name}-*.json")]:
        path.unlink()
    settings = runner.Settings(quick=args.quick, seed=args.seed, parts=parts)
    started = time.monotonic()
    records: list[Record] = []
    with stop_signals_exit():
        for each in runner.run(experiments, settings, _say):
            records.append(each)
            if not args.json:
                print(report.record_text(each), end="\n\n", flush=True)
    seconds = time.monotonic() - started
    page, has_plots = report.write(records, settings, seconds, args.out)
    if args.json:
        print(json.dumps(report.to_json(records, settings, seconds), indent=1))
    else:
        if len(records) > 1:
            print(report.summary_text(records))
        print(f"report  {page}  ({seconds:.0f} s in all)")
    if not has_plots:
        _say(PLOTS_HINT)
    return 0 if all(each.outcome is not None for each in records) else 1


def _list(args: argparse.Namespace) -> int:
    from switchagg.experiments.catalogue import load
    from switchagg.report.table import listing

    if args.names:
        raise UsageError("--list takes no names")
    known = load()
    if args.json:
        told = {
            each.name: {"title": each.title, "claim": each.claim, "source": each.source}
            for each in known.values()
        }
        print(json.dumps(told, indent=1))
    else:
        print(listing(("name", "what"), [(each.name, each.title) for each in known.values()]))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

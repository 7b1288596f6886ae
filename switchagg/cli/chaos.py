"""`switchagg chaos`: jobs under faults at random moments, on loopback, with every sum checked."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import secrets
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from switchagg.cli.options import REPEATABLE, add_network_options, network_arguments
from switchagg.errors import UsageError, require
from switchagg.launch.processes import raise_descriptor_limit
from switchagg.launch.signals import stop_signals_exit
from switchagg.report.progress import working

if TYPE_CHECKING:
    from switchagg.chaos.faults import Kind
    from switchagg.chaos.run import Outcome
    from switchagg.report.table import Table

_SITES = ("separate", "inside")
_DISK = 8 << 20  # bytes of a controller's state
_EPILOG = """\
It starts controllers, switches and ranks of its own, and strikes only these: kills and stops processes,
filters their sockets, fills the disk of a controller's state (as root). The machine's clock, other processes
and interfaces are left alone. Exit status: 0 nothing was wrong; 1 a sum was wrong or differed between ranks,
a rank hung, a job did not come back, or something was left behind; 2 an option that cannot work; 130
interrupted.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "chaos",
        description="Runs several jobs at once in real processes on loopback, and kills, stops and cuts off "
        "workers, switches and controllers at random moments. Checks every sum, and that all jobs come back.",
        epilog=_EPILOG,
    )
    option = parser.add_argument
    option(
        "--seconds",
        type=float,
        default=60.0,
        help="of faults; the start and the end come on top (%(default)s)",
    )
    option("--jobs", type=int, default=4, help="at once (%(default)s)")
    option("--workers", type=int, default=3, help="ranks of a job, 2 to 32 (%(default)s)")
    option(
        "--site",
        **REPEATABLE,
        choices=_SITES,
        help="a controller with its switch in a separate process, or inside; repeatable (one of each)",
    )
    option("--fault", **REPEATABLE, metavar="NAME", help="only this one; repeatable (all)")
    option("--errors", action="store_true", help="print each error that ranks met, and how often")
    option("--quiet", action="store_true", help="no line for each fault")
    option("--json", action="store_true", help="print the outcome as JSON, and no table")
    add_network_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs, prints the table, and returns the exit status of the command's help."""
    from switchagg.chaos.faults import KINDS
    from switchagg.chaos.kernel import small_disk
    from switchagg.chaos.run import Chaos
    from switchagg.chaos.site import Site

    require(0 < args.seconds <= 1e6, "seconds", args.seconds, "greater than 0, up to 1000000")
    require(1 <= args.jobs <= 64, "jobs", args.jobs, "1 to 64")
    require(2 <= args.workers <= 32, "workers", args.workers, "2 to 32")
    kinds = list(KINDS)
    if args.fault:
        names = [kind.name for kind in KINDS]
        for name in args.fault:
            require(name in names, "fault", repr(name), ", ".join(names))
        kinds = [kind for kind in KINDS if kind.name in args.fault]
    sites = _sites(args.site)
    targets = {"worker", *(("switch", "controller") if "separate" in sites else ())}
    targets |= {"host"} if "inside" in sites else set()
    kinds = [kind for kind in kinds if kind.target in targets]
    if args.seed is None:
        args.seed = secrets.randbelow(2**31)
    network = network_arguments(args)
    if network[:-2] and "separate" not in sites:
        raise UsageError(f"{network[0]} is of a switch in a process of its own: --site separate")
    raise_descriptor_limit()
    _say(f"seed {args.seed}")
    with stop_signals_exit(), contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchagg-chaos-")))
        rng = Random(f"{args.seed} ports")
        made = []
        for number, name in enumerate(sites):
            own = folder / str(number)
            own.mkdir()
            try:
                stack.enter_context(small_disk(own, _DISK))
            except OSError as error:
                kinds = [kind for kind in kinds if kind.means != "fill"]
                _say(f"no full disk: a small one cannot be mounted here ({error.strerror})")
            made.append(Site(name, separate=name == "separate", folder=own, rng=rng, network=network))
        if not kinds:
            raise UsageError("no fault is left to inject")
        chaos = Chaos(
            made,
            jobs=args.jobs,
            workers=args.workers,
            kinds=kinds,
            seed=args.seed,
            say=(lambda _: None) if args.quiet else _say,
        )
        with working(f"injecting faults for {args.seconds:g} s") if args.quiet else contextlib.nullcontext():
            outcome = chaos.run(args.seconds)
    if args.json:
        print(json.dumps(_figures(args.seed, outcome)))
        return int(bool(outcome.wrong))
    print(_table(kinds, outcome).text())
    errors = ", ".join(f"{name} {times}" for name, times in outcome.errors.most_common()) or "none"
    print(f"{outcome.collectives:,} results checked, {outcome.joins} joins; errors: {errors}")
    if outcome.slowest[1]:
        print(f"longest call that ended in an error: {outcome.slowest[0]:.1f} s, {outcome.slowest[1]}")
    if args.errors:
        for text, times in outcome.texts.most_common():
            print(f"{times:6d}  {text}")
    for text in outcome.wrong:
        print(f"WRONG: {text} (seed {args.seed})")
    return int(bool(outcome.wrong))


def _sites(given: list[str]) -> list[str]:
    """Returns the sites asked for; by default one of each, as far as the packages are there."""
    if importlib.util.find_spec("finsy") is not None:
        return given or list(_SITES)
    if "separate" in given:
        raise UsageError('a separate switch needs P4Runtime: pip install "switchagg[p4runtime]"')
    _say('no separate switch: that needs pip install "switchagg[p4runtime]"')
    return given or ["inside"]


def _figures(seed: int, outcome: Outcome) -> dict[str, Any]:
    """Returns the outcome as JSON types; a fault's `pause` is in seconds, and null where none ended."""
    return {
        "seed": seed,
        "faults": [
            {"name": each.draw.kind.name, "pause": each.pause, "errors": each.errors}
            for each in outcome.faults
        ],
        "collectives": outcome.collectives,
        "joins": outcome.joins,
        "errors": outcome.errors,
        "texts": outcome.texts,
        "slowest": {"seconds": outcome.slowest[0], "error": outcome.slowest[1]},
        "wrong": outcome.wrong,
    }


def _table(kinds: list[Kind], outcome: Outcome) -> Table:
    from switchagg.report.table import Table

    rows = []
    for kind in kinds:
        faults = [fault for fault in outcome.faults if fault.draw.kind == kind]
        pauses = [fault.pause for fault in faults if fault.pause is not None]
        errors: Counter[str] = sum((fault.errors for fault in faults), Counter())
        if faults:
            rows.append(
                (
                    kind.text,
                    len(faults),
                    f"{median(pauses):.2f} s" if pauses else "-",
                    f"{max(pauses):.2f} s" if pauses else "-",
                    ", ".join(f"{name} {times}" for name, times in errors.most_common()) or "none",
                )
            )
    return Table(
        "Faults",
        ("fault", "times", "median pause", "longest", "errors at ranks meanwhile"),
        rows,
        "A pause ends when every rank of the site has completed a collective of all ranks that it began "
        "after the fault. Where faults overlap, the pauses of both have what either caused.",
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

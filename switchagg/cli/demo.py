"""`switchagg demo`: trains a language model through the software switch, and writes a report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchagg.cli.options import chosen
from switchagg.launch.signals import stop_signals_exit

if TYPE_CHECKING:
    from switchagg.demo.progress import Progress
    from switchagg.demo.settings import Settings

_EPILOG = """\
Nothing is written outside the report's folder, and no process outlives the command.
Exit status: 0 all went well and all weights were identical, 1 something failed, 2 an option that cannot
work, 130 interrupted.
"""


def add_parser(subparsers: Any) -> None:
    option = subparsers.add_parser(
        "demo",
        description="Worker processes train one language model on the source of the Python standard library. "
        "A software switch sums their gradients. The same batches then run in a single process, and a report "
        "shows both curves, the bytes on the wire and the time.",
        epilog=_EPILOG,
    ).add_argument
    option("--workers", type=int, default=4, help="worker processes, 1 to 32 (%(default)s)")
    option("--steps", type=int, default=300, help="optimizer steps (%(default)s)")
    option("--bits", type=int, default=32, help="width of lanes: 32, 16 or 8 (%(default)s)")
    option(
        "--compare-bits", action="store_true", help="train with 32-, 16- and 8-bit lanes, one after the other"
    )
    option("--loss", type=float, default=0.0, help="share of packets that the switch loses (0)")
    option("--duplicate", type=float, default=0.0, help="share that it duplicates (0)")
    option("--reorder", type=float, default=0.0, help="share that it reorders (0)")
    option("--seed", type=int, default=0, help="of weights, batches and faults (%(default)s)")
    option(
        "--embedding",
        default="65536x64",
        metavar="ROWSxCOLUMNS",
        help="size of the embedding table (%(default)s)",
    )
    option("--batch", type=int, default=128, help="examples a worker and step (%(default)s)")
    option("--corpus-bytes", type=int, default=6_000_000, metavar="N", help="of source to read (%(default)s)")
    option("--rate", help="of each worker's link, each way, such as 1Gbit (as fast as it goes)")
    option("--learning-rate", type=float, default=0.1, help="of Adagrad (%(default)s)")
    option("--json", action="store_true", help="print the figures as JSON, and no text")
    option(
        "--out",
        "--report",
        type=Path,
        default=Path("report"),
        metavar="DIR",
        help="folder of the report (./%(default)s)",
    )


def settings_from(args: argparse.Namespace) -> Settings:
    """Returns the settings that the command line asks for.

    Raises:
        UsageError: a value that cannot work; the message names the option.
    """
    from switchagg.demo.settings import Settings, parse_embedding

    rows, dimension = parse_embedding(args.embedding)
    return Settings(
        packet_loss=args.loss,
        packet_duplicate=args.duplicate,
        packet_reorder=args.reorder,
        rows=rows,
        dimension=dimension,
        **chosen(args, "workers", "steps", "bits", "seed", "batch", "rate", "learning_rate", "corpus_bytes"),
    )


def run(args: argparse.Namespace) -> int:
    """Runs the demo. Returns the exit status of the command's help."""
    from switchagg.demo import report
    from switchagg.demo.run import run as run_demo
    from switchagg.demo.settings import LANES
    from switchagg.report import page

    try:
        with stop_signals_exit():
            settings = settings_from(args)
            page.check_folder(args.out)
            lanes = [settings.bits]
            if args.compare_bits:
                lanes += [bits for bits in LANES if bits != settings.bits]
            with _progress(args) as progress:
                outcome = run_demo(settings, lanes, progress)
                progress.phase("writing the report")
                index, has_plots = report.write(outcome, args.out)
    except KeyboardInterrupt:
        print(
            "switchagg demo: interrupted; all processes are stopped, no report was written", file=sys.stderr
        )
        return 130
    if args.json:
        figures = {"report": str(index), "plots": has_plots, "seconds": outcome.seconds}
        print(json.dumps(outcome.to_json() | figures))
        return 0 if outcome.identical else 1
    print()
    for line in report.summary_lines(outcome):
        print(line)
    if not has_plots:
        print(page.PLOTS_HINT)
    print(f"report     {index}  ({outcome.seconds:.0f} s in all)")
    return 0 if outcome.identical else 1


def _progress(args: argparse.Namespace) -> Progress:
    from rich.console import Console

    from switchagg.demo.progress import LiveProgress, PlainProgress

    console = Console(stderr=True)
    if console.is_terminal:
        return LiveProgress(console)
    return PlainProgress(sys.stderr if args.json else sys.stdout)
